"""The states of connections and channels; what a channel's parts share: its state, link, call under way, and lock.

Table       An event that is not in a state's row is illegal there: `after` raises and nothing has changed.
            docs/design/client.md shows it.
State       `lock` guards all fields, and those that the other parts of the channel say it guards. `_turn` is held by
            the thread whose call is under way. The result and the error of a call are written before its gate is
            released, and read after the caller has passed the gate.
Lock order  `_turn` -> `lock` -> outbox lock, or the locks of the work pool's multi-queue. `lock` is held while frames
            are appended, so that confirms and calls are counted in the order of the wire, and while deliveries are
            handed on, so that the end of a consumer comes behind them; neither waits for anything.
Waiting     `ended` is set when the channel has finished. `changed` is notified at every change of state, when the last
            unconfirmed message is answered for, and when the server lets the flow go on. A caller waits for its turn,
            then at the gate of its call. The thread that took the call out of `_call` opens the gate.
Who runs    `answered` on the reader thread; the rest on any.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Final, Self, TypeVar

from pamqp import commands

from ..._locks import Condition, Lock, acquired
from ...amqp.wire import GetOk, encode_method
from .._base.errors import CallTimeout, ChannelClosed, ConnectionClosed, ConnectionInterrupted
from .._dispatch.buffers import ReceiveBuffer
from .._link.link import Event, Link

_log = logging.getLogger("multiqueue.client")


class State(Enum):
    OPENING = "opening"
    OPEN = "open"
    INTERRUPTED = "interrupted"  # the connection is lost; recovery is under way
    CLOSING = "closing"  # we asked for the end and wait for the answer
    CLOSED = "closed"


class Happening(Enum):
    OPENED = "opened"  # the server has agreed, at first or again
    LOST = "lost"  # the socket is gone, and we go on
    CLOSE = "close"  # we ask for the end
    ENDED = "ended"  # the answer came, the server ended it, or nothing can be hoped for


_AT_ANY_TIME: Final = {Happening.CLOSE: State.CLOSING, Happening.ENDED: State.CLOSED}

TABLE: Final[dict[State, dict[Happening, State]]] = {
    State.OPENING: {**_AT_ANY_TIME, Happening.OPENED: State.OPEN, Happening.LOST: State.CLOSED},
    State.OPEN: {**_AT_ANY_TIME, Happening.LOST: State.INTERRUPTED},
    State.INTERRUPTED: {**_AT_ANY_TIME, Happening.OPENED: State.OPEN, Happening.LOST: State.INTERRUPTED},
    State.CLOSING: {**_AT_ANY_TIME, Happening.LOST: State.CLOSED},
    State.CLOSED: dict.fromkeys((Happening.LOST, Happening.CLOSE, Happening.ENDED), State.CLOSED),
}

ENDING: Final[tuple[State, ...]] = (State.CLOSING, State.CLOSED)  # nothing new may be begun


class IllegalHappening(AssertionError):
    """A defect of ours: an event in a state whose row does not have it."""


def after(state: State, happening: Happening) -> State:
    """The state that follows. Raises IllegalHappening: the table has no such step."""
    try:
        return TABLE[state][happening]
    except KeyError:
        raise IllegalHappening(f"{happening.value} while {state.value}") from None


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """One channel, at one moment. Times are seconds."""

    number: int
    state: str
    consumers: int
    queued: int  # deliveries that no callback has begun with
    running_for: float | None  # how long the present callback has been running; None when none is
    unacked: int  # deliveries that are not settled, those that wait included
    unconfirmed: int
    blocked_for: float | None  # how long the server has not let us publish; None when it does


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """One connection and its channels."""

    name: str
    state: str
    channels: tuple[ChannelStatistics, ...]
    buffered_bytes: int
    is_reading: bool  # False while the buffer is full
    recoveries: int


class Closing(ABC):
    """Closed at the end of a `with` block, and of an `async with` block without blocking its loop."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.to_thread(self.close)


_Opened = TypeVar("_Opened", bound=Closing)


async def opened(open_: Callable[[], _Opened]) -> _Opened:
    """What this opens, on a thread. If the coroutine is cancelled, it is closed once it is open: nobody has it."""
    opening: Future[_Opened] = Future()

    def run() -> None:
        try:
            opening.set_result(open_())
        except BaseException as error:  # noqa: BLE001  # `opened` raises it
            opening.set_exception(error)

    try:
        await asyncio.to_thread(run)
    except asyncio.CancelledError:
        opening.add_done_callback(_leave)
        raise
    return opening.result()


def _leave(opening: Future[Any]) -> None:
    """Close it on a new thread: this one may run an event loop."""
    if opening.exception() is None:
        threading.Thread(target=opening.result().close, name="close what nobody has", daemon=True).start()


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
class Lifecycle:
    """The state that the parts of one channel share.

    `recovers` says whether a connection that is lost comes back; `abort(reply_code, reply_text)` closes the channel.
    """

    label: str
    number: int
    _recovers: bool
    _receive_buffer: ReceiveBuffer
    _call_timeout: float
    _abort: Callable[[int, str], object]
    lock: Lock = field(default_factory=Lock)
    ended: threading.Event = field(default_factory=threading.Event)
    state: State = State.OPENING
    # Invariant: not None while the state is OPEN; None while INTERRUPTED, until recovery has reopened the channel.
    link: Link | None = None
    error: Exception | None = None  # why it ends
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _call: Call | None = None

    def __post_init__(self) -> None:
        self.changed: Condition = Condition(self.lock)

    def step_locked(self, happening: Happening) -> None:
        self.state = after(self.state, happening)
        self.changed.notify_all()

    def link_locked(self) -> Link:
        """The link of an open channel. Raises ConnectionInterrupted, ChannelClosed, ConnectionClosed: the channel is
        not open; it says why."""
        if self.state is not State.OPEN or self.link is None:
            raise self.refusal_locked()
        return self.link

    def new_link_locked(self, link: Link) -> Link:
        """The link on which the channel is being opened, ours from this call on. A channel that was closed meanwhile,
        perhaps before anything was sent on this link, sends nothing on it: the answer would reach no caller, and its
        number may be another channel's."""
        if self.state in ENDING:
            raise self.refusal_locked()
        self.link = link
        return link

    def refusal_locked(self) -> Exception:
        if self.state is State.INTERRUPTED:
            return ConnectionInterrupted(
                f"{self.label}: the connection was lost and is being recovered; try again", reply_code=320
            )
        if self.error is not None:
            return copy.copy(self.error)
        return ChannelClosed(f"{self.label} is {self.state.value}; open another one")

    def lost(self) -> ConnectionClosed:
        """The link had ended before something was sent on it."""
        kind = ConnectionInterrupted if self._recovers else ConnectionClosed
        return kind(f"{self.label}: the connection was lost; nothing was sent", reply_code=320)

    def send_locked(self, method: type[Any], **fields: Any) -> None:
        if self.link is not None:
            self.link.send(self.number, encode_method(self.number, method, **fields))

    def wait_for_recovery_locked(self) -> None:
        """Block until the channel is open on the new link, as long as a call may take at most."""
        self.changed.wait_for(lambda: self.state is not State.INTERRUPTED or self.link is None, self._call_timeout)

    def opened(self, link: Link) -> bool:
        """Open for everybody; False when the channel has ended, or the link was lost, meanwhile."""
        with self.lock:
            if self.state in ENDING or self.link is not link:
                return False
            self.step_locked(Happening.OPENED)
            return True

    def call(
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
        Raises as `Channel.call`.
        """
        frame = encode_method(self.number, method, **fields)  # first: arguments may be anybody's objects
        limit = self._call_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        if not acquired(self._turn, limit):
            raise CallTimeout(
                f"{self.label}: another thread's call has been under way for {limit:g} s; nothing was sent"
            )
        try:
            call = Call(method, answered_locked)
            with self.lock:
                to = self.link_locked() if link is None else self.new_link_locked(link)
                if not to.send(self.number, frame):
                    if link is not None:
                        self.link = None  # nothing can be sent on it; it does not become ours
                    raise self.lost()  # the link had ended before: it tells us nothing any more
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
            raise CallTimeout(f"{self.label}: {complaint}; the channel was closed")
        if call.error is not None:
            raise copy.copy(call.error)

    def _give_up(self, call: Call, complaint: str) -> bool:
        """Close the channel: a late answer would be taken for the next call's. False if the answer has just come."""
        with self.lock:
            if self._call is not call:
                return False
            self._call = None
        self._abort(541, complaint)
        return True

    def answered(self, event: Event) -> None:
        """A method that answers a call, if one is under way that expects it."""
        with self.lock:
            call = self._call
            if call is None or not isinstance(event.method, _answers_to(call.method)):
                call = None
            else:
                self._call = None
                call.result = event.method if call.answered_locked is None else call.answered_locked(event)
        if call is None:
            label, method = self.label, type(event.method).__name__
            _log.warning("%s: %s answers no call; ignored", label, method, extra={"connection": label})
        else:
            call.end()

    def take_call_locked(self) -> Call | None:
        """The call that is under way; the caller ends it after the lock."""
        call, self._call = self._call, None
        return call

    @property
    def is_calling(self) -> bool:
        return self._call is not None
