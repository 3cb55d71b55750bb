"""Tenants of fair queues over HTTP and from the shell."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from monitor_parts_support import _watch
from monitor_support import Client

from multiqueue.broker import Broker, BrokerQueue, FairStatistics, Message
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
    assert shown.count("2 tenants") == 1
    found = json.loads(run("tenants", "jobs", "--json"))
    assert found["largest"][0]["options"] == {"weight": 0.5, "paused": True}
    run("tenant", "jobs", "big/one", "--reset")
    run("tenant", "jobs", "", "--priority", "3")
    first, second = broker.queue("jobs").tenants().largest
    assert (first.options.paused, first.options.max_in_flight, second.options.priority) == (False, 2, 3)
    result = CliRunner().invoke(main, ["queue", "tenant", "jobs", "big/one", "--url", url])
    assert "say what to change, or --reset alone" in result.output
    result = CliRunner().invoke(main, ["queue", "tenant", "jobs", "big/one", "--weight", "nan", "--url", url])
    assert "weight is 'nan'; a number above 0 is needed" in result.output


def test_tenants_are_watched(client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """`queue tenants --watch` draws the table again, in 40 columns without what does not fit; `top` says the kind."""
    declare(broker)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        if pauses:
            raise KeyboardInterrupt
        pauses.append(seconds)
        broker.publish(Message(b"job", routing_key="jobs"))

    monkeypatch.setattr(_watch, "_pause", pause)
    for command, columns, heads in (
        (["queue", "tenants", "jobs", "--watch"], 80, ["tenant", "passed over", "waiting", "in flight", "served"]),
        (["queue", "tenants", "jobs", "--watch"], 40, ["tenant", "waiting", "in flight", "served"]),
        (["top"], 80, ["name", "vhost", "kind", "ready", "unacked", "in/s", "out/s"]),
    ):
        pauses.clear()
        monkeypatch.setenv("COLUMNS", str(columns))
        result = CliRunner().invoke(main, [*command, "--url", client.url])
        lines = result.output.splitlines()
        assert [head for head in heads if head not in lines[0]] == [], result.output
        assert max(map(len, lines)) <= columns
        assert lines.count(lines[0]) == 2
    assert lines[1].split()[:3] == ["jobs", "/", "fair"]
    result = CliRunner().invoke(main, ["queue", "tenants", "jobs", "--watch", "--json", "--url", client.url])
    assert "leave out --json" in result.output


def test_metrics_of_tenants_are_bounded(client: Client, broker: Broker) -> None:
    """Of a queue with thirty tenants twenty have series by name, the others one; in the sums no tenant is named.

    (monitor 21)
    """
    for queue in ("jobs", "none"):
        broker.declare_queue(queue, arguments={"x-queue-kind": "fair"})
    for number in range(30):
        for _ in range(30 - number):
            broker.publish(Message(b"job", routing_key="jobs", headers={"tenant": f"t{number}"}))
    sums, each = (client("GET", path).text for path in ("/metrics", "/metrics/per-object"))
    assert "\nmultiqueue_queue_tenants 30.0\n" in sums
    assert "\nmultiqueue_queue_tenant_longest_wait_seconds " in sums
    assert "t0" not in sums
    assert '\nmultiqueue_queue_tenants{queue="none",vhost="/"} 0.0\n' in each
    lines = [line for line in each.splitlines() if line.startswith("multiqueue_queue_tenant_messages_ready{")]
    assert len(lines) == 21
    assert lines[0].endswith('{queue="jobs",rest="no",tenant="t0",vhost="/"} 30.0')
    assert lines[20].endswith('{queue="jobs",rest="yes",tenant="",vhost="/"} 55.0')
    assert "multiqueue_queue_tenant_jain_index{" not in each  # nothing was served


def test_the_least_fair_queue_is_the_index_of_all(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jain's index of `/metrics` is the smallest of all fair queues, and per object each has its own. (monitor 21)"""
    found = {"one": 1.0, "two": 0.5}
    for name in found:
        broker.declare_queue(name, arguments={"x-queue-kind": "fair"})
    monkeypatch.setattr(
        BrokerQueue,
        "tenants",
        lambda queue, most=None: FairStatistics(tenants=2, misread=0, jain=found[queue.name], largest=[]),
    )
    assert "\nmultiqueue_queue_tenant_jain_index 0.5\n" in client("GET", "/metrics").text
    assert (
        '\nmultiqueue_queue_tenant_jain_index{queue="one",vhost="/"} 1.0\n' in client("GET", "/metrics/per-object").text
    )
