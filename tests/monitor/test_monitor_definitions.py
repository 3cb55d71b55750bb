"""Definitions: what is exported comes back, RabbitMQ's load, and one that does not fit ends nothing but itself."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_support import examples
from monitor_parts_support import Import, _pieces, export_definitions
from monitor_support import Client

from multiqueue.amqp import Access, Permissions, User, guest
from multiqueue.broker import Broker, Message, QueueSettings
from multiqueue.cli import main

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


def from_rabbitmq(version: str, **more: Any) -> dict[str, Any]:
    """The keys that a version exports, with a virtual host, a queue and what this broker has not."""
    user = {"name": "ada", "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": []}
    found: dict[str, Any] = {
        "rabbit_version": version,
        "rabbitmq_version": version,
        "product_name": "RabbitMQ",
        "product_version": version,
        "users": [{**user, "limits": {}}],
        "vhosts": [{"name": "/"}],
        "permissions": [{"user": "ada", "vhost": "/", **EVERYTHING}],
        "topic_permissions": [],
        "parameters": [],
        "global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-x"}],
        "policies": [],
        "queues": [{"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
        "exchanges": [],
        "bindings": [],
    }
    if version >= "4":
        metadata = {"description": "Default virtual host", "tags": [], "default_queue_type": "classic"}
        found["vhosts"] = [{"name": "/", "limits": {}, "metadata": metadata}]
        found["global_parameters"] = [{"name": "cluster_tags", "value": []}]
        found |= {
            "explanation": "Definitions of cluster 'rabbit@host'",
            "rabbitmq_definition_format": "cluster",
            "original_cluster_name": "rabbit@host",
        }
        found["queues"][0]["arguments"] = {"x-queue-type": "classic"}
    if version >= "4.3":
        log = {"name": "amq.rabbitmq.log", "vhost": "/", "type": "topic", "durable": True, "auto_delete": False}
        found["exchanges"] = [{**log, "arguments": {}}]
    return {**found, **more}


@pytest.mark.parametrize("version", ["3.10.8", "4.1.0", "4.3.6"])
def test_definitions_of_each_rabbitmq_load(client: Client, version: str) -> None:
    """The keys that say where they come from are passed over: nothing is left out of an export without extras."""
    assert client("POST", "/api/definitions", from_rabbitmq(version)).status == 204
    assert [each["name"] for each in client.get("/api/queues")] == ["q"]
    host = {
        "explanation": "Definitions of virtual host '/'",
        "original_vhost_name": "/",
        "rabbitmq_definition_format": "single_virtual_host",
        "description": "Default virtual host",
        "metadata": {},
        "limits": {},
        "queues": [{"name": "r", "durable": True, "auto_delete": False, "arguments": {}}],
    }
    assert client("POST", "/api/definitions/%2F", host).status == 204


def test_what_we_have_not_does_not_end_an_import(client: Client) -> None:
    """Streams, exchanges of plugins and what is bound to them, limits, policies: named; all the rest is there."""
    binding = {"vhost": "/", "destination_type": "queue", "routing_key": "k", "arguments": {}}
    asked = from_rabbitmq(
        "4.3.6",
        users=[{"name": "ada", "password_hash": "", "tags": [], "limits": {"max-connections": 3}}],
        vhosts=[{"name": "shop", "limits": {"max-queues": 3}, "metadata": {"default_queue_type": "quorum"}}],
        policies=[{"name": "ha", "vhost": "/", "pattern": ".*", "definition": {"ha-mode": "all"}}],
        parameters=[{"name": "up", "vhost": "/", "component": "federation-upstream", "value": {}}],
        topic_permissions=[{"user": "ada", "vhost": "/", "exchange": "amq.topic", "write": "", "read": ""}],
        queues=[
            {"name": "log", "vhost": "/", "durable": True, "arguments": {"x-queue-type": "stream"}},
            {"name": "q", "vhost": "/", "durable": True, "arguments": {"x-queue-type": "quorum"}},
        ],
        exchanges=[
            {"name": "spread", "vhost": "/", "type": "x-recent-history", "durable": True},
            {"name": "x", "vhost": "/", "type": "topic", "durable": True},
        ],
        bindings=[
            {**binding, "source": "spread", "destination": "q"},
            {**binding, "source": "x", "destination": "log"},
            {**binding, "source": "x", "destination": "q"},
        ],
        tomorrow=[{"name": "something new"}],
    )
    reply = client("POST", "/api/definitions", asked)
    assert reply.status == 200
    assert reply.json["left_out"] == [
        "key 'tomorrow'",
        "parameter 'up' of 'federation-upstream' in vhost '/'",
        "policy 'ha' in vhost '/': ha-mode are not recognised policy settings",
        "exchange 'spread' in vhost '/': there are no exchanges of the type 'x-recent-history'",
        "queue 'log' in vhost '/': there are no queues of the type 'stream'",
        "binding of queue 'q' to exchange 'spread' in vhost '/': exchange 'spread' was left out",
        "binding of queue 'log' to exchange 'x' in vhost '/': queue 'log' was left out",
    ]
    found = client.get("/api/definitions")
    assert [(each["name"], each["vhost"]) for each in found["queues"]] == [("q", "/")]
    assert [each["source"] for each in found["bindings"]] == ["x"]
    assert client.get("/api/queues/%2F/q")["type"] == "quorum"
    assert client.get("/api/vhosts/shop")["default_queue_type"] == "quorum"
    assert [each["name"] for each in client.get("/api/vhosts")] == ["/", "shop"]


def test_one_that_the_broker_refuses_ends_nothing_but_itself(client: Client, broker: Broker) -> None:
    """What is there and differs, or does not fit, is named in a 400; what comes after it is loaded. (monitor 5)"""
    broker.declare_queue("q", durable=True)
    queue = {"vhost": "/", "durable": True, "auto_delete": False}
    asked = {
        "queues": [
            {**queue, "name": "q", "arguments": {"x-max-length": 1}},
            {**queue, "name": "r", "arguments": {"x-max-length": "1"}},
            {**queue, "name": "amq.mine"},
            {**queue, "name": "s"},
        ]
    }
    reply = client("POST", "/api/definitions", asked)
    assert reply.status == 400
    reason = reply.json["reason"]
    assert "refused 3 of the definitions, and loaded all others" in reason
    for part in ("queue 'q' in vhost '/': inequivalent arg 'x-max-length'", "invalid arg 'x-max-length'", "'amq.mine'"):
        assert part in reason
    assert sorted(each["name"] for each in client.get("/api/queues")) == ["q", "s"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"queues": [{"name": "a", "vhost": "/"}, {"name": "q", "vhost": "/", "durable": "yes"}]},
            "queues[1].durable is",
        ),
        ({"queues": [{"vhost": "/"}]}, "queues[0]: [{key_missing,name}]"),
        ({"queues": {"name": "q"}}, "queues is {'name': 'q'}; it is a list"),
        ({"bindings": [7]}, "bindings[0] is 7; it is an object"),
        ({"users": [{"name": "u", "tags": [["x"]]}]}, "users[0].tags is [['x']]; it is a list of names"),
        ({"users": [{"name": "u", "password_hash": "x"}]}, "users[0].password_hash: no rabbit_password_hashing_sha256"),
        ({"users": [{"name": "u", "hashing_algorithm": "md5"}]}, "users[0].hashing_algorithm is 'md5'; it is one of"),
        ({"permissions": [{"user": "guest", "vhost": "/", **EVERYTHING, "read": "("}]}, "permissions[0].read is '('"),
        ({"permissions": [{"user": "no", "vhost": "/", **EVERYTHING}]}, "permissions[0].user is 'no', which does not"),
        ({"exchanges": [{"name": "x", "vhost": "no", "type": "topic"}]}, "exchanges[0].vhost is 'no', which does not"),
        ({"exchanges": [{"name": "x" * 256, "vhost": "/", "type": "topic"}]}, "text of at most 255 bytes"),
        (
            {"bindings": [{"source": "x", "vhost": "/", "destination": "q", "destination_type": "stone"}]},
            "bindings[0].destination_type is 'stone'",
        ),
        (
            {"exchanges": [{"name": "good", "vhost": "/", "type": "direct"}, {"name": "x", "vhost": "/", "type": 5}]},
            "[1].type",
        ),
        ({"policies": ["ha"]}, "policies[0] is 'ha'; it is an object"),
        ({"vhosts": [{"name": "v", "metadata": 3}]}, "vhosts[0].metadata is 3; it is an object"),
    ],
)
def test_a_mistake_is_told_with_its_path(client: Client, wrong: dict[str, Any], said: str) -> None:
    """A field of a wrong type is refused by its place, before anything is changed."""
    before = client.get("/api/definitions")
    good = {"vhosts": [{"name": "made"}], "queues": [{"name": "good", "vhost": "/"}]}
    reply = client("POST", "/api/definitions", {**good, **wrong})
    assert reply.status == 400
    assert said in reply.json["reason"]
    assert client.get("/api/definitions") == before


def test_a_backup_has_the_queues_that_a_broker_named(client: Client, broker: Broker) -> None:
    """A durable queue with a name from the broker is exported, imported, and bound as it was; nobody else may use the
    names."""
    name = broker.declare_queue(durable=True).name
    broker.bind_queue(name, "amq.topic", "a.#")
    exported = client.get("/api/definitions")
    with Broker() as second:
        other = Client(second.listen_http().url)
        assert other("POST", "/api/definitions", exported).status == 204
        assert other.get("/api/definitions") == exported
        assert other("PUT", "/api/queues/%2F/amq.gen-mine", {}).status == 401
        assert other("POST", "/api/definitions", {"queues": [{"name": "amq.mine", "vhost": "/"}]}).status == 400


def test_a_queue_that_was_declared_by_settings_is_in_the_backup(client: Client, broker: Broker) -> None:
    """What a program said by `QueueSettings` is shown, and comes back."""
    settings = QueueSettings(max_length=5, message_ttl=0.5, durable=True, max_active_consumers=2)
    broker.declare_queue("set", settings=settings)
    assert client.get("/api/queues/%2F/set")["arguments"]["x-max-length"] == 5
    exported = client.get("/api/definitions")
    with Broker() as second:
        assert Client(second.listen_http().url)("POST", "/api/definitions", exported).status == 204
        assert second.queue("set").settings == replace(settings, expires_at_head=True)
        assert second.declare_queue("set", settings=settings) is second.queue("set")


def test_tenants_of_a_fair_queue_are_in_the_backup(client: Client, broker: Broker) -> None:
    """What they were given while it ran comes along, and numbers that AMQP has as decimals are numbers."""
    options = {"weights": {"a": Decimal("2.5")}, "tenants": {"b": {"rate": 5, "burst": 2}}}
    broker.declare_queue("fair", arguments={"x-queue-kind": "fair", "x-queue-kind-options": options})
    broker.queue("fair").change_tenant("b", {"rate": None, "paused": True})
    exported = client.get("/api/definitions")
    with Broker() as second:
        assert Client(second.listen_http().url)("POST", "/api/definitions", exported).status == 204
        assert second.queue("fair").changed_tenants == {"b": {"rate": None, "burst": None, "paused": True}}
        second.publish(Message(b"", routing_key="fair", headers={"tenant": "a"}))
        assert second.queue("fair").tenants().largest[0].options.weight == 2.5
        second.queue("fair").change_tenant("b", {"max_length": 3})  # what was changed since does not stay
        assert Client(second.listen_http().url)("POST", "/api/definitions", exported).status == 204
        assert second.queue("fair").changed_tenants == {"b": {"rate": None, "burst": None, "paused": True}}
    exported["queues"][0]["tenants"] = {"b": {"weight": 0}}
    assert "tenant 'b': weight is 0" in client("POST", "/api/definitions", exported).json["reason"]


def test_a_server_takes_back_its_own_backup(tmp_path: Path) -> None:
    """Users of the configuration are in the export; as they are, they are no obstacle; changed, they are named."""
    boss = User.with_password("boss", "secret", {"/": Permissions()}, tags=["administrator"])
    with Broker() as broker:
        server = broker.listen(users=[boss], data=tmp_path)
        client = Client(broker.listen_http(amqp=server).url, "boss:secret")
        exported = client.get("/api/definitions")
        assert exported["exchanges"] == []  # those that every virtual host begins with are not in it
        assert client("POST", "/api/definitions", exported).status == 204
        exported["users"][0]["tags"] = []
        reply = client("POST", "/api/definitions", {**exported, "queues": [{"name": "q", "vhost": "/"}]})
        assert "user 'boss' is in the configuration" in reply.json["reason"]
        assert [each["name"] for each in client.get("/api/queues")] == ["q"]


def test_one_virtual_host_takes_what_another_had(client: Client, broker: Broker) -> None:
    """What is imported into one virtual host goes there, whatever the entries name."""
    broker.add_virtual_host("shop")
    queue = {"name": "q", "vhost": "/", "durable": True}
    assert client("POST", "/api/definitions/shop", {"queues": [queue]}).status == 204
    assert [(each["name"], each["vhost"]) for each in client.get("/api/queues")] == [("q", "shop")]


def test_limits_and_policies_stand_where_rabbitmq_reads_them(client: Client, broker: Broker) -> None:
    """RabbitMQ 4.3 passes over the limits of `vhosts`; and in what one virtual host has, nothing names it."""
    assert client("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 5}).status == 204
    for kind, definition in (("policies", {"max-length": 3}), ("operator-policies", {"max-length": 9})):
        assert client("PUT", f"/api/{kind}/%2F/p", {"pattern": "q", "definition": definition}).status == 201
    whole, single = client.get("/api/definitions"), client.get("/api/definitions/%2F")
    limits = {"component": "vhost-limits", "name": "limits", "value": {"max-queues": 5}}
    assert [each["component"] for each in whole["parameters"]] == ["operator_policy", "vhost-limits"]
    assert whole["parameters"][1] == {**limits, "vhost": "/"}
    assert single["parameters"][1] == limits
    assert not any("vhost" in each for kind in ("policies", "parameters", "queues") for each in single[kind])
    broker.add_virtual_host("shop")
    assert client("POST", "/api/definitions/shop", single).status == 204
    again = client.get("/api/definitions/shop")
    assert [again[kind] for kind in ("policies", "parameters")] == [single[kind] for kind in ("policies", "parameters")]


def test_the_command_says_by_its_status_that_something_is_missing(client: Client, tmp_path: Path) -> None:
    """Status 1 where something was left out or refused, for scripts; 0 where all of it is there."""
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(from_rabbitmq("4.3.6")))
    load = ["definitions", "import", str(path), "--url", client.url.replace("//", "//guest:guest@")]
    assert CliRunner().invoke(main, load).exit_code == 0
    policy = {"name": "ha", "vhost": "/", "pattern": "", "definition": {"ha-mode": "all"}}
    path.write_text(json.dumps(from_rabbitmq("4.3.6", policies=[policy])))
    result = CliRunner().invoke(main, load)
    assert result.exit_code == 1
    assert "left out: policy 'ha' in vhost '/'" in result.stderr


# -- round trip

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda text: text[:4] != "amq."
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | names,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(names, some, max_size=3),
    max_leaves=5,
)
free = st.dictionaries(names, values, max_size=2)
known = st.fixed_dictionaries(
    {},
    optional={
        "x-max-length": st.integers(0, 2**40),
        "x-message-ttl": st.integers(0, 10**9),
        "x-dead-letter-exchange": names,
        "x-overflow": st.sampled_from(["drop-head", "reject-publish"]),
        "x-single-active-consumer": st.booleans(),
        "x-queue-mode": st.just("lazy"),
    },
)
flags = st.fixed_dictionaries({"durable": st.booleans(), "auto_delete": st.booleans()})


@settings(max_examples=examples(100))
@given(
    hosts=st.lists(names, max_size=2, unique=True),
    queues=st.dictionaries(names, st.tuples(flags, known, free), max_size=3),
    exchanges=st.dictionaries(
        names, st.tuples(flags, free, st.sampled_from(["direct", "topic", "headers"])), max_size=2
    ),
    bindings=st.lists(st.tuples(names | st.just(""), free), max_size=3),
    users=st.dictionaries(
        names.filter(lambda text: "\0" not in text),
        st.frozensets(names.filter(lambda text: not set(",\0") & set(text) and text.strip() == text)),
        max_size=2,
    ),
)
def test_an_export_loads_again_and_is_the_same(
    hosts: list[str],
    queues: dict[str, Any],
    exchanges: dict[str, Any],
    bindings: list[Any],
    users: dict[str, frozenset[str]],
) -> None:
    """Users, permissions, virtual hosts, exchanges, queues and bindings: into an empty broker, and twice."""
    access = Access([guest(), *(User(name, None, {"/": Permissions()}, tags=tags) for name, tags in users.items())])
    with Broker(threads=1) as broker, Broker(threads=1) as second:
        for host in (broker.virtual_host(), *(broker.add_virtual_host(name) for name in hosts)):
            made = [
                host.declare_queue(name, **of, arguments={**other, **some}).name
                for name, (of, some, other) in queues.items()
            ]
            made.append(host.declare_queue(durable=True).name)
            sources = [*exchanges, "amq.topic"]
            for name, (of, arguments, kind) in exchanges.items():
                host.declare_exchange(name, kind, **of, arguments=arguments)
            for number, (key, arguments) in enumerate(bindings):
                host.bind_queue(made[number % len(made)], sources[number % len(sources)], key, arguments)
        exported = json.loads(_pieces.as_json(export_definitions(broker, access, "1")))
        other = Access([])
        for _ in range(2):
            assert Import(second, other, exported).apply() == []
            assert json.loads(_pieces.as_json(export_definitions(second, other, "1"))) == exported
