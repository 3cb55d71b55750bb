"""Calls of a channel, and its end: by us, by the server, or with the connection.

Promise     1. One call at a time; acknowledgements and publishes do not wait for it.
            2. A call ends with an answer, or with an error as soon as channel or connection ends, or with its timeout.
            3. A call that was given up closes the channel: answers carry no number, a late one would be taken for the
               next call's.
Waiting     Calls: see `call`. `close` waits for `_ended`, `close_timeout` seconds at most.
Who runs    `interrupted` and `finish` on the reader thread mostly; the rest on any thread.
Membership  `finish` happens once: it empties the registries under the lock, and tells everybody after it.
"""

from __future__ import annotations

import copy
import logging
import time
from typing import Any

from pamqp import commands

from ...amqp.wire import shortened
from .._base.errors import CallTimeout, ChannelClosed
from .._base.states import ENDING, Happening, State, after
from .._link.link import Event, Link
from .base import ChannelBase
from .call import Call
from .unconfirmed import Publication

_log = logging.getLogger("multiqueue.client")


class ChannelCalls(ChannelBase):
    """Calls the server and waits for its answers, and ends."""

    def call(self, method: type[Any], *expected: type[Any], timeout: float | None = None, **fields: Any) -> Any:
        """Send a method and block until one of `expected` answers it.

        Raises:
            CallTimeout: no answer in `timeout` seconds; the channel is closed.
            ChannelClosed, ConnectionClosed: it is, or was closed before the answer; with the server's code and text.
        """
        return self._call_on(None, Call(*expected), method, timeout, fields).answer

    def _call_on(
        self, link: Link | None, call: Call, method: type[Any], timeout: float | None, fields: dict[str, Any]
    ) -> Call:
        """As `call`, on a `link` that is being made or, when None, on that of an open channel."""
        limit = self._settings.call_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        if not self._turn.acquire(timeout=limit):
            raise CallTimeout(f"{self!r}: another thread's call has been under way for {limit:g} s; nothing was sent")
        try:
            with self._lock:
                to = self._open_link_locked() if link is None else self._made_link_locked(link)
                if not to.send(self.number, method, **fields):
                    if link is not None:
                        self._link = None  # nothing can be sent on it; it does not become ours
                    raise self._lost()  # nobody will tell us: the link had ended before
                self._call = call  # the answer cannot overtake us: the reader needs the lock, and so does a loss
                if method in (commands.Tx.Commit, commands.Tx.Rollback):
                    self._tags.end_transaction()
                elif method is commands.Tx.Select:
                    self._tags.begin_transactions()
            self._wait_for(call, deadline, f"{method.name} was not answered within {limit:g} s")
        finally:
            self._turn.release()
        return call

    def _made_link_locked(self, link: Link) -> Link:
        """The link on which the channel is being opened, ours from this call on.

        A channel that was closed meanwhile, perhaps before anything was sent on this link, sends nothing on it: nobody
        would give it the answer, and its number may be another's.
        """
        if self._state in ENDING:
            raise self._refusal_locked()
        self._link = link
        return link

    def _wait_for(self, call: Call, deadline: float, complaint: str) -> None:
        try:
            with self.connection.receive_buffer.answer_wanted():
                in_time = call.wait(deadline - time.monotonic())
        except BaseException:  # an interrupted call is as dangerous as one that timed out
            self._give_up(call, "a call was interrupted")
            raise
        if not in_time and self._give_up(call, complaint):
            raise CallTimeout(f"{self!r}: {complaint}; the channel was closed")
        if call.error is not None:
            raise copy.copy(call.error)

    def _give_up(self, call: Call, complaint: str) -> bool:
        """False when its answer or error came at the last moment."""
        with self._lock:
            if self._call is not call:
                return False
            self._call = None
        self.abort(541, complaint)
        return True

    def _answered(self, event: Event) -> None:
        method = event.method
        with self._lock:
            call = self._call
            if call is None or not isinstance(method, call.expected):
                call = None
            else:
                self._call = None
        if call is None:
            _log.warning("%r: %s answers nothing that was asked; ignored", self, type(method).__name__)
        else:
            call.give(method, event)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def abort(self, reply_code: int = 200, reply_text: str = "closed by the application") -> None:
        """Ask for the end and do not wait for the answer. Harmless when it was asked for before."""
        with self._lock:
            if self._state in ENDING:
                return
            link = self._link
            self._state = after(self._state, Happening.CLOSE)
            self._error = ChannelClosed(f"{self!r} was closed here: {reply_text}", reply_code=reply_code)
            call, self._call = self._call, None
            if link is not None:
                fields = {"reply_code": reply_code, "reply_text": shortened(reply_text)}
                link.send(self.number, commands.Channel.Close, **fields, class_id=0, method_id=0)
            self._changed.notify_all()
        if call is not None:
            call.fail(self._error)
        if link is None:
            self.finish(None)

    def close(self, reply_code: int = 200, reply_text: str = "closed by the application") -> None:
        """End it and wait until the server agrees: unsettled messages are back in their queues then.

        Callbacks that wait still run; what they settle is refused. A callback may close its own channel. Closing
        twice, and from several threads, is harmless. After `close_timeout` seconds it is closed without an answer.
        """
        self.abort(reply_code, reply_text)
        with self.connection.receive_buffer.answer_wanted():
            if self._ended.wait(self._settings.close_timeout):
                return
        _log.warning("%r: the server did not answer channel.close; closed without", self)
        self.finish(None)

    def finish(self, error: Exception | None) -> None:
        """It has ended. `error` is why, None when it was asked for. Once; later calls do nothing."""
        with self._lock:
            if self._state is State.CLOSED:
                return
            self._state = after(self._state, Happening.ENDED)
            self._error = error or self._error or ChannelClosed(f"{self!r} was closed with its connection")
            self._link = None
            call, self._call = self._call, None
            consumers, self._consumers = list(self._consumers.values()), {}
            unconfirmed = [] if self._ledger is None else self._ledger.renew()
            self._tags.clear()
            self._changed.notify_all()
        self.connection.forget_channel(self)  # type: ignore[arg-type] # a Channel
        if call is not None:
            call.fail(self._error)
        _fail(unconfirmed, self._error)
        for consumer in consumers:
            consumer.ended(error)
        if self.on_closed is not None:
            self.dispatch(self.on_closed, error)
        self.queue_work(self.connection.callbacks.remove_lane, self)
        self.connection.callbacks.announce()
        self._ended.set()

    # ---- loss -------------------------------------------------------------------------------------------------------

    def interrupted(self, link: Link, error: Exception, *, keep_unconfirmed: bool) -> None:
        """The link is lost and will be replaced. It may have been already, if this comes late."""
        with self._lock:
            if self._link is not None and self._link is not link:
                return
            comes_back = self._state in (State.OPEN, State.INTERRUPTED)
            was_asked_for = self._state is State.CLOSING
            if comes_back:
                self._state = after(self._state, Happening.LOST)
                self._tags.renew()
                self._is_flowing, self._stopped_at = True, None
            self._link = None
            call, self._call = self._call, None
            unconfirmed = [] if self._ledger is None or keep_unconfirmed else self._ledger.renew()
            self._changed.notify_all()
        if call is not None:
            call.fail(error)
        _fail(unconfirmed, error)
        if not comes_back:  # it was not open yet, or not any more: `finish` takes the step
            self.finish(None if was_asked_for else error)


def _fail(messages: list[Publication], error: Exception) -> None:
    for message in messages:
        if message.confirm is not None:
            message.confirm.set_exception(copy.copy(error))
