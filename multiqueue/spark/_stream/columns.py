"""Messages as columns: what chunks hold, and what a reader's schema makes of it.

A chunk is an Arrow stream with all the columns of `RAW`; a leased one also has the properties in full, so that it
can give the messages back. A reader's schema takes some of them, or has JSON bodies parsed into other columns; there, a
column of `RAW` goes by its name with an underscore before it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from inspect import signature
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .errors import BadOption, MalformedBody
from .lease_properties import properties_as_text

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from ...client import Message

_MAP = MapType(StringType(), StringType())
_COLUMNS: dict[str, DataType] = {
    "sequence": LongType(),
    "queue": StringType(),
    "exchange": StringType(),
    "routing_key": StringType(),
    "redelivered": BooleanType(),
    "message_id": StringType(),
    "timestamp": TimestampType(),
    "received": TimestampType(),
    "headers": _MAP,
    "properties": _MAP,
    "body": BinaryType(),
}
# What a source without a schema of the reader's gives.
RAW = StructType([StructField(name, type) for name, type in _COLUMNS.items()])
# Those of a message's properties that have columns of their own.
_APART = frozenset(("headers", "message_id", "timestamp"))
PROPERTIES = "all_properties"  # a column of leased chunks that no reader sees
_LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()  # seconds; some publishers send milliseconds


def to_payload(
    messages: Sequence[tuple[str, Message]], first: int, received: float, *, keeps_properties: bool = False
) -> bytes:
    """Messages with their queues as an Arrow stream, numbered from `first`; `received` is seconds since 1970."""
    import pyarrow as pa

    rows = [_row(first + index, queue, message, received) for index, (queue, message) in enumerate(messages)]
    schema = arrow_schema(RAW)
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(schema)
    if keeps_properties:
        schema = schema.append(pa.field(PROPERTIES, pa.string()))
        columns.append([properties_as_text(message.properties) for _, message in messages])
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def _row(number: int, queue: str, message: Message, received: float) -> tuple[Any, ...]:
    properties: Mapping[str, Any] = message.properties
    return (
        number,
        queue,
        message.exchange,
        message.routing_key,
        message.redelivered,
        properties.get("message_id"),
        _time(properties.get("timestamp")),
        _time(received),
        _texts(message.headers),
        _texts({name: value for name, value in properties.items() if name not in _APART}),
        message.body,
    )


def _time(seconds: float | None) -> datetime | None:
    """None also for what is no time that Spark could hold."""
    if seconds is None or not 0 <= seconds < _LATEST:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def _texts(table: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    return [(name, _text(value)) for name, value in table.items()]


def _text(value: Any) -> str | None:
    """A header's value as text: tables, lists and switches as JSON, times in ISO's form."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, bool | dict | list):
        return json.dumps(value, default=_text)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types that Spark expects of a reader with this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Before 4.2 it takes no zone, and means UTC.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


class Decoder:
    """Makes what a schema asks for of chunks. Cheap to make, and to send to executors.

    Raises:
        BadOption: a column that no message has, or one that JSON cannot be parsed into.
    """

    def __init__(self, schema: StructType, *, has_json_bodies: bool, allows_malformed: bool) -> None:
        self._schema = schema
        self._allows_malformed = allows_malformed
        prefix = "_" if has_json_bodies else ""
        self._envelope = {prefix + name: name for name in _COLUMNS}
        self._parsed = [field.name for field in schema.fields if field.name not in self._envelope]
        if self._parsed and not has_json_bodies:
            raise BadOption(
                f"a message has no column {', '.join(self._parsed)}, only {', '.join(_COLUMNS)}; "
                "to have its body parsed into columns of yours set the option bodies=json"
            )
        self._check_types()

    def _check_types(self) -> None:
        import pyarrow as pa

        for field in self._schema.fields:
            name = self._envelope.get(field.name)
            if name is not None and field.dataType != _COLUMNS[name]:
                wanted, given = _COLUMNS[name].simpleString(), field.dataType.simpleString()
                raise BadOption(f"column {field.name} is {wanted}, not {given}")
        try:
            if self._parsed:
                self._parse([b"{}"])
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise BadOption(f"bodies cannot be parsed into {self._schema.simpleString()}: {error}") from None

    def batches(self, payload: bytes, skip: int, count: int) -> Iterator[pa.RecordBatch]:
        """The `count` messages of a chunk after the first `skip`."""
        import pyarrow as pa

        with pa.ipc.open_stream(payload) as stream:
            table = stream.read_all().slice(skip, count).combine_chunks()
        for batch in table.to_batches():
            yield self._decoded(batch)

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        target = arrow_schema(self._schema)
        parsed = self._parse_all(batch) if self._parsed else batch
        columns = [
            batch.column(self._envelope[field.name]) if field.name in self._envelope else parsed.column(field.name)
            for field in target
        ]
        arrays = [column.cast(field.type) for column, field in zip(columns, target, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=target)

    def _parse_all(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """All bodies at once; one by one only to find the one that cannot be read."""
        import pyarrow as pa

        bodies = batch.column("body").to_pylist()
        try:
            parsed = self._parse(bodies)
            if parsed.num_rows == len(bodies):
                return parsed
        except pa.ArrowInvalid:
            pass
        return pa.concat_batches([self._parse_one(batch, index) for index in range(len(bodies))])

    def _parse_one(self, batch: pa.RecordBatch, index: int) -> pa.RecordBatch:
        import pyarrow as pa

        body = batch.column("body")[index].as_py()
        try:
            parsed = self._parse([body])
            why = f"{parsed.num_rows} objects instead of one"
            if parsed.num_rows == 1:
                return parsed
        except pa.ArrowInvalid as error:
            why = str(error)
        if self._allows_malformed:
            return self._parse([b"{}"])
        number, queue = batch.column("sequence")[index].as_py(), batch.column("queue")[index].as_py()
        raise MalformedBody(
            f"message {number}, of queue {queue!r}, has a body of {len(body)} bytes that is not one object of "
            f"{', '.join(self._parsed)}: {why}; to read nulls instead set the option malformed=null"
        )

    def _parse(self, bodies: Iterable[bytes]) -> pa.RecordBatch:
        """As many rows as there are objects; `ArrowInvalid` also for a body that is null.

        Each body is wrapped into an object, which it cannot leave: none makes no row, or completes another's.
        """
        import pyarrow as pa
        import pyarrow.json as pj  # type: ignore[import-untyped]

        text = b"".join(b'{"body": %b}\n' % body for body in bodies)
        fields = [field.with_nullable(True) for field in arrow_schema(self._schema) if field.name in self._parsed]
        table = pj.read_json(
            io.BytesIO(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema([("body", pa.struct(fields))]),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        )
        objects = pa.concat_arrays(table.column("body").chunks)
        if objects.null_count:
            raise pa.ArrowInvalid("null instead of an object")
        return pa.RecordBatch.from_struct_array(objects)
