"""The take side of the multi-queue: one head, many tails.

Promise     1. An element put is taken by exactly one taker, in put order within its sub-queue.
            2. An element whose put has returned is seen by every take that begins later.
            3. A take that raises has taken nothing: an interrupted one gives its element back to the head.
            4. Nobody sleeps while there is something to take and nobody awake to take it.
State       The take lock guards everything in this module: who is ready (`_priority_groups`), who is parked
            (`_takers`, and each sub-queue's `_own_takers` and `_joiners`), and on every sub-queue `_told`,
            `_in_flight`, `_finished`, `_turn`, `_plain` and the removal of elements. `_news` is a deque that
            anybody may append to: sub-queues whose place in the ready sets may be out of date.
Lock order  take lock -> put lock; docs/design/locks.md has the whole house. A put takes its put lock alone and
            lets go of it before it turns to the take side, and there it never waits: it leaves a note in `_news`
            and reads the news if the take lock is free. So a put made by a signal handler, by `__del__` or by a
            weakref callback in the middle of any operation of this module has nothing to wait for.
News        A put tells the take side only when `_told` is False, that is, once after the sub-queue was found
            empty. It appends the element, then reads `_told`; the take side clears `_told`, then looks for
            elements: one of the two sees the other. Whoever holds the take lock reads the news after acquiring it
            and once more after releasing it, so that a note whose writer found the lock taken is read by its
            holder: the note was written before the attempt, and the attempt failed before the release.
Ready       Eligible is one predicate, `_is_eligible`: attached, enabled, below its in-flight limit; ready is
            eligible and not empty. Every ready sub-queue is linked, or in the news. A linked one has elements, except
            one that is alone in its group: emptying it and filling it again then costs no relinking. Whoever links
            another one to the group unlinks it first; so does a taker that finds it empty, unless no other group
            is listed. Either way that taker clears its `_told`, so that the next put tells.
Waiting     A taker parks only after it found nothing ready. `_refresh_locked`, which alone makes a sub-queue ready,
            wakes one taker of it and one of the multi-queue; a taker that leaves more behind wakes the next.
            A taker that a timeout or an exception ends passes a wake-up that it got in the meantime on.
            Nobody but a taker, `_locked` or `_read_news` changes what is ready, and each of them wakes.
Membership  A sub-queue that is removed, closed or cleared is written into the news like any other change. The
            reader unlinks it, and wakes those for whom the wait has become hopeless.
Hazards     What the interpreter may do between two bytecodes, and what is done about it:
            - a signal handler raises, or an exception arrives from another thread: CPython delivers both at a
              function's entry, after a call and at a backward jump. What belongs together is written without
              these in between, and one handler per operation releases the lock if it is held, gives back,
              and reads the news again. What it does may be repeated, and is when a second exception strikes.
            - code of the user runs where we hold a lock (a signal handler, `__del__`): the locks are re-entrant,
              a put never waits for the take lock, and a wait in such a place is refused instead of hanging.
            - `x += 1` is not atomic: every count has one lock. Emptiness is never counted, but read from the deque.
            - the thread switches inside a critical section: sections are a few microseconds.
            - fork: the child gets new locks, no parked threads, and ready sets made anew.
            What is left: a signal handler that itself takes from the queue it interrupted, and is itself ended by
            an exception at the one instruction after its release, releases the lock of the take it interrupted.
Assumes     `deque.append`, `len` and truth of a deque are atomic, and a deque is safe to append to at its tail while
            its head is read and deleted; both hold on free-threaded builds too, whose deque methods lock the
            deque. `rotate(0)` is there for that lock: it orders the write of `_told` before the look at the elements.
Source      Doug Lea, LinkedBlockingQueue; M. Barrios, LinkedBlockingMultiQueue: two locks, cascading wake-ups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from ..errors import InvalidSelection, ShutDown
from . import _sync
from ._parking import (
    AsyncPlace,
    Places,
    acquire_before,
    deadline_after,
    leave,
    seconds_left,
    wake_all,
    wake_one,
)
from ._priority_groups import ActiveGroups
from ._sync import Parking, Place, ReentrantLock, release_owned

if TYPE_CHECKING:
    from ._fifo import Fifo
    from ._selection import SubQueueSelection

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

LONGEST_RUN = 1024  # elements taken at once: bounds how long others wait for the take lock, to about 40 us
ONE_GROUP = 2  # the length of the list of groups when there is one: it, and the end


class TakeSide(Generic[T]):
    """What takes have in common, from the multi-queue or from one sub-queue alone."""

    __slots__ = ("__weakref__", "_groups", "_is_shutdown", "_news", "_ready", "_selection", "_take_lock", "_takers")

    def __init__(self) -> None:
        self._take_lock: ReentrantLock = cast(ReentrantLock, _sync.RLock())
        self._news: deque[Fifo[T]] = deque()
        self._ready: ActiveGroups[T] = ActiveGroups()
        self._groups = self._ready.groups  # the same list, one step nearer
        self._takers: Places = []
        self._selection: SubQueueSelection[T] | None = None
        self._is_shutdown = False  # of the multi-queue; a stand-alone queue has its own `_closed`

    # ---- taking ---------------------------------------------------------------------------------------------

    def _take_one(
        self, own: Fifo[T] | None, block: bool = True, timeout: float | None = None
    ) -> tuple[Fifo[T], T] | None:
        """Take the element that is due, from `own` alone if given; None when the time is up.

        Raises:
            ShutDown: nothing is left, and nothing can come any more.
        """
        if self._selection is not None and own is None:
            return self._take_selected(block, timeout)
        deadline = None if timeout is None or not block else deadline_after(timeout)
        lock = self._take_lock
        sub: Fifo[T] | None = None
        item: Any = None
        try:
            if deadline is None:
                lock.acquire()
            elif not acquire_before(lock, deadline):
                return None
            if self._news:
                self._read_news_locked()
            chosen = own if own is not None else self._groups[0].cursor
            if chosen is None or not chosen._items:
                chosen = self._wait_locked(own, block, deadline)
            full = False
            if chosen is not None:
                items = chosen._items
                item = items[0]
                sub = chosen
                sub._in_flight += 1
                del items[0]
                if not sub._plain:
                    self._served_locked(sub, own is None)
                elif (following := sub._next) is not sub and following is not None:
                    if not items:
                        self._refresh_locked(sub)
                    elif own is None:
                        sub._group.cursor = following  # type: ignore[union-attr]
                if self._takers:
                    self._wake_taker_locked()
                if sub._putters:
                    full = len(items) == sub._limit - 1
            lock.release()
            if full:  # it was, and somebody waits for room
                sub._wake_putter()  # type: ignore[union-attr]
            if self._news:
                self._read_news()
        except BaseException:
            runs, taken = ([], []) if sub is None else ([(sub, 0)], [item])
            try:
                self._give_back(runs, taken)
            except BaseException:  # interrupted again
                self._give_back(runs, taken)
                raise
            raise
        return None if sub is None else (sub, item)

    def _take_many(self, own: Fifo[T] | None, max_items: int, block: bool, timeout: float | None) -> list[T]:
        """As `_take_one`, up to `max_items` in service order; waits only for the first. [] when the time is up."""
        pair = self._take_one(own, block, timeout)
        if pair is None:
            return []
        taken = [pair[1]]
        runs = [(pair[0], 0)]  # who gave what: the sub-queue, and where in `taken` its run begins
        try:
            if own is None and self._selection is not None:
                while len(taken) < max_items and (pair := self._take_one(None, False)) is not None:
                    runs.append((pair[0], len(taken)))
                    taken.append(pair[1])
            else:
                while len(taken) < max_items and self._locked(self._take_runs_locked, own, max_items, taken, runs):
                    pass
                for sub, _ in runs:
                    sub._wake_putter()
        except ShutDown:
            pass  # nothing is left; what was taken counts
        except BaseException:
            try:
                self._give_back(runs, taken)
            except BaseException:  # interrupted again
                self._give_back(runs, taken)
                raise
            raise
        return taken

    def _take_runs_locked(
        self, own: Fifo[T] | None, max_items: int, taken: list[T], runs: list[tuple[Fifo[T], int]]
    ) -> bool:
        """Append up to LONGEST_RUN elements to `taken`; False when nothing more is ready."""
        end = min(max_items, len(taken) + LONGEST_RUN)
        while len(taken) < end:
            sub = self._due_locked(own)
            if sub is None:
                return False
            runs.append((sub, len(taken)))
            items = sub._items
            alone = sub._plain and (own is not None or sub._next is sub)
            count = min(end - len(taken), len(items)) if alone else 1
            run = starmap(items.popleft, repeat((), count))
            sub._in_flight += count
            try:
                taken.extend(run)  # in C: nothing comes in between
            except IndexError:  # a signal handler took from it
                sub._in_flight -= count - (len(taken) - runs[-1][1])
            self._turn_locked(sub, own is None)
        return True

    def _take_selected(self, block: bool, timeout: float | None) -> tuple[Fifo[T], T] | None:
        """Take from the sub-queue that the user's selection names. It is asked without any lock held."""
        selection = cast("SubQueueSelection[T]", self._selection)
        deadline = deadline_after(timeout) if block else None
        taken: list[T] = []
        runs: list[tuple[Fifo[T], int]] = []
        try:
            while not taken:  # unless somebody else was faster
                ready = self._locked(self._wait_ready_locked, block, deadline)
                if not ready:
                    return None
                runs = [(self._checked(selection.select(cast(Any, ready)), ready), 0)]
                self._locked(self._take_chosen_locked, runs[0][0], taken)
            runs[0][0]._wake_putter()
            selection.taken(cast(Any, runs[0][0]))
        except BaseException:
            try:
                self._give_back(runs, taken)
            except BaseException:  # interrupted again
                self._give_back(runs, taken)
                raise
            raise
        return runs[0][0], taken[0]

    def _checked(self, answer: object, ready: Sequence[Fifo[T]]) -> Fifo[T]:
        """The user's answer, if it is one of the choices."""
        for sub in ready:
            if sub is answer:
                return sub
        raise InvalidSelection(
            f"{type(self._selection).__name__}.select() answered {answer!r}, which is not one of the "
            f"{len(ready)} ready sub-queues it was given"
        )

    def _wait_ready_locked(self, block: bool, deadline: float | None) -> tuple[Fifo[T], ...]:
        if self._wait_locked(None, block, deadline) is None:
            return ()
        return self._ready_locked()

    def _ready_locked(self) -> tuple[Fifo[T], ...]:
        return tuple([sub for sub in self._ready if sub._items])

    def _take_chosen_locked(self, sub: Fifo[T], taken: list[T]) -> None:
        """Append one element from `sub` to `taken` if it still is ready, and move it to the end of the round."""
        if sub._next is None or not sub._items:
            return
        self._news.append(sub)
        sub._group.unlink(sub)  # type: ignore[union-attr]
        if not sub._items:  # a signal handler took from it
            return
        item = sub._items[0]
        sub._in_flight += 1
        del sub._items[0]
        taken.append(item)

    def _served_locked(self, sub: Fifo[T], in_turn: bool) -> None:
        """After a take from a sub-queue with a weight, an in-flight limit, or takers of its own."""
        items = sub._items
        if not items or not sub._is_eligible():
            sub._turn = 0
            self._refresh_locked(sub)
            return
        if in_turn:
            sub._turn += 1
            if sub._turn >= sub._weight:
                sub._turn = 0
                sub._group.cursor = sub._next  # type: ignore[union-attr]
        wake_one(sub._own_takers)

    def _turn_locked(self, sub: Fifo[T], in_turn: bool) -> None:
        """After a take: the next one's turn, or out of the ring if it is empty. `_take_one` has it written out."""
        if not sub._plain:
            self._served_locked(sub, in_turn)
        elif sub._next is not sub and sub._next is not None:
            if not sub._items:
                self._refresh_locked(sub)
            elif in_turn:
                sub._group.cursor = sub._next  # type: ignore[union-attr]

    def _give_back(self, runs: list[tuple[Fifo[T], int]], taken: list[T]) -> None:
        """After an exception: put `taken` back to the heads it came from, let go of the lock, read the news.

        `runs` says where from: a sub-queue, and where in `taken` its elements begin. May be repeated when it is
        interrupted itself: what it has given back is no longer in `taken`.
        """
        lock = self._take_lock
        held = lock._is_owned()
        if taken and not held:
            lock.acquire()
        elif taken and runs[-1][0]._items and runs[-1][0]._items[0] is taken[-1]:
            runs[-1][0]._in_flight -= 1
            del taken[-1]  # the exception came before it had left the queue
        while taken:
            while runs[-1][1] >= len(taken):
                del runs[-1]
            sub = runs[-1][0]
            self._news.append(sub)
            item = taken[-1]
            del taken[-1]
            sub._in_flight -= 1
            sub._items.appendleft(item)
        self._let_go()

    def _let_go(self) -> None:
        """After an exception: release the lock if it is held, and read the news. May be repeated."""
        release_owned(self._take_lock)
        self._read_news()

    # ---- waiting --------------------------------------------------------------------------------------------

    def _due_locked(self, own: Fifo[T] | None) -> Fifo[T] | None:
        """The sub-queue to take from, with an element in it; None when there is none."""
        if self._news:
            self._read_news_locked()
        if own is None:
            return self._best_locked()
        if not own._items:
            self._refresh_locked(own)
        return own if own._items else None

    def _best_locked(self) -> Fifo[T] | None:
        """The ready sub-queue whose turn it is. None when nothing is ready, and then nothing is linked."""
        while (sub := self._ready.best()) is not None and not sub._items:
            self._refresh_locked(sub)
            if sub._next is sub and not sub._items and len(self._groups) == ONE_GROUP:
                return None  # the only one stays
        return sub

    def _wait_locked(self, own: Fifo[T] | None, block: bool, deadline: float | None) -> Fifo[T] | None:
        """Wait until there is something to take; None when the time is up. Lets go of the lock while it waits.

        Raises:
            ShutDown: nothing is left, and nothing can come any more.
        """
        places = self._takers if own is None else own._own_takers
        waited = False
        while (sub := self._due_locked(own)) is None:
            self._check_open_locked(own)
            if not block:
                return None
            place = _sync.allocate_lock()
            place.acquire()
            if waited:
                places.insert(0, place)  # it was its turn; somebody who had not waited was faster
            else:
                places.append(place)
            waited = True
            try:
                if own is not None:
                    own._plain = False
                block = self._park(place, deadline) or not leave(places, place)
            except BaseException:
                try:
                    self._abandon(own, places, place)
                except BaseException:  # interrupted again
                    self._abandon(own, places, place)
                    raise
                raise
            if own is not None:
                own._settle_locked()
        return sub

    def _abandon(self, own: Fifo[T] | None, places: Places, place: Parking) -> None:
        """After an exception that ended a wait: leave, and hold the lock again. May be repeated."""
        if not self._take_lock._is_owned():
            self._take_lock.acquire()
        self._leave_locked(own, places, place)

    def _park(self, place: Parking, deadline: float | None) -> bool:
        """Sleep on `place` without the take lock, which is held again afterwards; was it a wake-up?"""
        lock = self._take_lock
        lock.release()
        if lock._is_owned():
            lock.acquire()
            raise RuntimeError(
                "a blocking take inside a signal handler or __del__ that interrupted this very multi-queue "
                "would wait for ever; use get_nowait() or poll() there"
            )
        if self._news:
            self._read_news()
        woken = place.acquire() if deadline is None else place.acquire(True, seconds_left(deadline))
        lock.acquire()
        return woken

    def _pass_on_locked(self, own: Fifo[T] | None) -> None:
        """Wake somebody else, for a taker that was woken and will not take."""
        if own is None:
            self._wake_taker_locked()
        elif own._items:
            wake_one(own._own_takers)

    def _wake_taker_locked(self) -> None:
        if self._takers and self._best_locked() is not None:
            wake_one(self._takers)

    def _check_open_locked(self, own: Fifo[T] | None) -> None:
        """Raise when `own`, which is empty, or the whole multi-queue can have no element any more."""
        if own is not None:
            if own._closed is not None:
                raise own._closed_error()
        elif self._is_shutdown and self._is_finished_locked():
            raise ShutDown("the multi-queue is shut down, and nothing is left in it")

    def _size_locked(self) -> int:
        """The number of elements that could be taken now."""
        return sum([len(sub._items) for sub in self._ready])

    def _is_finished_locked(self) -> bool:
        """Is the multi-queue shut down with nothing left in any of its sub-queues?"""
        return False

    # ---- coroutines -----------------------------------------------------------------------------------------

    async def _take_async(self, own: Fifo[T] | None) -> tuple[Fifo[T], T]:
        """`_take_one` for a coroutine, from any event loop; a cancelled one has taken nothing."""
        places = self._takers if own is None else own._own_takers
        while True:
            pair = self._take_one(own, False)
            if pair is not None:
                return pair
            place = AsyncPlace()
            try:
                if self._locked(self._enter_locked, own, places, place):
                    await place.woken
            except BaseException:
                self._locked(self._leave_locked, own, places, place)
                raise

    def _enter_locked(self, own: Fifo[T] | None, places: Places, place: AsyncPlace) -> bool:
        """Park `place`, unless there is something to take or the end has come."""
        if self._due_locked(own) is not None:
            return False
        self._check_open_locked(own)
        if own is not None:
            own._plain = False
        places.append(place)
        return True

    def _leave_locked(self, own: Fifo[T] | None, places: Places, place: Place) -> None:
        if not leave(places, place):
            self._pass_on_locked(own)
        if own is not None:
            own._settle_locked()

    # ---- changing what is ready -----------------------------------------------------------------------------

    def _locked(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` with the take lock held and the news read, and read the news after it."""
        lock = self._take_lock
        try:
            lock.acquire()
            if self._news:
                self._read_news_locked()
            result = function(*args, **kwargs)
            if self._news:
                self._read_news_locked()
            if self._takers:
                self._wake_taker_locked()
            lock.release()
        except BaseException:
            try:
                self._let_go()
            except BaseException:  # interrupted again
                self._let_go()
                raise
            raise
        if self._news:
            self._read_news()
        return result

    def _tell(self, sub: Fifo[T]) -> None:
        """Have `sub` looked at again: now, or by the thread that holds the take lock. Never waits."""
        self._news.append(sub)
        self._read_news()

    def _read_news(self) -> None:
        lock = self._take_lock
        try:
            while self._news and not lock._is_owned() and lock.acquire(False):
                self._read_news_locked()
                lock.release()
        except BaseException:
            try:
                release_owned(lock)
            except BaseException:  # interrupted again
                release_owned(lock)
                raise
            raise

    def _read_news_locked(self) -> None:
        news = self._news
        while True:  # not `while news`: that tests before it jumps back, and a signal handler could read in between
            if not news:
                break
            sub = news[0]
            del news[0]
            try:
                self._refresh_locked(sub)
            except BaseException:
                news.append(sub)  # for the next reader
                raise

    def _refresh_locked(self, sub: Fifo[T]) -> None:
        """Put `sub` where it belongs, in a ring or in none; wake a taker if it is ready, and those who wait in vain."""
        try:
            sub._told = False
            sub._items.rotate(0)  # the fence between the write above and the look below
            if sub._items:
                sub._told = True
                if sub._own_takers:
                    wake_one(sub._own_takers)
            while True:  # until a look finds it where it belongs; a signal handler's take may have moved it
                belongs = (sub._told or (sub._next is sub and len(self._groups) == ONE_GROUP)) and sub._is_eligible()
                group = sub._group
                if sub._next is None or group is None:
                    if not belongs:
                        break
                    self._link_locked(sub)
                elif belongs and group.priority == sub._priority:
                    break
                else:
                    sub._turn = 0
                    group.unlink(sub)
            if belongs and sub._told and self._takers:
                wake_one(self._takers)
            if sub._closed is not None:
                if not sub._told:
                    wake_all(sub._own_takers)
                if self._takers and self._is_finished_locked():
                    wake_all(self._takers)
        except BaseException:
            self._news.append(sub)
            raise

    def _link_locked(self, sub: Fifo[T]) -> None:
        linked = False
        while not linked:  # once, unless a signal handler's take comes in between
            group = self._ready.group(sub._priority, sub._group)
            alone = group.cursor
            if alone is not None and alone._next is alone and not alone._items:
                self._news.append(alone)
                group.unlink(alone)
            linked = group.link(sub)

    def _renew_locks_of(self, subqueues: list[Fifo[T]]) -> None:
        """In the child: the other threads are gone, with the locks they held and the places they were parked on."""
        self._take_lock = cast(ReentrantLock, _sync.RLock())
        self._takers.clear()
        self._news.clear()
        self._ready.clear()
        for sub in subqueues:
            sub._next = sub._previous = sub._group = None
            sub._renew_locks()
            self._refresh_locked(sub)
