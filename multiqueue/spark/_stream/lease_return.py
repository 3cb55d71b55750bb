"""Giving back: the end of a lease, for the people who run the broker.

Promise     Each message is on the lease or on its queue again, wherever this stops: a chunk is one transaction. Calling
            it again goes on. It does not run beside the lease's reader.
Lost        The place in the queue, `redelivered`, the exchange and the routing key: it is published to the queue by
            name. Of its properties `user_id`, which only that user may set, and the headers CC and BCC, for it is to
            arrive nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chunks import unseal
from .columns import PROPERTIES
from .errors import SourceUnavailable, StreamingError
from .lease import Lease, chunk_of, queue_of
from .lease_properties import properties_of_text
from .options import load_client, local_path

if TYPE_CHECKING:
    from ...client import Channel, Connection, Message

PATIENCE = 5.0  # seconds for a query to be gone that was stopped just now
_GONE = 404
_ELSEWHERE = ("CC", "BCC")


def give_back(url: str, source_id: str, *, checkpoint: str | Path | None = None) -> int:
    """Put a lease's messages back on their queues, and delete the lease; returns how many messages.

    Stop the query first: afterwards its checkpoint cannot be gone on with. `checkpoint`, the query's directory, says
    which messages are in its output already; they are dropped. Without it all that the lease holds is given back, the
    last committed batch included. Blocks; if it is interrupted, call it again.

    Raises:
        LeaseInUse: a query still reads it.
        StreamingError: there is no such lease, or the checkpoint is of another one, or in a store. Nothing was done.
        SourceUnavailable: a queue is not there any more; earlier messages are given back.
        ClientError: the broker cannot be reached, or refuses.
    """
    directory = None if checkpoint is None else _on_this_machine(checkpoint)
    with load_client().connect(url, name=f"giving back {source_id}", recover=False) as connection:
        if not _exists(connection, queue_of(source_id)):
            raise StreamingError(
                f"there is no lease {source_id!r} at this broker: it has no queue {queue_of(source_id)}"
            )
        lease = Lease.open(connection, source_id, patience=PATIENCE)
        first = 0 if directory is None else _committed(directory, lease.id)
        count = 0
        with connection.channel() as channel:
            channel.tx_select()
            while (message := channel.basic_get(queue_of(source_id))) is not None:
                count += _give_back_chunk(connection, channel, message, first)
        with connection.channel() as channel:
            channel.queue_delete(queue_of(source_id))
        return count


def _give_back_chunk(connection: Connection, channel: Channel, message: Message, first: int) -> int:
    """Those of a chunk from number `first` on, in one transaction."""
    count, there = 0, set[str]()
    for row in _rows(message):
        if row["sequence"] < first:
            continue
        if row["queue"] not in there:
            if not _exists(connection, row["queue"]):
                raise SourceUnavailable(f"queue {row['queue']} is not there any more; declare it, and give back again")
            there.add(row["queue"])
        channel.publish(row["body"], routing_key=row["queue"], **_properties(row[PROPERTIES]))
        count += 1
    message.ack()
    channel.tx_commit()
    return count


def _rows(message: Message) -> Iterator[dict[str, Any]]:
    import pyarrow as pa  # type: ignore[import-untyped]

    chunk = chunk_of(message)[1]
    if not chunk.count:
        return
    with pa.ipc.open_stream(unseal(f"chunk {chunk.first}", message.body)) as stream:
        for batch in stream:
            yield from batch.select(["sequence", "queue", "body", PROPERTIES]).to_pylist()


def _properties(text: str) -> dict[str, Any]:
    properties = properties_of_text(text)
    properties.pop("user_id", None)
    if "headers" in properties:
        properties["headers"] = {name: each for name, each in properties["headers"].items() if name not in _ELSEWHERE}
    return properties


def _exists(connection: Connection, queue: str) -> bool:
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except load_client().ChannelClosed as error:
        if error.reply_code != _GONE:
            raise
        return False
    channel.close()
    return True


def _on_this_machine(checkpoint: str | Path) -> Path:
    try:
        path = local_path(str(checkpoint))
    except ValueError as error:
        raise StreamingError(f"the checkpoint {error}") from None
    if path is None:
        raise StreamingError(
            f"the checkpoint {checkpoint} is not on this machine: copy its directories offsets and commits here, "
            "and name the directory that they are in"
        )
    return path


def _committed(checkpoint: Path, lease: str) -> int:
    """The number below which everything is in the query's output.

    Raises:
        StreamingError: it is no checkpoint, or of another lease.
    """
    batches = _numbers(checkpoint / "commits")
    if not batches:
        return 0
    for line in (checkpoint / "offsets" / str(max(batches))).read_text().splitlines():
        if line.startswith("{") and (offset := json.loads(line)).get("lease") == lease:
            return int(offset["sequence"])
    raise StreamingError(f"the checkpoint {checkpoint} does not know lease {lease}; give that of the lease's query")


def _numbers(directory: Path) -> list[int]:
    if not directory.is_dir():
        raise StreamingError(f"{directory} is not there: {directory.parent} is not the checkpoint of a query")
    return [int(path.name) for path in directory.iterdir() if path.name.isdigit()]
