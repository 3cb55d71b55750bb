"""What all tests of a process share, and a test has to leave as it was."""

from __future__ import annotations

import gc
import locale
import logging
import os
import signal
import sys
import threading
import tracemalloc

import pytest

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

_HOUSE = logging.getLogger("multiqueue")
# Not SIGINT: each test begins with Python's own handler, for a Spark session leaves another.
_SIGNALS = [signal.SIGTERM, *(getattr(signal, name) for name in ("SIGALRM", "SIGHUP") if hasattr(signal, name))]
# Set for all later tests alike: by pytest for each phase of a test, by the first that needs Spark or a JVM, by polars.
_KEPT = {b"PYTEST_CURRENT_TEST", b"PYSPARK_PYTHON", b"JDK_JAVA_OPTIONS", b"_RJEM_MALLOC_CONF"}


def process_state(item: pytest.Item) -> dict[str, object]:
    """The state by name; without the environment and the path where a test needs Spark, whose session adds to both."""
    pytests = item.config.pluginmanager.get_plugin("logging-plugin")
    handlers = [] if pytests is None else [pytests.caplog_handler, pytests.report_handler]  # root's while a test runs
    kinds = sys.modules.get("multiqueue.broker._queue.entry_list")
    state: dict[str, object] = {
        "the logger multiqueue": _logger(_HOUSE),
        "the root logger": (*_logger(logging.root), logging.root.manager.disable),
        "the filters of pytest's log handlers": [list(each.filters) for each in handlers],
        "the working directory": os.getcwd(),
        "the garbage collector": (gc.isenabled(), gc.get_threshold()),
        "the switch interval": sys.getswitchinterval(),
        "the recursion limit": sys.getrecursionlimit(),
        "tracing": (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()),
        "tracemalloc": tracemalloc.is_tracing(),
        "an excepthook": (sys.excepthook, threading.excepthook),
        "a signal's handler": [signal.getsignal(each) for each in _SIGNALS],
        "the alarm": hasattr(signal, "getitimer") and signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        "the locale": locale.setlocale(locale.LC_ALL),
        "the limit of open files": resource and resource.getrlimit(resource.RLIMIT_NOFILE),
        "the kinds of queue": list(kinds._makers.keys() - kinds._OURS.keys()) if kinds is not None else [],
    }
    if item.get_closest_marker("spark") is None:
        variables = os.environ._data.items()  # type: ignore[attr-defined]
        state["the environment"] = {key: value for key, value in variables if key not in _KEPT}
        state["sys.path"] = list(sys.path)
    return state


def _logger(logger: logging.Logger) -> tuple[object, ...]:
    return (logger.level, logger.propagate, logger.disabled, list(logger.handlers), list(logger.filters))


def left_changed(before: dict[str, object], after: dict[str, object]) -> str:
    """The names of what differs, with both values; empty if nothing does."""
    return "; ".join(
        f"{name}, which was {_shown(before[name], after[name])} and is {_shown(after[name], before[name])}"
        for name in before
        if before[name] != after[name]
    )


def _shown(value: object, other: object) -> object:
    if isinstance(value, dict) and isinstance(other, dict):
        return {key: each for key, each in value.items() if other.get(key) != each}
    return value
