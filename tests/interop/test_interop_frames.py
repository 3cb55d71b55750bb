"""The same raw frames at RabbitMQ and here, one test a row; and the page that has them all.

After a change of rows, `MULTIQUEUE_WRITE_PAGES=1 python -m pytest tests/interop/test_interop_frames.py`
writes docs/reference/amqp-frames.md and interop_frames_answers.json anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from interop_frames_rows_support import ROWS
from interop_frames_support import ANSWERS, PAGE, Row, page_with, recorded, written
from rabbitmq_support import Peer

from multiqueue.broker import Broker

_answers: dict[Row, tuple[str, str]] = {}


@pytest.fixture(scope="module")
def our_port() -> Iterator[int]:
    """Where our server listens."""
    with Broker(housekeeping_interval=0.01, compat="3.10") as broker, broker.listen() as server:
        yield server.port


def _answers_to(row: Row, rabbitmq: int, ours: int) -> tuple[str, str]:
    if row not in _answers:
        _answers[row] = row.at(rabbitmq), row.at(ours)
    return _answers[row]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_same_frames_are_answered_alike(row: Row, rabbitmq_peer: Peer, our_port: int) -> None:
    """RabbitMQ's answer is ours, unless the row says why not, and then they differ (B61, B62, B63, P21, P22)."""
    theirs, ours = _answers_to(row, rabbitmq_peer.port, our_port)
    assert (theirs == ours) == (row.because is None), f"RabbitMQ: {theirs}\nhere:     {ours}"


def test_the_recorded_answers_are_those_of_now(rabbitmq_peer: Peer, our_port: int) -> None:
    """The file of answers has what both servers answer, to the letter."""
    answers = {row.name: [*_answers_to(row, rabbitmq_peer.port, our_port)] for row in ROWS}
    if os.environ.get("MULTIQUEUE_WRITE_PAGES"):
        ANSWERS.write_text(written(answers))
        PAGE.write_text(page_with(answers))
    assert recorded() == answers


def test_the_page_shows_what_was_answered() -> None:
    """docs/reference/amqp-frames.md has each row whose answers differ, with the reason, and counts all."""
    assert PAGE.read_text() == page_with(recorded())


def test_this_server_answers_as_recorded_without_a_rabbitmq_too(our_port: int) -> None:
    """Every row has recorded answers, none that went has, and this server answers each as it did."""
    answers = recorded()
    assert list(answers) == [row.name for row in ROWS]
    for row in ROWS:
        assert row.at(our_port) == answers[row.name][1], row.name
