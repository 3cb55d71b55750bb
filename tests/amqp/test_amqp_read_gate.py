"""Reasons not to read from a connection, without one: what waits, what passes, and in which order it is done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from amqp_parts_support import ReadGate
from pamqp import commands

from multiqueue import amqp

Frame = tuple[int, int, bytes]


class Socket:
    """Whether it is read from."""

    is_read_from = True

    def pause_reading(self) -> None:
        self.is_read_from = False

    def resume_reading(self) -> None:
        self.is_read_from = True

    def is_closing(self) -> bool:
        return False


class Way:
    """A gate with a socket before it and a list behind it, as a reader has them."""

    def __init__(self) -> None:
        sessions: Any = {1: SimpleNamespace(consumers={"t": None})}
        self.done: list[Frame] = []
        self.socket: Any = Socket()
        self.gate = ReadGate(sessions, self.come, lambda: None)
        self.gate.transport = self.socket

    def come(self, frames: list[Frame]) -> None:
        if self.gate.is_shut:
            self.gate.keep(frames)
        else:
            self.done += frames


@pytest.fixture
def way() -> Way:
    return Way()


def frame(method: Any, number: int = 1, **fields: Any) -> Frame:
    return amqp.FRAME_METHOD, number, amqp.encode_method(number, method, **fields)[7:-1]


QOS = [frame(commands.Basic.Qos, prefetch_count=count) for count in range(3)]
CLOSE = frame(commands.Channel.Close, reply_code=200)


def test_frames_wait_in_order_until_the_last_reason_is_gone(way: Way) -> None:
    """While one reason stands nothing is read or done; then all that waited is done, in its order."""
    way.gate.pause("one")
    way.gate.pause("other")
    way.come(QOS[:2])
    way.gate.resume("one")
    way.come(QOS[2:])
    assert (way.done, way.socket.is_read_from) == ([], False)
    way.gate.resume("other")
    assert (way.done, way.socket.is_read_from, way.gate.pending_bytes) == (QOS, True, 0)


@pytest.mark.parametrize(
    "end",
    [CLOSE, frame(commands.Basic.Cancel, consumer_tag="t"), frame(commands.Connection.Close, 0, reply_code=200)],
    ids=["channel", "consumer", "connection"],
)
def test_an_end_passes_a_soft_reason(way: Way, end: Frame) -> None:
    """A soft reason lets an end through, with all that stands before it; frames behind it wait."""
    way.gate.pause("alarm", softly=True)
    way.come([QOS[0], end, QOS[1]])
    assert (way.done, way.socket.is_read_from) == ([QOS[0], end], True)
    way.gate.resume("alarm")
    assert way.done == [QOS[0], end, QOS[1]]


def test_no_end_passes_while_other_reasons_stand(way: Way) -> None:
    """Beside a soft reason a hard one holds an end too; without it the end passes."""
    way.gate.pause("alarm", softly=True)
    way.gate.pause("commit")
    way.come([CLOSE])
    assert way.done == []
    way.gate.resume("commit")
    assert way.done == [CLOSE]


def test_a_passage_that_meets_a_reason_leaves_the_rest_first(way: Way) -> None:
    """Where a frame of a passage gives a reason to pause, those behind it go back before all that waits."""

    def come(frames: list[Frame]) -> None:
        if way.gate.is_shut or frames[0] != QOS[0]:
            way.come(frames)
        else:
            way.done.append(frames[0])
            way.gate.pause("commit")
            way.gate.keep(frames[1:])

    way.gate._process = come
    way.gate.pause("alarm", softly=True)
    way.gate.keep([QOS[0], QOS[1], CLOSE, QOS[2]])
    assert way.done == QOS[:1]
    way.gate.resume("commit")
    assert way.done == [*QOS[:2], CLOSE]
    way.gate.resume("alarm")
    assert way.done == [*QOS[:2], CLOSE, QOS[2]]


def test_a_cancel_of_no_consumer_waits(way: Way) -> None:
    """A cancel that ends nothing, or a close of a channel that is not open, passes no reason."""
    way.gate.pause("alarm", softly=True)
    way.come([frame(commands.Basic.Cancel, consumer_tag="nobody"), frame(commands.Channel.Close, 2, reply_code=200)])
    assert way.done == []


def test_reading_ahead_is_bounded(way: Way) -> None:
    """A soft reason lets 64 KiB be read; beyond that the socket is left alone."""
    way.gate.pause("alarm", softly=True)
    way.come([(amqp.FRAME_BODY, 1, bytes(60 * 1024))])
    assert way.socket.is_read_from
    way.come([(amqp.FRAME_BODY, 1, bytes(4 * 1024))])
    assert not way.socket.is_read_from
