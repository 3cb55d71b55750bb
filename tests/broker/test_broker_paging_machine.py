"""The state machine of paging, without threads and I/O: its invariants after every step of long histories."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from broker_parts_support import END, LEVEL_SHIFT, Account, Loads, Paging, Positions, Share
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis_support import examples
from paging_model_support import COLOURS, ENTRY_BYTES, Consumer, PagingModel, Row, random_history, slices_of


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.slow(selected=True)) for block in range(1, 8))]
)
def test_invariants_hold_after_every_step_of_random_histories(block: int) -> None:
    """After any mix of events, with up to three loads in flight, accounts, lists and order are as promised."""
    for seed in range(40 * block, 40 * (block + 1)):
        random_history(seed, levels=3 if seed % 4 == 3 else 1)


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.slow(selected=True)) for block in range(1, 4))]
)
def test_invariants_hold_where_levels_take_turns(block: int) -> None:
    """The same for an area by key: a level whose turn it is is served next, wherever its messages are."""
    for seed in range(40 * block, 40 * (block + 1)):
        random_history(seed, levels=(1, 3, 6, 12)[seed % 4], is_keyed=True)


def test_a_load_that_takes_back_what_it_gave_is_not_repeated() -> None:
    """One level gives way for a message of another that has no room all the same: the loader comes to an end."""
    random_history(11_433, levels=3, is_keyed=True)


def test_a_list_that_ends_for_a_message_that_comes_back_hides_no_other() -> None:
    """The room that one list needs for it is had from another, which is gone with that: the next has its turn."""
    random_history(12_058, steps=300)


@pytest.mark.slow
def test_invariants_hold_in_many_longer_histories() -> None:
    """The same for thousands of histories, and for longer ones."""
    for seed in range(10_000, 13_000):
        random_history(seed, steps=300, levels=3 if seed % 4 == 3 else 1)
        random_history(seed, levels=(1, 3, 6, 12)[seed % 4], is_keyed=True)


def test_a_level_is_served_in_its_turn_at_any_depth() -> None:
    """A hundred levels, of which the budget holds a few messages, are each served once before any is served twice."""
    model = PagingModel(limit=8000, is_keyed=True)
    for number in range(500):
        model.publish(size=100, level=number % 100)
    consumer = model.join(None, credit=10)
    levels: list[int] = []
    while len(levels) < 500:
        model.quiesce()
        while (row := model.take(consumer, settles=True)) is not None:
            levels.append(row.position >> LEVEL_SHIFT)
    for begin in range(0, 500, 100):
        assert sorted(levels[begin : begin + 100]) == list(range(100))
    model.end()


def test_a_message_larger_than_what_a_load_brings_is_served_in_its_turn() -> None:
    """A load that had no room for it is followed by one for it alone."""
    model = PagingModel(limit=8000, is_keyed=True)
    for level in range(5):
        for _ in range(10):
            model.publish(size=1900 if level == 3 else 100, level=level)
    consumer = model.join(None, credit=5)
    levels: list[int] = []
    while len(levels) < 50:
        model.quiesce()
        row = model.take(consumer, settles=True)
        assert row is not None
        levels.append(row.position >> LEVEL_SHIFT)
    assert all(sorted(levels[begin : begin + 5]) == list(range(5)) for begin in range(0, 50, 5))
    model.end()


def test_levels_that_come_and_go_leave_nothing() -> None:
    """A level of which nothing is left, and that is forgotten, costs nothing; it may come again."""
    model = PagingModel(limit=8000, is_keyed=True)
    consumer = model.join(None)
    for number in range(200):
        for level in (number, 7):
            model.publish(size=100, level=level)
            assert model.take(consumer, settles=True)
        model.commit_deletes()
        model.forget(number)
    windows = consumer.target.windows
    assert windows is not None
    assert len(model.area.last) <= 1
    assert [len(each) for each in (windows.open, windows.counts, consumer.target.scans)] == [0, 0, 1]
    model.end()


class PagingMachine(RuleBasedStateMachine):
    """Hypothesis chooses the events, and shrinks a history that breaks a promise. The model checks itself."""

    model: PagingModel

    @initialize(limit=st.integers(3000, 9000), levels=st.sampled_from([1, 3]), at_once=st.sampled_from([2, 256]))
    def begin(self, limit: int, levels: int, at_once: int) -> None:
        self.slices = ExitStack()
        self.slices.enter_context(slices_of(at_once))
        self.limit = limit
        self.model = PagingModel(limit, levels)

    def _pick(self, rows: list[Row], place: int) -> Row:
        return rows[place % len(rows)]

    @rule(size=st.sampled_from([1, 60, 200, 700]), colour=st.sampled_from(COLOURS), level=st.integers(0, 2))
    def publish(self, size: int, colour: str, level: int) -> None:
        self.model.publish(size, colour, level=level % len(self.model.area.last))

    @rule(size=st.sampled_from([1, 60, 200]), colour=st.sampled_from(COLOURS))
    def publish_unbacked(self, size: int, colour: str) -> None:
        self.model.publish(size, colour, backed=False)

    @rule()
    def refill(self) -> None:
        self.model.refill()

    @rule(size=st.sampled_from([1, 60, 200]), backed=st.booleans())
    def adopt_taken(self, size: int, backed: bool) -> None:
        self.model.adopt_taken(size, backed=backed)

    @rule(place=st.integers(0, 9))
    def back(self, place: int) -> None:
        if unbacked := self._unbacked():
            self.model.back(self._pick(unbacked, place))

    @rule(place=st.integers(0, 9))
    def keep(self, place: int) -> None:
        if unbacked := self._unbacked():
            self.model.keep(self._pick(unbacked, place))

    def _unbacked(self) -> list[Row]:
        """What only memory has, and a store can keep."""
        return [self.model.rows[each] for each in self.model.area.unbacked if each not in self.model.kept]

    @precondition(lambda self: len(self.model.consumers) < 5)
    @rule(colours=st.sampled_from([None, ("red",), ("green", "blue")]), browses=st.booleans(), credit=st.integers(0, 2))
    def join(self, colours: tuple[str, ...] | None, browses: bool, credit: int) -> None:
        self.model.try_join(colours, browses=browses, credit=credit)

    @precondition(lambda self: self.model.consumers)
    @rule(place=st.integers(0, 4))
    def leave(self, place: int) -> None:
        self.model.leave(self.model.consumers[place % len(self.model.consumers)])

    @precondition(lambda self: self.model.consumers)
    @rule(place=st.integers(0, 4), hungry=st.booleans())
    def set_hungry(self, place: int, hungry: bool) -> None:
        self.model.set_hungry(self.model.consumers[place % len(self.model.consumers)], hungry)

    @precondition(lambda self: self.model.consumers)
    @rule(place=st.integers(0, 4), settles=st.booleans())
    def take(self, place: int, settles: bool) -> None:
        self.model.take(self.model.consumers[place % len(self.model.consumers)], settles=settles)

    @precondition(lambda self: self.model.taken())
    @rule(place=st.integers(0, 99))
    def settle(self, place: int) -> None:
        self.model.settle(self._pick(self.model.taken(), place))

    @precondition(lambda self: self.model.taken())
    @rule(place=st.integers(0, 99), with_body=st.booleans())
    def requeue(self, place: int, with_body: bool) -> None:
        self.model.requeue(self._pick(self.model.taken(), place), with_body=with_body)

    @precondition(lambda self: self.model.ready())
    @rule(place=st.integers(0, 99))
    def seize(self, place: int) -> None:
        self.model.seize(self._pick(self.model.ready(), place))

    @rule()
    def commit_deletes(self) -> None:
        self.model.commit_deletes()

    @precondition(lambda self: len(self.model.flights) < 3)
    @rule()
    def plan(self) -> None:
        self.model.plan()

    @precondition(lambda self: self.model.flights)
    @rule(place=st.integers(0, 2), only_read=st.booleans())
    def load(self, place: int, only_read: bool) -> None:
        flight = self.model.flights[place % len(self.model.flights)]
        if only_read:
            self.model.read(flight)
        else:
            self.model.bring(flight)

    @rule()
    def clear_leaving(self) -> None:
        self.model.clear_leaving()

    @rule()
    def quiesce(self) -> None:
        self.model.quiesce()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            with self.slices:
                self.model.end()


PagingMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestPagingMachine = PagingMachine.TestCase


def test_one_match_behind_many_others_is_found_in_one_scan() -> None:
    """With a consumer that wants red alone, each load looks at further messages, never twice at the same."""
    model = PagingModel(limit=4000)
    for _ in range(300):
        model.publish(size=50, colour="blue")
    red = model.publish(colour="red")
    consumer = model.join(("red",))
    steps = model.quiesce()
    assert model.take(consumer) is red
    assert steps <= 302, f"{steps} loads for 301 headers, one each: this budget affords no larger page"


def test_a_consumer_gets_its_message_while_others_hold_much_unsettled() -> None:
    """Messages that consumers have and do not settle give way: they starve no queue."""
    model = PagingModel(limit=4000)
    greedy = model.join(None)
    for _ in range(20):
        model.publish(size=300)
    for _ in range(15):
        model.quiesce()
        assert model.take(greedy) is not None
    model.leave(greedy)
    last = model.publish(size=900, colour="green")
    choosy = model.join(("green",))
    model.quiesce()
    assert model.take(choosy) is last


def test_a_consumer_without_a_bound_leaves_room_for_others() -> None:
    """A consumer without a limit that settles no message is given no more once they take three eighths of the
    budget: one that was promised little gets that, and one that only looks sees on. Settling lets the first go on."""
    model = PagingModel(limit=4000)
    greedy, modest = model.join(None, credit=0), model.join(("green",), credit=1)
    browser = model.join(("red",), browses=True, credit=0)
    rows = [model.publish(size=10) for _ in range(60)]
    taken = 0
    while model.quiesce() >= 0 and model.take(greedy) is not None:
        taken += 1
    assert taken == 16, "records of 96 bytes, until they take 1500"
    green = model.publish(size=900, colour="green")
    model.quiesce()
    assert model.take(modest) is green
    assert model.take(browser) is rows[16]
    model.settle(rows[0])
    model.settle(rows[1])
    model.quiesce()
    assert model.take(greedy) is rows[16]


def test_a_list_refers_to_the_cache_where_the_budget_ends_and_catches_up() -> None:
    """Beyond the high-water mark entries are cache references; taking the first ones makes the next ones direct."""
    model = PagingModel(limit=4000)
    consumer = model.join(None)
    rows = [model.publish(size=300) for _ in range(10)]
    target = consumer.target
    assert target.mark < END
    assert 0 < target.direct < 10
    for row in rows:
        model.quiesce()
        assert model.take(consumer) is row
        model.settle(row)
    assert target.mark == END


def test_the_head_cache_is_empty_while_lists_need_the_memory() -> None:
    """The head cache has memory that no other user wants, and is the first to give."""
    model = PagingModel(limit=4000)
    for _ in range(12):
        model.publish(size=300)
    assert model.paging.amounts[Account.HEAD] == 3900 // 300 * 300 if 12 * 300 > 3900 else 3600
    model.join(None)
    model.quiesce()
    assert model.paging.amounts[Account.TARGET] > 0
    assert model.paging.amounts[Account.HEAD] < 3600


@dataclass
class Returned:
    """Messages before a consumer of everything and one of red alone; the first of them was taken and came back."""

    model: PagingModel
    anyone: Consumer
    reds: Consumer
    first: Row

    @classmethod
    def of(cls, count: int, *, with_body: bool) -> Returned:
        model = PagingModel(limit=8000)
        anyone, reds = model.join(None), model.join(("red",))
        rows = [model.publish(size=50) for _ in range(count)]
        model.quiesce()
        assert model.take(anyone) is rows[0]
        model.requeue(rows[0], with_body=with_body)
        return cls(model, anyone, reds, rows[0])


def test_a_returned_message_goes_into_every_list_that_has_passed_it() -> None:
    """A redelivery is for all consumers that want it, at its place, before what they have not got yet."""
    returned = Returned.of(4, with_body=False)
    returned.model.quiesce()
    assert returned.model.take(returned.reds) is returned.first


def test_a_returned_message_is_there_at_once_for_a_list_that_had_it() -> None:
    """No load asks the selector of a list again that named the message when it was taken."""
    returned = Returned.of(3, with_body=True)
    assert returned.model.take(returned.reds) is returned.first


def test_a_message_that_is_met_while_somebody_has_it_comes_back_to_the_list_that_wants_it() -> None:
    """A list that came too late to name it is asked by its scan, and does not look at it a second time."""
    model = PagingModel(limit=8000)
    anyone = model.join(None)
    rows = [model.publish(size=50, colour=colour) for colour in ("red", "blue", "red")]
    model.quiesce()
    assert [model.take(anyone) for _ in rows] == rows
    reds = model.join(("red",))
    model.quiesce()
    for row in reversed(rows):
        model.requeue(row)
    assert [model.take(reds), model.take(reds), model.take(reds)] == [rows[0], rows[2], None]
    assert not model.plan()


def test_the_budget_can_be_changed_while_running() -> None:
    """A smaller budget is kept at once, a larger one used by the next loads."""
    model = PagingModel(limit=8000)
    consumer = model.join(None)
    for _ in range(20):
        model.publish(size=300)
    model.quiesce()
    before = consumer.target.direct
    model.set_limit(3000)
    assert consumer.target.direct < before
    model.set_limit(20_000)
    model.quiesce()
    assert consumer.target.direct == 20
    model.end()


def test_a_page_that_was_read_before_a_cut_is_not_taken() -> None:
    """Between a page's reading and its return the list may be cut: what was read would leave a gap."""
    model = PagingModel(limit=8000)
    for _ in range(10):
        model.publish(size=60)
    consumer = model.join(("red",))
    model.quiesce()
    model.paging.cut_last(consumer.target)
    model.plan()
    flight = model.flights[0]
    assert flight.load.spans
    model.read(flight)
    model.paging.cut_last(consumer.target)
    model.bring(flight)
    model.quiesce()
    assert list(consumer.target.entries) == list(range(1, 11))


def test_what_the_head_cache_has_is_not_read() -> None:
    """A consumer that comes to messages which are in memory still is given them without a look into the store."""
    model = PagingModel(limit=100_000)
    for number in range(20):
        model.publish(size=60, backed=number % 3 > 0)
    consumer = model.join(None)
    while model.plan():
        assert not model.flights
    assert list(consumer.target.entries) == list(range(1, 21))
    model.end()


def test_entries_stop_at_their_share_and_the_tail_opens() -> None:
    """A list of small messages does not eat the budget by its entries: the rest is found again by scanning."""
    model = PagingModel(limit=8000)
    consumer = model.join(None)
    for _ in range(100):
        model.publish(size=1)
    assert model.paging.amounts[Account.ENTRIES] <= 2000
    assert consumer.target.open_level == 0
    taken = 0
    while True:
        model.quiesce()
        row = model.take(consumer)
        if row is None:
            break
        model.settle(row)
        taken += 1
    assert taken == 100


def test_a_thousand_lists_share_one_budget() -> None:
    """With a thousand consumers that want different things each has its message, and the sum is kept."""
    paging = Paging(4 << 20, ENTRY_BYTES)
    model = PagingModel(4 << 20)
    model.paging, model.loads = paging, Loads(paging)
    for _ in range(1000):
        paging.set_hungry(paging.join(model.area, "c", Share(1)), True)
    model.check = lambda: None  # type: ignore[method-assign]  # it recounts a thousand lists
    for _ in range(5):
        model.publish(size=1000)
    assert all(target.direct for target in paging.lists)
    assert paging.used == 5 * 1000 + ENTRY_BYTES * sum(len(target.entries) for target in paging.lists)
    assert paging.used <= paging.limit


def test_positions_are_sorted_and_found_in_buckets() -> None:
    """A set of positions gives the same answers as a sorted list, whatever the order of insertion."""
    positions = Positions()
    expected: list[int] = []
    for number in [*range(0, 3000, 3), *range(2999, 0, -7)]:
        assert positions.add(number) == (number not in expected)
        expected = sorted({*expected, number})
    positions.check_invariants()
    assert list(positions) == expected
    assert positions.at_or_after(1000) == min(each for each in expected if each >= 1000)
    assert positions.before(1000) == max(each for each in expected if each < 1000)
    assert positions.between(10, 2000) == [each for each in expected if 10 < each <= 2000]
    for number in expected[::2]:
        assert positions.discard(number)
        assert not positions.discard(number)
    positions.check_invariants()
    assert list(positions) == expected[1::2]


@pytest.mark.parametrize("colours", [None, ("red",)])
def test_a_long_list_leaves_in_slices(colours: tuple[str, ...] | None) -> None:
    """Its last consumer's end holds the memory's lock for one slice; a loader lets go of the rest."""
    model = PagingModel(limit=1_000_000)
    consumer = model.join(colours)
    for _ in range(100):
        model.publish(size=1)
    model.quiesce()
    target = consumer.target
    with slices_of(30):
        model.leave(consumer)
        left = [len(target.entries)]
        while model.paging.leaving:
            model.clear_leaving()
            left.append(len(target.entries))
    assert left == [70, 40, 10, 0]
    assert not model.area.lists
    assert len(model.area.head) == 100
    model.end()


def test_who_comes_while_a_long_list_leaves_gets_everything_in_order() -> None:
    """What the old list names still, what came back and what has come since: nothing is missed, nothing comes twice."""
    model = PagingModel(limit=1_000_000)
    first = model.join(None)
    for _ in range(100):
        model.publish(size=1)
    model.quiesce()
    taken = [model.take(first) for _ in range(10)]
    with slices_of(30):
        model.leave(first)
        for row in taken:
            assert row is not None
            model.requeue(row, with_body=True)
        second = model.join(None)
        model.publish(size=1)
        while model.plan():
            while model.flights:
                model.bring(model.flights[0])
            model.clear_leaving()
        rows = [model.take(second) for _ in range(101)]
    assert [row.position for row in rows if row is not None] == list(range(1, 102))
    model.end()


def test_a_long_list_that_leaves_gives_its_room_to_who_needs_it() -> None:
    """A message that stays in memory alone pushes it out: no publisher has to wait for a loader."""
    model = PagingModel(limit=8000)
    consumer = model.join(("red",))
    for _ in range(15):
        model.publish(size=200)
    model.quiesce()
    with slices_of(2):
        model.leave(consumer)
        assert model.paging.leaving
        for _ in range(12):
            model.publish(size=600, backed=False)
        assert not model.paging.leaving
    model.end()


def test_a_queue_is_deleted_while_a_long_list_leaves() -> None:
    """Nothing of the list is charged any more, nor is it left among those that leave."""
    model = PagingModel(limit=1_000_000)
    consumer = model.join(None)
    for _ in range(100):
        model.publish(size=1)
    with slices_of(30):
        model.leave(consumer)
        paging = model.paging
        paging.close_area(model.area)
        assert not paging.leaving
        assert not model.area.lists
        while model.area.slots:
            paging.clear_some(model.area, 30)
    assert paging.amounts == [0] * len(Account)
    paging.check_invariants()
