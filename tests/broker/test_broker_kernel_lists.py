"""Entry lists: strict order for the whole life of an entry, whatever is removed around it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from broker_parts_support import Reader, ReturnLog, amqp_level, plain_key

from multiqueue.broker import (
    BrokerQueue,
    Entry,
    EntryList,
    Message,
    QueueKind,
    QueueSettings,
    StandardEntryList,
    make_entry_list,
)

QUEUE = BrokerQueue("q")
SETTINGS: dict[QueueKind, dict[str, Any]] = {  # a fair list is in the order of its turns: see its machine
    QueueKind.STANDARD: {},
    QueueKind.PRIORITY: {"priority_levels": 3},
    QueueKind.SORTED: {"sort_key": "k"},
    QueueKind.LAST_VALUE: {"lvq_key": "k"},
}


def make_list(kind: QueueKind) -> EntryList:
    return make_entry_list(QueueSettings(kind=kind, **SETTINGS[kind]), "a queue")


def add(entries: EntryList, body: object = "", **properties: Any) -> Entry:
    message = Message(body, **properties)
    entry = Entry(QUEUE, message, 1)
    entry.key = entries.key_of(message)
    entries.add(entry)
    return entry


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", list(SETTINGS))
def test_a_list_is_its_living_entries_in_order(kind: QueueKind, seed: int) -> None:
    """Any adds and removals: iteration, `after` and `get` agree with a sorted list of those that live."""
    dice = random.Random(seed)
    entries = make_list(kind)
    living: list[Entry] = []
    gone: list[Entry] = []
    for _ in range(8):
        for _ in range(dice.randrange(600)):
            key = None if kind is QueueKind.LAST_VALUE else dice.choice([None, 1, 2, "x", "y"])
            living.append(add(entries, priority=dice.randrange(10), headers={"k": key}))
        for _ in range(dice.randrange(len(living) + 1)):
            entry = living.pop(dice.choice([0, -1, dice.randrange(len(living))]))
            entries.remove(entry)
            gone.append(entry)
        living.sort(key=lambda entry: entry.position)
        entries.check_invariants()
        assert list(entries) == living
        assert sorted(entries.least_significant(), key=lambda entry: entry.position) == living
    assert [entries.get(entry.position) for entry in gone] == [None] * len(gone)
    for entry in gone[:50]:
        behind = [each for each in living if each.position > entry.position]
        assert entries.after(entry.position) is (behind[0] if behind else None)


def test_removal_in_the_middle_leaves_no_chunk_behind() -> None:
    """Of 20,000 entries all but every thousandth go, in any order: only their chunks stay."""
    log = StandardEntryList(QueueSettings())
    entries = [Entry(QUEUE, Message(), 1) for _ in range(20_000)]
    log.append_all(entries)
    random.Random(1).shuffle(entries)
    log.discard_all(entry for entry in entries if entry.position % 1000)
    log.check_invariants()
    assert len(log) == 20
    assert len(log._chunks) == len({number >> 8 for number in range(0, 20_000, 1000)} | {19_999 >> 8})


def test_a_walk_over_what_is_gone_skips_chunks() -> None:
    """Finding the one survivor behind all that was removed looks at one chunk, not at each slot."""
    log = StandardEntryList(QueueSettings())
    entries = [Entry(QUEUE, Message(), 1) for _ in range(20_000)]
    log.append_all(entries)
    log.discard_all(entries[:-1])
    assert log.after(-1) is entries[-1]
    assert len(log._chunks) == 1
    assert log._numbers == [19_999 >> 8]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (3, [0, 0, 0, 0, 1, 2, 2, 2, 2, 2]),
        (2, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
        (1, [0] * 10),
    ],
)
def test_amqp_priorities_share_the_levels(levels: int, expected: list[int]) -> None:
    """AMQP's ten priorities fall onto n levels around the middle; no priority is 4, odd ones are clamped."""
    assert [amqp_level(priority, levels) for priority in range(10)] == expected
    assert amqp_level(None, levels) == expected[4]
    assert (amqp_level(-5, levels), amqp_level(99, levels)) == (expected[0], expected[9])


def test_rabbitmqs_scale_counts_from_zero() -> None:
    """With `max_priority` no priority is 0 and what is above the maximum is the maximum."""
    entries = make_entry_list(QueueSettings(kind=QueueKind.PRIORITY, max_priority=2), "a queue")
    for body, priority in (("none", None), ("one", 1), ("nine", 9), ("two", 2), ("zero", 0)):
        add(entries, body, priority=priority)
    assert [entry.message.body for entry in entries] == ["nine", "two", "one", "none", "zero"]


def test_sorted_puts_none_first_then_numbers_then_text() -> None:
    """Mixed keys have one order; equal keys keep that of their arrival."""
    entries = make_list(QueueKind.SORTED)
    for key in ("b", 2, None, "a", 1.5, float("nan"), 2):
        add(entries, headers={"k": key})
    assert [entry.message.headers["k"] for entry in entries][2:] == [1.5, 2, 2, "a", "b"]


class Loud(str):
    """Text whose comparison is somebody else's code."""

    def __lt__(self, other: object) -> bool:
        raise AssertionError("user code ran")

    def __hash__(self) -> int:
        raise AssertionError("user code ran")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("user code ran")


def test_keys_run_no_user_code() -> None:
    """What orders entries under the lock are plain numbers and plain text, whatever the header held."""
    assert type(plain_key(Loud("a"))) is str
    assert type(plain_key(True)) is int
    assert plain_key(float("nan")) is None
    assert plain_key([1, 2]) == "[1, 2]"


def test_last_value_forgets_keys_that_are_gone() -> None:
    """The map of keys is no larger than the list, through supersession and removal in any order."""
    entries = make_list(QueueKind.LAST_VALUE)
    first = add(entries, headers={"k": "a"})
    second = add(entries, headers={"k": "a"})
    entries.remove(second)
    assert first.superseded
    entries.remove(first)
    entries.check_invariants()
    assert len(entries) == 0


def test_the_log_of_returns_forgets_and_lets_readers_start_over() -> None:
    """A reader that missed the forgetting begins at the start; one that keeps up is told each position."""
    log, reader, late = ReturnLog(), Reader(-1), Reader(-1)
    reader.cursor = late.cursor = 50
    for position in (10, 60, 20):
        log.add(position, length=0)
    reader.merge(log, -1)
    assert sorted(reader.revisits) == [10, 20]
    log.restart_all()
    late.merge(log, -1)
    assert (late.cursor, late.revisits) == (-1, [])
    log.add(5, length=0)
    assert log.since(log.end - 1) == [5], "too short to be worth cutting"
