"""A link to a broker in this process: no sockets and no frames, one thread in the place of reader and server.

Promise     What a wire promises: what one channel sends is done in order, answers come in order, a refusal closes the
            channel or the connection, and the end of the link gives back what is unsettled.
State       `_channels` belongs to the link's thread, which does everything. `_lock` guards `_error`.
Waiting     The thread waits on the outbox, where the client appends what it asks for and the broker's threads what they
            deliver; and for the receive buffer when the client's buffer is full: its consumers are suspended meanwhile.
            `end` closes the one and nudges the other. Publishers wait for room in the outbox, and for that of queues
            that asked for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from pamqp import commands

from ...amqp import encode_method, end_each
from ...errors import MultiQueueError
from .._base.errors import ConnectionClosed
from .._base.settings import Settings
from .._dispatch.outbox import Outbox
from .direct_channel import DirectChannel, Served, Step
from .direct_declaring import answer
from .direct_host import HeldMessage, Host
from .link import Event, Listener

_log = logging.getLogger("multiqueue.client")


class DirectLink:
    """A connection to a broker or virtual host of this process."""

    def __init__(self, host: Host, settings: Settings, listener: Listener) -> None:
        self.host = host
        self.frame_max = 0
        self.channel_max = settings.channel_max or 65535
        self.heartbeat = 0.0
        self.server_properties: dict[str, Any] = {"product": "multiqueue", "in_process": True}
        self._listener = listener
        self._outbox: Outbox[Step] = Outbox(settings.outbox_bytes)
        self._channels: dict[int, DirectChannel] = {}
        self._throttled: Any = None  # the last publish that queues asked to wait after
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"{settings.name}-direct", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # ---- for the client, on any thread ----------------------------------------------------------------------------

    def send(self, number: int, method: type[Any], /, **fields: Any) -> bool:
        encode_method(number, method, **fields)  # raises for what could not go over a wire
        return self._outbox.append(partial(self._handle, number, method, fields), 0)

    def prepare(
        self, number: int, exchange: str, routing_key: str, mandatory: bool, properties: bytes, body: bytes
    ) -> Any:
        for name in (exchange, routing_key):
            if len(name.encode()) > 255:
                raise ValueError(f"{name[:20]!r}... has {len(name.encode())} bytes; a name has 255 at most")
        return partial(self._publish, number, exchange, routing_key, mandatory, properties, bytes(body)), len(body)

    def publish(self, prepared: Any) -> bool:
        return self._outbox.append(*prepared)

    def settle(self, number: int, verb: str, delivery_tag: int, multiple: bool, requeue: bool) -> None:
        self._outbox.append(partial(self._settle, number, verb, delivery_tag, multiple, requeue), 0)

    @property
    def is_full(self) -> bool:
        return self._outbox.is_full or self._throttled is not None

    def wait_for_room(self, timeout: float | None) -> bool:
        if not self._outbox.wait_for_room(timeout):
            return False
        throttled = self._throttled
        if throttled is not None:
            if not self.host.wait_for_room(throttled, timeout):
                return False
            self._throttled = None
        return True

    def end(self, error: Exception, *, linger: float = 0.0) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        self._outbox.close()
        self._listener.receive_buffer.nudge()

    def join(self, timeout: float | None) -> None:
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    # ---- for the broker's side, on any thread ---------------------------------------------------------------------

    def arrived_from(self, channel: DirectChannel, served: Served, received: HeldMessage) -> None:
        """The broker delivers a message."""
        self._outbox.append(partial(self._deliver, channel, served, received), 0)

    def later(self, step: Callable[..., object], *arguments: Any) -> None:
        """Have something done on the link's thread."""
        self._outbox.append(partial(step, *arguments), 0)

    def throttle(self, published: Any) -> None:
        """Queues asked the publisher to wait; nothing, when none did."""
        if published.throttled:
            self._throttled = published

    def emit(self, event: Event) -> None:
        """Tell the client. On the link's thread."""
        self._listener.arrived(self, [event])

    # ---- the link's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: Exception | None = None
        try:
            while steps := self._outbox.take():
                for step in steps:
                    step()
        except Exception as defect:  # noqa: BLE001  # must be seen, and must not leave a deaf connection
            error = ConnectionClosed(f"the direct link failed: {defect!r}", reply_code=541)
            error.__cause__ = defect
            self.end(error)
        self._close_everything()
        assert self._error is not None
        self._listener.lost(self, self._error)

    def _close_everything(self) -> None:
        channels = list(self._channels.values())
        self._channels.clear()
        steps: list[tuple[str, Step]] = [(f"end {channel!r}", channel.close) for channel in channels]
        end_each(self, [*steps, ("delete its exclusive queues", lambda: self.host.release_owner(self))], _log)

    def _handle(self, number: int, method: type[Any], fields: dict[str, Any]) -> None:
        if number == 0:
            if method is commands.Connection.Close:
                self._close_everything()
                self.emit(Event(0, answer(commands.Connection.CloseOk)))
        elif method is commands.Channel.Open:
            self._channels[number] = DirectChannel(self, number)
            self.emit(Event(number, answer(commands.Channel.OpenOk)))
        elif method is commands.Channel.Close and number in self._channels:
            self._attempt(number, lambda channel: self._closed(number), is_call=True)
        elif method is commands.Channel.Close:  # it has crossed with ours
            self.emit(Event(number, answer(commands.Channel.CloseOk)))
        elif method is not commands.Channel.CloseOk:
            self._attempt(number, lambda channel: channel.handle(method, fields), is_call=True)

    def _closed(self, number: int) -> Any:
        self._close_channel(number)
        return answer(commands.Channel.CloseOk)

    def _publish(
        self, number: int, exchange: str, routing_key: str, mandatory: bool, properties: bytes, body: bytes
    ) -> None:
        self._attempt(number, lambda channel: channel.publish(exchange, routing_key, mandatory, properties, body))

    def _settle(self, number: int, verb: str, tag: int, multiple: bool, requeue: bool) -> None:
        self._attempt(number, lambda channel: channel.settle(verb, tag, multiple, requeue))

    def _deliver(self, channel: DirectChannel, served: Served, received: HeldMessage) -> None:
        receive_buffer = self._listener.receive_buffer
        if receive_buffer.is_stopped:
            for each in self._channels.values():
                each.suspend(True)
            receive_buffer.wait_until_free(self._is_over)
            for each in self._channels.values():
                each.suspend(False)
        channel.deliver(served, received)

    def _is_over(self) -> bool:
        return self._error is not None

    def _attempt(self, number: int, step: Callable[[DirectChannel], Any], *, is_call: bool = False) -> None:
        """Do what was asked on a channel, now or when it is its turn. A closed channel hears nothing more."""
        channel = self._channels.get(number)
        if channel is None or channel.sets_aside(
            partial(self._attempt, number, step, is_call=is_call), is_call=is_call
        ):
            return
        try:
            reply = step(channel)
        except Exception as error:  # noqa: BLE001  # the client is told
            self._refuse(number, error)
        else:
            if reply is not None:
                self.emit(Event(number, reply))

    def _refuse(self, number: int, error: Exception) -> None:
        is_ours = isinstance(error, MultiQueueError)  # a store that has no room, or cannot be read, is no defect
        code = getattr(error, "reply_code", 541)
        text = getattr(error, "reply_text", f"INTERNAL_ERROR - {error if is_ours else repr(error)}")
        fields = {"reply_code": code, "reply_text": text, "class_id": 0, "method_id": 0}
        if getattr(error, "closes", "channel" if is_ours else "connection") == "channel":
            self._close_channel(number)
            self.emit(Event(number, answer(commands.Channel.Close, **fields)))
        else:
            self._close_everything()
            self.emit(Event(0, answer(commands.Connection.Close, **fields)))

    def _close_channel(self, number: int) -> None:
        channel = self._channels.pop(number, None)
        if channel is not None:
            channel.close()
