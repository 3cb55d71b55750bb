"""Classic sessions and Spark Connect pass the same contract: `spark_contract.py`, check by check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_contract import CHECKS

CONTRACT = Path(__file__).with_name("spark_contract.py")


@pytest.mark.spark
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_a_classic_session_passes(check: Callable[[SparkSession], None], spark: SparkSession) -> None:
    """Each check holds on a classic session."""
    check(spark)


@pytest.mark.spark
@pytest.mark.slow(selected=True)
def test_spark_connect_passes(need_module: Callable[[str, str], None], connect_url: str) -> None:
    """All checks hold on a Spark Connect session, in a process of its own: one process has one kind of session."""
    need_module("grpc", "Spark Connect's client is not installed: pip install 'pyspark[connect]'")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(CONTRACT), connect_url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(CONTRACT.parents[1]), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=280,
    )
    told = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"check"')]
    assert {one["check"]: one["problem"] for one in told} == dict.fromkeys(CHECKS, ""), run.stderr[-3000:]
    assert run.returncode == 0
