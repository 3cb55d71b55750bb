"""A program in the process and pika outside it, on the same queues."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from typing import Any

from multiqueue.broker import Broker, Message

Need = Callable[[str, str], None]


def needed(need_module: Need, name: str, package: str) -> Any:
    """The client's module; without it the test ends as any without its peer."""
    if name not in sys.modules:  # kombu is there, but cannot be found, once it was imported
        need_module(name, f"{package} is not installed: pip install {package}")
    return importlib.import_module(name)


def test_a_program_in_the_process_and_one_outside(broker: Broker, url: str, need_module: Need) -> None:
    """Messages go both ways between the broker's own methods and a client, properties and headers included."""
    pika = needed(need_module, "pika", "pika")
    broker.declare_queue("q")
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    broker.publish(
        Message(b"out", routing_key="q", headers={"n": 1}, priority=3, expiration=60.0, timestamp=1e9, type="t")
    )
    _, properties, body = channel.basic_get("q", auto_ack=True)
    assert (body, properties.headers, properties.priority, properties.expiration) == (b"out", {"n": 1}, 3, "60000")
    assert (properties.timestamp, properties.type, properties.delivery_mode) == (1_000_000_000, "t", 1)
    sent = pika.BasicProperties(content_type="text/plain", headers={"x": [1, None]}, message_id="m", delivery_mode=2)
    channel.basic_publish("", "q", b"in", sent)
    connection.close()
    received = broker.get("q", auto_accept=True)
    assert received is not None
    message = received.message
    assert (message.body, message.content_type, message.message_id, message.persistent) == (
        b"in",
        "text/plain",
        "m",
        True,
    )
    assert (dict(message.headers), message.user_id, message.priority, message.delay) == (
        {"x": [1, None]},
        None,
        None,
        None,
    )


def test_an_object_of_this_process_stays_here(broker: Broker, url: str, need_module: Need) -> None:
    """The server dead-letters a message whose body or property no wire can carry; the consumer gets the next one."""
    pika = needed(need_module, "pika", "pika")
    broker.declare_queue("letters")
    broker.declare_queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"})
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    wrong: list[dict[str, Any]] = [
        {"body": object()},
        {"body": "\ud800"},
        {"message_id": 42},
        {"message_id": "x" * 300},
        {"type": "\ud800"},
        {"priority": 3000},
        {"timestamp": "now"},
        {"timestamp": -5},
        {"timestamp": math.inf},
        {"headers": {5: "x"}},
        {"headers": {"n": 2**64}},
        {"headers": {"d": deep}},
    ]
    for each in wrong:
        broker.publish(Message(**{"body": b"", "routing_key": "q", **each}))
    broker.publish(Message("text", routing_key="q", expiration=math.inf))
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    for _, properties, body in channel.consume("q", inactivity_timeout=60):
        assert (body, properties.expiration) == (b"text", None)
        break
    connection.close()
    assert len(broker.queue("letters")) == len(wrong)
