"""What a first run leaves that could not begin."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline_parts_support import leaving_nothing_unbegun

from multiqueue.pipeline import (
    ConfigError,
    PipelineConfig,
    PipelineError,
    SessionLost,
    StateMismatch,
    Unprepared,
    parse_config,
)


def config_in(base: Path) -> PipelineConfig:
    lanes = {"eu": {"files": "eu/*.csv", "format": "csv"}}
    return parse_config({"lanes": lanes, "job": {"sql": "SELECT 1"}, "output": {"path": "deep/out"}}, base)


def make_all(config: PipelineConfig, log: str) -> None:
    """What a run makes before its first item begins."""
    own = config.output / "_multiqueue"
    for directory in (config.output / "data", own / "staging", own / "warm-up"):
        directory.mkdir(parents=True, exist_ok=True)
    for file in (config.state.path, config.state.path.with_name("state.sqlite-wal"), config.output / "report.html"):
        file.touch()
    (own / "spark.log").write_text(log)


def run(config: PipelineConfig, log: str, error: Exception) -> None:
    """A run that makes all that and ends with the error."""
    with leaving_nothing_unbegun(config):
        make_all(config, log)
        raise error


def left_in(base: Path) -> list[str]:
    """Files and empty directories."""
    paths = [path for path in base.rglob("*") if not path.is_dir() or not any(path.iterdir())]
    return sorted(str(path.relative_to(base)) for path in paths)


@pytest.mark.parametrize("error", [Unprepared("no Java"), ConfigError("no input"), StateMismatch("results unknown")])
@pytest.mark.parametrize(("log", "left"), [("", []), ("why", ["deep/out/_multiqueue/spark.log"])])
def test_a_run_that_could_not_begin_leaves_nothing(
    tmp_path: Path, error: PipelineError, log: str, left: list[str]
) -> None:
    """State, report and empty directories are gone, up to the first that was there; a log that says something stays.

    (pipeline 15)
    """
    config = config_in(tmp_path)
    with pytest.raises(type(error)):
        run(config, log, error)
    assert left_in(tmp_path) == left


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    """Files of the user's in the output, and an own directory that was not empty, are not touched."""
    config = config_in(tmp_path)
    own = config.output / "_multiqueue"
    own.mkdir(parents=True)
    (own / "notes").touch()
    (config.output / "readme").touch()
    (config.output / "report.html").touch()
    with pytest.raises(Unprepared):
        run(config, "", Unprepared("no Java"))
    assert {"deep/out/readme", "deep/out/report.html", "deep/out/_multiqueue/notes"} <= set(left_in(tmp_path))
    assert not config.state.path.exists()


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_run_that_had_begun_keeps_all(tmp_path: Path, has_begun: bool) -> None:
    """A state that was there, and a run that was broken off, are gone on with."""
    config = config_in(tmp_path)
    if has_begun:
        make_all(config, "")
    error = Unprepared("no Java") if has_begun else SessionLost("gone")
    with pytest.raises(type(error)):
        run(config, "", error)
    assert config.state.path.exists()
    assert (config.output / "report.html").exists()
