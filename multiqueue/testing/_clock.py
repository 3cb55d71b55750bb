"""A clock that the test moves, and locks whose timeouts follow it.

Promise     time passes in `advance` alone. A timed wait on a lock of this clock ends when the lock is free or
            when the clock has reached its deadline, never by real time.
State       `_now`, `_waiting` and the fields of all locks of the clock, guarded by `_changed`.
Waiting     a thread that waits for a lock waits on `_changed`; `release` and `advance` notify all, and so does a
            thread that begins to wait, for `wait_for_waiters`. One condition for all is slow and obvious.
Assumes     the code under test makes its locks while the clock is installed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from ._errors import StillBlocked
from ._patience import PATIENCE
from ._substitute import substituted


class FakeClock:
    """Monotonic seconds from `start`, moved by `advance`. Calling the clock reads it. For all threads."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._waiting = 0  # threads inside a wait for a lock of this clock, or in `sleep`
        self._changed = threading.Condition()

    def __call__(self) -> float:
        return self.monotonic()

    def monotonic(self) -> float:
        """The seconds on the clock."""
        with self._changed:
            return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock on and end the waits that are due. They are ended, not yet returned: join to see.

        Raises: ValueError if `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"a monotonic clock does not go back: {seconds!r} seconds")
        with self._changed:
            self._now += seconds
            self._changed.notify_all()

    def sleep(self, seconds: float) -> None:
        """Block until the clock has moved on by `seconds`; for code that takes its `sleep` as a parameter."""
        with self._changed:
            self._wait_until(self._now + seconds)

    @property
    def waiting(self) -> int:
        """Threads that wait for a lock of this clock or sleep by it."""
        with self._changed:
            return self._waiting

    def wait_for_waiters(self, count: int, timeout: float = PATIENCE) -> None:
        """Block until at least `count` threads wait. Raises: StillBlocked after `timeout` real seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting >= count, timeout):
                raise StillBlocked(f"{self._waiting} instead of {count} threads wait after {timeout} s")

    @contextmanager
    def installed(self, modules: Sequence[ModuleType] | None = None) -> Iterator[FakeClock]:
        """Inside the block `modules` (the core's, if None) read this clock and make locks that keep to it.

        The block has to last as long as the objects under test are used: they make locks while they wait.
        """
        with substituted(
            modules,
            lock=lambda: ClockLock(self),
            rlock=lambda: ClockRLock(self),
            monotonic=self.monotonic,
        ):
            yield self

    def _wait_until(self, deadline: float | None, lock: ClockLock | None = None) -> bool:
        """True once `lock` is free, False once the clock has reached `deadline`. Holds `_changed`."""

        def is_free() -> bool:
            return lock is not None and not lock.held

        self._waiting += 1
        self._changed.notify_all()
        try:
            self._changed.wait_for(lambda: is_free() or (deadline is not None and self._now >= deadline))
            return is_free()
        finally:
            self._waiting -= 1


class ClockLock:
    """A `threading.Lock` whose timeouts are seconds of a `FakeClock`."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._changed = clock._changed
        self.held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """True once the lock is held; False if it was not free before the clock came to the deadline."""
        with self._changed:
            return self._acquire(blocking, timeout)

    def release(self) -> None:
        with self._changed:
            if not self.held:
                raise RuntimeError("release unlocked lock")
            self.held = False
            self._changed.notify_all()

    def locked(self) -> bool:
        with self._changed:
            return self.held

    def _acquire(self, blocking: bool, timeout: float) -> bool:
        if self.held:
            deadline = None if timeout < 0 else self._clock._now + timeout
            if not blocking or not self._clock._wait_until(deadline, self):
                return False
        self.held = True
        return True

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self.held = False


class ClockRLock(ClockLock):
    """A `threading.RLock` whose timeouts are seconds of a `FakeClock`."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self._owner = 0
        self._depth = 0  # 0 if and only if not `held`

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = threading.get_ident()
        with self._changed:
            if self._owner != me:
                if not self._acquire(blocking, timeout):
                    return False
                self._owner = me
            self._depth += 1
            return True

    def release(self) -> None:
        with self._changed:
            if not self._is_owned():
                raise RuntimeError("cannot release un-acquired lock")
            self._depth -= 1
            if self._depth == 0:
                self._owner = 0
                super().release()

    def _at_fork_reinit(self) -> None:
        super()._at_fork_reinit()
        self._owner = self._depth = 0

    # What `threading.Condition` asks of its lock.

    def _is_owned(self) -> bool:
        return self._owner == threading.get_ident()

    def _release_save(self) -> int:
        with self._changed:
            depth, self._depth = self._depth, 1
            self.release()
            return depth

    def _acquire_restore(self, depth: int) -> None:
        with self._changed:
            self.acquire()
            self._depth = depth
