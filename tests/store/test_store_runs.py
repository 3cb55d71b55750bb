"""Submissions that are handed in together: committed as one where that can be, and refused one by one."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from store_parts_support import Run
from store_support import KINDS, closing, ids, open_store, put, stored

from multiqueue.store import (
    Delete,
    Durability,
    MemoryStore,
    MessageStore,
    Put,
    SqliteStore,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreFull,
)

Refused = Mapping[int, StoreError]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStore]:
    with closing(open_store(request.param, tmp_path)) as opened:
        yield opened


@pytest.fixture(params=("memory", "disk"))
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStore]:
    """A store with room for some 100 KB."""
    if request.param == "memory":
        made: MessageStore = MemoryStore(max_bytes=100_000)
    else:
        made = SqliteStore(tmp_path, durability=Durability.RELAXED, quota_bytes=1 << 20, reserve_bytes=0)
    with closing(made) as opened:
        yield opened


def test_a_run_is_committed_in_order_and_told_once(store: MessageStore) -> None:
    """Its messages have their ids when it is handed in; its submitter is told before a wait for it ends."""
    told: list[Refused] = []
    (before,) = stored(store, put(1))
    messages = [put(1, b"%d" % number) for number in range(3)]
    commit = store.submit_run([[messages[0]], [messages[1], put(2)], [messages[2]]], told.append)
    given = [message.id for message in messages]
    assert before < given[0] < given[1] < given[2]
    assert commit.wait(60)
    assert told == [{}]
    assert ids(store, 1) == [before, *given]
    assert len(ids(store, 2)) == 1


def test_a_run_is_one_commit(store: MessageStore) -> None:
    """All of it goes to the disk at once."""
    commits = store.statistics().commits
    assert store.submit_run([[put(1)] for _ in range(50)], lambda refused: None).wait(60)
    assert store.statistics().commits == commits + 1


def test_what_cannot_be_stored_is_refused_without_its_neighbours(store: MessageStore) -> None:
    """A part that has something the store cannot keep is refused whole, and told by its index; the others stay."""
    (there,) = stored(store, put(1, b"there"))
    told: list[Refused] = []
    first, beside, last = put(1, b"first"), put(2, b"beside"), put(1, b"last")
    commit = store.submit_run([[first], [beside, put(1, id=there)], [last]], told.append)
    assert commit.wait(60)
    (refused,) = told
    assert list(refused) == [1]
    assert "stored already" in str(refused[1])
    assert ids(store, 1) == [there, first.id, last.id]
    assert ids(store, 2) == []


def test_what_finds_no_room_is_refused_without_its_neighbours(small: MessageStore) -> None:
    """A full store takes what is small before and after a message that is too large for it, and goes on."""
    told: list[Refused] = []
    first, large, last = put(1, b"first"), put(1, bytes(2 << 20)), put(1, b"last")
    assert small.submit_run([[first], [large], [last]], told.append).wait(60)
    (refused,) = told
    assert {index: type(error) for index, error in refused.items()} == {1: StoreFull}
    assert ids(small, 1) == [first.id, last.id]
    assert small.submit_run([[Delete([first.id])], [put(1)]], told.append).wait(60)
    assert told[1] == {}


def test_runs_and_submissions_keep_their_order(store: MessageStore) -> None:
    """What is submitted behind a run sees what the run left, and is told after it."""
    order: list[str] = []
    message = put(1)
    store.submit([put(1)], lambda: order.append("before"))
    store.submit_run([[message], [put(1)]], lambda refused: order.append("run"))
    store.submit([Delete([message.id])], lambda: order.append("behind")).wait(60)
    assert order == ["before", "run", "behind"]
    assert message.id not in ids(store, 1)


def test_a_run_is_the_length_of_a_batch_or_more() -> None:
    """A run is never split: held back, it is one step, however long it is."""
    with MemoryStore() as store:
        store.hold()
        told: list[Refused] = []
        run = store.submit_run([[put(1, bytes(100))] for _ in range(5000)], told.append)
        behind = store.submit([put(2)])
        store.release(1)
        assert run.wait(60)
        assert told == [{}]
        assert not behind.is_done
        store.release()
        assert behind.wait(60)


def test_a_store_that_fails_tells_of_every_part() -> None:
    """Where a store fails in the middle of a run it may have any beginning of the run, and nothing else.

    (store 2)
    """
    with closing(MemoryStore()) as store:
        assert isinstance(store, MemoryStore)
        told: list[Refused] = []
        store.hold()
        commit = store.submit_run([[put(1)] for _ in range(4)], told.append)
        store.fail_at(3, StoreFailed("the disk failed"))
        store.release()
        with pytest.raises(StoreFailed):
            commit.wait(60)
        assert [{index: type(error) for index, error in each.items()} for each in told] == [
            dict.fromkeys(range(4), StoreFailed)
        ]
        left = store.reopened(crashed=True)
        assert len(ids(left, 1)) == 2
        left.close()


def test_a_closed_store_takes_no_run() -> None:
    """Nothing of it was accepted, and no callback is told."""
    store = MemoryStore()
    store.close()
    told: list[Refused] = []
    with pytest.raises(StoreClosed):
        store.submit_run([[put(1)]], told.append)
    assert told == []


def test_who_is_told_in_what_follows_may_submit_a_run(store: MessageStore) -> None:
    """A run that is handed in where another is told of does not wait for itself."""
    later: list[Refused] = []
    message = put(2)
    store.submit_run([[put(1)]], lambda refused: store.submit_run([[message]], later.append)).wait(60)
    store.submit([]).wait(60)
    store.submit([]).wait(60)
    assert later == [{}]
    assert ids(store, 2) == [message.id]


def living(*kinds: type) -> int:
    """How many objects of these kinds there are."""
    return sum(isinstance(each, kinds) for each in gc.get_objects())


def test_a_commit_that_was_told_keeps_no_message() -> None:
    """A kept commit of a run does not keep its messages in memory, and leaves no cycle behind."""
    gc.collect()
    gc.disable()
    try:
        with MemoryStore() as store:
            messages, runs = living(Put), living(Run)
            commit = store.submit_run([[put(1)] for _ in range(20)], lambda refused: None)
            assert commit.wait(60)
            store.submit([]).wait(60)  # by now the writer has let go of the run
            assert living(Put) <= messages
            assert commit.is_done
            del commit
            assert living(Run) <= runs
    finally:
        gc.enable()
