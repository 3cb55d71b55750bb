"""The backlog in a lease: messages are moved to a queue of the source's own, and read from there.

Promise     As `_lease.py` says. A message has one number, after any crash: nothing is in the stream twice.
State       `_lease` is the last one that was opened, and still knows the held messages while the broker is away.
Waiting     As `Supply`. What the connection's loss leaves undecided is decided by opening the lease again, which waits
            for the server to be done with the old connection.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .backlog import SourcePartition
from .chunks import ChunkList, Piece
from .columns import to_payload
from .errors import SourceUnavailable
from .lease import Lease
from .lease_reading import payloads
from .options import MEBIBYTE, SourceOptions, load_client
from .queue_reader import QueueReader, Supply

if TYPE_CHECKING:
    from ...client import Channel, Message

HEARTBEAT = 10.0  # seconds; a broker lets go of a lease two of these after its reader's machine has gone silent
CHUNK_BYTES = MEBIBYTE  # of bodies, and one message more: small beside a broker's memory, large beside a commit


class LeasedQueueReader(QueueReader):
    """A reader whose connection has the lease."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.source_id is not None
        super().__init__(options, heartbeat=HEARTBEAT)
        self._has_one_queue = len(options.queues) == 1
        self._moving: Channel | None = None
        try:
            self.lease = Lease.open(self._connection, options.source_id)
        except BaseException:
            self.close()
            raise

    def _channel_to_consume_on(self) -> Channel:
        """One for all queues: a transaction is a channel's."""
        if self._moving is None:
            self._moving = self._connection.channel()
            self._moving.tx_select()
        return self._moving

    def move(self, taken: list[tuple[str, Message]], size_bytes: int) -> None:
        """Have the taken messages in the lease. Raises as `Lease.move`."""
        payload = to_payload(taken, self.lease.chunks.end, time.time(), keeps_properties=True)
        messages = [message for _, message in taken]
        self.lease.move(self._channel_to_consume_on(), messages, payload, size_bytes, in_order=self._has_one_queue)


class LeasePartition(SourcePartition):
    """Pieces of a lease's chunks."""

    def __init__(self, lease: str, pieces: list[Piece]) -> None:
        super().__init__(None)
        self.lease = lease
        self.pieces = pieces

    def payloads(self, options: SourceOptions) -> Iterator[tuple[bytes, int, int]]:
        return payloads(options, self.lease, self.pieces)


class Leased:
    """Messages are moved to a lease at their broker.

    Raises:
        LeaseInUse: another connection has the lease.
        SourceUnavailable: the broker is away, or a queue is not there.
        BadOption: the broker is none of ours.
    """

    kind = "lease"

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._supply = Supply(options, LeasedQueueReader)
        reader = self._supply.reader()
        assert reader is not None, "a first attempt that fails raises"
        self._lease: Lease = reader.lease

    def _reader(self) -> LeasedQueueReader | None:
        reader = self._supply.reader()
        if reader is not None:
            self._lease = reader.lease
        return reader

    @property
    def id(self) -> str:
        return self._lease.id

    @property
    def where(self) -> str:
        return f"lease {self._lease.id} of source {self._lease.name!r}"

    @property
    def chunks(self) -> ChunkList:
        return self._lease.chunks

    @property
    def is_away(self) -> bool:
        return self._supply.is_away

    def ready(self) -> int | None:
        self._reader()
        return self._supply.ready()

    def fetch(self, messages: int, size_bytes: float, timeout: float) -> int | None:
        reader = self._reader()
        if reader is None:
            return None
        # Not before there is one: what is taken and not moved would be acknowledged with the next move.
        taken = self._supply.take(messages, min(size_bytes, CHUNK_BYTES), timeout)
        if not taken:
            return None
        client = load_client()
        kept_bytes = sum(len(message.body) for _, message in taken)
        try:
            reader.move(taken, kept_bytes)
        except client.ChannelClosed as error:
            if error.reply_code:
                raise SourceUnavailable(f"the broker does not let messages be leased: {error}") from error
            self._supply.lost(error)
            return None
        except client.ClientError as error:
            self._supply.lost(error)
            return None
        return kept_bytes

    def trim(self, below: int) -> None:
        reader = self._reader()
        try:
            if reader is not None:
                reader.lease.trim(below)
        except load_client().ClientError as error:
            self._supply.lost(error)

    def partition(self, start: int, end: int, *, lossy: bool) -> SourcePartition:
        return LeasePartition(self.id, self.chunks.pieces(start, end, self.where, lossy=lossy))

    def close(self) -> None:
        self._supply.close()
