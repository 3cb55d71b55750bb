"""The executor with Spark behind it: each running item in a fresh thread of its own.

Promise     At most `max_running` items run; which starts next is decided by lane, priority and weight. An item's tags,
            group, description, pool and local properties are its own: its thread is new and ends with it.
            The future is resolved before the item's place among the running ones is free.
            Three outcomes that are not the user's own exception have three types: `CancelledError` (cancelled
            through its future), `SparkJobCancelled` (by somebody else), `SparkSessionStopped`.
State       `Running._lock` guards the set of running futures and `_closed`. All else is the executor's.
Lock order  `Running._lock` alone; futures are cancelled after it.
Waiting     As the executor. Leaving `with` by an exception waits until Spark has let go of what it was told to cancel.
Membership  An item enters `Running` before it begins and leaves when its future is resolved. `close` refuses those
            that a worker has taken but not begun, so that none slips between "cancel what waits" and "cancel
            what runs".
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast

from ..core import Job, Lane, LaneSettings, MultiQueueExecutor, SubQueue
from ._backend import TAG_PREFIX, Backend, backend_of, with_causes
from ._errors import SparkJobCancelled, SparkSessionStopped
from ._future import SparkFuture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SparkLaneSettings(LaneSettings):
    """What a lane was made with."""

    pool: str | None = None


class Running:
    """The futures of the items that run."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may call `cancel_running`
        self._futures: set[SparkFuture[Any]] = set()
        self._closed = False

    def enter(self, future: SparkFuture[Any]) -> bool:
        """Whether the item may begin; it is among the running ones then."""
        with self._lock:
            if not self._closed:
                self._futures.add(future)
            return not self._closed

    def leave(self, future: SparkFuture[Any]) -> None:
        with self._lock:
            self._futures.discard(future)

    def cancel(self) -> int:
        """Ask for the end of every running item; how many."""
        with self._lock:
            futures = list(self._futures)
        return sum(future.cancel() for future in futures)

    def close(self) -> None:
        """Let no further item begin, and ask for the end of those that run."""
        with self._lock:
            self._closed = True
        self.cancel()


class SparkJob(Job[T]):
    """One item: a function of a Spark session, called in a thread that has run nothing before."""

    __slots__ = ("_backend", "_name", "_running", "_tag")

    future: SparkFuture[T]

    def __init__(self, lane: SparkLane, fn: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._backend = lane.backend
        self._running = lane.items_running
        self._tag = TAG_PREFIX + uuid.uuid4().hex
        self._name = f"{lane.key}: {getattr(fn, '__qualname__', None) or repr(fn)}"
        marked = _marked(fn, lane.backend, lane.session, self._tag, self._name, lane.pool)
        # Here, in the submitter's thread: what it has set now is what the item inherits.
        super().__init__(lane.backend.inheriting(marked), args, kwargs)

    def new_future(self) -> SparkFuture[T]:
        return SparkFuture(self._tag, self._backend.cancel)

    def run(self) -> None:
        future = self.future
        future.withdraw = None
        if not self._running.enter(future):
            future.cancel()
        if future.begin():
            self._call(future)
        self._running.leave(future)
        del self, future  # see `_call`: this is the frame behind the one that an error's traceback holds

    def refuse(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.leave(cancelled=False)
        self._running.leave(self.future)
        super().refuse(error)

    def _call(self, future: SparkFuture[T]) -> None:
        try:
            result = self.fn(*self.args, **self.kwargs)
        except BaseException as error:  # noqa: BLE001 - the item's, whatever it is: it belongs to its future
            outcome = self._judge(error)
            future.leave(cancelled=outcome is None)
            if outcome is not None:
                future.set_exception(outcome)
            del self, future, outcome  # the traceback holds this frame, and the error would hold itself
        else:
            future.leave(cancelled=False)
            future.set_result(result)

    def _judge(self, error: BaseException) -> BaseException | None:
        """What the future ends with when the function has raised `error`; None for cancelled."""
        is_cancellation, is_stop = self._backend.is_cancellation, self._backend.is_stop
        if self.future.asked and any(is_cancellation(cause) or is_stop(cause) for cause in with_causes(error)):
            return None
        named: BaseException
        if is_stop(error):
            named = SparkSessionStopped(
                f"the Spark session was stopped while job {self._name!r} ran; make a new session and dispatcher"
            )
        elif is_cancellation(error):
            named = SparkJobCancelled(
                f"job {self._name!r} was cancelled in Spark, but not through its future: by a tag or group of yours, "
                "the Spark UI or Ctrl-C"
            )
        else:
            return error
        named.__cause__ = error
        return named


class SparkLane(Lane):
    """A lane of a `SparkDispatcher`. Made by `dispatcher.lane(key)`."""

    backend: Backend
    items_running: Running
    session: SparkSession

    @property
    def pool(self) -> str | None:
        """The scheduler pool of its jobs; None: that of the submitter, if any."""
        settings = self.settings
        return settings.pool if isinstance(settings, SparkLaneSettings) else None

    def submit(  # type: ignore[override] # the session comes first: that is what the lane is for
        self, fn: Callable[Concatenate[SparkSession, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """The future of `fn(spark, *args, **kwargs)`, called in a fresh thread. Blocks while the lane is full.

        The thread has the submitter's local properties and tags of this moment, and on top a job tag, group and
        description of its own and the lane's pool. `cancel` of the future reaches the running Spark job.

        Raises:
            RuntimeError: the lane or the dispatcher was shut down, also while this waited.
        """
        return self._submit(fn, args, kwargs)

    def submit_nowait(  # type: ignore[override]
        self, fn: Callable[Concatenate[SparkSession, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """As `submit`, without waiting: raises `Full` as `Lane.submit_nowait` does."""
        return self._submit(fn, args, kwargs, block=False)

    def submit_within(  # type: ignore[override]
        self,
        timeout: float,
        fn: Callable[Concatenate[SparkSession, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Future[T]:
        """As `submit`, waiting no longer than `timeout` seconds: raises `Full` as `Lane.submit_within` does."""
        return self._submit(fn, args, kwargs, timeout=timeout)

    def _make_job(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job[T]:
        return SparkJob(self, fn, args, kwargs)


class SparkDispatcher(MultiQueueExecutor):
    """Runs functions of a Spark session, at most `max_running` at a time, by lane. A context manager.

    Left by an exception, it cancels what waits and what runs, and waits until Spark has let go of it.
    """

    _jobs_per_worker: ClassVar[int | None] = 1  # a thread that has run an item has its tags and properties
    _default_settings: ClassVar[LaneSettings] = SparkLaneSettings()

    def __init__(self, spark: SparkSession, max_running: int) -> None:
        """Dispatch to `spark`, a classic or a Spark Connect session, which stays yours to stop.

        Raises:
            ValueError: `max_running` is less than 1.
            SparkEnvironmentError: threads are not pinned (PYSPARK_PIN_THREAD=false).
        """
        if max_running < 1:
            raise ValueError(f"max_running must be at least 1, not {max_running}")
        super().__init__(max_running)
        self._backend = backend_of(spark)
        self._running = Running()

    def lane(
        self,
        key: Hashable,
        priority: int = 0,
        capacity: int | None = None,
        *,
        max_in_flight: int | None = None,
        weight: int = 1,
        pool: str | None = None,
    ) -> SparkLane:
        """The lane of this key, made at first use, as `MultiQueueExecutor.lane`.

        `pool` names the scheduler pool of its jobs. It divides tasks already submitted among pools and needs
        `spark.scheduler.mode=FAIR`; weights come from a file, see `pools_xml`. On Spark Connect such a lane has a
        session of its own, without the temporary views and settings of yours.

        Raises:
            ValueError: the lane exists with other settings, or a setting is less than 1.
            RuntimeError: the dispatcher was shut down.
            SparkEnvironmentError: this Spark Connect client can not make a session for the pool.
        """
        self._backend.session_for(pool)  # on Connect a call to the server: not under the lock that makes lanes
        settings = SparkLaneSettings(priority, capacity, max_in_flight, weight, pool)
        return cast(SparkLane, self._lane(key, settings))

    def submit(  # type: ignore[override] # the session comes first
        self, fn: Callable[Concatenate[SparkSession, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """`SparkLane.submit` on the lane `"default"`, made at first use with default settings unless you made it."""
        return self._default_lane()._submit(fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more items, end all pauses, and with `wait` return when all items are done and all threads gone.

        With `cancel_futures`, items that wait are cancelled; those that run go on, see `cancel_running`. Without
        `wait`, sessions made for pools on Spark Connect are left to the server's own time limit.
        """
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            self._backend.close()

    def cancel_running(self) -> int:
        """Cancel every item that runs, as its `future.cancel()` does, without waiting; how many.

        What waits goes on to be started.
        """
        return self._running.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._abandon()
            return
        try:
            self.shutdown(wait=True)
        except BaseException:  # an interrupt while waiting for the items
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Cancel what waits and what runs, and wait for its end."""
        self._running.close()
        self.shutdown(wait=True, cancel_futures=True)

    def _make_lane(self, subqueue: SubQueue[Job[Any]], settings: LaneSettings) -> SparkLane:
        lane = SparkLane(self._crew, self._keeper, subqueue, settings)
        lane.backend = self._backend
        lane.items_running = self._running
        lane.session = self._backend.session_for(lane.pool)
        return lane


def _marked(
    fn: Callable[..., T],
    backend: Backend,
    session: SparkSession,
    tag: str,
    description: str,
    pool: str | None,
) -> Callable[..., T]:
    """`fn` of the session, in a thread marked as the item's."""

    def call(*args: Any, **kwargs: Any) -> T:
        backend.enter(tag, description, pool)
        return fn(session, *args, **kwargs)

    return call
