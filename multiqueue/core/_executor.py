"""A thread pool with lanes: `concurrent.futures.Executor` on a multi-queue.

Promise     What `concurrent.futures.ThreadPoolExecutor` promises, for the executor and for each of its lanes. Workers
            serve lanes by priority, and round-robin by weight within a priority.
            It is a `ThreadPoolExecutor` where asyncio's `set_default_executor` wants one, and has the `_max_workers`
            that dask reads; each method is ours, and that class's `__init__` is not called.
State       `_lock` guards `_watchers` and the changes of `_lanes`. Threads and counts are the workers', jobs the
            multi-queue's.
Lock order  `_lock` -> worker lock -> locks of the multi-queue.
Waiting     No thread waits under `_lock`.
Membership  The executor refers to its lanes and both to the `Keeper`; nothing refers back to the executor, so that one
            which is dropped is gone at once and its threads, done with what waits, end.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, ParamSpec, TypeVar

from . import _sync
from ._executor_job import JobWatcher, Watchers
from ._executor_workers import Keeper, Workers
from ._lane import UNSET, Lane, LaneSettings, Unset, lanes_table
from ._lane_waiting import Ticket
from ._selection import SubQueueSelection
from ._settings import check_count, check_optional, check_priority
from ._sub_queue import SubQueue

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
else:
    try:
        from concurrent.futures import ThreadPoolExecutor
    except RuntimeError:  # first asked for when the interpreter is ending, where that module cannot be loaded any more
        from concurrent.futures import Executor as ThreadPoolExecutor

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_LANE = "default"


class MultiQueueExecutor(ThreadPoolExecutor):
    """A thread pool whose jobs wait in lanes, each with a priority, a capacity, a weight and a limit."""

    _numbers: ClassVar[Iterator[int]] = count()
    # How many jobs a thread runs before another takes its place; None: as many as come.
    _jobs_per_worker: ClassVar[int | None] = None
    _selection: SubQueueSelection[Ticket] | None = None  # set before `__init__`, by kinds whose lanes take other turns
    _default_settings: ClassVar[LaneSettings] = LaneSettings()

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        """Start no thread yet: workers are started as jobs come, up to `max_workers`, named `{prefix}_{n}`.

        `max_workers` defaults to the number of CPUs plus 4, at most 32. `initializer(*initargs)` is called in each
        worker before its first job; if it fails, all that waits and all that comes gets `BrokenThreadPool`.

        Raises:
            ValueError: `max_workers` is less than 1.
            TypeError: `initializer` can not be called.
        """
        if max_workers is None:
            cpus: Callable[[], int | None] = getattr(os, "process_cpu_count", os.cpu_count)  # the former from 3.13
            max_workers = min(32, (cpus() or 1) + 4)
        try:
            is_right = max_workers > 0  # not NaN either
        except TypeError:
            raise TypeError(f"'max_workers' must be a number, not {max_workers!r}") from None
        if not is_right:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        prefix = thread_name_prefix or f"{type(self).__name__}-{next(self._numbers)}"
        self._workers = Workers(max_workers, prefix, initializer, initargs, self._jobs_per_worker, self._selection)
        self._workers.on_retired = _forgetter(weakref.ref(self))
        self._keeper = Keeper(self._workers)
        self._lock = _sync.Guard()
        self._watchers: list[JobWatcher] = []
        self._lanes: dict[Hashable, Lane] = {}

    def lane(
        self,
        key: Hashable,
        priority: int | Unset = UNSET,
        capacity: int | Unset | None = UNSET,
        *,
        max_in_flight: int | Unset | None = UNSET,
        weight: int | Unset = UNSET,
    ) -> Lane:
        """The lane of this key, made at first use and returned afterwards: later `lane(key)` is enough.

        Lanes with a lower `priority` number are served first (0 unless given); within a priority each gets `weight`
        jobs per turn (1). `capacity` bounds the jobs that wait, `max_in_flight` those that run; None, the default of
        both, means no bound. A later call may name settings again; those that it names must be the lane's.

        Raises:
            ValueError: the lane exists with other settings, or a setting is less than 1.
            RuntimeError: the executor was shut down.
        """
        named = {"priority": priority, "capacity": capacity, "max_in_flight": max_in_flight, "weight": weight}
        return self._lane(key, named)

    def keyed(
        self,
        key: Hashable,
        priority: int = 0,
        capacity: int | None = None,
        *,
        max_in_flight: int | None = None,
        weight: int = 1,
    ) -> Keyed:
        """Submit by key, such as a tenant: jobs of one key wait in a lane that exists while it has jobs.

        The lane comes with the first job, with these settings, and goes with the last one, so that a million keys cost
        nothing when their jobs are done. Making this makes no lane. A key that `lane()` has made a lane of is refused.

        Raises:
            ValueError: a setting is less than 1.
        """
        return Keyed(self, key, LaneSettings(priority, capacity, max_in_flight, weight))

    @property
    def lanes(self) -> Mapping[Hashable, Lane]:
        """The lanes by key: a snapshot."""
        with self._lock:
            lanes = dict(self._lanes)
        return lanes

    @property
    def max_workers(self) -> int:
        """How many jobs run at once, at most."""
        return self._workers.max_workers

    @property
    def _max_workers(self) -> int:  # type: ignore[override]
        """What dask asks a `ThreadPoolExecutor` for, and others that want to know how many jobs run at once."""
        return self._workers.max_workers

    def watch(self, watcher: JobWatcher) -> None:
        """Tell this watcher too of the jobs that are submitted and begun from now on, until `unwatch`.

        A reference that it keeps to the executor keeps that alive; `multiqueue.monitor.Lanes` keeps nothing.
        """
        with self._lock:
            self._set_watchers_locked([*self._watchers, watcher])

    def unwatch(self, watcher: JobWatcher) -> None:
        """Tell this watcher nothing further. One that does not watch is no error."""
        with self._lock:
            self._set_watchers_locked([each for each in self._watchers if each is not watcher])

    def _set_watchers_locked(self, watchers: list[JobWatcher]) -> None:
        self._watchers = watchers
        self._workers.watcher = Watchers(watchers) if len(watchers) > 1 else next(iter(watchers), None)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """`Lane.submit` on the lane `"default"`, made at first use with default settings unless you made it."""
        return self._default_lane()._submit(fn, args, kwargs)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Generator[T, None, None]:
        """As `ThreadPoolExecutor.map`: all calls are submitted at once unless `buffersize` bounds them.

        For a bound by default use `Lane.map`.
        """
        return self._default_lane()._map(fn, iterables, timeout, buffersize)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more jobs, end all pauses, and with `wait` return when all jobs are done and all threads gone.

        With `cancel_futures`, jobs that wait are cancelled. Safe to call more than once.
        """
        self._workers.shutdown()
        if cancel_futures:
            self._workers.cancel_waiting()
        if wait:
            self._workers.join()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        _sync.cannot_copy(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} max_workers={self.max_workers} lanes={list(self.lanes)}>"

    def _repr_html_(self) -> str:
        """For notebooks: its lanes."""
        return lanes_table(f"{type(self).__name__}, {self.max_workers} workers", self.lanes.values())

    # For the kinds of executors made from this one

    def _make_lane(self, subqueue: SubQueue[Ticket], settings: LaneSettings) -> Lane:
        return Lane(self._workers, self._keeper, subqueue, settings)

    def _lane(self, key: Hashable, settings: Mapping[str, Any]) -> Lane:
        """The lane of this key, made with the settings that are not UNSET if there is none."""
        named = {name: value for name, value in settings.items() if value is not UNSET}
        with self._lock:
            lane = self._lanes.get(key) or self._add_lane_locked(key, replace(self._default_settings, **named))
        if lane._is_passing:
            raise ValueError(f"the lane of key {key!r} is that of keyed(); choose another key, or ask it again")
        differing = {name: value for name, value in named.items() if value != getattr(lane.settings, name)}
        if differing:
            raise ValueError(_difference(key, lane.settings, differing))
        return lane

    def _default_lane(self) -> Lane:
        lane = self._lanes.get(DEFAULT_LANE)
        return self._lane(DEFAULT_LANE, {}) if lane is None or lane._is_passing else lane

    def _passing_lane(self, key: Hashable, settings: LaneSettings) -> Lane:
        """The lane of `keyed`, which may have gone when the caller has it."""
        with self._lock:
            lane = self._lanes.get(key) or self._add_lane_locked(key, settings, True)
        return lane

    def _add_lane_locked(self, key: Hashable, settings: LaneSettings, is_passing: bool = False) -> Lane:
        try:
            subqueue = self._workers.add_subqueue(
                key, settings.priority, settings.capacity, settings.max_in_flight, settings.weight, is_passing
            )
            lane = self._make_lane(subqueue, settings)
            lane._is_passing = is_passing  # first: `_default_lane` looks without the lock
            self._lanes[key] = lane
        except BaseException:  # an interrupt may leave a sub-queue without a lane, and its key in use
            if key not in self._lanes:
                self._workers.drop_subqueue(key)
            raise
        return lane

    def _forget_lane(self, subqueue: SubQueue[Ticket]) -> None:
        with self._lock:
            lane = self._lanes.get(subqueue.key)
            if lane is not None and lane._subqueue is subqueue:
                del self._lanes[subqueue.key]


class Keyed:
    """Where jobs of one key are submitted: made by `executor.keyed(key)`, of which any number may exist.

    All methods may be called from any thread. It keeps the executor alive, and nothing keeps it.
    """

    def __init__(self, executor: MultiQueueExecutor, key: Hashable, settings: LaneSettings) -> None:
        for name in ("capacity", "max_in_flight"):
            check_optional(name, getattr(settings, name))
        check_count("weight", settings.weight)
        check_priority(settings.priority)
        self._executor = executor
        self._key = key
        self._settings = settings

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key!r}>"

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `Lane.submit`.

        Raises:
            ValueError: `lane()` has made a lane of this key.
        """
        return self._submit(fn, args, kwargs, True)

    def submit_nowait(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `Lane.submit_nowait`."""
        return self._submit(fn, args, kwargs, False)

    def _submit(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], block: bool) -> Future[T]:
        while True:
            lane = self._executor._passing_lane(self._key, self._settings)
            if not lane._is_passing:
                raise ValueError(f"key {self._key!r} has a lane that lane() has made; submit to it, or use another key")
            try:
                return lane._submit(fn, args, kwargs, block)
            except BaseException as error:
                if not isinstance(error, RuntimeError) or lane._subqueue.statistics().is_attached:
                    self._executor._workers._retire_if_done(lane._subqueue)  # it may have no job
                    raise
                self._executor._forget_lane(lane._subqueue)  # it has gone meanwhile: make another one


def _forgetter(reference: weakref.ref[MultiQueueExecutor]) -> Callable[[SubQueue[Ticket]], None]:
    """The callback of the workers when a lane has left, which does not hold the executor."""

    def forget(subqueue: SubQueue[Ticket]) -> None:
        executor = reference()
        if executor is not None:
            executor._forget_lane(subqueue)

    return forget


def _difference(key: Hashable, has: LaneSettings, wanted: Mapping[str, Any]) -> str:
    parts = (f"{name} is {getattr(has, name)!r}, not {value!r}" for name, value in wanted.items())
    return f"lane {key!r} exists with other settings: {', '.join(parts)}; name none, the same ones, or another key"
