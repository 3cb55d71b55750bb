"""`format("multiqueue")`: broker queues as a source and a sink of Spark, streams and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .._dispatch.environment import warn_of_another_python
from .columns import RAW
from .errors import BadOption
from .options import SinkOptions, SourceOptions
from .sink import QueueStreamWriter, QueueWriter
from .source import QueueBatchReader, QueueStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class QueueDataSource(DataSource):
    """The data source. Spark's Python processes import it by name: multiqueue must be installed where they run."""

    @classmethod
    def name(cls) -> str:
        return "multiqueue"

    def schema(self) -> StructType:
        """That of a message; asked when the reader gives none. Options are checked here, so at `load()`."""
        options = SourceOptions.parse(self.options)
        if options.has_json_bodies:
            raise BadOption("bodies=json needs a schema: give the bodies' fields by .schema(...)")
        return RAW

    def streamReader(self, schema: StructType) -> QueueStreamReader:
        return QueueStreamReader(SourceOptions.parse(self.options), schema)

    def reader(self, schema: StructType) -> QueueBatchReader:
        return QueueBatchReader(SourceOptions.parse(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:
        _refuse_overwrite(overwrite)
        return QueueStreamWriter(SinkOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        _refuse_overwrite(overwrite)
        return QueueWriter(SinkOptions.parse(self.options), schema)


def register(spark: SparkSession) -> None:
    """Let a session know `format("multiqueue")`, for `read`, `readStream`, `write` and `writeStream`.

    Spark's Python processes, here and in its executors, need `blocking-multiqueue[spark,amqp]`. If those of a local
    session are not of the Python that runs, this logs a warning: see `session_builder`.
    Registering again does no harm. A second session, of `newSession`, is refused by Spark 4.3 with
    DATA_SOURCE_ALREADY_EXISTS while one that has it is the active one; register there first.
    docs/guides/spark-streaming.md shows its use, docs/design/streaming.md has the promises.
    """
    warn_of_another_python(spark)
    spark.dataSource.register(QueueDataSource)


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise BadOption("a queue cannot be overwritten; use mode append, for streams output mode append or update")
