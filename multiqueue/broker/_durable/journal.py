"""A virtual host's side of its store: handing in, being told, waiting, and what is left of a failure.

Promise     What follows a commit runs on the store's thread, in the order in which things were handed in. Nothing of
            it that fails stops what comes next.
State       `_lock`, a leaf, guards what a full store still owes, and that a failure is told once.
Failure     `StoreFull` refuses one submission. What has no caller to try again, a dead letter or an expiry, is kept and
            handed in again by `housekeeping`. `StoreFailed` is remembered: the virtual host refuses everything then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from multiqueue.store import Commit, Delete, DropQueue, MessageStore, Operation, StoreClosed, StoreError, StoreFailed

from .._base.ports import AT_ONCE, Kept
from .._base.waits import follows_commit, here
from .accounting import Accounting

if TYPE_CHECKING:
    from .._paging.memory import MemoryManager

_log = logging.getLogger("multiqueue.broker")


class Owed(Protocol):
    """What a full store refused, and must have when it has room."""

    def submit_again(self) -> None: ...


class Journal:
    """A virtual host's side of its store. Any thread may call any method."""

    def __init__(
        self,
        store: MessageStore,
        memory: MemoryManager,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store  # to read from; what changes it is handed in here
        self._accounting = Accounting(store, memory)
        self.clock = clock
        self.wall_clock = wall_clock
        self.on_failed: Callable[[], object] = lambda: None  # called once, on the thread that notices
        self.failure: StoreFailed | None = None  # set once
        self._is_closed = False
        self._lock = threading.Lock()
        self._owed: list[Owed] = []  # in the order in which they were refused
        self._ask: Callable[[Kept, float], object] | None = None

    @property
    def may_wait(self) -> bool:
        """False on the store's thread: the commit that it would wait for is its own to make."""
        return not follows_commit()

    @property
    def is_at_end(self) -> bool:
        """True when the store failed or was closed."""
        return self._is_closed or self.failure is not None

    def check(self) -> None:
        """Return if the store has not failed, else raise StoreFailed."""
        if self.failure is not None:
            raise StoreFailed(*self.failure.args) from self.failure

    def submit(
        self,
        operations: Sequence[Operation],
        committed: Callable[[], object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
    ) -> Commit:
        """As `MessageStore.submit`, with callbacks that know where they run."""

        def told(error: BaseException) -> None:
            self.note(error)
            if failed is not None:
                follow(partial(failed, error))

        return self.hand_in(operations, None if committed is None else partial(follow, committed), told)

    def hand_in(
        self,
        operations: Sequence[Operation],
        committed: Callable[[], object] | None,
        failed: Callable[[BaseException], object],
        *,
        lingers: bool = False,
    ) -> Commit:
        """`submit` for callbacks that say themselves where they run, and `note` what failed."""
        try:
            return self._accounting.submit(operations, committed, failed, lingers=lingers)
        except (StoreFailed, StoreClosed) as end:
            self.note(end)
            raise

    def hand_in_run(
        self, parts: Sequence[Sequence[Operation]], told: Callable[[Mapping[int, StoreError]], object]
    ) -> Commit:
        """As `MessageStore.submit_run`, for who says himself where he runs and notes what failed."""
        try:
            return self._accounting.submit_run(parts, told)
        except (StoreFailed, StoreClosed) as end:
            self.note(end)
            raise

    def delete(self, numbers: Sequence[int]) -> Commit | None:
        """Have messages deleted by one of the next commits, which is returned; does not wait.

        A store that has failed or was closed keeps them: they are delivered again when it is opened, flagged.
        """
        try:
            return self.hand_in([Delete(numbers)], None, self.note, lingers=True)
        except (StoreFailed, StoreClosed):
            return None

    def drop_queue(self, number: int) -> None:
        """Have every message of a queue deleted by one of the next commits. As `delete`."""
        try:
            self.hand_in([DropQueue(number)], None, self.note)
        except (StoreFailed, StoreClosed):
            pass

    def wait_for_commits(self, timeout: float | None = None) -> bool:
        """Block until everything that was handed in before is committed; False when `timeout` seconds passed first.

        Raises:
            StoreFailed, StoreClosed: the store came to its end first.
            RuntimeError: this is the store's own thread.
        """
        if not self.may_wait:
            raise RuntimeError(
                "a callback that follows a commit runs on the store's thread, and cannot wait for commits"
            )
        return self.submit(()).wait(timeout)

    def wall_time(self, when: float) -> float:
        """A moment of the queues' clock in seconds since 1970."""
        return self.wall_clock() + (when - self.clock())

    def queue_time(self, when: float) -> float:
        """A moment in seconds since 1970 on the queues' clock."""
        return self.clock() + (when - self.wall_clock())

    def owe(self, submission: Owed) -> None:
        """Keep what a full store refused, for another try."""
        with self._lock:
            self._owed.append(submission)
        ask = self._ask
        if ask is not None:
            ask(self, AT_ONCE)

    def attend(self, ask: Callable[[Kept, float], object] | None) -> None:
        """For `Housekeeping`: from now on, `ask(journal, when)` has `housekeeping` called."""
        self._ask = ask

    def housekeeping(self) -> None:
        """Hand in again what a full store refused. What it refuses once more asks once more."""
        with self._lock:
            owed, self._owed = self._owed, []
        for submission in owed:
            submission.submit_again()

    is_deleted = False  # for `Housekeeping`, which forgets it with its thread

    def note(self, error: BaseException) -> None:
        """Remember the end of the store, and have it told once."""
        if isinstance(error, StoreClosed):
            self._is_closed = True
        if not isinstance(error, StoreFailed):
            return
        with self._lock:
            is_first = self.failure is None
            self.failure = self.failure or error
        if is_first:
            _log.error("the store failed; close its virtual host and open it again", exc_info=error)
            follow(self.on_failed)


def follow(action: Callable[[], object]) -> None:
    """Run what follows a commit, as the store's thread does: nothing in it may wait for another one."""
    here.follows_commit += 1
    try:
        guarded(action)
    finally:
        here.follows_commit -= 1


def guarded(action: Callable[[], object]) -> None:
    """Nothing may escape: others wait for their turn."""
    try:
        action()
    except Exception as error:  # noqa: BLE001  # the next action must run as well
        _log.error("what follows a commit failed", exc_info=error)
