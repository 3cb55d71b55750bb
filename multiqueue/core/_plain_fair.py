"""The tails of a fair queue in the engine in Python: what `_fair.h` has, which says where they come from and go.

State       The lock of the head guards all here, as in `_plain_head`. A bucket of the table is a tuple, whose keys are
            compared without the lock: a tail is added to the bucket that was looked through, or the look is repeated.
            A tail stands in the circle of those it is nested in, `outer.inner`, or in that of the head.
Strikes     As in `_plain_head`. `left` and `owed` are counted in the runs in which elements come and leave. A take is
            counted in flight before it takes, and that is undone if it is struck in between. An exception may cost a
            charge. Where one strikes behind the take by which a tail has gone, and another thread has put an element
            of that key meanwhile, the key has two tails until one is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ._parking import Line, acquire_before, wake_all
from ._plain_fifo import CLOSED, OPEN, PUT, SHUT, UNBOUNDED, Fifo
from ._plain_head import END, Head, shim
from ._ring import Level

R = TypeVar("R")

GONE = 3


class FairFifo(Fifo):
    """One tail of a fair queue; also what the classes over the engine know as it."""

    __slots__ = (
        "_next",
        "_previous",
        "_round",
        "_served",
        "costs",
        "fading",
        "flying",
        "hash",
        "inner",
        "is_fading",
        "key",
        "nested",
        "outer",
        "share",
        "usual",
    )

    def __init__(self, head: FairHead, key: Any, number: int, outer: FairFifo | None, usual: int | None) -> None:
        super().__init__()
        self.head: FairHead = head
        self.key, self.hash, self.outer = key, number, outer
        self.costs: deque[float] = deque()  # of `items`; 0 for one that has been charged
        self.capacity = head.capacity
        self.limit = -1
        self.max_in_flight = self.usual = usual
        self.share = 1.0
        self.flying = 0  # elements in flight, those of `nested` too, while there is a limit
        self.nested = 0  # tails that name this as `outer` and have not gone
        self.inner = Level(0, 0.0)
        self.fading: deque[FairFifo] = deque()  # of those in `inner`
        self.is_fading = False
        self.closed = GONE
        self._next: FairFifo | None = None
        self._previous: FairFifo | None = None
        self._served = 0.0
        self._round = 0

    @property
    def _engine_fifo(self) -> FairFifo:
        return self

    @property
    def _engine_head(self) -> FairHead:
        return self.head

    def qsize(self) -> int:
        return len(self.items)

    def named(self, queue: Any, item: Any) -> tuple[type[tuple[Any, ...]], tuple[Any, Any]]:
        return shim.fair_taken, (self.key, item)

    def is_ready(self) -> bool:
        return (
            bool((self.items or self.inner.cursor is not None) and self.attached)
            and not self.disabled_by
            and (self.max_in_flight is None or self.flying < self.max_in_flight)
        )

    def is_idle(self) -> bool:
        return (
            bool(self.attached and not (self.items or self.nested or self.putters or self.disabled_by))
            and self.share == 1.0
            and self.max_in_flight == self.usual
            and (self.max_in_flight is None or self.flying <= 0)
        )

    def put_locked(self, one: tuple[Any], cost: tuple[float], block: bool, deadline: float | None) -> int | None:
        head = self.head
        outcome = head.wait_locked(self.putters, self.room_locked, block, deadline)
        if outcome is PUT:
            items, costs = self.items, self.costs
            if self.closed:  # by a signal handler
                return CLOSED
            if cost != (1.0,):
                head.is_uneven = True
            items += one
            costs += cost
            head.left += 1
            head.owed += 1
        return outcome

    def sweep_locked(self) -> deque[Any]:
        head, items, costs = self.head, self.items, self.costs
        swept: deque[Any] = deque()
        while True:
            if not items:
                return swept
            swept += (items[0],)
            del items[0], costs[0]
            head.left -= 1
            head.owed -= 1

    def assign_locked(self, name: str, value: Any) -> bool:
        if self.closed == GONE:
            return False
        if name == "weight":
            self.share = value
            self.head.is_uneven = self.head.is_uneven or value != 1.0
        else:
            if self.max_in_flight is None or value is None:
                self.flying = 0
            self.max_in_flight = value
        return True

    def replace_reasons_locked(self, before: frozenset[Any] | None, after: frozenset[Any]) -> bool:
        return self.closed != GONE and super().replace_reasons_locked(before, after)

    def check_locked(self) -> None:
        assert (self._next is not None) == self.is_ready(), "what is ready is in its circle, and nothing else"
        assert len(self.items) == len(self.costs), "each element has a cost"
        assert self.is_fading or not self.is_idle(), "a tail that has nothing has gone"
        assert not (self.putters and self.room_locked() is not None), "no putter waits for room while there is room"
        assert self in self.head.table[self.hash], "it is in the table"


class FairHead(Head):
    """The head of a fair queue."""

    __slots__ = (
        "capacity",
        "fading",
        "gone",
        "inner",
        "is_uneven",
        "joiners",
        "left",
        "max_in_flight",
        "owed",
        "table",
    )

    def __init__(self, capacity: int | None, max_in_flight: int | None) -> None:
        super().__init__()
        self.capacity, self.max_in_flight = capacity, max_in_flight
        self.inner = Level(0, 0.0)
        self.fading: deque[FairFifo] = deque()
        self.is_uneven = False  # once a cost or a weight is not 1
        self.gone: list[FairFifo] = []  # to be dropped without the lock, with their keys
        self.joiners = Line()
        self.left = 0  # elements that wait
        self.owed = 0  # elements for which task_done() has not been called
        self.table: dict[int, tuple[FairFifo, ...]] = {}

    def size(self) -> int:
        return self.left

    def locked(self, tail: Any, function: Callable[..., R], *args: Any) -> R:  # type: ignore[override]
        result = super().locked(tail, function, *args)
        self.drop_gone()
        return result

    def drop_gone(self) -> None:
        """Without the lock."""
        while self.gone:
            del self.gone[-1:]  # a signal handler may have emptied it

    def join(self) -> None:
        self.locked(None, self.wait_locked, self.joiners, self.done_locked, True, None)

    def done_locked(self) -> bool | None:
        return self.owed <= 0 or None

    def task_done_locked(self, tail: FairFifo | None) -> bool:
        if self.owed <= 0:
            return False
        each = tail
        while each is not None:
            if each.flying > 0:
                each.flying -= 1
            each = each.outer
        self.owed -= 1
        if self.owed <= 0:
            wake_all(self.joiners)
        return True

    def take(
        self, queue: Any, own: Any, block: bool = True, deadline: float | None = None, is_selected: bool = False
    ) -> tuple[Any, Any] | None:
        lock = self.lock
        taken = item = None
        counted: list[FairFifo] = []
        try:
            if deadline is None:
                lock.acquire()
            elif not acquire_before(lock, deadline):
                return None
            while True:
                tail: Any = self.wait_locked(self.takers, self.look_locked, block, deadline)
                if tail is None or tail is END:
                    break
                self._count_locked(tail, counted)
                items, costs = tail.items, tail.costs
                if items:  # else a signal handler has taken it
                    item, cost = items[0], costs[0]
                    del items[0], costs[0]
                    self.left -= 1
                    taken = tail
                    break
                self._discount_locked(counted)
            if taken is not None:
                self._charge_locked(taken, cost)
                self.settle_locked(taken)
                if self.is_closed:
                    self.wake_takers_locked()
            lock.release()
            if self.gone:
                self.drop_gone()
        except BaseException:
            if taken is None:
                self._discount_locked(counted)
            self.mend(None, [] if taken is None else [(taken, item)])
            raise
        if tail is END:
            raise shim.ending(queue)
        return None if taken is None else (taken, item)

    def _count_locked(self, tail: FairFifo, counted: list[FairFifo]) -> None:
        each: FairFifo | None = tail
        while each is not None:
            if each.max_in_flight is not None:
                each.flying += 1
                counted += (each,)
            each = each.outer

    def _discount_locked(self, counted: list[FairFifo]) -> None:
        while counted:
            each = counted[-1]
            del counted[-1]
            each.flying -= 1
            self.place_locked(each)

    def _charge_locked(self, tail: FairFifo, cost: float) -> None:
        each: FairFifo | None = tail
        while each is not None and cost:
            (each.outer or self).inner.charge(each, cost / each.share)
            each = each.outer

    def untake_locked(self, source: Any, item: Any) -> None:
        """`item` is back, and not charged again."""
        source.costs.appendleft(0.0)
        self.left += 1
        source.items.appendleft(item)
        each = source
        while each is not None:
            if each.flying > 0:
                each.flying -= 1
            each = each.outer
        while not source.attached:
            each = source
            while each.outer is not None and not each.outer.attached:
                each = each.outer
            self.come_locked(each, self.table.get(each.hash, ()))

    def mend(self, tail: Any, taken: list[Any] | None = None) -> None:
        lock = self.lock
        if not lock._is_owned():
            lock.acquire()
        while taken:
            source, item = taken[-1]
            del taken[-1]
            self.untake_locked(source, item)
            self.settle_locked(source)
        if tail is not None:
            self.settle_locked(tail)
        tails = list(self.tails)  # to be dropped without the lock, with their keys
        for each in tails:  # one may have been added for an element that did not come
            self.reap_locked(each)
        self.wake_takers_locked()
        lock.release()

    # ---- what follows from elements and counts --------------------------------------------------------------

    def settle_locked(self, tail: Any) -> None:
        super().settle_locked(tail)
        if self.owed <= 0 and self.joiners:
            wake_all(self.joiners)
        self.reap_locked(tail)

    def place_locked(self, tail: Any) -> None:
        each = tail
        while each is not None:
            level = (each.outer or self).inner
            while (is_ready := each.is_ready()) is not (each._next is not None):  # a signal handler may change it
                if is_ready:
                    level.join(each, True)
                else:
                    level.leave(each)
            if not each.items and each.inner.cursor is None:
                each._round = 0  # what it has not used of its turn is not kept for later
            each = each.outer

    def due_locked(self) -> Any:
        while True:
            tail = self.inner.cursor
            while tail is not None and not tail.items and tail.inner.cursor is not None:
                tail = tail.inner.cursor
            if tail is None or tail.items:
                return tail
            self.place_locked(tail)

    def look_locked(self) -> Any:
        tail = self.due_locked()
        return END if tail is None and self.is_closed and self.left <= 0 else tail

    # ---- coming and going -----------------------------------------------------------------------------------

    def add_locked(self, tail: FairFifo, bucket: tuple[FairFifo, ...]) -> bool:
        """Add `tail` to the bucket that was looked through. False: that is another one now, or the queue is shut."""
        if self.is_closed:
            return False
        self.come_locked(tail, bucket)
        return bool(tail.attached)

    def come_locked(self, tail: FairFifo, bucket: tuple[FairFifo, ...]) -> None:
        """Add `tail`, unless it is there, its bucket is another one, or what it is nested in has gone."""
        table, number, outer = self.table, tail.hash, tail.outer
        grown = (*bucket, tail)
        if tail.attached or (outer is not None and not outer.attached):
            return
        if table[number] is not bucket if number in table else bucket:
            return
        table[number] = grown
        self.tails[tail] = None
        tail.attached = True
        tail.closed = SHUT if self.is_closed else OPEN
        tail.limit = -1 if self.is_closed else UNBOUNDED if tail.capacity is None else tail.capacity
        if outer is not None:
            outer.nested += 1

    def reap_locked(self, tail: Any) -> None:
        """Have `tail` go, and those it is nested in, if they have nothing; and those that have faded beside them."""
        each = tail
        while each is not None:
            owner: Any = each.outer or self
            level, fading = owner.inner, owner.fading
            if not each.is_fading and each.is_idle():
                if self.is_uneven and level.cursor is not None and each._served > level.line:
                    each.is_fading = True
                    fading += (each,)
                else:
                    self.go_locked(each)
            while fading:
                first = fading[0]
                if first.is_idle() and level.cursor is not None and first._served > level.line:
                    break
                if fading[0] is first:  # else a signal handler's operation came in between
                    first.is_fading = False
                    del fading[0]
                    self.go_locked(first)
            each = each.outer

    def go_locked(self, tail: FairFifo) -> None:
        while tail.is_idle():
            bucket = self.table.get(tail.hash, ())
            rest = tuple([each for each in bucket if each is not tail])
            self.gone.append(tail)
            if tail.attached and self.table[tail.hash] is bucket and not (tail.items or tail.nested or tail.putters):
                if rest:
                    self.table[tail.hash] = rest
                else:
                    del self.table[tail.hash]
                del self.tails[tail]
                tail.attached = False
                tail.closed = GONE
                tail.limit = -1
                if tail.outer is not None:
                    tail.outer.nested -= 1

    def check_locked(self, tails: Any) -> None:
        for tail in tails:
            tail.check_locked()
        assert self.left == sum([len(tail.items) for tail in tails]), "the total is the sum"
        assert len(tails) == sum(map(len, self.table.values())), "the table has the tails that are there"
        assert not (self.takers and self.look_locked() is not None), "no taker waits while something is ready"
        assert not (self.joiners and self.owed <= 0), "no joiner waits for what is done"

    def _renew_after_fork(self) -> None:
        self.inner = Level(0, 0.0)
        tail: Any
        for tail in self.tails:
            tail.inner = Level(0, 0.0)
            tail._next = tail._previous = None
            tail._served, tail._round = 0.0, 0
        super()._renew_after_fork()


def outer_key(key: Any) -> tuple[Any, ...]:
    """The key of those that `key` is nested in, as a tuple of one; or of none."""
    if key.__class__ is not tuple or len(key) < 2:
        return ()
    return (key[0] if len(key) == 2 else key[:-1],)


def tail_of_key(head: FairHead, key: Any, add: bool, is_outer: bool = False) -> FairFifo | None:
    """The tail of `key`; None: there is none, or with `add`, the queue is shut. Keys are compared without the lock."""
    while key.__class__ is tuple and len(key) == 1:
        key = key[0]
    number = hash(key)
    while True:
        bucket = head.table.get(number, ())
        for tail in bucket:
            if tail.key is key or tail.key == key:
                return tail
        if not add:
            return None
        outer = None
        for each in outer_key(key):
            outer = tail_of_key(head, each, True, True)
        if head.is_closed:
            return None
        new = FairFifo(head, key, number, outer, None if is_outer else head.max_in_flight)
        if head.locked(None, head.add_locked, new, bucket):
            return new
