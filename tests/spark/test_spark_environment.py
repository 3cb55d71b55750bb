"""What `check_environment` finds, and what it says about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_parts_support import _environment, warn_of_another_python
from spark_support import FakeSpark

from multiqueue.spark import Finding, SparkDispatcher, SparkEnvironmentError, check_environment, session_builder

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def good_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A machine with nothing wrong, of which each test breaks one thing."""
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark")  # by the real Java
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_PIN_THREAD", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path, 'openjdk version "17.0.15" 2025-04-15')))


def java_that_says(folder: Path, words: str) -> Path:
    """A JAVA_HOME whose `java` prints `words` as Java does, on its error stream."""
    java = folder / "bin" / "java"
    java.parent.mkdir(exist_ok=True)
    java.write_text(f"#!/bin/sh\necho '{words}' >&2\n")
    java.chmod(0o755)
    return folder


def findings(spark: SparkSession | None = None) -> list[str]:
    return [str(finding) for finding in check_environment(spark)]


def test_a_good_machine_has_no_findings() -> None:
    """Nothing wrong: an empty list."""
    assert findings() == []


@pytest.mark.parametrize(
    ("words", "finding"),
    [
        ('java version "1.8.0_411"', "is Java 8; Spark needs Java 17 or later"),
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11; Spark needs Java 17 or later"),
        ("what?", "does not say its version; install Java 17 or later"),
    ],
)
def test_an_old_or_odd_java_is_found(tmp_path: Path, words: str, finding: str) -> None:
    """A Java that Spark can not run on is named with its version and the one that is needed."""
    java_that_says(tmp_path, words)
    assert findings() == [f"error: Java: {tmp_path}/bin/java {finding}"]


def test_no_java_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Java the finding says where it was looked for."""
    (tmp_path / "bin" / "java").unlink()
    assert findings() == [f"error: Java: JAVA_HOME={tmp_path} has no bin/java; install Java 17 or later"]
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert findings() == ["error: Java: no java on PATH, and JAVA_HOME is not set; install Java 17 or later"]


def test_another_python_for_the_workers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that would run another Python, or none, are named with the cure."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/bin/sh")
    assert findings() == [
        f"warning: PYSPARK_PYTHON: workers run /bin/sh, the driver {sys.executable}; set it to sys.executable "
        "before the session starts"
    ]
    monkeypatch.setenv("PYSPARK_PYTHON", "no-such-python")
    assert findings() == [f"error: PYSPARK_PYTHON: there is no 'no-such-python'; set it to {sys.executable}"]


def test_the_same_python_by_another_name_is_no_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`python3` beside the `python` that runs is the same one; the same file in another environment is not."""
    (tmp_path / "python").symlink_to(Path(sys.executable).resolve())
    (tmp_path / "python3").symlink_to("python")
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python3"))
    (finding,) = findings()
    assert finding.startswith(f"warning: PYSPARK_PYTHON: workers run {tmp_path}/python3")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert findings() == []


def test_a_builder_has_workers_run_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """`session_builder` sets PYSPARK_PYTHON where it is not set, as in an environment that was not activated."""
    monkeypatch.setenv("PYSPARK_PYTHON", "another")
    session_builder("a")
    assert os.environ["PYSPARK_PYTHON"] == "another"
    monkeypatch.delenv("PYSPARK_PYTHON")
    session_builder("a")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_registering_warns_of_another_python(caplog: pytest.LogCaptureFixture) -> None:
    """A local session whose workers run another Python is named in the log, for their own errors do not say so."""
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]", pythonExec="/bin/sh"))
    warn_of_another_python(session)
    (record,) = caplog.records
    assert record.getMessage().startswith("warning: PYSPARK_PYTHON: workers run /bin/sh, the driver ")
    session.sparkContext.master = "spark://host:7077"  # where another path may be the right one
    warn_of_another_python(session)
    assert len(caplog.records) == 1


def test_threads_that_are_not_pinned_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """PYSPARK_PIN_THREAD=false is a finding, and a dispatcher refuses to start with it."""
    monkeypatch.setenv("PYSPARK_PIN_THREAD", "false")
    (finding,) = findings()
    assert finding.startswith("error: PYSPARK_PIN_THREAD: is false")
    with pytest.raises(SparkEnvironmentError, match="PYSPARK_PIN_THREAD is false"):
        SparkDispatcher(FakeSpark(), 1)  # type: ignore[arg-type]


def test_an_old_pyspark_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pyspark before 4.0 is named with its version."""
    monkeypatch.setattr("pyspark.__version__", "3.5.1")
    assert findings() == ["error: pyspark: version 3.5.1 is too old; install pyspark 4.0 or later"]


@pytest.mark.spark
def test_a_session_is_checked(spark: SparkSession) -> None:
    """A FAIR local session with the driver's Python has no findings; a FIFO one has."""
    assert findings(spark) == []
    spark.sparkContext._conf.set("spark.scheduler.mode", "FIFO")
    try:
        (finding,) = findings(spark)
    finally:
        spark.sparkContext._conf.set("spark.scheduler.mode", "FAIR")
    assert finding.startswith("warning: spark.scheduler.mode: is FIFO")


def test_without_pyspark_one_sentence_says_what_to_install() -> None:
    """Importing the room without pyspark raises one sentence, and the package itself imports."""
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import multiqueue\n"
        "try:\n    import multiqueue.spark\nexcept ImportError as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout.startswith("multiqueue.spark needs pyspark (")
    assert run.stdout.endswith("): pip install 'blocking-multiqueue[spark]'\n")
    assert run.stderr == ""


@pytest.mark.parametrize(
    ("master", "asked"),
    [
        ("spark://host:7077", True),
        ("yarn", True),
        ("local-cluster[2,1,1024]", True),
        ("local[2]", False),
        ("local", False),
    ],
)
def test_an_executor_elsewhere_is_asked(monkeypatch: pytest.MonkeyPatch, master: str, asked: bool) -> None:
    """A cluster's Python is not this machine's to look at: a worker is asked. Of a local session it is."""
    found = Finding("warning", "executors", "no package")
    monkeypatch.setattr(_environment, "_check_executor", lambda spark: [found])
    context = SimpleNamespace(
        master=master, pythonExec=sys.executable, _jsc=object(), getConf=lambda: {"spark.scheduler.mode": "FAIR"}
    )
    session: Any = SimpleNamespace(sparkContext=context)
    assert check_environment(session) == ([found] if asked else [])
