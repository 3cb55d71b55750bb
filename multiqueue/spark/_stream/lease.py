"""A lease: a durable queue at a broker of ours that holds a source's messages, numbered, until Spark is done with them.

Promise     1. A move is one transaction of the broker: messages leave their queues and are in the lease, under
               consecutive numbers that never change and are never used again, or nothing has happened. However broker
               or reader ends, a message is on one of the two afterwards.
            2. One `Lease` of a name at a time, in all processes. It ends with its connection, and its last transaction
               ends before that: the next one sees it done or undone, and nothing of it comes later.
            3. Reading takes nothing: tasks browse the queue.
State       The queue `lease.NAME`: a message is a chunk (`_source_chunks.py`), sealed; its headers say which. The
            oldest is removed by `trim`, the last one never: it says which number is next and whose numbers these are.
            A new lease begins with a chunk of no messages. `chunks` is what the queue holds; `move` compares how many.
Lock        The queue `lease-reader.NAME`, exclusive to the connection. The server deletes it after all else that still
            ran for the connection. It holds no messages.
Waiting     For the reader before us to be gone, `patience` seconds at most; for chunks that the broker says it has.
Who runs    The source's one thread.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from ...errors import Empty
from .chunks import Chunk, ChunkList, seal
from .errors import BadOption, DataLoss, LeaseInUse, SourceUnavailable
from .options import load_client

if TYPE_CHECKING:
    from ...client import Channel, Connection, Message

OURS = "multiqueue"  # what a broker of ours says that it is
BROWSED = {"qpid.ensure_nondestructive_consumers": True}
FIRST, COUNT, BYTES, LEASE = "mq_first", "mq_count", "mq_bytes", "mq_lease"  # headers of a chunk
LOCK_POLL = 0.1  # seconds; a broker does not tell when an exclusive queue is gone
SLOW = 60.0  # seconds in which a broker should have sent a chunk that it has, or taken one of ours
_LOCKED, _GONE = 405, 404


class Lease:
    """The side that moves messages. Made by `Lease.open`, on a connection that ends it."""

    def __init__(self, channel: Channel, name: str) -> None:
        self.name = name
        self._channel = channel
        self.id, chunks = self._found(uuid.uuid4().hex)
        self.chunks = ChunkList(chunks)

    @classmethod
    def open(cls, connection: Connection, name: str, *, patience: float = 30.0) -> Lease:
        """The lease of a name, made if need be. Blocks while another connection has it, `patience` seconds at most.

        Raises:
            LeaseInUse: somebody else has it.
            BadOption: the broker is none of ours: its transactions promise less.
            ClientError: the broker refused it, or is gone.
        """
        check_is_ours(connection)
        _lock(connection, name, patience)
        channel = connection.channel()
        channel.queue_declare(queue_of(name), durable=True, arguments=BROWSED)
        return cls(channel, name)

    def _found(self, new_id: str) -> tuple[str, list[Chunk]]:
        """The record that the queue has; without one, a new beginning."""
        queue = queue_of(self.name)
        count = self._channel.queue_declare(queue, passive=True).message_count
        if not count:
            with self._channel.connection.channel() as moving:
                moving.tx_select()
                _publish(moving, self.name, new_id, Chunk(0, 0, 0), b"")
                moving.tx_commit()
            return new_id, [Chunk(0, 0, 0)]
        with self._channel.consume(queue, auto_ack=True) as inbox:
            try:
                found = [chunk_of(inbox.get(SLOW)) for _ in range(count)]
            except Empty:
                raise SourceUnavailable(f"{queue} has {count} chunks, and did not give one for {SLOW:g} s") from None
        return found[-1][0], [chunk for _, chunk in found]

    def move(self, moving: Channel, taken: list[Message], payload: bytes, size_bytes: int, *, in_order: bool) -> None:
        """Have the messages taken on `moving`, a channel in transaction mode, in the lease, and off their queues.

        `in_order` says that what was delivered on the channel before the last of them is taken, too. Blocks for the
        broker's commit. If it raises, it may have happened: open the lease again to see.

        Raises:
            DataLoss: somebody else has changed the lease. Nothing was moved.
            ClientError: the broker refused it, or is gone.
        """
        self._check_count(moving)
        chunk = Chunk(self.chunks.end, len(taken), size_bytes)
        _publish(moving, self.name, self.id, chunk, payload)
        if in_order:
            taken[-1].ack(multiple=True)
        else:
            for message in taken:
                message.ack()
        moving.tx_commit()
        self.chunks.add(chunk)

    def _check_count(self, channel: Channel) -> None:
        """Before each move: into a queue that somebody deleted it would be nowhere."""
        try:
            count = channel.queue_declare(queue_of(self.name), passive=True).message_count
        except load_client().ChannelClosed as error:
            if error.reply_code == _GONE:
                count = 0
            else:
                raise
        if count != len(self.chunks):
            raise DataLoss(
                f"{queue_of(self.name)} holds {count} chunks instead of {len(self.chunks)}: somebody has removed or "
                "added some; restore the broker's data, or give the query a new checkpoint and a new sourceId"
            )

    def trim(self, below: int) -> None:
        """Forget the messages before number `below`, in whole chunks. What a crash undoes of it does no harm.

        Raises as `move`.
        """
        while (chunk := self.chunks.dispensable(below)) is not None:
            message = self._channel.basic_get(queue_of(self.name))
            if message is None or chunk_of(message) != (self.id, chunk):
                raise DataLoss(
                    f"{queue_of(self.name)} does not begin with message {chunk.first}: somebody has changed it"
                )
            message.ack()
            self.chunks.drop_first()


def queue_of(name: str) -> str:
    """The queue that holds the lease of a name."""
    return f"lease.{name}"


def check_is_ours(connection: Connection) -> None:
    """Raises `BadOption` if the broker's transactions do not promise what a move needs."""
    server = connection.server_properties
    if server.get("product") != OURS:
        raise BadOption(
            f"the broker is {server.get('product')} {server.get('version', '')}, and only multiqueue's own can lease "
            "messages: its transactions are all or nothing. Give a directory beside the checkpoint by "
            '.option("spool", "/...")'
        )


def _lock(connection: Connection, name: str, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        channel = connection.channel()
        try:
            channel.queue_declare(f"lease-reader.{name}", exclusive=True)
        except load_client().ChannelClosed as error:
            if error.reply_code != _LOCKED:
                raise
        else:
            channel.close()
            return
        if time.monotonic() >= deadline:
            raise LeaseInUse(
                f"the lease {name!r} has been in use by another connection for {patience:g} s; stop that query, or "
                "give each readStream another sourceId"
            )
        time.sleep(LOCK_POLL)


def _publish(channel: Channel, name: str, lease: str, chunk: Chunk, payload: bytes) -> None:
    headers = {LEASE: lease, FIRST: chunk.first, COUNT: chunk.count, BYTES: chunk.size_bytes}
    channel.publish(seal(payload), routing_key=queue_of(name), timeout=SLOW, delivery_mode=2, headers=headers)


def chunk_of(message: Message) -> tuple[str, Chunk]:
    """Which lease's chunk a message is.

    Raises:
        DataLoss: it is none.
    """
    try:
        return message.headers[LEASE], Chunk(*(int(message.headers[name]) for name in (FIRST, COUNT, BYTES)))
    except (KeyError, TypeError, ValueError):
        raise DataLoss("there is a message in the lease that is no chunk; somebody has published to it") from None
