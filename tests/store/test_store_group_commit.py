"""The thread that commits: how it is waited for, held back, and what an end does to everybody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from store_parts_support import _group_commit
from store_support import ids, put, stored

from multiqueue.store import Delete, MemoryStore, Put, StoreClosed, StoreError, StoreFailed, StoreFull, give_way
from multiqueue.testing import wait_until_blocked


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore(max_pending_bytes=10_000) as opened:
        yield opened


class Calls:
    """What callbacks were called with."""

    def __init__(self) -> None:
        self.committed: list[object] = []
        self.failed: list[BaseException] = []

    def submit(self, store: MemoryStore, *messages: Put) -> object:
        return store.submit(messages, lambda: self.committed.append(messages), self.failed.append)


def in_thread(target: Callable[[], object]) -> tuple[threading.Thread, list[BaseException | None]]:
    """A started thread, and what it will have raised."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_held_commits_go_one_by_one(store: MemoryStore) -> None:
    """Held back, nothing is committed; released by number, so many submissions are, in order (store 2)."""
    store.hold()
    messages = [put(1) for _ in range(4)]
    commits = [store.submit([message]) for message in messages]
    assert not commits[0].wait(0.01)
    store.release(2)
    assert commits[1].wait(60)
    assert not commits[2].is_done
    assert ids(store, 1) == [message.id for message in messages[:2]]
    store.release()
    assert commits[3].wait(60)
    stored(store, put(1))


def test_a_full_pipe_blocks_those_who_put(store: MemoryStore) -> None:
    """A submission with a message waits while too many bytes are on their way; one without never does."""
    store.hold()
    first = store.submit([put(1, b"x" * 9800)])
    thread, raised = in_thread(lambda: stored(store, put(1, b"y" * 9000)))
    wait_until_blocked(thread)
    store.submit([Delete([1])])
    assert store.statistics().pending_operations == 2
    store.release()
    thread.join()
    assert raised == []
    assert first.wait(0)


def test_one_message_larger_than_the_pipe(store: MemoryStore) -> None:
    """A message larger than all that may wait is accepted when nothing else waits."""
    stored(store, put(1, b"x" * 50_000))


def test_a_refusal_concerns_one(store: MemoryStore) -> None:
    """The n-th submission is refused; its waiter and its callbacks alone are told (store 8)."""
    calls, others = Calls(), Calls()
    store.fail_at(2, StoreFull("no room"))
    first, third = put(1), put(1)
    others.submit(store, first)
    refused = store.submit([put(1)], lambda: calls.committed.append(0), calls.failed.append)
    others.submit(store, third)
    with pytest.raises(StoreFull, match="no room"):
        refused.wait()
    told: list[object] = []
    refused.add_done_callback(told.append)
    store.submit([]).wait()
    assert (len(calls.committed), [type(error) for error in [*calls.failed, *told]]) == (0, [StoreFull, StoreFull])
    assert (len(others.committed), others.failed) == (2, [])
    assert ids(store, 1) == [first.id, third.id]


def test_an_end_is_told_to_everybody() -> None:
    """When the store fails, each thread that waits for a commit or for room is told, and so is each later one."""
    store = MemoryStore(max_pending_bytes=10_000)
    calls = Calls()
    (there,) = stored(store, put(1))
    store.hold()
    store.fail_at(1, StoreFailed("the disk is gone"))
    commits = [calls.submit(store, put(1, b"x" * 4000)), calls.submit(store, put(1, b"x" * 4000))]
    waiter, waiter_raised = in_thread(lambda: commits[1].wait())  # type: ignore[attr-defined]
    blocked, blocked_raised = in_thread(lambda: store.submit([put(1, b"x" * 4000)]))
    wait_until_blocked(waiter)
    wait_until_blocked(blocked)
    store.release()
    waiter.join()
    blocked.join()
    assert [type(error) for error in [*waiter_raised, *blocked_raised]] == [StoreFailed, StoreFailed]
    assert (calls.committed, [str(error) for error in calls.failed]) == ([], ["the disk is gone"] * 2)
    with pytest.raises(StoreFailed, match="the disk is gone"):
        store.submit([put(1)])
    store.close()
    with store.reopened(crashed=True) as again:
        assert ids(again, 1) == [there]
        assert again.redeliver_floor > there


def test_a_close_ends_the_wait_for_room() -> None:
    """Who waits for room when the store is closed is told so."""
    store = MemoryStore(max_pending_bytes=10_000)
    store.hold()
    store.submit([put(1, b"x" * 9000)])
    thread, raised = in_thread(lambda: store.submit([put(1, b"y" * 9000)]).wait())
    wait_until_blocked(thread)
    store.close()
    thread.join()
    assert [type(error) for error in raised] == [StoreClosed]


def test_a_close_takes_nothing_more(store: MemoryStore) -> None:
    """While a store closes, threads that go on submitting are refused, or it would never end; callbacks are not."""
    closing = threading.Event()
    later: list[object] = []

    def committed() -> None:
        assert closing.wait(60)
        later.append(store.submit([put(1)]))

    first = store.submit([put(1)], committed)
    closer, raised = in_thread(store.close)
    wait_until_blocked(closer)
    for operations in ([put(1)], [Delete([1])], []):
        with pytest.raises(StoreClosed, match="is being closed"):
            store.submit(operations)
    closing.set()
    closer.join()
    assert not raised
    assert first.wait(60)
    with store.reopened() as again:
        assert len(ids(again, 1)) == 2


def test_a_callback_that_raises_is_reported(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of a callback goes to `threading.excepthook`; the store and the other callbacks go on."""
    reported: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: reported.append(told.exc_value))
    error = ValueError("a callback's")

    def fail(*_: object) -> None:
        raise error

    store.hold()
    commit = store.submit([put(1)], fail)
    commit.add_done_callback(fail)
    store.release()
    assert commit.wait(60)
    stored(store, put(1))  # by now the callbacks before it are done
    assert reported == [error, error]


def test_a_callback_cannot_close(store: MemoryStore) -> None:
    """Closing in a callback would wait for itself; it is refused with the reason."""
    raised: list[BaseException] = []

    def close() -> None:
        try:
            store.close()
        except StoreError as error:
            raised.append(error)

    store.submit([put(1)], close).wait()
    assert "cannot close the store" in str(raised[0])


def test_a_callback_never_waits_for_room(store: MemoryStore) -> None:
    """What a callback submits is accepted however much is on its way, for no other thread could make room."""
    done = threading.Event()
    store.hold()

    def more() -> None:
        for _ in range(5):
            store.submit([put(2, b"x" * 9000)])
        store.submit([], done.set)

    store.submit([put(1, b"x" * 9000)], more)
    store.release()
    assert done.wait(60)
    assert len(ids(store, 2)) == 5


def test_a_full_memory_store_goes_on(store: MemoryStore) -> None:
    """With `max_bytes`, what does not fit is refused alone, and fits when something was removed."""
    with MemoryStore(max_bytes=10) as small:
        (first,) = stored(small, put(1, b"x" * 8))
        with pytest.raises(StoreFull, match="8 of 10 bytes"):
            stored(small, put(1, b"xyz"))
        small.submit([Delete([first])]).wait()
        stored(small, put(1, b"xyz"))


def test_a_wait_can_time_out(store: MemoryStore) -> None:
    """`wait` returns False when its seconds are over, and True later."""
    store.hold()
    commit = store.submit([put(1)])
    start = time.monotonic()
    assert not commit.wait(0.02)
    assert time.monotonic() - start >= 0.02
    store.release()
    assert commit.wait(60)


def test_max_pending_bytes_must_be_positive() -> None:
    """A store through which nothing fits is refused when it is made."""
    with pytest.raises(ValueError, match="max_pending_bytes"):
        MemoryStore(max_pending_bytes=0)


def test_what_lingers_stays_for_company(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What removals leave is committed with the next message that is put, in one commit with it."""
    monkeypatch.setattr(_group_commit, "LINGER", 3600.0)
    gone = stored(store, put(1), put(1))
    before = store.statistics().commits
    told = threading.Event()
    removals = [store.submit([Delete([each])], told.set, lingers=True) for each in gone]
    assert not told.wait(0.05)
    last = stored(store, put(1))
    assert all(removal.is_done for removal in removals)
    assert store.statistics().commits == before + 1
    assert ids(store, 1) == last


@pytest.mark.parametrize("how", ["wait", "callback", "close"])
def test_what_somebody_waits_for_does_not_linger(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a removal, asking to be told of it, or closing the store has it committed at once."""
    monkeypatch.setattr(_group_commit, "LINGER", 3600.0)
    told = threading.Event()
    with MemoryStore() as store:
        removal = store.submit([Delete(stored(store, put(1)))], lingers=True)
        if how == "wait":
            assert removal.wait(60)
        elif how == "callback":
            removal.add_done_callback(lambda error: told.set() if error is None else None)
            assert told.wait(60)
    assert removal.is_done


def test_what_lingers_is_committed_all_the_same(store: MemoryStore) -> None:
    """It stays for company for a moment, not for ever."""
    told = threading.Event()
    store.submit([Delete(stored(store, put(1)))], told.set, lingers=True)
    assert told.wait(60)


class SlowBackend:
    """Each commit waits until it may go on."""

    def __init__(self) -> None:
        self.began, self.may_go_on = threading.Event(), threading.Event()

    is_safe = True

    def commit(self, submissions: object, next_id: int, has_more: object) -> None:
        self.began.set()
        assert self.may_go_on.wait(60)

    def rest(self, next_id: int, *, is_idle: bool) -> None:
        pass

    def finish(self, next_id: int) -> None:
        pass

    def let_go(self) -> None:
        pass


def test_nobody_gives_way_to_a_commit_of_large_bodies() -> None:
    """It takes long, and most of that without the GIL (0511)."""
    backend = SlowBackend()
    commits = _group_commit.GroupCommit(backend, name="slow", next_id=1, max_pending_bytes=1 << 20)
    commits.submit([Put(1, b"", bytes(40_000)), Delete([1])])
    assert backend.began.wait(60)
    began = time.monotonic()
    give_way(60)
    assert time.monotonic() - began < 30
    backend.may_go_on.set()
    commits.close()


def test_who_gives_way_waits_until_those_who_wait_for_the_commit_are_told() -> None:
    """While one is under way, and not without one; nor longer than was said (0511)."""
    give_way(60)
    backend, told = SlowBackend(), threading.Event()
    commits = _group_commit.GroupCommit(backend, name="slow", next_id=1, max_pending_bytes=1000)
    commits.submit([put(1)], committed=told.set)
    assert backend.began.wait(60)
    give_way(0.001)
    assert not told.is_set()
    thread, raised = in_thread(lambda: give_way(60))
    wait_until_blocked(thread)
    backend.may_go_on.set()
    thread.join(30)
    assert told.is_set()
    assert not thread.is_alive()
    assert raised == []
    commits.close()
    give_way(60)


@pytest.mark.parametrize(("size", "batches"), [(1 << 20, [8, 2]), (1 << 16, [64, 64, 32])])
def test_a_batch_of_few_large_messages_takes_more(size: int, batches: list[int]) -> None:
    """A batch is closed at 4 MiB, and one of at most 32 operations at 8: the disk syncs it faster than two."""
    backend = SlowBackend()
    commits = _group_commit.GroupCommit(backend, name="large", next_id=1, max_pending_bytes=1 << 30)
    commits.submit([put(1)])
    assert backend.began.wait(60)
    for _ in range(sum(batches)):
        commits.submit([put(1, bytes(size))])
    assert [batch.operations for batch in commits._batches] == batches
    backend.may_go_on.set()
    commits.close()


def test_who_gives_way_waits_for_a_writer_that_is_woken() -> None:
    """From the moment in which a batch wakes it, for it takes the batch only when it has the interpreter."""
    backend = SlowBackend()
    commits = _group_commit.GroupCommit(backend, name="woken", next_id=1, max_pending_bytes=1000)
    wait_until_blocked(lambda: commits._writer_waits)
    wake = commits.work.notify
    commits.work.notify = lambda n=1: None  # type: ignore[method-assign]
    commits.submit([put(1)])
    thread, raised = in_thread(lambda: give_way(60))
    wait_until_blocked(thread)
    assert not backend.began.is_set()
    commits.work.notify = wake  # type: ignore[method-assign]
    backend.may_go_on.set()
    commits.release()
    thread.join(30)
    assert not thread.is_alive()
    assert raised == []
    commits.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_gives_way_to_no_writer_of_its_parent() -> None:
    """A process forked while a commit is under way has no such writer, and waits for none (0511)."""
    code = (
        "import os, threading\n"
        "from multiqueue.store import MemoryStore, Put, give_way\n"
        "store, began, go_on = MemoryStore(), threading.Event(), threading.Event()\n"
        "store.submit([Put(1, b'', b'x')], lambda: (began.set(), go_on.wait()))\n"
        "began.wait()\n"
        "child = os.fork()\n"
        "if not child: give_way(60); os._exit(0)\n"
        "go_on.set(); store.close(); os.waitpid(child, 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
