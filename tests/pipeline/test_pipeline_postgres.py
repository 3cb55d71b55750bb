"""A state in PostgreSQL: the lock, the lost connection, the server that is started again, and the secret."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pipeline_parts_support import (
    Ledger,
    PostgresState,
    _sqlite,
    exclusive,
    ledger_view,
    open_ledger,
)
from pipeline_support import Pipeline, contents, lane_of, make_tree, rows_in
from test_pipeline_crash import LANES, Fuse, Killed, fragile

from multiqueue.pipeline import (
    ConfigError,
    FileSeen,
    PipelineError,
    StateInUse,
    StateMismatch,
    Unprepared,
    parse_config,
    plan_of,
)
from multiqueue.pipeline.cli import pipeline as command

if TYPE_CHECKING:
    from postgres_support import Postgres

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def state(postgres_peer: Postgres) -> PostgresState:
    return PostgresState(postgres_peer.url, postgres_peer.schema())


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A server of the test's own, to be killed."""
    from pipeline_support import do_without
    from postgres_support import NoPeer, postgres

    try:
        with postgres() as server:
            yield server
    except NoPeer as missing:
        do_without(str(missing))


def start(base: Path, state: PostgresState, fuse: Fuse, **settings: Any) -> Pipeline:
    died = fragile(fuse)
    return Pipeline(
        base,
        [lane_of(base, name, batch=2, capacity=3) for name in LANES],
        ledger=lambda _, base: died[0](state, base),
        publisher=died[1],
        **settings,
    )


def test_a_driver_whose_power_fails_is_missed_by_postgres(state: PostgresState) -> None:
    """The server asks after a silent driver within a minute; otherwise it would keep a dead one's lock for hours."""
    with contextlib.closing(state._session()) as session:
        asked = [
            session.execute(f"SHOW {name}").fetchone()[0]
            for name in ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
        ]
    assert asked == ["30", "10", "3", "60000"]


@pytest.mark.parametrize("last", [1, 4, 7, 11, 15, 20])
def test_killed_with_a_state_in_postgres(tmp_path: Path, state: PostgresState, last: int) -> None:
    """Whichever commit is the last one before death, the next run ends with each file once (pipeline 3, 22)."""
    make_tree(tmp_path, LANES)
    with exclusive(state), pytest.raises(Killed):
        start(tmp_path, state, Fuse(last)).run()
    with exclusive(state):
        again = start(tmp_path, state, Fuse())
        again.run()
    assert rows_in(again.output) == contents(LANES)


def test_the_next_run_with_a_state_in_postgres_begins_at_once(
    state: PostgresState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has ended does not keep the next one out while the server still ends its session (pipeline 7)."""
    there, opened = PostgresState._session, []

    def session(self: PostgresState) -> Any:
        opened.append(there(self))
        return SimpleNamespace(execute=opened[-1].execute, close=lambda: None)

    with monkeypatch.context() as patched:
        patched.setattr(PostgresState, "_session", session)
        with exclusive(state):
            pass
        with exclusive(state):
            pass
    for one in opened:
        one.close()


@pytest.mark.parametrize("version", ["3", "99"])
def test_a_state_in_postgres_of_another_version(tmp_path: Path, state: PostgresState, version: str) -> None:
    """A state of an earlier or later version is refused, to a run and to a look, and left alone."""
    with exclusive(state), open_ledger(state, tmp_path) as ledger:
        ledger._connection.execute("UPDATE meta SET value = ? WHERE name = 'version'", (version,))
        said = f"has version {version}, this multiqueue writes version 4"
        with pytest.raises(StateMismatch, match=said), open_ledger(state, tmp_path):
            pass
        with pytest.raises(StateMismatch, match=said), ledger_view(state):
            pass
        assert ledger._connection.execute("SELECT value FROM meta WHERE name = 'version'").fetchone() == (version,)


_HOLD = """
import sys
from multiqueue.pipeline._state.postgres import PostgresState
state = PostgresState(sys.argv[1], sys.argv[2])
with state.exclusive():
    print("held", flush=True); sys.stdin.read()
"""


def test_one_process_has_a_state_in_postgres(state: PostgresState) -> None:
    """A second process is told at once who holds the state; when that one is killed, the state is free (pipeline 7)."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, state.url, state.schema], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with (
            pytest.raises(StateInUse, match=f"in use by process {child.pid} on .*; wait for it or stop it"),
            exclusive(state),
        ):
            raise AssertionError("two processes hold one state")
        with exclusive(PostgresState(state.url, f"{state.schema}b")):
            pass  # another pipeline's
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    for _ in range(1000):  # the server hears of it when the connection ends
        try:
            with exclusive(state):
                break
        except StateInUse:
            continue
    else:
        raise AssertionError("the lock outlived its process")


def test_a_run_that_was_taken_over_records_nothing_in_postgres(tmp_path: Path, state: PostgresState) -> None:
    """A run that has lost the lock without knowing is refused at its next transaction, and changes nothing.

    (pipeline 7, 22)
    """
    with open_ledger(state, tmp_path) as zombie:
        with zombie.transaction():
            zombie.add("a", [FileSeen("f", 1, 1)], 0.0)
        with open_ledger(state, tmp_path) as heir:
            with pytest.raises(StateInUse, match="another process has taken over the state"), zombie.transaction():
                zombie.add("a", [FileSeen("g", 1, 1)], 0.0)
            with heir.transaction():
                heir.add("a", [FileSeen("h", 1, 1)], 0.0)
            assert [item.files[0].path for item in heir.next_waiting("a", 0.0, 9)] == ["f", "h"]


def test_a_server_that_is_killed_and_started_again_postgres(tmp_path: Path, server: Postgres) -> None:
    """A run whose server goes away ends with one sentence; the same command goes on when it is back (pipeline 22)."""
    make_tree(tmp_path, LANES)
    state = PostgresState(server.url, server.schema())

    def fail_over(run: Pipeline) -> None:
        if len(run.reporter.attempts) == 2:
            server.kill()

    with pytest.raises(PipelineError, match=r"lost the state .*; run again to go on"), exclusive(state):
        start(tmp_path, state, Fuse(), on_idle=fail_over).run()
    with pytest.raises(Unprepared, match=r"cannot use the state .*; start the server, or correct \[state\]"):
        Ledger(state, tmp_path)
    server.start()
    with exclusive(state):
        again = start(tmp_path, state, Fuse())
        again.run()
    assert rows_in(again.output) == contents(LANES)


@pytest.mark.parametrize(
    "broken",
    [
        lambda url: url.replace("tester:", "tester:wrong-"),
        lambda url: url.replace("127.0.0.1:", "127.0.0.1:1"),
        lambda url: url.replace("/postgres", "/no-such-database"),
        lambda url: f"{url}?sslmode=wrong",
    ],
)
def test_no_message_has_the_password_postgres(tmp_path: Path, postgres_peer: Postgres, broken: Any) -> None:
    """Whatever is wrong with the server or the URL, the error says which server it is and never the password."""
    from postgres_support import PASSWORD

    state = PostgresState(broken(postgres_peer.url), "s")
    with pytest.raises(Unprepared) as caught, exclusive(state):
        pass
    told = repr(caught.getrepr(chain=True, showlocals=False)) + repr(state) + str(state)
    assert PASSWORD not in str(caught.value) + told
    assert "postgresql://tester@127.0.0.1" in str(caught.value)
    assert caught.value.__cause__ is None


CONFIG = """\
[lanes.a]
files = "a/*.txt"
format = "text"
batch = 1
[job]
sql = "SELECT * FROM input"
[output]
path = "out"
[state]
url = "postgresql://tester:${STATE_PASSWORD}@127.0.0.1:%d/postgres"
schema = "%s"
"""


def test_the_commands_with_a_state_in_postgres(
    tmp_path: Path, postgres_peer: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`plan`, `status` and `retry` take the state where it is; a plan leaves nothing there (pipeline 12)."""
    from postgres_support import PASSWORD

    monkeypatch.setenv("STATE_PASSWORD", PASSWORD)
    schema = postgres_peer.schema()
    (tmp_path / "p.toml").write_text(CONFIG % (postgres_peer.port, schema))
    make_tree(tmp_path, {"a": 3})
    state = PostgresState(postgres_peer.url, schema)
    runner = CliRunner()

    def call(*arguments: str) -> Any:
        return runner.invoke(command, [arguments[0], str(tmp_path / "p.toml"), *arguments[1:]])

    assert call("plan").output.startswith("3 items to run")
    assert not state.exists()
    with pytest.raises(Unprepared, match="has not run yet"), ledger_view(state):
        pass
    with exclusive(state):
        Pipeline(
            tmp_path,
            [lane_of(tmp_path, "a")],
            ledger=lambda _, base: Ledger(state, base),
            work=fails_once_for_good,
        ).run()
    (tmp_path / "a" / "0003.txt").write_text("new")
    assert call("plan").output.startswith("1 item to run")
    assert '"failed": 1' in call("status", "--json").output
    assert call("retry").output.startswith("1 item put back")
    assert call("plan").output.startswith("2 items to run")


def fails_once_for_good(spark: Any, item: Any, staged: Path) -> bool:
    from pipeline_support import write_names

    from multiqueue.pipeline import JobError

    if item.files[0].path.endswith("0001.txt"):
        raise JobError("bad")
    return write_names(spark, item, staged)


def test_a_schema_for_each_pipeline_postgres(tmp_path: Path, state: PostgresState) -> None:
    """A state in a server belongs to one output: a second pipeline with the same schema is refused."""
    make_tree(tmp_path / "one", LANES)
    make_tree(tmp_path / "two", LANES)
    start(tmp_path / "one", state, Fuse()).run()
    with pytest.raises(StateMismatch, match=r"give this pipeline another \[state\] schema"):
        start(tmp_path / "two", state, Fuse())


@pytest.mark.parametrize("url", ["mysql://u:secret1@h/d", "postgresql://u:secret1@h", "u:secret1@h"])
def test_what_is_no_url_of_postgresql(tmp_path: Path, url: str) -> None:
    """A URL of something else is refused by its key, without its text: it may have a password."""
    values = {"lanes": {"a": {"files": "*", "format": "text"}}, "job": {"sql": "SELECT 1"}, "output": {"path": "out"}}
    with pytest.raises(ConfigError, match=r"state.url: .*must be postgresql://USER@HOST:PORT/DATABASE") as caught:
        parse_config({**values, "state": {"url": url}}, tmp_path)
    assert "secret1" not in str(caught.value)


def test_a_plan_is_of_the_state_in_postgres(tmp_path: Path, state: PostgresState) -> None:
    """What a plan copies is all that the state knows: items, files, messages (pipeline 12)."""
    with open_ledger(state, tmp_path) as ledger, ledger.transaction():
        ledger.add("a", [FileSeen(f"a/{place}", 1, 1) for place in range(3)], 0.0)
        (item,) = ledger.next_waiting("a", 0.0, 1)
        ledger.postpone(ledger.submit(item), "with \0 in it", 5.0)
    config = parse_config(
        {
            "lanes": {"a": {"files": "a/*", "format": "text", "allow_empty": True}},
            "job": {"sql": "SELECT * FROM input"},
            "output": {"path": "out"},
            "state": {"url": state.url, "schema": state.schema},
        },
        tmp_path,
    )
    (lane,) = plan_of(config).lanes
    assert (lane.known, lane.files) == (1, 3)


def test_the_report_of_a_state_in_postgres(tmp_path: Path, state: PostgresState) -> None:
    """The report of a run whose state is in PostgreSQL has its jobs, as one of SQLite has. (pipeline 22)"""
    make_tree(tmp_path, LANES)
    with exclusive(state):
        start(tmp_path, state, Fuse()).run()
    with ledger_view(state) as view:
        jobs, series = view.jobs(1000), view.series(10)
        assert [(wait.lane, wait.items) for wait in view.waits()] == [(lane, view_items(jobs, lane)) for lane in LANES]
    assert sum(series.ends) == len(jobs) == sum(-(-count // 2) for count in LANES.values())


def view_items(jobs: list[Any], lane: str) -> int:
    return sum(job.lane == lane for job in jobs)


def test_every_sub_query_has_a_name() -> None:
    """Each sub-query of the ledger has an alias: PostgreSQL before 16 asks for one."""
    found = 0
    for path in Path(_sqlite.__file__).parent.glob("*.py"):
        text = path.read_text()
        for start in re.finditer(r"\b(?:FROM|JOIN) \(", text):
            end, depth = start.end(), 1
            while depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            found += 1
            line = text.count("\n", 0, end) + 1
            assert re.match(r"\s+AS \w+", text[end:]), f"{path.name}:{line}: the sub-query that ends here has no alias"
    assert found
