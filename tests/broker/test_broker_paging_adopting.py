"""A queue that begins to page: its entries are adopted slice by slice, and it is at work in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import test_broker_paging_host
from broker_parts_support import FEW, Spill, here, reader, spill
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from paging_outgrown_support import LIMIT, drain, fill, number_in
from test_broker_durable_machine import QUEUES, names, run
from test_broker_paging_host import PagingHostMachine

from multiqueue.broker import BrokerQueue, Message, VirtualHost
from multiqueue.store import MemoryStore, StoreFull
from multiqueue.testing import FakeClock, wait_until_blocked

SLICE = 8
COUNT = 5 * SLICE + 3


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_SLICE", SLICE)


def adopt_some(pager: Spill) -> bool:
    return pager._period is not None and pager._period.adopt_some()


# -- with nobody who goes on: what is not adopted yet stays that way


class LazyMachine(PagingHostMachine):
    """The machine of paging, where a queue that begins to page is adopted by puts, readers and this rule alone."""

    @rule(name=names, slices=st.integers(1, 3))
    def adopt(self, name: str, slices: int) -> None:
        pager = self.keeper.host.queue(name)._pager
        assert isinstance(pager, Spill)
        for _ in range(slices):
            adopt_some(pager)

    @rule(pick=st.integers(0, 3))
    def receive(self, pick: int) -> None:
        """A consumer with a selector waits for the whole, as no other thread adopts."""
        for taker in self.takers:
            self.adopt(taker.queue, 100)
        super().receive(pick)

    @rule(name=names)
    def browse(self, name: str) -> None:
        bodies = [message.body for message in self.keeper.host.queue(name).browse()]
        assert bodies == [copy.body for copy in self.lists.ready(name)]

    def change_the_budget(self, limit: int) -> None:
        """Without this rule: messages that no thread adopts take memory from other queues, which refuse."""

    @invariant()
    def agrees(self) -> None:
        self.settled()
        for name in QUEUES:
            assert len(self.keeper.host.queue(name)) == len(self.lists.queues[name])
        self.keeper.host.check_invariants()


class LazyForgetfulMachine(LazyMachine):
    """The same without a store."""

    kind = "none"


@pytest.fixture
def nobody_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that begins to page writes out what is adopted, and adopts nothing while there is memory."""
    monkeypatch.setattr(reader, "_SLICE", 2)
    monkeypatch.setattr(test_broker_paging_host, "LIMIT", 100_000)

    def write_out(pager: Spill) -> None:
        while pager._memory.writes_too_much and adopt_some(pager):
            pass
        if pager._period is not None and not here.follows_commit:
            for commit in pager._write_out(pager._period):
                commit.wait()

    monkeypatch.setattr(Spill, "catch_up", write_out)


@pytest.mark.usefixtures("nobody_goes_on")
@pytest.mark.parametrize("machine", [LazyMachine, LazyForgetfulMachine])
def test_a_queue_that_is_half_adopted_agrees_with_lists(machine: type[LazyMachine]) -> None:
    """Nothing is lost, doubled or out of order, whoever comes, goes, settles and gives back in the middle."""
    run(machine, 15, 30)


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_goes_on")
@pytest.mark.parametrize("machine", [LazyMachine, LazyForgetfulMachine])
def test_a_queue_that_is_half_adopted_agrees_with_lists_for_long(machine: type[LazyMachine]) -> None:
    """The same for many more histories."""
    run(machine, 300, 50)


# -- slice by slice


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


@pytest.fixture(params=["no store", "store"])
def host(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[VirtualHost]:
    store = MemoryStore() if request.param == "store" else None
    host = VirtualHost(store=store, memory_limit=20 * LIMIT, clock=clock, wall_clock=clock)
    yield host
    host.check_invariants()
    host.close()


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What is done, one each, at the first pauses between two slices."""
    actions: list[Callable[[], object]] = []

    def pause() -> None:
        if actions:
            actions.pop(0)()

    monkeypatch.setattr(spill, "nap", pause)
    return actions


def adopted(queue: BrokerQueue) -> int:
    return len(queue) - len(queue.life.source._coming or ())  # type: ignore[attr-defined]


@pytest.fixture
def needed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Tells whether very many depend on this very thread."""

    def need(is_needed: bool) -> None:
        monkeypatch.setattr(here, "serves_many", is_needed)

    yield need  # type: ignore[misc]
    need(False)


def test_one_hold_adopts_a_slice(host: VirtualHost, between: list[Callable[[], object]]) -> None:
    """The lock of a queue that begins to page is let go after each slice, however many messages it has
    (bounded-memory 17)."""
    queue = host.declare_queue("q")
    fill(host, range(COUNT))
    seen: list[int] = []
    between += [lambda: seen.append(adopted(queue))] * COUNT
    assert queue.life.limit.page_out()
    assert seen == list(range(SLICE, COUNT, SLICE))
    assert drain(host, COUNT) == list(range(COUNT))


def test_a_queue_is_at_work_while_it_is_adopted(host: VirtualHost, between: list[Callable[[], object]]) -> None:
    """In the middle what comes is last, what is taken is first, and what consumers had before is theirs to settle."""
    queue = host.declare_queue("q")
    fill(host, range(COUNT))
    early = [host.get("q") for _ in range(COUNT - 2)]
    accepted, released = early[-1], early[-2]
    got: list[int] = []
    between += [
        lambda: fill(host, range(COUNT, COUNT + 4)),
        lambda: accepted.accept(),  # type: ignore[union-attr]
        lambda: released.release(),  # type: ignore[union-attr]
        lambda: got.append(number_in(host.get("q", auto_accept=True).message)),  # type: ignore[union-attr]
    ]
    assert queue.life.limit.page_out()
    assert got == [COUNT - 4]
    for each in early[:-2]:
        each.accept()  # type: ignore[union-attr]
    assert drain(host, 6) == list(range(COUNT - 2, COUNT + 4))


def test_the_highest_priority_is_first_while_a_queue_is_adopted(
    host: VirtualHost, between: list[Callable[[], object]]
) -> None:
    """A message that comes in the middle, before all that is there, is given before it."""
    queue = host.declare_queue("q", arguments={"x-max-priority": 2})
    for number in range(COUNT):
        host.publish(Message(b"%06d" % number, routing_key="q", priority=1))
    got: list[int] = []
    between += [
        lambda: host.publish(Message(b"000900", routing_key="q", priority=2)),
        lambda: host.publish(Message(b"000901", routing_key="q", priority=0)),
        lambda: got.append(number_in(host.get("q", auto_accept=True).message)),  # type: ignore[union-attr]
    ]
    assert queue.life.limit.page_out()
    assert got == [900]
    assert drain(host, COUNT + 1) == [*range(COUNT), 901]


def test_a_browser_sees_everything_once_while_a_queue_is_adopted(
    host: VirtualHost, clock: FakeClock, between: list[Callable[[], object]]
) -> None:
    """Neither what it has seen, nor what comes, is shown twice, and what was held is shown when it can be had."""
    queue = host.declare_queue("q")
    fill(host, range(10))
    host.publish(Message(b"000010", routing_key="q", delay=5.0))
    fill(host, range(11, COUNT))
    with host.subscribe("q", browse=True) as browser:
        seen = [number_in(browser.get(timeout=0).message) for _ in range(20)]
        between += [
            lambda: fill(host, range(COUNT, COUNT + 2)),
            lambda: (clock.advance(6.0), queue.housekeeping()),
        ]
        assert queue.life.limit.page_out()
        seen += [number_in(browser.get(timeout=5).message) for _ in range(COUNT + 2 - 20)]
    assert sorted(seen) == list(range(COUNT + 2))


@pytest.mark.parametrize("is_adopted", [True, False], ids=["adopted", "new"])
def test_a_browsers_selector_decides_about_what_was_held(host: VirtualHost, clock: FakeClock, is_adopted: bool) -> None:
    """A browser of a queue that pages is shown a delayed message, when it can be had, only if its selector wants it."""
    queue = host.declare_queue("q")
    fill(host, range(5), colour="red")
    if not is_adopted:
        assert queue.life.limit.page_out()
    with host.subscribe("q", browse=True, selector="colour = 'red'") as browser:
        for number, colour in enumerate(("blue", "red"), start=5):
            headers = {"colour": colour}
            host.publish(Message(b"%06d" % number, routing_key="q", delay=5.0, headers=headers))
        fill(host, range(7, 9), colour="red")
        seen = [number_in(browser.get(timeout=5).message) for _ in range(6)]  # beyond what is held
        if is_adopted:
            assert queue.life.limit.page_out()
        clock.advance(6.0)
        queue.housekeeping()
        fill(host, range(9, 10), colour="red")
        seen += [number_in(browser.get(timeout=5).message) for _ in range(3)]
    assert sorted(seen) == [*range(5), 6, 7, 8, 9]


def test_a_queue_that_is_deleted_while_it_is_adopted_leaves_nothing(
    host: VirtualHost, between: list[Callable[[], object]]
) -> None:
    """Neither memory nor rows; and what a consumer has of it is its own to settle."""
    queue = host.declare_queue("q")
    fill(host, range(COUNT))
    received = [host.get("q") for _ in range(COUNT - 4)]
    between.append(lambda: host.delete_queue("q"))
    assert queue.life.limit.page_out()
    for each in received:
        each.accept()  # type: ignore[union-attr]
    assert host.memory_statistics().used == 0


def test_what_expires_while_a_queue_is_adopted_is_dropped(
    host: VirtualHost, clock: FakeClock, between: list[Callable[[], object]]
) -> None:
    """Time is kept of what is adopted and of what is not."""
    queue = host.declare_queue("q", arguments={"x-message-ttl": 1000})
    fill(host, range(COUNT))

    def let_time_pass() -> None:
        clock.advance(2.0)
        queue.housekeeping()

    between.append(let_time_pass)
    assert queue.life.limit.page_out()
    assert len(queue) == 0
    assert host.get("q") is None


def test_what_was_settled_before_it_was_adopted_does_not_come_back() -> None:
    """1. A durable queue begins to page.  2. A message that is not adopted yet is settled.  3. Its row is shown until
    the deletion is committed, and no consumer gets it.
    """
    store = MemoryStore()
    host = VirtualHost(store=store, memory_limit=20 * LIMIT)
    queue = host.declare_queue("q", durable=True)
    for number in range(COUNT):
        host.publish(Message(b"%06d" % number, routing_key="q", persistent=True))
    received = [host.get("q") for _ in range(COUNT)]
    spill_of: Spill = queue._pager  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spill, "catch_up", adopt_some)
        assert queue.life.limit.page_out()
        store.hold()
        received[-2].accept()  # type: ignore[union-attr]
        received[-1].release()  # type: ignore[union-attr]
    while adopt_some(spill_of):
        pass
    assert [int(message.body) for message in queue.browse()] == [COUNT - 1]  # type: ignore[arg-type]
    store.release()
    host.wait_for_commits()
    host.check_invariants()
    host.close()


def test_an_error_in_the_middle_of_a_slice_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not adopted yet, all of the slice, is there, and is adopted the next time."""
    host = VirtualHost(memory_limit=20 * LIMIT)
    queue = host.declare_queue("q")
    fill(host, range(COUNT))
    monkeypatch.setattr(Spill, "catch_up", adopt_some)
    assert queue.life.limit.page_out()
    store, given = queue.life.rows.store, iter(range(3))  # type: ignore[union-attr]

    def allocate() -> int:
        if next(given, None) is None:
            raise StoreFull("no numbers")
        return type(store).allocate(store)

    monkeypatch.setattr(store, "allocate", allocate)
    with pytest.raises(StoreFull):
        adopt_some(queue._pager)  # type: ignore[arg-type]
    host.check_invariants()
    assert adopted(queue) == SLICE
    monkeypatch.undo()
    assert drain(host, COUNT) == list(range(COUNT))
    host.check_invariants()
    host.close()


# -- on a thread that very many depend on


def test_a_thread_that_others_need_adopts_one_slice(host: VirtualHost, needed: Callable[[bool], None]) -> None:
    """A loader does the rest, publishers being held back until then; they are told when they may go on."""
    queue = host.declare_queue("q")
    fill(host, range(COUNT))
    told: list[bool] = []
    memory = host._memory
    with pytest.MonkeyPatch.context() as patch:
        pieces: list[Callable[[], bool]] = []
        patch.setattr(memory, "do_later", pieces.append)
        needed(True)
        assert queue.life.limit.page_out()
        assert adopted(queue) == SLICE
        published = host.publish(Message(b"%06d" % COUNT, routing_key="q"))
        assert published.throttled == (queue,)
        assert queue.when_room(lambda: told.append(True))
        assert queue.when_caught_up(lambda: told.append(True))
        needed(False)
    assert len(pieces) == 1
    memory.do_later(pieces[0])
    wait_until_blocked(lambda: told == [True, True])
    assert not queue.is_throttled
    assert drain(host, COUNT + 1) == list(range(COUNT + 1))


def test_a_publisher_that_others_need_hands_in_a_piece_and_does_not_wait(needed: Callable[[bool], None]) -> None:
    """What transient messages fill is written out by pieces, each when the one before is committed."""
    store = MemoryStore()
    host = VirtualHost(store=store, memory_limit=LIMIT)
    queue = host.declare_queue("q")
    assert queue.life.limit.page_out()
    store.hold()
    needed(True)
    throttled = 0
    for number in range(COUNT):
        throttled += bool(host.publish(Message(b"%06d" % number + b"x" * (LIMIT // COUNT), routing_key="q")).throttled)
    needed(False)
    assert throttled > 0
    assert queue.is_throttled
    store.release()
    assert queue.wait_for_room(timeout=30)
    assert drain(host, COUNT) == list(range(COUNT))
    host.check_invariants()
    host.close()


def test_a_ring_that_pages_evicts_a_few_on_a_thread_that_others_need(
    host: VirtualHost, needed: Callable[[bool], None]
) -> None:
    """A loader evicts the rest; the last message stays."""
    limit = COUNT * FEW
    queue = host.declare_queue("q", arguments={"x-max-length-bytes": limit})
    for number in range(limit // 6 - 1):
        host.publish(Message(b"%06d" % number, routing_key="q"))
    assert queue.life.limit.page_out()
    pieces: list[Callable[[], bool]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host._memory, "do_later", pieces.append)
        needed(True)
        depth = len(queue)
        host.publish(Message(bytes(limit), routing_key="q"))
        assert len(queue) >= depth - 4 * FEW
        needed(False)
    for piece in pieces:
        host._memory.do_later(piece)
    queue.housekeeping()
    wait_until_blocked(lambda: len(queue) == 1)


def test_a_commit_that_much_waits_for_holds_its_publisher_back(needed: Callable[[bool], None]) -> None:
    """On an I/O thread nothing waits for room in the store: the publisher is told when less waits for its commit."""
    store = MemoryStore(max_pending_bytes=100)
    host = VirtualHost(store=store, memory_limit=LIMIT)
    host.declare_queue("q", durable=True)
    publisher = host.publisher(lambda told: None)
    store.hold()
    needed(True)
    message = Message(bytes(1000), routing_key="q", persistent=True)
    held_back, told = [], []
    for _ in range(COUNT):
        publisher.publish(message)
        publisher.hand_in()
        held_back.append(publisher.is_held_back(lambda: told.append(store.statistics().pending_operations)))
    needed(False)
    assert not held_back[0]
    assert held_back[-1]
    assert not told
    store.release()
    host.wait_for_commits()
    assert len(told) == held_back.count(True)
    assert all(1 < left < COUNT for left in told), "others are committed while they go on"
    assert len(host.queue("q")) == COUNT
    host.close()
