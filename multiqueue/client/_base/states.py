"""The states of a connection and of a channel, what leads from one to the next, and snapshots in figures.

An event that is not in a state's row is illegal there: `after` raises and nothing has changed.
docs/design/client.md shows both tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


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
