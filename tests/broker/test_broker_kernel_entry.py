"""The entry's table of states and steps: every step that is in it moves, every other one changes nothing."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from broker_parts_support import ACQUIRE, DELIVER, OWNERS_STEPS, RELEASE, SEIZE, SETTLE, STEAL, TRANSITIONS, Move, Step

from multiqueue.broker import BrokerQueue, Entry, EntryState, IllegalStep, Message

QUEUE = BrokerQueue("q")
OWNER, OTHER = "owner", "other"
OWNED = (EntryState.LOCKED, EntryState.UNLOCKED)


def entry_in(state: EntryState) -> Entry:
    entry = Entry(QUEUE, Message("a"), 1)
    entry.position = 7
    entry.state = state
    entry.owner = OWNER if state in OWNED else None
    return entry


def snapshot(entry: Entry) -> tuple[object, ...]:
    return (entry.state, entry.owner, entry.steps, entry.delivery_count)


STEPS = [step for step in Step if step is not Step.PUT]


@pytest.mark.parametrize(("state", "step"), list(itertools.product(EntryState, STEPS)))
def test_each_step_from_each_state(state: EntryState, step: Step) -> None:
    """A step leads where the table says, for the owner; without a row it raises and changes nothing."""
    entry = entry_in(state)
    before = snapshot(entry)
    asker = OWNER if step is Step.ACQUIRE or state in OWNED else None
    target = TRANSITIONS[step].get(state)
    if target is None:
        with pytest.raises(IllegalStep, match=f"cannot take step {step.name}"):
            entry.apply(Move(step), asker)
        assert snapshot(entry) == before
        return
    entry.apply(Move(step), asker)
    assert entry.state is target
    assert entry.history[-1] is step
    entry.check_invariants()


@pytest.mark.parametrize("step", sorted(OWNERS_STEPS))
@pytest.mark.parametrize("state", OWNED)
def test_only_the_owner_may_take_the_owners_steps(state: EntryState, step: Step) -> None:
    """Another consumer's step is refused, names both, and changes nothing."""
    entry = entry_in(state)
    before = snapshot(entry)
    with pytest.raises(IllegalStep, match="by 'other'"):
        entry.apply(Move(step), OTHER)
    assert snapshot(entry) == before


def test_two_steps_are_taken_both_or_not_at_all() -> None:
    """A delivery and a settlement are two steps in one; where the first is illegal nothing happens."""
    entry = entry_in(EntryState.AVAILABLE)
    entry.apply(DELIVER, OWNER)
    assert (entry.state, entry.owner, entry.delivery_count) == (EntryState.UNLOCKED, OWNER, 1)
    entry.apply(SETTLE, OWNER)
    assert (entry.state, entry.owner) == (EntryState.DELETED, None)
    before = snapshot(entry)
    with pytest.raises(IllegalStep, match="DEQUEUE and DELETE"):
        entry.apply(SETTLE, OWNER)
    assert snapshot(entry) == before


def test_the_error_tells_the_last_seven_steps() -> None:
    """The history is short, in order, and in the message."""
    entry = entry_in(EntryState.AVAILABLE)
    for _ in range(4):
        entry.apply(ACQUIRE, OWNER)
        entry.apply(RELEASE, OWNER)
    entry.apply(SEIZE)
    assert len(entry.history) == 7
    with pytest.raises(IllegalStep, match=r"last steps: acquire, release, acquire, release, acquire, release, seize$"):
        entry.apply(STEAL)


def test_every_state_can_be_reached_and_ended() -> None:
    """From AVAILABLE every state is reachable, and from every state DELETED is."""
    follows = {state: {row[state] for row in TRANSITIONS.values() if state in row} for state in EntryState}

    def reachable(state: EntryState) -> set[EntryState]:
        found, new = {state}, {state}
        while new:
            new = set().union(*(follows[each] for each in new)) - found
            found |= new
        return found

    assert reachable(EntryState.AVAILABLE) == set(EntryState)
    assert all(EntryState.DELETED in reachable(state) for state in EntryState)
    assert follows[EntryState.DELETED] == set()


def test_the_page_shows_the_table() -> None:
    """The table of docs/design/broker-queue.md is this one, row by row."""
    page = Path(__file__).parents[2] / "docs" / "design" / "broker-queue.md"
    if not page.exists():
        pytest.skip("installed without its documents")
    rows = set(re.findall(r"^\| (\w+) \| (\w+) \| (\w+) \|", page.read_text(), re.MULTILINE))
    table = {(state.name, step.name, target.name) for step, row in TRANSITIONS.items() for state, target in row.items()}
    assert table <= rows
    assert {row for row in rows if row[1] in Step.__members__} == table
