"""Which values are handed out, whatever runs of a task send in whatever order. Without Spark or a broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_parts_support import SPOOL_IN_MEMORY, Chunk, Ledger

from multiqueue.spark import TaskEvent, TaskEventsError

Commit = Literal["task", "row"]
BOTH = pytest.mark.parametrize("commit", ["task", "row"])


@pytest.fixture
def ledgers() -> Iterator[Callable[[Commit], Ledger]]:
    with ExitStack() as made:
        yield lambda commit: made.enter_context(closing(Ledger(commit)))


def values(run: str, first: int, *what: Any, partition: int = 0) -> Chunk:
    """What a run sends."""
    return Chunk(partition, run, 0, first, len(what), body=json.dumps(what).encode())


def end(run: str, count: int, partition: int = 0) -> Chunk:
    return Chunk(partition, run, 0, count, is_end=True)


def taken(ledger: Ledger, *chunks: Chunk) -> list[Any]:
    """The values handed out for some messages, which must have the numbers 0, 1, 2 ... in each partition."""
    events = [event for chunk in chunks for event in ledger.take(chunk)]
    return [event.value for event in events]


def test_rows_come_at_once(ledgers: Any) -> None:
    """With commit="row" a value is handed out with its partition and number as soon as it comes (task-events 2)."""
    ledger = ledgers("row")
    assert list(ledger.take(values("a", 0, "x", "y", partition=3))) == [TaskEvent(3, 0, "x"), TaskEvent(3, 1, "y")]
    assert not ledger.finished
    assert taken(ledger, end("a", 2, partition=3)) == []
    assert ledger.finished == {3}


def test_tasks_come_at_their_end(ledgers: Any) -> None:
    """With commit="task" nothing is handed out before the run has ended, then everything in order (task-events 2)."""
    ledger = ledgers("task")
    assert taken(ledger, values("a", 0, "x"), values("a", 1, "y", "z")) == []
    assert list(ledger.take(end("a", 3))) == [TaskEvent(0, 0, "x"), TaskEvent(0, 1, "y"), TaskEvent(0, 2, "z")]
    assert ledger.finished == {0}


def test_a_repeated_run_adds_what_is_new(ledgers: Any) -> None:
    """With commit="row" a second run of a task adds only the values that the first one did not come to."""
    ledger = ledgers("row")
    assert taken(ledger, values("a", 0, 1, 2, 3)) == [1, 2, 3]
    assert taken(ledger, values("b", 0, 1, 2), values("b", 2, 3, 4), end("b", 4)) == [4]
    assert ledger.duplicates == 3
    assert ledger.handed_out == 4


def test_the_first_run_to_end_wins(ledgers: Any) -> None:
    """With commit="task" the first run of a partition to end is handed out, and nothing of any other.

    (task-events 2)
    """
    ledger = ledgers("task")
    assert taken(ledger, values("slow", 0, "s0"), values("fast", 0, "f0"), values("slow", 1, "s1")) == []
    assert taken(ledger, end("fast", 1)) == ["f0"]
    assert taken(ledger, values("slow", 2, "s2"), end("slow", 3)) == []
    assert ledger.duplicates == 3
    assert ledger.finished == {0}


@BOTH
def test_an_orphan_adds_nothing(ledgers: Any, commit: Commit) -> None:
    """A run that goes on sending after another one of its partition has ended adds nothing (task-events 1)."""
    ledger = ledgers(commit)
    assert taken(ledger, values("new", 0, 1, 2), end("new", 2)) == [1, 2]
    assert taken(ledger, values("orphan", 0, 1, 2), end("orphan", 2)) == []
    assert taken(ledger, values("longer", 0, 1, 2, 3), end("longer", 3)) == []
    assert ledger.duplicates == 5
    assert ledger.finished == {0}


@BOTH
def test_partitions_are_apart(ledgers: Any, commit: Commit) -> None:
    """Numbers of one partition say nothing about another's."""
    ledger = ledgers(commit)
    chunks = [values("a", 0, "p0", partition=0), values("b", 0, "p1", partition=1)]
    assert taken(ledger, *chunks, end("a", 1, 0), end("b", 1, 1)) == ["p0", "p1"]


@BOTH
def test_a_gap_is_told(ledgers: Any, commit: Commit) -> None:
    """A number that is missing, in between or at the end, is an error that says which, and never passed over.

    (task-events 3)
    """
    ledger = ledgers(commit)
    taken(ledger, values("a", 0, 1, 2))
    with pytest.raises(TaskEventsError, match=r"values 2 to 4 of partition 0 were lost on the way"):
        taken(ledger, values("a", 5, 6))
    with pytest.raises(TaskEventsError, match=r"values 2 to 2 of partition 0 were lost on the way"):
        taken(ledger, end("a", 3))


def test_runs_that_differ_are_told(ledgers: Any) -> None:
    """With commit="row" a run that ends with fewer values than another one gave is an error that names the remedy.

    (task-events 2)
    """
    ledger = ledgers("row")
    taken(ledger, values("a", 0, 1, 2, 3))
    with pytest.raises(TaskEventsError, match=r'3 values in one run and 2 in another; .* use commit="task"'):
        taken(ledger, values("b", 0, 1, 2), end("b", 2))


def test_a_large_run_waits_in_a_file(ledgers: Any) -> None:
    """What a run sends before its end is in memory up to a bound, and comes back whole from the file."""
    ledger = ledgers("task")
    text = "x" * (SPOOL_IN_MEMORY // 4)
    for number in range(10):
        taken(ledger, values("a", number, f"{number}{text}"))
    assert ledger._sent[0]["a"].bodies._rolled
    assert [value[0] for value in taken(ledger, end("a", 10))] == [str(number) for number in range(10)]


@given(commit=st.sampled_from(["task", "row"]), choices=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4))))
def test_every_interleaving_gives_each_value_once(commit: Commit, choices: list[tuple[int, int]]) -> None:
    """However the messages of three runs of one task are mixed, each value comes once, in order, if one run ends.

    (task-events 1)
    """
    count = 7
    ledger = Ledger(commit)
    sent = [0, 0, 0]  # count + 1: its end too
    got: list[int] = []

    def step(run: int, size: int) -> None:
        at = sent[run]
        if at < count:
            sent[run] = min(at + size, count)
            got.extend(taken(ledger, values(str(run), at, *range(at, sent[run]))))
        elif at == count:
            sent[run] += 1
            got.extend(taken(ledger, end(str(run), count)))

    for run, size in choices:
        step(run, size)
    while sent[0] <= count:
        step(0, 2)
    assert got == list(range(count))
    assert ledger.finished == {0}
    ledger.close()
