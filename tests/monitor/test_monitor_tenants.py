"""Tenants of fair queues over HTTP and from the shell."""

from __future__ import annotations

import json

from click.testing import CliRunner
from monitor_support import Client

from multiqueue.broker import Broker, Message
from multiqueue.cli import main


def declare(broker: Broker) -> None:
    broker.declare_queue("jobs", arguments={"x-queue-kind": "fair", "x-queue-kind-options": {"max_in_flight": 2}})
    for tenant in ("big/one", "big/one", "big/one", ""):
        broker.publish(Message(b"job", routing_key="jobs", headers={"tenant": tenant}))


def test_tenants_over_http(client: Client, broker: Broker) -> None:
    """A list, the longest lines first; changes that count at once, null for no limit; what is wrong is told."""
    declare(broker)
    place = "/api/queues/%2F/jobs/tenants"
    found = client("GET", place).json
    assert (found["tenants"], found["misread"], found["jain"]) == (2, 0, None)
    assert [(each["name"], each["waiting"], each["passed_over"]) for each in found["largest"]] == [
        ("big/one", 3, None),
        ("", 1, None),
    ]
    assert client("PUT", f"{place}/big%2Fone", {"paused": True, "max_in_flight": None}).status == 204
    assert client("PUT", place, {"weight": 2}).status == 204
    big, nameless = client("GET", f"{place}?count=5").json["largest"]
    assert (big["passed_over"], big["options"], nameless["options"]["weight"]) == ("paused", {"paused": True}, 2)
    assert client("DELETE", f"{place}/big%2Fone").status == 204
    assert client("GET", f"{place}?count=1").json["largest"][0]["passed_over"] is None
    refused = client("PUT", place, {"wait": 2})
    assert (refused.status, "tenant '' has no option 'wait'" in refused.json["reason"]) == (400, True)
    broker.declare_queue("plain")
    assert "it has no tenants" in client("GET", "/api/queues/%2F/plain/tenants").json["reason"]
    assert client("GET", "/api/queues/%2F/nope/tenants").status == 404


def test_tenants_from_the_shell(client: Client, broker: Broker) -> None:
    """`queue tenants` prints a table, `queue tenant` changes one; `none` takes a limit away, `--reset` all changes."""
    declare(broker)
    url = client.url

    def run(*words: str) -> str:
        result = CliRunner().invoke(main, ["queue", *words, "--url", url])
        assert result.exit_code == 0, result.output
        return result.output

    run("tenant", "jobs", "big/one", "--pause", "--max-in-flight", "none", "--weight", "0.5")
    shown = run("tenants", "jobs")
    assert "paused" in shown
    assert "2 tenants" in shown
    found = json.loads(run("tenants", "jobs", "--json"))
    assert found["largest"][0]["options"] == {"weight": 0.5, "paused": True}
    run("tenant", "jobs", "big/one", "--reset")
    run("tenant", "jobs", "", "--priority", "3")
    first, second = broker.queue("jobs").tenants().largest
    assert (first.options.paused, first.options.max_in_flight, second.options.priority) == (False, 2, 3)
    result = CliRunner().invoke(main, ["queue", "tenant", "jobs", "big/one", "--url", url])
    assert "say what to change, or --reset alone" in result.output
