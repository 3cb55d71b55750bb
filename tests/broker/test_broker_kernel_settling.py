"""Settling very many entries in one call: slice by slice, so that others have the queue in between."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from broker_parts_support import queue as queue_module

from multiqueue.broker import BrokerQueue, Entry, IllegalStep, Message

SLICE = 20
COUNT = 4 * SLICE + 5
Settle = Callable[[BrokerQueue, list[Entry], object], int]
WAYS: dict[str, Settle] = {
    "accept": lambda queue, entries, owner: queue.accept(entries, owner),
    "release": lambda queue, entries, owner: queue.release(entries, owner),
    "reject": lambda queue, entries, owner: queue.reject(entries, owner),
}


@pytest.fixture(params=WAYS)
def settle(request: pytest.FixtureRequest) -> Settle:
    return WAYS[request.param]


@pytest.fixture(autouse=True)
def naps(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One for each pause between two slices."""
    naps: list[None] = []
    monkeypatch.setattr(queue_module, "_SLICE", SLICE)
    monkeypatch.setattr(queue_module, "nap", lambda: naps.append(None))
    return naps


def held(count: int = COUNT) -> tuple[BrokerQueue, list[Entry]]:
    """A queue, and what its owner, which is the queue itself, has of it."""
    dead = BrokerQueue("dead")
    queue = BrokerQueue("q", dead_letter=lambda _, message, reason: dead.put(message))
    for number in range(count):
        queue.put(Message(b"%d" % number))
    return queue, [entry for _ in range(count) if (entry := queue.get(queue)) is not None]


def test_others_have_the_queue_between_slices(
    settle: Settle, naps: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hold of the lock changes more than a slice, and a thread that waits for the lock has time to take it."""
    queue, entries = held()
    unacked: list[int] = []
    monkeypatch.setattr(queue_module, "nap", lambda: unacked.append(queue.statistics().unacked))
    assert settle(queue, entries, queue) == COUNT
    assert max(one - other for one, other in pairwise([COUNT, *unacked])) == SLICE
    assert queue.statistics().unacked == 0
    queue.check_invariants()


def test_few_are_settled_without_a_pause(settle: Settle, naps: list[None]) -> None:
    """A slice or less is one hold, as ever."""
    queue, entries = held(SLICE)
    assert settle(queue, entries, queue) == SLICE
    assert not naps


def test_all_are_checked_before_one_is_changed(settle: Settle) -> None:
    """An entry of another owner, in the last slice, leaves everything as it was."""
    queue, entries = held()
    queue.put(Message(b"else"))
    other = queue.get(settle)
    assert other is not None
    with pytest.raises(IllegalStep, match="owned by"):
        settle(queue, [*entries, other], queue)
    assert queue.statistics().unacked == COUNT + 1
    assert settle(queue, entries, queue) == COUNT


def test_an_entry_that_is_named_twice_is_settled_once(settle: Settle) -> None:
    """Also where the two stand in different slices."""
    queue, entries = held()
    assert settle(queue, entries + entries[:3], queue) == COUNT


def test_what_was_stolen_is_left_aside(settle: Settle) -> None:
    """As of few: it does not count, and is no error."""
    queue, entries = held()
    assert queue.delete_messages(limit=3, steal=True) == 3
    assert settle(queue, entries, queue) == COUNT - 3
