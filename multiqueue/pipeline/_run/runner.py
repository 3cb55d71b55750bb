"""The run: files become items, items are fed to lanes, ends are recorded, until nothing is left.

Promise     Every item that the scan finds ends done or failed, or still waits in the ledger when the run is
            stopped. An item is submitted at most once at a time. What is in memory is bounded by the lanes'
            capacities and `max_running`, for any number of items.
State       `_flights`, the items that are submitted and have not ended; `_feeds`, how many of them each lane
            holds; the tally. The ledger is the only thing that lasts.
Threads     One: the caller's. Job threads, the dispatcher and the signal handler speak to it through the mailbox
            alone, so there is no lock here and no transaction waits for a job.
Waiting     For a message, at most `_TICK_S` or until the next retry or scan is due; not at all while files are read.
            Submitting never blocks: a lane is never given more than it has room for, counted from what was
            submitted and what has started, and a start that is not yet heard of only makes the count higher.
Stopping    The first request clears the lanes, and what runs goes on to its end; the second cancels what runs, and
            so does the end of the time that the first one leaves. What was cancelled is handed back. A lost Spark
            session stops the run like a first request.
Following   The run has no end of its own, and lanes may come. Otherwise it is the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from .._base.errors import SessionLost, StateMismatch
from .._base.items import Item, Lane
from .._base.lifecycle import ItemState
from .._base.pace import QUEUED, Measured, Pace
from .._base.rate import Rate
from .._columns.known import Learned
from .._input.queues import Queues
from .._input.scanner import Scanner
from .._state.ledger import Ledger, Scanned
from .attempt import Attempts, Dispatcher, DispatcherLane
from .clock import WorkClock
from .disposal import Disposal
from .mailbox import Committing, Ended, Left, Mailbox, Message, Numbered, Started, StopRequested, ended
from .progress import AttemptEnded, Reporter
from .retry import Verdict, verdict
from .settlement import Settlement
from .steps import Steps
from .tally import Snapshot, Tally

# How often progress is shown when nothing happens.
_TICK_S = 0.25
# Shorter waits are rounding errors of two clocks.
_LEAST_S = 0.001


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


@dataclass(slots=True)
class _Flight:
    """An item that is submitted and has not ended."""

    item: Item
    feed: _LaneFeed
    future: Future[Any] = field(default_factory=Future)
    started_s: float | None = None
    is_committing: bool = False


@dataclass(slots=True)
class Runner:
    """One run of a pipeline. `dispatcher` is called when the first item is to be submitted, if ever."""

    lanes: Sequence[Lane]
    """Those that have files, and one for each step."""
    ledger: Ledger
    scanner: Scanner
    dispatcher: Callable[[], Dispatcher]
    attempts: Attempts
    settlement: Settlement
    steps: Steps
    queues: Queues
    disposal: Disposal
    mailbox: Mailbox
    clock: WorkClock
    reporter: Reporter
    on_new_lane: Callable[[Lane], None] = lambda lane: None
    """Told, while following, of a lane that was not there before, ahead of its items."""
    pace: Pace = field(default_factory=Pace)
    monotonic: Callable[[], float] = time.monotonic
    _tally: Tally = field(init=False)
    _feeds: dict[str, _LaneFeed] = field(init=False)
    _flights: dict[int, _Flight] = field(init=False, default_factory=dict)
    _live: Dispatcher | None = field(init=False, default=None)
    _stop_requests: int = field(init=False, default=0)
    _cancel_at_s: float = field(init=False, default=math.inf)
    _corrupt: int = field(init=False, default=0)
    _known_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._tally = Tally.of([lane.name for lane in self.lanes], self.ledger.counts())
        self._feeds = {lane.name: _LaneFeed(lane) for lane in self.lanes}
        self._known_s = self.clock()

    def run(self) -> Snapshot:
        """Work until nothing is left or the run is stopped; how far it came.

        Raises:
            SessionLost: the Spark session ended; what ran is handed back.
            StateMismatch: another process puts out these items; what ran is handed back.
        """
        self.reporter.begin(self._snapshot())
        try:
            while True:
                if self._is_over():
                    break
                self._settle(self.mailbox.take_all(self._patience_s()))
                if self.monotonic() >= self._cancel_at_s:
                    self._stop(math.inf)
                if not self._tally.stopping:
                    self._take_in()
                    self._feed()
                    self.disposal.step()
                self.reporter.update(self._snapshot())
        finally:
            self.reporter.end(self._snapshot())
        lost = self.settlement.lost
        if isinstance(lost, StateMismatch):
            raise lost
        if lost is not None:
            raise SessionLost("the Spark session ended during the run; run the same command to go on") from lost
        return self._snapshot()

    @property
    def corrupt_records(self) -> int:
        """How many records this run has set aside."""
        return self._corrupt

    @property
    def was_interrupted(self) -> bool:
        """Whether it was stopped before its end. One that follows has no other end than the first request."""
        return self._stop_requests > (1 if self.scanner.is_following else 0)

    def check_invariants(self) -> None:
        """Raise AssertionError unless the counters agree with what is in flight."""
        for feed in self._feeds.values():
            unheard = sum(f.feed is feed and f.started_s is None for f in self._flights.values())
            assert feed.queued == unheard <= feed.lane.capacity, (feed.lane.name, feed.queued, unheard)
        running = sum(f.started_s is not None and not f.is_committing for f in self._flights.values())
        assert self._snapshot().total.running == running

    # Is there more to do, and when

    def _is_over(self) -> bool:
        if self._flights or self.disposal.is_busy:
            return False
        if self._tally.stopping:
            return True
        is_fed = self.scanner.finished and self.queues.finished and self._waiting() == 0
        return is_fed and self.disposal.finished

    def _waiting(self) -> int:
        """How many items wait that can be run: those of a lane whose input is gone would only fail."""
        return sum(one.waiting for name, one in self._tally.lanes.items() if not self.scanner.is_gone(name))

    def _patience_s(self) -> float:
        now_s = self.clock()
        dues = (max(feed.nothing_until_s, feed.rate.free_s) for feed in self._feeds.values())
        waits = [max(due_s - now_s, _LEAST_S) for due_s in dues if due_s > now_s]
        if not self._tally.stopping:
            parts = (self.scanner, self.queues, self.disposal)
            waits += [wait for part in parts if (wait := part.patience_s()) is not None]
        return min([_TICK_S, *waits])

    # From files to lanes

    def _take_in(self) -> None:
        # The first scan finds what was there when the run began.
        known_s = self.clock() if self.scanner.is_following else self._known_s
        for lane in self.scanner.begin_if_due():
            self._add_lane(lane)
        self.scanner.step(known_s, self._found_in_lane)
        self.queues.step(self.clock(), self._found_in_lane)
        self._tally.scanning = self._tally.scanning and not self.scanner.stands_still
        self.steps.incomplete = {one.name for one in self.scanner.lost}
        if self.scanner.stands_still and self.queues.stands_still:
            self.steps.take_in(self.clock(), self._found)

    def _found_in_lane(self, lane: str, scanned: Scanned) -> None:
        self._found(lane, scanned)
        if scanned.added or scanned.reopened:
            self.steps.touch(lane)

    def _found(self, lane: str, scanned: Scanned) -> None:
        self._tally.found(lane, scanned)
        if scanned.added or scanned.reopened:
            self._ask_again(lane)

    def _add_lane(self, lane: Lane) -> None:
        self.disposal.add(lane)
        self.on_new_lane(lane)
        self._tally.add_lane(lane.name)
        self._feeds[lane.name] = _LaneFeed(lane)
        self.steps.add_lane(lane)

    def _feed(self) -> None:
        """Submit what the lanes have room for, in turns: recorded in one transaction, then handed over."""
        if not self.scanner.has_seen_every_lane:
            return
        rows = [[(feed, item) for item in self._choose(feed)] for feed in self._feeds.values()]
        chosen = [pair for turn in zip_longest(*rows) for pair in turn if pair is not None]
        if not chosen:
            return
        if self._live is None:
            self._live = self.dispatcher()
            self.clock.start()
        with self.ledger.transaction():
            submitted = [(feed, self.ledger.submit(item)) for feed, item in chosen]
        for feed, item in submitted:
            self._submit(self._live, feed, item)

    def _choose(self, feed: _LaneFeed) -> list[Item]:
        """Items for the lane's free places; a lane that is still half full is left alone, to ask in batches."""
        by_itself = feed.lane.target_s is not None
        capacity = min(feed.lane.capacity, QUEUED) if by_itself else feed.lane.capacity
        room = capacity - feed.queued
        now_s = self.clock()
        half_full = room < capacity and 2 * room <= capacity and not by_itself
        is_early = max(feed.nothing_until_s, feed.rate.free_s) > now_s
        if room <= 0 or half_full or is_early or self.scanner.is_gone(feed.lane.name):
            return []
        if by_itself:
            self._regroup(feed.lane, now_s, room)
        items = self.ledger.next_waiting(feed.lane.name, now_s, room)
        chosen = feed.rate.allowed(items, now_s)
        if len(items) < room and len(chosen) == len(items):
            due_s = self.ledger.next_retry_s(feed.lane.name, now_s)
            feed.nothing_until_s = math.inf if due_s is None else due_s
        return chosen

    def _regroup(self, lane: Lane, now_s: float, room: int) -> None:
        """Make the lane's next items, at most so many, as large as its jobs have shown to be right."""
        with self.ledger.transaction():
            more = self.ledger.regroup(lane.name, now_s, room, self.pace.fits(lane))
        self._tally.regrouped(lane.name, more)

    def _submit(self, live: Dispatcher, feed: _LaneFeed, item: Item) -> None:
        flight = self._flights[item.seq] = _Flight(item, feed)
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

    def _ask_again(self, lane: str) -> None:
        """Something came in for the lane: ask the ledger again."""
        self._feeds[lane].nothing_until_s = 0.0

    # What became of them

    def _settle(self, messages: Sequence[Message]) -> None:
        """Record what the messages say in one transaction, then tell the reporter."""
        outcomes: list[AttemptEnded] = []
        learned = [message for message in messages if isinstance(message, Learned)]
        numbered = [message for message in messages if isinstance(message, Numbered)]
        if messages:
            with self.ledger.transaction():
                for message in messages:
                    if isinstance(message, Started):
                        self._start(message)
                    elif isinstance(message, Committing):
                        self._commit(message)
                    elif isinstance(message, Ended):
                        outcomes.append(self._end(message))
                    elif isinstance(message, Left):
                        self.disposal.record(message)
                for one in learned:
                    self.ledger.record_schema(one.lane, one.schema)
                for commit in numbered:
                    self.ledger.number_commit(commit.seqs, commit.number)
                self.ledger.record_seconds_at_work(self.clock())
        for recorded in [*(one.recorded for one in learned), *(one.recorded for one in numbered)]:
            recorded.set_result(None)
        for outcome in outcomes:
            self.queues.settled(outcome.item, outcome.state)
            self.reporter.attempt_ended(outcome)
        for message in messages:
            if isinstance(message, StopRequested):
                self._stop(min(self._cancel_at_s, message.cancel_at_s))
        if self.settlement.lost is not None and not self._tally.stopping:
            self._clear_lanes()

    def _start(self, message: Started) -> None:
        flight = self._flights[message.seq]
        flight.started_s = message.at_s
        flight.feed.queued -= 1
        self._tally.started(flight.item.lane)

    def _commit(self, message: Committing) -> None:
        flight = self._flights[message.seq]
        flight.is_committing = True
        self._tally.committing(flight.item.lane)

    def _end(self, message: Ended) -> AttemptEnded:
        flight = self._flights.pop(message.seq)
        if flight.started_s is None:
            flight.feed.queued -= 1
        item = flight.item
        started_s = message.at_s if flight.started_s is None else flight.started_s
        outcome = self.settlement.settle(item, message.future, started_s, message.at_s)
        if outcome.state is ItemState.DONE and outcome.took_s > 0:
            self.pace.note(Measured(item.lane, 1, len(item.files), item.size_bytes, outcome.took_s))
        if outcome.state is ItemState.DONE:
            self.disposal.touch(item.lane)
        self._corrupt += outcome.corrupt
        self._tally.ended(
            item.lane,
            outcome.state,
            message.at_s,
            was_running=flight.started_s is not None,
            was_committing=flight.is_committing,
            split_into=outcome.split_into,
        )
        self.steps.touch(item.lane, item.part)
        if outcome.state is ItemState.WAITING:
            self._ask_again(item.lane)
        return outcome

    # Stopping

    def _stop(self, cancel_at_s: float) -> None:
        self._stop_requests += 1
        self._cancel_at_s = cancel_at_s if self._stop_requests == 1 else math.inf
        if self._stop_requests == 1:
            self._clear_lanes()
        elif self._live is not None:
            self._live.cancel_running()
        # What the lanes held is cancelled by now; its ends are not heard yet.
        running = sum(not flight.future.done() for flight in self._flights.values())
        self.reporter.stopping(self._stop_requests, running)

    def _clear_lanes(self) -> None:
        self._tally.stopping = True
        for feed in self._feeds.values():
            if feed.handle is not None:
                feed.handle.clear()

    def _snapshot(self) -> Snapshot:
        return self._tally.snapshot(self.clock(), self.clock() - self._known_s)
