"""A DataFrame as a stream of rows or of Arrow batches, for one reader that may be slow or leave early.

Promise     The elements are those of `collect()` or `toArrow()`, partition after partition. In a classic session a
            Spark job computes one or two partitions, when the budget of the fan-in has room for them, and the next
            one begins when those are read. Two by one job, because a job costs as much as some ten thousand rows; the
            first job of a source has one, for their size is unknown until then.
            What a job has computed is fetched at once: the JVM's heap has a bound that jobs fail at, and other
            sources want it. Closing the iterator stops the rest.
            On Spark Connect the server computes everything and keeps unfetched rows.
Layout      Each batch is decoded by a schema that its writer gave: the JVM's, the server's or the Python worker's. Only
            then is it cast to the schema of `toArrow`. The two differ: Python keeps variants and geometries small where
            the session's setting makes the JVM write them with offsets of 64 bits.
Assumes     For Arrow: `to_arrow_schema`, `Dataset.toArrowBatchRdd` and `ArrowConverters.createEmptyArrowBatch` of the
            JVM, `to_table_as_iterator` of the Connect client, which Spark's own methods use and which are not public.
            Where the JVM's or the client's are missing, batches are packed by Python workers, by public means and more
            slowly. Tests hold the ways against `toArrow`, for every type and every setting of Arrow.
            For rows, `Dataset.javaToPython`, which `DataFrame.rdd` uses, and for both `PythonRDD.runJob`, which
            `SparkContext.runJob` uses.
            The JVM's maps of settings and of local properties are PySpark's own as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .._backend.backend import is_connect
from .._backend.causes import own_error
from .budget import Budget

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, Row

E = TypeVar("E")

LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"
CONVERTERS = "org.apache.spark.sql.execution.arrow.ArrowConverters$"


@dataclass(frozen=True, slots=True)
class Pace:
    """How far a source may be read ahead: `at_once` partitions by a job, when the budget has room for its priority."""

    budget: Budget
    priority: int
    at_once: int


def require_frame(what: str, frame: object) -> None:
    """Refuse a value that is no DataFrame of Spark's, such as one of pandas."""
    if not hasattr(frame, "sparkSession"):
        raise TypeError(f"{what} must be a DataFrame of Spark, not {type(frame).__name__}")


def rows(frame: DataFrame, pace: Pace) -> Iterator[Row]:
    """The rows, as `collect` has them. Runs in a thread whose local properties it may set."""
    if is_connect(frame.sparkSession):
        return frame.toLocalIterator()
    from pyspark.serializers import CPickleSerializer

    _tell_settings(frame)
    return _by_jobs(frame, frame._jdf.javaToPython(), CPickleSerializer().loads, pace)


def record_batches(frame: DataFrame, pace: Pace) -> Iterator[pa.RecordBatch]:
    """The rows in batches, of the schema that `toArrow` has. Runs in a thread whose local properties it may set."""
    schema = _schema(frame)
    fetched = _by_client(frame) if is_connect(frame.sparkSession) else _by_jvm(frame, pace)
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


def _by_jvm(frame: Any, pace: Pace) -> Iterator[pa.RecordBatch] | None:
    """Batches written by the JVM, partition after partition; None if this Spark has no such way."""
    import pyarrow as pa
    from py4j.protocol import Py4JError, Py4JJavaError

    def decode(message: bytes) -> list[pa.RecordBatch]:
        return [pa.ipc.read_record_batch(pa.py_buffer(message), layout)]

    _tell_settings(frame)
    try:
        layout = _layout(frame)
        partitions = frame._jdf.toArrowBatchRdd().toJavaRDD()
    except Py4JJavaError:  # the query's own failure
        raise
    except Py4JError:  # no such method
        return None
    return _by_jobs(frame, partitions, decode, pace)


def _tell_settings(frame: Any) -> None:
    """Tell the tasks of this thread's jobs what the session has set.

    A DataFrame's own actions do so; a job of its RDD's does not. From map to map within the JVM: read by `conf.getAll`
    and set one by one they are a hundred calls.
    """
    spark = frame.sparkSession
    spark.sparkContext._jsc.sc().getLocalProperties().putAll(spark.conf._jconf.getAllAsJava())


def _layout(frame: Any) -> pa.Schema:
    """The schema that the JVM writes batches by, read from the stream that it writes for a result without rows.

    The zone and the names of a struct's fields do not change a layout, so they may be those of `toArrow`.
    """
    import pyarrow as pa

    converters = getattr(getattr(frame.sparkSession.sparkContext._jvm, CONVERTERS), "MODULE$")
    large = frame._jdf.sparkSession().sessionState().conf().arrowUseLargeVarTypes()
    return pa.ipc.open_stream(converters.createEmptyArrowBatch(frame._jdf.schema(), "UTC", True, large)).schema


def _by_jobs(frame: Any, rdd: Any, decode: Callable[[bytes], Iterable[E]], pace: Pace) -> Iterator[E]:
    """The elements of an RDD of bytes, job by job. A failure is PySpark's own, as of `collect`."""
    from py4j.protocol import Py4JJavaError

    context = frame.sparkSession.sparkContext
    first, largest = 0, 0  # the next partition, and the bytes of one
    try:
        count, run = rdd.getNumPartitions(), partial(context._jvm.PythonRDD.runJob, context._jsc.sc(), rdd)
        while first < count:
            at_once = pace.at_once if first and pace.budget.is_small(pace.at_once * largest) else 1
            partitions = list(range(first, min(first + at_once, count)))
            first += len(partitions)
            with pace.budget.job(pace.priority, largest * len(partitions) or None) as job:
                messages = _fetched(run, partitions)
                size = sum(map(len, messages))
                job.took(size)
                largest = max(largest, -(-size // len(partitions)), 1)
                while messages:
                    yield from decode(messages.popleft())
    except Py4JJavaError as error:
        own = own_error(error)
        if own is error:
            raise
        raise own from None


def _fetched(run: Callable[[list[int]], Any], partitions: list[int]) -> deque[bytes]:
    """What a job brings. Afterwards nothing of it is in the JVM, which keeps it while `served` is known here."""
    from pyspark.serializers import FramedSerializer
    from pyspark.util import local_connect_and_auth

    class Messages(FramedSerializer):
        def loads(self, obj: bytes) -> bytes:
            return obj

    served = run(partitions)
    stream, connection = local_connect_and_auth(served[0], served[1])
    connection.settimeout(None)  # of the connecting
    with connection, stream:
        return deque(cast(Any, Messages()).load_stream(stream))


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

    for row in frame.mapInArrow(pack, "batch binary").toLocalIterator(prefetchPartitions=True):
        with pa.ipc.open_stream(row.batch) as reader:
            yield from reader


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if batch.schema.equals(schema):
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    return batch.cast(schema)
