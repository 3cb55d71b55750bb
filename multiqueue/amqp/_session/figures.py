"""A server's connections, channels and consumers in figures, for monitoring.

Any thread may read while the I/O thread goes on: each figure is of another moment, and a connection that ends in
between is left out or shown with its last figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...broker import VirtualHost


def host_figures(host: VirtualHost) -> dict[str, object]:
    """A virtual host in figures, fit for JSON: its queues, and why it is down if it is."""
    return {
        "failure": None if host.failure is None else str(host.failure),
        "queues": {
            name: {"ready": each.available, "unacked": each.unacked, "consumers": each.consumers}
            for name, each in host.statistics().queues.items()
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFigures:
    """One consumer. `prefetch` is its own limit of unacked messages, 0 for none. `timeout` are the seconds that it may
    keep one, None without a limit."""

    tag: str
    queue: str
    ack_required: bool
    exclusive: bool
    prefetch: int
    priority: int
    active: bool
    unacked: int
    timeout: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFigures:
    """One channel. `prefetch` is what consumers that start from now on get, 0 for no limit. `oldest_unacked` is the
    delivery tag of the message that is unacked for longest, and its queue.

    From `published` on these are counters. `with_confirms` counts publishes whose confirm the client waits for or has.
    `delivered` has all deliveries: of them `delivered_no_ack`, `got` and `got_no_ack` are what their names say. `acked`
    counts what the client is done with, in a transaction all that it settled; `returned` counts mandatory publishes
    that came back.
    """

    number: int
    confirm: bool
    transactional: bool
    prefetch: int
    global_prefetch: int
    unacked: int
    unconfirmed: int
    uncommitted: int
    acks_uncommitted: int
    oldest_unacked: tuple[int, str] | None
    consumers: tuple[ConsumerFigures, ...]
    published: int
    with_confirms: int
    confirmed: int
    returned: int
    delivered: int
    delivered_no_ack: int
    got: int
    got_no_ack: int
    got_empty: int
    redelivered: int
    acked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFigures:
    """One connection. Times are seconds since 1970, `heartbeat` is seconds, sizes are bytes.

    `state` has RabbitMQ's words: `blocked` by an alarm, `blocking` while it may still publish once, `flow` at a queue
    without room, else `running`.

    `cipher` is TLS's protocol and cipher; `unsent_bytes` wait for the peer to read.
    """

    name: str
    user: str
    virtual_host: str
    state: str
    peer_host: str
    peer_port: int
    host: str
    port: int
    tls: bool
    mechanism: str
    client_properties: Mapping[str, object]
    connected_at: float
    heartbeat: int
    frame_max: int
    channel_max: int
    received_bytes: int
    sent_bytes: int
    unsent_bytes: int
    cipher: tuple[str, str] | None
    channels: tuple[ChannelFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPast:
    """Counters since a server began: of connections and channels, and by virtual host of channels that are closed."""

    connections_created: int
    connections_closed: int
    channels_created: int
    channels_closed: int
    with_confirms: Mapping[str, int]
    confirmed: Mapping[str, int]
    returned: Mapping[str, int]
