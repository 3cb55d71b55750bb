"""Locks whose every operation is a step that the exploration decides on.

Promise     `ExploredLock` and `ExploredRLock` answer as `threading.Lock` and `RLock` do, except that the run
            they belong to says when an operation happens and whether a timed wait expires.
State       `held` and `owner` are only touched by the one thread that the run lets go.
Waiting     an operation waits in `Run.step`, for its turn.
Assumes     one thread of the run moves at a time; a thread's own second `acquire` of an RLock is no step,
            since nothing else can tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._run import Run


class ExploredLock:
    """A `threading.Lock` that asks its run at every operation."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.number: int = run.number_lock()
        self.held: bool = False
        self.owner: int = 0  # the thread that took it, by ident

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """True once the lock is held; False if it was not free, or not in time."""
        _check_arguments(blocking, timeout)
        return self._run.acquire(self, blocking, timeout)

    def release(self) -> None:
        """Free the lock, from any thread. Raises: RuntimeError if it is free."""
        self._run.release(self)

    def locked(self) -> bool:
        return self.held

    def take(self) -> None:
        self.held = True
        self.owner = self._run.whoami()

    def give(self) -> None:
        if not self.held:
            raise RuntimeError("release unlocked lock")
        self.held = False
        self.owner = 0

    def __enter__(self) -> bool:
        return self._run.acquire(self, blocking=True, timeout=-1, entering=True)

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"lock {self.number}"

    def _at_fork_reinit(self) -> None:
        self.held = False


class ExploredRLock(ExploredLock):
    """A `threading.RLock` that asks its run when it is first acquired and last released."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        _check_arguments(blocking, timeout)
        if self._is_owned():
            self._depth += 1
            return True
        return self._run.acquire(self, blocking, timeout)

    def release(self) -> None:
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        if self._depth > 1:
            self._depth -= 1
        else:
            self._run.release(self)

    def take(self) -> None:
        super().take()
        self._depth = 1

    def give(self) -> None:
        super().give()
        self._depth = 0

    def _at_fork_reinit(self) -> None:
        super()._at_fork_reinit()
        self._depth = 0

    def __enter__(self) -> bool:
        if self._is_owned():
            return self.acquire()
        return super().__enter__()

    # What `threading.Condition` asks of its lock.

    def _is_owned(self) -> bool:
        return self.held and self.owner == self._run.whoami()

    def _release_save(self) -> int:
        depth = self._depth
        self._run.release(self)
        return depth

    def _acquire_restore(self, depth: int) -> None:
        self._run.acquire(self, blocking=True, timeout=-1)
        self._depth = depth


def _check_arguments(blocking: bool, timeout: float) -> None:
    if not blocking and timeout != -1:
        raise ValueError("can't specify a timeout for a non-blocking call")
    if timeout < 0 and timeout != -1:
        raise ValueError("timeout value must be a non-negative number")
