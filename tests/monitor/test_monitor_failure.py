"""A store that fails under one virtual host: seen everywhere, and the others are shown as before."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from monitor_support import Client
from store_parts_support import Room

from multiqueue.broker import Broker, Message
from multiqueue.monitor.cli import status
from multiqueue.store import StoreFailed


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A broker whose virtual host `x` has lost its disk, and whose `/` works; both have a queue with a message."""
    broker = Broker(data=tmp_path)
    for host in (broker, broker.add_virtual_host("x")):
        host.declare_queue("q", durable=True)
        host.publish(Message(b"kept", routing_key="q", persistent=True))

    def broken(room: Room) -> None:
        if room._file.parent.name == "x":
            raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Room, "shorten_log", broken)
    with pytest.raises(StoreFailed):
        broker.virtual_host("x").publish(Message(b"lost", routing_key="q", persistent=True))
    return broker


def test_every_look_works_and_says_what_is_down(failed: Broker) -> None:
    """No look fails because a store did: each shows the virtual hosts that work, and says which one is down."""
    with failed, failed.listen() as server:
        client = Client(failed.listen_http(amqp=server).url)
        for path in (
            "overview",
            "queues",
            "queues/x/q",
            "connections",
            "channels",
            "exchanges",
            "nodes",
            "definitions",
        ):
            assert client.get(f"/api/{path}") is not None, path
        assert {each["name"]: each["cluster_state"] for each in client.get("/api/vhosts")} == {
            "/": {client.get("/api/nodes")[0]["name"]: "running"},
            "x": {client.get("/api/nodes")[0]["name"]: "stopped"},
        }
        assert {each["vhost"]: each["state"] for each in client.get("/api/queues")} == {"/": "running", "x": "down"}
        assert "disk I/O error" in client.get("/api/overview")["troubles"]["virtual_hosts_down"]["x"]
        for path in ("/metrics", "/metrics/per-object"):
            text = client("GET", path).text
            assert 'rabbitmq_cluster_vhost_status{vhost="/"} 1.0' in text
            assert 'rabbitmq_cluster_vhost_status{vhost="x"} 0.0' in text
        shown = CliRunner().invoke(status, ["--url", client.url.replace("//", "//guest:guest@")])
        assert shown.exit_code == 1
        assert "vhost 'x' is down: " in shown.output
