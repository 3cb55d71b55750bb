"""A pipeline's run on the page: its lanes while they work, and everything still told to its reporter."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from monitor_support import Client

from multiqueue import MultiQueueExecutor
from multiqueue.cli import main
from multiqueue.monitor import MonitorError, PipelineWindows


class Told:
    """Notes the calls of a `Reporter`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *values: self.calls.append((name, *values))


def test_a_runs_lanes_are_shown_with_what_is_done(need_module: Any) -> None:
    """Items of the ledger and jobs of the dispatcher stand side by side; the reporter hears all of it. (monitor 11)"""
    need_module("rich", "rich is not installed")
    from multiqueue.pipeline import LaneProgress, Snapshot

    told = Told()
    first = Snapshot([LaneProgress("acme", waiting=3)], LaneProgress("all", 3), 0.0, 0.0, None, True, False)
    last = Snapshot([LaneProgress("acme", waiting=2, done=1)], LaneProgress("all", 3), 1.0, 1.0, None, False, False)
    with PipelineWindows("nightly", told) as windows, MultiQueueExecutor(1) as executor:
        assert windows.server is not None
        client = Client(windows.server.url)
        assert client.get("/api/lanes")["executors"] == []
        windows.begin(first)
        windows.watch(executor)
        executor.lane("acme").submit(int).result()
        windows.update(last)
        windows.attempt_ended("an end")
        windows.stopping(1, 2)
        windows.end(last)
        (found,) = client.get("/api/lanes")["executors"]
        (lane,) = found["lanes"]
        assert found["name"] == "nightly"
        assert lane["items"] == {"waiting": 2, "running": 0, "done": 1, "failed": 0}
        assert [row[1] for row in lane["jobs"]] == ["int"]
        assert 'multiqueue_pipeline_items{executor="nightly",lane="acme",state="done"} 1.0' in (
            client.as_user(None)("GET", "/metrics").text
        )
    (note, *rest) = told.calls
    assert windows.server.url in note[1]
    assert rest == [
        ("begin", first),
        ("update", last),
        ("attempt_ended", "an end"),
        ("stopping", 1, 2),
        ("end", last),
    ]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", windows.server.port), timeout=5)


def test_a_port_that_is_taken_ends_the_run_before_it_begins(tmp_path: Path, need_module: Any) -> None:
    """The command says which port, status 2, and has made nothing."""
    need_module("rich", "rich is not installed")
    (tmp_path / "a.txt").write_text("tea")
    config = tmp_path / "p.toml"
    config.write_text('[lanes.a]\nfiles = "*.txt"\nformat = "text"\n[job]\nsql = "SELECT 1"\n[output]\npath = "out"\n')
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, ["pipeline", "run", str(config), "--http", str(port)])
        with pytest.raises(MonitorError), PipelineWindows("p", Told(), port=port):
            pass
    assert result.exit_code == 2
    assert f"port {port} is in use" in result.output
    assert not (tmp_path / "out").exists()
