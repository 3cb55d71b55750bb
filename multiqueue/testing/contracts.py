"""The contract of every queue, as test classes to derive from: for your queues, and for ours.

    class TestMyQueue(QueueContract):
        def make(self, maxsize=0):
            return MyQueue(maxsize)

`EntryListContract` is the same for a kind of broker queue (docs/guides/own-queue-kind.md).

Each suite is a plain class whose methods start with `test_`: pytest collects the derived class as it is,
`unittest` does if it is mixed into a `TestCase`. No method sleeps; a queue that never wakes a waiter fails with
the waiter's stack.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from queue import Empty, Full
from typing import Any

from ._blocked import wait_until_blocked
from ._patience import PATIENCE
from ._threads import Threads

BRIEFLY = 0.02


def expect(errors: type[BaseException] | tuple[type[BaseException], ...], call: Callable[[], object]) -> Any:
    """Call it, and return the exception of one of these types that it must raise."""
    try:
        result = call()
    except errors as error:
        return error
    raise AssertionError(f"returned {result!r} instead of raising {errors!r}")


class OfferableContract:
    """The tail of a queue. Override `make` and `elements`."""

    def make(self, maxsize: int = 0) -> Any:
        """A new, empty queue for at most `maxsize` elements; 0 means any number."""
        raise NotImplementedError

    def elements(self, queue: Any) -> list[Any]:
        """The elements in the queue, next one first; the queue may be emptied by this."""
        raise NotImplementedError

    def test_elements_keep_their_order(self) -> None:
        """The element that is put first comes first."""
        queue = self.make()
        for item in range(5):
            queue.put(item)
        assert self.elements(queue) == [0, 1, 2, 3, 4]

    def test_any_object_can_be_put(self) -> None:
        """None, False and an object that equals nothing are elements like any other."""
        odd = [None, False, 0, "", float("nan"), [], object()]
        queue = self.make()
        for item in odd:
            queue.put(item)
        found = self.elements(queue)
        assert len(found) == len(odd)
        assert all(one is other for one, other in zip(found, odd, strict=True))

    def test_a_full_queue_refuses_at_once(self) -> None:
        """`put_nowait` and `put(block=False)` raise `Full`, and put nothing."""
        queue = self.make(1)
        queue.put("a")
        expect(Full, lambda: queue.put_nowait("b"))
        expect(Full, lambda: queue.put("b", block=False))
        assert self.elements(queue) == ["a"]

    def test_a_full_queue_refuses_in_time(self) -> None:
        """`put(timeout=...)` raises `Full`, and not before the time is over."""
        queue = self.make(1)
        queue.put("a")
        started = time.monotonic()
        expect(Full, lambda: queue.put("b", timeout=BRIEFLY))
        assert time.monotonic() - started >= BRIEFLY
        assert self.elements(queue) == ["a"]

    def test_a_negative_timeout_is_an_error(self) -> None:
        """`put(timeout=-1)` raises `ValueError` when it would have to wait."""
        queue = self.make(1)
        queue.put("a")
        expect(ValueError, lambda: queue.put("b", timeout=-1))

    def test_a_blocked_put_goes_on_when_there_is_room(self) -> None:
        """A put that waits for room puts its element once others have been taken."""
        queue = self.make(1)
        queue.put("a")
        with Threads(PATIENCE) as threads:
            putter = threads.start(queue.put, "b")
            wait_until_blocked(putter.thread)
            assert self.elements(queue)[0] == "a"
            putter.result()


class PollableContract:
    """The head of a queue. Override `make` and `fill`."""

    def make(self, maxsize: int = 0) -> Any:
        """A new, empty queue."""
        raise NotImplementedError

    def fill(self, queue: Any, item: Any) -> None:
        """Put `item` so that it is taken after those before it."""
        raise NotImplementedError

    def test_elements_are_taken_in_order(self) -> None:
        """`get` takes the element that was put first, once."""
        queue = self.make()
        for item in range(5):
            self.fill(queue, item)
        assert [queue.get() for _ in range(5)] == [0, 1, 2, 3, 4]
        assert queue.empty()

    def test_an_empty_queue_says_so_at_once(self) -> None:
        """`get_nowait` and `get(block=False)` raise `Empty`."""
        queue = self.make()
        expect(Empty, queue.get_nowait)
        expect(Empty, lambda: queue.get(block=False))
        assert queue.qsize() == 0

    def test_an_empty_queue_says_so_in_time(self) -> None:
        """`get(timeout=...)` raises `Empty`, and not before the time is over."""
        queue = self.make()
        started = time.monotonic()
        expect(Empty, lambda: queue.get(timeout=BRIEFLY))
        assert time.monotonic() - started >= BRIEFLY

    def test_a_negative_timeout_of_a_take_is_an_error(self) -> None:
        """`get(timeout=-1)` raises `ValueError`."""
        queue = self.make()
        expect(ValueError, lambda: queue.get(timeout=-1))

    def test_a_blocked_take_gets_what_comes(self) -> None:
        """A `get` that waits returns the element that is put afterwards."""
        queue = self.make()
        with Threads(PATIENCE) as threads:
            taker = threads.start(queue.get)
            wait_until_blocked(taker.thread)
            self.fill(queue, "a")
            assert taker.result() == "a"

    def test_every_waiting_take_is_served(self) -> None:
        """Three takes that wait are all woken by three puts, each with another element."""
        queue = self.make()
        with Threads(PATIENCE) as threads:
            takers = [threads.start(queue.get) for _ in range(3)]
            for taker in takers:
                wait_until_blocked(taker.thread)
            for item in range(3):
                self.fill(queue, item)
            assert sorted(taker.result() for taker in takers) == [0, 1, 2]

    def test_size_and_emptiness_follow(self) -> None:
        """`qsize` counts what can be taken, `empty` says whether that is nothing."""
        queue = self.make()
        assert (queue.qsize(), queue.empty()) == (0, True)
        self.fill(queue, "a")
        assert (queue.qsize(), queue.empty()) == (1, False)
        queue.get()
        assert (queue.qsize(), queue.empty()) == (0, True)


class QueueContract(OfferableContract, PollableContract):
    """A whole queue in the manner of `queue.Queue`. Override `make`."""

    def elements(self, queue: Any) -> list[Any]:
        return [queue.get() for _ in range(queue.qsize())]

    def fill(self, queue: Any, item: Any) -> None:
        queue.put(item)

    def test_full_follows(self) -> None:
        """`full` is true at `maxsize` elements, and never without one."""
        queue = self.make(2)
        queue.put("a")
        assert not queue.full()
        queue.put("b")
        assert queue.full()
        queue.get()
        assert not queue.full()
        unbounded = self.make()
        for item in range(100):
            unbounded.put(item)
        assert not unbounded.full()

    def test_maxsize_is_told(self) -> None:
        """`maxsize` is the given number, 0 for no limit."""
        assert self.make(3).maxsize == 3
        assert self.make().maxsize == 0

    def test_join_waits_for_the_last_task(self) -> None:
        """`join` returns when `task_done` was called for every element, not when the queue is empty."""
        queue = self.make()
        for item in range(2):
            queue.put(item)
        finished = threading.Event()

        def join() -> bool:
            queue.join()
            return finished.is_set()

        with Threads(PATIENCE) as threads:
            joiner = threads.start(join)
            queue.get()
            queue.get()
            queue.task_done()
            wait_until_blocked(joiner.thread)
            finished.set()
            queue.task_done()
            assert joiner.result() is True

    def test_join_of_an_unused_queue_returns(self) -> None:
        """`join` does not wait when nothing was ever put, or all of it is done."""
        queue = self.make()
        queue.join()
        queue.put("a")
        queue.get()
        queue.task_done()
        queue.join()

    def test_too_many_tasks_done_is_an_error(self) -> None:
        """`task_done` more often than there were elements raises `ValueError`."""
        queue = self.make()
        queue.put("a")
        queue.task_done()
        expect(ValueError, queue.task_done)


class EntryListContract:
    """A kind of broker queue. Set `kind` to its name, which is registered; override `message` where it matters.

    The lists are made, and entries put on them, as a broker queue does.
    """

    kind: Any
    options: Any = None  # what queues are declared with as kind_options
    settings: Any = None  # further fields of QueueSettings, as a dictionary

    def message(self, number: int) -> Any:
        """The `number`-th message; they should differ in what the kind orders by, and some be equal in it."""
        return self._broker.Message(
            str(number).encode() * (1 + number * 7 % 5), priority=number * 7 % 10, headers={"key": number * 7 % 5}
        )

    @property
    def _broker(self) -> Any:
        from .. import broker  # here: the contracts of the core need no broker

        return broker

    def _settings(self) -> Any:
        return self._broker.QueueSettings(kind=self.kind, kind_options=self.options, **(self.settings or {}))

    def make(self) -> Any:
        """A new, empty list."""
        return self._broker.make_entry_list(self._settings(), "the contract's queue")

    def add(self, entries: Any, number: int) -> Any:
        """Put the `number`-th message on the list, as a queue would."""
        message = self.message(number)
        entry = self._broker.Entry(self._broker.BrokerQueue("contract"), message, 1)
        entry.key = entries.key_of(message)
        entries.add(entry)
        return entry

    def test_a_new_list_is_empty(self) -> None:
        """It has no entry, and nothing behind its start."""
        entries = self.make()
        assert (len(entries), list(entries), entries.after(entries.start)) == (0, [], None)

    def test_keys_are_plain_values(self) -> None:
        """`key_of` gives a number, text, None, or a tuple of these: to compare them runs no user code under a lock."""
        entries = self.make()
        for number in range(50):
            key = entries.key_of(self.message(number))
            for each in key if type(key) is tuple else (key,):
                plain = each is None or type(each) in (int, float, str, bool)
                assert plain, f"key_of gave {each!r}, a {type(each).__name__}"

    def test_positions_rise_in_service_order(self) -> None:
        """Iteration, and `after` from the start on, give every entry once, and their positions rise strictly."""
        entries = self.make()
        added = [self.add(entries, number) for number in range(300)]
        in_order = list(entries)
        assert len(in_order) == len(entries) == len(added)
        assert set(map(id, in_order)) == set(map(id, added))
        positions = [entry.position for entry in in_order]
        assert all(before < behind for before, behind in zip([entries.start, *positions], positions, strict=False))
        assert _walked(entries) == in_order

    def test_a_position_stays_an_entrys_own(self) -> None:
        """While others come and go an entry keeps its position, `get` finds it there, and no later one has it."""
        entries = self.make()
        first = {entry.position: entry for entry in [self.add(entries, number) for number in range(100)]}
        for position in list(first)[::2]:
            entries.remove(first[position])
        later = [self.add(entries, number) for number in range(100)]
        assert not {entry.position for entry in later} & set(first)
        for index, (position, entry) in enumerate(first.items()):
            assert entry.position == position
            assert entries.get(position) is (None if index % 2 == 0 else entry)
        entries.check_invariants()

    def test_readers_go_on_behind_what_is_gone(self) -> None:
        """`after` the position of an entry that was removed is the one that stood behind it."""
        entries = self.make()
        for number in range(60):
            self.add(entries, number)
        in_order = list(entries)
        for entry, behind in pairwise(in_order[1:]):
            entries.remove(entry)
            assert entries.after(entry.position) is behind
        assert entries.after(in_order[0].position) is in_order[-1]
        assert entries.after(in_order[-1].position) is None

    def test_any_adds_and_removals(self) -> None:
        """A list of those that live, sorted by position, agrees with it after each of some hundred changes."""
        for seed in range(3):
            dice = random.Random(seed)
            entries = self.make()
            living: list[Any] = []
            for number in range(400):
                if living and dice.random() < 0.4:
                    gone = living.pop(dice.choice([0, -1, dice.randrange(len(living))]))
                    entries.remove(gone)
                    assert entries.get(gone.position) is None
                else:
                    living.append(self.add(entries, number))
                    living.sort(key=lambda entry: entry.position)
                assert len(entries) == len(living)
            entries.check_invariants()
            assert list(entries) == living == _walked(entries)

    def test_a_ring_may_take_every_entry(self) -> None:
        """`least_significant` gives each entry once."""
        entries = self.make()
        for number in range(50):
            self.add(entries, number)
        assert sorted(map(id, entries.least_significant())) == sorted(map(id, entries))

    def test_a_queue_serves_in_the_lists_order(self) -> None:
        """Messages leave a broker queue in the order of the list; one that is given back comes first again."""
        with self._broker.Broker() as broker:
            queue = broker.declare_queue("q", settings=self._settings())
            for number in range(40):
                queue.put(self.message(number))
            shown = [message.body for message in queue.browse()]
            received = broker.get("q")
            received.release()
            served = []
            while (received := broker.get("q", auto_accept=True)) is not None:
                served.append(received.body)
            assert served == shown
            queue.check_invariants()


def _walked(entries: Any) -> list[Any]:
    found, position = [], entries.start
    while (entry := entries.after(position)) is not None:
        found.append(entry)
        position = entry.position
    return found
