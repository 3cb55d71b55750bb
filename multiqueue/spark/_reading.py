"""A DataFrame as a stream of rows or of Arrow batches, for one reader that may be slow or leave early.

Promise     The elements are those of `collect()` or `toArrow()`, partition after partition. In a classic session at
            most two partitions are computed ahead of the reader, for Arrow two by one job: a job costs as much as some
            ten thousand rows. Closing the iterator stops the rest.
            On Spark Connect the server computes everything and keeps what has not been fetched.
Layout      Each batch is decoded by a schema that its writer gave: the JVM's, the server's or the Python worker's. Only
            then is it cast to the schema of `toArrow`. The two differ: Python keeps variants and geometries small where
            the session's setting makes the JVM write them with offsets of 64 bits.
Assumes     For Arrow: `to_arrow_schema`, `Dataset.toArrowBatchRdd` and `ArrowConverters.createEmptyArrowBatch` of the
            JVM, `to_table_as_iterator` of the Connect client, which Spark's own methods use and which are not public.
            Where the JVM's or the client's are missing, batches are packed by Python workers, by public means and more
            slowly. Tests hold the ways against `toArrow`, for every type and every setting of Arrow.
            The JVM's maps of settings and of local properties are PySpark's own as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ._backend import is_connect
from ._causes import own_error

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, Row

E = TypeVar("E")

LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"
CONVERTERS = "org.apache.spark.sql.execution.arrow.ArrowConverters$"
PREFETCH = True  # the next partition is computed while one is read
AT_ONCE = 2  # partitions that one job computes for Arrow; they are in the JVM until they are read


def require_frame(what: str, frame: object) -> None:
    """Refuse what is no DataFrame of Spark's, pandas' for one."""
    if not hasattr(frame, "sparkSession"):
        raise TypeError(f"{what} must be a DataFrame of Spark, not {type(frame).__name__}")


def rows(frame: DataFrame) -> Iterator[Row]:
    """The rows, as `collect` has them."""
    elements = frame.toLocalIterator(prefetchPartitions=PREFETCH)
    return elements if is_connect(frame.sparkSession) else _with_own_errors(elements)


def record_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """The rows in batches, of the schema that `toArrow` has. Runs in a thread whose local properties it may set."""
    schema = _schema(frame)
    fetched = _by_client(frame) if is_connect(frame.sparkSession) else _by_jvm(frame)
    return (_cast(batch, schema) for batch in (_by_workers(frame) if fetched is None else fetched))


def _schema(frame: Any) -> pa.Schema:
    """That of `toArrow`, which is not always that of the batches. Runs no query where PySpark has a way."""
    from pyspark.sql.pandas.types import to_arrow_schema

    spark = frame.sparkSession
    large = not is_connect(spark) and spark.conf.get(LARGE_TYPES, "false") == "true"
    try:
        return to_arrow_schema(
            frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC", prefers_large_types=large
        )
    except TypeError:  # before pyspark 4.1 it is asked otherwise
        return spark.createDataFrame([], frame.schema).toArrow().schema


def _by_client(frame: Any) -> Iterator[pa.RecordBatch] | None:
    """The decoder of what the server sends; None if this client has no such way."""
    plan, client = getattr(frame, "_plan", None), frame.sparkSession.client
    if plan is None or not hasattr(client, "to_table_as_iterator"):
        return None

    def fetch() -> Iterator[pa.RecordBatch]:
        for part in client.to_table_as_iterator(plan.to_proto(client), plan.observations):
            if hasattr(part, "to_batches"):  # the schema comes between the tables
                yield from part.to_batches()

    return fetch()


def _by_jvm(frame: Any) -> Iterator[pa.RecordBatch] | None:
    """Batches written by the JVM, partition after partition; None if this Spark has no such way."""
    import pyarrow as pa
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.serializers import FramedSerializer

    class Messages(FramedSerializer):
        def loads(self, obj: bytes) -> pa.RecordBatch:
            return pa.ipc.read_record_batch(pa.py_buffer(obj), layout)

    context = frame.sparkSession.sparkContext
    # A DataFrame's own actions tell its tasks the session's settings like this; a job of its RDD's does not. From map
    # to map within the JVM: read by `conf.getAll` and set one by one they are a hundred calls.
    context._jsc.sc().getLocalProperties().putAll(frame.sparkSession.conf._jconf.getAllAsJava())
    try:
        layout = _layout(frame)
        partitions = frame._jdf.toArrowBatchRdd().toJavaRDD()
    except Py4JJavaError:  # the query's own failure
        raise
    except Py4JError:  # no such method
        return None
    return _with_own_errors(_by_jobs(context, partitions, Messages()))


def _layout(frame: Any) -> pa.Schema:
    """The schema that the JVM writes batches by, read from the stream that it writes for a result without rows.

    The zone and the names of a struct's fields do not change a layout, so they may be those of `toArrow`.
    """
    import pyarrow as pa

    converters = getattr(getattr(frame.sparkSession.sparkContext._jvm, CONVERTERS), "MODULE$")
    large = frame._jdf.sparkSession().sessionState().conf().arrowUseLargeVarTypes()
    return pa.ipc.open_stream(converters.createEmptyArrowBatch(frame._jdf.schema(), "UTC", True, large)).schema


def _by_jobs(context: Any, rdd: Any, messages: Any) -> Iterator[Any]:
    """The elements of an RDD of bytes, `AT_ONCE` partitions by a job, the next one when those are read."""
    from pyspark.util import local_connect_and_auth

    count, run = rdd.getNumPartitions(), context._jvm.PythonRDD.runJob
    for first in range(0, count, AT_ONCE):
        served = run(context._jsc.sc(), rdd, list(range(first, min(first + AT_ONCE, count))))
        stream, connection = local_connect_and_auth(served[0], served[1])
        connection.settimeout(None)  # of the connecting; a reader may wait long for room
        with connection, stream:
            yield from messages.load_stream(stream)


def _with_own_errors(elements: Iterator[E]) -> Iterator[E]:
    """The elements; a failure is PySpark's own, as of `collect`, and not that of the thread that served them.

    Closing it stops at once.
    """
    from py4j.protocol import Py4JJavaError

    try:
        for element in elements:  # noqa: UP028 - `yield from` would close `elements` before this can hurry it
            yield element
    except Py4JJavaError as error:
        own = own_error(error)
        if own is error:
            raise
        raise own from None
    finally:
        _hurry(elements)


def _hurry(elements: Any) -> None:
    """Let an iterator of PySpark's that is about to be closed leave the rest of its partition unread.

    It would read on to the partition's end, a million rows perhaps, and only then say that it wants no more. It has no
    public way to be told; if this one is gone, closing takes its time.
    """
    frame = getattr(elements, "gi_frame", None)  # None when it has ended
    iterable: Any = None if frame is None else frame.f_locals.get("self")
    if hasattr(iterable, "_read_iter"):
        iterable._read_iter = iter(())


def _by_workers(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Batches packed into a column of bytes by Python workers."""
    import pyarrow as pa

    def pack(batches: Iterator[Any]) -> Iterator[Any]:  # goes to the workers, which need not have this module
        import pyarrow as pa

        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield pa.RecordBatch.from_pydict({"batch": [sink.getvalue().to_pybytes()]})

    for row in frame.mapInArrow(pack, "batch binary").toLocalIterator(prefetchPartitions=PREFETCH):
        with pa.ipc.open_stream(row.batch) as reader:
            yield from reader


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if batch.schema.equals(schema):
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    return batch.cast(schema)
