"""A lane of a `SparkDispatcher`, and what a lane is made with.

Promise     As `multiqueue.core`'s lane; besides, its jobs are Spark's: with options, and cancelled as a whole.
            A job whose deadline comes while it waits ends then, in a paused lane too.
State       None of its own: what its items share is in its `LaneContext`. A lane `with_options` is the same lane.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast

from ...core import Job, Lane, LaneSettings
from ...errors import Full
from .completed import completed
from .future import SparkFuture
from .job import LaneContext, SparkJob
from .options import JobOptions, OptionChanges, Retry
from .running import cancel
from .statistics import SparkLaneStatistics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SparkLaneSettings(LaneSettings):
    """The settings of a lane."""

    pool: str | None = None
    timeout: float | None = None
    start_within: float | None = None
    retry: Retry | None = None


class SparkLane(Lane):
    """A lane of a `SparkDispatcher`. Made by `dispatcher.lane(key)`."""

    context: LaneContext
    _options: JobOptions | None = None

    @property
    def pool(self) -> str | None:
        """The scheduler pool of its jobs; None: that of the submitter, if any."""
        settings = self.settings
        return settings.pool if isinstance(settings, SparkLaneSettings) else None

    @property
    def options(self) -> JobOptions:
        """How the jobs submitted through this are run."""
        settings = self.settings
        if self._options is None and isinstance(settings, SparkLaneSettings):
            self._options = JobOptions(settings.timeout, settings.start_within, settings.retry)
        return self._options or JobOptions()

    def with_options(self, **changes: Unpack[OptionChanges]) -> Self:
        """This lane, for jobs with other options: `lane.with_options(timeout=60.0).submit(load, day)`.

        Options that you do not name stay as they are. `None` takes a bound of the lane away. The lane is the same, its
        capacity, order and pauses too.

        Raises:
            ValueError: `timeout` or `start_within` is not more than 0.
        """
        other = copy.copy(self)
        other._options = replace(self.options, **changes)
        return other

    def submit(  # type: ignore[override] # the session comes first: that is what the lane is for
        self, fn: Callable[Concatenate[SparkSession, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> SparkFuture[T]:
        """The future of `fn(spark, *args, **kwargs)`, called in a fresh thread. Blocks while the lane is full.

        The thread has the submitter's local properties and tags of this moment, and on top a job tag, group and
        description, tags of its lane and function, and the lane's pool. `cancel` of the future reaches the running
        Spark job.

        Raises:
            RuntimeError: the lane or the dispatcher was shut down, also while this waited.
        """
        return self._submit(fn, args, kwargs)

    def submit_nowait(  # type: ignore[override]
        self, fn: Callable[Concatenate[SparkSession, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> SparkFuture[T]:
        """As `submit`, without waiting: raises `Full` as `Lane.submit_nowait` does."""
        return self._submit(fn, args, kwargs, block=False)

    def submit_within(  # type: ignore[override]
        self,
        timeout: float,
        fn: Callable[Concatenate[SparkSession, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> SparkFuture[T]:
        """As `submit`, waiting no longer than `timeout` seconds: raises `Full` as `Lane.submit_within` does."""
        return self._submit(fn, args, kwargs, timeout=timeout)

    def as_completed(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
    ) -> Generator[tuple[tuple[Any, ...], SparkFuture[T]], None, None]:
        """`(args, future)` of each call `fn(spark, *args)` over the iterables, in the order in which they end.

        At most `buffersize` calls are under way whose future has not been handed out, and the iterables are read no
        further; None means twice `max_running`. They are read, and the calls submitted, by who iterates; that blocks
        while the lane is full. A failed call does not end the iteration. Closing the iterator, or an error in it,
        cancels the calls under way, running ones too.

        Raises:
            TimeoutError: from the iterator, `timeout` seconds after this call.
            ValueError: `buffersize` is less than 1.
        """
        look_ahead = 2 * self._workers.max_workers if buffersize is None else buffersize

        def submit(args: tuple[Any, ...], seconds: float | None) -> SparkFuture[T]:
            try:
                return self._submit(fn, args, {}, timeout=seconds)
            except Full as error:
                raise TimeoutError(str(error)) from None

        return completed(submit, zip(*iterables, strict=False), look_ahead, timeout)

    def cancel(self) -> int:
        """Cancel every waiting or running job of this lane, without blocking; returns how many.

        The lane goes on and takes new jobs.
        """
        running = self.context.dispatcher.running.hold_back(self.context.group)
        return self.clear() + cancel(running)

    def statistics(self) -> SparkLaneStatistics:
        """The jobs that wait, run and have ended in this lane, with wait and run times: a snapshot."""
        return self.context.tally.snapshot(self.key, self.qsize(), self.running, self.paused)

    def _make_job(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job[T]:
        return SparkJob(self, fn, args, kwargs)

    def _submit(
        self,
        fn: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        block: bool = True,
        timeout: float | None = None,
    ) -> SparkFuture[T]:
        return cast(SparkFuture[T], super()._submit(fn, args, kwargs, block, timeout))

    def _submitted(self, job: Job[T]) -> None:
        deadline = cast(SparkJob[T], job).deadline()
        if deadline is None:
            return
        future = cast(SparkFuture[T], job.future)
        alarm = self.context.dispatcher.alarms.at(deadline, partial(future.expire, cast(SparkJob[T], job).missed()))
        future.add_done_callback(alarm.off)  # at once, if the job was faster
