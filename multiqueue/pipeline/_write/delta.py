"""A Delta table, by the library `deltalake`: Spark wrote the files, here they are named in the table's log.

Promise     A commit is one entry of the log: the files that come, those that go, the commit's number, and the items
            with their attempts. Entries are made only if there is none of that number yet, on every store that the
            library knows, and only of the version that was looked at.
Bounded     A commit costs the library time for each entry of the log, for it lists them, and some for each file. So of
            its checkpoints the last two are kept, with the entries since, and small files are joined: those of 30
            commits by one more commit, which changes no row. A table with `delta.logRetentionDuration` keeps entries
            as long as that says.
Rewritten   A file that was joined has rows of several items. Where one of them is replaced, the rows of the others are
            written anew in the same commit.
State       The table as last read. `Table` has the lock.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import uuid
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from ..._extras import needs
from .._base.errors import Unprepared
from .._base.stores import DELTA
from .._columns.kinds import Columns, of_spark, to_spark
from .files import DataFile, TableFiles
from .table import Commit, TableFile, attempts_noted, new_number

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
_CHECKPOINTS = 50
"""After so many commits the library makes one."""
_COMPACTED = ((30, 4 << 20), (300, 64 << 20))
"""After so many versions, the files that are smaller than so many bytes are joined."""
_RETENTION = "delta.logRetentionDuration"
_BY_ITEM = "partition.item"
"""Among the library's figures of a file only where the table is partitioned by it."""
_VERSION = re.compile(r"(\d{20})\.")


@dataclass(frozen=True, slots=True)
class _Entry:
    """What an entry of the log says of itself."""

    number: str
    """That of a pipeline's commit; empty in another's."""
    attempts: Mapping[str, int]
    has_gone: bool = False


class DeltaTable:
    """The Delta way of `TableFormat`."""

    may_widen = False
    stored_as: Mapping[str, str] = {}
    keeps_partition_columns = False

    def __init__(self, files: TableFiles) -> None:
        self.files = files
        self._options = _storage_options(files)
        self._opened: deltalake.DeltaTable | None = None
        self._known: int | None = None
        """The version up to which it is known who made the entries of the log; others' after the first look count."""
        self._committed = 0
        """The version after our last commit, or of the first look."""
        self._tidied = 0
        """The version at which the table was looked at last for small files."""
        self._others_commit = False
        self._theirs: dict[str, int] = {}
        """The attempts of items that others have committed."""
        self._numbers: deque[str] = deque(maxlen=_LOOKED_AT)
        """Those of our last commits, also of commits whose end is not known."""
        self._entries: dict[int, _Entry] = {}
        """Entries of the log that were read, by version; the last few."""

    @property
    def _table(self) -> deltalake.DeltaTable:
        assert self._opened is not None, "`open` comes first"
        return self._opened

    def open(self) -> bool:
        try:
            self._opened = deltalake.DeltaTable(self.files.root.text, storage_options=self._options)
        except TableNotFoundError:
            self._known = 0  # the table begins with it, whichever process makes it
            return False
        if self._known is None:
            self._known = self._committed = self._tidied = self._opened.version()
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
        assert self._known is not None
        newest = self._table.version()
        for version in range(self._known + 1, newest + 1):
            entry = self._entry(version)
            # An entry without a number is no pipeline's: columns, a `vacuum`, another program's `OPTIMIZE`. One that
            # has gone may be anybody's.
            if entry.has_gone or (entry.number and entry.number not in self._numbers):
                self._others_commit = True
                self._theirs.update(entry.attempts)
        self._known = newest
        return self._others_commit

    @property
    def version(self) -> int:
        return self._table.version()

    @property
    def is_orphan(self) -> bool:
        return False  # the log is the catalog

    def numbers(self) -> Iterator[str]:
        return (entry.number for entry in self._last())

    def attempt_of(self, identity: str) -> int | None:
        for entry in self._last():
            if identity in entry.attempts:
                return entry.attempts[identity]
        # What others have committed longer ago; what earlier versions of this program have noted.
        return self._theirs.get(identity) or self._table.transaction_version(identity)

    def _last(self) -> Iterator[_Entry]:
        """The newest entries of the log, newest first: all since our last commit."""
        newest = self._table.version()
        oldest = max(0, min(newest + 1 - _LOOKED_AT, self._committed + 1))
        return (self._entry(version) for version in range(newest, oldest - 1, -1))

    def _entry(self, version: int) -> _Entry:
        """Read here: the library's `history` holds the interpreter's lock for as long as the store takes to answer."""
        if version not in self._entries:
            try:
                with self.files.storage.open(self.files.place(f"_delta_log/{version:020}.json")) as stream:
                    actions = [json.loads(line) for line in stream.read().splitlines()]
            except FileNotFoundError:
                self._entries[version] = _Entry("", {}, has_gone=True)
            else:
                said: dict[str, Any] = next((each["commitInfo"] for each in actions if "commitInfo" in each), {})
                self._entries[version] = _Entry(said.get(_NUMBER, ""), attempts_noted(said.get(_ITEMS, "")))
        return self._entries[version]

    def commit(self, commit: Commit) -> None:
        assert not commit.widened
        if commit.added:  # the library takes columns and files in one entry only where all files are replaced
            self._table.alter.add_columns(_schema(commit.added).fields)
        actions: list[AddAction | RemoveAction] = [_added(file) for file in commit.add]
        for old in self._with_rows_of(commit.without):
            actions += self._replaced(old, commit.without)
        self._table.create_write_transaction(
            actions,
            "append",
            self._table.schema(),
            partition_by=self.partition_by,
            commit_properties=self._properties(commit.number, {_ITEMS: commit.note}),
        )
        self._table.update_incremental()
        self._note_own()

    def _note_own(self) -> None:
        """After a commit of ours: where the table is one version on, that is ours, and need not be read."""
        newest = self._table.version()
        if self._known == newest - 1:
            self._known = newest
        self._committed = newest
        self._entries = {version: one for version, one in self._entries.items() if version > newest - _LOOKED_AT}

    def _properties(self, number: str, said: Mapping[str, str]) -> deltalake.CommitProperties:
        """A commit of this number is made of the version that was looked at, or fails.

        The library would make it of a newer one too: it does not see that files which the commit removes have been
        joined to others meanwhile, whose rows would then be there twice.
        """
        self._numbers.append(number)
        return deltalake.CommitProperties(custom_metadata={_NUMBER: number, **said}, max_commit_retries=0)

    def tidy(self) -> None:
        before, newest = self._tidied, self._table.version()
        self._tidied = newest
        if sizes := [size for every, size in _COMPACTED if newest // every > before // every]:
            self._table.optimize.compact(target_size=sizes[-1], commit_properties=self._properties(new_number(), {}))
            self._note_own()
        if newest // _CHECKPOINTS > before // _CHECKPOINTS:
            self._forget_old()

    def _forget_old(self) -> None:
        """Remove the library's checkpoints but the last two, and the entries before those."""
        found = {path: _VERSION.match(path.rpartition("/")[2]) for path in self.files.below("_delta_log")}
        versions = {path: int(match[1]) for path, match in found.items() if match is not None}
        checkpoints = sorted({version for path, version in versions.items() if ".checkpoint." in path})
        is_kept = _RETENTION in self._table.metadata().configuration  # the library removes entries then, or not at all
        if len(checkpoints) > 1:
            for path, version in sorted(versions.items()):
                if version < checkpoints[-2] and not (is_kept and path.endswith(".json")):
                    with contextlib.suppress(OSError):
                        self.files.storage.remove(self.files.place(path))

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
        # Rows that another program has put in have no item, and may be in this file since it was joined.
        is_one_item = old.get("min.item") == old.get("max.item") and old.get("null_count.item") == 0
        if is_one_item or _BY_ITEM in old:
            return [removed]
        import pyarrow
        import pyarrow.compute as compute  # type: ignore[import-untyped]
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]

        with self.files.storage.open(self.files.place(path)) as stream:
            file = parquet.ParquetFile(stream)
            # A small part of the bytes, which shows that most files have none of the items: `optimize` mixes items.
            goes = compute.is_in(file.read(["item"])["item"], pyarrow.array(list(items)))
            if not compute.any(goes).as_py():
                return []
            if compute.all(goes).as_py():
                return [removed]
            kept = file.read().filter(compute.invert(goes))
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
    options = {word: str(value) for word, value in section.words(DELTA).items()}
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
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return str(value.replace(tzinfo=None))  # the library reads it as UTC, and the log has no time zone
    return value.decode() if isinstance(value, bytes) else str(value)


def _may_have(row: Mapping[str, Any], items: Sequence[str]) -> bool:
    if _BY_ITEM in row:
        return row[_BY_ITEM] in items
    low, high = row.get("min.item"), row.get("max.item")
    return low is None or high is None or any(low <= item <= high for item in items)
