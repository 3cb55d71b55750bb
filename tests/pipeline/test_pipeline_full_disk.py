"""A disk that becomes full under a pipeline, without Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import _run, exclusive, unwritten
from pipeline_support import PoolDispatcher, Recorder, rows_in, write_names

from multiqueue.pipeline import ExitStatus, PipelineError, Unprepared, parse_config, run_pipeline

LINES = {f"{number:02}": f"{number:02} " * 2000 for number in range(40)}


@pytest.mark.parametrize("full", ["out", "state"])
def test_a_disk_that_becomes_full(small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    """A run whose disk is full says what it could not write, and to make room; the next one ends with each row once.

    (pipeline 3)
    """

    class Work:
        def add(self, lane: Any) -> None: ...

        def meet(self, spark: Any, item: Any) -> Any:
            return item

        def __call__(self, spark: Any, item: Any, staged: Path) -> bool:
            return write_names(spark, item, staged)

    monkeypatch.setattr(_run, "work_of", lambda *arguments: Work())
    monkeypatch.setattr(_run, "_dispatcher", lambda *arguments: PoolDispatcher())
    (tmp_path / "in").mkdir()
    for name, line in LINES.items():
        (tmp_path / "in" / f"{name}.txt").write_text(line)
    values = {
        "lanes": {"a": {"files": "in/*.txt", "format": "text", "batch": 1}},
        "job": {"sql": "SELECT 1"},
        "retry": {"attempts": 2, "backoff": 0.0},
        "output": {"path": str(small_disk / "out") if full == "out" else "out"},
        "state": {"path": str(small_disk / "state.sqlite") if full == "state" else "state.sqlite"},
    }
    config = parse_config(values, tmp_path)
    filler = small_disk / "filler"
    room = 150_000 if full == "out" else 0
    filler.write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize - room))
    said = Recorder()
    for _ in range(2):
        with pytest.raises(
            PipelineError, match=r"^cannot (write|record in) .* full|^cannot write the dead letter "
        ) as caught:
            run_pipeline(config, said)
        assert caught.value.exit_status is ExitStatus.BROKEN_OFF
    if full == "out":
        assert "cannot write the report: No space left on device; make room and run again" in said.notes
    filler.unlink()
    run_pipeline(config, said)
    assert rows_in(config.output) == sorted(LINES.values())


def test_what_cannot_be_written(tmp_path: Path) -> None:
    """A full disk is worth the same command once more; a place that cannot be written is not."""
    full, denied = OSError(28, "No space left on device"), PermissionError(13, "Permission denied")
    told = unwritten("'x'", full, "[output]")
    assert (type(told), str(told)) == (
        PipelineError,
        "cannot write 'x': No space left on device; make room and run again",
    )
    told = unwritten("'x'", denied, "[output]")
    assert type(told) is Unprepared
    assert str(told) == "cannot write 'x': Permission denied; choose another [output] path"
    (tmp_path / "state.sqlite.lock").mkdir()
    said = r"unable to open database file; choose another \[state\] path$"
    with pytest.raises(Unprepared, match=said), exclusive(tmp_path / "state.sqlite"):
        pass
