"""Calls of a channel: methods that the server answers, and the threads that wait for the answers.

Promise     1. One call at a time; acknowledgements and publishes do not wait for it.
            2. A call ends with an answer, or with an error as soon as channel or connection ends, or with its timeout.
            3. A call that was given up closes the channel: answers carry no number, a late one would be taken for the
               next call's.
State       The channel's lock guards `_call`. `_turn` is held by the thread whose call is under way. The result and the
            error of a call are written before its gate is released, by one thread, and read after the caller has
            passed the gate.
Lock order  `_turn` -> the channel's lock. A gate is no lock but a place to wait: nothing is taken while it is held.
Waiting     The caller waits for its turn, then at the gate, which is shut when the call is made. The thread that took
            the call out of `_call` opens it, with the answer or with an error.
Who runs    `answered` on the reader thread; the rest on any thread.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from .._base.errors import CallTimeout
from .._dispatch.receive_buffer import ReceiveBuffer
from .._link.link import Event, Link
from .lifecycle import Lifecycle

_log = logging.getLogger("multiqueue.client")


class Call:
    """One call of `method`. `expected` are the methods that can answer it.

    `sent_locked()` is called when it was sent, `answered_locked(event)` when its answer is there, for the result; both
    under the channel's lock. Without the second the result is the method that answered.
    """

    __slots__ = ("_gate", "answered_locked", "error", "expected", "method", "result", "sent_locked")

    def __init__(
        self,
        method: type[Any],
        *expected: type[Any],
        sent_locked: Callable[[], object] | None = None,
        answered_locked: Callable[[Event], Any] | None = None,
    ) -> None:
        self.method = method
        self.expected = expected
        self.sent_locked = sent_locked
        self.answered_locked = answered_locked
        self.result: Any = None
        self.error: Exception | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def end(self, error: Exception | None = None) -> None:
        """The result is there; or `error` says why there will be none."""
        self.error = error
        self._gate.release()

    def wait(self, timeout: float) -> bool:
        """Block until there is a result or an error; False when the time is up."""
        return self._gate.acquire(timeout=max(timeout, 0.0))


class Rpc:
    """Calls the server and waits for its answers. `abort(reply_code, reply_text)` closes the channel."""

    def __init__(
        self,
        life: Lifecycle,
        receive_buffer: ReceiveBuffer,
        default_timeout: float,
        abort: Callable[[int, str], object],
    ) -> None:
        self._life = life
        self._receive_buffer = receive_buffer
        self._default_timeout = default_timeout
        self._abort = abort
        self._turn = threading.Lock()
        self._call: Call | None = None

    def do(
        self, call: Call, fields: Mapping[str, Any], *, link: Link | None = None, timeout: float | None = None
    ) -> Any:
        """Send the call and block until it is answered; returns its result.

        It goes out on a `link` that is being made or, without, on that of the open channel.

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
            with life.lock:
                to = life.link_locked() if link is None else life.new_link_locked(link)
                if not to.send(life.number, call.method, **fields):
                    if link is not None:
                        life.link = None  # nothing can be sent on it; it does not become ours
                    raise life.lost()  # the link had ended before: it tells us nothing any more
                self._call = call  # the answer cannot overtake us: the reader needs the lock, and so does a loss
                if call.sent_locked is not None:
                    call.sent_locked()
            self._wait_for(call, deadline, f"{call.method.name} was not answered within {limit:g} s")
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
        """False when its answer or error came at the last moment."""
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
            if call is None or not isinstance(event.method, call.expected):
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
        """The call that is under way, to be ended by the caller of this method after the lock."""
        call, self._call = self._call, None
        return call

    @property
    def is_busy(self) -> bool:
        """Is a call under way?"""
        return self._call is not None
