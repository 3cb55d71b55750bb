"""Lanes that are fed from broker queues: from deliveries to the ledger, and back to acknowledgements.

Promise     A message is acknowledged after the transaction that says its item is done, never before. One whose item
            is set aside is rejected, so that the broker dead-letters it, after the transaction that says so. A message
            that is delivered again is known by its key, and its item is not done twice.
State       `_held`, the deliveries that are not settled yet, by the lane and the key of their message; and per lane
            those that do not fill a batch yet. Both are bounded by the lanes' `prefetch`.
Threads     The runner's.
Membership  A message that is delivered again on another connection is found in `_held`, or known to the ledger.
Crash       recorded, not acknowledged: delivered again and known. Acknowledged: was recorded as done before.
            Set aside, not rejected: delivered again with the broker's flag, and rejected then.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._base.batching import cut
from .._base.items import MESSAGE, FileSeen, Item, Lane, Payload
from .._base.lifecycle import ItemState
from .._state.ledger import Ledger, Scanned
from .broker_queue import BrokerQueue, settle

if TYPE_CHECKING:
    from ...client import Message

Key = tuple[str, str]
"""A lane and the path of one of its messages."""


@dataclass(slots=True)
class _Feed:
    """A lane and the queue that it takes from."""

    lane: Lane
    queue: BrokerQueue
    prefetch: int
    short: list[tuple[FileSeen, Payload]] = field(default_factory=list)
    """New messages that do not fill a batch."""
    short_since_s: float = 0.0


class Queues:
    """The queue lanes of a run. Open it before the first step, close it at the end."""

    def __init__(
        self, lanes: Sequence[Lane], ledger: Ledger, *, follow: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lanes = [lane for lane in lanes if lane.source is not None]
        self._ledger = ledger
        self._follow = follow
        self._clock = clock
        self._feeds: list[_Feed] = []
        self._held: dict[Key, list[Message]] = {}

    @contextlib.contextmanager
    def open(self, connect: Callable[[str], Any] | None = None) -> Iterator[None]:
        """While inside, the queues deliver. Unsettled messages go back to them at the end.

        Raises:
            Unprepared: a broker or a queue is not there, or the client's extra is missing.
        """
        with contextlib.ExitStack() as stack:
            for lane in self._lanes:
                assert lane.source is not None
                prefetch = max(lane.prefetch, 2 * lane.batch)
                queue = BrokerQueue(lane.name, lane.source, prefetch, stack, connect, follow=self._follow)
                self._feeds.append(_Feed(lane, queue, prefetch))
            yield

    @property
    def stands_still(self) -> bool:
        """Whether all that came is recorded; while not following, whether all came that was there."""
        return self.finished or (self._follow and not any(feed.short for feed in self._feeds))

    def patience_s(self) -> float | None:
        """In how many seconds there is something to take; None when nothing is known to have come."""
        return 0.0 if any(feed.queue.has_more for feed in self._feeds) else None

    @property
    def finished(self) -> bool:
        """Whether every queue was empty when last asked, and all that came is recorded; never while following."""
        if not self._feeds:
            return True
        return not self._follow and all(feed.queue.is_drained and not feed.short for feed in self._feeds)

    def step(self, known_s: float, found: Callable[[str, Scanned], None]) -> None:
        """Record the messages that have come, and call `found` with each lane that has something new."""
        for feed in self._feeds:
            messages = feed.queue.take(feed.prefetch - self._count_of(feed))
            if messages or feed.short:
                self._record(feed, messages, known_s, found)

    def settled(self, item: Item, state: ItemState) -> None:
        """The item's end is committed: acknowledge its messages, or reject them if it was set aside."""
        if state is ItemState.WAITING:
            return
        for one in item.files:
            for message in self._held.pop((item.lane, one.path), ()):
                settle(message, state is ItemState.DONE)

    def check_invariants(self) -> None:
        """Raise AssertionError unless every unfinished batch has its deliveries."""
        for feed in self._feeds:
            assert all((feed.lane.name, seen.path) in self._held for seen, _ in feed.short)

    def _count_of(self, feed: _Feed) -> int:
        """How many deliveries of the lane are not settled."""
        return sum(len(held) for (lane, _), held in self._held.items() if lane == feed.lane.name)

    def _record(
        self, feed: _Feed, messages: list[Message], known_s: float, found: Callable[[str, Scanned], None]
    ) -> None:
        settled: list[tuple[Message, bool]] = []
        reopened: Counter[ItemState] = Counter()
        lane = feed.lane
        with self._ledger.transaction():
            for message in messages:
                self._take_in(feed, message, settled, reopened)
            batches = self._batches(feed)
            for batch in batches:
                self._ledger.add(lane.name, [seen for seen, _ in batch], known_s)
                for seen, payload in batch:
                    self._ledger.messages.keep(lane.name, seen.path, payload)
        for message, accept in settled:
            settle(message, accept)
        if batches or reopened:
            found(lane.name, Scanned(len(batches), reopened, 0, []))

    def _take_in(
        self, feed: _Feed, message: Message, settled: list[tuple[Message, bool]], reopened: Counter[ItemState]
    ) -> None:
        """Hold one delivery, or note that it is to be settled at once."""
        payload = _payload(message)
        seen = FileSeen(MESSAGE + (payload.id or _digest(payload.body)), len(payload.body), 0)
        key = (feed.lane.name, seen.path)
        if key in self._held:
            self._held[key].append(message)
            return
        known = self._ledger.messages.state_of(*key)
        if known is None:
            if not feed.short:
                feed.short_since_s = self._clock()
            feed.short.append((seen, payload))
        elif known[0] is ItemState.DONE:
            settled.append((message, True))
            return
        elif known[0] is ItemState.FAILED:
            if message.redelivered and "x-death" not in message.headers:  # its rejection was lost
                settled.append((message, False))
                return
            self._ledger.put_back(known[1])  # somebody has published it once more
            reopened[ItemState.FAILED] += 1
        self._held[key] = [message]

    def _batches(self, feed: _Feed) -> list[list[tuple[FileSeen, Payload]]]:
        """The messages that go into the ledger now, an item each; the rest stays."""
        lane, by_path = feed.lane, {seen.path: (seen, payload) for seen, payload in feed.short}
        full, rest = cut([seen for seen, _ in feed.short], lane.batch, lane.batch_bytes)
        waited_s = self._clock() - feed.short_since_s
        if rest and (waited_s >= lane.batch_s if self._follow else feed.queue.is_drained):
            full, rest = [*full, rest], []
        if full:
            feed.short_since_s = self._clock()
        feed.short = [by_path[seen.path] for seen in rest]
        return [[by_path[seen.path] for seen in batch] for batch in full]


def _payload(message: Message) -> Payload:
    headers = {str(name): str(value) for name, value in message.headers.items()}
    return Payload(str(message.properties.get("message_id") or ""), message.routing_key, headers, bytes(message.body))


def _digest(body: bytes) -> str:
    return "blake2b-" + hashlib.blake2b(body, digest_size=16).hexdigest()
