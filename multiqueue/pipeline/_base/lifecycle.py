"""The states of an item, as a table: a transition that is not in it cannot happen.

Nothing here has a clock, a file or a thread. The ledger asks `after` before it writes, and its UPDATEs name
the old state, so a row can only move along an arrow. docs/design/pipeline.md draws this table.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from .errors import IllegalTransition


class ItemState(StrEnum):
    WAITING = "waiting"
    """On disk only; may be submitted once its retry time has come."""
    SUBMITTED = "submitted"
    """In a lane or running. After a crash: published with this attempt means done, otherwise waiting."""
    DONE = "done"
    """Its output is in its final place."""
    FAILED = "failed"
    """Set aside with its error; left alone until it is put back or its input changes."""


class ItemEvent(StrEnum):
    SUBMIT = "submit"
    SUCCEED = "succeed"
    POSTPONE = "postpone"
    """The attempt failed and another one may help, later."""
    GIVE_UP = "give up"
    SPLIT = "split"
    """The attempt failed for the last time, and the item is several files: they wait as two items."""
    HAND_BACK = "hand back"
    """The attempt was cancelled or the driver died: it does not count as a try."""
    CHANGE = "change"
    """The input file is not the one that was read."""
    PUT_BACK = "put back"
    REDO = "redo"
    """It was done, and is to be done anew; its rows stay until then."""


TRANSITIONS = MappingProxyType(
    {
        (ItemState.WAITING, ItemEvent.SUBMIT): ItemState.SUBMITTED,
        (ItemState.SUBMITTED, ItemEvent.SUCCEED): ItemState.DONE,
        (ItemState.SUBMITTED, ItemEvent.POSTPONE): ItemState.WAITING,
        (ItemState.SUBMITTED, ItemEvent.GIVE_UP): ItemState.FAILED,
        (ItemState.SUBMITTED, ItemEvent.SPLIT): ItemState.WAITING,
        (ItemState.SUBMITTED, ItemEvent.HAND_BACK): ItemState.WAITING,
        (ItemState.DONE, ItemEvent.CHANGE): ItemState.WAITING,
        (ItemState.DONE, ItemEvent.REDO): ItemState.WAITING,
        (ItemState.FAILED, ItemEvent.CHANGE): ItemState.WAITING,
        (ItemState.FAILED, ItemEvent.PUT_BACK): ItemState.WAITING,
    }
)


def after(state: ItemState, event: ItemEvent) -> ItemState:
    """The state that follows.

    Raises:
        IllegalTransition: the table has no such arrow.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"an item that is {state} cannot {event}") from None


def before(event: ItemEvent) -> tuple[ItemState, ...]:
    """The states in which `event` is legal."""
    return tuple(state for state, known in TRANSITIONS if known is event)
