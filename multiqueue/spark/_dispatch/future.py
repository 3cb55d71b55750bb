"""A future whose `cancel` reaches the Spark job that is running.

Promise     `cancel` on a running job asks Spark at once and again every 0.2 s until the function has left, because a
            cancel that finds no active Spark job is forgotten by Spark. If the function returns first, its result
            stands. Otherwise the future ends cancelled, and `wait`, `as_completed` and `await` see it like any other.
            A timeout asks in the same way; a cancel that comes after it counts more.
State       `_lock` guards `_progress` and `_returned`, and `_phase`, `_ask` and `_asker`:

            phase      begin()           cancel()                  time_out()               expire()  the end
            WAITING    RUNNING           CANCELLED                 -                        ENDED     -
            RUNNING    -                 RUNNING, Spark is told    RUNNING, Spark is told   -         ENDED, CANCELLED
            CANCELLED  stays, not run    stays, True               -                        -         -
            ENDED      -                 stays, False              -                        -         -

            The base class knows RUNNING -> CANCELLED as little as its users do, so for it the future is pending
            until the end, and `running` answers from the phase.
Lock order  `_lock` alone; nothing is called under it.
Waiting     The asker waits for `_left`, at most 0.2 s at a time; the function's end sets it. The job's thread waits for
            the asker to end, which takes one call of Spark's at most, so that no thread outlives the job.
            A job between two attempts waits for `_woken`, which asking sets.
Membership  The thread that takes `_ask` away from NOT starts the asker, after the lock; no second one is started.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import wait
from html import escape
from time import monotonic
from typing import TypeVar

from ..._locks import RLock
from ...core import LaneFuture
from .._backend.errors import SparkDeadlineMissed, SparkSessionStopped
from .._backend.progress import NOTHING, Progress

T = TypeVar("T")

ASK_AGAIN = 0.2  # seconds; Spark forgets a cancel that finds no active job, and asking costs it about 0.1 ms

LOGGER = logging.getLogger("multiqueue.spark")


class Phase(enum.Enum):
    """Where the job is."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    CANCELLED = enum.auto()
    ENDED = enum.auto()


class Ask(enum.Enum):
    """Why Spark is being asked to end the job, if it is."""

    NOT = enum.auto()
    TIMEOUT = enum.auto()
    CANCEL = enum.auto()


class SparkFuture(LaneFuture[T]):
    """The future of a Spark job. `tag` is the tag (and in a classic session the group) of its Spark jobs."""

    def __init__(
        self, tag: str, cancel_job: Callable[[str], None], ask_progress: Callable[[str], Progress | None]
    ) -> None:
        super().__init__()
        self.tag = tag
        self.submitted_at: float = monotonic()
        self.attempt_times: list[float] = []  # of `time.monotonic`, when each began; the job's thread alone writes
        self._cancel_job = cancel_job
        self._ask_progress = ask_progress
        self._progress = NOTHING  # the last that was told. Its share never falls
        self._returned = False
        self._lock = RLock()  # a signal handler may cancel what the thread it interrupts is cancelling
        self._phase = Phase.WAITING
        # Invariant: `_ask` is not NOT only if `_phase` is not WAITING, and goes NOT -> TIMEOUT -> CANCEL only.
        self._ask = Ask.NOT
        self._asker: threading.Thread | None = None
        self._woken = threading.Event()  # set once `_ask` is not NOT
        self._left = threading.Event()
        self._asker_done = threading.Event()

    @property
    def attempts(self) -> int:
        """How many have begun up to now."""
        return len(self.attempt_times)

    def cancel(self) -> bool:
        """Cancel the job: at once while it waits, by asking Spark while it runs.

        Never blocks on Spark. True means that the cancellation has been asked for; the future ends when the function
        has left, cancelled unless the function returned first. Not stopped can be a function that swallows every
        exception or that computes in Python without calling Spark.

        Returns False when the job is done.
        """
        if self.cancel_waiting():
            return True
        with self._lock:
            phase = self._phase
            if phase is Phase.WAITING:
                self._phase = Phase.CANCELLED
        if phase is Phase.RUNNING:
            self._ask_to_end(Ask.CANCEL)
        if phase is Phase.WAITING:
            super(LaneFuture, self).cancel()  # a worker has it and will tell the waiters
        return phase is not Phase.ENDED

    def running(self) -> bool:
        """Whether the function is being called now."""
        return self._phase is Phase.RUNNING

    def progress(self) -> Progress:
        """How far its Spark jobs have come, asked of Spark now; the last answer if Spark cannot be asked.

        In a classic session this is some calls of the JVM, about 2 ms for each stage, and Spark forgets jobs that
        ended long ago (`spark.ui.retainedJobs`). Jobs count that have the item's tag or its group, so a function may
        set another group or more tags; not those of threads that it starts without either (`InheritableThread` has
        them). On Spark Connect it is what the server has told by itself.
        """
        return self._note(self._ask_progress(self.tag))

    def _note(self, told: Progress | None) -> Progress:
        """Keep what Spark has told, if anything."""
        with self._lock:
            last = self._progress
            told = last if told is None else told
            self._progress = told.returned() if self._returned else told.going_on(last.share)
            return self._progress

    def _repr_html_(self) -> str:
        """For notebooks: its state, and a bar for the progress that Spark has told last."""
        share = self._progress.share
        state = {Phase.ENDED: "done"}.get(self._phase, self._phase.name.lower())
        if self.done() and not self.cancelled() and self.exception() is not None:
            state = f"failed: {self.exception()!r}"
        bar = f'<progress value="{share:.3f}" aria-label="progress"></progress> {share:.0%}'
        attempts = f", attempt {self.attempts}" if self.attempts > 1 else ""
        return f"<div>{escape(state[:500])}{attempts} {bar}</div>"

    def watch(self, every: float = 0.5) -> Generator[Progress, None, None]:
        """Its progress whenever that is seen to have changed, asked every so many seconds, up to that at its end.

        Asks in the thread that iterates. Ends when the future has ended, however that was; look at its result then.
        """
        seen = None
        while not wait([self], every).done:
            progress = self.progress()
            if progress != seen:
                yield progress
                seen = progress
        last = self.progress()
        if last != seen:
            yield last

    # For the dispatcher's alarms

    def time_out(self) -> None:
        """The job has run too long: ask Spark as `cancel` does. No effect unless it is running."""
        self._ask_to_end(Ask.TIMEOUT)

    def expire(self, message: str) -> None:
        """The job's deadline is over: if it still waits in its lane, it ends with `SparkDeadlineMissed`."""
        job = self.job
        if job is None or not job.withdraw():
            return  # a worker has it, or it has ended
        self.leave_lane()
        with self._lock:
            cancelled = self._phase is Phase.CANCELLED
            if not cancelled:
                self._phase = Phase.ENDED
        if cancelled:
            self._end_cancelled()
        else:
            self.set_exception(SparkDeadlineMissed(message))

    # For the thread that runs the job

    def begin(self) -> bool:
        """Whether the function is to be called: not when the future was cancelled before."""
        with self._lock:
            if self._phase is Phase.WAITING:
                self._phase = Phase.RUNNING
                return True
        self._end_cancelled()
        return False

    @property
    def ask(self) -> Ask:
        """Why Spark is being asked to end the job, if it is."""
        return self._ask

    def pause(self, seconds: float) -> bool:
        """Wait between two attempts. False as soon as the job is asked to end."""
        return not self._woken.wait(seconds)

    def leave(self, cancelled: bool, progress: Progress | None = None, returned: bool = False) -> None:
        """The function has left. When this returns, no thread asks Spark for this job any more."""
        with self._lock:
            self._returned = returned
            self._note(progress)
            self._phase = Phase.CANCELLED if cancelled else Phase.ENDED
            asked = self._ask is not Ask.NOT
        self._left.set()
        if asked:
            self._asker_done.wait()  # first, because only a started thread can be joined
            if self._asker is not None:
                self._asker.join()
        if cancelled:
            self._end_cancelled()

    def _end_cancelled(self) -> None:
        """End as cancelled and tell the waiters. By the job's thread alone: telling them twice is an error."""
        super(LaneFuture, self).cancel()
        self.set_running_or_notify_cancel()

    # For the asker

    def _ask_to_end(self, why: Ask) -> None:
        with self._lock:
            if self._phase is not Phase.RUNNING or self._ask is Ask.CANCEL:
                return
            first = self._ask is Ask.NOT
            self._ask = why
        self._woken.set()
        if first:
            self._start_asking()

    def _start_asking(self) -> None:
        self._asker = threading.Thread(target=self._keep_asking, name=f"cancel-{self.tag}", daemon=False)
        try:
            self._asker.start()
        except BaseException:
            self._asker = None
            self._asker_done.set()
            raise

    def _keep_asking(self) -> None:
        try:
            while True:
                if self._left.is_set():
                    break
                self._cancel_job(self.tag)
                self._left.wait(ASK_AGAIN)
        except SparkSessionStopped as error:
            if not self._left.is_set():
                LOGGER.warning("the job with tag %s cannot be cancelled, and its function goes on: %s", self.tag, error)
        except Exception:  # Spark is gone, and the job with it
            if not self._left.is_set():
                LOGGER.warning("Spark could not be asked to cancel the job with tag %s", self.tag, exc_info=True)
        finally:
            self._asker_done.set()
