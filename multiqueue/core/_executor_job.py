"""A call on its way through a lane, and the future that its caller holds.

Promise     A job is run at most once and its future ends exactly once: with a result, an exception, or cancelled.
            A job cancelled while it waits has left its lane when `cancel` returns, and its place is free
            before the first callback of the future runs, so that a callback may submit to the same lane.
State       `future.job` is set by the workers before the job is put and taken away by the thread that gets the job
            out of the lane; `counted` belongs to the workers and is guarded by their lock.
Membership  The thread that takes the job out of the lane ends its future: the worker that took it, or `cancel`
            when the lane gave the job back to it. The lane decides between the two, under its own locks.
Waiting     No thread waits here. The future's own condition is the standard library's.
Source      `concurrent.futures.thread._WorkItem`, for what a worker must not keep alive.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures._base import CANCELLED
from html import escape
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from ._executor_workers import Workers
    from ._sub_queue import SubQueue

T = TypeVar("T")


class LaneFuture(Future[T]):
    """A future whose place in the lane is free as soon as it is cancelled."""

    job: Job[T] | None = None  # while it waits in its lane

    def cancel(self) -> bool:
        """Cancel the job if it has not started, and free its place in the lane.

        Returns False when the job is running or done.
        """
        return self.cancel_waiting() or super().cancel()  # out of the lane already: its worker asks before it runs

    def cancel_waiting(self) -> bool:
        """Cancel the job if it waits in its lane. False, and nothing changed, when it has left the lane."""
        job = self.job
        if job is None:
            return False
        left: list[Job[Any]] = []
        try:
            job.withdraw(left)
            if left:
                self.cancel_taken()
        except BaseException:
            if left and self.job is not None:  # interrupted before its cancel; no other thread will end it
                self.cancel_taken()
            raise
        return True if left else False  # noqa: SIM210 - a call could be interrupted

    def _repr_html_(self) -> str:
        """For notebooks: where the job is, or how it ended."""
        if not self.done():
            state = "running" if self.running() else "waiting"
        elif self.cancelled():
            state = "cancelled"
        else:
            error = self.exception()
            state = "done" if error is None else f"failed: {error!r}"
        return f"<div>{escape(state[:500])}</div>"

    def leave_lane(self) -> None:
        """Say that the job waits in its lane no more: the caller has taken it out."""
        self.job = None

    def cancel_taken(self) -> None:
        """Cancel the job that the caller took out of its lane."""
        self.job = None
        try:
            self._cancel_for_all()
        except BaseException:  # an interrupt
            self._cancel_for_all()
            raise

    def _cancel_for_all(self) -> None:
        """End as cancelled, and tell those who wait. May be repeated."""
        super().cancel()
        if self._state == CANCELLED:
            self.set_running_or_notify_cancel()  # no worker will do it: `wait` and `as_completed` depend on it


class JobWatcher(Protocol):
    """Gets the events of an executor's jobs, each in the thread that causes it. It must be quick and must not raise."""

    def submitted(self, lane: Hashable, job: Job[Any]) -> None:
        """The job waits in its lane, or has begun already. Its end is its future's."""

    def began(self, lane: Hashable, job: Job[Any]) -> None:
        """A worker is about to run it, unless it was cancelled."""


class Watchers:
    """Several watchers, told one after the other."""

    def __init__(self, each: Sequence[JobWatcher]) -> None:
        self.each: Sequence[JobWatcher] = each

    def submitted(self, lane: Hashable, job: Job[Any]) -> None:
        """As `JobWatcher`."""
        for watcher in self.each:
            watcher.submitted(lane, job)

    def began(self, lane: Hashable, job: Job[Any]) -> None:
        """As `JobWatcher`."""
        for watcher in self.each:
            watcher.began(lane, job)


class Job(Generic[T]):
    """A call to make, and the future that gets its end."""

    __slots__ = ("args", "counted", "fn", "future", "kwargs", "subqueue", "workers")

    def __init__(
        self, fn: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any], future: LaneFuture[T]
    ) -> None:
        self.fn: Callable[..., T] = fn
        self.args: Sequence[Any] = args
        self.kwargs: Mapping[str, Any] = kwargs
        self.future: LaneFuture[T] = future
        self.counted: bool = False
        self.workers: Workers  # set by the workers when it is put, as is the next one
        self.subqueue: SubQueue[list[Job[Any]]]

    @property
    def name(self) -> str:
        """The name of its function, for people."""
        return getattr(self.fn, "__qualname__", None) or repr(self.fn)

    def withdraw(self, left: list[Job[Any]] | None = None) -> bool:
        """Take it out of the lane that it was put into, and append it to `left`; False if somebody else did."""
        return self.workers.withdraw(self.subqueue, self, left)

    def run(self) -> None:
        """Call the function in this thread and end the future with its result or error, unless it was cancelled."""
        future = self.future
        future.job = None
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
        future.job = None
        if future.done():
            return
        if future.running() or future.set_running_or_notify_cancel():
            future.set_exception(error)
