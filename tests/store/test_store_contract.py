"""What every store promises, on disk or not."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from store_support import KINDS, closing, ids, open_store, put, reopen, stored

from multiqueue.store import (
    Define,
    Definition,
    Delete,
    Delivered,
    DropQueue,
    Durability,
    Level,
    MessageStore,
    Put,
    StoreClosed,
    StoreError,
    Undefine,
)
from multiqueue.testing import wait_until_blocked


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStore]:
    with closing(open_store(request.param, tmp_path)) as opened:
        yield opened


@pytest.fixture(params=("memory", "sync", "files", "relaxed"))
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStore]:
    """A store that can be opened again, in `tmp_path`. The test that opens it again closes it."""
    with closing(open_store(request.param, tmp_path)) as opened:
        yield opened


def test_it_keeps_the_protocol(store: MessageStore) -> None:
    """Every store has all methods of the protocol, and says how durable it is."""
    assert isinstance(store, MessageStore)
    assert store.durability in Durability


def test_ids_rise_and_are_known_at_once(store: MessageStore) -> None:
    """A submission gives its messages their ids before it returns, each higher than all before."""
    first, second, third = put(1), put(2), put(1)
    store.submit([first, second])
    between = store.allocate()
    store.submit([third]).wait()
    assert 0 < first.id < second.id < between < third.id
    assert ids(store, 1) == [first.id, third.id]


def test_an_allocated_id_is_kept(store: MessageStore) -> None:
    """A message that comes with an id stands where that id belongs, whenever it comes."""
    early = store.allocate()
    (late,) = stored(store, put(1))
    stored(store, put(1, id=early))
    assert ids(store, 1) == [early, late]


def test_pages_are_headers_in_order(store: MessageStore) -> None:
    """A page has up to so many headers after an id, with all that is known but the body."""
    given = stored(
        store, *(put(1, b"x" * size, expires_at=size + 0.5, deliveries=size) for size in range(5)), put(2, b"other")
    )
    page = store.page(1, given[0], 3)
    assert [header.id for header in page] == given[1:4]
    assert [(header.size, header.expires_at, header.deliveries) for header in page] == [
        (n, n + 0.5, n) for n in (1, 2, 3)
    ]
    assert page[0].properties == b"properties of x"
    assert store.page(1, given[4], 3) == []
    assert store.page(3, 0, 3) == []


def test_levels_are_apart(store: MessageStore) -> None:
    """Messages of a queue are paged by level, and counted by level."""
    low, high, lower = stored(store, put(1, b"a", level=0), put(1, b"bb", level=9), put(1, b"ccc", level=0))
    assert ids(store, 1, level=0) == [low, lower]
    assert ids(store, 1, level=9) == [high]
    assert store.levels() == [Level(1, 0, 2, 4, low, lower), Level(1, 9, 1, 2, high, high)]


def test_bodies_come_by_id(store: MessageStore) -> None:
    """`read` gives the bodies as they were put, of those that are there."""
    bodies = [b"", b"\0\xff", bytes(range(256)) * 1000]
    given = stored(store, *(put(1, body) for body in bodies))
    assert store.read([*given, given[-1] + 1000]) == dict(zip(given, bodies, strict=True))
    assert store.read([]) == {}


def test_deleting_is_for_good_and_forgiving(store: MessageStore) -> None:
    """Deleted messages are gone from pages, bodies and counts; ids that are not there are passed over."""
    first, second, third = stored(store, put(1), put(1), put(1))
    store.submit([Delete([first, third, 10**9]), Delete([first])]).wait()
    assert ids(store, 1) == [second]
    assert set(store.read([first, second, third])) == {second}
    assert store.levels() == [Level(1, 0, 1, 4, second, second)]


def test_an_id_is_not_given_again(store: MessageStore) -> None:
    """However empty the store becomes, the next id is a new one (store 3)."""
    given = stored(store, put(1), put(1))
    store.submit([Delete(given)]).wait()
    (later,) = stored(store, put(1))
    assert later > max(given)


def test_put_and_delete_in_one_submission(store: MessageStore) -> None:
    """A message can be deleted by the submission that puts it, or by the next one before either is committed."""
    one = put(1, id=store.allocate())
    other = put(1)
    store.submit([one, Delete([one.id]), other])
    store.submit([Delete([other.id])]).wait()
    assert ids(store, 1) == []
    assert store.read([one.id, other.id]) == {}


def test_a_message_may_come_back(store: MessageStore) -> None:
    """What was deleted may be put again under its id, in one submission or in two that are committed together."""
    (there,) = stored(store, put(1, b"old"))
    store.submit([Delete([there]), put(1, b"new", id=there)]).wait()
    assert store.read([there]) == {there: b"new"}
    store.submit([Delete([there])])
    store.submit([put(1, b"newer", id=there)]).wait()
    assert store.read([there]) == {there: b"newer"}
    assert ids(store, 1) == [there]


def test_what_is_left_of_many_is_paged(store: MessageStore) -> None:
    """After most messages were deleted, here and there, the pages have the rest, in order."""
    given = stored(store, *(put(1) for _ in range(1000)))
    left = given[::7]
    for part in (given[500:], given[:500]):
        store.submit([Delete([one for one in part if one not in left])])
    store.submit([]).wait()
    assert ids(store, 1, page=10) == left


def test_a_move_is_one_thing(store: MessageStore) -> None:
    """Delete here and put there in one submission: the message is in one place."""
    (source,) = stored(store, put(1, b"moved"))
    target = put(2, b"moved")
    store.submit([Delete([source]), target]).wait()
    assert (ids(store, 1), ids(store, 2)) == ([], [target.id])


def test_deliveries_are_remembered(store: MessageStore) -> None:
    """`Delivered` sets the count of a message that is there, also of one in the same submission."""
    (first,) = stored(store, put(1))
    second = put(1, id=store.allocate())
    store.submit([Delivered(first, 3), second, Delivered(second.id, 1), Delivered(10**9, 5)]).wait()
    assert [header.deliveries for header in store.page(1, 0, 10)] == [3, 1]


def test_outlines_are_pages_of_what_has_not_expired(store: MessageStore) -> None:
    """Ids and sizes come as headers do, in order, behind an id, up to a limit; what is past its time is left out."""
    given = [put(1, b"x" * number, expires_at=100.0 if number % 3 == 0 else None) for number in range(20)]
    stored(store, *given, put(1, level=1), put(2))
    left = [(each.id, len(each.body)) for each in given if each.expires_at is None]
    assert [each[:2] for each in store.outlines(1, 0, 100, 100.0)] == left
    assert [each[:2] for each in store.outlines(1, 0, 5, 100.0)] == left[:5]
    assert [each[:2] for each in store.outlines(1, left[4][0], 5, 100.0)] == left[5:10]
    assert [each.id for each in store.outlines(1, 0, 100, 99.0)] == [each.id for each in given]
    assert store.outlines(1, given[-1].id, 5, 0.0) == []
    assert len(store.outlines(1, 0, 5, 0.0, level=1)) == 1


def test_expired_soonest_first(store: MessageStore) -> None:
    """`expired` gives queue, level and id of what has expired by then, soonest first, up to a limit."""
    never, late, soon, level = stored(
        store, put(1), put(1, expires_at=30.0), put(2, expires_at=10.0), put(1, expires_at=20.0, level=4)
    )
    assert store.expired(9.9, 10) == []
    assert store.next_expiry(9.9) == 10.0
    assert store.expired(20.0, 10) == [(2, 0, soon), (1, 4, level)]
    assert store.expired(1e12, 2) == [(2, 0, soon), (1, 4, level)]
    store.submit([Delete([soon, never])]).wait()
    assert store.expired(1e12, 10) == [(1, 4, level), (1, 0, late)]


def test_definitions_keep_their_order(store: MessageStore) -> None:
    """Definitions come in the order in which they were first made; a new document keeps the place."""
    store.submit([Define("queue", "b", "1"), Define("queue", "a", "2"), Define("exchange", "b", "3")]).wait()
    store.submit([Define("queue", "b", "4"), Undefine("queue", "a"), Undefine("queue", "none")]).wait()
    store.submit([Define("queue", "a", "5")]).wait()
    assert store.definitions() == [
        Definition("queue", "b", "4"),
        Definition("exchange", "b", "3"),
        Definition("queue", "a", "5"),
    ]


def test_a_dropped_queue_is_gone_at_once(store: MessageStore) -> None:
    """`DropQueue` removes all messages of a queue, for every reader, from its commit on."""
    dropped = stored(store, *(put(1, expires_at=1.0, level=n % 2) for n in range(2000)))
    (kept,) = stored(store, put(2))
    store.submit([DropQueue(1)]).wait()
    assert (ids(store, 1), ids(store, 1, level=1)) == ([], [])
    assert store.read(dropped[:10]) == {}
    assert store.expired(2.0, 10) == []
    assert store.levels() == [Level(2, 0, 1, 4, kept, kept)]


def test_what_is_put_on_a_dropped_queue_later_is_gone(store: MessageStore) -> None:
    """A message that was on its way to the queue while it was dropped does not come back."""
    stored(store, *(put(1) for _ in range(2000)))
    store.submit([DropQueue(1)])
    store.submit([put(1)]).wait()
    wait_until_blocked(lambda: store.statistics().messages == 0)
    store.submit([put(1)]).wait()
    assert ids(store, 1) == []
    assert store.statistics().messages == 0


def test_callbacks_come_in_order_before_the_waiters(store: MessageStore) -> None:
    """`committed` is called in the order of the submissions, on one thread of the store's, before a wait ends.

    (store 4)
    """
    called: list[int] = []
    threads: set[threading.Thread] = set()

    def committed(number: int) -> None:
        called.append(number)
        threads.add(threading.current_thread())

    commits = [store.submit([put(1)], partial(committed, number)) for number in range(500)]
    commits[-1].wait()
    assert called == list(range(500))
    assert len(threads) == 1
    assert threading.current_thread() not in threads


def test_a_callback_may_submit(store: MessageStore) -> None:
    """A `committed` callback may submit more, without waiting."""
    done = threading.Event()
    moved = put(2)
    store.submit([put(1)], lambda: store.submit([moved], done.set))
    assert done.wait(30)
    assert ids(store, 2) == [moved.id]


def test_done_callbacks(store: MessageStore) -> None:
    """A done callback is called once with None, whether it came before the commit or after."""
    told: list[object] = []
    event = threading.Event()
    commit = store.submit([put(1)])
    commit.add_done_callback(told.append)
    commit.add_done_callback(lambda error: event.set())
    assert event.wait(30)
    assert commit.wait(0)
    assert commit.is_done
    commit.add_done_callback(told.append)
    assert told == [None, None]


def test_a_callback_that_knows_its_commit_keeps_nothing(store: MessageStore) -> None:
    """What is done lets go of its callbacks, so that no circle of them waits for the garbage collector."""
    told = threading.Event()

    def make() -> weakref.ref[object]:
        commit = store.submit([put(1)])

        def callback(error: BaseException | None) -> None:
            assert commit.is_done
            told.set()

        commit.add_done_callback(callback)
        return weakref.ref(callback)

    gc.disable()
    try:
        reference = make()
        assert told.wait(30)
        store.submit([]).wait()
        assert reference() is None
    finally:
        gc.enable()


def test_an_id_twice_is_refused_alone(store: MessageStore) -> None:
    """A message that is stored already is refused with its whole submission; what was submitted around it is not.

    (store 1, 8)
    """
    (there,) = stored(store, put(1))
    errors: list[BaseException] = []
    before, after = put(1), put(1)
    store.submit([before])
    refused = store.submit([put(1), put(1, id=there)], lambda: errors.append(AssertionError()), errors.append)
    store.submit([after]).wait()
    with pytest.raises(StoreError, match="stored already"):
        refused.wait()
    assert ids(store, 1) == [there, before.id, after.id]
    assert [type(error) for error in errors] == [StoreError]


def test_an_empty_submission_is_a_barrier(store: MessageStore) -> None:
    """Nothing can be submitted; its commit comes after all before it."""
    commits = [store.submit([put(1)]) for _ in range(100)]
    store.submit([]).wait()
    assert all(commit.is_done for commit in commits)


def test_statistics_count(store: MessageStore) -> None:
    """The counts of messages and bytes follow the commits; nothing is pending when all is committed."""
    first, *_ = stored(store, put(1, b"x" * 10), put(1, b"y" * 5), put(2, b""))
    store.submit([Delete([first, 10**9])]).wait()
    found = store.statistics()
    assert (found.messages, found.bytes) == (2, 5)
    store.submit([]).add_done_callback(lambda error: None)
    store.submit([]).wait()
    assert (store.statistics().pending_operations, store.statistics().pending_bytes) == (0, 0)
    assert found.commits >= 2


def test_a_closed_store_says_so(store: MessageStore) -> None:
    """After the close everything is refused, and closing again is harmless."""
    store.submit([put(1)])
    store.close()
    store.close()
    for ask in (
        lambda: store.submit([put(1)]),
        store.allocate,
        lambda: store.page(1, 0, 1),
        lambda: store.read([1]),
        store.levels,
        store.definitions,
        store.statistics,
    ):
        with pytest.raises(StoreClosed, match="was closed"):
            ask()


def test_closing_commits_what_was_submitted(lasting: MessageStore, tmp_path: Path) -> None:
    """A close without a wait loses nothing, and everything is told of its commit."""
    messages = [put(1, b"%d" % number) for number in range(3000)]
    commits = [lasting.submit([message]) for message in messages]
    with closing(reopen(lasting, tmp_path)) as again:
        assert all(commit.wait(0) for commit in commits)
        assert ids(again, 1) == [message.id for message in messages]


def test_everything_comes_back(lasting: MessageStore, tmp_path: Path) -> None:
    """After a clean restart messages, definitions and counts are what they were, and nothing is in doubt."""
    queue = lasting.allocate()
    stored(lasting, put(queue, b"a", expires_at=5.5, deliveries=2), put(queue, b"b", level=3), put(7, b"c"))
    lasting.submit([Define("queue", "q", "{}")]).wait()
    before = (lasting.levels(), lasting.page(queue, 0, 9), lasting.definitions(), lasting.expired(9.9, 9))
    with closing(reopen(lasting, tmp_path)) as again:
        assert (again.levels(), again.page(queue, 0, 9), again.definitions(), again.expired(9.9, 9)) == before
        assert again.read([again.page(7, 0, 1)[0].id]) != {}
        assert (again.statistics().messages, again.statistics().bytes) == (3, 3)
        assert again.redeliver_floor == 0


def test_no_id_comes_back(lasting: MessageStore, tmp_path: Path) -> None:
    """Ids go on after a restart, though all messages were deleted and the last ones never stored (store 3)."""
    given = stored(lasting, put(1), put(1))
    lasting.submit([Delete(given)]).wait()
    last = lasting.allocate()
    with closing(reopen(lasting, tmp_path)) as again:
        assert again.allocate() > last


def test_transient_messages_do_not_come_back(lasting: MessageStore, tmp_path: Path) -> None:
    """A transient message is stored like any other, and gone after a restart from the first moment on."""
    kept = [put(1, transient=n % 2 == 0, expires_at=1.0) for n in range(2000)]
    stored(lasting, *kept)
    assert len(ids(lasting, 1)) == 2000
    durable = [message.id for message in kept if not message.transient]
    with closing(reopen(lasting, tmp_path)) as again:
        assert ids(again, 1) == durable
        assert again.levels() == [Level(1, 0, 1000, 4000, durable[0], durable[-1])]
        assert [one for _, _, one in again.expired(2.0, 5000)] == durable
        (new,) = stored(again, put(1, transient=True))
        assert ids(again, 1) == [*durable, new]


def test_a_drop_survives_the_restart(lasting: MessageStore, tmp_path: Path) -> None:
    """A queue that was dropped just before the close does not come back, however many messages it had."""
    stored(lasting, *(put(1) for _ in range(5000)))
    lasting.submit([DropQueue(1)])
    with closing(reopen(lasting, tmp_path)) as again:
        assert ids(again, 1) == []
        assert again.levels() == []


def test_many_threads(store: MessageStore) -> None:
    """From many threads: each one's messages are there in its order, and ids are given once."""
    lists: list[list[Put]] = [[] for _ in range(8)]

    def publish(mine: list[Put], queue: int) -> None:
        for number in range(100):
            mine.append(put(queue, b"%d" % number))
            commit = store.submit([mine[-1]])
            if number % 10 == 0:
                commit.wait()

    threads = [threading.Thread(target=publish, args=(mine, queue)) for queue, mine in enumerate(lists)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.submit([]).wait()
    for queue, mine in enumerate(lists):
        assert ids(store, queue) == [message.id for message in mine]
    assert len({message.id for mine in lists for message in mine}) == 800
