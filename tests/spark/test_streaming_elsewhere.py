"""The source where driver, executors and program are not one process: clusters, and Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spark_streaming_support import depth, numbers, publish

pytestmark = pytest.mark.spark

HERE = Path(__file__).parent
PROGRAM = HERE / "spark_streaming_elsewhere.py"


def run_program(master: str, url: str, directory: Path, *scenarios: str) -> dict[str, str]:
    """What the program printed, by scenario."""
    for scenario in scenarios:
        publish(url, scenario, *numbers(0, 50))
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), master, url, str(directory), *scenarios],
        capture_output=True, text=True, timeout=500, cwd=directory, check=False,
        env={**os.environ, "SPARK_WORKER_DIR": str(directory), "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    lines = [line.partition(" ") for line in ended.stdout.splitlines()]
    return {name: rest for name, _, rest in lines if name in scenarios}


def check(printed: dict[str, str], url: str, *scenarios: str) -> None:
    """Each message is in the output once, and off its queue."""
    for scenario in scenarios:
        assert json.loads(printed[scenario]) == list(range(50))
        assert depth(url, scenario) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_executors_that_share_no_directory(tmp_path: Path, url: str) -> None:
    """On executors of their own, while a task fails and a worker dies: by a lease nothing but the broker is shared, and
    each message is in the output once. A spool must be shared, and says so where it is not.
    """
    printed = run_program("local-cluster[2,1,1024]", url, tmp_path, "lease", "spool", "unshared")
    check(printed, url, "lease", "spool")
    assert "SpoolNotShared" in printed["unshared"]


NO_CLIENT = "Spark Connect's client is not installed: pip install 'pyspark[connect]'"


@pytest.mark.slow
def test_a_source_on_spark_connect(
    tmp_path: Path, url: str, need_module: Callable[[str, str], None], connect_url: str
) -> None:
    """Through a Connect server all of it is the same, while a task fails and a worker dies: the reader is beside it."""
    need_module("grpc", NO_CLIENT)
    check(run_program(connect_url, url, tmp_path, "lease"), url, "lease")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_source_on_spark_connect_with_executors(
    tmp_path: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    need_module: Callable[[str, str], None],
    elsewhere: Any,
) -> None:
    """The same where the server has executors of their own; there by a spool, too."""
    need_module("grpc", NO_CLIENT)
    monkeypatch.setenv("SPARK_WORKER_DIR", str(tmp_path))
    with elsewhere.connect_server(tmp_path, "local-cluster[2,1,1024]") as remote:
        check(run_program(remote, url, tmp_path, "lease", "spool"), url, "lease", "spool")
