"""RabbitMQ's JSON for what a sample has: one function for each kind of object.

The field names are those of the management plugin of RabbitMQ 4.3, and those that only 3.10 has. A figure that this
broker does not have (Erlang's reductions, garbage collections of a process) is left out instead of being made up. Pure:
no lock, no I/O.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from ...amqp import RABBITMQ_HASH, ChannelFigures, ConnectionFigures, ConsumerFigures, Permissions, User
from ...broker import (
    Binding,
    DeclaredQueue,
    DelayedRetry,
    Exchange,
    FairStatistics,
    HostMetadata,
    Policy,
    QueueConsumer,
    QueueSettings,
    QueueStatistics,
)
from .._figures.history import LENGTHS, OCTETS
from .._figures.node import CHURN, COUNTERS, GAUGES
from .._figures.samples import (
    DELIVERIES,
    Delivering,
    Pair,
    QueueKey,
    QueueSample,
    Totals,
    capacity,
    deliveries,
    lengths,
)

View = dict[str, Any]
ViewLater = Callable[[], View]
"""Makes a view when it is written: all views of a long list together would take gigabytes."""

_TYPES: Final = ("direct", "fanout", "headers", "topic")
LOOP: Final = 10.0  # seconds of redelivery that are a loop, and not a consumer that began anew
_LONGEST_NAME: Final = 255  # characters
_MOST_LOOPS: Final = 10  # queues that are named
NODE: Final = f"multiqueue@{socket.gethostname().partition('.')[0]}"


Counted = tuple[str, int, int]
"""A figure that only grows, under RabbitMQ's name, now and in the sample before."""


def counted(pair: Pair, counters: Iterable[Counted]) -> View:
    """Counters with their rates, as RabbitMQ writes them."""
    view: View = {}
    seconds = pair.seconds
    for name, now, before in counters:
        grown = now - before  # almost every counter of 10,000 queues rests
        view[name] = now
        view[f"{name}_details"] = {"rate": round(grown / seconds, 3) if grown > 0 < seconds else 0.0}
    return view


def gauges(pair: Pair, figures: Mapping[str, tuple[int, int]]) -> View:
    """Gauges with how fast they change per second, as RabbitMQ writes them."""
    view: View = {}
    for name, (now, before) in figures.items():
        rate = (now - before) / pair.seconds if pair.seconds > 0 else 0.0
        view[name] = now
        view[f"{name}_details"] = {"rate": round(rate, 3)}
    return view


def lengths_view(pair: Pair, now: QueueStatistics | Totals, before: QueueStatistics | Totals) -> View:
    """Depths of a queue, of a virtual host, or of all."""
    return gauges(pair, dict(zip(LENGTHS, zip(lengths(now), lengths(before), strict=True), strict=True)))


def octets(pair: Pair, now: ConnectionFigures | Totals, before: ConnectionFigures | Totals) -> View:
    """The bytes of a connection, or of those of a virtual host."""
    now_and_before = (now.received_bytes, now.sent_bytes), (before.received_bytes, before.sent_bytes)
    return counted(pair, zip(OCTETS, *now_and_before, strict=True))


def delivery_stats(now: Delivering, before: Delivering) -> Iterable[Counted]:
    """The counts of messages delivered and acked, as `counted` wants them."""
    return zip(DELIVERIES, deliveries(now), deliveries(before), strict=True)


# -- queues


def figures_before(pair: Pair, sample: QueueSample) -> QueueStatistics:
    """A queue's figures in the sample before; those of now when it was not there."""
    last = pair.previous.queues.get((sample.virtual_host, sample.declared.name))
    return sample.figures if last is None or last.declared.queue is not sample.declared.queue else last.figures


def queue_orders(pair: Pair) -> dict[str, Callable[[QueueSample], Any]]:
    """The columns of `queue_view` by which 10,000 queues can be sorted without making 10,000 views."""

    def rate(read: Callable[[QueueStatistics], int]) -> Callable[[QueueSample], float]:
        return lambda each: round(pair.rate(read(each.figures), read(figures_before(pair, each))), 3)

    return {
        "name": lambda each: each.declared.name,
        "vhost": lambda each: each.virtual_host,
        **{name: partial(_length, place) for place, name in enumerate(LENGTHS)},
        "message_bytes": lambda each: each.figures.depth_bytes,
        "consumers": lambda each: each.figures.consumers,
        "message_stats.publish_details.rate": rate(lambda figures: figures.enqueued),
        "message_stats.deliver_get_details.rate": rate(lambda figures: figures.delivered),
        "message_stats.ack_details.rate": rate(lambda figures: figures.acked),
    }


def _length(place: int, sample: QueueSample) -> int:
    return lengths(sample.figures)[place]


def queue_view(pair: Pair, sample: QueueSample) -> View:
    """One queue, as in a list of queues."""
    declared, now = sample.declared, sample.figures
    settings, governing = declared.queue.settings, declared.queue.governing
    before = figures_before(pair, sample)
    connection = pair.latest.connections.get(getattr(declared.owner, "name", ""))
    type = queue_type(declared)
    owner = {} if connection is None else {"owner_pid_details": _ends(connection)}
    return {
        "name": declared.name,
        "vhost": sample.virtual_host,
        "node": NODE,
        "type": type,
        **(_of_a_quorum_queue(settings, now) if type == "quorum" else {}),
        "state": "down" if sample.virtual_host in pair.latest.down else "flow" if now.is_throttled else "running",
        "durable": settings.durable,
        "auto_delete": settings.auto_delete,
        "exclusive": settings.exclusive,
        "internal": False,
        "internal_owner": False,
        "arguments": plain(declared.arguments),
        "consumers": now.consumers,
        "consumer_capacity": capacity(now),
        "consumer_utilisation": capacity(now),
        **_special_consumers(sample),
        "head_message_timestamp": _head_timestamp(sample),
        "idle_since": _idle_since(pair, sample),
        "redelivering_since": _since(pair, sample.redelivering_since) if is_in_a_loop(pair, sample) else None,
        "oldest_unacknowledged_since": _since(pair, pair.latest.held_since.get(sample.key)),
        "policy": governing.policy,
        "operator_policy": governing.operator_policy,
        "effective_policy_definition": dict(governing.definition),
        "recoverable_slaves": None,
        **lengths_view(pair, now, before),
        "message_bytes": now.depth_bytes,
        "message_bytes_ready": now.available_bytes,
        "message_bytes_unacknowledged": now.unacked_bytes,
        **_queue_stats(pair, now, before),
        **owner,
    }


def _of_a_quorum_queue(settings: QueueSettings, now: QueueStatistics) -> View:
    attempts, retry, least = settings.max_delivery_attempts, settings.delayed_retry, settings.delayed_retry_min
    delays = "disabled"
    if least and retry is not DelayedRetry.NONE:
        most = settings.delayed_retry_max or least
        delays = f"{retry.value} (min: {milliseconds(least)}ms, max: {milliseconds(most)}ms)"
    return {
        "leader": NODE,
        "members": [NODE],
        "online": [NODE],
        "delivery_limit": "unlimited" if attempts is None else attempts - 1,
        "delayed_retry": delays,
        "messages_delayed": now.held,
        "messages_dlx": 0,  # a dead letter goes on in the commit that takes it out
        "message_bytes_dlx": 0,
    }


def queue_type(declared: DeclaredQueue) -> str:
    """The type that a queue has at RabbitMQ."""
    return str(declared.arguments.get("x-queue-type") or "classic")


def milliseconds(at: float | None) -> int | None:
    """A time as the API writes it: since 1970."""
    return None if at is None else int(at * 1000)


def _since(pair: Pair, time: float | None) -> int | None:
    """A time of samples as the API writes it."""
    return None if time is None else milliseconds(pair.latest.since_1970(time))


def is_in_a_loop(pair: Pair, sample: QueueSample) -> bool:
    """Whether a queue has delivered the same messages again and again for some time."""
    since = sample.redelivering_since
    return since is not None and pair.latest.time - since >= LOOP


def _idle_since(pair: Pair, sample: QueueSample) -> str | None:
    """When a sample first saw the queue as it is; null where that is the latest one."""
    at = pair.latest.since_1970(sample.changed_at)
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds") if at < pair.latest.wall else None


def _special_consumers(sample: QueueSample) -> View:
    """The consumer that has the queue for itself, and the one that is active where one alone is."""
    queue = sample.declared.queue
    is_single = queue.settings.single_active_consumer
    consumers = queue.consumers() if is_single or sample.figures.consumers == 1 else []
    return {
        "exclusive_consumer_tag": next((each.tag for each in consumers if each.exclusive), None),
        "single_active_consumer_tag": next((each.tag for each in consumers if is_single and each.active), None),
    }


def _head_timestamp(sample: QueueSample) -> int | None:
    """The timestamp that a publisher gave the first message; null, as at RabbitMQ, where it is in a store alone."""
    if not sample.figures.available:
        return None
    head = sample.declared.queue.head()
    return None if head is None or head.timestamp is None else int(head.timestamp)


def troubles_view(pair: Pair, hosts: Collection[str]) -> View:
    """What somebody should look at, in these virtual hosts: ours, RabbitMQ's overview has none of it."""
    latest = pair.latest
    loops = [each for each in latest.redelivering if each.virtual_host in hosts and is_in_a_loop(pair, each)]
    loops.sort(key=lambda each: each.redelivering_since or 0)
    states = Counter(each.state for each in latest.connections.values() if each.virtual_host in hosts)
    held = min(((since, key) for key, since in latest.held_since.items() if key[0] in hosts), default=None)
    oldest = None
    if held is not None:
        since, (host, queue) = held
        oldest = {"since": _since(pair, since), "vhost": host, "queue": queue}
    return {
        "virtual_hosts_down": {name: why for name, why in latest.down.items() if name in hosts},
        "alarms": sorted(latest.alarms),
        "connections_blocked": states["blocked"],
        "connections_blocking": states["blocking"],
        "queues_redelivering": len(loops),
        "redelivering": [
            {"vhost": each.virtual_host, "queue": each.declared.name, "since": _since(pair, each.redelivering_since)}
            for each in loops[:_MOST_LOOPS]
        ],
        "oldest_unacknowledged": oldest,
    }


def _queue_stats(pair: Pair, now: QueueStatistics, before: QueueStatistics) -> View:
    """The counts of a queue's messages; nothing, as at RabbitMQ, where there was never a message or a get."""
    if not now.enqueued and not any(deliveries(now)):
        return {}
    counters = [("publish", now.enqueued, before.enqueued), *delivery_stats(now, before)]
    return {"message_stats": counted(pair, counters)}


def _ends(connection: ConnectionFigures) -> View:
    return {"name": connection.name, "peer_host": connection.peer_host, "peer_port": connection.peer_port}


def consumers_of(
    connections: Iterable[ConnectionFigures], queue: QueueKey | None = None
) -> dict[QueueKey, list[ViewLater]]:
    """The consumers of connections by their queues: of all queues, or of one."""
    found: dict[QueueKey, list[ViewLater]] = {}
    for connection in connections:
        for channel in connection.channels:
            for consumer in channel.consumers:
                key = connection.virtual_host, consumer.queue
                if queue in (None, key):
                    found.setdefault(key, []).append(partial(_consumer_view, connection, channel, consumer))
    return found


def queue_consumers(sample: QueueSample, consumers: Mapping[QueueKey, list[ViewLater]]) -> list[ViewLater]:
    """The consumers of the queue: those of connections, as `consumers_of` has them, and those inside this process."""
    mine = [each for each in sample.declared.queue.consumers() if each.connection is None]
    inner = [partial(_inner_consumer_view, sample.virtual_host, sample.declared.name, each) for each in mine]
    return [*consumers.get(sample.key, []), *inner]


def channel_consumers(connection: ConnectionFigures, channel: ChannelFigures) -> list[ViewLater]:
    """The consumers of a channel."""
    return [partial(_consumer_view, connection, channel, each) for each in channel.consumers]


def _inner_consumer_view(host: str, queue: str, consumer: QueueConsumer) -> View:
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": queue, "vhost": host},
        "ack_required": not consumer.auto_accept,
        "active": consumer.active,
        "activity_status": "up" if consumer.active else "waiting",
        "exclusive": consumer.exclusive,
        "prefetch_count": (consumer.credit.limit or 0) if consumer.credit is not None else 0,
        "arguments": {},
        "channel_details": {"name": "in process", "connection_name": "in process", "node": NODE},
    }


# -- exchanges and bindings


def exchange_view(pair: Pair, host: str, exchange: Exchange) -> View:
    """One exchange, as in a list of exchanges."""
    now = pair.latest.exchanges.get(host, {}).get(exchange.name)
    before = pair.previous.exchanges.get(host, {}).get(exchange.name)
    view: View = {
        "name": exchange.name,
        "vhost": host,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(exchange.arguments),
        "user_who_performed_action": "",
        "policy": exchange.governing.policy,
    }
    if now is not None and now.received:
        last = before or now
        view["message_stats"] = counted(
            pair,
            [
                ("publish_in", now.received, last.received),
                ("publish_out", now.received - now.unroutable, last.received - last.unroutable),
            ],
        )
    return view


def binding_view(host: str, binding: Binding) -> View:
    """One binding."""
    is_queue = not isinstance(binding.destination, Exchange)
    return {
        "source": binding.source.name,
        "vhost": host,
        "destination": binding.destination.name,
        "destination_type": "queue" if is_queue else "exchange",
        "routing_key": binding.routing_key,
        "arguments": plain(binding.arguments),
        "properties_key": properties_key(binding.routing_key, binding.arguments),
    }


def properties_key(routing_key: str, arguments: Mapping[str, object]) -> str:
    """The name of a binding among those of the same two ends: its key, with a hash of its arguments, if any.

    RabbitMQ hashes Erlang terms; the hash here is another one. It is opaque to clients.
    """
    key = quote(routing_key, safe="").replace("~", "%7E")  # `quote` leaves it, and here it means something
    if not arguments:
        return key or "~"
    text = json.dumps(plain(arguments), sort_keys=True).encode()
    mark = base64.urlsafe_b64encode(hashlib.blake2b(text, digest_size=6).digest()).decode()
    return f"{key}~{mark}"


# -- connections, channels, consumers


def connection_view(pair: Pair, now: ConnectionFigures) -> View:
    """One connection."""
    before = pair.previous.connections.get(now.name, now)
    unacked = [pair.latest.unacked_since.get((now.name, each.number)) for each in now.channels]
    oldest = min((each for each in unacked if each is not None), default=None)
    return {
        "name": now.name,
        "node": NODE,
        "vhost": now.virtual_host,
        "user": now.user,
        "user_who_performed_action": now.user,
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "state": now.state,
        "host": now.host,
        "port": now.port,
        "peer_host": now.peer_host,
        "peer_port": now.peer_port,
        "ssl": now.tls,
        "ssl_protocol": None if now.cipher is None else now.cipher[0],
        "ssl_cipher": None if now.cipher is None else now.cipher[1],
        "ssl_key_exchange": None,
        "ssl_hash": None,
        "send_pend": now.unsent_bytes,
        "peer_cert_issuer": None,
        "peer_cert_serial_number": None,
        "peer_cert_subject": None,
        "peer_cert_validity": None,
        "auth_mechanism": now.mechanism,
        "client_properties": plain(now.client_properties),
        "user_provided_name": user_provided_name(now),
        "oldest_unacknowledged_since": _since(pair, oldest),
        "connected_at": int(now.connected_at * 1000),
        "timeout": now.heartbeat,
        "frame_max": now.frame_max,
        "channel_max": now.channel_max,
        "channels": len(now.channels),
        **octets(pair, now, before),
    }


def user_provided_name(connection: ConnectionFigures) -> str | None:
    """The name that a client gave its connection, if it is text; so much of it as can stand beside each consumer."""
    name = connection.client_properties.get("connection_name")
    return name[:_LONGEST_NAME] if isinstance(name, str) else None


def channel_name(connection: ConnectionFigures, channel: ChannelFigures) -> str:
    """RabbitMQ's name of a channel: its connection's, and its number."""
    return f"{connection.name} ({channel.number})"


def channel_view(pair: Pair, connection: ConnectionFigures, now: ChannelFigures) -> View:
    """One channel."""
    last = pair.previous.connections.get(connection.name)
    same = None if last is None else next((each for each in last.channels if each.number == now.number), None)
    before = now if same is None else same
    return {
        "name": channel_name(connection, now),
        "number": now.number,
        "node": NODE,
        "vhost": connection.virtual_host,
        "user": connection.user,
        "user_who_performed_action": connection.user,
        "state": "flow" if connection.state == "flow" else "running",
        "confirm": now.confirm,
        "transactional": now.transactional,
        "prefetch_count": now.prefetch,
        "global_prefetch_count": now.global_prefetch,
        "consumer_count": len(now.consumers),
        "messages_unacknowledged": now.unacked,
        "oldest_unacknowledged_since": _since(pair, pair.latest.unacked_since.get((connection.name, now.number))),
        "messages_unconfirmed": now.unconfirmed,
        "messages_uncommitted": now.uncommitted,
        "acks_uncommitted": now.acks_uncommitted,
        "pending_raft_commands": 0,
        "connection_details": _ends(connection),
        "message_stats": counted(
            pair,
            [
                ("publish", now.published, before.published),
                ("confirm", now.confirmed, before.confirmed),
                ("return_unroutable", now.returned, before.returned),
                *delivery_stats(now, before),
            ],
        ),
    }


def _consumer_view(connection: ConnectionFigures, channel: ChannelFigures, now: ConsumerFigures) -> View:
    """One consumer of a connection."""
    return {
        "consumer_tag": now.tag,
        "queue": {"name": now.queue, "vhost": connection.virtual_host},
        "ack_required": now.ack_required,
        "active": now.active,
        "activity_status": "up" if now.active else "waiting",
        "exclusive": now.exclusive,
        "prefetch_count": now.prefetch,
        "consumer_timeout": milliseconds(now.timeout),
        "messages_unacknowledged": now.unacked,
        "arguments": {"x-priority": now.priority} if now.priority else {},
        "channel_details": {
            "name": channel_name(connection, channel),
            "number": channel.number,
            "connection_name": connection.name,
            "user_provided_name": user_provided_name(connection),
            "node": NODE,
            "peer_host": connection.peer_host,
            "peer_port": connection.peer_port,
            "user": connection.user,
        },
    }


# -- virtual hosts, users, the whole


def message_stats(pair: Pair, now: Totals, before: Totals) -> View:
    """Counters of a virtual host, or of all, with their rates."""
    return counted(
        pair,
        [
            ("publish", now.published, before.published),
            ("confirm", now.confirmed, before.confirmed),
            ("return_unroutable", now.returned, before.returned),
            ("drop_unroutable", now.dropped, before.dropped),
            *delivery_stats(now, before),
        ],
    )


def metadata_view(metadata: HostMetadata) -> View:
    """A virtual host's metadata."""
    return {**asdict(metadata), "tags": list(metadata.tags)}


def host_view(pair: Pair, name: str, metadata: HostMetadata) -> View:
    """One virtual host."""
    now = pair.latest.hosts.get(name, Totals())
    before = pair.previous.hosts.get(name, now)
    said = metadata_view(metadata)
    return {
        "name": name,
        **said,
        "metadata": said,
        "protected_from_deletion": False,
        "tracing": False,
        "cluster_state": {NODE: "stopped" if name in pair.latest.down else "running"},
        **octets(pair, now, before),
        **lengths_view(pair, now, before),
        "message_stats": message_stats(pair, now, before),
    }


def user_view(user: User) -> View:
    """One user, with the hash of the password: administrators alone get to see it."""
    hashed = user.password_hash or ""
    algorithm, _, rest = hashed.partition("$")
    return {
        "name": user.name,
        "password_hash": rest if algorithm == RABBITMQ_HASH else hashed,
        "hashing_algorithm": algorithm or RABBITMQ_HASH,
        "tags": sorted(user.tags),
        "limits": dict(user.limits),
    }


def topic_permission_views(user: User) -> Iterator[View]:
    """The permissions of a user at topic exchanges."""
    for host, by_exchange in sorted(user.topics.items()):
        for exchange, may in sorted(by_exchange.items()):
            yield {"user": user.name, "vhost": host, "exchange": exchange, "write": may.write, "read": may.read}


def permission_view(user: str, host: str, permissions: Permissions) -> View:
    """The rights of a user in a virtual host."""
    return {
        "user": user,
        "vhost": host,
        "configure": permissions.configure,
        "write": permissions.write,
        "read": permissions.read,
    }


def overview_view(pair: Pair, version: str, release: str, listeners: list[View]) -> View:
    """The broker as a whole. `release` is that of the RabbitMQ whose rules hold."""
    now, before = pair.latest.total, pair.previous.total
    sample = pair.latest
    channels = [channel for each in sample.connections.values() for channel in each.channels]
    return {
        "management_version": release,
        "rabbitmq_version": release,
        "product_name": "multiqueue",
        "product_version": version,
        "node": NODE,
        "cluster_name": NODE,
        "cluster_tags": {},
        "node_tags": {},
        "default_queue_type": "classic",
        "crypto_lib_version": ssl.OPENSSL_VERSION,
        "is_op_policy_updating_enabled": True,
        "require_definition_json_extension": False,
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [600], "basic": [600], "detailed": [600]},
        "exchange_types": [exchange_type_view(name) for name in _TYPES],
        "disable_stats": False,
        "enable_queue_totals": False,
        "message_stats": message_stats(pair, now, before),
        "churn_rates": node_counters(pair, CHURN),
        "queue_totals": lengths_view(pair, now, before),
        "object_totals": {
            "channels": len(channels),
            "connections": len(sample.connections),
            "consumers": sum(each.figures.consumers for each in sample.queues.values()),
            "exchanges": sum(map(len, sample.exchanges.values())),
            "queues": len(sample.queues),
        },
        "statistics_db_event_queue": 0,
        "listeners": listeners,
        "contexts": contexts_view(listeners),
    }


def contexts_view(listeners: Iterable[View]) -> list[View]:
    """Where this interface itself is served."""
    return [
        {
            "node": NODE,
            "description": "multiqueue monitor",
            "path": "/",
            "ip": each["ip_address"],
            "port": str(each["port"]),
            "ssl_opts": [],
        }
        for each in listeners
        if each["protocol"].startswith("http")
    ]


def node_counters(pair: Pair, names: Iterable[str]) -> View:
    """Counters of this process with their rates."""
    now, before = pair.latest.node, pair.previous.node
    return counted(pair, [(name, now[name], before[name]) for name in names])


def exchange_type_view(name: str) -> View:
    """One type of exchange."""
    return {
        "name": name,
        "description": f"AMQP {name} exchange, as per the AMQP specification",
        "enabled": True,
    }


def node_view(pair: Pair, uptime: float, release: str, limits: View, listeners: Iterable[View]) -> View:
    """The one node there is: this process. `release` is as in `overview_view`."""
    now, before = pair.latest.node, pair.previous.node
    return {
        "name": NODE,
        "type": "disc",
        "running": True,
        "being_drained": False,
        "rabbitmq_version": release,
        "crypto_lib_version": ssl.OPENSSL_VERSION,
        "os_pid": str(os.getpid()),
        "uptime": int(uptime * 1000),
        "processors": os.cpu_count() or 1,
        "run_queue": 0,  # Erlang's; rabbitmqadmin 2 reads no node without it
        "partitions": [],
        "rates_mode": "basic",
        "exchange_types": [exchange_type_view(name) for name in _TYPES],
        "auth_mechanisms": [
            {"name": name, "description": f"SASL {name} authentication mechanism", "enabled": True}
            for name in ("PLAIN", "AMQPLAIN")
        ],
        "applications": [],
        "contexts": contexts_view(listeners),
        "enabled_plugins": [],
        "config_files": [],
        "log_files": [],
        "cluster_links": [],
        "mem_alarm": "memory" in pair.latest.alarms,
        "disk_free_alarm": "disk" in pair.latest.alarms,
        "mem_calculation_strategy": "rss",
        **gauges(pair, {name: (now[name], before[name]) for name in GAUGES}),
        **node_counters(pair, COUNTERS),
        **limits,
    }


def plain(value: Any) -> Any:
    """A value of a table as JSON has it. Bytes become text where they are UTF-8, and Base64 where they are not."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return base64.b64encode(raw).decode()
    if isinstance(value, datetime):
        return int(value.replace(tzinfo=value.tzinfo or UTC).timestamp())
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float | Decimal):
        value = float(value)
        return value if value == value and abs(value) != float("inf") else str(value)
    return str(value)


def tenants_view(found: FairStatistics) -> View:
    """A fair queue's tenants."""
    return {
        "tenants": found.tenants,
        "misread": found.misread,
        "jain": found.jain,
        "largest": [{**asdict(each), "options": each.options.table()} for each in found.largest],
    }


def policy_view(policy: Policy, host: str | None = None) -> View:
    """A policy, also an operator's. Without `host` it does not say where."""
    return {
        "name": policy.name,
        **({} if host is None else {"vhost": host}),
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }
