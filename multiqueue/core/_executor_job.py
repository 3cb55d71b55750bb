"""A call on its way through a lane, and the future that its caller holds.

Promise     A job is run at most once and its future ends exactly once: with a result, an exception, or cancelled.
            A job cancelled while it waits has left its lane when `cancel` returns, and its place is free
            before the first callback of the future runs, so that a callback may submit to the same lane.
State       `future.withdraw` is set by the lane before the job is put and taken away by whoever gets the job
            out of the lane; `counted` belongs to the crew and is guarded by its lock.
Membership  Whoever takes the job out of the lane ends its future: the worker that took it, or `cancel`
            when the lane gave the job back to it. The lane decides between the two, under its own locks.
Waiting     Nobody waits here. The future's own condition is the standard library's.
Source      `concurrent.futures.thread._WorkItem`, for what a worker must not keep alive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LaneFuture(Future[T]):
    """A future whose place in the lane is free as soon as it is cancelled."""

    # Not None while the job waits in its lane. Takes the job out of the lane; False if somebody else did.
    withdraw: Callable[[], bool] | None = None

    def cancel(self) -> bool:
        """Cancel the job if it has not started, and free its place in the lane.

        Costs the time to find the job in its lane, which grows with the number of jobs waiting before it.

        Returns False when the job is running or done.
        """
        return self.cancel_waiting() or super().cancel()  # out of the lane already: its worker asks before it runs

    def cancel_waiting(self) -> bool:
        """Cancel the job if it waits in its lane. False, and nothing changed, when it has left the lane."""
        withdraw = self.withdraw
        if withdraw is None or not withdraw():
            return False
        self.cancel_taken()
        return True

    def cancel_taken(self) -> None:
        """Cancel the job that the caller took out of its lane."""
        self.withdraw = None
        try:
            super().cancel()
        finally:
            self.set_running_or_notify_cancel()  # no worker will do it: `wait` and `as_completed` depend on it


class Job(Generic[T]):
    """What to call, and the future that gets its end."""

    __slots__ = ("args", "counted", "fn", "future", "kwargs")

    def __init__(self, fn: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.future: LaneFuture[T] = self.new_future()
        self.counted = False

    def new_future(self) -> LaneFuture[T]:
        """The future of this job."""
        return LaneFuture()

    def run(self) -> None:
        """Call the function in this thread and end the future with what comes of it, unless it was cancelled."""
        future = self.future
        future.withdraw = None
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = self.fn(*self.args, **self.kwargs)
        except BaseException as error:  # noqa: BLE001 - the job's, whatever it is: it belongs to its future
            future.set_exception(error)
            del self, future  # the traceback holds this frame: without this the error would hold itself
        else:
            future.set_result(result)

    def refuse(self, error: BaseException) -> None:
        """End the future of a job that will not be run, or did not come to its end, with `error`.

        Does nothing when the future has ended.
        """
        future = self.future
        future.withdraw = None
        if future.done():
            return
        if future.running() or future.set_running_or_notify_cancel():
            future.set_exception(error)
