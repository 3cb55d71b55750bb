"""The classes of Spark are written once; without them the tests of Spark run as ever."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jvm_support
import pytest
from jvm_support import keep_classes

Run = Callable[[str], Any]


def works(new: str) -> None:
    Path(new).write_bytes(b"classes")


def fails(new: str) -> None:
    Path(new).write_bytes(b"half of the classes")
    raise subprocess.CalledProcessError(1, "spark-submit")


def hangs(new: str) -> None:
    raise subprocess.TimeoutExpired("spark-submit", jvm_support.WRITTEN_WITHIN_S)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Run]]:
    """What each JVM that is asked for the classes does, the next one last; a JVM too many has nothing to do."""
    jvms: list[Run] = []

    def run(command: object, *, env: dict[str, str], **options: object) -> None:
        (new,) = re.findall('ArchiveClassesAtExit=([^"]*)', env["JDK_JAVA_OPTIONS"])
        jvms.pop()(new)

    monkeypatch.setattr(jvm_support, "java", lambda: sys.executable)
    monkeypatch.setattr(subprocess, "run", run)
    keep_classes.cache_clear()  # as another process would find it
    yield jvms
    keep_classes.cache_clear()


def test_the_first_process_writes_the_classes_for_all(started: list[Run], tmp_path: Path) -> None:
    """The file has its name once it is whole, and no other JVM is asked for it."""
    started.append(works)
    keep_classes(tmp_path)
    keep_classes.cache_clear()
    keep_classes(tmp_path)
    (kept,) = tmp_path.glob("*.jsa")
    assert kept.read_bytes() == b"classes"
    assert {path.suffix for path in tmp_path.iterdir()} == {".jsa", ".lock"}


@pytest.mark.parametrize("jvm", [fails, hangs])
def test_a_jvm_that_writes_no_classes_leaves_nothing(started: list[Run], jvm: Run, tmp_path: Path) -> None:
    """The process goes on without them and asks no second time; the next process tries."""
    started += [works, jvm]
    keep_classes(tmp_path)
    keep_classes(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".lock"}
    keep_classes.cache_clear()
    keep_classes(tmp_path)
    assert list(tmp_path.glob("*.jsa"))
