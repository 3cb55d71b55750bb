"""The run: files become items, items are fed to lanes, ends are recorded, until nothing is left.

Promise     Every item that the scan finds ends done or failed, or still waits in the ledger when the run is
            stopped. Its memory is bounded by the lanes' capacities and `max_running`, for any number of items.
State       The tally, and how the run was asked to stop. Its parts have their own: `Intake`, `Feeding`, `Disposal`.
            The ledger is the only thing that lasts.
Threads     One: the caller's. Job threads, the dispatcher and the signal handler speak to it through the mailbox
            alone, so there is no lock here and no transaction waits for a job.
Waiting     For a message, at most `_TICK_S` or until the next retry or scan is due; not at all while files are read.
Stopping    The first request clears the lanes, and what runs goes on to its end; the second cancels what runs, and
            so does the end of the time that the first one leaves. Cancelled items are handed back. A lost Spark
            session stops the run like a first request.
Following   The run does not end by itself, and lanes may come. Otherwise it is the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .._base.errors import SessionLost, StateMismatch
from .._base.items import Lane
from .._base.lifecycle import ItemState
from .._base.pace import Measured
from .._columns.known import Learned
from .._state.ledger import Ledger, Scanned
from .clock import WorkClock
from .disposal import Disposal
from .feeding import Feeding
from .intake import Intake
from .mailbox import Committing, Ended, Left, Mailbox, Message, Numbered, Started, StopRequested
from .progress import AttemptEnded, Reporter
from .settlement import Settlement
from .tally import Snapshot, Tally

# How often progress is shown when nothing happens.
_TICK_S = 0.25
# Shorter waits are rounding errors of two clocks.
_LEAST_S = 0.001


@dataclass(slots=True)
class Runner:
    """One run of a pipeline; `wiring.assemble` makes it."""

    ledger: Ledger
    intake: Intake
    feeding: Feeding
    settlement: Settlement
    disposal: Disposal
    mailbox: Mailbox
    clock: WorkClock
    reporter: Reporter
    on_new_lane: Callable[[Lane], None] = lambda lane: None
    """Told, while following, of a lane that was not there before, ahead of its items."""
    monotonic: Callable[[], float] = time.monotonic
    _tally: Tally = field(init=False)
    _stop_requests: int = field(init=False, default=0)
    _cancel_at_s: float = field(init=False, default=math.inf)
    _corrupt: int = field(init=False, default=0)
    _known_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._tally = Tally.of([lane.name for lane in self.feeding.lanes], self.ledger.counts())
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
        return self._stop_requests > (1 if self.intake.scanner.is_following else 0)

    def check_invariants(self) -> None:
        """Raise AssertionError unless the counters agree with the items in flight."""
        self.feeding.check_invariants(self._snapshot().total.running)

    # Is there more to do, and when

    def _is_over(self) -> bool:
        if not self.feeding.is_idle or self.disposal.is_busy:
            return False
        if self._tally.stopping:
            return True
        return self.intake.finished and self._waiting() == 0 and self.disposal.finished

    def _waiting(self) -> int:
        """How many items wait that can be run: those of a lane whose input is gone would only fail."""
        is_gone = self.intake.scanner.is_gone
        return sum(one.waiting for name, one in self._tally.lanes.items() if not is_gone(name))

    def _patience_s(self) -> float:
        now_s = self.clock()
        waits = [max(due_s - now_s, _LEAST_S) for due_s in self.feeding.dues_s() if due_s > now_s]
        if not self._tally.stopping:
            waits += [wait for part in (self.intake, self.disposal) if (wait := part.patience_s()) is not None]
        return min([_TICK_S, *waits])

    # From files to lanes

    def _take_in(self) -> None:
        # The first scan finds what was there when the run began.
        known_s = self.clock() if self.intake.scanner.is_following else self._known_s
        for lane in self.intake.new_lanes():
            self.disposal.add(lane)
            self.on_new_lane(lane)
            self._tally.add_lane(lane.name)
            self.feeding.add_lane(lane)
        self.intake.step(known_s, self.clock(), self._found)
        self._tally.scanning = self._tally.scanning and not self.intake.scanner.stands_still

    def _found(self, lane: str, scanned: Scanned) -> None:
        self._tally.found(lane, scanned)
        if scanned.has_news:
            self.feeding.ask_again(lane)

    def _feed(self) -> None:
        mailbox = self.mailbox
        if self.intake.scanner.has_seen_every_lane and not mailbox.is_to_stop:
            is_gone, regrouped = self.intake.scanner.is_gone, self._tally.regrouped
            self.feeding.step(is_gone, regrouped, lambda: mailbox.is_to_stop)

    # What became of them

    def _settle(self, messages: Sequence[Message]) -> None:
        """Record what the messages say in one transaction, then tell the reporter."""
        outcomes: list[AttemptEnded] = []
        numbers: list[str] = []
        learned = [message for message in messages if isinstance(message, Learned)]
        numbered = [message for message in messages if isinstance(message, Numbered)]
        if messages:
            with self.ledger.transaction():
                for message in messages:
                    if isinstance(message, Started):
                        self._tally.started(self.feeding.started(message.seq, message.at_s))
                    elif isinstance(message, Committing):
                        self._tally.committing(self.feeding.committing(message.seq))
                    elif isinstance(message, Ended):
                        outcomes.append(self._end(message))
                    elif isinstance(message, Left):
                        self.disposal.record(message)
                for one in learned:
                    self.ledger.record_schema(one.lane, one.schema)
                numbers = [self.ledger.number_commit(commit.seqs) for commit in numbered]
                self.ledger.record_seconds_at_work(self.clock())
        for one in learned:
            one.recorded.set_result(None)
        for commit, number in zip(numbered, numbers, strict=True):
            commit.recorded.set_result(number)
        for outcome in outcomes:
            self.intake.settled(outcome.item, outcome.state)
            self.reporter.attempt_ended(outcome)
        for message in messages:
            if isinstance(message, StopRequested):
                self._stop(min(self._cancel_at_s, message.cancel_at_s))
        if self.settlement.lost is not None and not self._tally.stopping:
            self._clear_lanes()

    def _end(self, message: Ended) -> AttemptEnded:
        flight = self.feeding.ended(message.seq)
        item = flight.item
        started_s = message.at_s if flight.started_s is None else flight.started_s
        outcome = self.settlement.settle(item, message.future, started_s, message.at_s)
        if outcome.state is ItemState.DONE:
            if outcome.took_s > 0:
                self.feeding.pace.note(Measured(item.lane, 1, len(item.files), item.size_bytes, outcome.took_s))
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
        self.intake.steps.touch(item.lane, item.part)
        if outcome.state is ItemState.WAITING:
            self.feeding.ask_again(item.lane)
        return outcome

    # Stopping

    def _stop(self, cancel_at_s: float) -> None:
        self._stop_requests += 1
        self._cancel_at_s = cancel_at_s if self._stop_requests == 1 else math.inf
        if self._stop_requests == 1:
            self._clear_lanes()
        else:
            self.feeding.cancel_running()
        # What the lanes held is cancelled by now; its ends are not heard yet.
        self.reporter.stopping(self._stop_requests, self.feeding.count_running())

    def _clear_lanes(self) -> None:
        self._tally.stopping = True
        self.feeding.clear()

    def _snapshot(self) -> Snapshot:
        return self._tally.snapshot(self.clock(), self.clock() - self._known_s)
