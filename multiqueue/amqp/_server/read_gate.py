"""Why a connection is not read from, and what waits meanwhile.

Promise     While a reason stands, frames that came before it wait in order, and none is lost when it ends.
State       All of it belongs to the connection's I/O thread. The part that pauses reading for a reason also resumes it.
Softly      Reasons that are about publishing (a queue without room, an alarm), and those before the login, let us read
            on until 64 KiB wait: so a peer that leaves is noticed, and a close or cancel among them is done, with what
            stands before it. The frames behind it wait on.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from .._session.machine import CANCEL, CHANNEL_CLOSE
from .._session.session import Session
from .._wire.frames import FRAME_METHOD, FRAME_OVERHEAD, Frame
from .handshake import CLOSE

_READ_AHEAD: Final = 64 * 1024  # bytes; what a connection that is paused softly may have waiting here


class ReadGate:
    """Between a connection's socket and its sessions; `process` does frames in order, and keeps those it cannot do."""

    def __init__(
        self, sessions: Mapping[int, Session], process: Callable[[list[Frame]], None], flush: Callable[[], None]
    ) -> None:
        self._sessions = sessions
        self._process = process
        self._flush = flush
        self.transport: asyncio.Transport | None = None  # while there is one to read from
        self.reasons: dict[object, bool] = {}  # to do nothing further; True: but to read on for a while
        self.pending_bytes: int = 0  # of frames that wait, about
        self._pending: deque[Frame] = deque()
        self._is_reading = True
        self._is_passing = False  # the soft reasons do not hold the frames that are dealt with now

    def lose(self) -> None:
        self.transport = None
        self._drop()

    def open(self) -> None:
        """Drop every reason, and what waits: the peer's answer to a close is all that is read now."""
        self.reasons.clear()
        self._drop()
        self._read_or_not()

    def _drop(self) -> None:
        self._pending.clear()
        self.pending_bytes = 0

    @property
    def is_shut(self) -> bool:
        return bool(self.reasons) and not (self._is_passing and self._is_soft)

    @property
    def _is_soft(self) -> bool:
        return all(self.reasons.values())

    def pause(self, reason: object, *, softly: bool = False) -> None:
        """Do nothing further while this reason stands. Read nothing either, unless it is a soft one."""
        self.reasons[reason] = softly
        self._read_or_not()

    def resume(self, reason: object) -> None:
        if reason not in self.reasons:
            return
        del self.reasons[reason]
        if self.transport is None:
            return
        if self.reasons:
            self._let_close(0)
        else:
            frames = list(self._pending)
            self._drop()
            self._process(frames)
        self._read_or_not()
        self._flush()

    def has_unread(self) -> bool:
        """Whether bytes, or the end, stand in the socket."""
        number = -1 if self.transport is None else self.transport.get_extra_info("socket").fileno()
        if number < 0:
            return False
        with socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as peeking:
            try:
                peeking.setblocking(False)
                peeking.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return False
            except OSError:
                pass  # the loop will meet it too
        return True

    def _read_or_not(self) -> None:
        """Read while there is no reason not to; with soft ones alone, until there is enough that waits."""
        transport = self.transport
        reads = not self.reasons or (self._is_soft and self.pending_bytes < _READ_AHEAD)
        if transport is not None and reads is not self._is_reading and not transport.is_closing():
            self._is_reading = reads
            (transport.resume_reading if reads else transport.pause_reading)()

    def keep(self, frames: list[Frame]) -> None:
        """Frames wait: those that have come behind a reason, or those that a passage left, which go first again."""
        if self._is_passing:
            self._pending.extendleft(reversed(frames))
            return
        before = len(self._pending)
        self._pending.extend(frames)
        self.pending_bytes += _size(frames)
        self._let_close(before)
        self._read_or_not()

    def _let_close(self, start: int) -> None:
        """Do what waits up to the last end in it, where nothing but publishing is held. No end is before `start`. The
        publishes before it are done too, though there is no room: they are few, and a client that closes a channel or a
        connection has a right to know that they are done."""
        if not self._is_soft:
            return
        ends = [at for at in range(start, len(self._pending)) if self._ends_something(self._pending[at])]
        if ends:
            frames = [self._pending.popleft() for _ in range(ends[-1] + 1)]
            self._is_passing = True
            try:
                self._process(frames)
            finally:
                self._is_passing = False
            self.pending_bytes = _size(self._pending)

    def _ends_something(self, frame: Frame) -> bool:
        """Whether the client closes the connection or an open channel, or cancels a consumer that is there. A client
        cannot begin anew what it has ended while the connection is held, so no publish gets past an alarm."""
        kind, number, payload = frame
        if kind != FRAME_METHOD:
            return False
        if not number:
            return payload[:4] == CLOSE
        session = self._sessions.get(number)
        if session is None:
            return False
        if payload[:4] == CANCEL:
            tag = payload[5 : 5 + payload[4]] if len(payload) > 4 else b""
            return any(each.encode() == tag for each in session.consumers)
        return payload[:4] == CHANNEL_CLOSE


def _size(frames: list[Frame] | deque[Frame]) -> int:
    return sum(len(payload) + FRAME_OVERHEAD for _, _, payload in frames)
