"""A lane: an executor whose jobs wait in one sub-queue.

Promise     Jobs of a lane start in the order they were submitted. A full lane holds its submitters up, or refuses
            them with `Full`; which lane a worker serves next is decided as in every multi-queue.
State       None of its own: the sub-queue holds the jobs, the workers the threads, the pauses and the counts.
Waiting     `submit` waits for room: the start, the cancelling or the clearing of a job of this lane makes it, and
            shutdown ends the wait. A job that waits for room in a lane which only jobs like itself can empty
            waits for ever: inside jobs use `submit_nowait`, `submit_within` or a lane without capacity.
Membership  The lane keeps the executor's threads in service (through its `Keeper`) even if the executor itself is
            dropped. After its own shutdown, once empty, the lane leaves the executor and its key is free.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Hashable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, NoReturn, ParamSpec, TypeVar

from ..errors import Full
from ._executor_job import Job, LaneFuture
from ._executor_workers import Ending, Keeper, Workers
from ._lane_map import ordered_results
from ._lane_waiting import Ticket
from ._notebook import notebook_table
from ._sub_queue import SubQueue

P = ParamSpec("P")
T = TypeVar("T")


class Unset(enum.Enum):
    """Stands for a setting of a lane that a call does not name."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset.UNSET


def lanes_table(title: str, lanes: Iterable[Lane]) -> str:
    """Lanes for a notebook."""
    columns = ("lane", "waiting", "running", "priority", "weight", "at most running", "paused")
    rows = (
        (
            lane.key,
            lane.qsize(),
            lane.running,
            lane.settings.priority,
            lane.settings.weight,
            lane.settings.max_in_flight,
            "paused" if lane.paused else None,
        )
        for lane in lanes
    )
    return notebook_table(title, columns, rows)


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """The settings of a lane."""

    priority: int = 0
    capacity: int | None = None
    max_in_flight: int | None = None
    weight: int = 1


class Lane(Executor):
    """One lane of a `MultiQueueExecutor`, itself a `concurrent.futures.Executor`. Made by `executor.lane(key)`.

    All methods may be called from any thread.
    """

    def __init__(self, workers: Workers, keeper: Keeper, subqueue: SubQueue[Ticket], settings: LaneSettings) -> None:
        self._workers = workers
        self._keeper = keeper
        self._subqueue = subqueue
        self._settings = settings
        self._ending = Ending()
        self._is_passing = False  # of `keyed`: it goes with its last job

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r}: {self.qsize()} waiting, {self.running} running>"

    def _repr_html_(self) -> str:
        """For notebooks: what waits and runs, and its settings."""
        return lanes_table(repr(self), [self])

    @property
    def key(self) -> Hashable:
        """The key it was made with."""
        return self._subqueue.key

    @property
    def settings(self) -> LaneSettings:
        """The settings it was made with."""
        return self._settings

    @property
    def running(self) -> int:
        """How many of its jobs run now: a snapshot."""
        return self._subqueue.in_flight

    def qsize(self) -> int:
        """How many of its jobs wait, paused or not: a snapshot."""
        return len(self._subqueue)

    # Submitting

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The future of `fn(*args, **kwargs)`, which a worker will call. Blocks while the lane is full.

        Raises:
            RuntimeError: the lane or the executor was shut down, also while this waited;
                `BrokenThreadPool` if an initializer failed.
        """
        return self._submit(fn, args, kwargs)

    def submit_nowait(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `submit`, without waiting.

        Raises:
            Full: the lane is full. `error.item` is the refused `(fn, args, kwargs)`.
            RuntimeError: as `submit`.
        """
        return self._submit(fn, args, kwargs, block=False)

    def submit_within(self, timeout: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `submit`, waiting no longer than `timeout` seconds for room.

        Raises:
            Full: the lane was full all the time. `error.item` is the refused `(fn, args, kwargs)`.
            RuntimeError: as `submit`.
            ValueError: `timeout` is negative.
        """
        return self._submit(fn, args, kwargs, timeout=timeout)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Generator[T, None, None]:
        """The results of `fn` over the iterables, in order, with bounded look-ahead.

        At most `buffersize` calls are under way whose result has not been read, and the iterables are read
        no further; None means twice the number of workers. The first ones are submitted now, and both this
        call and the iterator block while the lane is full. Closing the iterator, or an error, cancels the calls that
        have not started. `chunksize` has no meaning for threads.

        Raises:
            TimeoutError: from the iterator (or now, if the lane is full), `timeout` seconds after this call.
            ValueError: `buffersize` is less than 1.
        """
        look_ahead = 2 * self._workers.max_workers if buffersize is None else buffersize
        return self._map(fn, iterables, timeout, look_ahead)

    # Holding up, letting go, giving up

    def pause(self, reason: Hashable = None) -> None:
        """Start no more of its jobs while `reason` stands. Running ones go on, and the lane accepts jobs.

        The same reason twice is one reason. Shutdown ends all pauses: what waits is then run.
        """
        self._workers.pause(self._subqueue, reason)

    def resume(self, reason: Hashable = None) -> None:
        """Withdraw `reason`; jobs start again when no reason is left."""
        self._subqueue.enable(reason)

    @property
    def paused(self) -> bool:
        """Whether some reason to pause stands."""
        return not self._subqueue.enabled

    def clear(self) -> int:
        """Cancel the waiting jobs, not the running ones; returns how many."""
        return self._workers.clear(self._subqueue)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more jobs in this lane; the executor and its other lanes go on.

        With `wait`, returns when all jobs of this lane are done. With `cancel_futures`, those that wait are
        cancelled. Never call it with `wait` inside a job of this lane.
        """
        self._workers.close(self._subqueue, self._ending)
        if cancel_futures:
            self.clear()
        if wait:
            self._ending.gone.wait()

    # For the kinds of lanes made from this one

    def _make_job(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job[T]:
        return Job(fn, args, kwargs, LaneFuture())

    def _submitted(self, job: Job[T]) -> None:
        """Called once the job is in the lane, or beyond."""

    def _submit(
        self,
        fn: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        block: bool = True,
        timeout: float | None = None,
    ) -> Future[T]:
        job = self._make_job(fn, args, kwargs)
        try:
            self._workers.put(self._subqueue, job, block, timeout)
        except Full:
            self._refuse((fn, args, kwargs), timeout if block else None)
        if (watcher := self._workers.watcher) is not None:
            watcher.submitted(self.key, job)
        self._submitted(job)
        return job.future

    def _map(
        self,
        fn: Callable[..., T],
        iterables: tuple[Iterable[Any], ...],
        timeout: float | None,
        look_ahead: int | None,
    ) -> Generator[T, None, None]:
        def submit(args: tuple[Any, ...], seconds: float | None) -> Future[T]:
            try:
                return self._submit(fn, args, {}, timeout=seconds)
            except Full as error:
                raise TimeoutError(str(error)) from None

        return ordered_results(submit, zip(*iterables, strict=False), look_ahead, timeout)

    def _refuse(self, call: tuple[object, ...], waited: float | None) -> NoReturn:
        capacity = self._subqueue.capacity
        after = "" if waited is None else f" after waiting {waited:g} s"
        error = Full(
            f"lane {self.key!r} is full: {capacity} of {capacity} jobs wait{after}; "
            "raise its capacity, add workers or submit more slowly"
        )
        error.item = call
        raise error from None
