"""What a public function says of an argument of the wrong kind: which one, what was given, and what is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from multiqueue import MultiQueueExecutor, amqp, client, monitor
from multiqueue.amqp import Permissions, ServerError, ServerSettings, TopicPermissions
from multiqueue.broker import Broker

Call = Callable[[Any], object]


@pytest.fixture
def broker() -> Iterator[Any]:
    with Broker() as broker:
        yield broker


WRONG: dict[str, tuple[Call, str]] = {
    "listen(host)": (lambda broker: broker.listen(host=5), "host is 5, an int; it is a name or an address"),
    "listen(port)": (lambda broker: broker.listen(port=None), "port is None, a NoneType; it is a number"),
    "listen(users)": (lambda broker: broker.listen(users=5), "users is 5, an int; it is a list, each of it a User"),
    "listen(users), names": (lambda broker: broker.listen(users=["x"]), "one of users is 'x', a str; it is a User"),
    "listen(tls)": (lambda broker: broker.listen(tls=("a", "b")), r"tls is .*; it is what server_tls\("),
    "listen(settings)": (lambda broker: broker.listen(settings={}), "settings is {}, a dict; it is ServerSettings"),
    "serve": (lambda _: amqp.serve("x"), "broker is 'x', a str; it is a multiqueue.broker.Broker"),
    "add_server": (lambda broker: broker.add_server(5), "a server is 5, an int; it is an object with close"),
    "listen_http(host)": (lambda broker: broker.listen_http(host=5), "host is 5, an int; it is a name or an address"),
    "listen_http(tls)": (lambda broker: broker.listen_http(tls="x"), "tls is 'x', a str; it is a tuple"),
    "listen_http(amqp)": (lambda broker: broker.listen_http(amqp=5), "amqp is 5, an int; it is what `Broker.listen`"),
    "listen_http(hosts)": (lambda broker: broker.listen_http(hosts="a.b"), "hosts is 'a.b', a str; it is a list"),
    "listen_http(proxies)": (lambda broker: broker.listen_http(proxies=5), "proxies is 5, an int; it is a list"),
    "serve_http": (lambda _: monitor.serve_http(5), "broker is 5, an int; it is a multiqueue.broker.Broker"),
    "serve_lanes": (lambda _: monitor.serve_lanes(5), "lanes is 5, an int; it is a multiqueue.monitor.Lanes"),
    "subscribe": (lambda broker: broker.subscribe(5), "queues is 5, an int; it is a queue's name, or several"),
    "queue": (lambda broker: broker.queue(["x"]), r"a queue's name is \['x'\], a list; it is a string"),
    "declare_exchange": (lambda broker: broker.declare_exchange("e", ["x"]), "type is .*, a list; it is a string"),
    "route": (lambda broker: broker.virtual_host().route(5), "a Message is published, .*, not 5"),
    "Broker(threads)": (lambda _: Broker(threads="x"), "threads is 'x', a str; it is a whole number"),
    "Broker(housekeeping_interval)": (lambda _: Broker(housekeeping_interval="x"), "interval is 'x', a str; it is a n"),
    "Broker(deprecated_features)": (lambda _: Broker(deprecated_features=["x"]), "deprecated_features is .*, a list;"),
    "connect": (lambda broker: client.connect(broker, heartbeat="x"), "heartbeat is 'x', a str; it is a number"),
    "connect, properties": (
        lambda broker: client.connect(broker, client_properties=5),
        "client_properties is 5, an int",
    ),
    "hash_password": (lambda _: amqp.hash_password(b"x"), "a password is b'x', a bytes; it is a string"),
    "Permissions": (lambda _: Permissions(5), "configure is 5, an int; it is a regular"),
    "TopicPermissions": (lambda _: TopicPermissions(5), "write is 5, an int; it is a regular"),
    "ServerSettings": (lambda _: ServerSettings(heartbeat="x"), "heartbeat is 'x', a str; it is a number"),
    "MultiQueueExecutor": (lambda _: MultiQueueExecutor("x"), "'max_workers' must be a number, not 'x'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_kind_is_named_with_the_right_one(broker: Any, case: str) -> None:
    """Nothing is done, and the sentence names the argument."""
    call, sentence = WRONG[case]
    with pytest.raises(TypeError, match=sentence):
        call(broker)


@pytest.mark.parametrize("port", [-1, 65536, 70_000, 2**70])
def test_a_port_is_from_0_to_65535(broker: Broker, port: int) -> None:
    """The C library would listen on the rest of a division."""
    with pytest.raises(ServerError, match=f"port {port} is not from 0 to 65535"):
        broker.listen(port=port)
    with pytest.raises(monitor.MonitorError, match=f"port {port} is not from 0 to 65535"):
        broker.listen_http(port=port)
