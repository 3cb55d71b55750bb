"""Names, requests and fields that RabbitMQ's tools ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pika
import pytest
from click.testing import CliRunner
from monitor_support import Client

from multiqueue.broker import Broker, Message
from multiqueue.cli import main

CHECKS = [
    "healthchecks/node",
    "health/checks/is-in-service",
    "health/checks/below-node-connection-limit",
    "health/checks/ready-to-serve-clients",
    "health/checks/reached-target-cluster-size",
    "health/checks/metadata-store/initialized",
    "health/checks/metadata-store/initialized/with-data",
    "health/checks/quorum-queues-without-elected-leaders/all-vhosts/",
    "health/checks/quorum-queues-without-elected-leaders/vhost/%2F/",
    "health/checks/quorum-queues-without-elected-leaders/vhost/%2F/pattern/x",
]


@pytest.fixture
def connection(server: Any) -> Iterator[pika.BlockingConnection]:
    parameters = pika.URLParameters(server.url)
    parameters.client_properties = {"connection_name": "shop 17"}
    with pika.BlockingConnection(parameters) as connection:
        yield connection


def test_a_connection_has_the_name_that_its_client_gave(client: Client, connection: Any) -> None:
    """In the API, of its consumers, and in `connection list`. (monitor 2)"""
    channel = connection.channel()
    channel.queue_declare("q")
    channel.basic_consume("q", lambda *_: None)
    assert [each["user_provided_name"] for each in client.get("/api/connections")] == ["shop 17"]
    for path in ("/api/consumers", "/api/queues/%2F/q"):
        found = client.get(path)
        (consumer,) = found if isinstance(found, list) else found["consumer_details"]
        assert consumer["channel_details"]["user_provided_name"] == "shop 17"
    listed = CliRunner().invoke(main, ["connection", "list", "--url", client.url]).stdout
    assert "shop 17" in listed.splitlines()[1]


@pytest.mark.parametrize(
    ("name", "shown"), [(None, None), (5, None), (["x"], None), ({"y": "z"}, None), ("", ""), ("x" * 999, "x" * 255)]
)
def test_a_name_that_is_no_name(client: Client, server: Any, name: object, shown: str | None) -> None:
    """A client may say anything in its properties, and each consumer's answer has its name. (monitor 2)"""
    parameters = pika.URLParameters(server.url)
    parameters.client_properties = {"connection_name": name}
    with pika.BlockingConnection(parameters):
        assert [each["user_provided_name"] for each in client.get("/api/connections")] == [shown]


def test_connections_of_one_user(client: Client, connection: Any, server: Any) -> None:
    """Are listed for that user and for monitors, and closed by that user and by administrators. (monitor 2)"""
    for name, tags in (("ada", "management"), ("eve", "management"), ("mo", "monitoring")):
        client("PUT", f"/api/users/{name}", {"password": "x", "tags": tags})
        client("PUT", f"/api/permissions/%2F/{name}", {"configure": ".*", "write": ".*", "read": ".*"})
    ada = pika.BlockingConnection(pika.URLParameters(server.url.replace("guest:guest", "ada:x")))
    for user in ("guest:guest", "ada:x", "mo:x"):
        (found,) = client.as_user(user).get("/api/connections/username/ada")
        assert found["user"] == "ada"
    assert client.get("/api/connections/username/nobody") == []
    assert client.as_user("eve:x")("GET", "/api/connections/username/ada").status == 401
    assert client.as_user("mo:x")("DELETE", "/api/connections/username/ada").status == 401
    assert client.as_user("ada:x")("DELETE", "/api/connections/username/ada", headers={"x-reason": "Tea"}).status == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="Tea"):
        ada.process_data_events(10)
    assert len(client.get("/api/connections/username/guest")) == 1
    assert client("DELETE", "/api/connections/username/nobody").status == 204


@pytest.mark.parametrize(("reason", "told"), [("deploy 17", "deploy 17"), ("x" * 5000, "xxx"), (None, "Closed via")])
def test_the_reason_for_a_close_is_told_to_the_client(
    client: Client, server: Any, caplog: pytest.LogCaptureFixture, reason: str | None, told: str
) -> None:
    """The header X-Reason is in the close, cut to what AMQP carries, and in the log. (monitor 2)"""
    caplog.set_level("INFO", "multiqueue.amqp")
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    (name,) = (each["name"] for each in client.get("/api/connections"))
    headers = {} if reason is None else {"x-reason": reason}
    assert client("DELETE", f"/api/connections/{quote(name, safe='')}", headers=headers).status == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=told):
        connection.process_data_events(10)
    assert any(told in record.getMessage() for record in caplog.records)


def test_users_that_may_do_nothing(client: Client) -> None:
    """`/api/users/without-permissions` is a list of its own, not a user of that name. (monitor 2)"""
    for name in ("ada", "eve"):
        client("PUT", f"/api/users/{name}", {"password": "x", "tags": ""})
    client("PUT", "/api/permissions/%2F/ada", {"configure": "", "write": "", "read": ""})
    assert [each["name"] for each in client.get("/api/users/without-permissions")] == ["eve"]
    assert client.as_user("ada:x")("GET", "/api/users/without-permissions").status == 401


def test_the_first_messages_time_and_the_active_consumer(client: Client, broker: Broker, connection: Any) -> None:
    """`head_message_timestamp` and the tags of the consumers that have a queue for themselves. (monitor 2)"""
    for name, arguments in (("q", {}), ("single", {"x-single-active-consumer": True})):
        broker.declare_queue(name, arguments=arguments)
    broker.publish(Message(b"", routing_key="q", timestamp=1700000000.0))
    broker.publish(Message(b"", routing_key="q"))
    channel = connection.channel()
    channel.basic_consume("single", lambda *_: None, consumer_tag="first")
    channel.basic_consume("single", lambda *_: None, consumer_tag="second")

    def fields(queue: str) -> tuple[Any, ...]:
        found = client.get(f"/api/queues/%2F/{queue}")
        client("PUT", "/api/vhosts/any", {})  # so that the next look is of now
        return (found["head_message_timestamp"], found["single_active_consumer_tag"], found["exclusive_consumer_tag"])

    assert fields("q") == (1700000000, None, None)
    assert fields("single") == (None, "first", None)
    broker.get("q")
    channel.basic_cancel("first")
    channel.basic_consume("q", lambda *_: None, consumer_tag="alone", exclusive=True)
    connection.process_data_events(0)
    assert fields("q") == (None, None, "alone")
    assert fields("single") == (None, "second", None)


@pytest.mark.parametrize("path", CHECKS)
def test_each_health_check_answers(client: Client, path: str) -> None:
    """A broker that is well is well in every one of RabbitMQ's words. (monitor 2)"""
    assert client.get(f"/api/{path}") == {"status": "ok"}


def test_what_rabbitmq_lists_and_we_have_none_of(client: Client) -> None:
    """Is an empty list, of a virtual host or a user that exists. (monitor 2)"""
    for path in (
        "deprecated-features",
        "deprecated-features/used",
        "parameters/federation",
        "parameters/x/%2F",
        "vhost-limits/%2F",
        "user-limits/guest",
    ):
        assert client.get(f"/api/{path}") == []
    for path in ("parameters/x/nope", "vhost-limits/nope", "user-limits/nope"):
        assert client("GET", f"/api/{path}").status == 404
    assert client.get("/api/queues/detailed") == []
    assert client.get("/api/version")
    assert client("GET", "/api/healthchecks/node/other").status == 404
