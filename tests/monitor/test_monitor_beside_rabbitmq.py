"""The same requests at RabbitMQ's management plugin and here: status, error and fields, side by side.

Fields that this broker does not have are in `WITHOUT`, which may only get shorter. Run with `-s` the test prints a line
for each request.

`MULTIQUEUE_RABBITMQ_4_3_HTTP` names the port of the HTTP API of a RabbitMQ 4.3 on this machine, new and empty, beside
which all run too. After a change of requests or fields, `MULTIQUEUE_WRITE_PAGES=1` with it and `--slow selected` writes
docs/reference/http-api.md anew.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from click.testing import CliRunner
from monitor_fields_support import MISSING, PAGE, content, kinds, page_of, why_without
from monitor_support import Client
from rabbitmq_support import NoPeer, free_ports, rabbitmq

from multiqueue.broker import Broker
from multiqueue.cli import main

LOOKS = """
/api/overview /api/whoami /api/nodes /api/vhosts /api/vhosts/%2F /api/vhosts/nope
/api/users /api/users/guest /api/users/nope /api/users/guest/permissions /api/permissions
/api/permissions/%2F/guest /api/topic-permissions /api/queues /api/queues/%2F /api/queues/%2F/orders
/api/queues/%2F/nope /api/queues/%2F/orders/bindings /api/exchanges /api/exchanges/%2F
/api/exchanges/%2F/logs /api/exchanges/%2F/amq.default /api/exchanges/%2F/nope
/api/exchanges/%2F/logs/bindings/source /api/exchanges/%2F/e2/bindings/destination /api/bindings
/api/bindings/%2F /api/bindings/%2F/e/logs/q/orders /api/bindings/%2F/e/logs/e/e2
/api/bindings/%2F/e/logs/q/orders/a.%2A /api/connections /api/channels /api/consumers /api/consumers/%2F
/api/vhosts/%2F/connections /api/vhosts/%2F/channels /api/vhosts/%2F/permissions
/api/definitions /api/definitions/%2F /api/policies /api/policies/%2F /api/operator-policies /api/parameters
/api/auth /api/vhost-limits /api/user-limits /api/federation-links /api/shovels
/api/health/checks/alarms /api/health/checks/local-alarms /api/health/checks/virtual-hosts
/api/health/checks/certificate-expiration/1/months /api/health/checks/port-listener/1
/api/health/checks/protocol-listener/amqp091 /api/health/checks/node-is-mirror-sync-critical
/api/health/checks/node-is-quorum-critical /api/nope /api/queues?page=1&page_size=2
/api/queues?page=1&page_size=2&name=or&use_regex=false /api/queues?columns=name&sort=name&sort_reverse=true
/api/queues?page=9&page_size=2 /api/queues?page=0 /api/cluster-name
/api/queues/%2F/ex /api/operator-policies/%2F /api/users/guest/topic-permissions
/api/users/without-permissions /api/healthchecks/node /api/healthchecks/node/nope /api/user-limits/guest
/api/vhost-limits/%2F /api/connections/username/guest /api/aliveness-test/%2F
"""
EMPTY_HERE = ["/api/global-parameters", "/api/feature-flags", "/api/extensions"]
NAMED = ["/api/nodes/NAME", "/api/connections/NAME", "/api/connections/NAME/channels", "/api/channels/NAME"]
ONLY_3_10 = ("/api/auth", "/api/health/checks/node-is-mirror-sync-critical")
NEW_PEER = os.environ.get("MULTIQUEUE_RABBITMQ_4_3_HTTP")
REQUESTS: list[tuple[str, str, Any]] = [("GET", path, None) for path in LOOKS.split()]
NEW = "/api/queues/%2F/new"
REQUESTS += [
    ("PUT", NEW, {"durable": True, "arguments": {}}),
    ("PUT", NEW, {"durable": True}),
    ("PUT", NEW, {"durable": False}),
    ("PUT", NEW, b"nojson"),
    ("PUT", "/api/queues/nope/new", {}),
    ("PUT", "/api/queues/%2F/plain", {}),
    ("GET", "/api/queues/%2F/plain?columns=name,durable,auto_delete", None),
    ("PUT", "/api/exchanges/%2F/newx", {"type": "direct"}),
    ("PUT", "/api/exchanges/%2F/newx", {"type": "direct"}),
    ("PUT", "/api/exchanges/%2F/newx", {"type": "fanout"}),
    ("PUT", "/api/exchanges/%2F/amq.foo", {"type": "direct"}),
    ("POST", "/api/bindings/%2F/e/newx/q/new", {"routing_key": "k"}),
    ("POST", "/api/bindings/%2F/e/newx/q/new", {}),
    ("GET", "/api/bindings/%2F/e/newx/q/new", None),
    ("POST", "/api/bindings/%2F/e/nope/q/new", {}),
    ("POST", "/api/exchanges/%2F/amq.default/publish", {"routing_key": "new"}),
    ("POST", "/api/queues/%2F/new/get", {"count": 1}),
    ("POST", "/api/queues/%2F/nope/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
    *(
        (
            "POST",
            f"/api/exchanges/%2F/{exchange}/publish",
            {"properties": {"delivery_mode": 2}, "routing_key": key, "payload": payload, "payload_encoding": encoding},
        )
        for exchange, key, payload, encoding in (
            ("newx", "zz", "hi", "string"),
            ("amq.default", "new", "aGk=", "base64"),
            ("nope", "new", "x", "string"),
        )
    ),
    ("POST", "/api/queues/%2F/new/get", {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 1}),
    ("POST", "/api/queues/%2F/new/get", {"count": 5, "ackmode": "ack_requeue_false", "encoding": "base64"}),
    ("DELETE", "/api/queues/%2F/new/contents", None),
    ("DELETE", "/api/queues/%2F/nope/contents", None),
    ("DELETE", "/api/bindings/%2F/e/newx/q/new/~", None),
    ("DELETE", "/api/bindings/%2F/e/newx/q/new/nope", None),
    *(
        ("PUT", f"/api/{sort}/%2F/p", body)
        for sort in ("policies", "operator-policies")
        for body in (
            {"pattern": "^new", "definition": {"max-length": 5}, "priority": 1, "apply-to": "queues"},
            {"pattern": "^new", "definition": {"max-length": 5}},
            {"pattern": "^new", "definition": {"max-length": -5}},
            {"pattern": "^new", "definition": {"max-length": "5"}},
            {"pattern": "^new", "definition": {"nonsense": 5}},
            {"pattern": "^new", "definition": {"dead-letter-exchange": "x"}},
            {"pattern": "^new", "definition": {}},
            {"pattern": "(", "definition": {"max-length": 5}},
            {"pattern": "^new", "definition": {"max-length": 5}, "apply-to": "things"},
            {"pattern": "^new", "definition": {"max-length": 5}, "priority": "x"},
            {"pattern": "^new"},
            {"definition": {"max-length": 5}},
        )
    ),
    ("GET", "/api/policies/%2F/p", None),
    ("GET", "/api/policies/%2F/nope", None),
    ("GET", "/api/policies/nope", None),
    ("PUT", "/api/policies/nope/p", {"pattern": "^new", "definition": {"max-length": 5}}),
    ("GET", "/api/queues/%2F/new?columns=policy,operator_policy,effective_policy_definition", None),
    ("GET", "/api/definitions/%2F?columns=policies,parameters", None),
    ("DELETE", "/api/policies/%2F/p", None),
    ("DELETE", "/api/policies/%2F/p", None),
    ("DELETE", "/api/operator-policies/%2F/p", None),
    ("DELETE", "/api/exchanges/%2F/newx?if-unused=true", None),
    ("DELETE", "/api/exchanges/%2F/newx", None),
    ("DELETE", "/api/exchanges/%2F/amq.direct", None),
    ("DELETE", "/api/queues/%2F/orders?if-empty=true", None),
    ("DELETE", NEW, None),
    ("DELETE", NEW, None),
    ("DELETE", "/api/queues/%2F/ex", None),
    ("PUT", "/api/vhosts/v1", {}),
    ("PUT", "/api/vhosts/v1", {}),
    ("PUT", "/api/users/u1", {"password": "p", "tags": "monitoring"}),
    ("PUT", "/api/users/u1", {"password": "p", "tags": "management"}),
    ("PUT", "/api/users/u2", {"password": "p"}),
    ("PUT", "/api/users/u2", {"tags": ""}),
    ("PUT", "/api/permissions/v1/u1", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("PUT", "/api/permissions/v1/u1", {"configure": "("}),
    ("PUT", "/api/permissions/v1/nobody", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("DELETE", "/api/permissions/v1/u1", None),
    ("DELETE", "/api/vhosts/v1", None),
    ("DELETE", "/api/vhosts/v1", None),
    ("DELETE", "/api/users/u1", None),
    ("DELETE", "/api/users/u1", None),
    ("POST", "/api/users/bulk-delete", {"users": ["u2"]}),
    (
        "POST",
        "/api/definitions",
        {"queues": [{"name": "d", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}]},
    ),
    ("POST", "/api/definitions", b"no"),
    (
        "POST",
        "/api/definitions/%2F",
        {"queues": [{"name": "e", "durable": True, "auto_delete": False, "arguments": {}}]},
    ),
]


@pytest.fixture(scope="module", params=["rabbitmq", "rabbitmq 4.3"])
def theirs(request: pytest.FixtureRequest) -> Iterator[Client]:
    """RabbitMQ's HTTP API: a node of its own of the RabbitMQ of this machine, or the 4.3 that the environment names."""
    if request.param != "rabbitmq":
        if NEW_PEER is None:
            pytest.skip("MULTIQUEUE_RABBITMQ_4_3_HTTP names no port")
        yield Client(f"http://127.0.0.1:{NEW_PEER}")
        return
    (port,) = free_ports(1)
    settings = f"management.tcp.port = {port}\nmanagement.tcp.ip = 127.0.0.1\ncollect_statistics_interval = 500\n"
    try:
        with rabbitmq(settings, plugins=["rabbitmq_management"]):
            client = Client(f"http://127.0.0.1:{port}")
            _wait_until_it_answers(client)
            yield client
    except NoPeer as error:
        if os.environ.get("MULTIQUEUE_REQUIRE_PEERS"):
            pytest.fail(f"MULTIQUEUE_REQUIRE_PEERS is set, and {error}", pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def clients(theirs: Client) -> Iterator[tuple[Client, Client]]:
    """The API of RabbitMQ, and ours, in front of brokers that have the same."""
    about = theirs.get("/api/overview")
    port = next(each["port"] for each in about["listeners"] if each["protocol"] == "amqp")
    with (
        Broker(compat="4.3" if _is_4_3(theirs) else "3.10") as broker,
        broker.listen() as server,
        broker.listen_http(amqp=server) as http,
    ):
        ours = Client(http.url)
        with_clients = [_populate(url) for url in (f"amqp://guest:guest@127.0.0.1:{port}/%2F", server.url)]
        for client in (theirs, ours):
            assert client("PUT", "/api/global-parameters/team", {"value": "a"}).status == 201
        _wait_for_figures(theirs)
        yield theirs, ours
        for connection in with_clients:
            connection.close()
        for path in ("queues/%2F/orders", "queues/%2F/plain", "queues/%2F/d", "queues/%2F/e", "exchanges/%2F/logs"):
            theirs("DELETE", f"/api/{path}")  # a node that goes on is left as it was
        theirs("DELETE", "/api/exchanges/%2F/e2")
        theirs("DELETE", "/api/global-parameters/team")


def _is_4_3(client: Client) -> bool:
    return str(client.get("/api/overview")["rabbitmq_version"]).startswith("4.3.")


def _wait_until_it_answers(client: Client) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if client("GET", "/api/whoami").status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    pytest.fail("RabbitMQ's management plugin did not answer within 60 s")


def _wait_for_figures(client: Client) -> None:
    """RabbitMQ's figures come seconds after what they are about."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = client.get("/api/queues/%2F/orders")
        connections, channels = client.get("/api/connections"), client.get("/api/channels")
        is_counted = "confirm" in client.get("/api/overview").get("message_stats", {})
        has_published = "message_stats" in client.get("/api/exchanges/%2F/logs")
        is_complete = found.get("messages") == 3 and connections and "channels" in connections[0] and len(channels) == 2
        if is_complete and is_counted and has_published and all("message_stats" in each for each in channels):
            return
        time.sleep(0.1)
    pytest.fail("RabbitMQ's figures did not come within 60 s")


def _wait_for_pages(*clients: Client) -> None:
    """RabbitMQ answers pages out of a cache, which it keeps for longer when its machine is busy."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if len({client.get("/api/queues?page=1&page_size=2")["total_count"] for client in clients}) == 1:
            return
        time.sleep(0.1)
    pytest.fail("RabbitMQ's pages have another number of queues after 60 s")


def _populate(url: str) -> pika.BlockingConnection:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare("orders", durable=True, arguments={"x-max-length": 100})
    channel.queue_declare("ex", exclusive=True)
    channel.exchange_declare("logs", "topic", durable=True)
    channel.exchange_declare("e2", "fanout")
    channel.queue_bind("orders", "logs", "a.*")
    channel.exchange_bind("e2", "logs", "#")
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "orders", b"tea", pika.BasicProperties(delivery_mode=2))
    channel.basic_publish("logs", "z", b"dropped")
    second = connection.channel()
    second.basic_qos(prefetch_count=1)
    second.basic_consume("orders", lambda *_: None, consumer_tag="waiter")
    return connection


def _without_breaks(text: str) -> str:
    """Erlang breaks long terms into lines."""
    return re.sub(r"\\n|\s", "", text)


def _named(client: Client, path: str) -> str:
    """A request whose NAME is that of the first node, connection or channel."""
    if "NAME" not in path:
        return path
    found = client.get("/api/" + path.split("/")[2])
    return path.replace("NAME", quote(min(each["name"] for each in found), safe=""))


@pytest.mark.slow(selected=True)
def test_the_page_shows_each_difference(clients: tuple[Client, Client]) -> None:
    """docs/reference/http-api.md shows each field and status that differs from 4.3, of every GET; of 3.10 nothing is
    missing without a reason. (monitor 2)"""
    theirs, ours = clients
    is_of_the_page = _is_4_3(theirs)
    requests = [path for path in [*LOOKS.split(), *NAMED, *EMPTY_HERE] if "?" not in path]
    deadline = time.monotonic() + 30
    while True:  # RabbitMQ's figures of an object come some seconds after each other
        page = page_of(
            {path: (theirs("GET", _named(theirs, path)), ours("GET", _named(ours, path))) for path in requests}
        )
        is_done = PAGE.read_text() == page if is_of_the_page else MISSING not in page
        if is_done or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    if is_of_the_page and os.environ.get("MULTIQUEUE_WRITE_PAGES"):
        PAGE.write_text(page)
    assert MISSING not in page
    assert not is_of_the_page or PAGE.read_text() == page


@pytest.mark.slow(selected=True)
def test_the_same_request_is_answered_alike(clients: tuple[Client, Client]) -> None:
    """Each request has RabbitMQ's status, refusals its words, answers its fields but those in `WITHOUT`. (monitor 2)

    Where RabbitMQ shows terms of Erlang, a policy is refused in our words.
    """
    theirs, ours = clients
    theirs("DELETE", "/api/queues/%2F/aliveness-test")  # which its GET of that name has made; ours makes none
    _wait_for_pages(theirs, ours)
    table: list[str] = []
    for method, path, body in REQUESTS:
        expected, found = theirs(method, path, body), ours(method, path, body)
        line = f"{method} {path} {body or ''}: {expected.status} {found.status}"
        if expected.status == 404 and path in ONLY_3_10:
            assert found.status == 200
        elif expected.status != found.status:
            table.append(f"{line}: status\n  {expected.text[:200]}\n  {found.text[:200]}")
        elif expected.status >= 400 and "port-listener" not in path:
            in_our_words = "Validation failed" in expected.text and found.json["error"] == expected.json["error"]
            if not in_our_words and _without_breaks(expected.text) != _without_breaks(found.text):
                table.append(f"{line}: words\n  {expected.text[:300]}\n  {found.text[:300]}")
        else:
            missing = kinds(content(expected)).keys() - kinds(content(found)).keys()
            missing = {name for name in missing if why_without(name) is None}
            if missing:
                table.append(f"{line}: fields {sorted(missing)}")
        print(line)
    assert table == [], "\n".join(table)


@pytest.mark.slow(selected=True)
def test_definitions_go_both_ways(theirs: Client, tmp_path: Path) -> None:
    """What RabbitMQ exports loads here without a word, users and their passwords too; what `export --for-rabbitmq`
    writes loads there. (monitor 5)"""
    theirs("PUT", "/api/users/bob", {"password": "bob's", "tags": "management"})
    theirs("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 1000})
    theirs("DELETE", "/api/vhost-limits/%2F/max-queues")
    with Broker() as broker:
        ours = Client(broker.listen_http(amqp=broker.listen()).url)
        assert ours("POST", "/api/definitions", theirs.get("/api/definitions")).status == 204
        assert ours.as_user("bob:bob's").get("/api/whoami")["tags"] == ["management"]
        ours("PUT", "/api/users/ada", {"password": "ada", "tags": ""})  # whose password RabbitMQ cannot check
        ours("PUT", "/api/permissions/%2F/ada", {"configure": "", "write": "", "read": ""})
        ours("PUT", "/api/topic-permissions/%2F/ada", {"exchange": "amq.topic", "write": "a", "read": ""})
        made = broker.declare_queue(durable=True).name
        broker.declare_queue("both-ways", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 3})
        broker.bind_queue("both-ways", "amq.headers", "", {"x-match": "any", "n": 1})
        path = tmp_path / "definitions.json"
        command = [
            "definitions",
            "export",
            "--for-rabbitmq",
            str(path),
            "--url",
            ours.url.replace("//", "//guest:guest@"),
        ]
        assert CliRunner().invoke(main, command).exit_code == 0
    assert theirs("POST", "/api/definitions", path.read_bytes()).status == 204
    found = theirs.get("/api/definitions")
    names = {each["name"] for each in found["queues"]}
    assert "both-ways" in names
    assert made not in names  # RabbitMQ takes no such name, and says nothing
    assert ("amq.headers", "both-ways") in {(each["source"], each["destination"]) for each in found["bindings"]}
    assert theirs.get("/api/whoami")["name"] == "guest"
    assert theirs("DELETE", "/api/queues/%2F/both-ways").status == theirs("DELETE", "/api/users/bob").status == 204
