"""Calls of a channel: methods that the server answers, and the threads that wait for the answers.

State       The channel's lock guards `_call`. `_turn` is held by the thread whose call is under way. The result and the
            error of a call are written before its gate is released, and read after the caller has passed the gate.
Waiting     The caller waits for its turn, then at the gate. The thread that took the call out of `_call` opens it.
Who runs    `answered` on the reader thread; the rest on any thread.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pamqp import commands

from ...amqp.wire import GetOk
from .._base.errors import CallTimeout
from .._dispatch.receive_buffer import ReceiveBuffer
from .._link.link import Event, Link
from .lifecycle import Lifecycle

_log = logging.getLogger("multiqueue.client")


@dataclass(eq=False, repr=False, slots=True)
class Call:
    """One call of `method`, from the moment when it is sent."""

    method: Any
    answered_locked: Callable[[Event], Any] | None
    result: Any = None
    error: Exception | None = None
    _gate: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._gate.acquire()

    def end(self, error: Exception | None = None) -> None:
        self.error = error
        self._gate.release()

    def wait(self, timeout: float) -> bool:
        return self._gate.acquire(timeout=max(timeout, 0.0))


@cache
def _answers_to(method: Any) -> tuple[type[Any], ...]:
    """The methods that can answer one: those of pamqp, but for the hot one."""
    names = [name.split(".") for name in method.valid_responses]
    return tuple(GetOk if name == "GetOk" else getattr(getattr(commands, group), name) for group, name in names)


@dataclass(eq=False, repr=False)
class Rpc:
    """Calls the server and waits for its answers. `abort(reply_code, reply_text)` closes the channel."""

    _life: Lifecycle
    _receive_buffer: ReceiveBuffer
    _default_timeout: float
    _abort: Callable[[int, str], object]
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _call: Call | None = None

    def do(
        self,
        method: type[Any],
        fields: Mapping[str, Any],
        *,
        link: Link | None = None,
        timeout: float | None = None,
        sent_locked: Callable[[], object] | None = None,
        answered_locked: Callable[[Event], Any] | None = None,
    ) -> Any:
        """Call a method on a `link` that is being made, or on the open channel's; returns the method that answers.

        `sent_locked()` is called when it was sent; `answered_locked(event)` when it is answered, for another result.

        Raises:
            CallTimeout: no answer in `timeout` seconds; the channel is closed.
            ChannelClosed, ConnectionClosed: it is, or was closed before the answer; with the server's code and text.
        """
        life = self._life
        limit = self._default_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        if not self._turn.acquire(timeout=limit):
            raise CallTimeout(
                f"{life.label}: another thread's call has been under way for {limit:g} s; nothing was sent"
            )
        try:
            call = Call(method, answered_locked)
            with life.lock:
                to = life.link_locked() if link is None else life.new_link_locked(link)
                if not to.send(life.number, method, **fields):
                    if link is not None:
                        life.link = None  # nothing can be sent on it; it does not become ours
                    raise life.lost()  # the link had ended before: it tells us nothing any more
                self._call = call  # the answer cannot overtake us: the reader needs the lock, and so does a loss
                if sent_locked is not None:
                    sent_locked()
            self._wait_for(call, deadline, f"{method.name} was not answered within {limit:g} s")
        finally:
            self._turn.release()
        return call.result

    def _wait_for(self, call: Call, deadline: float, complaint: str) -> None:
        try:
            with self._receive_buffer.answer_wanted():
                in_time = call.wait(deadline - time.monotonic())
        except BaseException:  # an interrupted call is as dangerous as one that timed out
            self._give_up(call, "a call was interrupted")
            raise
        if not in_time and self._give_up(call, complaint):
            raise CallTimeout(f"{self._life.label}: {complaint}; the channel was closed")
        if call.error is not None:
            raise copy.copy(call.error)

    def _give_up(self, call: Call, complaint: str) -> bool:
        """Close the channel (docs/decisions/0825); False when the answer came at the last moment."""
        with self._life.lock:
            if self._call is not call:
                return False
            self._call = None
        self._abort(541, complaint)
        return True

    def answered(self, event: Event) -> None:
        """A method that answers a call, if one is under way that expects it."""
        with self._life.lock:
            call = self._call
            if call is None or not isinstance(event.method, _answers_to(call.method)):
                call = None
            else:
                self._call = None
                call.result = event.method if call.answered_locked is None else call.answered_locked(event)
        if call is None:
            label, method = self._life.label, type(event.method).__name__
            _log.warning("%s: %s answers no call; ignored", label, method, extra={"connection": label})
        else:
            call.end()

    def take_locked(self) -> Call | None:
        """The call that is under way; the caller ends it after the lock."""
        call, self._call = self._call, None
        return call

    @property
    def is_busy(self) -> bool:
        return self._call is not None
