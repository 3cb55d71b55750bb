"""Samples: what a broker has at one moment, and the census that takes them.

Promise     A census reads again only the queues that have changed since it was last taken, so a queue that rests costs
            0.3 us. Objects that are being deleted are left out.
State       A `Census` belongs to one thread at a time; a `Sample` never changes.
Lock order  Locks of queues, exchanges and servers, each held for the moment it takes to read figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Final

from ...amqp import ChannelFigures, ConnectionFigures, Server, ServerPast
from ...broker import (
    Broker,
    BrokerClosed,
    DeclaredQueue,
    ExchangeStatistics,
    QueueStatistics,
    QueueWatch,
    VirtualHost,
    VirtualHostPast,
)
from ...store import StoreError
from .history import Figures
from .node import FIGURES as NODE_FIGURES
from .node import node_figures

DELIVERIES: Final = ("deliver_get", "deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "ack", "redeliver")
_COUNTED: Final = (
    "enqueued",
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
_SUMMED: Final = ("available", "held", "unacked", *_COUNTED)
_READ_SUMMED: Final = attrgetter(*_SUMMED)
_NO_PAST: Final = ServerPast(
    connections_created=0,
    connections_closed=0,
    channels_created=0,
    channels_closed=0,
    with_confirms={},
    confirmed={},
    returned={},
)

_MOST_SEEN: Final = 120  # samples that are kept of a channel whose oldest message is not acked

QueueKey = tuple[str, str]  # virtual host, name


@dataclass(frozen=True, slots=True)
class QueueSample:
    """One queue of a sample.

    In seconds of `Sample.time`: at `changed_at` the sample was taken that first had these figures; from
    `redelivering_since` on more messages were delivered again than left the queue.
    """

    virtual_host: str
    declared: DeclaredQueue
    figures: QueueStatistics
    changed_at: float
    redelivering_since: float | None = None

    @property
    def key(self) -> QueueKey:
        return self.virtual_host, self.declared.name


@dataclass(frozen=True, slots=True)
class Totals:
    """A virtual host, or all of them, in figures. Counters count since the broker was made, deleted objects too.

    `returned` and `dropped` are messages that no queue has; a publisher got the first ones back.
    """

    ready: int = 0
    unacked: int = 0
    published: int = 0
    routed: int = 0
    with_confirms: int = 0
    confirmed: int = 0
    returned: int = 0
    dropped: int = 0
    enqueued: int = 0
    delivered: int = 0
    delivered_no_ack: int = 0
    got: int = 0
    got_no_ack: int = 0
    got_empty: int = 0
    acked: int = 0
    redelivered: int = 0
    expired: int = 0
    dead_lettered: int = 0
    queues_declared: int = 0
    queues_created: int = 0
    queues_deleted: int = 0
    syncs: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0

    def counters(self) -> Totals:
        """The counters that go on when this virtual host is deleted; its name may come again."""
        return replace(self, ready=0, unacked=0, received_bytes=0, sent_bytes=0)


Delivering = QueueStatistics | ChannelFigures | Totals  # what counts deliveries


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of a broker at one moment. Each queue, exchange and connection is read at another moment.

    `changed` are the queues whose figures are others than in the sample before; `redelivering` those that deliver
    the same messages again and again. `unacked_since` and `held_since` say, for channels by connection and number, and
    for queues, when, in seconds of `time`, the first sample saw delivered what is unacked for longest: of each channel
    one message is looked at.
    """

    at: float  # seconds of a clock that never goes back
    wall: float  # seconds since 1970
    time: float  # the same at the first sample; it goes on as the wall clock does, but never back with it
    queues: Mapping[QueueKey, QueueSample] = field(default_factory=dict)
    changed: tuple[QueueSample, ...] = ()
    redelivering: tuple[QueueSample, ...] = ()
    unacked_since: Mapping[tuple[str, int], float] = field(default_factory=dict)
    held_since: Mapping[QueueKey, float] = field(default_factory=dict)
    exchanges: Mapping[str, Mapping[str, ExchangeStatistics]] = field(default_factory=dict)
    connections: Mapping[str, ConnectionFigures] = field(default_factory=dict)
    hosts: Mapping[str, Totals] = field(default_factory=dict)
    total: Totals = field(default_factory=Totals)
    alarms: frozenset[str] = frozenset()
    down: Mapping[str, str] = field(default_factory=dict)  # virtual hosts whose store failed, and why
    node: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(NODE_FIGURES, 0))

    def since_1970(self, time: float) -> float:
        """A time of samples, as the wall clock of this one would have told it."""
        return time - (self.time - self.wall)


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

    def of(self, hosts: Collection[str], user: str) -> Pair:
        """What a user sees of both that has rights in these virtual hosts alone: of connections its own."""
        return Pair(_part(self.latest, hosts, user), _part(self.previous, hosts, user))


class Census:
    """Takes samples of a broker, and of the server in front of it, each knowing the one before.

    Without a broker, of a program that has lanes alone, a sample holds nothing but its time.
    """

    def __init__(
        self,
        broker: Broker | None,
        server: Server | None = None,
        data: Path | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._broker = broker
        self._server = server
        self._data = data
        self._wall_clock = wall_clock
        self._last: tuple[float, float, float] | None = None  # `at`, `wall` and `time` of the sample before
        self._hosts: dict[VirtualHost, _HostCensus] = {}
        self._delivered: dict[tuple[str, int], list[tuple[float, int]]] = {}  # when channels had so many deliveries
        self._gone = Totals()  # the counters of virtual hosts that were deleted
        self._queues: dict[QueueKey, QueueSample] = {}  # of the latest sample, which never changes

    def take(self, at: float) -> Sample:
        """Read the changed objects, and return all. Any thread, one at a time."""
        broker, server = self._broker, self._server
        past = _NO_PAST if server is None else server.past()  # first: a channel that ends is not counted twice
        wall = now = self._wall_clock()
        if self._last is not None:
            last_at, last_wall, last = self._last
            # A machine that slept has a step of the wall clock alone; when that is set back, time goes on.
            now = last + max(at - last_at, wall - last_wall)
        self._last = at, wall, now
        connections = {} if server is None else {each.name: each for each in server.connection_figures()}
        exchanges: dict[str, dict[str, ExchangeStatistics]] = {}
        hosts: dict[str, Totals] = {}
        down: dict[str, str] = {}
        of_hosts: dict[str, list[ConnectionFigures]] = {}
        for each in connections.values():
            of_hosts.setdefault(each.virtual_host, []).append(each)
        changed: list[QueueSample] = []
        before, self._hosts = self._hosts, {}
        for host in () if broker is None else broker.virtual_hosts():
            name = host.name
            if host.failure is not None:
                down[name] = str(host.failure)
            census = before.get(host) or _HostCensus(host)
            try:
                gone = host.past()  # first: what goes meanwhile is not counted twice
                changed += census.look(now)
                known = host.exchange_statistics()
            except BrokerClosed:
                continue
            self._hosts[host] = census
            exchanges[name] = {each.name: each for each in known}
            closed = {each: getattr(past, each).get(name, 0) for each in ("with_confirms", "confirmed", "returned")}
            syncs = _syncs_of(host)
            census.totals = totals(census.sums, known, gone, of_hosts.get(name, []), closed, syncs, census.totals)
            hosts[name] = census.totals
        gone_since = [census.totals.counters() for host, census in before.items() if host not in self._hosts]
        self._gone = _sum([self._gone, *gone_since])
        if before.keys() != self._hosts.keys() or any(census.is_another for census in self._hosts.values()):
            self._queues = {each.key: each for census in self._hosts.values() for each in census.samples}
        elif changed:
            self._queues = self._queues | {each.key: each for each in changed}
        unacked_since, held_since = self._unacked(connections.values(), now)
        total = _sum([*hosts.values(), self._gone])
        counted = {
            "queue_declared": total.queues_declared,
            "queue_created": total.queues_created,
            "queue_deleted": total.queues_deleted,
            "io_sync_count": total.syncs,
        }
        node = {} if broker is None else {"node": node_figures(server, self._data, counted)}
        return Sample(
            at=at,
            wall=wall,
            time=now,
            queues=self._queues,
            changed=tuple(changed),
            redelivering=tuple(each for census in self._hosts.values() for each in census.redelivering.values()),
            unacked_since=unacked_since,
            held_since=held_since,
            exchanges=exchanges,
            connections=connections,
            hosts=hosts,
            total=total,
            alarms=frozenset() if server is None else server.alarms,
            down=down,
            **node,
        )

    def _unacked(
        self, connections: Iterable[ConnectionFigures], now: float
    ) -> tuple[dict[tuple[str, int], float], dict[QueueKey, float]]:
        """`Sample.unacked_since` and `held_since`. A delivery is no later than the first sample that has its tag, so no
        delivery need note its time.
        """
        before, self._delivered = self._delivered, {}
        channels: dict[tuple[str, int], float] = {}
        queues: dict[QueueKey, float] = {}
        for connection in connections:
            for channel in connection.channels:
                if channel.oldest_unacked is None:
                    continue
                tag, queue = channel.oldest_unacked
                place = connection.name, channel.number
                seen = before.get(place, [])
                if not seen or seen[-1][1] > channel.delivered:  # or another channel has its number
                    seen = [(now, channel.delivered)]
                elif seen[-1][1] < channel.delivered:
                    seen = [*(each for each in seen if each[1] >= tag), (now, channel.delivered)]
                    del seen[1:-_MOST_SEEN]  # the first is that of the oldest message
                self._delivered[place] = seen
                since = channels[place] = next((at for at, delivered in seen if delivered >= tag), now)
                key = connection.virtual_host, queue
                queues[key] = min(since, queues.get(key, since))
        return channels, queues


class _HostCensus:
    """The queues of one virtual host."""

    def __init__(self, host: VirtualHost) -> None:
        self._host = host
        self._declared: list[DeclaredQueue] = []
        self._watch = QueueWatch(())
        self.samples: list[QueueSample] = []  # Invariant: one for each of `_declared`, in their order.
        self.sums: dict[str, int] = dict.fromkeys(_SUMMED, 0)  # Invariant: of the figures of `samples`.
        self.totals: Totals = Totals()
        self.redelivering: dict[QueueKey, QueueSample] = {}  # Invariant: those of `samples`.
        self.is_another: bool = True  # the latest look found queues declared or deleted

    def look(self, now: float) -> list[QueueSample]:
        """Read the queues that have changed, at this time; returns those.

        Raises:
            BrokerClosed: the virtual host is closed.
        """
        declared = self._host.declared_queues()
        gone: list[QueueStatistics] = []  # what `sums` has and must not have any more
        known: list[QueueSample | None] = [*self.samples]
        self.is_another = declared != self._declared
        if self.is_another:
            left = {each.declared.queue: each for each in self.samples}
            known = [left.pop(each.queue, None) for each in declared]
            self._watch = QueueWatch([each.queue for each in declared], self._watch)
            self._declared = declared
            for each in left.values():
                gone.append(each.figures)
                self.redelivering.pop(each.key, None)
        changed = []
        for place, figures in self._watch.changed().items():
            before = known[place]
            if before is not None:
                gone.append(before.figures)
            since = None if before is None else _redelivering_since(before, figures, now)
            known[place] = sample = QueueSample(self._host.name, declared[place], figures, now, since)
            changed.append(sample)
            if since is not None:
                self.redelivering[sample.key] = sample
            elif before is not None:
                self.redelivering.pop(sample.key, None)
        self.samples = [each for each in known if each is not None]  # a queue that is new has changed
        self._add((each.figures for each in changed), 1)
        self._add(gone, -1)
        return changed

    def _add(self, figures: Iterable[QueueStatistics], sign: int) -> None:
        for name, column in zip(_SUMMED, zip(*map(_READ_SUMMED, figures), strict=True), strict=False):
            self.sums[name] += sign * sum(column)  # a column at once: there may be 10,000 rows, or none


def _redelivering_since(before: QueueSample, now: QueueStatistics, time: float) -> float | None:
    """A loop begins when more is delivered again than leaves, and ends when as much leaves, or nothing is there."""
    again = now.redelivered - before.figures.redelivered
    gone = now.dequeued - before.figures.dequeued
    if not now.depth:
        return None
    if again > gone:
        return time if before.redelivering_since is None else before.redelivering_since
    return None if gone else before.redelivering_since


def with_ack(figures: Delivering) -> int:
    """Deliveries to consumers that acknowledge."""
    return figures.delivered - figures.delivered_no_ack - figures.got - figures.got_no_ack


def deliveries(figures: Delivering) -> Figures:
    """The counts of messages delivered and acked, in the order of `DELIVERIES`."""
    no_ack, got, got_no_ack = figures.delivered_no_ack, figures.got, figures.got_no_ack
    settled = figures.got_empty, figures.acked, figures.redelivered
    return (figures.delivered, with_ack(figures), no_ack, got, got_no_ack, *settled)


def capacity(figures: QueueStatistics) -> float:
    """The share of a queue's consumers that could take a message at once."""
    return figures.consumers_willing / figures.consumers if figures.consumers else 0.0


def lengths(figures: QueueStatistics | Totals) -> Figures:
    """How many messages there are: all, ready, and unacked, in the order of `LENGTHS`."""
    if isinstance(figures, Totals):
        return figures.ready + figures.unacked, figures.ready, figures.unacked
    return figures.depth, figures.available + figures.held, figures.unacked


def totals(
    queues: Mapping[str, int],
    exchanges: list[ExchangeStatistics],
    gone: VirtualHostPast,
    connections: list[ConnectionFigures],
    closed: Mapping[str, int],
    syncs: int,
    before: Totals,
) -> Totals:
    """The sums over existing objects, `queues` being those over queues, and over deleted ones; `closed` are the sums
    over channels that are closed. What is read at two moments and added or subtracted falls below none of `before`.
    """
    channels = [channel for each in connections for channel in each.channels]
    sums = {
        name: max(getattr(before, name), count + sum(getattr(each, name) for each in channels))
        for name, count in closed.items()
    }
    published = gone.received + sum(each.received for each in exchanges)
    unroutable = gone.unroutable + sum(each.unroutable for each in exchanges)
    return Totals(
        ready=queues["available"] + queues["held"],
        unacked=queues["unacked"],
        published=max(before.published, published),
        routed=max(before.routed, published - unroutable),
        dropped=max(before.dropped, unroutable - sums["returned"]),
        **sums,
        **{name: max(getattr(before, name), queues[name] + getattr(gone, name)) for name in _COUNTED},
        queues_declared=gone.queues_declared,
        queues_created=gone.queues_created,
        queues_deleted=gone.queues_deleted,
        syncs=max(before.syncs, syncs),
        received_bytes=sum(each.received_bytes for each in connections),
        sent_bytes=sum(each.sent_bytes for each in connections),
    )


def _syncs_of(host: VirtualHost) -> int:
    """0 without a store, or when that is at its end: one that failed says nothing, and must not hide the others."""
    try:
        return 0 if host.store is None else host.store.statistics().syncs
    except (StoreError, OSError):
        return 0


def _part(sample: Sample, hosts: Collection[str], user: str) -> Sample:
    totals = {name: each for name, each in sample.hosts.items() if name in hosts}
    return replace(
        sample,
        queues={key: each for key, each in sample.queues.items() if key[0] in hosts},
        exchanges={name: each for name, each in sample.exchanges.items() if name in hosts},
        connections={each.name: each for each in sample.connections.values() if each.user == user},
        hosts=totals,
        total=_sum(totals.values()),
        node=dict.fromkeys(NODE_FIGURES, 0),
    )


def _sum(parts: Iterable[Totals]) -> Totals:
    totals = list(parts)
    return Totals(**{name: sum(getattr(each, name) for each in totals) for name in Totals.__dataclass_fields__})
