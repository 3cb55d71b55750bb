"""What is counted: of a channel, a queue, a virtual host, the whole, and of what came and went."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pika
import pytest
from monitor_support import Client

from multiqueue.broker import Broker, Message
from multiqueue.testing import wait_until_blocked


def counts(view: dict[str, Any]) -> dict[str, int]:
    """The counters of a view that are not 0."""
    stats = view["message_stats"]
    return {name: stats[name] for name in sorted(stats) if not name.endswith("_details") and stats[name]}


@pytest.fixture
def connection(server: Any) -> Any:
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        yield connection


def test_each_way_out_of_a_queue_is_counted_apart(client: Client, connection: Any) -> None:
    """Gets and consumers, with acks and without, nothing found, given back, delivered again. (monitor 2)"""
    channel = connection.channel()
    channel.queue_declare("q")
    for _ in range(6):
        channel.basic_publish("", "q", b"x")
    channel.basic_get("q", auto_ack=True)
    for settle in (channel.basic_nack, channel.basic_ack, channel.basic_reject):
        tag = channel.basic_get("q")[0].delivery_tag
        settle(tag) if settle == channel.basic_ack else settle(tag, requeue=settle == channel.basic_nack)
    for auto_ack in (False, True):
        method, _, _ = next(channel.consume("q", auto_ack=auto_ack))
        if not auto_ack:
            channel.basic_ack(method.delivery_tag)
        channel.cancel()
    channel.queue_purge("q")
    channel.basic_get("q")
    queue = counts(client.get("/api/queues/%2F/q"))
    (name,) = (each["name"] for each in client.get("/api/channels"))
    of_channel = counts(client.get(f"/api/channels/{quote(name, safe='')}"))
    assert of_channel.pop("publish") == queue.pop("publish") == 6
    assert queue["get"] == 3
    assert queue["get_no_ack"] == queue["get_empty"] == 1
    assert queue["deliver_get"] == sum(queue[each] for each in ("get", "get_no_ack", "deliver", "deliver_no_ack"))
    assert of_channel["deliver_get"] == queue["deliver_get"]
    assert of_channel["get"] == queue["get"]
    assert (of_channel["get_no_ack"], of_channel["get_empty"]) == (1, 1)
    assert queue["ack"] == of_channel["ack"] == 2
    assert queue["redeliver"] == of_channel["redeliver"] >= 1


def test_publishes_are_counted_with_what_became_of_them(client: Client, connection: Any) -> None:
    """Confirmed, returned because mandatory, or dropped; a channel that is closed goes on counting. (monitor 2)"""
    channel = connection.channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"x")
    channel.basic_publish("", "nowhere", b"x")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"x", mandatory=True)
    expected = {"publish": 3, "confirm": 3, "return_unroutable": 1}
    assert counts(client.get("/api/channels")[0]) == expected
    whole = {**expected, "drop_unroutable": 1}
    assert counts(client.get("/api/overview")) == counts(client.get("/api/vhosts/%2F")) == whole
    channel.close()
    client("PUT", "/api/queues/%2F/other", {})
    assert client.get("/api/channels") == []
    assert counts(client.get("/api/overview")) == whole


def test_what_is_deleted_goes_on_counting(client: Client, broker: Broker) -> None:
    """A virtual host's counters do not fall when a queue or an exchange goes. (monitor 2)"""
    broker.declare_queue("q")
    broker.declare_exchange("x", "fanout")
    broker.bind_queue("q", "x")
    broker.publish(Message(b"", exchange="x"))
    broker.get("q", auto_accept=True)
    before = counts(client.get("/api/overview"))
    assert before == {"publish": 1, "deliver_get": 1, "get_no_ack": 1}
    assert client("DELETE", "/api/queues/%2F/q").status == 204
    assert client("DELETE", "/api/exchanges/%2F/x").status == 204
    assert counts(client.get("/api/overview")) == before


def test_what_comes_and_goes_is_counted(client: Client, server: Any) -> None:
    """Connections, channels and queues, in the overview and of the node. (monitor 2)"""
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        channel = connection.channel()
        for name in ("one", "one", "two"):
            channel.queue_declare(name)
        channel.queue_delete("two")
        connection.channel()
        channel.close()
        client("PUT", "/api/queues/%2F/three", {})
        churn = client.get("/api/overview")["churn_rates"]
        found = {name: value for name, value in churn.items() if not name.endswith("_details")}
    assert found == {
        "connection_created": 1,
        "connection_closed": 0,
        "channel_created": 2,
        "channel_closed": 1,
        "queue_declared": 4,
        "queue_created": 3,
        "queue_deleted": 1,
    }
    wait_until_blocked(lambda: not server.connections())  # the client goes when the close is answered
    client("PUT", "/api/queues/%2F/three", {})
    (node,) = client.get("/api/nodes")
    assert (node["connection_closed"], node["channel_closed"], node["sockets_used"]) == (1, 2, 0)


def test_samples_of_the_node_and_of_bytes_come_when_asked_for(client: Client, connection: Any) -> None:
    """`node_stats_age` for a node, `data_rates_age` for virtual hosts and connections. (monitor 2)"""
    client.get("/api/overview")
    client("PUT", "/api/queues/%2F/q", {})
    client.get("/api/overview")  # a second sample
    (node,) = client.get("/api/nodes?node_stats_age=1&node_stats_incr=1")
    for name in ("mem_used", "proc_used", "queue_created"):
        assert node[f"{name}_details"]["samples"][0]["sample"] == node[name]
    for path in ("/api/connections", "/api/vhosts"):
        (view,) = client.get(f"{path}?data_rates_age=1&data_rates_incr=1")
        assert view["recv_oct_details"]["samples"][0]["sample"] == view["recv_oct"]
    assert "samples" not in client.get("/api/nodes")[0]["mem_used_details"]
