"""The executor with Spark behind it: each running item in a fresh thread.

Promise     At most `max_running` items run; which starts next is decided by lane, priority and weight, in turns or by
            their cost (`costs`). An item's tags, group, description, pool and local properties are its own: its thread
            is new and ends with it.
State       None of its own: `DispatcherContext` has the parts that its items share, each with a separate lock. All
            else is the executor's.
Waiting     As the executor. Leaving `with` by an exception waits until Spark has let go of the cancelled jobs.
Membership  `Running` in `_running.py` and `SparkJob` in `_job.py` say how an item comes and goes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast

from ...core import UNSET, LaneSettings, MultiQueueExecutor, SubQueue, Ticket, Unset
from .._backend.backend import Backend, is_connect
from .._backend.errors import SparkEnvironmentError
from .costs import Costs
from .future import SparkFuture
from .job import DispatcherContext, LaneContext
from .lane import SparkLane, SparkLaneSettings
from .options import JobOptions, Retry, at_least_one
from .running import cancel
from .statistics import SparkStatistics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = ParamSpec("P")
T = TypeVar("T")

TURNS, SECONDS = "turns", "seconds"  # what a lane is charged by


class SparkDispatcher(MultiQueueExecutor):
    """Runs functions of a Spark session, at most `max_running` at a time, by lane. A context manager.

    Left by an exception, it cancels what waits and what runs, and waits until Spark has let go of it.
    """

    _jobs_per_worker: ClassVar[int | None] = 1  # a thread that has run an item has its tags and properties
    _default_settings: ClassVar[LaneSettings] = SparkLaneSettings()

    def __init__(self, spark: SparkSession, max_running: int, *, cost: str = "turns") -> None:
        """Dispatch to `spark`, a classic or a Spark Connect session, which stays yours to stop.

        With `cost="seconds"` a lane of several of one priority does not get `weight` jobs per turn: the next job is of
        the lane whose jobs have cost least by its weight. A job costs the seconds that Spark's executors ran its tasks,
        by Spark's own figures, and those that its function spent outside of Spark's jobs. While it runs, it counts for
        what the lane's last one cost. Where Spark has lost the figures of a job, the log says so once, and a job costs
        the seconds that it ran.

        Raises:
            ValueError: `max_running` is less than 1, or `cost` neither "turns" nor "seconds".
            TypeError: `max_running` is no int, or `spark` no session.
            SparkEnvironmentError: threads are not pinned (PYSPARK_PIN_THREAD=false), or `spark` is a session of Spark
                Connect and `cost` "seconds": its client has no such figures.
        """
        at_least_one("max_running", max_running)
        if cost not in (TURNS, SECONDS):
            raise ValueError(f"cost is {cost!r}; it is {TURNS!r} or {SECONDS!r}")
        backend = backend_of(spark)
        if cost == SECONDS and not backend.tells_spent:
            raise SparkEnvironmentError(
                "cost='seconds' needs what executors have spent, which Spark Connect does not tell; use a classic "
                "session, or leave cost out"
            )
        costs = self._selection = Costs() if cost == SECONDS else None
        super().__init__(max_running)
        self._backend = backend
        self._context = DispatcherContext(backend, self._workers.name, costs)
        self._running = self._context.running

    def lane(
        self,
        key: Hashable,
        priority: int | Unset = UNSET,
        capacity: int | Unset | None = UNSET,
        *,
        max_in_flight: int | Unset | None = UNSET,
        weight: int | Unset = UNSET,
        pool: str | Unset | None = UNSET,
        timeout: float | Unset | None = UNSET,
        start_within: float | Unset | None = UNSET,
        retry: Retry | Unset | None = UNSET,
    ) -> SparkLane:
        """The lane of this key, made at first use and returned afterwards, as `MultiQueueExecutor.lane`.

        `pool` names the scheduler pool of its jobs. It divides tasks already submitted among pools and needs
        `spark.scheduler.mode=FAIR`; weights come from a file, see `pools_xml`. On Spark Connect such a lane has a
        separate session, without the temporary views and settings of yours.

        None, the default of the others, bounds nothing and retries nothing.
        `timeout` is how many seconds a job may run before it is cancelled in Spark and ends with `SparkJobTimeout`;
        `start_within`, in how many seconds after `submit` it must have begun, or it ends with `SparkDeadlineMissed`;
        `retry`, whether it is run again when it fails. `SparkLane.with_options` has them for single jobs.

        Raises:
            ValueError: the lane exists with other settings, or a setting is too small.
            RuntimeError: the dispatcher was shut down.
            SparkEnvironmentError: this Spark Connect client can not make a session for the pool.
        """
        options = {"timeout": timeout, "start_within": start_within, "retry": retry}
        JobOptions(**cast(Any, {name: value for name, value in options.items() if value is not UNSET}))  # looks at them
        if pool is not UNSET:  # on Connect a call to the server: not under the lock that makes lanes
            self._backend.session_for(pool)
        limits = {"priority": priority, "capacity": capacity, "max_in_flight": max_in_flight, "weight": weight}
        return cast(SparkLane, self._lane(key, limits | options | {"pool": pool}))

    def submit(  # type: ignore[override] # the session comes first
        self, fn: Callable[Concatenate[SparkSession, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> SparkFuture[T]:
        """`SparkLane.submit` on the lane `"default"`, made at first use with default settings unless you made it."""
        return cast(SparkLane, self._default_lane())._submit(fn, args, kwargs)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Generator[T, None, None]:
        """`SparkLane.map` on the lane `"default"`: the results in order, with bounded look-ahead.

        At most `buffersize` calls `fn(spark, *args)` are under way whose result has not been read, and the iterables,
        which may be endless, are read no further; None means twice `max_running`.
        """
        return self._default_lane().map(fn, *iterables, timeout=timeout, chunksize=chunksize, buffersize=buffersize)

    def as_completed(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
    ) -> Generator[tuple[tuple[Any, ...], SparkFuture[T]], None, None]:
        """`SparkLane.as_completed` on the lane `"default"`."""
        lane = cast(SparkLane, self._default_lane())
        return lane.as_completed(fn, *iterables, timeout=timeout, buffersize=buffersize)

    @property
    def ui_url(self) -> str | None:
        """Where the session's UI is; None where it has none, and on Spark Connect."""
        return self._backend.ui_url()

    def job_ids(self, tag: str) -> list[int]:
        """The numbers of the Spark jobs of an item up to now, as Spark's UI has them; none on Spark Connect.

        `tag` is that of the item's future.
        """
        return self._backend.job_ids(tag)

    def statistics(self) -> SparkStatistics:
        """Its jobs by state, lane by lane: a snapshot. A lane that was shut down and is done is gone."""
        lanes = tuple(cast(SparkLane, lane).statistics() for lane in self.lanes.values())
        waiting, running = sum(lane.waiting for lane in lanes), sum(lane.running for lane in lanes)
        return SparkStatistics(self._workers.max_workers, waiting, running, lanes)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more items, end all pauses, and with `wait` return when all items are done and all threads gone.

        With `cancel_futures`, items that wait are cancelled; those that run go on, see `cancel_running`. Without
        `wait`, sessions made for pools on Spark Connect are left to the server's own time limit.
        """
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            self._context.alarms.join()
            self._backend.close()

    def cancel_running(self) -> int:
        """Cancel every item that runs, as its `future.cancel()` does, without waiting; returns how many.

        What waits goes on to be started.
        """
        return cancel(self._running.of())

    def cancel(self) -> int:
        """Cancel every item that was submitted before, waiting or running, without waiting; returns how many.

        The dispatcher goes on and takes new items.
        """
        running = self._running.hold_back()
        return self._workers.cancel_waiting() + cancel(running)

    def __exit__(self, kind: type[BaseException] | None, *others: object) -> None:
        if kind is not None:
            self.abandon()
            return
        try:
            self.shutdown(wait=True)
        except BaseException:  # an interrupt while waiting for the items
            self.abandon()
            raise

    def abandon(self) -> None:
        """Cancel what waits and what runs, accept nothing more, and wait for the end: as leaving by an exception."""
        self._running.close()
        self.shutdown(wait=True, cancel_futures=True)

    def _make_lane(self, subqueue: SubQueue[Ticket], settings: LaneSettings) -> SparkLane:
        lane = SparkLane(self._workers, self._keeper, subqueue, settings)
        lane.context = LaneContext(self._context, self._backend.session_for(lane.pool))
        return lane


def backend_of(spark: SparkSession) -> Backend:
    """The backend for a session.

    Raises:
        SparkEnvironmentError: threads are not pinned, so that jobs can not be told apart.
    """
    if is_connect(spark):
        from .._backend.connect import ConnectBackend

        return ConnectBackend(spark)
    from .._backend.classic import ClassicBackend

    return ClassicBackend(spark)
