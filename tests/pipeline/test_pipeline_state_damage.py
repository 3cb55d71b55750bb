"""A state that cannot be used is told in a sentence, with a status that says so."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pipeline_parts_support import _sqlite
from pipeline_support import Pipeline, make_tree, no_spark

from multiqueue.cli import main
from multiqueue.pipeline import Item, PipelineConfig, PipelineError, Silent, load_config, run_pipeline

TOML = """\
[lanes.small]
files = "small/*.txt"
format = "text"
[job]
sql = "SELECT 1"
[output]
path = "out"
"""

_PAGE = 4096
COMMANDS = ["status", "plan", "retry"]


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    """A pipeline that was run: 120 items, some of them set aside."""
    make_tree(tmp_path, {"small": 120})
    (tmp_path / "p.toml").write_text(TOML)
    config = load_config(tmp_path / "p.toml")

    def work(spark: Any, item: Item, staged: Path) -> bool:
        if item.files[0].path.endswith("3.txt"):
            raise ValueError("x" * 100)
        staged.mkdir()
        return True

    Pipeline(config.base, config.lanes(), work=work, attempts=1).run()
    return config


def ends(config: PipelineConfig) -> list[tuple[str, int]]:
    """What each command says and with which status; a traceback of any of them is a failure."""
    found = []
    for command in COMMANDS:
        asked = CliRunner().invoke(main, ["pipeline", command, str(config.base / "p.toml")])
        assert isinstance(asked.exception, SystemExit | None), (command, asked.exception)
        found.append((asked.output.strip(), asked.exit_code))
    try:
        found.append(("", int(run_pipeline(config, Silent(), session=no_spark).status)))
    except PipelineError as error:
        found.append((f"multiqueue: {error}", int(error.exit_status)))
    return found


@pytest.mark.slow(selected=True)
def test_a_damaged_page(config: PipelineConfig) -> None:
    """Whichever page of the state is damaged, and however, no command meets it with a traceback or counts it as an
    item that was set aside: it is a sentence and status 2, or was not needed for the answer."""
    good, chance = config.state.path.read_bytes(), random.Random(6)
    said = set()
    for page in range(len(good) // _PAGE):
        noise = bytearray(good[page * _PAGE : (page + 1) * _PAGE])
        for _ in range(40):
            noise[chance.randrange(_PAGE)] = chance.randrange(256)
        for damage in (bytes(_PAGE), bytes(noise)):
            for left in config.state.path.parent.glob("state*"):
                left.unlink()
            config.state.path.write_bytes(good[: page * _PAGE] + damage + good[(page + 1) * _PAGE :])
            for text, status in ends(config):
                assert status in (0, 1, 2), text
                if status == 2:
                    assert text.startswith("multiqueue: "), text
                    assert "multiqueue-plan-" not in text, "a plan names the state, and not its copy of it"
                    said.add(text.split(": ")[1])
    assert {f"the state {str(config.state.path)!r} is damaged"} < said


def test_a_state_that_is_a_directory(config: PipelineConfig) -> None:
    """A directory in the place of the state is told by every command, with status 2."""
    for left in config.state.path.parent.glob("state*"):
        left.unlink()
    config.state.path.mkdir()
    for text, status in ends(config):
        assert status == 2
        assert f"cannot open or write the state {str(config.state.path)!r}: unable to open database file" in text


def test_a_state_of_a_newer_version(config: PipelineConfig) -> None:
    """A state that a newer version has written is left alone, and told by every command with status 2."""
    with contextlib.closing(sqlite3.connect(config.state.path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    for text, status in ends(config):
        assert status == 2
        assert f"{str(config.state.path)!r} has version 99, this multiqueue writes version 4" in text


def test_a_state_that_another_program_has_locked(config: PipelineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is held for longer than a command waits is told by each of them, with status 3: later it succeeds."""
    monkeypatch.setattr(_sqlite, "_PATIENCE_S", 0.0)
    with contextlib.closing(sqlite3.connect(config.state.path, isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        for text, status in ends(config):
            assert status == 3
            assert f"the state {str(config.state.path)!r} is locked by another program: database is locked" in text


def test_a_lock_file_that_is_none(config: PipelineConfig) -> None:
    """A lock file that is no database is told, with status 2."""
    config.state.path.with_name("state.sqlite.lock").write_bytes(b"x" * 5000)
    text, status = ends(config)[-1]
    assert status == 2
    assert "cannot write" in text
    assert "state.sqlite.lock': file is not a database" in text
