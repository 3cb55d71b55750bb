"""From bytes to frames, and from frames to channels.

Promise     Whatever a peer sends ends at most its own connection. Bytes that cannot be frames end it once what came
            before them is done.
Runs        Publishes that stand next to each other go to a store together. Whatever else comes, and whatever ends the
            frames that are there, hands them in first: nothing of this connection overtakes them, and they wait for
            nobody. docs/decisions/0875-publishes-in-runs.md
"""

from __future__ import annotations

import logging
from typing import Final, cast

from ...broker import BrokerError
from ...errors import MultiQueueError
from .._session.channel import ServerChannel
from .._session.machine import ChannelState
from .._wire.errors import AmqpError, ChannelFault, ConnectionFault, FrameError
from .._wire.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    PROTOCOL_HEADER,
    PROTOCOL_HEADERS,
    Frame,
)
from .._wire.hot import ACK, PUBLISH, acks_in_a_row
from .._wire.methods import commands, decode_method, encode_method
from .catching_up import has_unread
from .connection_holding import ConnectionHolding
from .connection_machine import ConnectionState

_log = logging.getLogger("multiqueue.amqp")
_MOST_OF_A_STRANGER: Final = 8 * 1024  # bytes that may wait for a login: a frame of 4 KiB is all that has to be said
_FLUSH_PIECES: Final = 64  # frames of replies before they are written, so that a slow reader is noticed
_IN_A_MESSAGE: Final = (ChannelState.HEADER, ChannelState.BODY)
_CLOSE_OK_FRAME: Final = encode_method(0, commands.Connection.CloseOk)


class ConnectionReading(ConnectionHolding):
    """The part of a connection that bytes come into."""

    def _start(self, major: int, minor: int) -> None:
        """The protocol header has come, and is answered with this version."""
        raise NotImplementedError

    def _new_channel(self, number: int) -> ServerChannel:
        """A channel of a number that has none."""
        raise NotImplementedError

    def _call(self, payload: bytes) -> None:
        """A method of channel 0 may come now, and has."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._monitor.heard = True
        self._received_bytes += len(data)
        if self._is_deaf:
            self._listen_for_close_ok(data)
            return
        if self._beginning is not None:
            rest = self._receive_beginning(data)
            if rest is None:
                return
            data = rest
        try:
            frames = self._splitter.feed(data)
        except FrameError as error:
            self._process(error.frames)
            self._is_deaf = True
            self.fault(error)
        else:
            self._process(frames)
        self.flush()

    @property
    def is_behind(self) -> bool:
        """Whether something that the peer has sent is still to be done. On its I/O thread."""
        if self._is_aside or self._piecework.is_under_way:
            return True
        if self._is_lost or self._is_deaf or self._transport.is_closing():
            return False
        if self._holds:
            return bool(self._set_aside)
        is_half_here = any(each.machine.state in _IN_A_MESSAGE for each in self.channels.values())
        return is_half_here or self._splitter.pending_bytes > 0 or has_unread(self._transport)

    def _receive_beginning(self, data: bytes) -> bytes | None:
        """What follows the protocol header once it is whole; None while it is not, or when it is wrong."""
        self._beginning = begun = cast(bytes, self._beginning) + data
        if not any(known.startswith(begun[:8]) for known in PROTOCOL_HEADERS):
            self._is_deaf = True
            self._transport.write(PROTOCOL_HEADER)  # the version that is spoken here
            self._close_transport()
            return None
        if len(begun) < 8:
            return None
        self._beginning = None
        self._start(*PROTOCOL_HEADERS[begun[:8]])
        return begun[8:]

    def _listen_for_close_ok(self, data: bytes) -> None:
        """The stream is out of step, but the answer to our close may be in it: then all has been said."""
        self._tail = (self._tail + data)[-2 * len(_CLOSE_OK_FRAME) :] if len(data) < 64 else data
        if _CLOSE_OK_FRAME in self._tail:
            self._close_transport()

    def _process(self, frames: list[Frame]) -> None:
        if self._holds and not self._is_passing:
            self._keep(frames)
            return
        try:
            left = self._receive_each(frames)
        finally:
            self._hand_in()
        if not left:
            return
        if self._is_passing:
            self._pending.extendleft(reversed(left))
        else:
            self._keep(left)

    def _keep(self, frames: list[Frame]) -> None:
        """Frames wait behind a reason to hold."""
        before = len(self._pending)
        self._pending.extend(frames)
        self._pending_bytes += sum(len(payload) + FRAME_OVERHEAD for _, _, payload in frames)
        if self._newcomer is not None and self._pending_bytes > _MOST_OF_A_STRANGER:
            self.server.strangers.warning("%s: cut, it says too much before its login", self.name)
            self._transport.abort()
        self._let_close(before)
        self._read_or_not()

    def _receive_each(self, frames: list[Frame]) -> list[Frame]:
        """Deal with frames until there is a reason to hold; those that are left."""
        at, end = 0, len(frames)
        while at < end:
            kind, number, payload = frames[at]
            acks = 0
            if kind == FRAME_METHOD and (method := payload[:4]) != PUBLISH:
                self._hand_in()
                if method == ACK:
                    acks = self._receive_acks(frames, at)
            if not acks:
                self._receive(kind, number, payload)
            at += acks or 1
            if len(self._out) > _FLUSH_PIECES:
                self.flush()
            if self._holds and not (self._is_passing and self._is_held_softly):
                return frames[at:]
        return []

    def _hand_in(self) -> None:
        """End a run of publishes: the store has it before whatever follows, and in any case before we wait."""
        if not self._has_published:
            return
        self._has_published = False
        try:
            self.publisher.hand_in()
        except Exception as error:  # noqa: BLE001  # as in _receive
            self._fail(None, error, PUBLISH)

    def _receive_acks(self, frames: list[Frame], at: int) -> int:
        """Deal with the acks of single messages that begin at `at`, all at once; how many frames that were.

        None, when there is one alone, or something else about it: that is for `_receive`.
        """
        number = frames[at][1]
        channel = self.channels.get(number)
        if channel is None or self.machine.state is not ConnectionState.RUNNING:
            return 0
        if channel.machine.state is not ChannelState.OPEN:
            return 0
        tags = acks_in_a_row(frames, at)
        if len(tags) < 2:
            return 0
        try:
            channel.acknowledge(tags)
        except Exception as error:  # noqa: BLE001  # as in _receive
            self._fail(channel, error, ACK)
        return len(tags)

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        channel: ServerChannel | None = None
        try:
            if number and kind <= FRAME_BODY:
                if self.machine.state is not ConnectionState.RUNNING and not self.machine.check_channel_frame():
                    return
                channel = self.channels.get(number)
                if channel is None:
                    channel = self._new_channel(number)
                    channel.receive(kind, payload)
                    if channel.machine.state is ChannelState.OPEN:
                        self.channels[number] = channel
                else:
                    channel.receive(kind, payload)
            elif kind == FRAME_METHOD:
                if self.machine.expects(payload[:4]):
                    decode_method(payload)  # what does not decode has not come, and moves nothing
                if self.machine.receive(payload[:4]):
                    self._call(payload)
            elif kind in (FRAME_HEADER, FRAME_BODY):
                raise ConnectionFault(505, "a content frame on channel 0")
            else:
                self.machine.check_heartbeat(number, payload)
        except Exception as error:  # noqa: BLE001  # every one ends a channel or a connection
            self._fail(channel, error, payload[:4] if kind == FRAME_METHOD else PUBLISH)

    def _fail(self, channel: ServerChannel | None, error: BaseException, method: bytes) -> None:
        """Close what an error costs: the channel, or the connection."""
        if isinstance(error, BrokerError):
            if error.closes == "channel" and channel is not None:
                channel.fault(error.reply_code, error.reply_text, method)
            else:
                self.fault(error, method)
        elif isinstance(error, ChannelFault) and channel is not None:
            channel.fault(error.reply_code, error.reply_text, method)
        elif isinstance(error, AmqpError):
            self.fault(error, method)
        elif isinstance(error, MultiQueueError) and channel is not None:
            # The store has no room, or cannot be read: other channels may have nothing to do with it.
            _log.error("%s: channel %d: %s", self.name, channel.number, error)
            fault = ChannelFault(541, str(error))
            channel.fault(fault.reply_code, fault.reply_text, method)
        else:
            self.failed(error)

    def forget_channel(self, channel: ServerChannel) -> None:
        """A channel is closed on both sides."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
