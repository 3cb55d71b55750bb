"""A future whose `cancel` reaches the Spark job that is running.

Promise     `cancel` on a running job asks Spark at once and again every 0.2 s until the function has left, because a
            cancel that finds no active Spark job is forgotten by Spark. If the function returns first, its result
            stands. Otherwise the future ends cancelled, and `wait`, `as_completed` and `await` see it like any other.
State       `_lock` guards `_phase`, `_asked` and `_asker`:

            phase      on begin()            on cancel()                     on end
            WAITING    RUNNING               CANCELLED                       -
            RUNNING    -                     RUNNING, asked: Spark is told   ENDED or CANCELLED
            CANCELLED  stays; is not run     stays, True                     -
            ENDED      -                     stays, False                    -

            The base class knows RUNNING -> CANCELLED as little as its users do, so for it the future is pending
            until the end, and `running` answers from the phase.
Lock order  `_lock` alone; nothing is called under it.
Waiting     The asker waits for `_left`, at most 0.2 s at a time; the function's end sets it. The job's thread waits for
            the asker to end, which takes one call of Spark's at most, so that no thread outlives the job.
Membership  Whoever makes `_asked` true starts the asker, after the lock; no second one is started.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from ..core import LaneFuture

T = TypeVar("T")

ASK_AGAIN = 0.2  # seconds; Spark forgets a cancel that finds no active job, and asking costs it about 0.1 ms

LOGGER = logging.getLogger("multiqueue.spark")


class Phase(enum.Enum):
    """Where the job is."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    CANCELLED = enum.auto()
    ENDED = enum.auto()


class SparkFuture(LaneFuture[T]):
    """The future of a Spark job."""

    def __init__(self, tag: str, cancel_job: Callable[[str], None]) -> None:
        super().__init__()
        self.tag = tag
        self._cancel_job = cancel_job
        self._lock = threading.RLock()  # a signal handler may cancel what the thread it interrupts is cancelling
        self._phase = Phase.WAITING
        # Invariant: _asked implies _phase is not WAITING; set once.
        self._asked = False
        self._asker: threading.Thread | None = None
        self._left = threading.Event()
        self._asker_done = threading.Event()

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
            ask = phase is Phase.RUNNING and not self._asked
            if ask:
                self._asked = True
        if ask:
            self._start_asking()
        if phase is Phase.WAITING:
            super(LaneFuture, self).cancel()  # a worker has it and will tell the waiters
        return phase is not Phase.ENDED

    def running(self) -> bool:
        """Whether the function is being called now."""
        return self._phase is Phase.RUNNING

    @property
    def asked(self) -> bool:
        """Whether a running job was asked to end."""
        return self._asked

    # For the thread that runs the job

    def begin(self) -> bool:
        """Whether the function is to be called: not when the future was cancelled before."""
        with self._lock:
            if self._phase is Phase.WAITING:
                self._phase = Phase.RUNNING
                return True
        self._end_cancelled()
        return False

    def leave(self, cancelled: bool) -> None:
        """The function has left. When this returns, nobody asks Spark for this job any more."""
        with self._lock:
            self._phase = Phase.CANCELLED if cancelled else Phase.ENDED
            asked = self._asked
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
            while not self._left.is_set():
                self._cancel_job(self.tag)
                self._left.wait(ASK_AGAIN)
        except Exception:  # Spark is gone, and the job with it
            if not self._left.is_set():
                LOGGER.warning("Spark could not be asked to cancel the job with tag %s", self.tag, exc_info=True)
        finally:
            self._asker_done.set()
