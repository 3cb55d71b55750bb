"""A plugin of pytest: write the outcome of each test to the file that OUTCOMES names, one line of JSON a test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def named(test: str) -> str:
    """The name it has unswapped: tests are named after the classes that they are given."""
    return test.replace("[MultiQueueExecutor]", "[ThreadPoolExecutor]")


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        with Path(os.environ["OUTCOMES"]).open("a") as file:
            file.write(json.dumps([named(report.nodeid), report.outcome]) + "\n")


def pytest_collectreport(report: Any) -> None:
    if report.outcome == "failed":
        with Path(os.environ["OUTCOMES"]).open("a") as file:
            file.write(json.dumps([report.nodeid, "not collected"]) + "\n")
