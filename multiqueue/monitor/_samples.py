"""Samples: what a broker has at one moment, and what happened since the sample before.

Promise     Every answer reads the latest sample; nothing is computed per request over all queues. Without requests,
            no sample is taken and the thread sleeps.
State       `_lock` guards the two latest samples and the time until which somebody looks. It is a leaf: a sample is
            taken without it, one at a time, under `_taking`, which guards the histories too.
Lock order  `_taking` -> locks of queues, exchanges and servers, each held for the moment it takes to read figures.
Waiting     The thread waits for the next interval, or for somebody to look; `close` wakes and joins it. The first who
            looks after a pause waits for one sample.
Cost        A sample reads each queue's figures under that queue's lock: microseconds per queue. When samples are dear
            the interval grows, so that sampling takes at most a fiftieth of one processor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from ..amqp import ChannelFigures, ConnectionFigures, Server, ServerPast
from ..broker import Broker, BrokerClosed, DeclaredQueue, ExchangeStatistics, QueueStatistics, VirtualHostPast
from ._history import AGES, Figures, History
from ._node import FIGURES as NODE_FIGURES
from ._node import node_figures

INTERVAL: Final = 1.0  # seconds between two samples while somebody looks
_INTEREST: Final = 30.0  # seconds that sampling goes on after the last look
_SHARE: Final = 50.0  # an interval is at least this many times what a sample takes

DELIVERIES: Final = ("deliver_get", "deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "ack", "redeliver")
_COUNTED: Final = (
    "delivered",
    "delivered_no_ack",
    "got",
    "got_no_ack",
    "got_empty",
    "acked",
    "redelivered",
    "expired",
    "dead_lettered",
)
_NO_PAST: Final = ServerPast(
    connections_created=0, connections_closed=0, channels_created=0, channels_closed=0, confirmed={}, returned={}
)

QueueKey = tuple[str, str]  # virtual host, name


@dataclass(frozen=True, slots=True)
class QueueSample:
    """One queue of a sample."""

    virtual_host: str
    declared: DeclaredQueue
    figures: QueueStatistics


@dataclass(frozen=True, slots=True)
class Totals:
    """A virtual host, or all of them, in figures. Counters count since the broker was made, also what is gone.

    `returned` and `dropped` are messages that no queue has; a publisher got the first ones back.
    """

    ready: int = 0
    unacked: int = 0
    published: int = 0
    confirmed: int = 0
    returned: int = 0
    dropped: int = 0
    delivered: int = 0
    delivered_no_ack: int = 0
    got: int = 0
    got_no_ack: int = 0
    got_empty: int = 0
    acked: int = 0
    redelivered: int = 0
    expired: int = 0
    dead_lettered: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0


Delivering = QueueStatistics | ChannelFigures | Totals  # what counts deliveries


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of a broker at one moment. Each queue, exchange and connection is of a moment of its own."""

    at: float  # seconds of a clock that never goes back
    wall: float  # seconds since 1970
    queues: Mapping[QueueKey, QueueSample] = field(default_factory=dict)
    exchanges: Mapping[str, Mapping[str, ExchangeStatistics]] = field(default_factory=dict)
    connections: Mapping[str, ConnectionFigures] = field(default_factory=dict)
    hosts: Mapping[str, Totals] = field(default_factory=dict)
    total: Totals = field(default_factory=Totals)
    alarms: frozenset[str] = frozenset()
    node: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(NODE_FIGURES, 0))


@dataclass(frozen=True, slots=True)
class Pair:
    """The latest sample and the one before it; the same twice when there is only one."""

    latest: Sample
    previous: Sample

    @property
    def seconds(self) -> float:
        """Between the two; 0 when there is only one."""
        return self.latest.at - self.previous.at

    def rate(self, now: float, before: float) -> float:
        """A counter's growth per second; never below 0, and 0 when there is only one sample."""
        return max(0.0, (now - before) / self.seconds) if self.seconds > 0 else 0.0


class Sampler:
    """Takes samples of a broker, and of the server in front of it, while somebody looks.

    Without a broker, of a program that has lanes alone, a sample holds nothing but its time.
    """

    def __init__(
        self,
        broker: Broker | None,
        server: Server | None = None,
        *,
        data: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._server = server
        self._data = data
        self._clock = clock
        self._taking = threading.Lock()
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._pair: Pair | None = None
        self._queues = History(("messages", "messages_ready", "messages_unacknowledged", "publish", *DELIVERIES))
        self._hosts = History((*self._queues.names, "recv_oct", "send_oct"))  # by name; None: all virtual hosts
        self._connections = History(("recv_oct", "send_oct"))  # by name
        self._nodes = History(NODE_FIGURES)  # of one, by None
        self._looked_at = float("-inf")
        self._interval = INTERVAL
        self._is_stale = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def look(self) -> Pair:
        """The two latest samples. Blocks for one sample when none was taken lately; any thread may call."""
        now = self._clock()
        with self._lock:
            pair = self._fresh_locked(now)
            at_least = float("inf") if self._is_stale else now - 2 * self._interval
            self._is_stale = False
        return self._take(at_least) if pair is None else pair

    def fresh(self) -> Pair | None:
        """The two latest samples, without waiting; None where `look` would take one. It counts as a look."""
        with self._lock:
            return self._fresh_locked(self._clock())

    def _fresh_locked(self, now: float) -> Pair | None:
        self._looked_at = now
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="multiqueue-monitor-sampler", daemon=True)
            self._thread.start()
        self._wake.notify()
        pair = self._pair
        if pair is None or self._is_stale or pair.latest.at < now - 2 * self._interval:
            return None
        return pair

    def add_samples(
        self,
        view: dict[str, Any],
        query: Mapping[str, str],
        kind: Literal["queue", "host", "connection", "node"],
        key: QueueKey | str | None = None,
    ) -> None:
        """Put what was into a view, where the query asks. The key of all virtual hosts is None, and the node's."""
        if not any(f"{name}_age" in query for name in AGES):
            return
        with self._taking:
            with self._lock:
                pair = self._pair
            if pair is not None:
                histories = {
                    "queue": self._queues,
                    "host": self._hosts,
                    "connection": self._connections,
                    "node": self._nodes,
                }
                histories[kind].add_samples(view, key, pair.latest.wall, query)

    def refresh(self) -> Pair:
        """A sample of now: for those who have just changed something and look at it next."""
        return self._take(at_least=self._clock())

    def expire(self) -> None:
        """Something was changed: the next look takes a sample."""
        with self._lock:
            self._is_stale = True

    def close(self) -> None:
        """End the thread. Twice is harmless."""
        with self._lock:
            self._closed = True
            self._wake.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    # -- taking samples

    def _take(self, at_least: float) -> Pair:
        with self._taking:
            with self._lock:
                if self._pair is not None and self._pair.latest.at >= at_least:
                    return self._pair  # another thread was faster
                previous = self._pair
            began, cpu = self._clock(), time.thread_time()
            sample = take_sample(self._broker, self._server, began, self._data)
            before = sample if previous is None or self._is_forgotten(previous, began) else previous.latest
            pair = Pair(sample, before)
            self._queues.note(
                sample.wall, ((key, _of_queue(each)) for key, each in sample.queues.items()), len(sample.queues)
            )
            hosts: list[tuple[str | None, Totals]] = [(None, sample.total), *sample.hosts.items()]
            self._hosts.note(sample.wall, ((name, _of_totals(each)) for name, each in hosts), len(hosts))
            bytes_of = ((each.name, (each.received_bytes, each.sent_bytes)) for each in sample.connections.values())
            self._connections.note(sample.wall, bytes_of, len(sample.connections))
            self._nodes.note(sample.wall, [(None, tuple(sample.node.values()))], 1)
            cost = time.thread_time() - cpu  # not the clock's: on a busy machine no time would be short enough
            with self._lock:
                self._pair = pair
                self._interval = max(INTERVAL, cost * _SHARE)
            return pair

    def _is_forgotten(self, pair: Pair, now: float) -> bool:
        """The last request is long ago: a rate since then would be of another time."""
        return now - pair.latest.at > _INTEREST

    def _run(self) -> None:
        while self._wait_for_turn():
            self._take(at_least=self._clock())

    def _wait_for_turn(self) -> bool:
        """Wait until the next sample is due and somebody looks; False when it is to end."""
        with self._lock:
            while not self._closed:
                now = self._clock()
                if now - self._looked_at > _INTEREST:
                    self._wake.wait()
                    continue
                due = now if self._pair is None else self._pair.latest.at + self._interval
                if due <= now:
                    return True
                self._wake.wait(due - now)
            return False


def take_sample(broker: Broker | None, server: Server | None, at: float, data: Path | None = None) -> Sample:
    """Read every figure once. Any thread; takes microseconds per queue and connection."""
    past = _NO_PAST if server is None else server.past()  # first: a channel that ends meanwhile is not counted twice
    connections = {} if server is None else {each.name: each for each in server.connection_figures()}
    queues: dict[QueueKey, QueueSample] = {}
    exchanges: dict[str, dict[str, ExchangeStatistics]] = {}
    hosts: dict[str, Totals] = {}
    for host in () if broker is None else broker.virtual_hosts():
        name = host.name
        try:
            declared = host.declared_queues()
            known = host.exchange_statistics()
            gone = host.past()
        except BrokerClosed:
            continue
        sampled = {(name, each.name): QueueSample(name, each, each.queue.statistics()) for each in declared}
        queues.update(sampled)
        exchanges[name] = {each.name: each for each in known}
        mine = [each for each in connections.values() if each.virtual_host == name]
        figures = [each.figures for each in sampled.values()]
        hosts[name] = _totals(figures, known, gone, mine, past.confirmed.get(name, 0), past.returned.get(name, 0))
    node = {} if broker is None else {"node": node_figures(broker, server, data)}
    return Sample(
        at=at,
        wall=time.time(),
        queues=queues,
        exchanges=exchanges,
        connections=connections,
        hosts=hosts,
        total=_sum(hosts.values()),
        alarms=frozenset() if server is None else server.alarms,
        **node,
    )


def deliveries(figures: Delivering) -> Figures:
    """The counts of messages delivered and acked, in the order of `DELIVERIES`."""
    no_ack, got, got_no_ack = figures.delivered_no_ack, figures.got, figures.got_no_ack
    delivered = figures.delivered
    with_ack = delivered - no_ack - got - got_no_ack
    return delivered, with_ack, no_ack, got, got_no_ack, figures.got_empty, figures.acked, figures.redelivered


def _of_queue(sample: QueueSample) -> Figures:
    now = sample.figures
    return (now.depth, now.available + now.held, now.unacked, now.enqueued, *deliveries(now))


def _of_totals(now: Totals) -> Figures:
    lengths = (now.ready + now.unacked, now.ready, now.unacked)
    return (*lengths, now.published, *deliveries(now), now.received_bytes, now.sent_bytes)


def _totals(
    queues: list[QueueStatistics],
    exchanges: list[ExchangeStatistics],
    gone: VirtualHostPast,
    connections: list[ConnectionFigures],
    confirmed: int,
    returned: int,
) -> Totals:
    """The sums over what there is, and over what is gone: `confirmed` and `returned` are of closed channels."""
    counted: list[QueueStatistics | VirtualHostPast] = [*queues, gone]
    channels = [channel for each in connections for channel in each.channels]
    came_back = returned + sum(each.returned for each in channels)
    unroutable = gone.unroutable + sum(each.unroutable for each in exchanges)
    return Totals(
        ready=sum(each.available + each.held for each in queues),
        unacked=sum(each.unacked for each in queues),
        published=gone.received + sum(each.received for each in exchanges),
        confirmed=confirmed + sum(each.confirmed for each in channels),
        returned=came_back,
        dropped=max(0, unroutable - came_back),
        **{name: sum(getattr(each, name) for each in counted) for name in _COUNTED},
        received_bytes=sum(each.received_bytes for each in connections),
        sent_bytes=sum(each.sent_bytes for each in connections),
    )


def _sum(parts: Iterable[Totals]) -> Totals:
    totals = list(parts)
    return Totals(**{name: sum(getattr(each, name) for each in totals) for name in Totals.__dataclass_fields__})
