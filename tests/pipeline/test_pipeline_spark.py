"""The pipeline on real Spark, through the command line, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import ItemState, ledger_view

from multiqueue.pipeline import Unprepared

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

COMMAND = [sys.executable, "-m", "multiqueue"]
RUN = [*COMMAND, "pipeline", "run", "p.toml"]
HOUSE = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """Of the commands: this checkout."""
    return {**os.environ, "PYTHONPATH": str(HOUSE)}


def run(*args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, args)]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)


def rows(output: Path) -> list[dict[str, object]]:
    """Everything a reader finds in an output of JSON lines."""
    parts = sorted((output / "data").rglob("*.json"))
    return [json.loads(line) for part in parts if part.name[0] not in "._" for line in part.read_text().splitlines()]


FORMATS = """\
[spark]
master = "local[2]"
max_running = 4
[spark.conf]
"spark.sql.shuffle.partitions" = 1
[lanes.csv]
files = "in/*.csv"
format = "csv"
batch = 1
options = { header = true }
schema = "a INT, b STRING"
pool = "tables"
[lanes.json]
files = "in/*.json"
format = "json"
batch = 1
[lanes.jsonl]
files = "in/*.jsonl"
format = "jsonl"
batch = 1
[lanes.text]
files = "in/*.txt"
format = "text"
batch = 2
[lanes.binary]
files = "in/*.bin"
format = "binary"
batch = 1
[lanes.paths]
files = "in/*.any"
format = "paths"
batch = 1
timeout = 60
[lanes.stuck]
files = "in/*.stuck"
format = "paths"
batch = 1
timeout = 0.5
[job]
python = "formats_job:describe"
[output]
path = "out"
format = "json"
[retry]
attempts = 2
backoff = 0.1
"""

FORMATS_JOB = """\
def describe(spark, frame, item):
    if item.name.endswith("nothing.any"):
        return None
    if item.lane == "stuck":
        return frame.join(spark.range(10**12), how="cross").groupBy("path").count()
    if item.name.endswith("wrong.any"):
        return 7
    if item.name.endswith("flaky.any") and item.attempt == 1:
        raise OSError("once")
    return frame.selectExpr("count(*) AS n", f"'{item.files[0].path}' AS first", f"{len(item.paths)} AS files")
"""

FILES = {
    "a.csv": "a,b\n1,x\n2,y\n",
    "br[1] %41 {x}.csv": "a,b\n3,z\n",
    "whole.json": '[{"a": 1},\n {"a": 2},\n {"a": 3}]',
    "lines.jsonl": '{"a": 1}\n{"a": 2}\n',
    "one.txt": "1\n",
    "two.txt": "1\n2\n",
    "three.txt": "1\n2\n3\n",
    "raw.bin": "\x00\x01",
    "co:lon.txt": "x",
    "flaky.any": "",
    "_under.any": "",
    "nothing.any": "",
    "wrong.any": "",
    "for-ever.stuck": "",
}


@pytest.mark.slow(selected=True)
def test_every_format(tmp_path: Path) -> None:
    """Files of every format, with names that Spark would take for globs, are read as what they are.

    The one that Spark cannot read is set aside alone, and the other file of its batch is done.
    """
    (tmp_path / "in").mkdir()
    for name, text in FILES.items():
        (tmp_path / "in" / name).write_text(text)
    (tmp_path / "p.toml").write_text(FORMATS)
    (tmp_path / "formats_job.py").write_text(FORMATS_JOB)
    answer = run("pipeline", "run", "p.toml", "--json", cwd=tmp_path)
    events = [json.loads(line) for line in answer.stderr.splitlines()]
    assert answer.returncode == 1
    assert {row["first"]: (row["n"], row["files"]) for row in rows(tmp_path / "out")} == {
        "in/a.csv": (2, 1),
        "in/br[1] %41 {x}.csv": (1, 1),
        "in/whole.json": (3, 1),
        "in/lines.jsonl": (2, 1),
        "in/three.txt": (5, 2),
        "in/one.txt": (1, 1),
        "in/raw.bin": (1, 1),
        "in/flaky.any": (1, 1),
        "in/_under.any": (1, 1),
    }
    assert events[-1]["lanes"]["stuck"]["failed"] == 1
    failures = {event["files"][0]: event["error"] for event in events if event.get("state") == "failed"}
    assert failures.pop("in/for-ever.stuck").startswith("SparkJobTimeout: ")
    assert failures == {
        "in/co:lon.txt": f"JobError: Spark cannot read '{tmp_path}/in/co:lon.txt': its name has a colon; "
        'rename it, or use format = "paths"',
        "in/wrong.any": "JobError: formats_job:describe returned int; a DataFrame or None is expected",
    }
    result = json.loads(answer.stdout)
    assert (result["status"], len(result["set_aside"])) == (1, 3)
    assert result["total"] == {"waiting": 0, "running": 0, "committing": 0, "done": 10, "failed": 3}
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()


SLOW = """\
[spark]
master = "local[2]"
max_running = 3
conf = { "spark.sql.execution.pythonUDF.arrow.enabled" = false }
[lanes.a]
files = "in/*.txt"
format = "text"
batch = 1
[job]
python = "slow_job:wait"
[output]
path = "out"
format = "json"
"""

SLOW_JOB = """\
import os, time
def slowly(value):
    time.sleep(float(os.environ.get("SLOW_S", "0.5")))
    return value
def wait(spark, frame, item):
    spark.udf.register("slowly", slowly, "string")
    return frame.selectExpr("slowly(value) AS value")
"""

SLOW_FILES = 12


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "in").mkdir()
    for i in range(SLOW_FILES):
        (tmp_path / "in" / f"{i:02}.txt").write_text(f"row {i}\n")
    (tmp_path / "p.toml").write_text(SLOW)
    (tmp_path / "slow_job.py").write_text(SLOW_JOB)
    yield tmp_path
    # After each interruption the same command finishes the rest, and each row is there once.
    answer = run("pipeline", "run", "p.toml", cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, ""), answer.stdout
    assert sorted(str(row["value"]) for row in rows(tmp_path / "out")) == sorted(f"row {i}" for i in range(SLOW_FILES))


def items(base: Path, wanted: ItemState = ItemState.DONE) -> int:
    """How many items the state has as done, or as `wanted`."""
    try:
        with ledger_view(base / "out" / "_multiqueue" / "state.sqlite") as view:
            return sum(count.items for count in view.counts() if count.state is wanted)
    except Unprepared:
        return 0


def wait_for_done(base: Path, count: int, process: subprocess.Popen[Any], *, failed: int = 0) -> None:
    """Until so many items are done, and so many set aside; a run that ends before, or gets nowhere, is a failure."""
    deadline = time.monotonic() + 240
    while items(base) < count or items(base, ItemState.FAILED) < failed:
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline, f"{items(base)} of {count} items are done"
        time.sleep(0.05)


@pytest.mark.slow(selected=True)
def test_sigterm_then_kill_9_and_the_same_command_again(slow: Path) -> None:
    """What runs at SIGTERM is given back after the grace; the status says so. (pipeline 8)

    Then kill -9 in the middle; the same command finishes the rest, every item exactly once in the output.
    """
    end_by_sigterm(slow, job_s=300, grace_s=1, is_cancelled=True)
    kill_9(slow, 4)


@pytest.mark.slow
def test_kill_9_twice(slow: Path) -> None:
    """So is a run that has been killed twice."""
    kill_9(slow, 3)
    kill_9(slow, 6)


@pytest.mark.slow
def test_sigterm_and_a_long_grace(slow: Path) -> None:
    """What runs at SIGTERM ends within the grace, and is done."""
    end_by_sigterm(slow, job_s=0.5, grace_s=60, is_cancelled=False)


def kill_9(base: Path, target: int) -> None:
    """Start the command and kill it once so many items are done."""
    with subprocess.Popen(RUN, cwd=base, env=environment(), stdout=subprocess.DEVNULL) as process:
        try:
            wait_for_done(base, target, process)
        finally:
            process.send_signal(signal.SIGKILL)
    assert items(base) < SLOW_FILES


def end_by_sigterm(base: Path, job_s: float, grace_s: float, is_cancelled: bool) -> None:
    """Start the command and end it when something runs."""
    command = [*RUN, "--json", "--lane", "a", "--grace", str(grace_s)]
    variables = {**environment(), "SLOW_S": str(job_s)}
    with subprocess.Popen(command, cwd=base, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 120
            while not items(base, ItemState.SUBMITTED):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            said, told = process.communicate(timeout=120)
        finally:
            process.kill()
    result = json.loads(said)
    assert (process.returncode, result["status"], result["verdict"]) == (130, 130, "interrupted")
    assert result["total"]["running"] == 0
    assert items(base, ItemState.SUBMITTED) == 0
    events = [json.loads(line) for line in told.splitlines()]
    assert [event["cancel"] for event in events if event["event"] == "stopping"] == [False, True][: 1 + is_cancelled]
    assert result["total"]["waiting"] == (SLOW_FILES if is_cancelled else SLOW_FILES - result["total"]["done"])


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_a_terminal(slow: Path, times: int) -> None:
    """Ctrl-C reaches every process of the terminal: once lets the running jobs end in peace, twice cancels them."""
    terminal, process = _in_a_terminal(slow)
    screen = _Screen(terminal)
    deadline = time.monotonic() + 120
    while items(slow) < 4:
        screen.read()
        assert process.poll() is None, screen.text()
        assert time.monotonic() < deadline, screen.text()
    for pressed in range(times):
        os.write(terminal, b"\x03")
        screen.read_until("Ctrl-C again cancels" if pressed == 0 else "cancelling")
    screen.read_to_end()
    assert process.wait() == 130
    os.close(terminal)
    assert "Traceback" not in screen.text()
    assert "failed:" not in screen.text()
    with ledger_view(slow / "out" / "_multiqueue" / "state.sqlite") as view:
        states = {count.state for count in view.counts()}
    assert states == {ItemState.DONE, ItemState.WAITING}
    assert items(slow) < SLOW_FILES


@pytest.mark.slow
def test_ctrl_c_while_spark_starts(slow: Path) -> None:
    """The command ends before Spark is up, says so, and leaves no JVM."""
    terminal, process = _in_a_terminal(slow)
    screen = _Screen(terminal)
    screen.read_until("starting Spark")
    os.write(terminal, b"\x03")
    screen.read_to_end()
    assert process.wait() == 130
    os.close(terminal)
    assert "Traceback" not in screen.text()
    assert "no item was begun" in screen.text() or "stopping: 0 running" in screen.text()
    deadline = time.monotonic() + 60
    with contextlib.suppress(ProcessLookupError):
        while True:  # a JVM that is up ends when it hears that this process has
            os.killpg(process.pid, 0)
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert items(slow, ItemState.WAITING) == SLOW_FILES


def _in_a_terminal(base: Path) -> tuple[int, subprocess.Popen[bytes]]:
    """The command, and the other end of a terminal of its own."""
    terminal, side = pty.openpty()
    process = subprocess.Popen(
        RUN,
        cwd=base,
        env=environment(),
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
        preexec_fn=lambda: _control(side),
    )
    os.close(side)
    return terminal, process


def _control(side: int) -> None:
    """Make the terminal this process's own, so that Ctrl-C signals its whole group."""
    import fcntl
    import termios

    fcntl.ioctl(side, termios.TIOCSCTTY, 0)


class _Screen:
    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._bytes = b""

    def read(self, timeout: float = 0.1) -> bool:
        """Whether the terminal is still open."""
        if select.select([self._terminal], [], [], timeout)[0]:
            try:
                self._bytes += os.read(self._terminal, 65536)
            except OSError:  # how Linux says that the other side is closed
                return False
        return True

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + 120
        while text not in self.text():
            assert self.read(), self.text()
            assert time.monotonic() < deadline, self.text()

    def read_to_end(self) -> None:
        deadline = time.monotonic() + 120
        while self.read(1.0):
            assert time.monotonic() < deadline, self.text()

    def text(self) -> str:
        return self._bytes.decode(errors="replace")


@pytest.mark.slow
def test_the_example(tmp_path: Path) -> None:
    """The example in the repository runs, and drops the order without an amount."""
    shutil.copytree(HOUSE / "examples" / "pipeline", tmp_path / "example", ignore=shutil.ignore_patterns("out"))
    text = (tmp_path / "example" / "pipeline.toml").read_text() + 'format = "json"\n'
    (tmp_path / "example" / "pipeline.toml").write_text(text)
    answer = run("pipeline", "run", "example/pipeline.toml", cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, ""), answer.stdout
    assert sorted((row["product"], row["amount"], row["file"]) for row in rows(tmp_path / "example" / "out")) == [
        ("boots", 80.0, "monday.csv"),
        ("bread", 2.0, "monday.csv"),
        ("tea", 3.5, "monday.csv"),
        ("tea", 7.0, "tuesday.csv"),
    ]
