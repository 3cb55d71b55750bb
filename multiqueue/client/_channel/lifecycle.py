"""The state of a channel, the link it uses now, and the lock that all its parts share.

State       `lock` guards all fields, and those that the other parts of the channel say it guards.
Lock order  The turn of `rpc` -> `lock` -> outbox lock, or the locks of the work pool's multi-queue. `lock` is held
            while frames are appended, so that confirms and calls are counted in the order of the wire, and while
            deliveries are handed on, so that the end of a consumer comes behind them; neither waits for anything.
Waiting     `ended` is set when the channel has finished. `changed` is notified at every change of state, when the last
            unconfirmed message is answered for, and when the server lets the flow go on.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, field
from typing import Any

from .._base.errors import ChannelClosed, ConnectionClosed, ConnectionInterrupted
from .._base.states import ENDING, Happening, State, after
from .._link.link import Link


@dataclass(eq=False, repr=False)
class Lifecycle:
    """The state that the parts of one channel share. `recovers` says whether a connection that is lost comes back."""

    label: str
    number: int
    _recovers: bool
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)
    state: State = State.OPENING
    # Invariant: not None while the state is OPEN; None while INTERRUPTED, until recovery has reopened the channel.
    link: Link | None = None
    error: Exception | None = None  # why it ends

    def __post_init__(self) -> None:
        self.changed: threading.Condition = threading.Condition(self.lock)

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
            self.link.send(self.number, method, **fields)

    def opened(self, link: Link) -> bool:
        """Open for everybody; False when the channel has ended, or the link was lost, meanwhile."""
        with self.lock:
            if self.state in ENDING or self.link is not link:
                return False
            self.step_locked(Happening.OPENED)
            return True
