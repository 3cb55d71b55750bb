"""From bytes to frames, and from frames to sessions.

Promise     Bytes that cannot be frames end the connection once what came before them is done.
Runs        Publishes that stand next to each other go to a store together. Any other frame, and the end of the
            frames that are there, hands them in first. docs/decisions/0875-publishes-in-runs.md
State       It belongs to the connection's I/O thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from .._session.effects import PIECE, fail
from .._session.machine import ChannelState
from .._session.session import Session
from .._wire.errors import ConnectionFault, FrameError
from .._wire.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    MIN_FRAME_MAX,
    PROTOCOL_HEADER,
    PROTOCOL_HEADERS,
    Frame,
    FrameSplitter,
    HeartbeatMonitor,
)
from .._wire.hot import ACK, PUBLISH, acks_in_a_row, contents_in_a_row
from .._wire.methods import commands, decode_method, encode_method
from .connection_machine import ConnectionMachine, ConnectionState
from .ports import ConnectionPort
from .read_gate import ReadGate
from .writer import FLUSH_PIECES, FrameWriter

_RUN: Final = 64  # publishes that are done at once: their queue's lock is held for some 100 us
_MOST_OF_A_STRANGER: Final = 8 * 1024  # bytes that may wait for a login: a frame of 4 KiB is all that has to be said
_TURN: Final = 1536  # frames that are dealt with between two looks at the sockets: 512 publishes, some 10 ms
_METHOD: Final = 7  # as many frames more as any other method counts for
_IN_A_MESSAGE: Final = (ChannelState.HEADER, ChannelState.BODY)
_CLOSE_OK_FRAME: Final = encode_method(0, commands.Connection.CloseOk)


@dataclass(eq=False, repr=False)
class FrameReader:
    """The way into a connection."""

    _connection: ConnectionPort
    _machine: ConnectionMachine
    _gate: ReadGate
    _writer: FrameWriter
    _monitor: HeartbeatMonitor
    received_bytes: int = 0
    is_deaf: bool = False  # what comes from now on cannot be read as frames
    splitter: FrameSplitter = field(default_factory=partial(FrameSplitter, MIN_FRAME_MAX))
    _beginning: bytes | None = b""  # of the protocol header; None once it has come
    _tail: bytes = b""

    def __post_init__(self) -> None:
        self._sessions = self._connection.sessions

    @property
    def is_in_the_middle(self) -> bool:
        is_half_here = any(each.machine.state in _IN_A_MESSAGE for each in self._sessions.values())
        return is_half_here or self.splitter.pending_bytes > 0

    def receive(self, data: bytes) -> None:
        self._monitor.heard = True
        self.received_bytes += len(data)
        if self.is_deaf:
            self._listen_for_close_ok(data)
            return
        if self._beginning is not None:
            rest = self._receive_beginning(data)
            if rest is None:
                return
            data = rest
        try:
            frames = self.splitter.feed(data)
        except FrameError as error:
            self.process(error.frames)
            self.is_deaf = True
            self._connection.fault(error)
        else:
            self.process(frames)
        self._writer.flush()

    def _receive_beginning(self, data: bytes) -> bytes | None:
        """The bytes behind the protocol header once it is whole; None while it is not, or when it is wrong."""
        self._beginning = begun = cast(bytes, self._beginning) + data
        if not any(known.startswith(begun[:8]) for known in PROTOCOL_HEADERS):
            self.is_deaf = True
            self._writer.send(PROTOCOL_HEADER)  # the version that is spoken here
            self._connection.close_transport()
            return None
        if len(begun) < 8:
            return None
        self._beginning = None
        self._connection.start(*PROTOCOL_HEADERS[begun[:8]])
        return begun[8:]

    def _listen_for_close_ok(self, data: bytes) -> None:
        """The stream is out of step, but the answer to our close may be in it: then all has been said."""
        self._tail = (self._tail + data)[-2 * len(_CLOSE_OK_FRAME) :] if len(data) < 64 else data
        if _CLOSE_OK_FRAME in self._tail:
            self._connection.close_transport()

    def process(self, frames: list[Frame]) -> None:
        if self._gate.is_shut:
            left = frames
        else:
            try:
                left = self._receive_each(frames)
            finally:
                self._connection.hand_in()
        if left:
            self._gate.keep(left)
            if self._connection.newcomer is not None and self._gate.pending_bytes > _MOST_OF_A_STRANGER:
                self._connection.cut_stranger()

    def _receive_each(self, frames: list[Frame]) -> list[Frame]:
        """Deal with frames until there is a reason to pause, or others are to have a turn; those that are left."""
        gate, connection, writer = self._gate, self._connection, self._writer
        reasons, pieces = gate.reasons, writer.pieces
        at, end, turn = 0, len(frames), _TURN
        while at < end:
            if at >= turn:
                connection.end_turn()
                return frames[at:]
            kind, number, payload = frames[at]
            done = 0
            if kind == FRAME_METHOD:
                if (method := payload[:4]) == PUBLISH:
                    done = self._receive_contents(frames, at)
                else:
                    connection.hand_in()
                    if method == ACK:
                        done = self._receive_acks(frames, at)
                    if not done:
                        turn -= _METHOD
            if not done:
                self._receive(kind, number, payload)
            at += done or 1
            if len(pieces) > FLUSH_PIECES:
                writer.flush()
            if reasons and gate.is_shut:
                return frames[at:]
        return []

    def _receive_acks(self, frames: list[Frame], at: int) -> int:
        """Deal with the acks of single messages that begin at `at`, all at once; how many frames that were. None, when
        there is one alone, or something else about it: that is for `_receive`."""
        session = self._open_session(frames[at][1])
        if session is None:
            return 0
        tags = acks_in_a_row(frames[at : at + PIECE], 0)
        if len(tags) < 2:
            return 0
        try:
            session.acknowledge(tags)
        except Exception as error:  # noqa: BLE001  # as in _receive
            fail(self._connection, session, error, ACK)
        return len(tags)

    def _receive_contents(self, frames: list[Frame], at: int) -> int:
        """Deal with the whole publishes that begin at `at`, all at once; how many frames that were. None: as above.
        While an alarm holds publishers, nothing is done behind a publish: so each comes by itself."""
        session = None if self._connection.server.alarms else self._open_session(frames[at][1])
        if session is None:
            return 0
        contents = contents_in_a_row(frames, at, _RUN)
        if len(contents) < 2:
            return 0
        try:
            return 3 * session.receive_contents(contents)
        except Exception as error:  # noqa: BLE001  # as in _receive
            fail(self._connection, session, error, PUBLISH)
            return 3 * len(contents)

    def _open_session(self, number: int) -> Session | None:
        """The session of a channel on which methods and publishes are done; None where there is none."""
        session = self._sessions.get(number)
        is_running = self._machine.state is ConnectionState.RUNNING
        return session if session is not None and is_running and session.is_open else None

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        session: Session | None = None
        try:
            if number and kind <= FRAME_BODY:
                if self._machine.state is not ConnectionState.RUNNING and not self._machine.check_channel_frame():
                    return
                session = self._sessions.get(number)
                if session is None:
                    session = self._connection.new_session(number)
                    session.receive(kind, payload)
                    if session.is_open:
                        self._sessions[number] = session
                else:
                    session.receive(kind, payload)
            elif kind == FRAME_METHOD:
                if self._machine.expects(payload[:4]):
                    decode_method(payload)  # what does not decode has not come, and moves nothing
                if self._machine.receive(payload[:4]):
                    self._connection.call_connection(payload)
            elif kind in (FRAME_HEADER, FRAME_BODY):
                raise ConnectionFault(505, "a content frame on channel 0")
            else:
                self._machine.check_heartbeat(number, payload)
        except Exception as error:  # noqa: BLE001  # every one ends a channel or a connection
            fail(self._connection, session, error, payload[:4] if kind == FRAME_METHOD else PUBLISH)
