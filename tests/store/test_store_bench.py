"""The suite `store` of the benchmarks does its work, and finds out a store that lost some."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_parts_support import (
    BenchError,
    ItemsLost,
    Rival,
    Workload,
    _store,
    _store_backlog,
    run_attempt,
    run_workload,
)
from click.testing import CliRunner

from multiqueue.bench.cli import bench
from multiqueue.store import SqliteStore


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIQUEUE_BENCH_DIR", str(tmp_path))


@pytest.mark.parametrize("workload", [pytest.param(one, id=one.name) for one in _store.SUITE.scaled(0.01).workloads])
def test_every_rival_does_the_work(workload: Workload) -> None:
    """Each rival that is installed carries every message and has a figure for every metric."""
    result = run_workload(workload, rounds=1)
    assert [(failed.rival.name, failed.problem) for failed in result.failures] == []
    for rival in result.rivals:
        if rival.status == "measured":
            assert {metric.name for metric in workload.metrics} == set(rival.samples)


def test_nothing_is_left(tmp_path: Path) -> None:
    """What an attempt wrote is removed when it ends."""
    run_attempt(_store.SUITE.workloads[0].rivals[1], 1000)
    assert list(tmp_path.iterdir()) == []


def test_a_lossy_store_gets_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that loses a message is found out."""
    submit = SqliteStore.submit
    monkeypatch.setattr(SqliteStore, "submit", lambda self, given: submit(self, given[:-1]))
    ours: Rival = _store.SUITE.workloads[0].rivals[1]
    with pytest.raises(ItemsLost, match="0 messages are there, and 1000 should be"):
        run_attempt(ours, 1000)


def test_a_directory_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment names a directory that is none, the command says so before any work."""
    monkeypatch.setenv("MULTIQUEUE_BENCH_DIR", str(tmp_path / "none"))
    result = CliRunner().invoke(bench, ["store", "--quick", "--rounds", "1", "--only", "publish-1"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "No such file or directory; MULTIQUEUE_BENCH_DIR names another" in result.stderr


def test_a_record_that_cannot_be_kept(tmp_path: Path) -> None:
    """A directory for the record that cannot be made is named before any work."""
    (tmp_path / "file").touch()
    result = CliRunner().invoke(bench, ["store", "--only", "publish-1", "--record", str(tmp_path / "file" / "x")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Not a directory; name another" in result.stderr


@pytest.mark.parametrize("given", ["many", "0", "-5"])
def test_a_backlog_of_nothing(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog that is no number of messages is refused with the variable's name."""
    monkeypatch.setenv("MULTIQUEUE_BENCH_BACKLOG", given)
    with pytest.raises(BenchError, match=r"MULTIQUEUE_BENCH_BACKLOG is '.*'; give a number of messages"):
        _store_backlog._number_of_messages()


def test_the_goals_are_those_that_are_promised() -> None:
    """Pipelined at least 0.4 of a raw log, and 64 waiting publishers at least ten times persist-queue."""
    goals = {
        (one.name, goal.rival, goal.at_least, goal.against) for one in _store.SUITE.workloads for goal in one.goals
    }
    assert goals == {
        ("publish", "SqliteStore", 0.4, "raw log"),
        ("publish-64", "SqliteStore", 10.0, "persist-queue SQLiteQueue"),
    }
