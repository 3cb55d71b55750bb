"""Metrics of our own: sub-queues, lanes, dispatchers, pipelines and clients, under `multiqueue_...`.

    figures = Figures()
    figures.add("inbox", inbox)            # a multi-queue
    figures.add("nightly", dispatcher)     # an executor with lanes, Spark's too
    figures.add("orders", connection)      # of multiqueue.client
    app = prometheus_client.make_asgi_app(figures.registry)

Promise     A figure is read when somebody asks, under its owner's locks, each for a moment; nothing is counted for the
            sake of it. Objects that are added are referred to weakly: one may go, and its figures go with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ...core import LinkedBlockingMultiQueue, MultiQueueExecutor, SubQueueStatistics
from .._base.errors import MonitorError
from .._figures.lanes import Lanes

Read = Callable[[Any], float | None]
Figure = tuple[str, str, Read]

_SUBQUEUE_GAUGES: Final[tuple[Figure, ...]] = (
    ("size", "Elements in a sub-queue", lambda s: s.size),
    ("capacity", "Elements that a sub-queue takes at most", lambda s: s.capacity),
    ("in_flight", "Elements taken and not completed", lambda s: s.in_flight),
    ("waiting_putters", "Threads and coroutines that wait for room", lambda s: s.waiting_putters),
    ("waiting_takers", "Threads and coroutines that wait on this sub-queue alone", lambda s: s.waiting_takers),
    ("enabled", "1 while the sub-queue is served", lambda s: float(s.is_enabled)),
)
_SUBQUEUE_COUNTERS: Final[tuple[Figure, ...]] = (
    ("put", "Elements put", lambda s: s.put),
    ("taken", "Elements taken", lambda s: s.taken),
    ("completed", "Elements that were taken and are done", lambda s: s.completed),
    ("discarded", "Elements removed, cleared or thrown away", lambda s: s.discarded),
)
_CLIENT_GAUGES: Final[tuple[Figure, ...]] = (
    ("channels", "Channels of a connection", lambda c: len(c.channels)),
    ("buffered_bytes", "Bytes of messages that wait for callbacks", lambda c: c.buffered_bytes),
    ("reading", "0 while the buffer is full and the connection is not read", lambda c: float(c.is_reading)),
    ("queued", "Deliveries that no callback has begun with", lambda c: sum(each.queued for each in c.channels)),
    ("unacked", "Deliveries that are not settled", lambda c: sum(each.unacked for each in c.channels)),
    ("unconfirmed", "Publishes that are not confirmed", lambda c: sum(each.unconfirmed for each in c.channels)),
    (
        "blocked",
        "Channels that the server lets publish nothing",
        lambda c: sum(each.blocked_for is not None for each in c.channels),
    ),
)
_CLIENT_COUNTERS: Final[tuple[Figure, ...]] = (("recoveries", "Connections made anew", lambda c: c.recoveries),)
_EXECUTOR_FAMILIES: Final[dict[str, tuple[Any, ...]]] = {  # kind, text, and labels beside the executor
    "executor_workers": (GaugeMetricFamily, "Jobs that run at once, at most"),
    "lane_waiting": (GaugeMetricFamily, "Jobs that wait in a lane", "lane"),
    "lane_running": (GaugeMetricFamily, "Jobs of a lane that run", "lane"),
    "lane_paused": (GaugeMetricFamily, "1 while a lane is paused", "lane"),
    "lane_jobs": (CounterMetricFamily, "Jobs that have ended", "lane", "outcome"),
    "lane_retries": (CounterMetricFamily, "Attempts after the first", "lane"),
    "lane_wait_seconds": (HistogramMetricFamily, "From submit to the first attempt", "lane"),
    "lane_run_seconds": (HistogramMetricFamily, "From the first attempt to the end", "lane"),
    "pipeline_items": (GaugeMetricFamily, "Items of a pipeline", "lane", "state"),
}
_ENDS: Final = ("succeeded", "failed", "timed_out", "missed", "cancelled")


class Figures(Collector):
    """The metrics of a program. `registry` has them for an exporter; any thread may add."""

    def __init__(self, lanes: Lanes | None = None) -> None:
        """Those of what is added, and of the executors that `lanes` shows."""
        self._lanes = lanes
        self._added: dict[str, weakref.ref[Any]] = {}
        self.registry: CollectorRegistry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def add(self, name: str, thing: LinkedBlockingMultiQueue[Any] | MultiQueueExecutor | Any) -> None:
        """Tell the figures of a multi-queue, an executor or a client's connection under a name of your choice.

        Raises:
            MonitorError: it is of another type.
        """
        if _kind(thing) is None:
            raise MonitorError(
                f"{name!r} is {type(thing).__name__}; figures are of a LinkedBlockingMultiQueue, a MultiQueueExecutor, "
                "a SparkDispatcher or a Connection of multiqueue.client"
            )
        self._added = {**self._added, name: weakref.ref(thing)}

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: later additions may change them."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric, of this moment."""
        known = [(name, thing) for name, reference in self._added.items() if (thing := reference()) is not None]
        by_kind: dict[str, list[tuple[str, Any]]] = {"subqueues": [], "executor": [], "connection": []}
        for name, thing in known:
            by_kind[_kind(thing) or ""].append((name, thing))
        if self._lanes is not None:
            names = {name for name, _ in by_kind["executor"]}
            books = [(book.name, book.executor()) for book in self._lanes.books() if book.name not in names]
            by_kind["executor"] += [(name, executor) for name, executor in books if executor is not None]
        yield from _subqueues(by_kind["subqueues"])
        yield from self._executors(by_kind["executor"])
        yield from _connections(by_kind["connection"])

    def _executors(self, executors: list[tuple[str, Any]]) -> Iterator[Metric]:
        if not executors:
            return
        made = {
            name: kind(f"multiqueue_{name}", text, labels=["executor", *labels])
            for name, (kind, text, *labels) in _EXECUTOR_FAMILIES.items()
        }
        waiting, running, paused = (made[f"lane_{each}"] for each in ("waiting", "running", "paused"))
        jobs, items = made["lane_jobs"], made["pipeline_items"]
        for name, executor in executors:
            made["executor_workers"].add_metric([name], executor.max_workers)
            for key, lane in executor.lanes.items():
                at = [name, str(key)]
                waiting.add_metric(at, lane.qsize())
                running.add_metric(at, lane.running)
                paused.add_metric(at, float(lane.paused))
            book = None if self._lanes is None else self._lanes.book(name)
            if hasattr(executor, "statistics"):
                for its in executor.statistics().lanes:
                    at = [name, str(its.key)]
                    for end in _ENDS:
                        jobs.add_metric([*at, end], getattr(its, end))
                    made["lane_retries"].add_metric(at, its.retries)
                    _add_histogram(made["lane_wait_seconds"], at, its.wait)
                    _add_histogram(made["lane_run_seconds"], at, its.run)
            elif book is not None:
                for lane_name, counts in book.counts().items():
                    for state, count in counts.items():
                        jobs.add_metric([name, lane_name, "succeeded" if state == "done" else state], count)
            if book is not None and book.progress is not None:
                for lane_name, states in book.progress().items():
                    for state, count in states.items():
                        items.add_metric([name, lane_name, state], count)
        yield from (each for each in made.values() if each.samples)


def _kind(thing: object) -> str | None:
    if isinstance(thing, LinkedBlockingMultiQueue):
        return "subqueues"
    if isinstance(thing, MultiQueueExecutor):
        return "executor"
    figures = getattr(thing, "statistics", None)  # a client's connection, told without importing the client
    return "connection" if callable(figures) and type(thing).__module__.startswith("multiqueue.client") else None


def _subqueues(queues: list[tuple[str, LinkedBlockingMultiQueue[Any]]]) -> Iterator[Metric]:
    found: list[tuple[list[str], SubQueueStatistics]] = [
        ([name, str(each.key)], each) for name, queue in queues for each in queue.statistics().subqueues
    ]
    if not found:
        return
    labels = ["multiqueue", "subqueue"]
    for figures, kind in ((_SUBQUEUE_GAUGES, GaugeMetricFamily), (_SUBQUEUE_COUNTERS, CounterMetricFamily)):
        for name, text, read in figures:
            metric = kind(f"multiqueue_subqueue_{name}", text, labels=labels)
            for at, its in found:
                value = read(its)
                if value is not None:  # a sub-queue without bound has no capacity
                    metric.add_metric(at, value)
            yield metric


def _connections(connections: list[tuple[str, Any]]) -> Iterator[Metric]:
    if not connections:
        return
    taken = [(name, connection.statistics()) for name, connection in connections]
    for figures, kind in ((_CLIENT_GAUGES, GaugeMetricFamily), (_CLIENT_COUNTERS, CounterMetricFamily)):
        for name, text, read in figures:
            metric = kind(f"multiqueue_client_{name}", text, labels=["connection"])
            for each, its in taken:
                metric.add_metric([each], read(its) or 0)
            yield metric


def _add_histogram(metric: HistogramMetricFamily, at: list[str], its: Any) -> None:
    buckets, below = [], 0
    for bound, count in zip((*its.bounds, float("inf")), its.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), below))
    metric.add_metric(at, buckets, sum_value=its.total)
