"""The same raw frames at RabbitMQ and here, one test a row; and the page that has them all.

After a change of rows, `MULTIQUEUE_WRITE_PAGES=1 python -m pytest tests/interop/test_interop_frames.py`
writes docs/reference/amqp-frames.md anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from interop_frames_rows_support import ROWS
from interop_frames_support import PAGE, Row, page_with
from rabbitmq_support import Peer

from multiqueue.broker import Broker

_answers: dict[Row, tuple[str, str]] = {}


@pytest.fixture(scope="module")
def our_port() -> Iterator[int]:
    """Where our server listens."""
    with Broker(housekeeping_interval=0.01) as broker, broker.listen() as server:
        yield server.port


def _answers_to(row: Row, rabbitmq: int, ours: int) -> tuple[str, str]:
    if row not in _answers:
        _answers[row] = row.at(rabbitmq), row.at(ours)
    return _answers[row]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section}: {row.sent}")
def test_the_same_frames_are_answered_alike(row: Row, rabbitmq_peer: Peer, our_port: int) -> None:
    """RabbitMQ's answer is ours, unless the row says why not, and then they differ (B61, B62, B63, P21, P22)."""
    theirs, ours = _answers_to(row, rabbitmq_peer.port, our_port)
    assert (theirs == ours) == (row.because is None), f"RabbitMQ: {theirs}\nhere:     {ours}"


def test_the_page_shows_what_was_answered(rabbitmq_peer: Peer, our_port: int) -> None:
    """docs/reference/amqp-frames.md is the table of these tests, to the letter."""
    page = page_with([_answers_to(row, rabbitmq_peer.port, our_port) for row in ROWS])
    print(page)
    if os.environ.get("MULTIQUEUE_WRITE_PAGES"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page


def test_the_page_holds_without_a_rabbitmq_too(our_port: int) -> None:
    """Every row is on the page, none that went is, and this server answers each as the page says."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    shown = [line for line in lines if line[0] != "sent"]
    assert [line[0] for line in shown] == [row.sent for row in ROWS]
    for row, (_, theirs, ours) in zip(ROWS, shown, strict=True):
        expected = theirs if ours == "the same" else ours.removesuffix(f": {row.because}")
        assert row.at(our_port) == expected, row.sent
