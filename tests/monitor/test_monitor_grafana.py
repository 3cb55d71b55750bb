"""RabbitMQ's own dashboard and alerts on our metrics: each panel by the names and labels that its queries use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from monitor_support import Client
from prometheus_client.parser import text_string_to_metric_families

from multiqueue.amqp import ServerSettings
from multiqueue.broker import Broker, Message

# Each panel of "RabbitMQ-Overview" (rabbitmq-server, deps/rabbitmq_prometheus/docker/grafana, of August 2026) in its
# order, and the series it is made of. A query joins each with rabbitmq_identity_info by node, cluster and endpoint.
G = "global_messages_"
PANELS = {
    "Ready messages": "queue_messages_ready",
    "Outgoing messages / s": f"{G}delivered_total",
    "Publishers": "global_publishers",
    "Connections": "connections",
    "Queues": "queues",
    "Unacknowledged messages": "queue_messages_unacked",
    "Incoming messages / s": f"{G}received_total",
    "Consumers": "global_consumers",
    "Channels": "channels",
    "Nodes": "identity_info",
    "Node table": "erlang_uptime_seconds build_info",
    "Memory available before publishers blocked": "resident_memory_limit_bytes process_resident_memory_bytes",
    "Disk space available before publishers blocked": "disk_space_available_bytes disk_space_available_limit_bytes",
    "File descriptors available": "process_max_fds process_open_fds",
    "Messages ready to be delivered to consumers": "queue_messages_ready",
    "Messages pending consumer acknowledgement": "queue_messages_unacked",
    "Messages published / s": f"{G}received_total",
    "Avg Size": "message_size_bytes_sum message_size_bytes_count",
    "Message Size Distribution": "message_size_bytes_bucket",
    "Messages routed to queues / s": f"{G}routed_total",
    "Messages confirmed to publishers / s": f"{G}confirmed_total",
    "Unroutable messages dropped & returned / s": f"{G}unroutable_dropped_total {G}unroutable_returned_total",
    "Messages unconfirmed to publishers / s": f"{G}received_confirm_total {G}confirmed_total",
    "Messages delivered / s": f"{G}delivered_consume_auto_ack_total {G}delivered_consume_manual_ack_total",
    "Messages redelivered / s": f"{G}redelivered_total",
    "Messages delivered with manual ack / s": f"{G}delivered_consume_manual_ack_total",
    "Messages delivered auto ack / s": f"{G}delivered_consume_auto_ack_total",
    "Messages acknowledged / s": f"{G}acknowledged_total",
    "Polling operations with auto ack / s": f"{G}delivered_get_auto_ack_total",
    "Polling operations that yield no result / s": f"{G}get_empty_total",
    "Polling operations with manual ack / s": f"{G}delivered_get_manual_ack_total",
    "Total queues": "queues",
    "Queues declared / s": "queues_declared_total",
    "Queues created / s": "queues_created_total",
    "Queues deleted / s": "queues_deleted_total",
    "Total channels": "channels",
    "Channels opened / s": "channels_opened_total",
    "Channels closed / s": "channels_closed_total",
    "Total connections": "connections",
    "Connections opened / s": "connections_opened_total",
    "Connections closed / s": "connections_closed_total",
}
EMPTY = {"Avg Size", "Message Size Distribution"}  # the size of each message is not counted

# The alerts of cluster-operator's rules that are about RabbitMQ and not about Kubernetes or Erlang.
ALERTS = {
    "MemoryAlarm": "alarms_memory_used_watermark",
    "RabbitmqDiskAlarm": "alarms_free_disk_space_watermark",
    "RabbitmqFileDescriptorAlarm": "alarms_file_descriptor_limit",
    "FileDescriptorsNearLimit": "process_open_fds process_max_fds",
    "HighConnectionChurn": "connections_closed_total connections_opened_total connections",
    "LowDiskWatermarkPredicted": "disk_space_available_bytes disk_space_available_limit_bytes",
    "UnroutableMessages": "channel_messages_unroutable_dropped_total channel_messages_unroutable_returned_total",
}
FOR_EACH_QUEUE = "detailed_queue_consumers detailed_queue_messages identity_info"
"""What the operator's rules for each queue ask of `/metrics/detailed`: one that grows, one without consumers."""

Series = dict[str, list[tuple[dict[str, str], float]]]


def series(text: str) -> Series:
    """What a page of metrics has, by its names."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value(found: Series, name: str) -> float:
    return sum(each for _, each in found[f"rabbitmq_{name}"])


@pytest.fixture
def short_of() -> set[str]:
    """What the process is short of."""
    return set()


@pytest.fixture
def server(broker: Broker, short_of: set[str]) -> object:
    settings = ServerSettings(memory_limit_bytes=2**40, alarm_interval=0.01)
    return broker.listen(settings=settings, measure=lambda: set(short_of))


@pytest.fixture
def used(client: Client, server: Any) -> Iterator[Client]:
    """A broker at which each kind of publish, delivery and get has happened once, and one of two connections ended."""
    with pika.BlockingConnection(pika.URLParameters(server.url)) as ended:
        ended.channel().queue_declare("gone")
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        plain, confirming, _silent = connection.channel(), connection.channel(), connection.channel()
        plain.queue_declare("q")
        plain.queue_delete("gone")
        confirming.confirm_delivery()
        plain.basic_publish("", "nowhere", b"x")
        with pytest.raises(pika.exceptions.UnroutableError):
            confirming.basic_publish("", "nowhere", b"x", mandatory=True)
        for auto_ack in (True, False):
            confirming.basic_publish("", "q", b"x")
            method, _, _ = next(plain.consume("q", auto_ack=auto_ack))
            if not auto_ack:
                plain.basic_ack(method.delivery_tag)
            plain.cancel()
        for auto_ack in (True, False):
            confirming.basic_publish("", "q", b"x")
            plain.basic_get("q", auto_ack=auto_ack)
        plain.basic_recover(requeue=True)
        plain.basic_get("q", auto_ack=True)
        plain.basic_get("q")
        yield client


def test_each_panel_of_the_overview_has_data(used: Client) -> None:
    """39 of the 41 panels of RabbitMQ's Grafana dashboard find their series, joined as they join them. (monitor 17)"""
    found = series(used("GET", "/metrics").text)
    missing = {
        panel for panel, names in PANELS.items() if not all(f"rabbitmq_{name}" in found for name in names.split())
    }
    assert len(PANELS) == 41
    assert missing == EMPTY
    (identity,) = (labels for labels, _ in found["rabbitmq_identity_info"])
    assert {"rabbitmq_node", "rabbitmq_cluster", "rabbitmq_endpoint"} <= identity.keys()
    assert identity["rabbitmq_endpoint"] == "aggregated"
    assert "rabbitmq_version" in found["rabbitmq_build_info"][0][0]


def test_each_kind_is_counted_under_its_name(used: Client) -> None:
    """What each panel shows is what happened. (monitor 17)"""
    found = series(used("GET", "/metrics").text)
    counts = {
        name: value(found, f"{G}{name}_total")
        for name in (
            "received",
            "received_confirm",
            "confirmed",
            "routed",
            "unroutable_dropped",
            "unroutable_returned",
            "delivered_consume_auto_ack",
            "delivered_consume_manual_ack",
            "delivered_get_auto_ack",
            "delivered_get_manual_ack",
            "get_empty",
            "redelivered",
            "acknowledged",
        )
    }
    assert counts == {
        "received": 6,
        "received_confirm": 5,
        "confirmed": 5,
        "routed": 4,
        "unroutable_dropped": 1,
        "unroutable_returned": 1,
        "delivered_consume_auto_ack": 1,
        "delivered_consume_manual_ack": 1,
        "delivered_get_auto_ack": 2,
        "delivered_get_manual_ack": 1,
        "get_empty": 1,
        "redelivered": 1,
        "acknowledged": 1,
    }
    assert {name: value(found, name) for name in ("global_publishers", "global_consumers")} == {
        "global_publishers": 2,
        "global_consumers": 0,
    }
    assert value(found, "queues_created_total") == 2
    assert value(found, "queues_deleted_total") == value(found, "connections_closed_total") == 1
    assert value(found, "connections_opened_total") - value(found, "connections_closed_total") == 1


def test_each_alert_has_its_series(used: Client) -> None:
    """The rules of RabbitMQ's operator have what they compare, in the sums and for each queue. (monitor 17)"""
    for path in ("/metrics", "/metrics/per-object"):
        found = series(used("GET", path).text)
        assert [name for names in ALERTS.values() for name in names.split() if f"rabbitmq_{name}" not in found] == []
    found = series(used("GET", "/metrics/detailed?family=queue_coarse_metrics&family=queue_consumer_count").text)
    assert [name for name in FOR_EACH_QUEUE.split() if f"rabbitmq_{name}" not in found] == []
    assert found["rabbitmq_identity_info"][0][0]["rabbitmq_endpoint"] == "detailed"


@pytest.mark.parametrize(("alarm", "name"), [("memory", "memory_used"), ("disk", "free_disk_space")])
def test_an_alarm_raises_its_metric(
    many_samples: None, client: Client, short_of: set[str], alarm: str, name: str
) -> None:
    """A process that is short of memory or disk has the alert of RabbitMQ's rules fire. (monitor 17)"""
    assert value(series(client("GET", "/metrics").text), f"alarms_{name}_watermark") == 0
    short_of.add(alarm)
    while not value(series(client("GET", "/metrics").text), f"alarms_{name}_watermark"):
        pass  # until the server has looked, each 10 ms


def test_a_virtual_host_of_the_same_name_counts_anew(client: Client, broker: Broker, server: Any) -> None:
    """Of the whole its confirms go on counting, once; of itself they begin at 0. (monitor 17)"""

    def confirmed() -> tuple[float, int]:
        broker.add_virtual_host("v")
        client("PUT", "/api/permissions/v/guest", dict.fromkeys(("configure", "write", "read"), ".*"))
        mine = client.get("/api/vhosts/v")["message_stats"]["confirm"]
        return value(series(client("GET", "/metrics").text), f"{G}confirmed_total"), mine

    assert confirmed() == (0, 0)
    with pika.BlockingConnection(pika.URLParameters(server.url.removesuffix("%2F") + "v")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(3):
            channel.basic_publish("", "nowhere", b"x")
    client("PUT", "/api/vhosts/any", {})
    assert confirmed() == (3, 3)
    broker.delete_virtual_host("v")
    assert confirmed() == (3, 0)


def test_no_counter_ever_falls(used: Client, broker: Broker) -> None:
    """What is deleted goes on counting: a counter that falls reads as one that began anew, and draws a spike.
    (monitor 17)"""
    other = broker.add_virtual_host("other")
    other.declare_queue("q")
    other.publish(Message(b"", routing_key="q"))
    other.get("q", auto_accept=True)
    used("PUT", "/api/queues/other/p")  # a change over HTTP, so that the next look is of now
    before = series(used("GET", "/metrics").text)
    broker.delete_queue("q")
    used("DELETE", "/api/vhosts/other")
    after = series(used("GET", "/metrics").text)
    assert value(after, "queues") < value(before, "queues")
    counters = [name for name in before if re.search("_total$", name) and "bytes" not in name]
    assert [name for name in counters if sum(v for _, v in after[name]) < sum(v for _, v in before[name])] == []
