"""The streaming source: offsets over numbered messages, which a backlog fetches from broker queues.

Promise     1. A message is off its queue when it has a number, in the spool, synced, or in the lease. An
               offset is such a number. So every batch reads the same however often, and a crash loses nothing.
            2. A batch has at most `maxMessagesPerBatch` messages, and one message more than `maxBytesPerBatch`.
               Messages off their queues are at most one batch ahead of Spark's requests.
            3. What Spark has committed is removed when the next batch begins.
State       Offsets are `{"spool": ID, "sequence": N}`, or "lease": all numbers below N. Spark compares them as text, so
            they are made in one place. `_opened` is None in the copies that Spark sends to executors.
Who runs    One thread of a Python process that Spark starts beside its driver, never the user's. Spark does not tell it
            of its end, but kills it. `read` runs in executors and knows its partition alone.
Waiting     `_collect` waits for messages that the broker said it has, until they are there, the broker has none left,
            or it has given none for `STUCK` seconds.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from .backlog import Backlog, SourcePartition, Spooled
from .columns import Decoder, to_payload
from .errors import BadOption, DataLoss, SourceUnavailable
from .lease_backlog import Leased
from .options import MOST_PREFETCH, SourceOptions
from .queue_reader import LINGER, QueueReader, Supply

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before 4.2, where Spark asks for offsets without a limit

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Unknown to this Spark."""


if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

CHUNK = 10_000  # messages of a chunk at most: some 5 MB of columns beside the bodies
QUIET = 1.0  # seconds without a delivery, after which the broker is asked whether there is anything left
STUCK = 30.0  # seconds without a delivery though the broker says that it has some


@dataclass(slots=True)
class _Opened:
    """The resources that the driver's side has open."""

    backlog: Backlog
    target: int | None = None  # where the stream ends, for the trigger availableNow
    has_begun: bool = False


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Broker queues as a stream. See the header."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.spool is None and options.source_id is None:
            raise BadOption(
                "where are messages to be until Spark has committed them? At a broker of ours they are leased, under a "
                'name given by .option("sourceId", "..."); for any other broker give a directory beside the checkpoint '
                'by .option("spool", "/...")'
            )
        self._options = options
        self._decoder = _decoder(options, schema)
        self._opened: _Opened | None = None

    # ---- the driver's side --------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """The oldest message that is held: what no query has committed."""
        backlog = self._open().backlog
        return _offset(backlog, backlog.chunks.first)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The end of a batch from `start` on, after reading what the queues have for it."""
        opened = self._open()
        backlog = opened.backlog
        if start is None:  # a Spark before 4.2: everything that is new is a batch, the first one perhaps the only one
            new = backlog.chunks.end
            self._collect(opened, new + self._options.max_messages, begin=new, waits=not opened.has_begun)
            opened.has_begun = True
            return _offset(backlog, backlog.chunks.end)
        begin = self._position(backlog, start)
        if limit is not None and isinstance(limit, ReadAllAvailable):
            self._collect(opened, self._ready(opened), waits=True)
            return _offset(backlog, backlog.chunks.end)
        messages = getattr(limit, "max_rows", self._options.max_messages)
        if opened.target is None:
            self._collect(opened, begin + messages, begin=begin)
        else:
            messages = min(messages, max(opened.target - begin, 0))
            self._collect(opened, min(begin + messages, opened.target), begin=begin, waits=True)
        return _offset(backlog, backlog.chunks.position(begin, messages, self._options.max_bytes))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the stream if everything that waits had a number; None while the broker is away.

        Spark shows it as `latestOffset`: less `endOffset` it is the lag.
        """
        opened = self._open()
        ready = opened.backlog.ready()
        return None if ready is None else _offset(opened.backlog, opened.backlog.chunks.end + ready)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember how many messages there are: the stream ends with them."""
        opened = self._open()
        opened.target = self._ready(opened)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The batch in as many parts as the options ask for, each a run of consecutive messages."""
        backlog = self._open().backlog
        begin, stop = self._position(backlog, start), self._position(backlog, end)
        lossy = self._options.allows_loss
        parts = _bounds(begin, stop, self._options.partitions)
        return [backlog.partition(low, high, lossy=lossy) for low, high in parts]

    def commit(self, end: dict[str, Any]) -> None:
        """Spark will not ask again for messages below `end`."""
        backlog = self._open().backlog
        if end.get(backlog.kind) == backlog.id:
            backlog.trim(end["sequence"])

    def stop(self) -> None:
        """Give back the messages without a number. Spark mostly kills the process instead, which does the same."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.backlog.close()

    def _open(self) -> _Opened:
        if self._opened is None:
            self._opened = _Opened((Leased if self._options.spool is None else Spooled)(self._options))
        return self._opened

    def _position(self, backlog: Backlog, offset: dict[str, Any]) -> int:
        """The number that an offset means.

        Raises:
            DataLoss: it is of other numbers, or of messages that there never were, and losses are not allowed.
        """
        identity, number, chunks = offset.get(backlog.kind), int(offset["sequence"]), backlog.chunks
        is_ours = identity == backlog.id
        if is_ours and number <= chunks.end:
            return max(number, chunks.first) if self._options.allows_loss else number
        if not self._options.allows_loss:
            have = f"ends at {chunks.end}" if is_ours else "is another one"
            whose = f"{backlog.kind} {identity}" if identity else f"a {'lease' if backlog.kind == 'spool' else 'spool'}"
            raise DataLoss(
                f"the checkpoint is at message {number} of {whose}, but the {backlog.where} {have}; restore it, or "
                "give the query a new checkpoint, or go on without those messages by failOnDataLoss=false"
            )
        if not is_ours:
            return chunks.first
        chunks.reach(number)
        return number

    def _ready(self, opened: _Opened) -> int:
        """Which number would be next if everything that the queues have now had one."""
        ready = opened.backlog.ready()
        if ready is None:
            raise SourceUnavailable("the broker went away before the stream began; start the query again")
        return opened.backlog.chunks.end + ready

    def _collect(self, opened: _Opened, end: int, *, begin: int | None = None, waits: bool = False) -> None:
        """Fetch messages until the last one has the number before `end`, or a batch from `begin` on has its bytes.

        Without `waits` as far as there are messages; with it as long as there are any to come.
        """
        backlog, gave_at = opened.backlog, time.monotonic()
        room = math.inf if begin is None else self._options.max_bytes - backlog.chunks.held(begin)[1]
        timeout = QUIET if waits else 0.0
        while backlog.chunks.end < end and room > 0:
            most = min(end - backlog.chunks.end, CHUNK)
            kept_bytes = backlog.fetch(most, min(room, self._options.max_bytes), timeout)
            if kept_bytes is not None:
                room -= kept_bytes
                timeout = QUIET if waits else LINGER
            elif not waits or self._is_exhausted(opened, gave_at):
                return
            if kept_bytes is not None or backlog.is_away:
                gave_at = time.monotonic()

    def _is_exhausted(self, opened: _Opened, gave_at: float) -> bool:
        """Do the queues, which gave something last at `gave_at`, have nothing left? Others may have taken it."""
        left = opened.backlog.ready()
        if left is None:
            time.sleep(LINGER)  # the broker is away; the supply says when that is too long
        elif left == 0:
            opened.target = None if opened.target is None else opened.backlog.chunks.end
        elif time.monotonic() - gave_at > STUCK:
            raise SourceUnavailable(
                f"the queues have {left} messages and gave none for {STUCK:g} s; does another consumer hold them?"
            )
        return left == 0

    # ---- the executors' side ------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a partition as Arrow batches."""
        assert isinstance(partition, SourcePartition)
        for payload, skip, count in partition.payloads(self._options):
            yield from self._decoder.batches(payload, skip, count)


class PayloadPartition(InputPartition):
    """The input of one task of a batch read: the messages themselves."""

    def __init__(self, payload: bytes, count: int) -> None:
        super().__init__(None)
        self.payload = payload
        self.count = count


class QueueBatchReader(DataSourceReader):
    """A look at the messages in the queues, up to one batch's limits: it acknowledges nothing and keeps nothing.

    While Spark plans, the messages are taken and given back; afterwards they are flagged as redelivered. Each action
    on the DataFrame looks anew.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = replace(options, prefetch=min(options.max_messages, MOST_PREFETCH))
        self._decoder = _decoder(options, schema)

    def partitions(self) -> list[InputPartition]:  # Spark insists on a list
        supply = Supply(self._options, QueueReader)
        try:
            taken = self._look(supply)
        finally:
            supply.close()
        now = time.time()
        parts = _bounds(0, len(taken), self._options.partitions) or [(0, 0)]
        return [PayloadPartition(to_payload(taken[low:high], low, now), high - low) for low, high in parts]

    def _look(self, supply: Supply[QueueReader]) -> list[Any]:
        most = min(supply.ready() or 0, self._options.max_messages)
        taken: list[Any] = []
        room = self._options.max_bytes
        while len(taken) < most and room > 0:
            some = supply.take(most - len(taken), room, QUIET)
            if not some:
                break
            taken += some
            room -= sum(len(message.body) for _, message in some)
        return taken

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PayloadPartition)
        return self._decoder.batches(partition.payload, 0, partition.count)


def _bounds(begin: int, end: int, most: int) -> list[tuple[int, int]]:
    """From `begin` to `end` in at most so many equal parts, none empty."""
    count = min(most, end - begin)
    edges = [begin + (end - begin) * index // count for index in range(count + 1)] if count > 0 else []
    return list(itertools.pairwise(edges))


def _decoder(options: SourceOptions, schema: StructType) -> Decoder:
    return Decoder(schema, has_json_bodies=options.has_json_bodies, allows_malformed=options.allows_malformed)


def _offset(backlog: Backlog, sequence: int) -> dict[str, Any]:
    return {backlog.kind: backlog.id, "sequence": sequence}
