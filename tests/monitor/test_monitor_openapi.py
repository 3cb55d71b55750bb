"""The API described as OpenAPI: complete, and fuzzed by a program that reads nothing else."""

from __future__ import annotations

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pika
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from monitor_parts_support import Table, bodies, description
from monitor_support import Client

from multiqueue.amqp import User
from multiqueue.broker import Broker, Message

CASES = int(os.environ.get("MULTIQUEUE_FUZZ_CASES", "400"))  # 10,000 in the long run
PATIENCE = 10.0  # seconds for one answer

# Names of what is there: half of the cases ask for something that exists.
KNOWN = {
    "vhost": ["/", "v"],
    "queue": ["orders", "mail"],
    "exchange": ["amq.topic", "logs", "amq.default"],
    "destination": ["logs", "e2"],
    "props": ["~", "orders"],
    "user": ["root", "ada"],
    "protocol": ["amqp", "http"],
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def amqp(broker: Broker) -> Any:
    """A server whose configuration has the user that asks: no request takes it away."""
    return broker.listen(users=[User.with_password("root", "secret", tags=["administrator"])])


@pytest.fixture(scope="module")
def client(broker: Broker, amqp: Any) -> Client:
    return Client(broker.listen_http(amqp=amqp).url, "root:secret")


def test_a_program_can_ask_what_there_is_to_ask(client: Client) -> None:
    """Each route is described by its method, its variable segments and what its body may have. (monitor 20)"""
    found = client.get("/api/openapi.json")
    assert found["openapi"] == "3.1.0"
    queue = found["paths"]["/api/queues/{vhost}/{queue}"]
    assert [each["name"] for each in queue["parameters"]] == ["vhost", "queue"]
    body = queue["put"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"].keys() == bodies.QUEUE.keys()
    assert [each["name"] for each in queue["delete"]["parameters"]] == ["if-empty", "if-unused"]
    assert queue["get"]["summary"] == "With its consumers."
    peek = found["paths"]["/api/queues/{vhost}/{queue}/messages"]["get"]
    assert {each["name"] for each in peek["parameters"] if "name" in each} == set(bodies.PEEK)
    identities = [
        each["operationId"]
        for methods in found["paths"].values()
        for key, each in methods.items()
        if key != "parameters"
    ]
    assert len(identities) == len(set(identities)) > 100


def test_what_is_described_is_what_answers(client: Client) -> None:
    """No route is left out, and none is described that is not there. (monitor 20)"""
    table = Table()
    table.add("GET", "/api/tea/{pot}", lambda ask: [])
    table.add("PUT", "/api/tea/{pot}", lambda ask: [], bodies.BINDING)
    found = description(table, "1")["paths"]
    assert {(path, method) for path, methods in found.items() for method in methods} == {
        ("/api/tea/{pot}", each) for each in ("get", "put", "parameters")
    }
    described = client.get("/api/openapi.json")["paths"]
    for path, methods in described.items():
        allowed = client("TRACE", re.sub(r"{\w+}", "x", path)).headers["allow"].lower().split(", ")
        assert set(allowed) - {"head", "options"} >= methods.keys() - {"parameters"}


@pytest.fixture
def populated(broker: Broker, client: Client) -> Client:
    for host in (broker, broker.add_virtual_host("v"), broker.add_virtual_host("quiet")):
        for queue in ("orders", "mail"):
            host.declare_queue(queue)
            host.publish(Message(b"tea", routing_key=queue))
        for exchange in ("logs", "e2"):
            host.declare_exchange(exchange, "topic")
        host.bind_queue("orders", "logs", "orders")
    client("PUT", "/api/users/ada", {"password": "lovelace", "tags": "management"})
    client("PUT", "/api/permissions/v/ada", dict.fromkeys(("configure", "write", "read"), ".*"))
    return client


@pytest.mark.slow(selected=True)
@pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed")
def test_a_fuzzer_that_knows_the_description_breaks_nothing(
    populated: Client, broker: Broker, amqp: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """schemathesis asks what the description allows, and what it forbids, as an administrator and as a user of one
    virtual host: no 500, no hang, and those who use another virtual host notice nothing. (monitor 20)

    The long run has 10,000 cases: `MULTIQUEUE_FUZZ_CASES=10000 python -m pytest ... --slow selected`.
    """
    import requests
    import schemathesis
    from schemathesis import GenerationMode

    schema = schemathesis.openapi.from_dict(populated.get("/api/openapi.json"))
    operations = [each.ok() for each in schema.get_all_operations()]
    weight = 2 * sum(1 if each.method == "get" else 3 for each in operations)  # what changes something is asked more
    statuses: Counter[int] = Counter()

    def fuzz(operation: Any, mode: GenerationMode) -> None:
        is_health = "/health" in operation.path

        @settings(
            max_examples=max(1, (1 if operation.method == "get" else 3) * CASES // weight),
            phases=[Phase.generate],
            deadline=None,
            derandomize=CASES < 10_000,  # the short run asks the same each time, a long one something new
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
        def one(case: Any, data: st.DataObject) -> None:
            for name in case.path_parameters or {}:
                if name in KNOWN and data.draw(st.booleans()):
                    case.path_parameters[name] = data.draw(st.sampled_from(KNOWN[name]))
            login = data.draw(st.sampled_from([("root", "secret")] * 3 + [("ada", "lovelace")]))
            began = time.monotonic()
            reply = case.call(base_url=populated.url, session=session, auth=login, timeout=PATIENCE)
            assert time.monotonic() - began < PATIENCE
            statuses[reply.status_code] += 1
            assert reply.status_code < 500 or (reply.status_code == 503 and is_health), (
                case.as_curl_command(),
                reply.text,
            )
            assert "Traceback" not in reply.text

        try:
            one()
        except Exception as error:
            if "negative" not in str(error).lower():  # there is nothing that such a request could get wrong
                raise

    with caplog.at_level(logging.ERROR), requests.Session() as session:
        for operation in operations:
            for mode in GenerationMode:
                fuzz(operation, mode)
    print(f"{statuses.total()} cases: {dict(statuses)}")
    assert [record.getMessage() for record in caplog.records if record.name.startswith("multiqueue")] == []
    assert len(statuses) > 5
    for path in _looks(populated):
        assert populated("GET", path).status in (200, 404), path
    with pika.BlockingConnection(
        pika.URLParameters(amqp.url.replace("guest:guest", "root:secret")[:-3] + "quiet")
    ) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("logs", "orders", b"tea")
        assert channel.queue_declare("orders", passive=True).method.message_count == 2
    broker.virtual_host("quiet").check_invariants()
    broker.virtual_host("/").check_invariants()


def _looks(client: Client) -> list[str]:
    """The GETs that have no variable segment but the virtual host: what the fuzzer made is in their answers."""
    found = client.get("/api/openapi.json")["paths"]
    paths = [path.replace("{vhost}", "%2F") for path, methods in found.items() if "get" in methods]
    return [path for path in paths if "{" not in path and "/health" not in path]
