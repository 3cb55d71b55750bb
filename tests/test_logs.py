"""Records of the log are one line each, and say what they are about."""

from __future__ import annotations

import ast
import importlib
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click import ClickException
from hypothesis import given
from hypothesis import strategies as st

import multiqueue.amqp
import multiqueue.broker  # for the filters that the rooms' doors set
import multiqueue.client
import multiqueue.spark
from multiqueue._logs import LogContext, OneLine, one_line_each, printable
from multiqueue.cli import _Sentence

FORGED = "x\n2026-11-22 12:00:00,000 user 'root' opened vhost '/'\r\x1b[2K\x9b1A\u2028\u202e\udcff"


@pytest.fixture(params=["multiqueue.amqp", "multiqueue.broker", "multiqueue.client", "multiqueue.spark"])
def log(request: pytest.FixtureRequest) -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A room's logger, and what its records look like."""
    logger, text = logging.getLogger(request.param), io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("> %(message)s"))
    logger.addHandler(handler)
    yield logger, text
    logger.removeHandler(handler)


def test_a_record_is_one_line(log: tuple[logging.Logger, io.StringIO]) -> None:
    """Text of a peer's ends no line and steers no terminal."""
    logger, text = log
    logger.error("user '%s' is %d", FORGED, 7)
    shown = text.getvalue()
    assert shown.count("\n") == 1
    assert shown.isascii()
    assert "x\\n2026" in shown
    assert shown.endswith("is 7\n")


def test_a_traceback_is_indented(log: tuple[logging.Logger, io.StringIO]) -> None:
    """Its lines, those of the exception's text too, begin with blanks: none can be taken for a record."""
    logger, text = log
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("failed")
    first, *others = text.getvalue().removesuffix("\n").split("\n")
    assert first == "> failed"
    assert others[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") and printable(line) == line for line in others)


def test_a_record_that_does_not_fit_its_arguments(log: tuple[logging.Logger, io.StringIO]) -> None:
    """It is left to logging, and costs its caller nothing."""
    logger, _ = log
    record = logger.makeRecord(logger.name, logging.ERROR, "", 1, "%d %d", (1,), None)
    assert logger.filter(record)
    assert OneLine().filter(record)  # a handler's, after the logger's


@given(st.text())
def test_printable(text: str) -> None:
    """One line of what can be encoded; text that is so already is unchanged."""
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert shown.encode().decode() == shown
    assert printable(shown) == shown
    assert shown == text or not text.isprintable()


def test_a_filter_is_set_once() -> None:
    """However often a door is opened."""
    for _ in range(3):
        one_line_each("multiqueue.amqp")
    assert sum(isinstance(each, OneLine) for each in logging.getLogger("multiqueue.amqp").filters) == 1
    assert all((multiqueue.amqp, multiqueue.client, multiqueue.spark))


def test_an_error_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence of the command line has the lines it is made of, and no escape sequence of a server's words."""
    sentence: ClickException = _Sentence("no queue 'x\x1b[2K'\nand more", 2)
    sentence.show()
    assert capsys.readouterr().err == "multiqueue: no queue 'x\\x1b[2K'\nand more\n"


ADAPTER = 'self._log = logging.LoggerAdapter(_log, {"connection": '  # adds the field to each record
LOGS = re.compile(r"(self\.)?_?log\.(log|debug|info|warning|error|exception|critical)")
ABOUT_ALL = {
    "%s",  # what `compat` tells once of arguments and features
    "a client did not get as far as its first request: %s",
    "a client that has not logged in is disconnected for a new one: there are %s",
    "cannot accept a connection: %s",
    "vhost '%s' cannot be opened again",
    "vhost '%s' is open again",
    "vhost '%s' stays down: %s; the next try is in %g s",
    "%s %s failed",
    "%s %s failed while it ran",
    "definitions: %s was left out: this broker has no such thing",
    "what the process is low on cannot be measured",
    "no sample could be taken of the broker; the next is tried in %g s",
    "users cannot be saved: %s",
    "%s: delivery %d for %r, which is no longer a consumer",
    "%r has ended; %r is dropped",
    "%r: %s for channel %d, which is closed",
    "a job of the work pool raised %r",
    "a password cannot be verified",
    "a slice of long work failed",
    "alarms: %s",
    "cannot tell how much is free in %s: %s",
    "housekeeping of %r failed",
    "the handler of callback errors failed itself, for: %s",
    "the store failed; close its virtual host and open it again",
    "a callback of a commit failed",
}
"""Messages that are about no single queue or connection, and those of `debug`."""


@pytest.mark.parametrize("room", ["broker", "amqp", "client", "monitor"])
def test_each_record_says_its_queue_or_connection(room: str) -> None:
    """A record gets its fields where it is made, or from its logger; one about neither is in the list. (monitor 13)"""
    calls = [
        node
        for path in sorted(Path(multiqueue.amqp.__file__).parents[1].joinpath(room).rglob("*.py"))
        for text in [path.read_text()]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and LOGS.fullmatch(ast.unparse(node.func))
        if not (ast.unparse(node.func).startswith("self._log.") and ADAPTER in text)
    ]
    bare = {ast.unparse(each.args[0]) for each in calls if not any(word.arg == "extra" for word in each.keywords)}
    assert len(calls) > 3
    assert bare <= {repr(message) for message in ABOUT_ALL}


def test_each_logger_of_the_house_has_both_filters() -> None:
    """One line for each record, and the fields that say what it is about: a room that logs has set them at its door.
    (monitor 13)"""
    house = Path(multiqueue.amqp.__file__).parents[1]
    sources = [path.read_text() for path in house.rglob("*.py") if "demo" not in path.parts]
    names = {name for text in sources for name in re.findall(r'getLogger\("(multiqueue[.a-z]*)"\)', text)}
    assert len(names) > 4
    for name in names:
        importlib.import_module(name)
        kinds = {type(each) for each in logging.getLogger(name).filters}
        assert {OneLine, LogContext} <= kinds, name
