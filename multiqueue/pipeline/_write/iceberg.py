"""An Iceberg table, by the library `pyiceberg`: Spark wrote the files, here they are named in a snapshot.

Promise     A commit is one change of the catalog's pointer: a snapshot that drops the rows of items that are replaced,
            if there are any, and one that adds files; readers see both or neither. The summary of each has the
            commit's number and the items with their attempts.
            The library does not make a commit again by itself, for it would not ask for attempts that came between.
            The embedded catalog, a file of SQLite, is made with the first table.
Rewritten   Where a file has rows of several items, the library writes those anew that stay.
State       The table as last read, and the numbers of our commits. `Table` has the lock.
Bounded     A table has the last `_KEPT` to `_KEPT + _MORE` versions. What only older ones have of the table's own files
            is removed while commits are made; manifests are merged. So a commit costs the same after ten thousand.
            A manifest that a commit has made and merged at once, which the library leaves, is found by `vacuum`.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

from ..._extras import needs
from .._base.errors import Unprepared
from .._base.stores import ICEBERG
from .._columns.kinds import Columns, Kind
from .files import DataFile, TableFiles
from .table import Commit, TableFile, attempts_noted

try:
    import pyiceberg.types as types
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
    from pyiceberg.expressions import In, Or
    from pyiceberg.expressions.visitors import IN_PREDICATE_LIMIT
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyiceberg.schema import Schema
    from pyiceberg.table import TableProperties, Transaction
except ImportError as _error:
    raise Unprepared(needs('table = "iceberg"', "pyiceberg")) from None

_OWNER = "multiqueue.state"
_NUMBER = "multiqueue.commit"
_ITEMS = "multiqueue.items"

# Whole bounds of these columns tell which files have an item's rows; the library cuts texts to 16 characters otherwise.
_PROPERTIES = {f"write.metadata.metrics.column.{name}": "full" for name in ("lane", "item")}
# Of the metadata a commit writes anew all versions that it names. Manifests are merged up to a size that a commit reads
# and writes in a moment.
_PROPERTIES |= {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "30",
    "commit.manifest.target-size-bytes": str(256 << 10),
}

# Versions that readers find; so many more are made before the older ones go, together.
_KEPT = 15
_MORE = 15

_SIMPLE: dict[str, Any] = {
    "boolean": types.BooleanType(),
    "byte": types.IntegerType(),
    "short": types.IntegerType(),
    "integer": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "date": types.DateType(),
    "timestamp": types.TimestamptzType(),
    "timestamp_ntz": types.TimestampType(),
}
_KINDS = {str(kind): name for name, kind in _SIMPLE.items() if name not in ("byte", "short")}


class IcebergTable:
    """The Iceberg way of `TableFormat`."""

    may_widen = True
    stored_as: Mapping[str, str] = {"byte": "integer", "short": "integer"}
    keeps_partition_columns = True

    def __init__(self, files: TableFiles, name: str, catalog: Mapping[str, str], embedded: Path) -> None:
        self.files = files
        self._embedded = None if catalog else embedded
        self._name = name
        root = files.root
        self._location = f"file://{root.text}" if root.is_local else root.text
        section = files.storage.section(root)
        store = {} if section is None else {word: str(value) for word, value in section.words(ICEBERG).items()}
        if section is not None and (connection := section.azure_connection()):
            store = {"adls.connection-string": connection}
        if root.scheme == "gs":  # pyarrow, the library's first choice, takes no key file
            store["py-io-impl"] = "pyiceberg.io.fsspec.FsspecFileIO"
            if section is not None and section.anonymous:
                store["gcs.oauth2.token"] = "anon"
        own = {"type": "sql", "uri": f"sqlite:///{embedded}"}
        self._properties = {"warehouse": self._location, **store, **(catalog or own)}
        # A catalog in SQL keeps the tables of several by their names.
        self._catalog_name = self._properties.pop("name", "multiqueue")
        self._catalog: Any = None
        self._table: Any = None
        self._numbers: set[str] = set()
        self._first: set[int] | None = None

    def open(self) -> bool:
        if self._catalog is None and self._embedded is not None and not self._embedded.exists():
            self._first = self._first or set()
            return False
        self._begin()
        try:
            self._table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            self._first = self._first or set()
            return False
        finally:
            self._let_go()
        if self._first is None:
            self._first = {one.snapshot_id for one in self._table.snapshots()}
        return True

    def make(self, columns: Columns, partition_by: Sequence[str], owner: str) -> None:
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        self._begin()
        schema = _schema(columns)
        fields = [
            PartitionField(schema.find_field(name).field_id, 1000 + place, IdentityTransform(), name)
            for place, name in enumerate(partition_by)
        ]
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        try:
            self._catalog.create_table(
                self._name,
                schema,
                self._location,
                PartitionSpec(*fields),
                properties={_OWNER: owner, **_PROPERTIES},
            )
        except TableAlreadyExistsError:
            pass  # made by another process meanwhile; its owner is looked at next
        finally:
            self._let_go()

    @property
    def owner(self) -> str | None:
        owner: str | None = self._table.properties.get(_OWNER)
        return owner

    @property
    def columns(self) -> Columns:
        return {field.name: _kind(field.field_type) for field in self._table.schema().fields}

    @property
    def partition_by(self) -> list[str]:
        return [self._table.schema().find_column_name(field.source_id) for field in self._table.spec().fields]

    @property
    def others_commit(self) -> bool:
        assert self._first is not None
        return any(
            one.snapshot_id not in self._first and _summary(one).get(_NUMBER) not in self._numbers
            for one in self._table.snapshots()
        )

    @property
    def version(self) -> str | None:
        snapshot = self._table.current_snapshot()
        return None if snapshot is None else str(snapshot.snapshot_id)

    @property
    def is_orphan(self) -> bool:
        if self._embedded is None:
            return False  # a table that was dropped from a catalog leaves files
        newest = max((path for path in self.files.below("metadata") if path.endswith(".metadata.json")), default=None)
        if newest is None:
            return False
        with self.files.storage.open(self.files.place(newest)) as stream:
            return bool(json.load(stream).get("snapshots"))  # none has one whose making was cut off

    def numbers(self) -> Iterator[str]:
        return (_summary(one).get(_NUMBER, "") for one in reversed(self._table.snapshots()))

    def attempt_of(self, identity: str) -> int | None:
        for one in reversed(self._table.snapshots()):
            if (attempt := attempts_noted(_summary(one).get(_ITEMS, "")).get(identity)) is not None:
                return attempt
        return None

    def commit(self, commit: Commit) -> None:
        self._numbers.add(commit.number)
        said = {_NUMBER: commit.number, _ITEMS: commit.note}
        metadata = self._table.metadata
        missing = {key: one for key, one in _PROPERTIES.items() if key not in metadata.properties}  # an older version's
        once = {**metadata.properties, "commit.retry.num-retries": "0"}  # of this process only: it is not committed
        self._table.metadata = metadata.model_copy(update={"properties": once})
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there was nothing to drop
                with self._table.transaction() as transaction:
                    if missing:
                        transaction.set_properties(missing)
                    if commit.added or commit.widened:
                        _change_columns(transaction, commit.added, commit.widened)
                    if commit.without and self._table.current_snapshot() is not None:
                        transaction.delete(_of_items(commit.without), snapshot_properties=said)
                    if commit.add:
                        self._append(transaction, commit.add, said)
        finally:
            self._let_go()

    def tidy(self) -> None:
        try:
            self._forget_old()
        finally:
            self._let_go()

    def _forget_old(self) -> None:
        """Take old versions out of the table, and remove what only they have. A crash in between leaves it to `vacuum`.

        A manifest that a version has dropped never comes back: what the oldest version that stays has not, none has.
        """
        before = sorted(self._table.snapshots(), key=lambda one: one.sequence_number)
        if len(before) <= _KEPT + _MORE:
            return
        since = datetime.fromtimestamp(before[-_KEPT].timestamp_ms / 1000, UTC)
        self._table.maintenance.expire_snapshots().older_than(since).commit()
        there = {one.snapshot_id for one in self._table.snapshots()}
        old = [one for one in before if one.snapshot_id not in there]
        oldest = next(one for one in before if one.snapshot_id in there)
        kept = {one.manifest_path for one in oldest.manifests(self._table.io)}
        gone = {one.manifest_path for snapshot in old for one in snapshot.manifests(self._table.io)} - kept
        for path in (*gone, *(one.manifest_list for one in old)):
            with contextlib.suppress(OSError):
                self._table.io.delete(path)
        self._numbers.intersection_update(_summary(one).get(_NUMBER, "") for one in before[-_KEPT:])

    def _append(self, transaction: Transaction, add: Sequence[DataFile], said: dict[str, str]) -> None:
        """As `Transaction.add_files`, which would read every file's footer again."""
        metadata = transaction.table_metadata
        schema = metadata.schema()
        if metadata.name_mapping() is None:  # Spark writes no numbers of fields
            names = schema.name_mapping.model_dump_json()
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: names})
        plan = compute_statistics_plan(schema, metadata.properties)
        numbers = parquet_path_to_id_mapping(schema)
        with transaction.update_snapshot(said).merge_append() as snapshot:
            for file in add:
                found = data_file_statistics_from_parquet_metadata(file.footer, plan, numbers)
                snapshot.append_data_file(
                    IcebergFile.from_args(
                        content=DataFileContent.DATA,
                        file_path=f"{self._location}/{file.path}",
                        file_format=FileFormat.PARQUET,
                        partition=found.partition(metadata.spec(), schema),
                        file_size_in_bytes=file.size_bytes,
                        spec_id=metadata.default_spec_id,
                        **found.to_serialized_dict(),
                    )
                )

    def current(self) -> list[TableFile]:
        """The files; a file has the columns that the table is partitioned by."""
        found = (task.file for task in self._table.scan().plan_files())
        return [TableFile(self._below(file.file_path), file.file_size_in_bytes, {}) for file in found]

    def vacuum(self, keep_s: float) -> list[str]:
        oldest = datetime.now(UTC) - timedelta(seconds=keep_s)
        self._table.maintenance.expire_snapshots().older_than(oldest).commit()
        self._let_go()
        named = {self._below(path) for path in self._table.inspect.all_files()["file_path"].to_pylist()}
        return self.files.unnamed(named | set(map(self._below, self._own_files())))

    def _own_files(self) -> Iterator[str]:
        """The files of the table itself: its metadata, and the lists of files of its versions."""
        yield self._table.metadata_location
        yield from (one.metadata_file for one in self._table.metadata.metadata_log)
        yield from (one.statistics_path for one in self._table.metadata.statistics)
        for snapshot in self._table.snapshots():
            yield snapshot.manifest_list
            yield from (one.manifest_path for one in snapshot.manifests(self._table.io))

    def optimize(self) -> str:
        raise Unprepared(
            f"pyiceberg cannot make few files of many; call rewrite_data_files of Spark or Trino for {self._name!r}"
        )

    def _begin(self) -> None:
        """Know the catalog."""
        if self._catalog is None:
            if self._embedded is not None:
                self._embedded.parent.mkdir(parents=True, exist_ok=True)
            self._catalog = load_catalog(self._catalog_name, **self._properties)

    def _below(self, uri: str) -> str:
        return uri.removeprefix(f"{self._location}/")

    def _let_go(self) -> None:
        """Close the connections of a catalog in SQL, which is used from one thread after the other."""
        engine = getattr(self._catalog, "engine", None)
        if engine is not None:
            engine.dispose()


def _change_columns(transaction: Transaction, added: Columns, widened: Columns) -> None:
    with transaction.update_schema() as update:
        for name, kind in added.items():
            update.add_column(name, _type(kind, _Numbers()))
        for name, kind in widened.items():
            update.update_column(name, field_type=_type(kind, _Numbers()))


class _Numbers:
    """Numbers for the fields of a schema, from 1."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        self._last += 1
        return self._last


def _summary(snapshot: Any) -> dict[str, str]:
    return {} if snapshot.summary is None else dict(snapshot.summary.additional_properties)


def _of_items(items: Collection[str]) -> Any:
    """The rows of these items, as the library's filters tell them; of longer lists it would not ask files' bounds."""
    make: Any = In  # its annotations are those of another way to call it
    ordered = sorted(items)
    starts = range(0, len(ordered), IN_PREDICATE_LIMIT)
    return reduce(Or, [make("item", ordered[start : start + IN_PREDICATE_LIMIT]) for start in starts])


def _schema(columns: Columns) -> Schema:
    number = _Numbers()
    return Schema(*(types.NestedField(number(), name, _type(kind, number)) for name, kind in columns.items()))


def _type(kind: Kind, number: _Numbers) -> Any:
    """A type as Iceberg has it; the fields in it are numbered on."""
    if isinstance(kind, str):
        if kind.startswith("decimal("):
            precision, scale = kind.removeprefix("decimal(").rstrip(")").split(",")
            return types.DecimalType(int(precision), int(scale))
        return _SIMPLE[kind]
    if kind["type"] == "struct":
        return types.StructType(
            *(types.NestedField(number(), one["name"], _type(one["type"], number)) for one in kind["fields"])
        )
    if kind["type"] == "array":
        return types.ListType(number(), _type(kind["elementType"], number), element_required=False)
    return types.MapType(
        number(), _type(kind["keyType"], number), number(), _type(kind["valueType"], number), value_required=False
    )


def _kind(found: Any) -> Kind:
    """A type of Iceberg as Spark's JSON tells it."""
    if isinstance(found, types.StructType):
        fields = [
            {"name": one.name, "type": _kind(one.field_type), "nullable": True, "metadata": {}} for one in found.fields
        ]
        return {"type": "struct", "fields": fields}
    if isinstance(found, types.ListType):
        return {"type": "array", "elementType": _kind(found.element_type), "containsNull": True}
    if isinstance(found, types.MapType):
        return {
            "type": "map",
            "keyType": _kind(found.key_type),
            "valueType": _kind(found.value_type),
            "valueContainsNull": True,
        }
    if isinstance(found, types.DecimalType):
        return f"decimal({found.precision},{found.scale})"
    return _KINDS.get(str(found), str(found))
