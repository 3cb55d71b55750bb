"""Ends that wait for a commit: together, in time, and told afterwards."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import Change, Committer, Committing, Ended, Message, Met, Numbered, Started, Written

from multiqueue.pipeline import FileSeen, Item
from multiqueue.testing import FakeClock

NUMBERS: set[str] = set()


def recording(tell: Callable[[Message], object]) -> Callable[[Message], None]:
    """Records the numbers of commits as the runner does; other messages are told."""

    def heard(message: Message) -> None:
        if isinstance(message, Numbered):
            NUMBERS.add(number := f"{len(NUMBERS) + 1}-of-the-state")
            message.recorded.set_result(number)
        else:
            tell(message)

    return heard


class Table:
    """Remembers its commits; refuses the items of one attempt number, and everything while broken."""

    def __init__(self) -> None:
        self.commits: list[list[int]] = []
        self.broken: Exception | None = None

    def commit(self, changes: list[Change], number: str) -> list[Exception | None]:
        assert number in NUMBERS, "its number is recorded before it is made"
        if self.broken is not None:
            raise self.broken
        self.commits.append([change.item.seq for change in changes])
        return [ValueError("left out") if change.item.attempt == 99 else None for change in changes]

    def tidy(self) -> None:
        pass


def end(seq: int, table: Any, attempt: int = 1) -> Ended:
    item = Item(f"i{seq}", "a", (FileSeen("f", 1, 1),), Path("/"), attempt, seq=seq)
    future: Future[Met] = Future()
    future.set_result(Met(item.files, written=Written(table, Change(item, "d"))))
    return Ended(seq, future, 1.0)


def test_an_end_is_told_once_it_is_committed() -> None:
    """An item's end is not heard before its rows are committed; ends of one moment are one commit. (pipeline 16)"""
    told: list[Message] = []
    committer, table, other = Committer(recording(told.append), FakeClock()), Table(), Table()
    for seq, its in enumerate([table, table, other]):
        committer.post(end(seq, its))
    assert told == [Committing(0), Committing(1), Committing(2)]
    assert committer.commit() == 3
    assert (table.commits, other.commits) == ([[0, 1]], [[2]])
    assert [(one.seq, one.future.result().written) for one in told if isinstance(one, Ended)] == [
        (0, None),
        (1, None),
        (2, None),
    ]


def test_nothing_to_commit_is_told_at_once() -> None:
    """Starts, failures and cancelled attempts do not wait for a commit."""
    told: list[Message] = []
    committer = Committer(recording(told.append), FakeClock())
    failed, cancelled = Future[Met](), Future[Met]()
    failed.set_exception(ValueError())
    cancelled.cancel()
    messages = [Started(1, 0.0), Ended(1, failed, 0.0), Ended(2, cancelled, 0.0)]
    for message in messages:
        committer.post(message)
    assert told == messages
    assert committer.commit() == 0


def test_what_is_left_out_fails_alone() -> None:
    """An item that the table left out fails with what the table said of it; of a commit that failed, each with that."""
    told: list[Any] = []
    committer, table = Committer(recording(told.append), FakeClock()), Table()
    for seq, attempt in enumerate([1, 99, 1]):
        committer.post(end(seq, table, attempt))
    committer.commit()
    assert [repr(one.future.exception()) for one in told if isinstance(one, Ended)] == [
        "None",
        "ValueError('left out')",
        "None",
    ]
    told.clear()
    table.broken = OSError("503")
    committer.post(end(3, table))
    committer.post(end(4, table))
    committer.commit()
    assert [one.future.exception() for one in told if isinstance(one, Ended)] == [table.broken] * 2


def test_ends_wait_for_company_while_others_run() -> None:
    """What has ended waits half a second for others that run, and not at all when none does, or five hundred wait."""
    clock, table = FakeClock(), Table()
    committer = Committer(recording(lambda message: None), clock)

    def patience_s() -> float | None:
        with committer._lock:
            return committer._patience_s_locked()

    assert patience_s() is None
    for seq in (1, 2):
        committer.post(Started(seq, 0.0))
    committer.post(end(1, table))
    assert patience_s() == 0.5
    clock.advance(0.4)
    assert patience_s() == pytest.approx(0.1)
    clock.advance(0.2)
    assert patience_s() == 0.0
    committer.commit()
    committer.post(end(2, table))
    assert patience_s() == 0.0
    committer.commit()
    committer.post(Started(3, 0.0))
    for seq in range(4, 505):
        committer.post(end(seq, table))
    assert patience_s() == 0.0
    assert committer.commit() == 500


def test_the_thread_commits() -> None:
    """While it is open a thread makes the commits, and it is gone afterwards, with or without ends that wait."""
    heard: Future[Message] = Future()
    table = Table()
    committer = Committer(recording(lambda message: heard.set_result(message) if isinstance(message, Ended) else None))
    with committer.open():
        committer.post(end(1, table))
        assert isinstance(heard.result(timeout=60), Ended)
    committer.post(end(2, table))
    assert table.commits == [[1]]


def test_a_run_that_ends_while_a_number_waits() -> None:
    """When the runner has ended it records nothing: the commit is not made, and the thread is gone."""
    asked: Future[Message] = Future()
    ended: list[Message] = []

    def tell(message: Message) -> None:
        if isinstance(message, Numbered):
            asked.set_result(message)
        else:
            ended.append(message)

    committer, table = Committer(tell), Table()
    with committer.open():
        committer.post(end(1, table))
        assert isinstance(asked.result(timeout=60), Numbered)
    assert table.commits == []
    assert [str(one.future.exception()) for one in ended if isinstance(one, Ended)] == ["the run has ended"]
