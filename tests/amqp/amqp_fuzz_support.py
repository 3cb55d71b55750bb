"""The frame path as a fuzzer sees it: bytes go into a connection, and must end cleanly or be accepted."""

from __future__ import annotations

import logging
from typing import Any

from amqp_desk_support import Desk
from amqp_parts_support import IoThread, encode_ack
from pamqp import commands

from multiqueue import amqp
from multiqueue.broker import Broker

_METHODS: list[Any] = [method for method in commands.INDEX_MAPPING.values() if method.index >> 16 != 10]
_SERVED = 500  # inputs until a broker is full of what they declared


class _Failures(logging.Handler):
    """What the server says of faults of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.records.append(record)


class Target:
    """Takes inputs; raises where the server breaks its promise."""

    def __init__(self) -> None:
        self._failures = _Failures()
        self._log = logging.getLogger("multiqueue.amqp")
        self._log.propagate = False
        self._log.addHandler(self._failures)
        self._io = IoThread("fuzz")
        self._begin()

    def _begin(self) -> None:
        self._broker = Broker()
        self._server = amqp.serve(self._broker)
        self._left = _SERVED

    def _end(self) -> None:
        self._broker.virtual_host().check_invariants()
        self._server.close()
        self._broker.close()

    def close(self) -> None:
        """Let go of the broker and the log."""
        self._end()
        self._io.loop.close()
        self._log.removeHandler(self._failures)
        self._log.propagate = True

    def declared(self) -> list[str]:
        """The queues that inputs have declared."""
        return sorted(self._broker.virtual_host().statistics().queues)

    def take(self, data: bytes) -> None:
        """One input. Its first byte says what the rest is: anything, frames, or the payloads of methods."""
        if not self._left:
            self._end()
            self._begin()
        self._left -= 1
        kind, rest = data[:1], data[1:]
        desk = Desk(self._server, self._io)
        try:
            if kind > b"\x40":
                desk.open()
            for piece in _frames(rest) if kind > b"\x80" else [rest[: len(rest) // 2], rest[len(rest) // 2 :]]:
                if desk.transport.is_read_from and not desk.transport.is_closing():
                    desk.say(piece)
                desk.wait_for_others()
            _decode_alone(rest)
        finally:
            desk.close()
        if self._failures.records:
            raise AssertionError("the server failed") from self._failures.records.pop().exc_info[1]  # type: ignore[index]
        assert not self._server.connections()


def _frames(data: bytes) -> list[bytes]:
    """Frames made of an input: a byte for what it is, one for its length, then so much of a payload."""
    frames = []
    at = 0
    while at + 1 < len(data):
        what, size = data[at], data[at + 1]
        payload = data[at + 2 : at + 2 + size]
        at += 2 + size
        if what == 255:
            frames.append(amqp.encode_publish(1, "", "q", amqp.NO_PROPERTIES, payload, 4096))
        elif what >= 250:
            frames.append(_frame(2 + what % 2, 1, payload))
        else:
            method = _METHODS[what % len(_METHODS)]
            frames.append(_frame(1, 1 + what // 200, method.index.to_bytes(4) + payload))
    return frames


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return bytes((kind,)) + channel.to_bytes(2) + len(payload).to_bytes(4) + payload + b"\xce"


def _decode_alone(data: bytes) -> None:
    """The client's side decodes too: an `AmqpError`, or a result."""
    try:
        for kind, _, payload in amqp.FrameSplitter(4096).feed(data):
            if kind == 1:
                amqp.decode_method(payload)
            elif kind == 2:
                amqp.decode_properties(amqp.decode_header(payload).properties)
    except amqp.AmqpError:
        pass


def seeds() -> dict[str, bytes]:
    """Inputs to begin with, by name."""
    declare = amqp.encode_method(1, commands.Queue.Declare, queue="q", arguments={"a": [1, {"b": "c"}]})
    block = amqp.encode_properties({"headers": {"a": 1, "CC": ["q"]}, "expiration": "1"})
    publish = amqp.encode_publish(1, "", "q", block, b"x" * 9, 4096)
    consume = amqp.encode_method(1, commands.Basic.Consume, queue="q", consumer_tag="t")
    calls = b"".join(
        bytes((_METHODS.index(method), len(payload))) + payload
        for method, payload in (
            (commands.Queue.Declare, declare[11:-1]),
            (commands.Basic.Consume, consume[11:-1]),
            (commands.Tx.Select, b""),
            (commands.Tx.Commit, b""),
        )
    )
    return {
        "header": b"\0" + amqp.PROTOCOL_HEADER,
        "frames": b"\x50" + declare + publish + consume + encode_ack(1, 1, True),
        "methods": b"\x90" + calls + b"\xff\x03abc",
    }
