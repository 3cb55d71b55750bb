"""A link to a broker in this process: no sockets and no frames, one thread in the place of reader and server.

State       `_sessions` belongs to the link's thread, which does everything. `_lock` guards `_error`.
Waiting     The thread waits on the outbox, to which the client appends its requests and the broker's threads their
            reports; and for the receive buffer when that is full (`direct_sessions`). `end` closes the one and nudges
            the other. Publishers wait for room in the outbox, and for that of queues that asked for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ...amqp.wire import Ack, Nack, Reject, encode_method, encode_publish_method
from .._base.errors import ConnectionClosed
from .._base.settings import Settings
from .._dispatch.outbox import Outbox
from .direct_sessions import DirectSessions
from .link import Listener


class DirectLink:
    """A connection to a virtual host of this process, which is a `multiqueue.broker.VirtualHost`."""

    def __init__(self, host: Any, settings: Settings, listener: Listener) -> None:
        self.channel_max = settings.channel_max or 65535
        self.server_properties: dict[str, Any] = {"product": "multiqueue", "in_process": True}
        self._listener = listener
        self._outbox: Outbox[Callable[[], object]] = Outbox(settings.outbox_bytes)
        self._lock = threading.Lock()
        self._error: Exception | None = None
        tell = partial(listener.arrived, self)
        self._sessions = DirectSessions(host, settings.name, self._post, tell, listener.receive_buffer, self._is_over)
        self._thread = threading.Thread(target=self._run, name=f"{settings.name}-direct", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, number: int, method: type[Any], /, **fields: Any) -> bool:
        payload = encode_method(number, method, **fields)[7:-1]  # raises for what could not go over a wire
        return self._outbox.append(partial(self._sessions.call, number, payload), 0)

    def prepare(
        self, number: int, exchange: str, routing_key: str, mandatory: bool, properties: bytes, body: bytes
    ) -> Any:
        content = encode_publish_method(exchange, routing_key, mandatory=mandatory), properties, bytes(body)
        return partial(self._sessions.publish, number, content), len(body)

    def publish(self, prepared: Any) -> bool:
        return self._outbox.append(*prepared)

    def settle(self, number: int, verb: str, delivery_tag: int, multiple: bool, requeue: bool) -> None:
        settled: Ack | Nack | Reject
        if verb == "ack":
            settled = Ack(delivery_tag, multiple)
        elif verb == "nack":
            settled = Nack(delivery_tag, multiple, requeue)
        else:
            settled = Reject(delivery_tag, requeue)
        self._outbox.append(partial(self._sessions.settle, number, settled), 0)

    @property
    def is_full(self) -> bool:
        return self._outbox.is_full or bool(self._sessions.throttled)

    def wait_for_room(self, timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._outbox.wait_for_room(timeout):
            return False
        throttled = self._sessions.throttled
        for queue in throttled:
            if not queue.wait_for_room(None if deadline is None else max(0.0, deadline - time.monotonic())):
                return False
        self._sessions.has_room(throttled)
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

    def _post(self, step: Callable[..., object], *arguments: Any) -> None:
        self._outbox.append(partial(step, *arguments) if arguments else step, 0)

    def _is_over(self) -> bool:
        return self._error is not None

    def _run(self) -> None:
        sessions = self._sessions
        try:
            while steps := self._outbox.take():
                for step in steps:
                    step()
                sessions.flush()
        except Exception as defect:  # noqa: BLE001  # must be seen, and must not leave a deaf connection
            error = ConnectionClosed(f"the direct link failed: {defect!r}", reply_code=541)
            error.__cause__ = defect
            self.end(error)
        sessions.close()
        assert self._error is not None
        self._listener.lost(self, self._error)
