"""The engine in Python: what `_engine.c` has, by the same names, for interpreters and machines without it.

It serves where no wheel was built, where gevent or eventlet have patched the program, and with `MULTIQUEUE_PURE=1`.
`_plain_head` has the lock, the turns and the waits, and argues for all of it; `_plain_fifo` has the elements. Here
stand what the classes are made of, and the doors by which elements leave. A door is subscribed, as that of the engine
in C is, so that the same classes stand on both: it ends in a function in Python, whose return nothing strikes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from ..errors import Empty, ShutDown
from ._parking import Line, deadline_after, leave
from ._plain_fair import FairHead, outer_key, tail_of_key
from ._plain_fifo import CLOSED, PUT, UNBOUNDED, Fifo, Figures
from ._plain_head import END, Head, shim
from ._settings import check_number

T = TypeVar("T")
D = TypeVar("D")
R = TypeVar("R")

LONGEST_RUN = 1024  # elements put in one go, so that others come in between


def configure(
    sync: object,
    native_lock: object,
    empty: type[Exception],
    shut_down: type[Exception],
    taken: type[tuple[Any, ...]],
    fair_taken: type[tuple[Any, ...]],
    refusal: Callable[[Any, int, Any, float | None], Exception],
    ending: Callable[[Any], Exception],
    select: Callable[[Any, tuple[Any, ...]], Any],
    selected: Callable[[Any, Any], None],
    put: Callable[..., Any],
    get: Callable[..., Any],
) -> None:
    """As in `_engine.c`. The engine in Python imports modules, locks and errors itself."""
    shim.refusal, shim.ending, shim.select, shim.selected = refusal, ending, select, selected
    shim.put, shim.get, shim.taken, shim.fair_taken = put, get, taken, fair_taken


def wait_arguments(block: object, timeout: float | None) -> tuple[bool, float | None]:
    """Whether a call may wait, and until when."""
    if not block or timeout is None:
        return bool(block), None
    deadline = deadline_after(timeout)
    return timeout != 0, deadline


def _locked(tail: Tail[Any], function: Callable[..., R], *args: Any) -> R:
    return tail._engine_head.locked(tail._engine_fifo, function, *args)


class Tail(Generic[T]):
    """One queue with its own tail: a sub-queue, or a stand-alone queue."""

    __slots__ = ("_engine_fifo", "_engine_head", "_engine_hooked")

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        tail = super().__new__(cls)
        set_field = object.__setattr__  # a subclass of `Queue` may have a `__setattr__` of its own
        fifo = Fifo()
        set_field(tail, "_engine_fifo", fifo)
        set_field(tail, "_engine_head", fifo.head)
        set_field(tail, "_engine_hooked", False)
        return tail

    _engine_selection = None

    if TYPE_CHECKING:
        _engine_fifo: Fifo
        _engine_head: Head
        _engine_hooked: bool  # `put` and `get` lead to the standard library's

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """Put `item` at the tail, waiting while the queue is full.

        Any object, None too. Waits until there is room, the queue is closed, or `timeout` seconds are over; with
        `block=False` not at all. Any thread; also from a signal handler, `__del__` or a weakref callback.

        Raises:
            Full: there was no room in time. The exception's `item` is the element.
            ShutDown: `shutdown()` was called, before or while waiting. `Detached` (a `ShutDown`): the sub-queue was
                removed from its multi-queue. The exception's `item` is the element.
            ValueError: `timeout` is negative.
        """
        if self._engine_hooked:
            return shim.put(self, item, block, timeout)  # type: ignore[no-any-return]
        deadline = None
        if timeout is not None or not block:
            block, deadline = wait_arguments(block, timeout)
        outcome = self._engine_fifo.put(item, block, deadline)
        if outcome is not PUT:
            raise shim.refusal(self, outcome is CLOSED, item, timeout if block else None)
        return None

    def offer(self, item: T, timeout: float | None = 0.0) -> bool:
        """Put `item` and return True, or return False when there was no room within `timeout` seconds.

        Raises:
            ShutDown: as for `put`.
        """
        outcome = self._engine_fifo.put(item, *wait_arguments(True, timeout))
        if outcome is CLOSED:
            raise shim.refusal(self, CLOSED, item, None)
        return outcome is PUT

    def put_first(self, item: T) -> None:
        """Put `item` at the head, capacity notwithstanding: for an element that was taken and is given back.

        Does not wait. The take that it undoes still counts as in flight until `task_done()`.

        Raises:
            ShutDown: as for `put`. The exception's `item` is the element.
        """
        if _locked(self, self._engine_fifo.put_first_locked, item) is CLOSED:
            raise shim.refusal(self, CLOSED, item, None)

    @overload
    def peek(self) -> T | None: ...
    @overload
    def peek(self, default: D) -> T | D: ...
    def peek(self, default: Any = None) -> Any:
        """The element at the head, which stays where it is, or `default`. It may be taken at any time."""
        try:
            return self._engine_fifo.items[0]
        except IndexError:
            return default

    def qsize(self) -> int:
        """The number of elements here, at this moment."""
        return len(self._engine_fifo.items)

    def __len__(self) -> int:
        return len(self._engine_fifo.items)

    def empty(self) -> bool:
        """Was there nothing here, at this moment?"""
        return not self._engine_fifo.items

    def full(self) -> bool:
        """Was there no room, at this moment?"""
        capacity = self._engine_fifo.capacity
        return capacity is not None and len(self._engine_fifo.items) >= capacity

    def task_done(self) -> None:
        """Say that an element that was taken is dealt with. Any thread.

        Raises:
            ValueError: called more often than there were elements.
        """
        if not _locked(self, self._engine_fifo.task_done_locked):
            raise ValueError("task_done() called too many times")

    def join(self) -> None:
        """Wait until `task_done()` was called for every element that was put and not discarded."""
        fifo = self._engine_fifo
        _locked(self, self._engine_head.wait_locked, fifo.joiners, fifo.done_locked, True, None)


class Multi:
    """Many tails that meet at one head."""

    __slots__ = ("_engine_head", "_engine_selection")

    _engine_fifo = None
    _engine_hooked = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        multi = super().__new__(cls)
        multi._engine_head = Head()
        multi._engine_selection = None
        return multi

    if TYPE_CHECKING:
        _engine_head: Head
        _engine_selection: Any

    def qsize(self) -> int:
        """How many elements could be taken now: of sub-queues that are enabled and below their in-flight limit."""
        return self._engine_head.size()

    def empty(self) -> bool:
        """Could nothing be taken, at this moment?"""
        return self._engine_head.locked(None, self._engine_head.due_locked) is None

    def join(self) -> None:
        """Wait until `task_done()` was called for every element that was put into the sub-queues attached now or
        added meanwhile, and not discarded."""
        self._engine_head.join()

    def _select(self, block: bool, deadline: float | None) -> tuple[Fifo, Any] | None:
        """`Head.take` by the user's selection."""
        head = self._engine_head
        while True:
            ready = head.locked(None, self._wait_ready_locked, block, deadline)
            if ready is END:
                raise shim.ending(self)
            if ready is None:
                return None
            pair = self._take_selected(ready) if ready else None
            if pair is not None:
                return pair

    def _take_selected(self, ready: tuple[Tail[Any], ...]) -> tuple[Fifo, Any] | None:
        """Take from the tail that the user's selection names, asked without the lock; None if another was faster."""
        pair = None
        try:
            chosen = shim.select(self._engine_selection, ready)
            pair = self._engine_head.take(self, chosen._engine_fifo, is_selected=True)
            if pair is not None:
                shim.selected(self._engine_selection, chosen)
        except BaseException:  # it may be the user's own, and the next one strikes here
            taken = [] if pair is None else [pair]
            try:
                self._engine_head.mend(None, taken)
            except BaseException:
                self._engine_head.mend(None, taken)
                raise
            raise
        return pair

    def _wait_ready_locked(self, block: bool, deadline: float | None) -> Any:
        head = self._engine_head
        found = head.wait_locked(head.takers, head.look_locked, block, deadline)
        return found if found is None or found is END else tuple([each.tail for each in head.ready_locked()])


# ---- the doors --------------------------------------------------------------------------------------------------


def _take(queue: Any, block: bool, deadline: float | None) -> tuple[Fifo, Any] | None:
    """Take from a multi-queue or a tail; None when there was nothing in time."""
    if queue._engine_selection is None:
        return queue._engine_head.take(queue, queue._engine_fifo, block, deadline)  # type: ignore[no-any-return]
    return queue._select(block, deadline)  # type: ignore[no-any-return]


class Door:
    """An operation as a subscription."""

    __slots__ = ()

    def __getitem__(self, key: Any, /) -> Any: ...


def door(function: Callable[[Any, Any], Any]) -> Door:
    """The door through which `function(door, key)` is called."""
    kind: type[Door] = type(function.__name__, (Door,), {"__slots__": (), "__getitem__": function})
    return kind()


def _due(_: Door, queue: Any) -> Any:
    """`due[queue]`: the element that is due, however long it takes."""
    if queue._engine_hooked:
        return shim.get(queue)
    pair: Any = _take(queue, True, None)
    return pair[1]


def _get(_: Door, key: Any) -> Any:
    """`get[queue, block, timeout]`"""
    queue, block, timeout = key
    if queue._engine_hooked:
        return shim.get(queue, block, timeout)
    block, deadline = wait_arguments(block, timeout)
    pair = _take(queue, block, deadline)
    if pair is None:
        raise Empty
    return pair[1]


def _poll(_: Door, key: Any) -> Any:
    """`poll[queue, timeout, default]`"""
    queue, timeout, default = key
    block, deadline = wait_arguments(True, timeout)
    pair = _take(queue, block, deadline)
    return default if pair is None else pair[1]


def _take_door(_: Door, key: Any) -> Any:
    """`take[queue, block, timeout]`: a Taken."""
    queue, block, timeout = key
    block, deadline = wait_arguments(block, timeout)
    pair = _take_named(queue, block, deadline)
    if pair is None:
        raise Empty
    return pair


def _pair(_: Door, queue: Any) -> Any:
    """`pair[queue]`: a Taken, or None if nothing is there now."""
    return _take_named(queue, False, None)


def _take_named(queue: Any, block: bool, deadline: float | None) -> Any:
    """A Taken, or None if there is nothing in time."""
    pair = _take(queue, block, deadline)
    if pair is None:
        return None
    try:
        taken = tuple.__new__(*pair[0].named(queue, pair[1]))
    except BaseException:
        pair[0].head.mend(None, [pair])
        raise
    return taken


def _many(_: Door, key: Any) -> Any:
    """`many[queue, max_items, block, timeout]`: a list of 1 to `max_items`, in service order; waits for the first."""
    queue, max_items, block, timeout = key
    block, deadline = wait_arguments(block, timeout)
    first = _take(queue, block, deadline)
    if first is None:
        raise Empty
    pairs, items = [first], [first[1]]
    try:
        while True:
            if len(items) >= max_items:
                break
            pair = _take(queue, False, None)
            if pair is None:
                break
            pairs += (pair,)
            items += (pair[1],)
    except ShutDown:
        pass  # nothing is left; what was taken counts
    except BaseException:
        pairs[0][0].head.mend(None, pairs)
        raise
    return items


def _drop(_: Door, tail: Any) -> Any:
    """`drop[tail]`: the element at the head leaves, if it is an empty list: a ticket of the executor without a job."""
    fifo = tail._engine_fifo
    head = fifo.head
    lock = head.lock
    dropped = False
    try:
        lock.acquire()
        items = fifo.items
        if items and items[0].__class__ is list and not items[0]:
            del items[0]
            dropped = True
        head.settle_locked(fifo)
        lock.release()
    except BaseException:
        if dropped:  # its job has not left
            head.locked(fifo, fifo.items.appendleft, [])
        head.mend(fifo)
        raise
    return dropped


due: Door = door(_due)
get: Door = door(_get)
poll: Door = door(_poll)
take: Door = door(_take_door)
pair: Door = door(_pair)
many: Door = door(_many)
drop: Door = door(_drop)


# ---- what the classes are made of ---------------------------------------------------------------------------------


def put_some(tail: Tail[Any], batch: list[Any], start: int, deadline: float | None) -> tuple[int, int]:
    """Put what there is room for, waiting for the first: how many, and whether it is closed."""
    return _locked(tail, tail._engine_fifo.put_some_locked, batch[start : start + LONGEST_RUN], deadline)


def bind(
    tail: Tail[Any], multi: Multi, priority: int, capacity: int | None, max_in_flight: int | None, weight: int
) -> None:
    """A new tail becomes one of a multi-queue, not attached yet."""
    fifo = tail._engine_fifo
    tail._engine_head = fifo.head = multi._engine_head
    fifo.tail = tail
    fifo.priority, fifo.weight, fifo.max_in_flight = priority, weight, max_in_flight
    fifo.capacity, fifo.limit = capacity, UNBOUNDED if capacity is None else capacity


def attach(tail: Tail[Any]) -> bool:
    """The multi-queue takes from it from now on. False if that one is shut down, and then it is not."""
    return _locked(tail, tail._engine_fifo.attach_locked)


def detach(tail: Tail[Any], unused: bool) -> bool:
    """The multi-queue serves it no more, with `unused` only if it has no elements, nor any in flight; whether it is."""
    return _locked(tail, tail._engine_fifo.detach_locked, unused)


def close(tail: Tail[Any], immediate: bool) -> None:
    """Refuse puts; with `immediate` discard its elements."""
    _surely(_locked, tail, tail._engine_fifo.close_locked, immediate)


def close_all(multi: Multi, immediate: bool) -> None:
    """The same of all tails, in one moment."""
    _surely(multi._engine_head.locked, None, _close_all_locked, multi._engine_head, immediate)


def _close_all_locked(head: Head, immediate: bool) -> list[Any]:
    tails = list(head.tails)
    swept = [tail.close_locked(immediate) for tail in tails]
    head.is_closed = True
    for tail in tails:
        head.settle_locked(tail)
    head.wake_takers_locked()
    return [swept, tails]  # to be dropped without the lock: dropping an element or a key may run code of the user


def _surely(function: Callable[..., Any], *args: Any) -> None:
    """Call `function`, which may be repeated, and once more if an exception strikes: half of it would be no end."""
    try:
        function(*args)
    except BaseException:
        function(*args)
        raise


def is_closed(multi: Multi) -> bool:
    return multi._engine_head.is_closed


def assign(tail: Tail[Any], name: str, value: float | None) -> bool | None:
    """Assign one of the settings; False if the tail, of a fair queue, has gone."""
    return _locked(tail, tail._engine_fifo.assign_locked, name, value)


def reasons(tail: Tail[Any]) -> frozenset[Any] | None:
    """Why it is disabled; None: it never was."""
    return tail._engine_fifo.disabled_by


def replace_reasons(tail: Tail[Any], before: frozenset[Any] | None, after: frozenset[Any]) -> bool:
    """False if the reasons are not `before` any more."""
    return _locked(tail, tail._engine_fifo.replace_reasons_locked, before, after)


def figures(tail: Tail[Any]) -> Figures:
    """All numbers at one moment."""
    return tail._engine_head.locked(None, tail._engine_fifo.figures_locked)


def waiting_takers(multi: Multi) -> int:
    return len(multi._engine_head.takers)


def ready(multi: Multi) -> tuple[Tail[Any], ...]:
    """Those that could be taken from now, in the order of service."""
    return tuple([each.tail for each in multi._engine_head.locked(None, multi._engine_head.ready_locked)])


def peek(multi: Multi, default: Any) -> Any:
    """The element that would be taken now."""
    return multi._engine_head.locked(None, _peek_locked, multi._engine_head, default)


def _peek_locked(head: Head, default: Any) -> Any:
    tail = head.due_locked()
    return default if tail is None else tail.items[0]


def snapshot(tail: Tail[Any]) -> list[Any]:
    return tail._engine_head.locked(None, tail._engine_fifo.list_locked)


def item(tail: Tail[Any], from_the_end: int) -> Any:
    """The element that so many others stand behind, or None."""
    try:
        return tail._engine_fifo.items[-1 - from_the_end]
    except IndexError:
        return None


def remove(tail: Tail[Any], item: object) -> bool:
    """Remove the element that is `item`, the same object, if it is there."""
    return _locked(tail, tail._engine_fifo.remove_locked, item)


def discard(tail: Tail[Any]) -> int:
    """Empty it; how many."""
    return len(_locked(tail, tail._engine_fifo.sweep_locked))


def replace(tail: Tail[Any], items: list[Any]) -> None:
    """These are its elements now. What it counts as unfinished stays as it is."""
    _locked(tail, tail._engine_fifo.replace_locked, items)


def give_back(taken: list[Any]) -> None:
    """Undo the takes that `pair` gave, whose element leaves the list as it is undone; so it may be repeated."""
    while taken:
        tail = taken[-1][0]
        fifo = tail._engine_fifo
        fifo.head.locked(fifo, _give_back_locked, fifo, taken)


def _give_back_locked(fifo: Fifo, taken: list[Any]) -> None:
    item = taken[-1][1]
    del taken[-1]
    fifo.taken -= 1
    fifo.items.appendleft(item)


def park(queue: Any, waiter: Any, putting: bool) -> bool:
    """Put `waiter` in line, unless its condition holds already: False then."""
    head, _, line, look = _wait_of(queue, putting)
    return head.locked(None, _park_locked, line, look, waiter)


def _park_locked(line: Line, look: Callable[[], object], waiter: Any) -> bool:
    if look() is not None:
        return False
    line.append(waiter)
    return True


def unpark(queue: Any, waiter: Any, putting: bool) -> None:
    """Take it out of line. A wake-up that it has had is passed on."""
    head, fifo, line, _ = _wait_of(queue, putting)
    _surely(head.locked, fifo, _unpark_locked, head, line, waiter)


def _unpark_locked(head: Head, line: Line, waiter: Any) -> None:
    leave(line, waiter)
    head.wake_takers_locked()


def _wait_of(queue: Any, putting: bool) -> tuple[Head, Fifo | None, Line, Callable[[], object]]:
    """Where a taker or a putter of `queue` waits, and for what."""
    if isinstance(queue, Multi):
        return queue._engine_head, None, queue._engine_head.takers, queue._engine_head.look_locked
    fifo: Fifo = queue._engine_fifo
    if putting:
        return fifo.head, fifo, fifo.putters, fifo.room_locked
    return fifo.head, fifo, fifo.takers, fifo.look_locked


def stir(tail: Tail[Any]) -> None:
    """Look for who can be woken."""
    _locked(tail, tail._engine_fifo.unfinished)


def lock_of(tail: Tail[Any]) -> Any:
    """The lock that a `Queue` shows as its mutex."""
    return tail._engine_head.lock


def set_gate(tail: Tail[Any], gate: Any) -> Any:
    """Have `gate.tell()` called, with the lock held, after each change; the one that was there first stays."""
    return tail._engine_head.locked(None, _set_gate_locked, tail._engine_head, gate)


def _set_gate_locked(head: Head, gate: Any) -> Any:
    if head.gate is None:
        head.gate = gate
    return head.gate


def set_hooked(tail: Tail[Any]) -> None:
    """`put` and `get` lead to the standard library's from now on."""
    object.__setattr__(tail, "_engine_hooked", True)


def set_selection(multi: Multi, selection: object) -> None:
    multi._engine_selection = selection


def selection(multi: Multi) -> Any:
    return multi._engine_selection


def after_fork() -> None:
    """Lines and heads are among those that `_fork` renews."""


def check(queue: Any) -> None:
    """Assert what must be true whenever no operation is under way. For tests."""
    head = queue._engine_head
    head.locked(None, head.check_locked, tuple(head.tails) if isinstance(queue, Multi) else (queue._engine_fifo,))


# ---- fair queues --------------------------------------------------------------------------------------------------


def set_fair(multi: Multi, capacity: int | None, max_in_flight: int | None) -> None:
    """It is a fair queue, and these are the limits of each key."""
    if isinstance(multi._engine_head, FairHead):
        raise TypeError("a FairQueue is initialized once")
    multi._engine_head = FairHead(capacity, max_in_flight)


def _fair_head(multi: Multi) -> FairHead:
    head = multi._engine_head
    if not isinstance(head, FairHead):
        raise TypeError(f"FairQueue.__init__() was not called of this {type(multi).__name__}")
    return head


def keyed(multi: Multi, key: Any) -> Any:
    """The tail of `key`, or None."""
    return tail_of_key(_fair_head(multi), key, False)


def set_keyed(multi: Multi, key: Any, name: str, value: Any, before: frozenset[Any] | None) -> bool | None:
    """A setting of a key, or its "reasons" to pause. None: it is shut. False: the reasons are not `before` any more."""
    head = _fair_head(multi)
    try:
        return _set_at_tail(head, key, name, value, before)
    except BaseException:
        head.mend(None)
        raise


def _set_at_tail(head: FairHead, key: Any, name: str, value: Any, before: frozenset[Any] | None) -> bool | None:
    while True:
        tail: Any = tail_of_key(head, key, True)
        if tail is None:
            return None
        is_done = replace_reasons(tail, before, value) if name == "reasons" else assign(tail, name, value)
        if is_done or tail.attached:
            return is_done


def key_of(tail: Any) -> Any:
    return getattr(tail._engine_fifo, "key", None)


def put_keyed(multi: Multi, key: Any, item: Any, cost: float, block: bool, timeout: float | None) -> Any:
    """None when it was put, else the tail that is full."""
    head = _fair_head(multi)
    one, costs = (item,), (check_number("cost", cost),)
    block, deadline = wait_arguments(block, timeout)
    try:
        outcome, tail = _put_at_tail(head, key, one, costs, block, deadline)
    except BaseException:
        head.mend(None)
        raise
    if outcome is PUT:
        return None
    if outcome is None:
        return tail
    raise shim.refusal(multi, CLOSED, item, None)


def _put_at_tail(head: FairHead, key: Any, *what: Any) -> tuple[Any, Any]:
    """What came of a put to the tail of a key, and that tail; CLOSED if there can be none."""
    while True:
        tail: Any = tail_of_key(head, key, True)
        if tail is None:
            return CLOSED, None
        outcome = head.locked(tail, tail.put_locked, *what)
        if outcome is PUT or outcome is None or tail.attached:
            return outcome, tail


def done(multi: Multi, *key: Any) -> bool:
    """An element is dealt with, of `key` if it is given. False: there was none."""
    head, tail = _fair_head(multi), None
    while key and tail is None:
        tail = tail_of_key(head, key[0], False)
        key = outer_key(key[0])
    return head.locked(tail, head.task_done_locked, tail)


def tails(multi: Multi) -> tuple[Any, ...]:
    """Those that are there now."""
    return tuple(multi._engine_head.tails)
