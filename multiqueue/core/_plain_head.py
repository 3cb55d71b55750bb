"""The head of the engine in Python: one lock, whose turn it is, waiting, and the one way to take an element.

Promise     1. An element that was put is taken by exactly one taker, in put order within its tail.
            2. A take that raises has taken nothing; a put that raises Full, ShutDown or Detached has put nothing.
            3. No thread sleeps for an element that is present: an element, room, the end of a join, the end of the
            queue. 4. Groups are served by ascending priority, the tails of a group in turns; one that joins stands at
            the end
               of the round, and one that leaves costs no other its turn. Nothing looks at tails that are not ready.
State       `lock` guards every field here and of the tails of this head. A multi-queue has one head for all its
            sub-queues; a `Queue` has its own. Elements and counts are the truth. All else follows from them and is
            made anew by `settle_locked`: the place of a tail among the turns, and whose wait is over.
            A tail is linked in the group of its priority if and only if it is ready; but one that a take has emptied
            while it was alone there stays until another one joins, or `due_locked` meets it: so a producer and a
            consumer in step link nothing. `active` are the priorities of the groups that are listed, ascending. A
            group that has lost its last member stays listed until `due_locked` meets it.
Waiting     A thread that waits stands in a line, with a separate lock that another thread releases: `_parking`. It
            looks and enters the line while it holds `lock`. Who changes something settles the tail, and that wakes:
            one taker of the tail and one of the multi-queue for an element, one putter for room, all joiners for the
            end of a join, all for the end of the queue. A woken thread settles in its turn, and so wakes the next.
Strikes     CPython delivers signals and asynchronous exceptions at the entry of a function, after a call and at a jump
            back. A *run* is a row of statements without these: what happens to an element and its counts is one run,
            and so is each change of a ring. An operation that is struck calls `mend`, which gives back what the local
            names of the operation say was taken, settles, and lets go of the lock. That holds for one exception; a
            second one that strikes in `mend` may cost a wake-up or leave the lock held.
            A signal handler or `__del__` that puts or takes in the middle of an operation of its own thread finds
            the lock its own, and elements and counts true. So a condition that was checked before a call is checked
            again behind it, and a wait in such a place is refused instead of hanging.
Fork        The child gets new locks, empty lines and new rings: `after_fork`.
Source      Doug Lea, LinkedBlockingQueue (cascading wake-ups); M. Barrios, LinkedBlockingMultiQueue (priorities).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from . import _sync
from ._fork import renew_after_fork
from ._parking import Line, acquire_before, leave, seconds_left, wake_all, wake_one
from ._sync import ReentrantLock

if TYPE_CHECKING:
    from ._plain_fifo import Fifo

R = TypeVar("R")
P = ParamSpec("P")

END = object()  # of a queue: what a look answers when no element can come any more


class Shim:
    """What the classes over the engine give it: `configure`."""

    refusal: Callable[[Any, int, Any, float | None], Exception]
    ending: Callable[[Any], Exception]
    select: Callable[[Any, tuple[Any, ...]], Any]
    selected: Callable[[Any, Any], None]
    put: Callable[..., Any]
    get: Callable[..., Any]
    taken: type[tuple[Any, ...]]
    fair_taken: type[tuple[Any, ...]]


shim = Shim()


class Group:
    """The ready tails of one priority, as a ring of doubly linked tails; the round ends before the cursor."""

    __slots__ = ("cursor", "is_listed", "priority")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.cursor: Fifo | None = None  # whose turn it is; None: no members
        self.is_listed = True

    def link(self, tail: Fifo) -> None:
        """Add `tail` at the end of the round, unless it or this has changed since the caller looked. One run."""
        cursor = self.cursor
        if tail.group is not None or not self.is_listed:
            return
        if cursor is not None and cursor.next is cursor and not cursor.items:  # its place would be behind this one
            cursor.group = cursor.next = cursor.previous = None
            cursor = None
        if cursor is None:
            self.cursor = tail.next = tail.previous = tail
        else:
            last = cursor.previous
            tail.previous, tail.next = last, cursor
            last.next = cursor.previous = tail
        tail.group = self

    def unlink(self, tail: Fifo) -> None:
        """Remove `tail`, if it is here. If it was its turn, it is now its follower's. One run."""
        following, previous = tail.next, tail.previous
        if tail.group is not self:
            return
        if following is tail:
            self.cursor = None
        else:
            if self.cursor is tail:
                self.cursor = following
            previous.next, following.previous = following, previous
        tail.group = tail.next = tail.previous = None
        tail.turn = 0

    def move_to_end(self, tail: Fifo) -> None:
        """Its turn is over."""
        self.unlink(tail)
        self.link(tail)


class Head:
    """What a multi-queue has one of, and each stand-alone queue too."""

    __slots__ = ("__weakref__", "active", "gate", "groups", "is_closed", "lock", "tails", "takers")

    def __init__(self) -> None:
        self.lock: ReentrantLock = cast(ReentrantLock, _sync.RLock())
        self.groups: dict[int, Group] = {}
        self.active: list[int] = []
        self.takers = Line()
        self.tails: dict[Fifo, None] = {}  # those that are attached
        self.is_closed = False  # of the multi-queue as a whole
        self.gate: Any = None  # of a `Queue` whose mutex a program has asked for: it wakes those on the conditions
        renew_after_fork(self)

    # ---- operations -----------------------------------------------------------------------------------------

    def locked(self, tail: Fifo | None, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` with the lock held, then settle `tail`, which it changes if it is given."""
        lock = self.lock
        try:
            lock.acquire()
            result = function(*args, **kwargs)
            if tail is not None:
                self.settle_locked(tail)
            lock.release()
        except BaseException:
            self.mend(tail)
            raise
        return result

    def take(
        self,
        queue: Any,
        own: Fifo | None,
        block: bool = True,
        deadline: float | None = None,
        is_selected: bool = False,
    ) -> tuple[Fifo, Any] | None:
        """Take the element of `queue` that is due, from `own` alone if given; None when there was none in time.

        `own` may have been selected by the user, from all: then it must be ready, and goes to the end of the round.

        Raises:
            ShutDown: nothing is left, and nothing can come any more.
        """
        lock = self.lock
        taken = item = None
        try:
            if deadline is None:
                lock.acquire()
            elif not acquire_before(lock, deadline):
                return None
            tail: Any = self.due_locked() if own is None else own
            if is_selected:
                if tail.group is None or not tail.items:
                    tail = None
            elif tail is None or not tail.items:
                if own is None:
                    tail = self.wait_locked(self.takers, self.look_locked, block, deadline)
                else:
                    tail = self.wait_locked(own.takers, own.look_locked, block, deadline)
            if tail is not None and tail is not END:
                items = tail.items
                item = items[0]
                tail.taken += 1
                del items[0]
                taken = tail
                if is_selected:
                    tail.group.move_to_end(tail)
                elif not items:
                    tail.turn = 0
                elif own is None:
                    tail.turn += 1
                    if tail.turn >= tail.weight:
                        tail.turn = 0
                        tail.group.cursor = tail.next
                if (
                    is_selected
                    or (not items and tail.next is not tail)  # alone it may stay: its next put need not link it again
                    or tail.max_in_flight is not None
                    or tail.putters
                    or tail.takers
                    or self.takers
                    or self.gate is not None
                ):
                    self.settle_locked(tail)
            lock.release()
        except BaseException:
            self.mend(own if taken is None else taken, [] if taken is None else [(taken, item)])
            raise
        if tail is END:
            raise shim.ending(queue)
        return None if taken is None else (taken, item)

    def size(self) -> int:
        """How many elements could be taken now."""
        return sum([len(tail.items) for tail in self.locked(None, self.ready_locked)])

    def join(self) -> None:
        """Wait until nothing is unfinished in any tail."""
        while busy := self.locked(None, self._busy_locked):
            for tail in busy:
                self.locked(tail, self.wait_locked, tail.joiners, tail.done_or_detached_locked, True, None)

    def _busy_locked(self) -> list[Fifo]:
        return [tail for tail in list(self.tails) if tail.unfinished() > 0]

    def mend(self, tail: Fifo | None, taken: list[tuple[Fifo, Any]] | None = None) -> None:
        """After an exception in an operation: give back its elements, settle the changed tails, let go of the lock.

        What is given back leaves the list `taken`, so that this may be repeated.
        """
        lock = self.lock
        if not lock._is_owned():
            lock.acquire()
        while taken:
            source, item = taken[-1]
            del taken[-1]
            source.taken -= 1
            source.items.appendleft(item)
            self.settle_locked(source)
        if tail is not None:
            self.settle_locked(tail)
        self.wake_takers_locked()
        lock.release()

    # ---- what follows from elements and counts --------------------------------------------------------------

    def settle_locked(self, tail: Fifo) -> None:
        """After any change of `tail`: put it in its place, and wake those whose wait is over. May be repeated."""
        if tail.attached or tail.group is not None:
            self.place_locked(tail)
        closed = tail.closed
        if tail.takers and (tail.items or closed):
            wake_one(tail.takers)
            if closed and not tail.items:
                wake_all(tail.takers)
        if tail.putters and (closed or len(tail.items) < tail.limit):
            wake_one(tail.putters)
            if closed:
                wake_all(tail.putters)
        if tail.joiners and (tail.unfinished() <= 0 or not tail.attached):  # a join of all ends by removal as well
            wake_all(tail.joiners)
        if self.takers:
            self.wake_takers_locked()
        if self.gate is not None:
            self.gate.tell()

    def wake_takers_locked(self) -> None:
        """Wake a taker of the multi-queue if an element is due, and all at its end."""
        if self.takers:
            due = self.look_locked()
            if due is END:
                wake_all(self.takers)
            elif due is not None:
                wake_one(self.takers)

    def place_locked(self, tail: Fifo) -> None:
        """Have `tail` linked in the group of its priority if and only if it is ready."""
        while True:  # until a look finds it there: a signal handler's operation may come in between
            group = tail.group
            if tail.is_ready():
                if group is None:
                    self._group_locked(tail.priority).link(tail)
                elif group.priority == tail.priority:
                    break
                else:
                    group.unlink(tail)
            elif group is None:
                break
            else:
                group.unlink(tail)

    def _group_locked(self, priority: int) -> Group:
        """The group of `priority`; it is listed from now on."""
        while True:
            group = self.groups.get(priority)
            if group is not None:
                return group
            group = Group(priority)
            if priority not in self.groups:
                self.groups[priority] = group
                insort(self.active, priority)  # of ints, in C: nothing comes in between

    def due_locked(self) -> Fifo | None:
        """The tail whose turn it is, with an element in it; None when nothing is ready."""
        while True:
            if not self.active:
                return None
            group = self.groups[self.active[0]]
            tail = group.cursor
            if tail is None:
                group.is_listed = False
                del self.groups[self.active[0]], self.active[0]
            elif tail.items:
                return tail
            else:
                self.place_locked(tail)

    def look_locked(self) -> Any:
        """What a taker of the multi-queue waits for: the tail that is due, or the END."""
        tail = self.due_locked()
        if tail is None and self.is_closed and not [tail for tail in list(self.tails) if tail.items]:
            return END if not self.active else self.due_locked()
        return tail

    def ready_locked(self) -> tuple[Fifo, ...]:
        """All tails that are ready, in the order in which they would be served."""
        ready = []
        for priority in list(self.active):
            group = self.groups.get(priority)
            first = tail = None if group is None else group.cursor
            while tail is not None:
                ready.append(tail)
                tail = tail.next
                if tail is first:
                    break
        return tuple([tail for tail in ready if tail.items])

    # ---- waiting --------------------------------------------------------------------------------------------

    def wait_locked(self, line: Line, look: Callable[[], R | None], block: bool, deadline: float | None) -> R | None:
        """Wait in `line` until `look()` answers something; that, or None when the time is up.

        Lets go of the lock while it waits.
        """
        waited = False
        while True:
            answer = look()
            if answer is not None or not block:
                return answer
            block = self._sleep(line, waited, deadline)
            waited = True

    def _sleep(self, line: Line, waited: bool, deadline: float | None) -> bool:
        """Sleep without the lock, in front of the line if it `waited` and somebody else was faster; was it woken?"""
        lock = self.lock
        waiter = _sync.allocate_lock()
        waiter.acquire()
        try:
            if waited:
                line.insert(0, waiter)
            else:
                line.append(waiter)
            lock.release()
            if lock._is_owned():
                lock.acquire()
                raise RuntimeError(
                    "a blocking put or take inside a signal handler or __del__ that interrupted an operation on this "
                    "very queue, or under its mutex, would wait for ever; use put_nowait(), offer() or poll() there"
                )
            _woken = waiter.acquire() if deadline is None else waiter.acquire(True, seconds_left(deadline))
            lock.acquire()
            return not leave(line, waiter)
        except BaseException:
            if not lock._is_owned():
                lock.acquire()
            leave(line, waiter)
            raise

    def check_locked(self, tails: Sequence[Fifo]) -> None:
        """Assert what must be true between operations, of these tails and of the turns."""
        for tail in tails:
            tail.check_locked()
        assert self.active == sorted(self.groups), "groups are listed in ascending order, each once"
        assert not (self.takers and self.look_locked() is not None), "no taker waits while something is ready"
        linked = self.ready_locked()
        assert len(linked) == len(set(linked)), "each is linked once"
        assert all(tail in self.tails for tail in linked), "a removed sub-queue is not linked"

    # ---- after a fork ---------------------------------------------------------------------------------------

    def _renew_after_fork(self) -> None:
        """In the child, where no other thread is. Lines renew themselves."""
        if self.gate is None:
            self.lock = cast(ReentrantLock, _sync.RLock())
        else:
            self.gate._at_fork_reinit()
        self.groups.clear()
        self.active.clear()
        for tail in self.tails:
            tail.group = tail.next = tail.previous = None
            self.place_locked(tail)
