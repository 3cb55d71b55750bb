"""Items on their way: from the ledger into the dispatcher's lanes, until their attempts have ended.

Promise     An item is submitted at most once at a time, and a lane is never given more than it has room for, so
            submitting never blocks. The room is counted from submitted and started items; a start that is
            not yet heard of only makes the count higher.
State       `_flights`, the items that are submitted and have not ended; `_feeds`, how many of them each lane holds.
Threads     The runner's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from .._base.items import Item, Lane
from .._base.pace import QUEUED, Pace
from .._base.rate import Rate
from .._state.ledger import Ledger
from .attempt import Attempts, Dispatcher, DispatcherLane
from .clock import WorkClock
from .mailbox import ended
from .retry import Verdict, verdict


@dataclass(slots=True)
class _LaneFeed:
    """A lane on its way to the dispatcher."""

    lane: Lane
    queued: int = 0
    """Submitted and not known to have started."""
    nothing_until_s: float = 0.0
    """The ledger has nothing for it before this moment, unless something comes in."""
    handle: DispatcherLane | None = None
    rate: Rate = field(init=False)
    """Asked by the clock of the run."""

    def __post_init__(self) -> None:
        self.rate = Rate(self.lane)

    @property
    def due_s(self) -> float:
        """When there may be something for it again."""
        return max(self.nothing_until_s, self.rate.free_s)


@dataclass(slots=True)
class Flight:
    """An item that is submitted and has not ended."""

    item: Item
    feed: _LaneFeed
    future: Future[Any] = field(default_factory=Future)
    started_s: float | None = None
    is_committing: bool = False


@dataclass(slots=True)
class Feeding:
    """The lanes of a run, fed from the ledger."""

    lanes: Sequence[Lane]
    """Those that have files, and one for each step."""
    ledger: Ledger
    attempts: Attempts
    clock: WorkClock
    dispatcher: Callable[[], Dispatcher]
    """Called when the first item is to be submitted, if ever."""
    pace: Pace
    _feeds: dict[str, _LaneFeed] = field(init=False)
    _flights: dict[int, Flight] = field(init=False, default_factory=dict)
    _live: Dispatcher | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._feeds = {lane.name: _LaneFeed(lane) for lane in self.lanes}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._flights

    def add_lane(self, lane: Lane) -> None:
        """Feed one more lane."""
        self._feeds[lane.name] = _LaneFeed(lane)

    def ask_again(self, lane: str) -> None:
        """Something came in for the lane: ask the ledger again."""
        self._feeds[lane].nothing_until_s = 0.0

    def dues_s(self) -> list[float]:
        """When there may be something for each lane, by the clock of the run."""
        return [feed.due_s for feed in self._feeds.values()]

    def step(
        self, is_gone: Callable[[str], bool], regrouped: Callable[[str, int], None], is_to_stop: Callable[[], bool]
    ) -> None:
        """Submit what the lanes have room for, in turns: recorded in one transaction, then handed over.

        Lanes whose input `is_gone` are passed over. `regrouped` is called with how many items a lane gained. Nothing is
        submitted where the run `is_to_stop` since the dispatcher was started, which takes a while.
        """
        open_feeds = [feed for feed in self._feeds.values() if not is_gone(feed.lane.name)]
        rows = [[(feed, item) for item in self._choose(feed, regrouped)] for feed in open_feeds]
        chosen = [pair for turn in zip_longest(*rows) for pair in turn if pair is not None]
        if not chosen:
            return
        if self._live is None:
            self._live = self.dispatcher()
            self.clock.start()
            if is_to_stop():
                return
        with self.ledger.transaction():
            submitted = [(feed, self.ledger.submit(item)) for feed, item in chosen]
        for feed, item in submitted:
            self._submit(self._live, feed, item)

    def _choose(self, feed: _LaneFeed, regrouped: Callable[[str, int], None]) -> list[Item]:
        """Items for the lane's free places; a lane that is still half full is left alone, to ask in batches."""
        lane, now_s = feed.lane, self.clock()
        by_itself = lane.target_s is not None
        capacity = min(lane.capacity, QUEUED) if by_itself else lane.capacity
        room = capacity - feed.queued
        half_full = room < capacity and 2 * room <= capacity and not by_itself
        if room <= 0 or half_full or feed.due_s > now_s:
            return []
        if by_itself:  # the next items, at most so many, are made as large as the lane's jobs have shown to be right
            with self.ledger.transaction():
                more = self.ledger.regroup(lane.name, now_s, room, self.pace.fits(lane))
            regrouped(lane.name, more)
        items = self.ledger.next_waiting(lane.name, now_s, room)
        chosen = feed.rate.allowed(items, now_s)
        if len(items) < room and len(chosen) == len(items):
            due_s = self.ledger.next_retry_s(lane.name, now_s)
            feed.nothing_until_s = math.inf if due_s is None else due_s
        return chosen

    def _submit(self, live: Dispatcher, feed: _LaneFeed, item: Item) -> None:
        flight = self._flights[item.seq] = Flight(item, feed)
        feed.queued += 1
        try:
            flight.future = self._handle(live, feed).submit(self.attempts.at(item))
        except Exception as error:
            if verdict(error) is not Verdict.SESSION_LOST:
                raise
            # Before the end of any attempt told us. To be heard as such an end, it hands back what else is under way.
            flight.future.set_exception(error)
        flight.future.add_done_callback(ended(self.attempts.post, item.seq, self.clock))

    def _handle(self, live: Dispatcher, feed: _LaneFeed) -> DispatcherLane:
        if feed.handle is None:
            lane = feed.lane
            feed.handle = live.lane(
                lane.name,
                lane.priority,
                lane.capacity,
                max_in_flight=lane.max_in_flight,
                weight=lane.weight,
                pool=lane.pool,
                timeout=lane.timeout_s,
            )
        return feed.handle

    def started(self, seq: int, at_s: float) -> str:
        """The item's thread has begun; its lane."""
        flight = self._flights[seq]
        flight.started_s = at_s
        flight.feed.queued -= 1
        return flight.item.lane

    def committing(self, seq: int) -> str:
        """The item's job is over, and its rows wait for a commit; its lane."""
        flight = self._flights[seq]
        flight.is_committing = True
        return flight.item.lane

    def ended(self, seq: int) -> Flight:
        """The item's attempt has ended: what is known of it."""
        flight = self._flights.pop(seq)
        if flight.started_s is None:
            flight.feed.queued -= 1
        return flight

    def clear(self) -> None:
        """Take back what the lanes hold and has not started."""
        for feed in self._feeds.values():
            if feed.handle is not None:
                feed.handle.clear()

    def cancel_running(self) -> None:
        if self._live is not None:
            self._live.cancel_running()

    def count_running(self) -> int:
        """How many attempts have not ended, those included whose end is not heard yet."""
        return sum(not flight.future.done() for flight in self._flights.values())

    def check_invariants(self, running: int) -> None:
        """Raise AssertionError unless the counters, and those of the tally, agree with the items in flight."""
        for feed in self._feeds.values():
            unheard = sum(f.feed is feed and f.started_s is None for f in self._flights.values())
            assert feed.queued == unheard <= feed.lane.capacity, (feed.lane.name, feed.queued, unheard)
        assert running == sum(f.started_s is not None and not f.is_committing for f in self._flights.values())
