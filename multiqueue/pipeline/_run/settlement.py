"""The end of an attempt, settled for its item: done, later again, in halves, set aside, or handed back.

Promise     An item of several files is never set aside: when it has failed for the last time its files wait again as
            two items, so in the end each bad file is set aside alone and the good ones beside it are done. One that is
            done anew is set aside as a whole: its files were good, and its rows stay.
Order       What follows outside the ledger is done before the ledger's transaction is committed, and doing it
            twice is doing it once: a crash in between leaves the item submitted, to run again.
Threads     The runner's, inside a transaction of the ledger.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from .._base.items import Item
from .._base.lifecycle import ItemState
from .._state.ledger import Ledger
from .._write.output import Output
from .dead_letters import DeadLetters
from .progress import AttemptEnded
from .retry import Backoff, Verdict, describe, verdict


@dataclass(slots=True)
class Settlement:
    """Records the ends of attempts."""

    ledger: Ledger
    output: Output
    backoff: Backoff
    dead_letters: DeadLetters
    lost: BaseException | None = None
    """How the Spark session or the output was lost, if one was: from then on failures are no item's fault."""

    def settle(self, item: Item, future: Future[Any], started_s: float, ended_s: float) -> AttemptEnded:
        """Record what the attempt came to."""
        took_s = ended_s - started_s
        error = None if future.cancelled() else future.exception()
        if error is not None and verdict(error) in (Verdict.SESSION_LOST, Verdict.OUTPUT_LOST):
            self.lost = self.lost or error
        if future.cancelled() or (error is not None and self.lost is not None):
            self.ledger.hand_back(item)
            return AttemptEnded(item, ItemState.WAITING, took_s)
        if error is None:
            met = future.result()
            self.ledger.succeed(item, met.files, started_s, ended_s)
            if item.attempt > 1:
                self.dead_letters.remove(item)
            return AttemptEnded(item, ItemState.DONE, took_s, corrupt=met.corrupt)
        return self._failed(item, error, started_s, ended_s)

    def _failed(self, item: Item, error: BaseException, started_s: float, ended_s: float) -> AttemptEnded:
        took_s, text = ended_s - started_s, describe(error)
        for_good = verdict(error) is Verdict.FOR_GOOD
        pause_s = None if for_good else self.backoff.pause_s(item.tries + 1)
        if pause_s is not None:
            self.ledger.postpone(item, text, ended_s + pause_s)
            return AttemptEnded(item, ItemState.WAITING, took_s, text, retry_in_s=pause_s)
        if len(item.files) > 1 and not item.redone:
            self.output.retract(item)
            parts = self.ledger.split(item, self.backoff.attempts - 1, ended_s)
            return AttemptEnded(item, ItemState.WAITING, took_s, text, split_into=parts)
        self.dead_letters.write(item, error)
        self.ledger.give_up(item, text, started_s, ended_s)
        return AttemptEnded(item, ItemState.FAILED, took_s, text)
