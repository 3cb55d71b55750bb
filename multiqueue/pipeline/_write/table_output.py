"""An output whose rows are in tables: one for all lanes, `data`, and one for each step, below `steps`.

Promise     An attempt writes its files into a separate directory below its table, `ID-ATTEMPT-RUN`, and nothing else
            there. They belong to the table once a commit names them (`_table`); before that readers do not see them,
            and `vacuum` finds what a dead run has left.
            Each row has its lane and its item as columns, the first two.
State       `_written`, what running attempts have written. The tables have their own.
Threads     Those of running items, each for its own item; the runner's and the committer's.
"""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._base.errors import JobError
from .._base.items import Item
from .._columns.kinds import Columns, Fit, of_spark, struct_of
from .._columns.put_out import require_free
from .._read.python_io import parquet_frame
from .._read.reading import quoted, spark_path
from .._read.ways import Ways
from .._state.ledger import Ledger
from . import executor as _executor_write
from .files import DataFile, data_file
from .output import Writing
from .places import Places
from .publish import Publisher, require_there
from .spark_files import WITHOUT_MARK, into
from .table import Change, Table, TableFile, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Reader = Callable[[Columns, Sequence[TableFile]], "DataFrame"]
"""Gives the rows of files with these columns."""

# What Parquet files need so that all readers of tables take them; INT96, Spark's own, has no bounds.
_CONF = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


class TableOutput:
    """The tables of a pipeline, and the directory beside them with what no table has."""

    def __init__(self, output: Path, kind: str, tables: Mapping[str, Table]) -> None:
        self._kind = kind
        self._publisher = Publisher(output)
        self.places: Places = self._publisher.places
        self.tables = tables
        """By the name of a step; `""` for all lanes."""
        self._run = uuid.uuid4().hex[:8]
        self._written: dict[tuple[str, int], Change] = {}
        self.ways = Ways()

    def require_place(self) -> None:
        self._publisher.require_place()

    def sink(self, name: str, how: Writing) -> TableSink:
        return TableSink(self, name, how)

    def set_up(self, spark: SparkSession) -> None:
        for key, value in _CONF.items():
            spark.conf.set(key, value)

    def check(self, ledger: Ledger) -> None:
        with ledger.transaction():  # a state that is refused has not been given to this output
            ledger.require_output(self._kind, self.tables[""].place)
            for table in self.tables.values():
                table.claim(ledger.identity(), str(ledger), ledger.commits())
            require_there(ledger, self.there(), {name: table.place for name, table in self.tables.items()})

    def there(self) -> dict[str, bool]:
        return {name: table.version() is not None for name, table in self.tables.items()}

    def prepare(self, ledger: Ledger) -> None:
        self.check(ledger)
        self._publisher.make_directories()

    @contextlib.contextmanager
    def attempt(self, item: Item) -> Iterator[Path]:
        try:
            with self._publisher.attempt(item) as staged:
                yield staged
        except BaseException:
            self._written.pop((item.id, item.attempt), None)
            self.table_of(item).files.discard(self.directory_of(item))
            raise

    def put_out(self, item: Item, staged: Path, *, has_output: bool) -> Written:
        self._publisher.retract_corrupt(item)
        self._publisher.publish_corrupt(item, staged)
        nothing = Change(item, self.directory_of(item))
        return Written(self.table_of(item), self._written.pop((item.id, item.attempt), nothing))

    def retract(self, item: Item) -> None:
        self.table_of(item).take_away(item)
        self._publisher.retract_corrupt(item)

    def is_published(self, item: Item) -> bool:
        return self.table_of(item).is_committed(item)

    def table_of(self, item: Item) -> Table:
        return self.tables["" if item.part is None else item.lane]

    def directory_of(self, item: Item) -> str:
        """The attempt's directory in its table."""
        return f"{item.id}-{item.attempt}-{self._run}"

    def note(self, change: Change) -> None:
        """An attempt has written this."""
        self._written[change.item.id, change.item.attempt] = change


def _rows(read: Reader, columns: Columns, files: Sequence[TableFile]) -> DataFrame:
    """The rows of these files: they are read with the table's columns, and those that their directories tell."""
    parted = list(files[0].partition)
    if not parted:
        return read(columns, files)
    groups: dict[tuple[str | None, ...], list[TableFile]] = {}
    for one in files:
        groups.setdefault(tuple(one.partition[name] for name in parted), []).append(one)
    inside = {name: kind for name, kind in columns.items() if name not in parted}
    frames = []
    for values, its in groups.items():
        literals = dict(zip(parted, values, strict=True))
        chosen = [
            f"CAST({_literal(literals[name])} AS {kind}) AS {quoted(name)}" if name in literals else quoted(name)
            for name, kind in columns.items()
        ]
        frames.append(read(inside, its).selectExpr(*chosen))
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.unionAll(other)
    return frame


@dataclass(frozen=True, slots=True)
class TableSink:
    """Writes results as files of a table."""

    output: TableOutput
    name: str
    """The step's; `""` for all lanes."""
    how: Writing

    @property
    def keeps_types(self) -> bool:
        return False  # the table does

    def write(self, frame: DataFrame, item: Item, staged: Path) -> None:
        """As `Sink.write`: into the attempt's directory of the table, in the table's columns."""
        names = Places.directories(item)
        require_free(frame, names)
        ours = {"lane": item.part or item.lane, "item": item.id}
        named = frame.selectExpr(*(f"{_literal(ours[name])} AS {name}" for name in names), "*")
        found = of_spark(named.schema.json())
        table = self.output.tables[self.name]
        fit = table.fit(found)
        named = named.selectExpr(*(_written_as(name, fit) for name in found))
        if self.how.files_per_item is not None:
            named = named.coalesce(self.how.files_per_item)
        directory = self.output.directory_of(item)
        if self.output.ways.reaches(frame.sparkSession, table.files.root):
            writer = named.write.options(**{**WITHOUT_MARK, **self.how.options})
            parts = list(self.how.partition_by)
            if parts and table.keeps_partition_columns:
                parts = [f"_of_{name}" for name in parts]
                pairs = zip(self.how.partition_by, parts, strict=True)
                named = named.selectExpr("*", *(f"{quoted(name)} AS {quoted(part)}" for name, part in pairs))
                writer = named.write.options(**{**WITHOUT_MARK, **self.how.options})
            if parts:
                writer = writer.partitionBy(*parts)
            place = table.files.place(directory)
            if place.is_local:
                writer = into(writer, frame.sparkSession, place.path)
            writer.parquet(place.spark_url)
            files = table.files.described(directory, self.how.partition_by)
        else:
            files = self._written_by_python(named, table, directory)
        columns = {fit.spelled[name]: fit.casts.get(name, kind) for name, kind in found.items()}
        self.output.note(Change(item, directory, files, columns))

    def _written_by_python(self, frame: DataFrame, table: Table, directory: str) -> tuple[DataFile, ...]:
        """Have the executors' Python write the rows: Spark does not reach the store."""
        files = table.files
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]
        from pyspark import cloudpickle

        wrong = sorted(self.how.options.keys() - {"compression"})
        if wrong:
            raise JobError(
                f"output.options.{wrong[0]} is Spark's, which has no connector for {files.root.scheme}://; "
                "leave it out, or give Spark a connector"
            )
        cloudpickle.register_pickle_by_value(_executor_write)  # type: ignore[no-untyped-call] # executors have it not
        protocol, arguments, key = files.storage.fsspec(files.place(directory))
        compression = self.how.options.get("compression", "snappy")
        target = _executor_write.Target(
            protocol, arguments, key, tuple(self.how.partition_by), table.keeps_partition_columns, compression
        )
        if self.how.partition_by:
            frame = frame.sortWithinPartitions(*map(quoted, self.how.partition_by))
        told = frame.mapInArrow(_executor_write.writer(target), _executor_write.SCHEMA).collect()
        return tuple(
            data_file(
                f"{directory}/{row['path']}",
                row["size_bytes"],
                parquet.read_metadata(io.BytesIO(bytes(row["footer"]))),
                self.how.partition_by,
            )
            for row in told
        )

    def _reader(self, spark: SparkSession, table: Table) -> Reader:
        """How files of the table are read: by Spark, or by Python where Spark does not reach them."""
        place_of = table.files.place
        if self.is_read_by_spark(spark):
            return lambda columns, files: spark.read.schema(struct_of(columns)).parquet(
                *(spark_path(place_of(one.path)) for one in files)
            )
        return lambda columns, files: parquet_frame(
            spark, table.files.storage, [(place_of(one.path), one.size_bytes) for one in files], struct_of(columns)
        )

    def read(self, spark: SparkSession, source: str, lanes: Sequence[str] | None, schema: str | None) -> DataFrame:
        """As `Sink.read`. The table knows its columns: `schema` is not asked."""
        table = self.output.tables[source]
        columns, files = table.current()
        if not files:
            raise JobError(f"there is nothing to read: nothing was put out in the table {table.place!r}")
        read = self._reader(spark, table)
        frame = _rows(read, columns, files)
        return (frame if lanes is None else frame.where(frame["lane"].isin(list(lanes)))).drop("item")

    def is_read_by_spark(self, spark: SparkSession) -> bool:
        return self.output.ways.reaches(spark, self.output.tables[self.name].files.root)


def _written_as(name: str, fit: Fit) -> str:
    column = quoted(name)
    if name in fit.casts:
        column = f"CAST({column} AS {fit.casts[name]})"
    return f"{column} AS {quoted(fit.spelled[name])}"


def _literal(text: str | None) -> str:
    if text is None:
        return "NULL"
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
