"""What holds for every test: which slow ones run, and what happens when a peer is missing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import NoReturn

import pytest

SLOW = ("none", "selected", "all")


def pytest_configure() -> None:
    """Take SIGINT even where whoever started the run ignores it, as shells do for what runs in the background.

    Programs that tests start inherit an ignored signal, and those that are to end by it never would.

    And have JVMs start with less ado: here they do little, and live for seconds.
    """
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow",
        choices=SLOW,
        default="none",
        help="which tests marked slow run: none, those marked slow(selected=True), all",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect slow tests that were not asked for: they are counted in the summary, not skipped one by one."""
    asked = config.getoption("--slow")
    kept, left_out = [], []
    for item in items:
        mark = item.get_closest_marker("slow")
        runs = mark is None or asked == "all" or (asked == "selected" and mark.kwargs.get("selected", False))
        (kept if runs else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that needs Spark skips at a desk without Java or pyspark, and fails where peers are required."""
    if item.get_closest_marker("spark") is None:
        return
    missing = _missing_for_spark()
    if missing is not None:
        do_without(missing)


def do_without(missing: str) -> NoReturn:
    """End a test whose peer is `missing`: skipped at a desk, failed where peers are required."""
    if os.environ.get("MULTIQUEUE_REQUIRE_PEERS"):
        pytest.fail(f"MULTIQUEUE_REQUIRE_PEERS is set, and {missing}", pytrace=False)
    pytest.skip(missing)


@pytest.fixture
def need_module() -> Callable[[str, str], None]:
    """A function of a module's name and what to say if it cannot be found: ends the test as any missing peer does."""

    def need(name: str, missing: str) -> None:
        if find_spec(name.partition(".")[0]) is None or find_spec(name) is None:
            do_without(missing)

    return need


@cache
def _missing_for_spark() -> str | None:
    if find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'multiqueue[spark]'"
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin{os.pathsep}{os.environ.get('PATH', '')}")
    if java is None:
        return "there is no Java; Spark needs 17 or later"
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', shown)
    if found is None or int(found[1]) < 17:
        return f"Java is {found[1] if found else 'unknown'}; Spark needs 17 or later"
    return None
