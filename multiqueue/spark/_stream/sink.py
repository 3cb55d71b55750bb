"""The sink: rows become messages that their broker has confirmed, under ids that a retry gives again.

Promise     1. A task that Spark counts as done has had every row confirmed by the broker; with `mandatory`, which is
               the default, every row also had a queue to go to.
            2. Nothing is published before all rows of the task are there: a task that fails in computing them publishes
               nothing.
            3. Row R of partition P in batch B of a query has the message id `ID-B-P-R`, where ID is `sinkId` or the
               query's own id, which its checkpoint keeps. A row that is published twice, by a retry, a speculative task
               or a batch that a restart runs again, has the same id twice, if the query computes the same rows in the
               same order. A `message_id` column takes its place row by row.
            A batch write's ids are `ID-P-R` with `sinkId`, else with a new token, the same for its retries.
State       None between tasks. Rows are staged in a temporary file, in memory up to `STAGE_BYTES`.
Who runs    `write` in executors, one thread each; `commit` and `abort` have nothing left to do.
Waiting     For confirms, `publishSeconds` at most; a lost connection is made anew within that time, and all rows of the
            task are published again.
"""

from __future__ import annotations

import logging
import pickle
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, IntegerType, MapType, StringType, StructType, TimestampType

from .errors import BadOption, PublishFailed, StreamingError
from .options import MEBIBYTE, SinkOptions, load_client

if TYPE_CHECKING:
    from pyspark.sql import Row

    from ...client import Channel, Returned

_log = logging.getLogger("multiqueue.spark")

STAGE_BYTES = 16 * MEBIBYTE
WINDOW = 1000  # messages on their way at a time
RETRY = 0.5  # seconds between two attempts

# What Spark tells a task of its query, for its own use; tests look whether it still does.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"

_TEXT = StringType()
_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "body": (BinaryType(), _TEXT),
    "exchange": (_TEXT,),
    "routing_key": (_TEXT,),
    "message_id": (_TEXT,),
    "headers": (MapType(_TEXT, _TEXT),),
    "timestamp": (TimestampType(),),
    "priority": (IntegerType(),),
    "content_type": (_TEXT,),
    "content_encoding": (_TEXT,),
    "correlation_id": (_TEXT,),
    "reply_to": (_TEXT,),
    "expiration": (_TEXT,),
    "type": (_TEXT,),
    "app_id": (_TEXT,),
}
_ADDRESS = frozenset(("body", "exchange", "routing_key"))


class Published(WriterCommitMessage):
    """The report of a task."""

    def __init__(self, messages: int) -> None:
        self.messages = messages


class _Outgoing(NamedTuple):
    exchange: str
    routing_key: str
    body: bytes
    properties: dict[str, Any]


class _Publisher(ABC):
    """The common part of the stream's and the batch's writer."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _check_columns(schema, options)
        self._options = options
        self._token = uuid.uuid4().hex

    def write(self, iterator: Iterator[Row]) -> Published:
        """Publish a partition. See the header.

        Raises:
            PublishFailed: the broker did not take all of it.
            BadOption: a row has no body, or a value that no message can have.
        """
        with tempfile.SpooledTemporaryFile(STAGE_BYTES) as stage:
            count = self._stage(iterator, stage)
            if count:
                self._publish_within(stage, count)
        return Published(count)

    @abstractmethod
    def _identity(self) -> str:
        """The prefix of the ids of this task's messages."""

    def _stage(self, rows: Iterator[Row], stage: IO[bytes]) -> int:
        context = TaskContext.get()
        prefix = f"{self._identity()}-{context.partitionId() if context else 0}"
        count = 0
        for row in rows:
            pickle.dump(self._outgoing(row.asDict(), f"{prefix}-{count}"), stage)
            count += 1
        return count

    def _outgoing(self, row: dict[str, Any], message_id: str) -> _Outgoing:
        body = row["body"]
        if body is None:
            raise BadOption(f"the row of message id {message_id} has no body; filter such rows out")
        exchange, routing_key = row.get("exchange"), row.get("routing_key")
        properties = {name: value for name, value in row.items() if value is not None and name not in _ADDRESS}
        properties.setdefault("message_id", message_id)
        if isinstance(properties.get("timestamp"), datetime):
            properties["timestamp"] = int(properties["timestamp"].timestamp())
        if self._options.is_persistent:
            properties["delivery_mode"] = 2
        return _Outgoing(
            self._options.exchange if exchange is None else exchange,
            (self._options.routing_key or "") if routing_key is None else routing_key,
            body.encode() if isinstance(body, str) else bytes(body),
            properties,
        )

    def _publish_within(self, stage: IO[bytes], count: int) -> None:
        """Publish what is staged, again from its beginning after a loss, for as long as the options allow."""
        client = load_client()
        deadline = time.monotonic() + self._options.patience
        while True:
            stage.seek(0)
            try:
                self._publish(stage, count)
                return
            except client.ChannelClosed as error:  # it refuses: an exchange that is not there, a right that we lack
                raise PublishFailed(f"the broker refused the messages: {error}") from error
            except client.ClientError as error:
                if time.monotonic() + RETRY >= deadline:
                    raise PublishFailed(
                        f"{count} messages were not all confirmed within {self._options.patience:g} s: {error}"
                    ) from error
                _log.warning("publishing %d messages again: %s", count, error)
                time.sleep(RETRY)

    def _publish(self, stage: IO[bytes], count: int) -> None:
        """Once, over a separate connection.

        Raises:
            PublishFailed: a message had no queue to go to.
            ClientError: whether all of it arrived is not known.
        """
        client = load_client()
        options, returned = self._options, list["Returned"]()
        with client.connect(options.url, name="multiqueue sink", recover=False) as connection:
            channel = connection.channel(on_returned=returned.append)
            channel.confirm_select()
            for number in range(1, count + 1):
                to: _Outgoing = pickle.load(stage)
                _send(channel, to, options)
                if (number % WINDOW == 0 or number == count) and not channel.wait_for_confirms(options.patience):
                    raise client.Nacked("the broker could not take a message")
        if returned:  # all of them are here: closing the connection waited for them
            first = returned[0]
            raise PublishFailed(
                f"{len(returned)} of {count} messages have no queue to go to, the first to exchange {first.exchange!r} "
                f"with routing key {first.routing_key!r}: {first.reply_text}; bind a queue, or set mandatory=false to "
                "drop them"
            )


def _send(channel: Channel, to: _Outgoing, options: SinkOptions) -> None:
    mandatory, patience = options.is_mandatory, options.patience
    try:
        channel.publish(
            to.body,
            exchange=to.exchange,
            routing_key=to.routing_key,
            mandatory=mandatory,
            timeout=patience,
            **to.properties,
        )
    except (TypeError, ValueError) as error:
        raise BadOption(f"the row of message id {to.properties['message_id']} fits no message: {error}") from error


class QueueStreamWriter(_Publisher, DataSourceStreamWriter):
    """A micro-batch to broker queues. See the header."""

    def _identity(self) -> str:
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(_BATCH)
        query = self._options.sink_id or (None if context is None else context.getLocalProperty(_QUERY))
        if batch is None or query is None:
            raise StreamingError(
                "this Spark does not tell its tasks their query and batch, so a retry could not give the same message "
                "ids; write from foreachBatch with .write and a sinkId made of the batch's id"
            )
        return f"{query}-{batch}"

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything was confirmed before."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Keep what other tasks have published; the batch's next run publishes it again under the same ids."""


class QueueWriter(_Publisher, DataSourceWriter):
    """A DataFrame to broker queues."""

    def _identity(self) -> str:
        return self._options.sink_id or self._token

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything was confirmed before."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Keep what other tasks have published."""


def _check_columns(schema: StructType, options: SinkOptions) -> None:
    given = {field.name: field.dataType for field in schema.fields}
    for name, type in given.items():
        if name not in _COLUMNS:
            raise BadOption(
                f"a message has no place for column {name}; there are {', '.join(_COLUMNS)}. "
                "To send whole rows: selectExpr('to_json(struct(*)) AS body')"
            )
        wanted = [each.simpleString() for each in _COLUMNS[name]]
        if type.simpleString() not in wanted:  # whatever may be null
            raise BadOption(f"column {name} must be {' or '.join(wanted)}, not {type.simpleString()}")
    if "body" not in given:
        raise BadOption("there is no column body, binary or string; selectExpr('to_json(struct(*)) AS body') makes one")
    if "routing_key" not in given and options.routing_key is None and "exchange" not in given and not options.exchange:
        raise BadOption(
            "no destination: give the option routingKey, a queue's name, or exchange, or columns of these names"
        )
