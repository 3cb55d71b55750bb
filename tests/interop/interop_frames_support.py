"""The same raw frames at RabbitMQ and here: what docs/reference/amqp-frames.md compares, and how each is run.

A row is a function of a `Frames`, a connection that says exactly what it is told to; what the broker answers is
written as short text: methods by name, closes with code and name, values in hexadecimal. A row is added by a function
under `@row(...)` in `interop_frames_rows_support`; what it says is sent is the first column.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pamqp import commands, frame

from multiqueue.testing import PATIENCE

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "amqp-frames.md"
ANSWERS = Path(__file__).parent / "interop_frames_answers.json"

_numbers = itertools.count(1)


class End(Exception):
    """The broker has closed the channel or the connection instead: how, in its line."""


class Frames:
    """A connection that has no opinion. `said` collects what came, as lines."""

    def __init__(self, port: int, *, opens: bool = True) -> None:
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.tune: commands.Connection.Tune | None = None
        self._bytes = b""
        if opens:
            self.open()

    # -- out

    def send(self, *pieces: bytes) -> None:
        """Bytes as they are."""
        try:
            self.socket.sendall(b"".join(pieces))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the peer has ended it; what it said before is still to be read

    def call(self, method: frame.FrameTypes, channel: int = 1) -> list[str]:
        """Send a method; what came up to its answer, and with it."""
        self.send(method_frame(method, channel))
        return self.until(_answer_of(method))

    # -- in

    def next(self) -> str:
        """The next frame as a line; "end" when there is none."""
        kind, channel, payload = self.next_frame()
        if kind == 0:
            return "end"
        if kind != 1:
            return f"{ {2: 'header', 3: 'body', 8: 'heartbeat'}.get(kind, kind) } {payload.hex()}"
        _, _, method = frame.unmarshal(raw_frame(1, channel, payload))
        name = _name(method)
        if name in ("connection.close", "channel.close"):
            if name == "channel.close":
                self.send(method_frame(commands.Channel.CloseOk(), channel))
            else:
                self.send(method_frame(commands.Connection.CloseOk(), 0))
            return f"{name} {method.reply_code} {method.reply_text.partition(' - ')[0]}"
        if name == "basic.return":
            return f"basic.return {method.reply_code} {method.reply_text}"
        return name

    def next_frame(self) -> tuple[int, int, bytes]:
        """Type, channel and payload; type 0 at the end of the connection."""
        while len(self._bytes) < 7 or len(self._bytes) < 8 + int.from_bytes(self._bytes[3:7]):
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return 0, 0, b""
            self._bytes += data
        end = 8 + int.from_bytes(self._bytes[3:7])
        whole, self._bytes = self._bytes[:end], self._bytes[end:]
        return whole[0], int.from_bytes(whole[1:3]), whole[7:-1]

    def peek(self, size: int) -> bytes:
        """The next bytes, which are still to be read; fewer at the end of the connection."""
        while len(self._bytes) < size:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                break
            if not data:
                break
            self._bytes += data
        return self._bytes[:size]

    def until(self, *ends: str) -> list[str]:
        """Lines up to and with one that begins with one of these, or that ends channel or connection."""
        lines: list[str] = []
        while True:
            line = self.next()
            if not line.startswith(("header", "body")):
                lines.append(line)
            if line == "end" or line.startswith((*ends, "channel.close", "connection.close")):
                return lines

    def rest(self) -> bytes:
        """Every byte up to the end of the connection."""
        data, self._bytes = self._bytes, b""
        try:
            while more := self.socket.recv(65536):
                data += more
        except ConnectionResetError:
            pass
        return data

    def content(self) -> tuple[bytes, bytes]:
        """Properties and body of the content that comes next, whatever carries it."""
        while (got := self.next_frame())[0] != 2:
            assert got[0], "the connection has ended"
        payload = got[2]
        size = int.from_bytes(payload[4:12])
        body = b""
        while len(body) < size:
            body += self.next_frame()[2]
        return payload[12:], body

    # -- what rows are made of

    def open(self) -> None:
        """The handshake, and channel 1."""
        self.handshake()
        self.call(commands.Channel.Open())

    def handshake(self) -> None:
        self.send(PROTOCOL_HEADER)
        assert self.next() == "connection.start"
        properties = {"capabilities": {"authentication_failure_close": True, "consumer_cancel_notify": True}}
        self.send(method_frame(commands.Connection.StartOk(properties, "PLAIN", "\0guest\0guest", "en_US"), 0))
        _, _, payload = self.next_frame()
        _, _, tune = frame.unmarshal(raw_frame(1, 0, payload))
        assert isinstance(tune, commands.Connection.Tune), tune
        self.tune = tune
        self.send(
            method_frame(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), 0),
            method_frame(commands.Connection.Open("/"), 0),
        )
        assert self.next() == "connection.open-ok"

    def another(self) -> Frames:
        """A second connection to the same broker."""
        return Frames(self.port)

    def queue(self, arguments: dict[str, object] | None = None, **flags: bool) -> str:
        """A queue of its own."""
        queue = f"frames-{os.getpid()}-{next(_numbers)}"
        answer = self.call(commands.Queue.Declare(queue=queue, arguments=arguments, **flags))
        assert answer == ["queue.declare-ok"], answer
        return queue

    def publish(
        self, key: str, properties: bytes = b"\0\0", body: bytes = b"m", exchange: str = "", *, mandatory: bool = False
    ) -> None:
        """A content with this block of properties."""
        publish = commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory)
        self.send(method_frame(publish), header_frame(len(body), properties), raw_frame(3, 1, body) if body else b"")

    def get(self, queue: str) -> tuple[bytes, bytes]:
        """Properties and body of the next message, which may have to arrive there first."""
        while True:
            self.send(method_frame(commands.Basic.Get(queue=queue, no_ack=True)))
            line = self.next()
            if line == "basic.get-ok":
                return self.content()
            if line != "basic.get-empty":
                raise End(line)

    def in_step(self) -> list[str]:
        """What was said so far: up to the answer of a basic.qos on channel 1."""
        return self.call(commands.Basic.Qos())

    def close(self) -> None:
        self.socket.close()


def raw_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A frame, right or wrong."""
    return bytes((kind,)) + channel.to_bytes(2) + len(payload).to_bytes(4) + payload + b"\xce"


def method_frame(method: frame.FrameTypes, channel: int = 1) -> bytes:
    return frame.marshal(method, channel)


def header_frame(size: int, properties: bytes, channel: int = 1) -> bytes:
    return raw_frame(2, channel, b"\0\x3c\0\0" + size.to_bytes(8) + properties)


def headers_block(*values: tuple[str, bytes]) -> bytes:
    """A block of properties with these headers alone, their values with type as on the wire."""
    raw = b"".join(bytes((len(name),)) + name.encode() + value for name, value in values)
    return b"\x20\x00" + len(raw).to_bytes(4) + raw


def _name(method: frame.FrameTypes) -> str:
    first, _, second = str(method.name).partition(".")
    words = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in second)
    return f"{first.lower()}.{words.lstrip('-')}"


def _answer_of(method: frame.FrameTypes) -> str:
    return f"{_name(method)}-ok"


# -- rows


@dataclass(frozen=True)
class Row:
    """One line of the table. `because` says why the two may differ; None where they must not."""

    section: str
    sent: str
    run: Callable[[Frames], object]
    opens: bool = True
    because: str | None = None

    @property
    def name(self) -> str:
        """What the file of answers calls it."""
        return f"{self.section}: {self.sent}"

    def at(self, port: int) -> str:
        """What the broker on this port answers."""
        frames = Frames(port, opens=self.opens)
        try:
            answer = self.run(frames)
        except End as end:
            return str(end)
        finally:
            frames.close()
        return answer if isinstance(answer, str) else ", ".join(map(str, answer))  # type: ignore[call-overload]


ROWS: list[Row] = []


def row(section: str, sent: str, *, opens: bool = True, because: str | None = None) -> Callable[..., object]:
    """Add a row; the function gets a `Frames`, open with channel 1 unless told otherwise, and returns its lines."""

    def add(run: Callable[[Frames], object]) -> Callable[[Frames], object]:
        ROWS.append(Row(section, sent, run, opens, because))
        return run

    return add


_BEGINNING = """# The same frames at RabbitMQ and here

`tests/interop/test_interop_frames.py` sends the same raw bytes to RabbitMQ 3.10 (Debian's package) and to this server,
and compares the answers: methods by their names, closes with code and name, header values and blocks of properties byte
by byte. {same} of {all} answers are the same. These differ;
[0841](../decisions/0841-where-programs-see-a-difference.md) has what programs can see.

| sent | RabbitMQ 3.10 | here |
|---|---|---|
"""

_COMPARED = """
`interop_frames_rows_support.py` has what is sent, and `interop_frames_answers.json` both answers to each. Compared are:

| | frames | differ |
|---|---|---|
"""


def recorded() -> dict[str, list[str]]:
    """What RabbitMQ and this server have answered to each row, by its name."""
    answers: dict[str, list[str]] = json.loads(ANSWERS.read_text())
    return answers


def written(answers: dict[str, list[str]]) -> str:
    """The answers as the file of them has them."""
    return json.dumps(answers, ensure_ascii=False, indent=1) + "\n"


def page_with(answers: dict[str, list[str]]) -> str:
    """The page, from what RabbitMQ and this server have answered to each row."""
    differ = [row for row in ROWS if len(set(answers[row.name])) == 2]
    page = _BEGINNING.format(same=len(ROWS) - len(differ), all=len(ROWS))
    for row in differ:
        theirs, ours = answers[row.name]
        page += f"| {row.sent} | {theirs} | {ours}: {row.because} |\n"
    page += _COMPARED
    for section in dict.fromkeys(row.section for row in ROWS):
        sent, unlike = (sum(row.section == section for row in rows) for rows in (ROWS, differ))
        page += f"| {section} | {sent} | {unlike} |\n"
    return page
