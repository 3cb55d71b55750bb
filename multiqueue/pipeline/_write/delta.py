"""A Delta table, by the library `deltalake`: Spark wrote the files, here they are named in the table's log.

Promise     A commit is one entry of the log: the files that come, those that go, the commit's number, and the items
            with their attempts. Entries are made only if there is none of that number yet, on every store that the
            library knows. One application transaction, the pipeline's own, keeps two processes from committing at once.
Bounded     Of the library's checkpoints, each of which names all files, the last two are kept: older versions are in
            the entries of the log, which the library removes after `delta.logRetentionDuration`, 30 days by default.
Rewritten   After `optimize` a file may have rows of several items. Where one of them is replaced, the rows of the
            others are written anew in the same commit.
State       The table as it was last looked at. `Table` has the lock.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from ..._extras import needs
from .._base.errors import Unprepared
from .._columns.kinds import Columns, of_spark, to_spark
from .files import DataFile, TableFiles
from .table import TableFile

try:
    import deltalake
    from deltalake.exceptions import TableNotFoundError
    from deltalake.transaction import AddAction, RemoveAction
except ImportError as _error:
    raise Unprepared(needs('table = "delta"', _error.name or "deltalake")) from None

_OWNER = "multiqueue.state"
_NUMBER = "multiqueue.commit"
_ITEMS = "multiqueue.items"
# Entries of the log in which a commit of ours is looked for: after a crash it is the last one, or behind a few others.
_LOOKED_AT = 20
_SECONDS_AN_HOUR = 3600
_CHECKPOINTS = 100
"""After so many commits the library makes one."""

_S3 = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token"}
_S3 |= {"endpoint": "aws_endpoint_url", "region": "aws_region", "anonymous": "aws_skip_signature"}
_AZURE = {"account": "azure_storage_account_name", "secret": "azure_storage_account_key"}
_AZURE |= {
    "token": "azure_storage_sas_token",
    "anonymous": "azure_skip_signature",
    "endpoint": "azure_storage_endpoint",
}
_GS = {"token": "google_service_account", "anonymous": "google_skip_signature", "endpoint": "google_base_url"}
_WORDS = {"s3": _S3, "gs": _GS, "abfss": _AZURE, "az": _AZURE}
"""The library's names for the keys of `[storage.NAME]`."""


class DeltaTable:
    """The Delta way of `TableFormat`."""

    may_widen = False
    stored_as: Mapping[str, str] = {}
    keeps_partition_columns = False

    def __init__(self, files: TableFiles) -> None:
        self.files = files
        self._options = _storage_options(files)
        self._first_version: int | None = None
        self._own_commits = 0
        self._opened: deltalake.DeltaTable | None = None
        self._numbers: set[str] = set()
        self._entries: list[dict[str, Any]] | None = None

    @property
    def _table(self) -> deltalake.DeltaTable:
        assert self._opened is not None, "`open` comes first"
        return self._opened

    def open(self) -> bool:
        self._entries = None
        try:
            self._opened = deltalake.DeltaTable(self.files.root.text, storage_options=self._options)
        except TableNotFoundError:
            self._first_version = 0  # the table begins with it, whichever process makes it
            return False
        if self._first_version is None:
            self._first_version = self._opened.version()
        return True

    def make(self, columns: Columns, partition_by: Sequence[str], owner: str) -> None:
        deltalake.DeltaTable.create(
            self.files.root.text,
            _schema(columns),
            mode="ignore",
            partition_by=list(partition_by),
            configuration={_OWNER: owner, "delta.checkpointInterval": str(_CHECKPOINTS)},
            storage_options=self._options,
            raise_if_key_not_exists=False,
        )

    @property
    def owner(self) -> str | None:
        return self._table.metadata().configuration.get(_OWNER)

    @property
    def columns(self) -> Columns:
        return of_spark(self._table.schema().to_json())

    @property
    def partition_by(self) -> list[str]:
        return list(self._table.metadata().partition_columns)

    @property
    def others_commit(self) -> bool:
        assert self._first_version is not None
        return self._table.version() > self._first_version + self._own_commits

    @property
    def version(self) -> int:
        return self._table.version()

    def has_commit(self, number: str) -> bool:
        if not any(entry.get(_NUMBER) == number for entry in self._last()):
            return False
        if number in self._numbers:  # the answer was lost
            self._own_commits += 1
        return True

    def attempt_of(self, identity: str) -> int | None:
        for entry in self._last():
            for word in entry.get(_ITEMS, "").split():
                name, _, attempt = word.partition(":")
                if name == identity:
                    return int(attempt)
        return self._table.transaction_version(identity)  # as earlier versions have noted it

    def _last(self) -> list[dict[str, Any]]:
        """What the newest entries of the log say of themselves: all since the table was opened for the first time."""
        assert self._first_version is not None
        if self._entries is None:
            newest = self._table.version()
            oldest = max(0, newest + 1 - max(newest - self._first_version, _LOOKED_AT))
            self._entries = [self._entry(version) for version in range(newest, oldest - 1, -1)]
        return self._entries

    def _entry(self, version: int) -> dict[str, Any]:
        """What an entry says of itself; nothing where it has gone. Read here: the library's `history` holds the
        interpreter's lock for as long as the store takes to answer."""
        try:
            with self.files.storage.open(self.files.place(f"_delta_log/{version:020}.json")) as stream:
                actions = [json.loads(line) for line in stream.read().splitlines()]
        except FileNotFoundError:
            return {}
        found: dict[str, Any] = next((each["commitInfo"] for each in actions if "commitInfo" in each), {})
        return found

    def commit(
        self,
        add: Sequence[DataFile],
        without: Collection[str],
        attempts: Mapping[str, int],
        number: str,
        added: Columns,
        widened: Columns,
    ) -> None:
        assert not widened
        if added:  # the library takes columns and files in one entry only where all files are replaced
            self._table.alter.add_columns(_schema(added).fields)
            self._own_commits += 1
        actions: list[AddAction | RemoveAction] = [_added(file) for file in add]
        for old in self._with_rows_of(without):
            actions += self._replaced(old, without)
        self._numbers = {number}
        said = {_NUMBER: number, _ITEMS: " ".join(f"{name}:{attempt}" for name, attempt in attempts.items())}
        # Two commits with one transaction exclude each other: a second process that commits beside this one is noticed.
        once = deltalake.Transaction(f"{_OWNER}.{self.owner}", self._table.version() + 1)
        self._table.create_write_transaction(
            actions,
            "append",
            self._table.schema(),
            partition_by=self.partition_by,
            commit_properties=deltalake.CommitProperties(custom_metadata=said, app_transactions=[once]),
        )
        self._table.update_incremental()
        self._entries = None
        self._own_commits += 1
        self._forget_old()

    def _forget_old(self) -> None:
        """Remove a checkpoint that two later ones have replaced."""
        last = self._table.version()
        if (last + 1) % _CHECKPOINTS == 0 and last > 2 * _CHECKPOINTS:
            with contextlib.suppress(OSError):
                name = f"_delta_log/{last - 2 * _CHECKPOINTS:020}.checkpoint.parquet"
                self.files.storage.remove(self.files.place(name))

    def current(self) -> list[TableFile]:
        return [TableFile(unquote(row["path"]), row["size_bytes"], _partition(row)) for row in self._rows()]

    def vacuum(self, keep_s: float) -> list[str]:
        named = {file.path for file in self.current()}
        gone = set(self._vacuum(0.0, dry_run=True))
        self._vacuum(keep_s, dry_run=False)
        return [path for path in self.files.unnamed(named | gone) if not path.startswith("_delta_log/")]

    def optimize(self) -> str:
        done = self._table.optimize.compact()
        return f"{done['numFilesRemoved']} files are {done['numFilesAdded']} now"

    def _vacuum(self, keep_s: float, *, dry_run: bool) -> list[str]:
        """The files that were removed from the table and are kept for readers of old versions; longer than that."""
        hours = int(keep_s // _SECONDS_AN_HOUR)
        found = self._table.vacuum(hours, dry_run=dry_run, enforce_retention_duration=False)
        return [unquote(path) for path in found]

    def _rows(self) -> list[dict[str, Any]]:
        import pyarrow  # type: ignore[import-untyped]

        rows: list[dict[str, Any]] = pyarrow.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return rows

    def _with_rows_of(self, items: Collection[str]) -> list[dict[str, Any]]:
        """The files that may have rows of these items."""
        if not items:
            return []
        ordered = sorted(items)
        return [row for row in self._rows() if _may_have(row, ordered)]

    def _replaced(self, old: dict[str, Any], items: Collection[str]) -> list[AddAction | RemoveAction]:
        """The actions that take these items' rows out of a file: the file goes, and one with the other rows comes."""
        path = unquote(old["path"])
        removed = RemoveAction(
            path, True, int(time.time() * 1000), size=old["size_bytes"], partition_values=_partition(old)
        )
        if old.get("min.item") == old.get("max.item") and old.get("min.item") is not None:
            return [removed]
        import pyarrow
        import pyarrow.compute as compute  # type: ignore[import-untyped]
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]

        with self.files.storage.open(self.files.place(path)) as stream:
            rows = parquet.read_table(stream)
        kept = rows.filter(compute.invert(compute.is_in(rows["item"], pyarrow.array(list(items)))))
        if kept.num_rows == rows.num_rows:
            return []
        if not kept.num_rows:
            return [removed]
        rest = f"{path.removesuffix('.parquet')}-{uuid.uuid4().hex[:8]}.parquet"
        body = pyarrow.BufferOutputStream()
        parquet.write_table(kept, body)
        self.files.storage.put(self.files.place(rest), body.getvalue().to_pybytes())
        return [removed, _added(self.files.described_file(rest), _partition(old))]


def _storage_options(files: TableFiles) -> dict[str, str]:
    """The options of `[storage.NAME]` for the table's store, in the library's words; the environment says the rest."""
    section = files.storage.section(files.root)
    if section is None:
        return {}
    words = _WORDS[files.root.scheme]
    options = {word: str(value) for name, word in words.items() if (value := getattr(section, name))}
    if (section.endpoint or "").startswith("http://"):
        options["allow_http"] = "true"
    if files.root.scheme == "gs" and section.endpoint and section.anonymous:  # it asks Google for a token otherwise
        nobody = {"gcs_base_url": section.endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
        options["google_service_account_key"] = json.dumps({**nobody, "private_key_id": ""})
    return {name: value.lower() if value in ("True", "False") else value for name, value in options.items()}


def _schema(columns: Columns) -> deltalake.Schema:
    return deltalake.Schema.from_json(to_spark(columns))


def _added(file: DataFile, partition: Mapping[str, str | None] | None = None) -> AddAction:
    stats = {"numRecords": file.rows, "minValues": file.low, "maxValues": file.high, "nullCount": file.nulls}
    return AddAction(
        file.path,
        file.size_bytes,
        file.partition if partition is None else partition,
        int(time.time() * 1000),
        True,
        json.dumps(stats),
    )


def _partition(row: Mapping[str, Any]) -> dict[str, str | None]:
    """The partition's values as the log has them: as text."""
    values = {key.removeprefix("partition."): value for key, value in row.items() if key.startswith("partition.")}
    return {name: None if value is None else _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _may_have(row: Mapping[str, Any], items: Sequence[str]) -> bool:
    low, high = row.get("min.item"), row.get("max.item")
    return low is None or high is None or any(low <= item <= high for item in items)
