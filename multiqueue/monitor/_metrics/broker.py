"""Prometheus metrics: RabbitMQ's names for what the broker has.

`/metrics` sums over all objects, `/metrics/per-object` has a line for each queue, connection and channel, and
`/metrics/detailed?family=...` has those of some families under `rabbitmq_detailed_...`. All of them read the latest
sample. A program that has another registry registers `BrokerCollector` there.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as PrometheusSample

from ...amqp import Server, open_files_limit
from ...broker import FairStatistics, QueueKind, QueueStatistics, TenantStatistics
from .._api.views import NODE, channel_name
from .._base.pieces import gathered
from .._figures.sampler import Sampler
from .._figures.samples import Sample, Totals, capacity, with_ack

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LINES: Final = 1000  # of one piece
QUEUE_TYPE: Final = "rabbit_classic_queue"
Read = Callable[[QueueStatistics], float]
ReadDeliveries = Callable[[QueueStatistics | Totals], float]
Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)

_QUEUE_GAUGES: Final[dict[str, dict[str, tuple[str, Read]]]] = {
    "queue_coarse_metrics": {
        "queue_messages_ready": ("Messages ready to be delivered to consumers", lambda q: q.available + q.held),
        "queue_messages_unacked": ("Messages delivered to consumers but not yet acknowledged", lambda q: q.unacked),
        "queue_messages": ("Sum of ready and unacknowledged messages - total queue depth", lambda q: q.depth),
    },
    "queue_consumer_count": {"queue_consumers": ("Consumers on a queue", lambda q: q.consumers)},
    "queue_metrics": {
        "queue_consumer_capacity": ("Consumer capacity", capacity),
        "queue_consumer_utilisation": ("Same as consumer capacity", capacity),
        "queue_messages_bytes": ("Size in bytes of ready and unacknowledged messages", lambda q: q.depth_bytes),
        "queue_messages_ready_bytes": ("Size in bytes of ready messages", lambda q: q.available_bytes),
        "queue_messages_unacked_bytes": ("Size in bytes of all unacknowledged messages", lambda q: q.unacked_bytes),
    },
}
# The sums count also what is gone: a counter that falls reads as one that began anew.
_QUEUE_COUNTERS: Final[dict[str, tuple[str, ReadDeliveries]]] = {
    "queue_messages_published": ("Total number of messages published to queues", lambda q: q.enqueued),
    "queue_get": ("Total number of messages fetched with basic.get in automatic mode", lambda q: q.got_no_ack),
    "queue_get_ack": ("Total number of messages fetched with basic.get in manual mode", lambda q: q.got),
    "queue_get_empty": ("Total number of times basic.get fetched no message", lambda q: q.got_empty),
    "queue_messages_delivered": (
        "Total number of messages delivered to consumers in automatic acknowledgement mode",
        lambda q: q.delivered_no_ack,
    ),
    "queue_messages_delivered_ack": (
        "Total number of messages delivered to consumers in manual acknowledgement mode",
        with_ack,
    ),
    "queue_messages_acked": ("Total number of messages acknowledged", lambda q: q.acked),
    "queue_messages_redelivered": ("Total number of messages redelivered", lambda q: q.redelivered),
    "queue_messages_expired": ("Total number of messages whose time to live ended", lambda q: q.expired),
    "queue_messages_dead_lettered": ("Total number of messages dead-lettered", lambda q: q.dead_lettered),
}
_MOST_TENANTS: Final = 20  # of one queue: a label for each of ten thousand would be ten thousand series
_TENANTS: Final[
    Sequence[tuple[str, str, Callable[[FairStatistics], float | None], Callable[[Iterable[float]], float]]]
] = (
    ("tenants", "Tenants of fair queues that have messages", lambda found: found.tenants, sum),
    (
        "tenant_longest_wait_seconds",
        "For how long the message of a fair queue has waited that waits for longest",
        lambda found: max((each.longest_wait for each in found.largest), default=0.0),
        max,
    ),
    (
        "tenant_jain_index",
        "Jain's index of what tenants were served in the last minute by cost and weight; the least of all queues",
        lambda found: found.jain,
        min,
    ),
)
_TENANT_GAUGES: Final[Sequence[tuple[str, str, Callable[[TenantStatistics], float]]]] = (
    ("messages_ready", "Messages of a tenant that wait", lambda each: each.waiting),
    ("messages_unacked", "Messages of a tenant that consumers have", lambda each: each.in_flight),
    ("share", "Share of a tenant in what was served in the last minute", lambda each: each.share),
    ("fair_share", "Share of a tenant by its weight", lambda each: each.fair_share),
)
_SHARES: Final = ("queue_consumer_capacity", "queue_consumer_utilisation")  # of no meaning as sums
_FAMILIES: Final = (*_QUEUE_GAUGES, "queue_delivery_metrics", "connection_coarse_metrics", "channel_metrics")


class BrokerCollector(Collector):
    """A broker's metrics for a registry; `per_object` gives each queue, connection and channel a line."""

    def __init__(
        self, sampler: Sampler, server: Server | None, version: str, release: str, *, per_object: bool = False
    ) -> None:
        self._sampler = sampler
        self._server = server
        self._version = version
        self._release = release  # of the RabbitMQ whose rules hold
        self._began = time.monotonic()
        self._per_object = per_object

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: a registry need not look into the broker to know its names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric, of the latest sample."""
        sample = self._sampler.look().latest
        yield from self._identity()
        yield from self._process(sample)
        yield from _counts(sample)
        yield from _traffic(sample)
        hosts = GaugeMetricFamily("rabbitmq_cluster_vhost_status", "Whether a given vhost is running", labels=["vhost"])
        for name in sample.hosts:
            hosts.add_metric([name], float(name not in sample.down))
        yield hosts
        yield from _troubles(sample, self._per_object)
        yield from _tenants(sample, self._per_object)
        for families in _QUEUE_GAUGES.values():
            yield from _queue_gauges("rabbitmq_", families, sample, self._per_object)
        yield from _queue_counters("rabbitmq_", sample, self._per_object)
        yield from _connections("rabbitmq_", sample, self._per_object)
        yield from _channels("rabbitmq_", sample, self._per_object)

    def _identity(self) -> Iterator[Metric]:
        labels = {
            "rabbitmq_version": self._release,
            "prometheus_plugin_version": self._release,
            "product_name": "multiqueue",
            "product_version": self._version,
        }
        yield _labelled("build_info", "The server, and the version of RabbitMQ whose names these are", labels)
        yield _identity_of("per-object" if self._per_object else "aggregated")

    def _process(self, sample: Sample) -> Iterator[Metric]:
        limits = None if self._server is None else self._server.settings
        memory = None if limits is None else limits.memory_limit_bytes
        files = open_files_limit()
        for name, text, value in (
            ("erlang_uptime_seconds", "Seconds since the server began", time.monotonic() - self._began),
            ("process_resident_memory_bytes", "Memory used in bytes", sample.node["mem_used"]),
            ("process_open_fds", "Open file descriptors", sample.node["fd_used"]),
            ("process_max_fds", "Open file descriptors limit", files),
            ("process_open_tcp_sockets", "Open TCP sockets", sample.node["sockets_used"]),
            (
                "process_max_tcp_sockets",
                "Open TCP sockets limit",
                files if self._server is None else self._server.max_connections,
            ),
            ("resident_memory_limit_bytes", "Memory high watermark in bytes", memory),
            ("disk_space_available_bytes", "Disk space available in bytes", sample.node["disk_free"]),
            (
                "disk_space_available_limit_bytes",
                "Free disk space low watermark in bytes",
                0 if limits is None else limits.disk_free_limit_bytes or 0,
            ),
            ("alarms_memory_used_watermark", "is 1 if VM memory watermark alarm is in effect", "memory"),
            ("alarms_free_disk_space_watermark", "is 1 if free disk space watermark alarm is in effect", "disk"),
            ("alarms_file_descriptor_limit", "is 1 if file descriptor limit alarm is in effect", "file descriptors"),
        ):
            if isinstance(value, str):
                value = value in sample.alarms
            if value is not None:  # a server without a limit of memory
                yield GaugeMetricFamily(f"rabbitmq_{name}", text, value=value)


def _identity_of(endpoint: str) -> Metric:
    """What dashboards and alerts join the other figures of a page with."""
    labels = {
        "rabbitmq_node": NODE,
        "rabbitmq_cluster": NODE,
        "rabbitmq_cluster_permanent_id": NODE,
        "rabbitmq_endpoint": endpoint,
    }
    return _labelled("identity_info", "RabbitMQ node & cluster identity info", labels)


def _labelled(name: str, text: str, labels: dict[str, str], value: int = 1) -> Metric:
    metric = GaugeMetricFamily(f"rabbitmq_{name}", text, labels=list(labels))
    metric.add_metric(list(labels.values()), value)
    return metric


def _counts(sample: Sample) -> Iterator[Metric]:
    """How many of each there are, and how many came and went."""
    channels = sum(len(each.channels) for each in sample.connections.values())
    consumers = sum(each.figures.consumers for each in sample.queues.values())
    for name, text, value in (
        ("connections", "Connections currently open", len(sample.connections)),
        ("channels", "Channels currently open", channels),
        ("consumers", "Consumers currently connected", consumers),
        ("queues", "Queues available", len(sample.queues)),
    ):
        yield GaugeMetricFamily(f"rabbitmq_{name}", text, value=value)
    for name, text, figure in (
        ("connections_opened", "Total number of connections opened", "connection_created"),
        ("connections_closed", "Total number of connections closed or terminated", "connection_closed"),
        ("channels_opened", "Total number of channels opened", "channel_created"),
        ("channels_closed", "Total number of channels closed", "channel_closed"),
        ("queues_declared", "Total number of queues declared", "queue_declared"),
        ("queues_created", "Total number of queues created", "queue_created"),
        ("queues_deleted", "Total number of queues deleted", "queue_deleted"),
        ("io_sync_ops", "Total number of I/O sync operations", "io_sync_count"),
    ):
        yield CounterMetricFamily(f"rabbitmq_{name}", text, value=sample.node[figure])


def _traffic(sample: Sample) -> Iterator[Metric]:
    """What publishers sent, and consumers got, since the broker began."""
    total = sample.total
    channels = [channel for each in sample.connections.values() for channel in each.channels]
    publishers = sum(each.published > 0 for each in channels)
    consumers = sum(len(each.consumers) for each in channels)
    protocol = {"protocol": "amqp091"}
    yield _labelled(
        "global_publishers", "Current number of publishers: channels that have published", protocol, publishers
    )
    yield _labelled("global_consumers", "Current number of consumers of connections", protocol, consumers)
    yield from _global(
        protocol,
        ("received", "Total number of messages received from publishers", total.published),
        ("received_confirm", "Total number of messages from publishers expecting confirmations", total.with_confirms),
        ("routed", "Total number of messages routed to queues or streams", total.routed),
        ("confirmed", "Total number of messages confirmed to publishers", total.confirmed),
        ("unroutable_returned", "Total number of mandatory messages that no queue took", total.returned),
        ("unroutable_dropped", "Total number of other messages that no queue took", total.dropped),
    )
    yield from _global(
        {**protocol, "queue_type": QUEUE_TYPE},
        ("delivered", "Total number of messages delivered to consumers", total.delivered),
        (
            "delivered_consume_manual_ack",
            "Total number of messages delivered to consumers with manual acknowledgment",
            with_ack(total),
        ),
        (
            "delivered_consume_auto_ack",
            "Total number of messages delivered to consumers with automatic acknowledgment",
            total.delivered_no_ack,
        ),
        ("delivered_get_manual_ack", "Total number of messages got with manual acknowledgment", total.got),
        ("delivered_get_auto_ack", "Total number of messages got with automatic acknowledgment", total.got_no_ack),
        ("get_empty", "Total number of times basic.get found no message", total.got_empty),
        ("redelivered", "Total number of messages redelivered to consumers", total.redelivered),
        ("acknowledged", "Total number of messages acknowledged by consumers", total.acked),
        ("dead_lettered", "Total number of messages dead-lettered", total.dead_lettered),
    )
    for name, text, count in (
        ("published", "Total number of messages published into exchanges", total.published),
        ("confirmed", "Total number of messages confirmed to publishers", total.confirmed),
        ("unroutable_returned", "Total number of mandatory messages that no queue took", total.returned),
        ("unroutable_dropped", "Total number of other messages that no queue took", total.dropped),
    ):
        yield CounterMetricFamily(f"rabbitmq_channel_messages_{name}", text, value=count)


def _troubles(sample: Sample, per_object: bool) -> Iterator[Metric]:
    """What somebody should look at, under names of ours: RabbitMQ has none for it."""
    loops = [(each.key, sample.time - (each.redelivering_since or sample.time)) for each in sample.redelivering]
    held = [(key, sample.time - since) for key, since in sample.held_since.items()]
    for name, text, rows in (
        ("redelivering_seconds", "For how long a queue has delivered the same messages again and again", loops),
        ("oldest_unacked_seconds", "For how long a consumer has had a message without an ack", held),
    ):
        labels = ["vhost", "queue"] if per_object else []
        metric = GaugeMetricFamily(f"multiqueue_queue_{name}", text, labels=labels)
        for key, seconds in rows if per_object else [((), max((seconds for _, seconds in rows), default=0.0))]:
            metric.add_metric(list(key), seconds)
        yield metric
    states = GaugeMetricFamily(
        "multiqueue_connections", "Connections by state: an alarm blocks those that publish", labels=["state"]
    )
    count = Counter(each.state for each in sample.connections.values())
    for state in ("running", "flow", "blocking", "blocked"):
        states.add_metric([state], count[state])
    yield states


def _tenants(sample: Sample, per_object: bool) -> Iterator[Metric]:
    """Tenants of fair queues, read now; of each queue the largest by name, and the others as one, with `rest="yes"`."""
    queues = [(key, each.declared.queue) for key, each in sample.queues.items()]
    fair = [(key, queue.tenants()) for key, queue in queues if queue.settings.kind is QueueKind.FAIR]
    for name, text, read, together in _TENANTS:
        values: list[tuple[Sequence[str], float]] = [
            (key, value) for key, found in fair if (value := read(found)) is not None
        ]
        if values and not per_object:
            values = [((), together(value for _, value in values))]
        metric = GaugeMetricFamily(f"multiqueue_queue_{name}", text, labels=["vhost", "queue"] if per_object else [])
        for labels, value in values:
            metric.add_metric(labels, value)
        yield metric
    for name, text, of_one in _TENANT_GAUGES if per_object else ():
        metric = GaugeMetricFamily(f"multiqueue_queue_tenant_{name}", text, labels=["vhost", "queue", "tenant", "rest"])
        for key, found in fair:
            for each in found.largest[:_MOST_TENANTS]:
                metric.add_metric([*key, each.name, "no"], of_one(each))
            if rest := found.largest[_MOST_TENANTS:]:
                metric.add_metric([*key, "", "yes"], sum(map(of_one, rest)))
        yield metric


def _global(labels: dict[str, str], *rows: tuple[str, str, int]) -> Iterator[Metric]:
    for name, text, count in rows:
        metric = CounterMetricFamily(f"rabbitmq_global_messages_{name}", text, labels=list(labels))
        metric.add_metric(list(labels.values()), count)
        yield metric


class DetailedCollector(Collector):
    """Some families, a line for each object, under `rabbitmq_detailed_`."""

    def __init__(self, sampler: Sampler, families: Sequence[str]) -> None:
        self._sampler = sampler
        self._families = families

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand, as `BrokerCollector`."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families that were asked for; unknown ones are passed over, as by RabbitMQ."""
        yield _identity_of("detailed")
        sample = self._sampler.look().latest
        for family in self._families:
            if family in _QUEUE_GAUGES:
                yield from _queue_gauges("rabbitmq_detailed_", _QUEUE_GAUGES[family], sample, True)
            elif family == "queue_delivery_metrics":
                yield from _queue_counters("rabbitmq_detailed_", sample, True)
            elif family == "connection_coarse_metrics":
                yield from _connections("rabbitmq_detailed_", sample, True)
            elif family == "channel_metrics":
                yield from _channels("rabbitmq_detailed_", sample, True)


class Metrics:
    """The three pages of metrics."""

    def __init__(self, sampler: Sampler, sums: Iterable[Collector], objects: Iterable[Collector]) -> None:
        self._sampler = sampler
        self._sums = _registry(sums)
        self._objects = _registry(objects)

    def exposition(self, path: str, families: Sequence[str]) -> Iterator[bytes] | None:
        """The text of a page, in pieces of up to a thousand lines, or None."""
        match path.rstrip("/"):
            case "/metrics":
                registry = self._sums
            case "/metrics/per-object":
                registry = self._objects
            case "/metrics/detailed":
                registry = _registry([DetailedCollector(self._sampler, list(dict.fromkeys(families)))])
            case _:
                return None
        return gathered(itertools.chain.from_iterable(map(_lines, registry.collect())))


def _lines(metric: Metric) -> Iterator[bytes]:
    """A metric as text. In pieces: 100,000 queues are 95 MB."""
    samples = iter(metric.samples)
    is_first = True
    while (some := list(itertools.islice(samples, _LINES))) or is_first:
        part = copy.copy(metric)
        part.samples = some
        text = generate_latest(_Alone(part))
        yield text if is_first else text.split(b"\n", 2)[2]  # the metric's two lines of comment stand once
        is_first = False


class _Alone:
    """A registry with one metric, as `generate_latest` asks for it."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [self._metric]


def _registry(collectors: Iterable[Collector]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    for each in collectors:
        registry.register(each)
    return registry


def _queue_gauges(
    prefix: str, figures: dict[str, tuple[str, Read]], sample: Sample, per_object: bool
) -> Iterator[Metric]:
    for name, (text, read) in figures.items():
        if per_object:
            yield _per_queue(GaugeMetricFamily(prefix + name, text, labels=["vhost", "queue"]), read, sample)
        elif name not in _SHARES:
            yield GaugeMetricFamily(
                prefix + name, text, value=sum(read(each.figures) for each in sample.queues.values())
            )


def _queue_counters(prefix: str, sample: Sample, per_object: bool) -> Iterator[Metric]:
    for name, (text, read) in _QUEUE_COUNTERS.items():
        if per_object:
            yield _per_queue(CounterMetricFamily(prefix + name, text, labels=["vhost", "queue"]), read, sample)
        else:
            yield CounterMetricFamily(prefix + name, text, value=read(sample.total))


def _per_queue(metric: Family, read: Read | ReadDeliveries, sample: Sample) -> Family:
    name = f"{metric.name}_total" if isinstance(metric, CounterMetricFamily) else metric.name
    metric.samples = _Samples(
        lambda: (
            PrometheusSample(name, {"vhost": each.virtual_host, "queue": each.declared.name}, read(each.figures))
            for each in sample.queues.values()
        )
    )
    return metric


class _Samples(list[PrometheusSample]):
    """Samples that are made while they are gone through."""

    def __init__(self, make: Callable[[], Iterator[PrometheusSample]]) -> None:
        super().__init__()
        self._make = make

    def __iter__(self) -> Iterator[PrometheusSample]:
        return self._make()


def _connections(prefix: str, sample: Sample, per_object: bool) -> Iterator[Metric]:
    connections = list(sample.connections.values())
    names = [each.name for each in connections]
    received, sent = [each.received_bytes for each in connections], [each.sent_bytes for each in connections]
    for kind, name, text, values in (
        (CounterMetricFamily, "incoming_bytes", "Total number of bytes received on a connection", received),
        (CounterMetricFamily, "outgoing_bytes", "Total number of bytes sent on a connection", sent),
        (GaugeMetricFamily, "channels", "Channels on a connection", [len(each.channels) for each in connections]),
    ):
        yield _of_each(kind, f"{prefix}connection_{name}", text, "connection", names if per_object else None, values)


def _channels(prefix: str, sample: Sample, per_object: bool) -> Iterator[Metric]:
    pairs = [(connection, channel) for connection in sample.connections.values() for channel in connection.channels]
    names = [channel_name(*pair) for pair in pairs]
    for name, text, values in (
        ("consumers", "Consumers on a channel", [len(channel.consumers) for _, channel in pairs]),
        ("messages_unacked", "Delivered but not yet acknowledged messages", [each.unacked for _, each in pairs]),
        ("messages_unconfirmed", "Published but not yet confirmed messages", [each.unconfirmed for _, each in pairs]),
    ):
        shown = names if per_object else None
        yield _of_each(GaugeMetricFamily, f"{prefix}channel_{name}", text, "channel", shown, values)


def _of_each(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    names: Sequence[str] | None,
    values: Sequence[int],
) -> Metric:
    """A line for each name, or their sum without names."""
    if names is None:
        return kind(name, text, value=sum(values))
    metric = kind(name, text, labels=[label])
    for each, value in zip(names, values, strict=True):
        metric.add_metric([each], value)
    return metric
