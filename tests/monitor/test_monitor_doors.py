"""Every way into the broker, tried with values that AMQP cannot carry: refused where they come in, and never kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from amqp_parts_support import load_config
from click.testing import CliRunner
from monitor_support import Client

from multiqueue.amqp import ConfigError, Server, User
from multiqueue.broker import Broker, QueueSettings
from multiqueue.cli import main
from multiqueue.client import connect
from multiqueue.errors import MultiQueueError


def deep(levels: int = 900) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


# By the part of a request that they are no value of. What JSON, TOML or a command line cannot say is left out there.
NAMES: list[Any] = ["\ud800", "x" * 256, "€" * 86]
NO_TEXT: list[Any] = [5, True, ["q"], {"a": 1}]
TABLES: list[Any] = [{"a": deep()}, {"a": 2**64}, {"a": "\ud800"}, {"x" * 256: 1}, {"\ud800": 1}]
SETTINGS: list[Any] = [
    {"x-max-length": "5"},
    {"x-max-priority": 3000},
    {"x-message-ttl": -1},
    {"x-dead-letter-exchange": "x" * 256},
    {"x-dead-letter-exchange": 5},
    {"x-queue-type": "nonsense"},
    {"x-max-age": "1h"},
]
NO_TABLE: list[Any] = ["x", 5, [1]]
NO_FLAG: list[Any] = ["yes", 5, [], "TRUE"]
PROPERTIES: list[dict[str, Any]] = [
    {"priority": 3000},
    {"priority": -1},
    {"priority": "5"},
    {"priority": True},
    {"timestamp": -5},
    {"timestamp": "now"},
    {"timestamp": True},
    {"message_id": "x" * 300},
    {"message_id": 5},
    {"type": "\ud800"},
    {"delivery_mode": "2"},
    {"delivery_mode": 300},
    {"delivery_mode": True},
    {"expiration": "soon"},
    {"expiration": -1},
    {"headers": {"a": deep()}},
    {"headers": {"a": 2**64}},
    {"headers": {"x" * 256: 1}},
    {"headers": [1]},
    {"headers": {"CC": "no list"}},
    {"user_id": "somebody"},
    {"colour": "red"},
]


KINDS = ["users", "vhosts", "permissions", "exchanges", "queues", "bindings", "policies", "parameters"]


class House:
    """A broker with all its doors."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.server: Server = broker.listen()
        self.http = Client(broker.listen_http(amqp=self.server).url)
        broker.declare_queue("q", durable=True)
        broker.declare_exchange("x", "fanout", durable=True)
        broker.bind_queue("q", "x")

    def look(self) -> dict[str, Any]:
        """What all lists have; each must be answered."""
        names = ["bindings", "definitions", "exchanges", "users", "permissions", "queues/%2F/q/messages"]
        found = {name: self.http.get(f"/api/{name}") for name in names}
        for each in found["exchanges"]:
            each.pop("message_stats", None)
        found |= {name: [each["name"] for each in self.http.get(f"/api/{name}")] for name in ("queues", "vhosts")}
        return found

    def asks(self, method: str, path: str, body: object) -> None:
        """A request that is refused as a bad one, with a reason."""
        reply = self.http(method, f"/api/{path}", body)
        assert reply.status == 400, reply
        assert reply.json["reason"]

    def imports(self, kind: str, **fields: Any) -> None:
        """An import that is refused, and says where."""
        self.asks("POST", "definitions", {kind: [{"vhost": "/", **fields}]})

    def runs(self, *command: str) -> None:
        """A command that ends with a sentence."""
        url = ["--url", self.server.url if command[0] == "publish" else self.http.url]
        result = CliRunner().invoke(main, [*command, *url], input="line\n")
        assert result.exit_code in (1, 2, 3), result
        assert result.exception is None or isinstance(result.exception, SystemExit | MultiQueueError), result
        assert result.output.strip()

    def calls(self, call: Callable[..., object], *values: Any, **more: Any) -> None:
        """A call that raises what says whose fault it is."""
        with pytest.raises((MultiQueueError, ValueError, TypeError)):
            call(*values, **more)

    def over(self, address: object, method: str, **fields: Any) -> None:
        """A method of our client that raises, or costs its channel."""

        def use(channel: Any) -> None:
            getattr(channel, method)(**fields)
            channel.basic_qos(1)

        with connect(address) as connection:  # type: ignore[arg-type]
            self.calls(use, connection.channel())


Enter = Callable[[House, Any], None]


def _importing(kind: str) -> Enter:
    return lambda house, bad: house.asks("POST", "definitions", {kind: bad})


def _calling(way: str, method: str, field: str, **others: Any) -> Enter:
    def enter(house: House, bad: Any) -> None:
        house.over(house.broker if way == "direct link" else house.server.url, method, **{field: bad}, **others)

    return enter


def in_path(value: str) -> str:
    return quote(value.encode(errors="surrogatepass"), safe="")


DOORS: dict[str, tuple[list[Any], Enter]] = {
    "PUT queue: name": (NAMES, lambda house, bad: house.asks("PUT", f"queues/%2F/{in_path(bad)}", {})),
    "PUT queue: durable": (NO_FLAG, lambda house, bad: house.asks("PUT", "queues/%2F/n", {"durable": bad})),
    "PUT queue: arguments": (
        TABLES + SETTINGS + NO_TABLE,
        lambda house, bad: house.asks("PUT", "queues/%2F/n", {"arguments": bad}),
    ),
    "PUT exchange: name": (
        NAMES,
        lambda house, bad: house.asks("PUT", f"exchanges/%2F/{in_path(bad)}", {"type": "direct"}),
    ),
    "PUT exchange: type": (
        [*NAMES, *NO_TEXT, "stone"],
        lambda house, bad: house.asks("PUT", "exchanges/%2F/n", {"type": bad}),
    ),
    "PUT exchange: internal": (
        NO_FLAG,
        lambda house, bad: house.asks("PUT", "exchanges/%2F/n", {"type": "direct", "internal": bad}),
    ),
    "PUT exchange: arguments": (
        [*TABLES, *NO_TABLE, {"alternate-exchange": 5}, {"alternate-exchange": "x" * 256}],
        lambda house, bad: house.asks("PUT", "exchanges/%2F/n", {"type": "direct", "arguments": bad}),
    ),
    "POST binding: routing_key": (
        NAMES + NO_TEXT,
        lambda house, bad: house.asks("POST", "bindings/%2F/e/x/q/q", {"routing_key": bad}),
    ),
    "POST binding: arguments": (
        TABLES + NO_TABLE,
        lambda house, bad: house.asks("POST", "bindings/%2F/e/x/q/q", {"arguments": bad}),
    ),
    "POST publish: routing_key": (NAMES + NO_TEXT, lambda house, bad: _publish_http(house, {}, bad)),
    "POST publish: properties": (PROPERTIES, lambda house, bad: _publish_http(house, bad)),
    "POST publish: payload": ([*NO_TEXT, "\ud800"], lambda house, bad: _publish_http(house, {}, payload=bad)),
    "POST move: to": (NAMES[:1] + NO_TEXT, lambda house, bad: house.asks("POST", "queues/%2F/q/move", {"to": bad})),
    "PUT vhost: name": (NAMES, lambda house, bad: house.asks("PUT", f"vhosts/{in_path(bad)}", {})),
    "PUT user: name": ([*NAMES, "a\0b"], lambda house, bad: house.asks("PUT", f"users/{in_path(bad)}", {"tags": ""})),
    "PUT user: tags": (
        [5, {"a": 1}, ["\ud800"], [5], "x" * 256],
        lambda house, bad: house.asks("PUT", "users/n", {"password": "p", "tags": bad}),
    ),
    "PUT user: password": (NO_TEXT, lambda house, bad: house.asks("PUT", "users/n", {"password": bad, "tags": ""})),
    "PUT permissions: read": (
        [*NO_TEXT, "(", "\ud800"],
        lambda house, bad: house.asks("PUT", "permissions/%2F/guest", {"configure": "", "write": "", "read": bad}),
    ),
    "import queue: name": (NAMES + NO_TEXT, lambda house, bad: house.imports("queues", name=bad)),
    "import queue: durable": (NO_FLAG, lambda house, bad: house.imports("queues", name="n", durable=bad)),
    "import queue: arguments": (
        [*TABLES, *NO_TABLE, *(each for each in SETTINGS if "x-queue-type" not in each)],
        lambda house, bad: house.imports("queues", name="n", arguments=bad),
    ),
    "import exchange: name": (NAMES + NO_TEXT, lambda house, bad: house.imports("exchanges", name=bad, type="direct")),
    "import exchange: type": (NO_TEXT, lambda house, bad: house.imports("exchanges", name="n", type=bad)),
    "import binding: routing_key": (NAMES + NO_TEXT, lambda house, bad: _import_binding(house, routing_key=bad)),
    "import binding: arguments": (TABLES + NO_TABLE, lambda house, bad: _import_binding(house, arguments=bad)),
    "import binding: destination": (NAMES + NO_TEXT, lambda house, bad: _import_binding(house, destination=bad)),
    "import vhost: name": ([*NAMES, *NO_TEXT, ""], lambda house, bad: house.imports("vhosts", name=bad)),
    "import user: name": (
        [*NAMES, *NO_TEXT, "", "a\0b"],
        lambda house, bad: house.imports("users", name=bad, password_hash="", tags=""),
    ),
    "import user: tags": (
        [5, {"a": 1}, ["\ud800"]],
        lambda house, bad: house.imports("users", name="n", password_hash="", tags=bad),
    ),
    "import permissions: write": (
        [*NO_TEXT, "(", "\ud800"],
        lambda house, bad: house.imports("permissions", user="guest", configure="", read="", write=bad),
    ),
    **{f"import: {kind}": ([5, "x", {"a": 1}, [5], [[]], [None]], _importing(kind)) for kind in KINDS},
    "command queue declare: name": (NAMES, lambda house, bad: house.runs("queue", "declare", bad)),
    "command queue declare: arguments": (
        TABLES + SETTINGS + NO_TABLE,
        lambda house, bad: house.runs("queue", "declare", "n", "--arguments", json.dumps(bad)),
    ),
    "command exchange declare: name": (NAMES, lambda house, bad: house.runs("exchange", "declare", bad)),
    "command binding add: key": (NAMES, lambda house, bad: house.runs("binding", "add", "x", "q", "--key", bad)),
    "command user permissions: read": (
        ["(", "\ud800"],
        lambda house, bad: house.runs("user", "permissions", "guest", "--read", bad, "--write", "", "--configure", ""),
    ),
    "command publish: queue": (NAMES, lambda house, bad: house.runs("publish", "--declare", "--queue", bad)),
    "command publish: routing key": (
        NAMES,
        lambda house, bad: house.runs("publish", "--exchange", "x", "--routing-key", bad),
    ),
    "command publish: property": (
        [
            "priority=3000",
            "priority=x",
            "message_id=" + "x" * 256,
            "type=\ud800",
            "delivery_mode=999",
            "expiration=soon",
        ],
        lambda house, bad: house.runs("publish", "--queue", "q", "--property", bad),
    ),
    "Broker.declare_queue: name": (
        NAMES + NO_TEXT,
        lambda house, bad: house.calls(house.broker.declare_queue, bad),
    ),
    "Broker.declare_queue: durable": (
        NO_FLAG,
        lambda house, bad: house.calls(house.broker.declare_queue, "n", durable=bad),
    ),
    "Broker.declare_queue: arguments": (
        [*TABLES, *SETTINGS, *NO_TABLE, {"a": {1}}, {5: "a"}],
        lambda house, bad: house.calls(house.broker.declare_queue, "n", arguments=bad),
    ),
    "Broker.declare_exchange: name": (
        NAMES + NO_TEXT,
        lambda house, bad: house.calls(house.broker.declare_exchange, bad),
    ),
    "Broker.declare_exchange: arguments": (
        [*TABLES, *NO_TABLE, {"a": object()}],
        lambda house, bad: house.calls(house.broker.declare_exchange, "n", arguments=bad),
    ),
    "Broker.bind_queue: key": (NAMES + NO_TEXT, lambda house, bad: house.calls(house.broker.bind_queue, "q", "x", bad)),
    "Broker.bind_queue: arguments": (
        TABLES + NO_TABLE,
        lambda house, bad: house.calls(house.broker.bind_queue, "q", "x", "", bad),
    ),
    "Broker.bind_exchange: key": (
        NAMES + NO_TEXT,
        lambda house, bad: house.calls(house.broker.bind_exchange, "x", "amq.topic", bad),
    ),
    "Broker.add_virtual_host: name": (
        [*NAMES, *NO_TEXT, ""],
        lambda house, bad: house.calls(house.broker.add_virtual_host, bad),
    ),
    "QueueSettings": (
        [
            {"max_length": "5"},
            {"max_length": -1},
            {"message_ttl": float("nan")},
            {"durable": "yes"},
            {"overflow": "ring"},
            {"dead_letter_exchange": "\ud800"},
            {"dead_letter_exchange": "x" * 256},
            {"group_key": 5},
        ],
        lambda house, bad: house.calls(lambda: house.broker.declare_queue("n", settings=QueueSettings(**bad))),
    ),
    "User: name": ([*NAMES, *NO_TEXT, "", "a\0b"], lambda house, bad: house.calls(User, bad)),
    **{
        f"{way}: {method}, {field}": (values, _calling(way, method, field, **others))
        for way in ("direct link", "wire")
        for method, field, values, others in (
            ("queue_declare", "queue", [*NAMES, 5], {}),
            ("queue_declare", "arguments", TABLES + SETTINGS, {"queue": "n"}),
            ("exchange_declare", "exchange", [*NAMES, 5], {}),
            ("exchange_declare", "arguments", TABLES, {"exchange": "n"}),
            ("queue_bind", "routing_key", [*NAMES, 5], {"queue": "q", "exchange": "x"}),
            ("queue_bind", "arguments", TABLES, {"queue": "q", "exchange": "x"}),
            ("publish", "routing_key", [*NAMES, 5], {"body": b""}),
            ("publish", "message_id", [*NAMES, 5], {"body": b""}),
            ("publish", "priority", [3000, -1, "5", True], {"body": b""}),
            ("publish", "headers", [*TABLES, 5], {"body": b""}),
            ("basic_consume", "queue", [*NAMES, 5], {"callback": print}),
            ("basic_consume", "arguments", [*TABLES, {"x-priority": "5"}], {"queue": "q", "callback": print}),
        )
    },
    "broker.toml: virtual_hosts": (
        ["x" * 256, "€" * 86, "", 5],
        lambda house, bad: _configure(f"virtual_hosts = {json.dumps([bad])}"),
    ),
    "broker.toml: users": (["x" * 256, "a\0b", ""], lambda house, bad: _configure(f"[users.{json.dumps(bad)}]")),
}


def _publish_http(house: House, properties: Any, key: Any = "q", payload: Any = "") -> None:
    body = {"properties": properties, "routing_key": key, "payload": payload, "payload_encoding": "string"}
    house.asks("POST", "exchanges/%2F/amq.default/publish", body)


def _import_binding(house: House, **wrong: Any) -> None:
    good = {"source": "x", "destination": "q", "destination_type": "queue", "routing_key": "", "arguments": {}}
    house.imports("bindings", **{**good, **wrong})


_directory: list[Path] = []


def _configure(text: str) -> None:
    path = _directory[-1] / "broker.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"broker\.toml"):
        load_config(path)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    _directory.append(tmp_path_factory.mktemp("config"))
    with Broker() as broker:
        yield House(broker)


@pytest.mark.parametrize("door", DOORS)
def test_what_amqp_cannot_carry_is_refused_where_it_comes_in(house: House, door: str) -> None:
    """Each door refuses each value in its own way; all lists are answered afterwards, and as before. (monitor 18)"""
    values, enter = DOORS[door]
    before = house.look()
    for bad in values:
        enter(house, bad)
    assert house.look() == before
