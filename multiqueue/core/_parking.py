"""Waiting and waking: each thread or coroutine that waits parks on a separate lock, its waiter, in a `Line` of them.

Promise     A thread that is woken knows it; if it does not use the wake-up, it passes it on.
State       A line belongs to the lock that its owner names; it is read and changed under that lock only.
Waiting     A waiter is a lock, made locked. Its thread acquires it, and so sleeps; the thread that wakes it takes it
            out of the line and releases it. A line without waiters costs nothing, so an uncontended put or take pays
            nothing for waiting.
            A wake-up is given under the owner's lock: it neither blocks nor runs code of the user. Between taking
            a thread's waiter out and releasing it there is no instruction at which an exception could strike. A
            coroutine's waiter is taken out when it has been woken: an exception in between leaves it in line, and
            the next wake-up finds it woken, and wakes the one behind it.
Assumes     CPython delivers signals, asynchronous exceptions and thread switches at a function's entry, after
            a call and at a backward jump, not between `line[0] is waiter` and `waiter.release()`.
Source      Parked locks instead of conditions: Waiter objects of `threading.Condition`, without its lost
            notification when a timeout or an exception ends the wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _sync
from ._fork import renew_after_fork

if TYPE_CHECKING:
    import asyncio

# Seconds to wait for a lock when hardly any time is left. "Nothing in time" must be the answer of a look at the queue:
# a lock that somebody holds for microseconds, or for a thread switch or two, is not an empty queue.
LEAST_WAIT = 0.02
LONGEST_WAIT = _sync.TIMEOUT_MAX  # seconds; what the platform's timed lock can count, about 292 years here


def deadline_after(timeout: float | None) -> float | None:
    """The monotonic time at which a call of `timeout` seconds ends; None means never.

    Raises:
        ValueError: `timeout` is negative or NaN.
        TypeError: it is no number.
    """
    if timeout is None:
        return None
    try:
        is_time = timeout >= 0
    except TypeError:
        raise TypeError(f"'timeout' must be a number, not {timeout!r}") from None
    if not is_time:
        raise ValueError(f"'timeout' must be a non-negative number of seconds, not {timeout!r}")
    return _sync.monotonic() + timeout


def acquire_before(lock: _sync.ReentrantLock, deadline: float | None) -> bool:
    """Acquire `lock`, waiting until `deadline` or for LEAST_WAIT, whichever ends later."""
    if deadline is None:
        return lock.acquire()
    return lock.acquire(True, max(seconds_left(deadline), LEAST_WAIT))


def seconds_left(deadline: float) -> float:
    """The time until `deadline`, as the timeout of a lock: 0 when it has passed."""
    return min(max(deadline - _sync.monotonic(), 0.0), LONGEST_WAIT)


class Line(list[Any]):
    """Those who wait for one thing, the one that came first in front. In the child after a fork it has no waiters."""

    __slots__ = ("__weakref__",)

    def __init__(self) -> None:
        renew_after_fork(self)

    def _renew_after_fork(self) -> None:
        self.clear()


def wake_one(line: Line) -> None:
    """Wake the one that waits longest, if any. The caller holds the lock of `line`."""
    while True:  # not `while line`: that tests before it jumps back, and a signal handler could wake in between
        if not line:
            return
        waiter = line[0]
        if isinstance(waiter, AsyncWaiter):  # waking it is Python code, in which an exception can strike
            is_woken = waiter.wake()
            leave(line, waiter)
            if is_woken:
                return
        elif line and line[0] is waiter:
            del line[0]
            waiter.release()
            return


def wake_all(line: Line) -> None:
    """Wake everybody. The caller holds the lock of `line`."""
    while line:
        wake_one(line)


def leave(line: Line, waiter: object) -> bool:
    """Take `waiter` out of `line`; False if it has been woken already. The caller holds the lock of `line`."""
    try:
        line.remove(waiter)
    except ValueError:
        return False
    return True


class AsyncWaiter:
    """The waiter of a coroutine, made in its event loop; awaiting `woken` is the wait."""

    __slots__ = ("_loop", "woken")

    def __init__(self) -> None:
        import asyncio  # here, for it brings sockets along; a program with coroutines has it already

        self._loop = asyncio.get_running_loop()
        self.woken: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> bool:
        """Wake the coroutine, from any thread; again has no effect. False if its coroutine has stopped waiting."""
        if self.woken.done():  # woken already, or cancelled
            return False
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            if not self._loop.is_closed():
                raise  # not the loop's: an exception that struck here
            return False
        return True

    def _wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)
