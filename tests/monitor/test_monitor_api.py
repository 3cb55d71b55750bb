"""The HTTP API as a client sees it: who may ask, what is answered, what is changed."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pika
import pytest
from amqp_parts_support import UsersFile
from monitor_support import Client

from multiqueue.amqp import Access, FixedUser, Permissions, Server, ServerError, ServerSettings, User
from multiqueue.broker import Broker, Message
from multiqueue.client import connect
from multiqueue.monitor import HttpServer, MonitorError, serve_http


def make_user(client: Client, name: str, tags: str, host: str | None = "/") -> Client:
    assert client("PUT", f"/api/users/{name}", {"password": "secret", "tags": tags}).status == 201
    if host is not None:
        allowed = {"configure": ".*", "write": ".*", "read": ".*"}
        assert client("PUT", f"/api/permissions/{host.replace('/', '%2F')}/{name}", allowed).status == 201
    return client.as_user(f"{name}:secret")


# -- who may ask


@pytest.mark.parametrize(
    "header",
    [
        None,
        *("Bearer x", "Basic", "Basic !!!", "Basic \x80", "Basic /w=="),
        *(
            f"Basic {base64.b64encode(user.encode()).decode()}"
            for user in ("guest:wrong", "nobody:guest", "guest", ":", "\N{SNOWMAN}:\N{SNOWMAN}", "guest:" + "x" * 5000)
        ),
    ],
)
def test_a_stranger_is_asked_for_a_password(client: Client, header: str | None) -> None:
    """Whatever the header, an unknown user gets 401 and the scheme, and nothing of the broker. (monitor 1)"""
    headers = {} if header is None else {"authorization": header}
    reply = client.as_user(None)("GET", "/api/overview", headers=headers)
    assert reply.status == 401
    assert reply.headers["www-authenticate"].startswith("Basic ")
    assert "node" not in reply.text


def test_tags_decide_what_is_seen(client: Client) -> None:
    """A user without a tag stays out, `management` sees its own, `monitoring` the node, `administrator` everything."""
    plain, manager, monitor = (
        make_user(client, name, tags) for name, tags in (("p", ""), ("m", "management"), ("o", "monitoring"))
    )
    assert plain("GET", "/api/overview").status == 401
    assert [manager("GET", path).status for path in ("/api/overview", "/api/nodes", "/api/users")] == [200, 401, 401]
    assert [monitor("GET", path).status for path in ("/api/overview", "/api/nodes", "/api/users")] == [200, 200, 401]
    assert client("GET", "/api/users").status == 200
    client("PUT", "/api/vhosts/far")
    assert [each("GET", "/api/queues/far").status for each in (manager, monitor)] == [401, 200]
    assert [host["name"] for host in monitor.get("/api/vhosts")] == ["/", "far"]


def test_a_manager_sees_its_own_virtual_hosts_alone(client: Client) -> None:
    """What stands in another virtual host is neither listed nor told."""
    client("PUT", "/api/vhosts/mine")
    manager = make_user(client, "m", "management", "mine")
    client("PUT", "/api/queues/%2F/hidden", {})
    client("PUT", "/api/queues/mine/shown", {})
    assert [each["name"] for each in manager.get("/api/queues")] == ["shown"]
    assert [each["name"] for each in manager.get("/api/vhosts")] == ["mine"]
    assert manager("GET", "/api/queues/%2F").status == 401
    assert manager("PUT", "/api/queues/%2F/x", {}).status == 401


def test_totals_count_what_the_asker_may_see(client: Client, broker: Broker, server: Server) -> None:
    """A user with rights in one virtual host learns of no message, queue or connection of another: not by the overview,
    a stream, or over AMQP. (monitor 1)"""
    client("PUT", "/api/vhosts/mine")
    manager = make_user(client, "m", "management", "mine")
    for host, queue in (("mine", "shown"), ("/", "hidden")):
        broker.virtual_host(host).declare_queue(queue)
        broker.virtual_host(host).publish(Message(b"", routing_key=queue)).wait()
    parameters = pika.URLParameters(server.url)
    mine = pika.URLParameters(server.url.replace("guest:guest", "m:secret").replace("%2F", "mine"))
    with pika.BlockingConnection(parameters) as hidden, pika.BlockingConnection(mine) as shown:
        hidden.channel()
        channel = shown.channel()
        all_, own = client.get("/api/overview"), manager.get("/api/overview")
        assert [each["queue_totals"]["messages"] for each in (all_, own)] == [2, 1]
        assert [each["message_stats"]["publish"] for each in (all_, own)] == [2, 1]
        assert own["object_totals"] == {
            "channels": 1,
            "connections": 1,
            "consumers": 0,
            "exchanges": len(broker.virtual_host("mine").exchanges()),
            "queues": 1,
        }
        assert all_["object_totals"]["queues"] == 2
        assert not any(value for name, value in own["churn_rates"].items() if not name.endswith("_details"))
        ages = "?lengths_age=60&lengths_incr=5"
        samples = manager.get(f"/api/overview{ages}")["queue_totals"]["messages_details"].get("samples", [])
        assert {each["sample"] for each in samples} <= {0, 1}
        seen = [each.get("/api/connections") for each in (client, manager)]
        assert [len(each) for each in seen] == [2, 1]
        status = json.loads(channel.basic_get("amq.multiqueue.status", auto_ack=True)[2])
        assert (list(status["virtual_hosts"]), status["connections"], status["channels"]) == (["mine"], 1, 1)
        assert "hidden" not in json.dumps([own, status])
    assert set(server.status()["virtual_hosts"]) == {"/", "mine"}


def test_permissions_hold_as_on_the_wire(client: Client) -> None:
    """Who may not configure, write or read a name over AMQP may not over HTTP. (monitor 1)"""
    assert client("PUT", "/api/users/m", {"password": "secret", "tags": "management"}).status == 201
    client("PUT", "/api/permissions/%2F/m", {"configure": "^mine", "write": "^mine", "read": "^mine"})
    manager = client.as_user("m:secret")
    client("PUT", "/api/queues/%2F/other", {})
    assert manager("PUT", "/api/queues/%2F/mine", {}).status == 201
    assert manager("PUT", "/api/queues/%2F/theirs", {}).status == 401
    assert manager("DELETE", "/api/queues/%2F/other").status == 401
    assert manager("DELETE", "/api/queues/%2F/other/contents").status == 401
    got = manager("POST", "/api/queues/%2F/other/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"})
    assert got.status == 401
    message = {"properties": {}, "routing_key": "mine", "payload": "", "payload_encoding": "string"}
    assert manager("POST", "/api/exchanges/%2F/amq.default/publish", message).status == 401


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}],
)
def test_another_sites_page_changes_nothing(client: Client, headers: dict[str, str]) -> None:
    """A browser that sends the password along says where the request comes from, and that is refused. (monitor 6)"""
    assert client("PUT", "/api/queues/%2F/q", {}, headers).status == 403
    assert client("GET", "/api/queues/%2F/q").status == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("evil.example:15672", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
        ("[::1].evil.example", 421),
        ("localhost", 200),
        ("LocalHost.:1", 200),
        (socket.gethostname(), 200),
        ("[::1]:15672", 200),
        ("::1", 200),
        ("192.0.2.1", 200),
        ("broker.example", 200),
    ],
)
@pytest.mark.parametrize("path", ["/api/whoami", "/metrics", "/", "/api/events?look=/api/whoami"])
def test_a_name_that_was_made_to_lead_here_is_not_answered(
    broker: Broker, server: Server, host: str, status: int, path: str
) -> None:
    """A page whose name resolves to this machine asks in vain, with any password: its name is not ours. (monitor 6)"""
    http = broker.listen_http(amqp=server, hosts=["Broker.Example"])
    where = urlsplit(http.url)
    with socket.create_connection((where.hostname, where.port), timeout=30) as asking:
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
        asking.sendall(head.encode())
        assert asking.recv(12) == b"HTTP/1.1 %d" % status


def test_a_get_changes_nothing(client: Client, broker: Broker) -> None:
    """No GET or HEAD declares, publishes or takes; RabbitMQ's aliveness test does all three. (monitor 6)"""
    broker.declare_queue("orders")
    broker.publish(Message(b"tea", routing_key="orders"))
    before = client.get("/api/definitions")
    for path, method, _ in next(
        each for each in broker._servers if isinstance(each, HttpServer)
    ).application._table.routes():
        if method == "GET":
            for name, value in {"vhost": "%2F", "queue": "orders", "exchange": "amq.direct"}.items():
                path = path.replace(f"{{{name}}}", value)
            assert client("GET", path).status in (200, 400, 404, 503)
            client("HEAD", path)
    assert client.get("/api/definitions") == before
    assert (len(broker.queue("orders")), broker.queue("orders").statistics().enqueued) == (1, 1)


def test_who_asks_is_the_one_who_connects(broker: Broker, server: Server) -> None:
    """What `X-Forwarded-For` says is believed of configured proxies alone: neither a share nor `guest` goes by it."""
    plain, behind = (Client(broker.listen_http(amqp=server, proxies=each).url) for each in ((), ("127.0.0.0/8",)))
    for named in ("10.1.2.3", "127.0.0.1, 10.1.2.3"):
        assert plain("GET", "/api/whoami", headers={"x-forwarded-for": named}).status == 200
        assert (
            behind("GET", "/api/whoami", headers={"x-forwarded-for": named}).status == 401
        )  # guest is from here alone


def test_no_answer_lets_another_site_read_it(client: Client) -> None:
    """CORS stays closed, for OPTIONS too."""
    for method in ("GET", "OPTIONS"):
        reply = client(method, "/api/overview", headers={"origin": "http://evil.example"})
        assert reply.status == 200
        assert not [name for name in reply.headers if name.startswith("access-control")]


# -- what is answered


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/nope", None, 404),
        ("GET", "/api/queues/%2F/nope", None, 404),
        ("GET", "/api/queues/nope", None, 404),
        ("GET", "/api/queues/%2F/a/b/c/d/e/f", None, 404),
        ("GET", "/api/bindings/%2F/e/amq.direct/q/nope/~", None, 404),
        ("POST", "/api/queues", {}, 405),
        ("PUT", "/api/queues/%2F/q", b"{", 400),
        ("PUT", "/api/queues/%2F/q", b"[1]", 400),
        ("PUT", "/api/queues/%2F/q", b'{"arguments": {"a": NaN}}', 400),
        ("PUT", "/api/queues/%2F/q", b'{"arguments": {"a": -Infinity}}', 400),
        ("PUT", "/api/queues/%2F/q", b'{"a":' * 100_000, 400),
        ("PUT", "/api/queues/%2F/q", {"durable": "perhaps"}, 400),
        ("PUT", "/api/queues/%2F/q", {"arguments": []}, 400),
        ("PUT", "/api/queues/%2F/q", {"arguments": {"x-max-length": "ten"}}, 400),
        ("PUT", "/api/queues/%2F/amq.q", {}, 401),
        ("PUT", "/api/queues/nope/q", {}, 404),
        ("PUT", "/api/exchanges/%2F/x", {}, 400),
        ("PUT", "/api/users/u", {"tags": 3}, 400),
        ("PUT", "/api/users/u", {"password": 3, "tags": ""}, 400),
        ("PUT", "/api/users/u", {"password": None, "tags": ""}, 400),
        ("PUT", "/api/users/u", {"password_hash": None, "tags": ""}, 400),
        ("PUT", "/api/users/u", {"password": "", "password_hash": "", "tags": ""}, 400),
        ("PUT", "/api/users/u", {"password_hash": "nonsense", "tags": ""}, 400),
        ("PUT", "/api/users/u", {"password": "p", "password_hash": "aaaaaaaa", "tags": ""}, 400),
        ("PUT", "/api/permissions/%2F/guest", {"configure": "(", "write": "", "read": ""}, 400),
        ("GET", "/api/definitions/nope", None, 400),
        ("POST", "/api/definitions/nope", {}, 404),
        ("DELETE", "/api/users/nobody", None, 404),
        ("DELETE", "/api/connections/nope", None, 404),
        ("POST", "/api/queues/%2F/q/get", {"count": -1, "ackmode": "ack_requeue_true", "encoding": "auto"}, 400),
        ("POST", "/api/queues/%2F/q/get", {"count": 1, "ackmode": "perhaps", "encoding": "auto"}, 400),
        ("POST", "/api/queues/%2F/q/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "rot13"}, 400),
        ("GET", "/api/queues/%2F/q/messages?count=x", None, 404),
        ("GET", "/metrics/nope", None, 404),
        ("POST", "/metrics", None, 405),
        ("PUT", "/api/queues/%2F/%FF", {}, 400),
        ("GET", "/api/queues/%FE", None, 400),
    ],
)
def test_what_is_asked_wrongly_is_told(client: Client, method: str, path: str, body: Any, status: int) -> None:
    """Every refusal has its status and a reason; none is an error of ours. (monitor 7)"""
    reply = client(method, path, body)
    assert reply.status == status, reply
    if status != 405:
        assert reply.json["reason"]


def test_a_queue_in_figures(client: Client, broker: Broker) -> None:
    """Ready, unacked, consumers and bytes are those of the queue, under RabbitMQ's names."""
    broker.declare_queue("orders", durable=True, arguments={"x-max-length": 10})
    for _ in range(3):
        broker.publish(Message(b"four", routing_key="orders"))
    received = broker.get("orders")
    assert received is not None
    found = client.get("/api/queues/%2F/orders")
    expected = {
        "messages": 3,
        "messages_ready": 2,
        "messages_unacknowledged": 1,
        "message_bytes": 12,
        "durable": True,
        "arguments": {"x-max-length": 10},
        "vhost": "/",
        "state": "running",
    }
    assert {key: found[key] for key in expected} == expected
    assert found["message_stats"]["publish"] == 3
    assert found["message_stats"]["deliver_get"] == 1


@pytest.mark.parametrize(
    ("arguments", "limit", "retry"),
    [
        ({}, 20, "disabled"),
        ({"x-delivery-limit": -1}, "unlimited", "disabled"),
        ({"x-delivery-limit": 0, "x-delayed-retry-type": "all"}, 0, "disabled"),
        ({"x-delayed-retry-type": "all", "x-delayed-retry-min": 100}, 20, "all (min: 100ms, max: 100ms)"),
        (
            {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 100, "x-delayed-retry-max": 500},
            20,
            "failed (min: 100ms, max: 500ms)",
        ),
    ],
)
def test_a_quorum_queue_says_how_often_it_delivers(
    client: Client, broker: Broker, arguments: dict[str, object], limit: object, retry: str
) -> None:
    """In RabbitMQ 4.3.6's words. (monitor 2)"""
    broker.declare_queue("q", durable=True, arguments={"x-queue-type": "quorum", **arguments})
    found = client.get("/api/queues/%2F/q")
    assert (found["delivery_limit"], found["delayed_retry"], found["messages_delayed"]) == (limit, retry, 0)


def test_a_consumer_says_how_long_it_may_keep_a_message(client: Client, server: Any, broker: Broker) -> None:
    """Its own time, or its queue's, in milliseconds; nothing in a classic queue, where no time holds. (monitor 2)"""
    quorum = {"x-queue-type": "quorum"}
    broker.declare_queue("its own", durable=True, arguments=quorum)
    broker.declare_queue("the queue's", durable=True, arguments=quorum | {"x-consumer-timeout": 90_000})
    broker.declare_queue("the server's", durable=True, arguments=quorum)
    broker.declare_queue("classic")
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        channel = connection.channel()
        channel.basic_consume("its own", lambda *_: None, arguments={"x-consumer-timeout": 70_000})
        for queue in ("the queue's", "the server's", "classic"):
            channel.basic_consume(queue, lambda *_: None)
        found = {each["queue"]["name"]: each["consumer_timeout"] for each in client.get("/api/consumers")}
    assert found == {"its own": 70_000, "the queue's": 90_000, "the server's": 1_800_000, "classic": None}


def test_a_connection_in_figures_and_closed(client: Client, server: Any) -> None:
    """Connections, channels and consumers of real clients are shown, and an operator closes them."""
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    channel = connection.channel()
    channel.queue_declare("orders")
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("orders", lambda *_: None, consumer_tag="waiter")
    (found,) = client.get("/api/connections")
    assert (found["user"], found["vhost"], found["state"], found["channels"]) == ("guest", "/", "running", 1)
    assert found["client_properties"]["product"].startswith("Pika")
    assert found["recv_oct"] > 0
    (shown,) = client.get("/api/channels")
    assert (shown["number"], shown["consumer_count"]) == (1, 1)
    (consumer,) = client.get("/api/consumers")
    assert (consumer["consumer_tag"], consumer["prefetch_count"], consumer["queue"]["name"]) == ("waiter", 7, "orders")
    assert client.get("/api/queues/%2F/orders")["consumer_details"] == [consumer]
    name = found["name"].replace(" ", "%20").replace(">", "%3E").replace(":", "%3A")
    assert client("DELETE", f"/api/connections/{name}").status == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="management"):
        connection.process_data_events(10)


def test_messages_are_published_got_peeked_moved_and_purged(client: Client) -> None:
    """What goes in over HTTP comes out with its properties; a look leaves a message unflagged; a move keeps order."""
    for name in ("from", "to"):
        assert client("PUT", f"/api/queues/%2F/{name}", {}).status == 201
    for number in range(3):
        asked = {
            "properties": {"delivery_mode": 2, "headers": {"n": number}, "content_type": "text/plain"},
            "routing_key": "from",
            "payload": f"m{number}",
            "payload_encoding": "string",
        }
        assert client("POST", "/api/exchanges/%2F/amq.default/publish", asked).json == {"routed": True}
    peeked = client.get("/api/queues/%2F/from/messages?count=2")
    assert [(each["payload"], each["redelivered"]) for each in peeked] == [("m0", False), ("m1", False)]
    got = client(
        "POST", "/api/queues/%2F/from/get", {"count": 9, "ackmode": "ack_requeue_true", "encoding": "auto"}
    ).json
    assert [(each["payload"], each["redelivered"], each["message_count"]) for each in got] == [
        ("m0", False, 2),
        ("m1", False, 1),
        ("m2", False, 0),
    ]
    assert got[0]["properties"] == {"delivery_mode": 2, "headers": {"n": 0}, "content_type": "text/plain"}
    assert client("POST", "/api/queues/%2F/from/move", {"to": "to", "count": 2}).json == {"moved": 2}
    left = client("POST", "/api/queues/%2F/to/get", {"count": 9, "ackmode": "ack_requeue_false", "encoding": "base64"})
    assert [base64.b64decode(each["payload"]) for each in left.json] == [b"m0", b"m1"]
    assert client("DELETE", "/api/queues/%2F/from/contents").status == 204
    assert client.get("/api/queues/%2F/from")["messages"] == 0
    assert client("POST", "/api/queues/%2F/from/move", {"to": "from"}).status == 400
    assert client("POST", "/api/queues/%2F/from/move", {"to": "nope"}).status == 404


def test_aliveness_and_health(client: Client, server: Any) -> None:
    """A broker that works says so, with its ports."""
    assert client.get("/api/aliveness-test/%2F") == {"status": "ok"}
    assert client("POST", "/api/rebalance/queues").status == 204
    assert client.get("/api/nodes")[0]["run_queue"] == 0  # without it rabbitmqadmin 2 reads no node
    assert client.get("/api/health/checks/alarms") == {"status": "ok"}
    assert client.get("/api/health/checks/virtual-hosts") == {"status": "ok"}
    assert client.get(f"/api/health/checks/port-listener/{server.port}")["status"] == "ok"
    assert client("GET", "/api/health/checks/port-listener/1").status == 503


# -- users


def test_users_are_changed_while_clients_log_in(client: Client, server: Any) -> None:
    """A user that was made logs in at once; with another password the old one is worth nothing, remembered or not."""
    make_user(client, "waiter", "management")
    url = server.url.replace("guest:guest", "waiter:secret")
    pika.BlockingConnection(pika.URLParameters(url)).close()
    assert client.as_user("waiter:secret")("GET", "/api/whoami").status == 200
    assert client("PUT", "/api/users/waiter", {"password": "other", "tags": "management"}).status == 204
    assert client.as_user("waiter:secret")("GET", "/api/whoami").status == 401
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(url))
    assert client.as_user("waiter:other")("GET", "/api/whoami").status == 200
    assert client("DELETE", "/api/users/waiter").status == 204
    assert client.as_user("waiter:other")("GET", "/api/whoami").status == 401


def test_users_are_there_after_a_restart(tmp_path: Path) -> None:
    """What was changed over HTTP is kept in the data directory, permissions and tags included. (monitor 4)"""
    for is_first in (True, False):
        with Broker(data=tmp_path) as broker:
            server = broker.listen(data=tmp_path)
            client = Client(broker.listen_http(amqp=server, data=tmp_path).url)
            if is_first:
                make_user(client, "waiter", "monitoring")
            else:
                assert client.as_user("waiter:secret").get("/api/whoami")["tags"] == ["monitoring"]
                assert client.get("/api/users/waiter/permissions")[0]["vhost"] == "/"
                assert client("GET", "/api/whoami").status == 200  # guest, too


def test_users_of_the_configuration_are_not_changed(tmp_path: Path) -> None:
    """Who stands in the configuration is changed there; the answer says so."""
    boss = User.with_password("boss", "secret", tags=["administrator"])
    with Broker() as broker:
        server = broker.listen(users=[boss], data=tmp_path)
        client = Client(broker.listen_http(amqp=server).url, "boss:secret")
        for method, path, body in (
            ("PUT", "/api/users/boss", {"password": "x", "tags": ""}),
            ("DELETE", "/api/users/boss", None),
            ("DELETE", "/api/permissions/%2F/boss", None),
        ):
            reply = client(method, path, body)
            assert reply.status in (400, 404)
        assert "configuration" in client("DELETE", "/api/users/boss").json["reason"]
        with pytest.raises(FixedUser):
            server.access.remove("boss")
        assert client.get("/api/whoami")["name"] == "boss"


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"version": 3, "users": []}', '{"version": 1, "users": [{}]}', "\0"]
)
def test_a_file_of_users_that_is_damaged_is_named(tmp_path: Path, text: str) -> None:
    """A damaged file never means that no user, or every user, is let in."""
    (tmp_path / "users.json").write_text(text)
    with Broker() as broker, pytest.raises(ServerError, match=r"users\.json"):
        broker.listen(data=tmp_path)


def test_a_file_of_users_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    """The change is refused with the reason, and the user is not there."""
    with Broker() as broker:
        server = broker.listen(data=tmp_path)
        client = Client(broker.listen_http(amqp=server).url)
        (tmp_path / "users.json.new").mkdir()
        assert client("PUT", "/api/users/u", {"password": "x", "tags": ""}).status == 500
        assert client("GET", "/api/users/u").status == 404
        assert UsersFile(tmp_path).load() is None


@pytest.mark.parametrize(
    "name", ["*", "all", "none", "-", "default", "undefined", "amq.default", "None", "%2F", "..", "~"]
)
def test_rights_in_a_virtual_host_are_rights_in_it_alone(client: Client, server: Server, name: str) -> None:
    """No name of a virtual host means another one, or all of them: not over HTTP, not over AMQP, not in a file."""
    host = quote(name, safe="")
    assert client("PUT", f"/api/vhosts/{host}").status == 201
    assert client("PUT", "/api/users/waiter", {"password": "secret", "tags": "management"}).status == 201
    assert (
        client("PUT", f"/api/permissions/{host}/waiter", dict.fromkeys(("configure", "write", "read"), ".*")).status
        == 201
    )
    waiter = client.as_user("waiter:secret")
    assert [each["name"] for each in waiter.get("/api/vhosts")] == [name]
    assert waiter("PUT", f"/api/queues/{host}/q").status == 201
    assert waiter("PUT", "/api/queues/%2F/q").status == 401
    url = server.url.replace("guest:guest", "waiter:secret")
    pika.BlockingConnection(pika.URLParameters(url.replace("%2F", host))).close()
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        pika.BlockingConnection(pika.URLParameters(url))
    assert client("DELETE", f"/api/vhosts/{host}").status == 204
    assert waiter("PUT", "/api/queues/%2F/q").status == 401


def test_what_stood_for_all_virtual_hosts_still_does(tmp_path: Path) -> None:
    """A file of users of the first version says `*` for every virtual host; its users keep what they had."""
    allowed = {"configure": "", "write": "", "read": "^q$"}
    user = {"name": "waiter", "password_hash": None, "permissions": {"*": allowed}, "loopback_only": False, "tags": []}
    (tmp_path / "users.json").write_text(json.dumps({"version": 1, "users": [user]}))
    (waiter,) = UsersFile(tmp_path).load() or []
    assert (waiter.permissions, waiter.permissions_in("any")) == ({}, Permissions(**allowed))
    UsersFile(tmp_path).save([waiter])
    assert UsersFile(tmp_path).load() == [waiter]


def test_what_is_taken_away_stays_away(tmp_path: Path) -> None:
    """A deleted permission is not replaced by what a user has everywhere: not at once, not by a repeated request, not
    after a restart, not in a virtual host that is deleted and made anew."""
    allowed = dict.fromkeys(("configure", "write", "read"), "^q$")
    for is_first in (True, False):
        with Broker(data=tmp_path / "store") as broker:
            server = broker.listen(data=tmp_path)
            client = Client(broker.listen_http(amqp=server).url)
            if is_first:
                assert client("PUT", "/api/vhosts/shop").status == 201
                assert client("PUT", "/api/permissions/shop/guest", allowed).status == 204
                for host in ("%2F", "shop"):
                    assert client("DELETE", f"/api/permissions/{host}/guest").status == 204
                    assert client("DELETE", f"/api/permissions/{host}/guest").status == 404
            else:
                assert client("DELETE", "/api/vhosts/shop").status == 204
                assert client("PUT", "/api/vhosts/shop").status == 201
                assert client("DELETE", "/api/permissions/shop/guest").status == 204  # its maker's
            assert client("PUT", "/api/vhosts/shop").status == 204
            assert client.get("/api/users/guest/permissions") == []
            assert [client("PUT", f"/api/queues/{host}/q", {}).status for host in ("%2F", "shop")] == [401, 401]
            with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
                pika.BlockingConnection(pika.URLParameters(server.url))
    with Broker(data=tmp_path / "store") as broker:
        assert (
            Client(broker.listen_http(amqp=broker.listen(data=tmp_path)).url)("DELETE", "/api/users/guest").status
            == 204
        )
    access = Access([User("anna", everywhere=Permissions())])
    access.permit("anna", "shop", None)
    access.forget_virtual_host("shop")
    assert [anna.permissions_in("shop") for anna in access.users()] == [None]
    with Broker(data=tmp_path / "store") as broker:
        assert Client(broker.listen_http(amqp=broker.listen(data=tmp_path)).url)("GET", "/api/whoami").status == 401


@pytest.mark.parametrize("pattern", ["(.+)+!", "(?!x)(.+)+!", "[", "(a" * 90 + "+)" * 90])
def test_an_expression_is_matched_or_refused_at_once(client: Client, broker: Broker, pattern: str) -> None:
    """Wherever it comes in, none stops the broker; an import of one changes nothing. (monitor 5, 7)"""
    broker.declare_queue("a" * 200)
    asked = f"/api/queues?page=1&use_regex=true&name={quote(pattern)}"
    began = time.process_time()
    look = client("GET", asked)
    assert look.status in (200, 400)
    assert look.status == 200 or pattern in look.json["reason"]
    with urllib.request.urlopen(
        urllib.request.Request(
            f"{client.url}/api/events?look={quote(asked, safe='')}", headers={"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
        )
    ) as stream:
        assert stream.readline() == b"event: 0\n"
    allowed = {"configure": ".*", "write": pattern, "read": ".*"}
    one = client("PUT", "/api/permissions/%2F/guest", allowed)
    many = client(
        "POST",
        "/api/definitions",
        {"vhosts": [{"name": "new"}], "permissions": [{"user": "guest", "vhost": "new", **allowed}]},
    )
    assert (one.status, many.status) == ((204, 204) if look.status == 200 else (400, 400))
    assert ("new" in [each["name"] for each in client.get("/api/vhosts")]) == (many.status == 204)
    assert client("PUT", f"/api/queues/%2F/{'a' * 250}", {}).status == 201
    assert time.process_time() - began < 2


@pytest.mark.parametrize("way", ["users", "definitions"])
def test_a_guest_that_is_made_anew_is_of_this_machine(client: Client, server: Server, way: str) -> None:
    """RabbitMQ's default user has a password that everybody knows, and every export of RabbitMQ's has that user."""
    definitions = client.get("/api/definitions")
    assert client("DELETE", "/api/users/guest").status == 204
    root = User.with_password("root", "secret", tags=["administrator"])
    server.access.put(root)
    if way == "users":
        made = client.as_user("root:secret")("PUT", "/api/users/guest", {"password": "guest", "tags": "administrator"})
    else:
        made = client.as_user("root:secret")("POST", "/api/definitions", definitions)
    assert made.status in (201, 204)
    made_user = server.access.user("guest")
    assert made_user is not None
    assert made_user.loopback_only


def test_an_import_widens_no_user(client: Client, server: Server) -> None:
    """Definitions that name a user who may come in from this machine alone do not let others in as that user."""
    assert client("POST", "/api/definitions", client.get("/api/definitions")).status == 204
    guest = server.access.user("guest")
    assert guest is not None
    assert guest.loopback_only


def test_a_user_that_is_put_without_a_password_has_none(client: Client) -> None:
    """Also one that had: as at RabbitMQ, a change names all. An empty hash is none."""
    as_ada = client.as_user("ada:secret")
    for body, status, has_one in (
        ({"password": "secret"}, 201, True),
        ({}, 204, False),
        ({"password": "secret"}, 204, True),
        ({"password_hash": ""}, 204, False),
        ({"password": "secret"}, 204, True),
        ({"password": ""}, 204, False),
        ({"password_hash": client.get("/api/auth/hash_password/secret")["ok"]}, 204, True),
    ):
        assert client("PUT", "/api/users/ada", {**body, "tags": "management"}).status == status
        assert as_ada("GET", "/api/whoami").status == (200 if has_one else 401)
        assert client.as_user("ada:")("GET", "/api/whoami").status == 401
        assert bool(client.get("/api/users/ada")["password_hash"]) is has_one


@pytest.mark.parametrize(("compat", "release"), [("4.3", "4.3.6"), ("3.10", "3.10.8"), ("lenient", "4.3.6")])
def test_the_release_is_that_of_the_rules(compat: str, release: str) -> None:
    """Clients and dashboards that compare versions see the RabbitMQ that this broker behaves as."""
    with Broker(compat=compat) as broker:
        client = Client(broker.listen_http().url)
        overview, exported = client.get("/api/overview"), client.get("/api/definitions")
        found = {overview["rabbitmq_version"], overview["management_version"], exported["rabbitmq_version"]}
        found |= {exported["rabbit_version"], client.get("/api/definitions/%2F")["rabbit_version"]}
        assert found == {release}
        assert f'rabbitmq_version="{release}"' in client("GET", "/metrics").text


# -- definitions


def rabbitmq_hash(password: str) -> str:
    salt = b"\1\2\3\4"
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def definitions() -> dict[str, Any]:
    """As RabbitMQ exports them."""
    return {
        "rabbit_version": "3.10.8",
        "users": [
            {
                "name": "imported",
                "password_hash": rabbitmq_hash("sesame"),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": ["administrator"],
                "limits": {},
            }
        ],
        "vhosts": [{"name": "/"}, {"name": "shop"}],
        "permissions": [{"user": "imported", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"}],
        "topic_permissions": [],
        "parameters": [],
        "global_parameters": [{"name": "internal_cluster_id", "value": "x"}],
        "policies": [],
        "queues": [
            {
                "name": "q",
                "vhost": "shop",
                "type": "classic",
                "durable": True,
                "auto_delete": False,
                "arguments": {"x-max-length": 5},
            }
        ],
        "exchanges": [
            {
                "name": "x",
                "vhost": "shop",
                "type": "topic",
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
        ],
        "bindings": [
            {
                "source": "x",
                "vhost": "shop",
                "destination": "q",
                "destination_type": "queue",
                "routing_key": "a.#",
                "arguments": {},
            }
        ],
    }


def test_definitions_of_rabbitmq_load_and_come_out_again(client: Client) -> None:
    """Users with their passwords, virtual hosts, permissions and the topology; twice is once."""
    for _ in range(2):
        assert client("POST", "/api/definitions", definitions()).status == 204
    imported = client.as_user("imported:sesame")
    assert imported.get("/api/whoami")["tags"] == ["administrator"]
    assert client.as_user("imported:wrong")("GET", "/api/whoami").status == 401
    exported = imported.get("/api/definitions")
    for kind in ("queues", "exchanges", "bindings"):
        assert exported[kind] == definitions()[kind]
    assert definitions()["users"][0] in exported["users"]
    with Broker() as second:
        other = Client(second.listen_http().url)
        assert other("POST", "/api/definitions", exported).status == 204
        assert other.as_user("imported:sesame").get("/api/definitions") == exported


# -- what HTTP and AMQP have in common


@pytest.mark.parametrize(
    "name", ["€", "a/b", "a b", "%2F", "50%", "?q=1", "#", "\N{SNOWMAN}" * 85, "~", "x\r\ny: z", "."]
)
def test_names_of_all_kinds_work(client: Client, name: str) -> None:
    """A queue may be called anything in UTF-8: it is bound, and the answer says where the binding is."""
    queue = quote(name, safe="")
    assert client("PUT", f"/api/queues/%2F/{queue}").status == 201
    assert client("PUT", f"/api/exchanges/%2F/{queue}", {"type": "direct"}).status == 201
    reply = client("POST", f"/api/bindings/%2F/e/{queue}/q/{queue}", {"routing_key": name, "arguments": {name: name}})
    assert reply.status == 201
    (binding,) = client.get(f"/api/bindings/%2F/e/{queue}/q/{queue}")
    assert (binding["destination"], binding["routing_key"], binding["arguments"]) == (name, name, {name: name})
    place = reply.headers["location"].partition("/")[2]
    assert client.get(f"/api/bindings/%2F/e/{queue}/q/{queue}/{place}") == binding
    assert client("DELETE", f"/api/bindings/%2F/e/{queue}/q/{reply.headers['location']}").status == 204
    assert client.get(f"/api/bindings/%2F/e/{queue}/q/{queue}") == []


def test_each_binding_has_a_name_of_its_own(client: Client, broker: Broker) -> None:
    """Keys that look like the name of another binding: a DELETE takes away the one that it names."""
    broker.declare_queue("q")
    bound: list[tuple[str, dict[str, int]]] = [
        ("a", {"n": 1}),
        ("a", {}),
        ("", {}),
        ("~", {}),
        ("%7E", {}),
        ("a%7E", {}),
    ]
    path = "/api/bindings/%2F/e/amq.topic/q/q"
    for key, arguments in bound:
        broker.bind_queue("q", "amq.topic", key, arguments)
    mark = next(each["properties_key"] for each in client.get(path) if each["arguments"])
    broker.bind_queue("q", "amq.topic", mark)
    there = {each["properties_key"]: (each["routing_key"], each["arguments"]) for each in client.get(path)}
    assert len(there) == len(bound) + 1
    for name in list(there):
        assert client("DELETE", f"{path}/{quote(name, safe='')}").status == 204
        del there[name]
        found = [(each["routing_key"], each["arguments"]) for each in client.get(path)]
        assert sorted(map(repr, found)) == sorted(map(repr, there.values()))


def test_a_publish_over_http_is_one_over_amqp(client: Client, broker: Broker, server: Server) -> None:
    """Properties come out of a queue as they went in; CC and BCC lead to queues, and BCC is not shown."""
    for queue in ("to", "cc", "bcc"):
        broker.declare_queue(queue)
    properties = {
        "content_type": "text/plain",
        "delivery_mode": 2,
        "priority": 255,
        "expiration": "60000",
        "timestamp": 5,
        "message_id": "x" * 255,
        "user_id": "guest",
        "cluster_id": "c",
        "headers": {"CC": ["cc"], "BCC": ["bcc"], "n": [1, None, {"deep": 1.5}]},
    }
    body = {"properties": properties, "routing_key": "to", "payload": "\u20ac", "payload_encoding": "string"}
    assert client("POST", "/api/exchanges/%2F/amq.default/publish", body).json == {"routed": True}
    headers = {name: value for name, value in properties["headers"].items() if name != "BCC"}  # type: ignore[attr-defined]
    for queue in ("to", "cc", "bcc"):
        (found,) = client.get(f"/api/queues/%2F/{queue}/messages")
        assert found["properties"] == {**properties, "headers": headers}
        with connect(server.url) as connection, connection.channel() as channel:
            got = channel.basic_get(queue, auto_ack=True)
            assert got is not None
            assert (got.body, got.properties["headers"]) == ("\u20ac".encode(), headers)


def test_a_message_over_http_is_as_large_as_one_over_amqp(broker: Broker) -> None:
    """The limit of the server's settings holds for both."""
    server = broker.listen(settings=ServerSettings(max_message_bytes=10))
    client = Client(broker.listen_http(amqp=server).url)
    broker.declare_queue("q")
    for size, status in ((10, 200), (11, 400)):
        body = {"properties": {}, "routing_key": "q", "payload": "x" * size, "payload_encoding": "string"}
        assert client("POST", "/api/exchanges/%2F/amq.default/publish", body).status == status


def test_a_declaration_over_http_needs_the_rights_of_one_over_amqp(client: Client) -> None:
    """Who may not write to an exchange cannot have dead letters, or what it does not route, sent there."""
    waiter = make_user(client, "waiter", "management")
    mine = {"configure": "^mine", "write": "^mine", "read": "^mine"}
    assert client("PUT", "/api/permissions/%2F/waiter", mine).status == 204
    for exchange, status in (("mine", 201), ("theirs", 401)):
        queue = {"arguments": {"x-dead-letter-exchange": exchange}}
        assert waiter("PUT", f"/api/queues/%2F/mine-{exchange}", queue).status == status
        alternate = {"type": "topic", "arguments": {"alternate-exchange": exchange}}
        assert waiter("PUT", f"/api/exchanges/%2F/mine-{exchange}", alternate).status == status


@pytest.mark.parametrize(
    "odd",
    [
        {"timestamp": math.inf},
        {"expiration": math.inf},
        {"message_id": object()},
        {"headers": {5: {"a": {1}}}},
        {"priority": 3000},
        {"type": "\ud800"},
        {"body": "\ud800"},
        {"body": {"a": 1}},
    ],
)
def test_a_message_that_stays_in_this_process_can_be_looked_at(
    client: Client, broker: Broker, odd: dict[str, Any]
) -> None:
    """What no wire can carry is shown as far as it can be, and costs the look nothing."""
    broker.declare_queue("objects")
    broker.publish(Message(**{"body": b"", "routing_key": "objects", **odd}))
    (found,) = client.get("/api/queues/%2F/objects/messages")
    assert found["routing_key"] == "objects"
    assert found["payload"] == str(odd.get("body", "")).encode(errors="backslashreplace").decode()
    got = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert client("POST", "/api/queues/%2F/objects/get", got).status == 200


# -- metrics, the server


def test_metrics_have_rabbitmqs_names(client: Client, broker: Broker) -> None:
    """Sums at `/metrics`, a line for each queue at `/metrics/per-object`, some families at `/metrics/detailed`."""
    broker.declare_queue("orders")
    broker.publish(Message(b"tea", routing_key="orders"))
    asked = client.as_user(None)
    sums = asked("GET", "/metrics").text
    assert "\nrabbitmq_queue_messages_ready 1.0\n" in sums
    assert "\nrabbitmq_queues 1.0\n" in sums
    assert "rabbitmq_queue_consumer_capacity" not in sums  # a share is of no meaning as a sum
    objects = asked("GET", "/metrics/per-object").text
    assert 'rabbitmq_queue_messages{queue="orders",vhost="/"} 1.0' in objects
    detailed = asked("GET", "/metrics/detailed?family=queue_coarse_metrics&family=nope").text
    assert 'rabbitmq_detailed_queue_messages_ready{queue="orders",vhost="/"} 1.0' in detailed
    assert "rabbitmq_detailed_queue_consumers" not in detailed


def test_metrics_are_for_this_machine_or_for_those_who_may(client: Client) -> None:
    """A page whose name was made to lead here gets no metrics, for its requests name another host."""
    asked = client.as_user(None)
    assert asked("GET", "/metrics", headers={"host": "192.0.2.1"}).status == 401
    assert client("GET", "/metrics", headers={"host": "192.0.2.1"}).status == 200
    manager = make_user(client, "m", "management")
    assert manager("GET", "/metrics", headers={"host": "192.0.2.1"}).status == 401


def test_a_port_that_is_taken_is_named() -> None:
    """The error says which port, and what to do."""
    with socket.socket() as taken, Broker() as broker:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(MonitorError, match=f"port {taken.getsockname()[1]} is in use"):
            broker.listen_http(port=taken.getsockname()[1])


def test_a_certificate_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """The server does not start, and says why."""
    with Broker() as broker, pytest.raises(MonitorError, match="cannot serve HTTP"):
        serve_http(broker, tls=(str(tmp_path / "none.pem"), None))


def test_the_server_ends_with_its_broker(broker: Broker) -> None:
    """Closing the broker frees the port; closing the server twice is harmless. (monitor 8)"""
    http = broker.listen_http()
    broker.close()
    http.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", http.port), timeout=5)


def test_a_virtual_host_is_deleted_with_all_that_is_in_it(client: Client, broker: Broker, server: Any) -> None:
    """Queues, permissions and connections go with it; the default one cannot be deleted. (monitor 4)"""
    client("PUT", "/api/users/ada", {"password": "p", "tags": "management"})
    client("PUT", "/api/vhosts/shop")
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    client("PUT", "/api/permissions/shop/ada", everything)
    client("PUT", "/api/queues/shop/orders", {})
    connection = pika.BlockingConnection(pika.URLParameters(server.url.removesuffix("%2F") + "shop"))
    assert client("DELETE", "/api/vhosts/shop").status == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="vhost 'shop' is deleted"):
        connection.channel()
    assert client("DELETE", "/api/vhosts/shop").status == 404
    assert client.get("/api/users/ada/permissions") == []
    assert client.get("/api/queues") == client.get("/api/connections") == []
    refused = client("DELETE", "/api/vhosts/%2F")
    assert (refused.status, refused.json["reason"]) == (
        400,
        "vhost '/' cannot be deleted: it lives as long as its broker",
    )
    assert client.as_user("ada:p")("DELETE", "/api/vhosts/shop").status == 401


def test_a_get_tells_and_counts_deliveries_of_a_quorum_queue(broker: Broker, client: Client) -> None:
    """As over AMQP: what was put back was acquired, what was rejected has failed."""
    broker.declare_queue("q", durable=True, arguments={"x-queue-type": "quorum"})
    broker.publish(Message(b"x", routing_key="q"))
    seen = []
    for mode in ("ack_requeue_true", "reject_requeue_true", "ack_requeue_false"):
        asked = {"count": 1, "ackmode": mode, "encoding": "auto"}
        (message,) = client("POST", "/api/queues/%2F/q/get", asked).json
        seen.append(dict(message["properties"]).get("headers"))
    assert seen == [None, {"x-acquired-count": 1}, {"x-acquired-count": 2, "x-delivery-count": 1}]
