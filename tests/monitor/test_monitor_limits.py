"""Limits of virtual hosts and users, and topic permissions: set over HTTP, held over AMQP, kept, exported and imported.

What is said was compared with RabbitMQ 4.3.6, 2026-11-25.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
import pytest
from amqp_parts_support import UsersFile
from monitor_support import Client

from multiqueue.amqp import Server, TopicPermissions, User
from multiqueue.broker import Broker, HostLimits, PreconditionFailed

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.fixture
def ada(client: Client) -> str:
    assert client("PUT", "/api/users/ada", {"password": "ada", "tags": "management"}).status == 201
    assert client("PUT", "/api/permissions/%2F/ada", ALL).status == 201
    return "ada"


def connect(server: Server, user: str) -> pika.BlockingConnection:
    login = pika.PlainCredentials(user, user)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port, "/", login))


def refused(call: Any) -> str:
    with pytest.raises(pika.exceptions.AMQPError) as caught:
        call()
    return repr(caught.value).replace("\\", "")


def test_a_virtual_host_has_so_many_queues(client: Client, server: Server, ada: str, broker: Broker) -> None:
    """One more is refused, over AMQP, HTTP and in process; what is there stays, and can be declared again."""
    broker.declare_queue("there")
    assert client("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 1}).status == 204
    said = "cannot declare queue 'more': queue limit in vhost '/' (1) is reached"
    with pytest.raises(PreconditionFailed, match="queue limit in vhost '/'"):
        broker.declare_queue("more")
    reply = client("PUT", "/api/queues/%2F/more", {})
    assert (reply.status, reply.json["reason"]) == (400, said)
    with connect(server, ada) as connection:
        assert said in refused(lambda: connection.channel().queue_declare("more"))
    broker.declare_queue("there")
    assert client("DELETE", "/api/vhost-limits/%2F/max-queues").status == 204
    broker.declare_queue("more")


def test_a_virtual_host_has_so_many_connections(client: Client, server: Server, ada: str) -> None:
    """The next one is refused when it opens the virtual host; those that are open stay."""
    with connect(server, ada) as first:
        assert client("PUT", "/api/vhost-limits/%2F/max-connections", {"value": 1}).status == 204
        said = refused(lambda: connect(server, "guest"))
        assert "access to vhost '/' refused for user 'guest': connection limit (1) is reached" in said
        assert first.channel().is_open
        assert client("PUT", "/api/vhost-limits/%2F/max-connections", {"value": -1}).status == 204
        connect(server, "guest").close()


def test_a_user_has_so_many_connections_and_channels(client: Client, server: Server, ada: str) -> None:
    """Of all its connections together; another user has its own."""
    assert client("PUT", "/api/user-limits/ada/max-connections", {"value": 1}).status == 204
    assert client("PUT", "/api/user-limits/ada/max-channels", {"value": 2}).status == 204
    with connect(server, ada) as first:
        said = refused(lambda: connect(server, ada))
        assert "connection refused for user 'ada': user connection limit (1) is reached" in said
        first.channel()
        first.channel().close()
        first.channel()
        said = refused(first.channel)
        assert "number of channels opened for user 'ada' has reached the maximum allowed user limit of 2" in said
    connect(server, "guest").close()


def test_topic_permissions(client: Client, server: Server, ada: str, broker: Broker) -> None:
    """They hold for routing keys at that exchange, for publishing and binding; `{username}` is the user's name."""
    may = {"exchange": "amq.topic", "write": "^{username}[.]", "read": "^b"}
    assert client("PUT", "/api/topic-permissions/%2F/ada", may).status == 201
    assert client("PUT", "/api/topic-permissions/%2F/ada", may).status == 204
    broker.declare_queue("q")
    where = "in exchange 'amq.topic' in vhost '/' refused for user 'ada'"
    with connect(server, ada) as connection:

        def publish(key: str, exchange: str = "amq.topic") -> None:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish(exchange, key, b"")

        publish("ada.x")
        publish("other", "amq.direct")
        assert f"write access to topic 'other' {where}" in refused(lambda: publish("other"))
        connection.channel().queue_bind("q", "amq.topic", "b.x")
        said = refused(lambda: connection.channel().queue_bind("q", "amq.topic", "a.x"))
        assert f"read access to topic 'a.x' {where}" in said
    as_ada = client.as_user("ada:ada")
    message = {"properties": {}, "payload": "", "payload_encoding": "string"}
    reply = as_ada("POST", "/api/exchanges/%2F/amq.topic/publish", {**message, "routing_key": "other"})
    assert (reply.status, reply.json["reason"]) == (401, f"ACCESS_REFUSED - write access to topic 'other' {where}")
    assert as_ada("POST", "/api/bindings/%2F/e/amq.topic/q/q", {"routing_key": "a"}).status == 401
    assert client("DELETE", "/api/topic-permissions/%2F/ada").status == 204
    assert client("DELETE", "/api/topic-permissions/%2F/ada").status == 404


def test_what_is_shown(client: Client, ada: str) -> None:
    """Lists of what was set, and nothing of what was not."""
    for path in ("/api/vhost-limits", "/api/user-limits", "/api/topic-permissions", "/api/vhost-limits/%2F"):
        assert client.get(path) == []
    assert client("GET", "/api/topic-permissions/%2F/ada").status == 404
    client("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 5})
    client("PUT", "/api/user-limits/ada/max-channels", {"value": 6})
    may = {"exchange": "amq.topic", "write": "w", "read": "r"}
    client("PUT", "/api/topic-permissions/%2F/ada", may)
    assert client.get("/api/vhost-limits") == [{"vhost": "/", "value": {"max-queues": 5}}]
    assert client.get("/api/user-limits/ada") == [{"user": "ada", "value": {"max-channels": 6}}]
    for path in ("topic-permissions", "topic-permissions/%2F/ada", "users/ada/topic-permissions"):
        assert client.get(f"/api/{path}") == [{"user": "ada", "vhost": "/", **may}]
    assert client.get("/api/users/ada")["limits"] == {"max-channels": 6}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (
            "/api/vhost-limits/%2F/max-quues",
            {"value": 1},
            "there is no limit 'max-quues'; one of max-",
        ),
        ("/api/vhost-limits/%2F/max-queues", {"value": "x"}, "max-queues should be a whole number, actually was 'x'"),
        ("/api/vhost-limits/%2F/max-queues", {}, "[{key_missing,value}]"),
        ("/api/user-limits/guest/max-queues", {"value": 1}, "there is no limit 'max-queues'; one of max-connections"),
        ("/api/user-limits/nobody/max-channels", {"value": 1}, "no_such_user"),
        ("/api/user-limits/nobody/max-quues", {"value": 1}, "there is no limit 'max-quues'; one of max-"),
        ("/api/user-limits/nobody/max-channels", {"value": "x"}, "max-channels should be a whole number"),
        ("/api/topic-permissions/%2F/guest", {"exchange": "x", "write": "", "read": ""}, "no_such_exchange"),
        ("/api/topic-permissions/%2F/guest", {"exchange": "x", "write": "("}, "read"),
        ("/api/topic-permissions/%2F/guest", {"exchange": "x", "write": "(", "read": ""}, "regular expression"),
    ],
)
def test_what_cannot_be(client: Client, path: str, body: object, said: str) -> None:
    """It is refused with what can be, and nothing is changed."""
    before = client.get("/api/definitions")
    reply = client("PUT", path, body)
    assert reply.status == 400
    assert said in reply.json["reason"]
    assert client.get("/api/definitions") == before


def test_a_limit_that_cannot_be_is_not_there(client: Client, ada: str) -> None:
    """It can be deleted, as in RabbitMQ; of a virtual host or user that is not there it cannot."""
    for path, status in (("vhost-limits/%2F", 204), ("user-limits/ada", 204), ("vhost-limits/no", 404)):
        assert client("DELETE", f"/api/{path}/max-quues").status == status


def test_they_are_for_administrators(client: Client, ada: str) -> None:
    """Others may look at limits of their virtual hosts alone."""
    as_ada = client.as_user("ada:ada")
    assert as_ada("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 1}).status == 401
    assert as_ada("GET", "/api/user-limits").status == 401
    assert as_ada("GET", "/api/topic-permissions").status == 401
    assert as_ada("GET", "/api/vhost-limits").status == 200


def test_definitions_have_them(client: Client, ada: str) -> None:
    """What was exported is there after an import."""
    client("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 5})
    client("PUT", "/api/user-limits/ada/max-channels", {"value": 6})
    client("PUT", "/api/topic-permissions/%2F/ada", {"exchange": "amq.topic", "write": "w", "read": "r"})
    exported = client.get("/api/definitions")
    with Broker() as other, other.listen() as server:
        there = Client(other.listen_http(amqp=server).url)
        there_before = {each["name"] for each in there.get("/api/users")}
        exported["users"] = [each for each in exported["users"] if each["name"] not in there_before]
        exported["permissions"] = [each for each in exported["permissions"] if each["user"] == "ada"]
        assert there("POST", "/api/definitions", exported).status == 204
        assert there.get("/api/vhost-limits") == [{"vhost": "/", "value": {"max-queues": 5}}]
        assert there.get("/api/user-limits") == [{"user": "ada", "value": {"max-channels": 6}}]
        assert there.get("/api/topic-permissions") == client.get("/api/topic-permissions")
        none = {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": []}  # RabbitMQ's, where all went
        assert there("POST", "/api/definitions", {"parameters": [none]}).status == 204
        wrong = {"vhosts": [{"name": "v", "limits": {"max-things": 1}}]}
        assert "vhosts[0].limits: there is no limit" in there("POST", "/api/definitions", wrong).json["reason"]


def test_they_are_kept(tmp_path: Path) -> None:
    """Limits of a virtual host in its store, a user's in the file of users."""
    with Broker(data=tmp_path / "store") as broker:
        broker.limits.set("max-queues", 3)
        broker.limits.set("max-connections", 3)
        broker.limits.clear("max-connections")
    with Broker(data=tmp_path / "store") as broker:
        assert broker.limits.all() == {"max-queues": 3}
    users = [User("a", limits={"max-channels": 2}, topics={"/": {"x": TopicPermissions("w", "r")}})]
    UsersFile(tmp_path).save(users)
    assert UsersFile(tmp_path).load() == users


def test_limits_of_no_kind() -> None:
    """They are refused by name, and a limit that was never set is no limit."""
    limits = HostLimits(None)
    with pytest.raises(ValueError, match="there is no limit 'x'; one of max-connections, max-queues"):
        limits.set("x", 1)
    with pytest.raises(TypeError, match="max-queues should be a whole number, actually was True"):
        limits.set("max-queues", True)
    assert not limits.clear("max-queues")
    assert limits.most("max-queues") is None
