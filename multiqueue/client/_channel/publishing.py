"""Publishing on a channel, and the server's confirms.

State       The channel's lock guards all fields, those of `Unconfirmed` too. It is held while a message gets its number
            and joins the link, so that the order of the unconfirmed is the order of the wire.
Waiting     A publisher waits for the flow, which `changed` tells, then for room in the link; both within one deadline.
            A thread that waits for confirms is woken by the last answer and by the end.
Who runs    `confirmed` and `flow` on the reader thread; `republish` on the thread of recovery; the rest on any thread.
            A `Confirm` runs no callback on the reader thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from pamqp import commands

from ...amqp.wire import NO_PROPERTIES, Ack, encode_properties
from .._base.errors import ConfirmTimeout, Nacked, PublishTimeout
from .._dispatch.buffers import ReceiveBuffer
from .._link.link import Event, Link
from .lifecycle import ENDING, Lifecycle, State

Dispatch = Callable[[Callable[[Any], object], Any], None]


class Confirm(Future[None]):
    """The server's answer for one message: None when it has the message, `Nacked` when it could not take it.

    A `concurrent.futures.Future`, and awaitable. Callbacks run on the work pool. Messages on their way can not be
    taken back: `cancel` is always False.
    """

    def __init__(self, dispatch: Dispatch, answer_wanted: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._dispatch = dispatch
        self._answer_wanted = answer_wanted

    def cancel(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> None:
        with nullcontext() if self.done() else self._answer_wanted():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        with nullcontext() if self.done() else self._answer_wanted():
            return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        """Have `fn(self)` called on a thread of the work pool when the answer has come."""
        super().add_done_callback(lambda confirm: self._dispatch(fn, confirm))

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        answered = asyncio.Event()
        super().add_done_callback(lambda confirm: _tell(loop, answered))
        yield from answered.wait().__await__()
        return super().result(0)


def _tell(loop: asyncio.AbstractEventLoop, answered: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(answered.set)
    except RuntimeError:
        pass  # the loop has ended, and who waited with it


class Publication(NamedTuple):
    """A message as it can be published again, and the future that waits for its answer."""

    exchange: str
    routing_key: str
    mandatory: bool
    properties: bytes
    body: bytes
    confirm: Confirm | None  # last: a link takes all that stands before it

    @property
    def label(self) -> str:
        return f"the message of {len(self.body)} bytes to {self.exchange!r} {self.routing_key!r}"


class Unconfirmed:
    """The unconfirmed messages of one channel, by number: from 1 in the order they go out."""

    def __init__(self) -> None:
        self._next = 1
        self._open: dict[int, Publication] = {}  # in rising order of numbers
        self.has_nack = False  # since somebody last waited for all of them

    def __len__(self) -> int:
        return len(self._open)

    def add(self, message: Publication) -> int:
        number = self._next
        self._next += 1
        self._open[number] = message
        return number

    def settle(self, number: int, multiple: bool) -> list[Publication]:
        if not multiple:
            found = self._open.pop(number, None)
            return [] if found is None else [found]
        settled = []
        while self._open:
            first = next(iter(self._open))
            if first > number:
                break
            settled.append(self._open.pop(first))
        return settled

    def renew(self) -> list[Publication]:
        """Take out everything, in order, and count from 1 again: the connection is another one."""
        unconfirmed = list(self._open.values())
        self._open.clear()
        self._next = 1
        return unconfirmed

    def check_invariants(self) -> None:
        """Raise AssertionError when the numbers contradict themselves. For tests, with the channel's lock held."""
        numbers = list(self._open)
        assert numbers == sorted(numbers), numbers
        assert all(0 < number < self._next for number in numbers), (numbers, self._next)


@dataclass(eq=False, repr=False)
class Publishing:
    """Publishes on one channel. `blocked_reason()` says why the server takes no messages now, None when it does."""

    _life: Lifecycle
    _receive_buffer: ReceiveBuffer
    _blocked_reason: Callable[[], str | None]
    has_confirms: bool = False
    unconfirmed: Unconfirmed = field(default_factory=Unconfirmed)  # empty until confirms are asked for
    _is_flowing: bool = True
    stopped_at: float | None = None  # when the server stopped the flow; None while it goes on

    def begin_confirms_locked(self) -> None:
        self.has_confirms = True

    def publish(self, message: Publication, timeout: float | None) -> None:
        life = self._life
        if type(message.body) is not bytes:
            message = message._replace(body=_copied(message.body))
        link = life.link
        if link is None or link.is_full or not self._is_flowing:
            link = self._writable_link(timeout)
        prepared = link.prepare(life.number, *message[:5])
        with life.lock:
            if life.link is not link or life.state is not State.OPEN:
                raise life.refusal_locked()
            is_kept = self.has_confirms
            if is_kept:
                self.unconfirmed.add(message)
            is_sent = link.publish(prepared)
        if not is_sent and not is_kept:
            raise life.lost()

    def _writable_link(self, timeout: float | None) -> Link:
        life = self._life
        deadline = None if timeout is None else time.monotonic() + timeout
        with life.lock:
            if not life.changed.wait_for(lambda: self._is_flowing or life.state is not State.OPEN, timeout):
                raise PublishTimeout(f"{life.label}: the server has stopped the flow for {timeout:g} s")
            link = life.link_locked()
        if not link.wait_for_room(None if deadline is None else max(deadline - time.monotonic(), 0.0)):
            why = self._blocked_reason() or "it reads too slowly, or not at all"
            raise PublishTimeout(f"{life.label}: the server accepted nothing for {timeout:g} s: {why}")
        return link

    def wait_for_confirms(self, timeout: float | None) -> bool:
        """Block until all is answered for; False when the server could not take a message since the last call."""
        life, waiting = self._life, self.unconfirmed
        with self._receive_buffer.answer_wanted(), life.lock:
            if not life.changed.wait_for(lambda: not waiting or life.state is State.CLOSED, timeout):
                raise ConfirmTimeout(f"{life.label}: {len(waiting)} messages were not confirmed within {timeout:g} s")
            if life.state is State.CLOSED:
                raise life.refusal_locked()
            has_nack, waiting.has_nack = waiting.has_nack, False
            return not has_nack

    def republish(self, link: Link) -> int:
        """Publish what the server did not answer for again, in order; returns how many messages."""
        life = self._life
        with life.lock:
            unconfirmed = self.unconfirmed.renew()
            for message in unconfirmed:
                self.unconfirmed.add(message)
        for message in unconfirmed:
            prepared = link.prepare(life.number, *message[:5])
            link.wait_for_room(None)
            with life.lock:
                if life.state is State.INTERRUPTED:  # not closed meanwhile
                    link.publish(prepared)
        return len(unconfirmed)

    def confirmed(self, event: Event) -> None:
        life, is_ack = self._life, isinstance(event.method, Ack)
        with life.lock:
            settled = self.unconfirmed.settle(event.method.delivery_tag, event.method.multiple)
            self.unconfirmed.has_nack |= not is_ack
            if not self.unconfirmed:
                life.changed.notify_all()
        for message in settled:
            if message.confirm is not None and is_ack:
                message.confirm.set_result(None)
            elif message.confirm is not None:
                message.confirm.set_exception(Nacked(f"{life.label}: the server could not take {message.label}"))

    def flow(self, event: Event) -> None:
        life = self._life
        with life.lock:
            self._is_flowing = event.method.active
            self.stopped_at = None if self._is_flowing else time.monotonic()
            if life.state not in ENDING:
                life.send_locked(commands.Channel.FlowOk, active=self._is_flowing)
            life.changed.notify_all()

    def renew_flow_locked(self) -> None:
        self._is_flowing, self.stopped_at = True, None


def _copied(body: object) -> bytes:
    """A body that does not change while it may have to be published again."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a message's body is bytes, not {type(body).__name__}: {str(body)[:40]!r}; encode it")


def encoded(properties: Mapping[str, Any]) -> bytes:
    if not properties:
        return NO_PROPERTIES
    try:
        return _encode_often(tuple(properties.items()))
    except TypeError:  # headers: a table is not hashable
        return encode_properties(properties)


@lru_cache(maxsize=256)
def _encode_often(properties: tuple[tuple[str, Any], ...]) -> bytes:
    """Most programs publish with a handful of combinations."""
    return encode_properties(dict(properties))
