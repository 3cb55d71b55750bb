"""The default queue type of a virtual host, global parameters and runtime parameters, over HTTP and kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from monitor_support import Client

from multiqueue.broker import Broker

TYPE = "x-queue-type"


def test_a_virtual_host_has_a_default_queue_type(client: Client, broker: Broker) -> None:
    """It counts for durable queues that name none, and are neither exclusive nor deleted by themselves."""
    said = {"default_queue_type": "quorum", "description": "of the shop", "tags": "a,b"}
    assert client("PUT", "/api/vhosts/shop", said).status == 201
    shop = broker.virtual_host("shop")
    kinds = {
        "usual": shop.declare_queue("usual", durable=True),
        "named": shop.declare_queue("named", durable=True, arguments={TYPE: "classic"}),
        "transient": shop.declare_queue("transient"),
        "exclusive": shop.declare_queue("exclusive", durable=True, auto_delete=True),
    }
    found = {name: queue.settings.type for name, queue in kinds.items()}
    assert found == {"usual": "quorum", "named": "classic", "transient": "classic", "exclusive": "classic"}
    assert shop.declare_queue("usual", durable=True) is kinds["usual"]
    view = client.get("/api/vhosts/shop")
    exported = client.get("/api/definitions/shop")
    assert (exported["description"], exported["metadata"]) == ("of the shop", view["metadata"])
    assert {name: view[name] for name in said} == said | {"tags": ["a", "b"]}
    reply = client("PUT", "/api/vhosts/shop", {"default_queue_type": "best"})
    assert (reply.status, "best is not a valid queue type" in reply.json["reason"]) == (400, True)
    assert shop.metadata.get().default_queue_type == "quorum"


def test_what_is_said_of_a_broker_is_kept_and_exported(tmp_path: Path) -> None:
    """Default queue types and global parameters are there after the next start, and load into another broker."""
    value = {"team": ["a", 1, None]}
    with Broker(data=tmp_path / "data") as broker:
        client = Client(broker.listen_http().url)
        assert client("PUT", "/api/vhosts/shop", {"default_queue_type": "quorum"}).status == 201
        assert client("PUT", "/api/global-parameters/owner", {"value": value}).status == 201
        assert client("PUT", "/api/global-parameters/owner", {"value": value}).status == 204
    with Broker(data=tmp_path / "data") as broker, Broker() as second:
        client, other = Client(broker.listen_http().url), Client(second.listen_http().url)
        assert other("POST", "/api/definitions", client.get("/api/definitions")).status == 204
        for each in (client, other):
            assert each.get("/api/global-parameters/owner") == {"name": "owner", "value": value}
            assert [one["name"] for one in each.get("/api/global-parameters")] == ["owner"]
            assert each.get("/api/vhosts/shop")["default_queue_type"] == "quorum"
        assert client("DELETE", "/api/global-parameters/owner").status == 204
        assert client("DELETE", "/api/global-parameters/owner").status == 404
        assert broker.parameters.all() == {}


def test_runtime_parameters_are_operator_policies_and_limits(client: Client, broker: Broker) -> None:
    """What is set by one name is seen by the other; another component is refused by name."""
    at, policy = "/api/parameters", {"pattern": "^q", "definition": {"max-length": 2}, "apply-to": "queues"}
    assert client("PUT", f"{at}/operator_policy/%2F/short", {"value": policy}).status == 201
    for limits in ({"max-connections": 4}, {"max-queues": 5}):  # those that are not named end
        assert client("PUT", f"{at}/vhost-limits/%2F/limits", {"value": limits}).status == 204
    assert client.get("/api/operator-policies/%2F/short")["definition"] == {"max-length": 2}
    assert broker.limits.all() == {"max-queues": 5}
    assert [each["name"] for each in client.get(at)] == ["short", "limits"]
    assert [each["name"] for each in client.get(f"{at}/vhost-limits/%2F")] == ["limits"]
    assert client.get(f"{at}/operator_policy/%2F/short")["value"]["pattern"] == "^q"
    reply = client("PUT", f"{at}/federation/%2F/up", {"value": {}})
    assert (reply.status, "component federation not found" in reply.json["reason"]) == (400, True)
    for path in (f"{at}/operator_policy/%2F/short", f"{at}/vhost-limits/%2F/limits"):
        assert client("DELETE", path).status == 204
        assert client("DELETE", path).status == 404
    assert client.get(at) == []
    assert broker.limits.all() == {}


@pytest.mark.parametrize("path", ["/api/parameters", "/api/global-parameters", "/api/global-parameters/x"])
def test_parameters_are_for_administrators(client: Client, path: str) -> None:
    """Another user is refused."""
    client("PUT", "/api/users/ada", {"password": "ada", "tags": "management"})
    assert client.as_user("ada:ada")("GET", path).status in (401, 403)
