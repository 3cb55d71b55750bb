"""What was declared, opened or deleted a moment ago: lists name what is there, not what a sample had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from monitor_support import Client

from multiqueue.broker import Broker, Message


@pytest.fixture
def watched(client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A broker at which somebody looked just now: the next sample is an hour away."""
    from monitor_parts_support import _sampler

    monkeypatch.setattr(_sampler, "INTERVAL", 3600.0)
    client.get("/api/overview")
    client.get("/api/overview")
    return client


@pytest.fixture
def connection(watched: Client, server: Any) -> Iterator[pika.BlockingConnection]:
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        yield connection


def names(client: Client, path: str) -> list[str]:
    return [each["name"] for each in client.get(path)]


def test_a_queue_is_listed_and_gone_at_once(watched: Client, broker: Broker) -> None:
    """What a program declares is in the next answer, alone and in lists; what it deletes is not. (monitor 16)"""
    for name in ("one", "two"):
        broker.declare_queue(name)
    assert names(watched, "/api/queues") == names(watched, "/api/queues/%2F") == ["one", "two"]
    assert watched.get("/api/queues?page=1")["filtered_count"] == 2
    assert watched.get("/api/queues/%2F/two")["name"] == "two"
    broker.delete_queue("one")
    broker.delete_queue("two")
    broker.declare_queue("two")
    assert names(watched, "/api/queues") == ["two"]
    assert watched("GET", "/api/queues/%2F/one").status == 404


def test_a_queue_of_the_same_name_is_another(watched: Client, broker: Broker) -> None:
    """One that is deleted is gone though the sample has it, and one that has its name begins with its own figures.
    (monitor 16)"""
    broker.declare_queue("q")
    broker.publish(Message(b"", routing_key="q"))
    watched("PUT", "/api/vhosts/any", {})  # the next look takes a sample
    assert [each["messages"] for each in watched.get("/api/queues/%2F")] == [1]
    broker.delete_queue("q")
    assert watched("GET", "/api/queues/%2F/q").status == 404
    assert watched.get("/api/queues") == []
    broker.declare_queue("q")
    assert [each["messages"] for each in watched.get("/api/queues")] == [0]
    assert watched.get("/api/queues/%2F/q")["messages"] == 0


def test_a_connection_its_channels_and_consumers_are_listed_at_once(
    watched: Client, connection: pika.BlockingConnection
) -> None:
    """So a test that waits for its worker need not wait for a sample too. (monitor 16)"""
    watched("PUT", "/api/vhosts/any", {})  # the next look takes a sample, which has the connection as it is
    (name,) = names(watched, "/api/connections")
    assert watched.get("/api/channels") == []
    channel = connection.channel()
    channel.queue_declare("q")
    assert names(watched, "/api/channels") == [f"{name} (1)"]
    channel.basic_consume("q", lambda *_: None, consumer_tag="c")
    assert [each["consumer_tag"] for each in watched.get("/api/consumers")] == ["c"]
    assert [each["consumer_tag"] for each in watched.get("/api/queues/%2F/q")["consumer_details"]] == ["c"]
    channel.basic_cancel("c")
    assert watched.get("/api/consumers") == []
    channel.close()
    assert watched.get("/api/channels") == []


def test_a_connection_that_is_closed_is_listed_no_more(watched: Client, server: Any) -> None:
    """Once the client has its close-ok. (monitor 16)"""
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    assert len(watched.get("/api/connections")) == 1
    connection.close()
    while server.connections():  # until the server has seen the socket's end
        server.catch_up()
    assert watched.get("/api/connections") == []
