"""The memory of a virtual host: who may use how much of it, the threads that load, and the figures.

Promise     What paged queues keep in memory stays within one budget; a list that lacks something, and for which there
            is room, has a load under way soon. What a queue that does not page reserves covers its messages, but for
            one that joins just now: it is reserved in steps, so that most puts do not ask. When no more is to be had,
            the largest queues that can page are made to, until there is room again.
State       `_lock` guards the paging state machine, of all queues, and everything below. It is a leaf under the
            queues' locks, which decide the order of events: see docs/decisions/0501-one-lock-per-broker-queue.md. A
            queue reads its own `reserved` under its own lock alone: the next message asks again for bytes that were
            taken back meanwhile.
Who runs    Two loaders, so that a slow read does not hold up the others. They hold no lock while they read or ask
            selectors, and take a queue's lock, without this one, to notify consumers. Between two loads each does a
            piece of what others must not do (`do_later`). `reserve` runs under a queue's lock, so it pages no queue;
            `relieve` runs under no lock, and takes the locks of other queues, one after the other.
Waiting     Every event that makes a list want something or frees bytes sets `stirred` in its hold, which ends by waking
            a loader. "Why each wait ends" in docs/design/bounded-memory.md has the other waits; `close` ends them all.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..._kinds import check_kind
from ..._locks import Condition, Lock, attempts, hold
from .._base.errors import ConsumerNotAdmitted, MessageTooLarge
from .._base.message import MESSAGE_BYTES
from .._base.waits import InPieces, nap
from .._queue.limits import DepthLimit
from .budget import UNPAGED_SHARE
from .lists import Paging
from .loads import Found, Load, Loads
from .target_list import LEVEL_SHIFT, NUMBER_MASK, Account, Area, Look, TargetList

if TYPE_CHECKING:
    from .reader import PagedReader

_log = logging.getLogger("multiqueue.broker")

# Bytes of a line of a list, or of a record of what a consumer has: a slot, its places in dict and list, its position.
ENTRY_BYTES: Final = 256
_LOADERS: Final = 2
_EXPIRED_AT_ONCE: Final = 32  # messages: some 5 ms where they go to dead letters
_MOST_ON_THE_WAY: Final = 12 << 20  # bytes: some 0.3 s of commits of small messages, which others' commits wait for
_MOST_LARGE: Final = 24 << 20  # and 0.03 s of large ones, while no more than so many hand-ins are on their way
_MOST_HAND_INS: Final = 96  # fewer than 12 MiB are of small messages: those come in at most 128 KiB at a time
_WRITING_SHARE: Final = 1 / 8  # of the budget: what waits for its commit; beyond it, publishers wait
# Of the budget: what memory alone has of queues that page. Beyond it, their publishers are held.
_BEHIND_SHARE: Final = 1 / 2
# Of the budget: what is reserved while no queue pages, for then nothing else wants the rest.
_SHARE_ALONE: Final = 3 / 4
_BACKED_ALONE: Final = 1 / 2  # and of one durable queue: to page costs it twice the CPU, but no writing
_RELIEVED: Final = 3 / 4  # of the share: paging out goes on down to this, so that it is not each message's business
_LEAST: Final = 1 / 4096  # of the budget, 64 KiB of 256 MiB: what is reserved beyond what a queue uses
_LARGEST: Final = 1 / 64  # of the budget: the same, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatistics:
    """One target list: `direct` of its `entries` are in memory; `scanned` is the number up to which it looked."""

    queue: str
    consumers: str
    entries: int
    direct: int
    direct_bytes: int
    high_water_bytes: int
    scanned: int
    is_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStatistics:
    """The memory of a virtual host at one moment, in bytes: the accounts add up to `used`, at most `limit`.

    `dispatched` is with consumers, `target` is next for them, `pending` comes after that, `head` is kept for consumers
    to come; `loading` is reserved, `entries` are the lists themselves, `writing` waits for its commit, `unpaged` is on
    queues that do not page, or cannot be stored.
    """

    limit: int
    used: int
    dispatched: int
    target: int
    pending: int
    head: int
    loading: int
    entries: int
    writing: int
    unpaged: int
    loads: int
    targets: tuple[TargetStatistics, ...]


class MemoryManager:
    """`with memory as paging` is a hold of its lock; a change in it wakes a loader when it ends."""

    def __init__(self, limit: int, *, name: str = "/") -> None:
        _check_limit(limit)
        self.name = name
        self._lock = Lock()
        self._attempts = attempts(self._lock.acquire)
        self._work = Condition(self._lock)
        self._progress = Condition(self._lock)  # a load or a commit has ended
        # The state machine, for a caller that holds the lock, or asks for a moment's figure.
        self.paging: Paging = Paging(limit, ENTRY_BYTES)
        self._loads = Loads(self.paging)
        self.largest_body: int = self.paging.largest_message - MESSAGE_BYTES  # what is more is refused
        self._readers: dict[Area, PagedReader] = {}  # called under no lock
        self._threads: list[threading.Thread] = []
        self._pieces: deque[Callable[[], bool]] = deque()  # of what takes long
        self._closed = False
        # Those that have something reserved. Invariant: the sum of it, and what no store can keep, is amounts[UNPAGED].
        self._holders: dict[DepthLimit, None] = {}
        self._relieving = InPieces(self.do_later)
        # Invariant: no more than amounts[WRITING]; the rest of that is in memory alone until it is written out.
        self._on_the_way = 0
        self._hand_ins = 0  # that are on their way
        self._held_back: list[Callable[[], object]] = []  # publishers; invariant: empty unless `commits_too_much`

    def __enter__(self) -> Paging:
        hold(self._attempts)
        return self.paging

    def __exit__(self, *exc_info: object) -> None:
        try:
            if self.paging.stirred:
                self._wake_loader_locked()
        finally:
            self._lock.release()  # though no thread could be started: everybody else needs it

    def _wake_loader_locked(self) -> None:
        if not self._threads and not self._closed:
            self._start()
        self._work.notify()

    # -- areas

    def open_area(self, area: Area, reader: PagedReader) -> None:
        with self as paging:
            paging.open_area(area)
            self._readers[area] = reader

    def refill_heads(self) -> None:
        """All areas were opened with what the store has: their heads are read, before a consumer waits."""
        with self:
            self._loads.refill_heads(
                [
                    area
                    for area in self._readers
                    if not area.is_keyed and any(last & NUMBER_MASK for last in area.last.values())
                ]
            )

    def end_area(self, area: Area) -> None:
        """Nothing is on a queue that pages no longer; what of its rows is to be deleted still is remembered."""
        with self as paging:
            paging.end_area(area)
        self.close_area(area)

    def close_area(self, area: Area) -> None:
        """A queue is gone, and nothing of it can be taken; `clear_some` frees the memory that it has."""
        with self as paging:
            self._readers.pop(area, None)
            paging.close_area(area)
            self._progress.notify_all()

    @property
    def limit(self) -> int:
        """The budget in bytes. A lower one is kept at once, but for loads under way: loads and commits end first."""
        return self.paging.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        _check_limit(limit)
        with self as paging:
            paging.set_limit(limit)
            self.largest_body = paging.largest_message - MESSAGE_BYTES
        self.relieve()

    def check_size(self, size: int, label: str) -> None:
        """Return if a message of this size, in bytes of its body, can be kept. Raises MessageTooLarge: it cannot."""
        if size > self.largest_body:
            raise MessageTooLarge(
                f"a message of {size} bytes for {label} is larger than a quarter of the memory limit"
                f" of {self.paging.limit} bytes allows ({max(self.largest_body, 0)}); raise the limit or send less at"
                " once"
            )

    def statistics(self) -> MemoryStatistics:
        """The accounts and every target list, at one moment."""
        with self as paging:
            self._trim_locked()
            accounts = {each.name.lower(): paging.amounts[each] for each in Account if each}
            return MemoryStatistics(
                **accounts,
                limit=paging.limit,
                used=paging.used,
                loads=self._loads.count,
                targets=tuple(
                    TargetStatistics(
                        queue=target.area.name,
                        consumers=target.label,
                        entries=len(target.entries),
                        direct=target.direct,
                        direct_bytes=target.direct_bytes,
                        high_water_bytes=paging.high_water,
                        scanned=target.scans[0],
                        is_open=target.open_level is not None,
                    )
                    for target in paging.lists
                ),
            )

    @contextmanager
    def looking(self, area: Area) -> Iterator[None]:
        """While rows of an area are read without the lock: messages that leave meanwhile are remembered."""
        look = Look(area)
        with self._lock:
            area.looks.append(look)
        try:
            yield
        finally:
            with self._lock:
                area.looks.remove(look)

    # -- loading

    def load_now(self, target: TargetList) -> bool:
        """Do, on this thread, what the list needs next; False when it has nothing, and nothing can be had now.

        Waits when another thread is at it.

        Raises:
            ConsumerNotAdmitted: no room is left for it, and nothing under way would make some.
            Exception: the error that the load met; the list asks again at the next demand.
        """
        with self as paging:
            if paging.first(target) is not None:
                return True
            load = self._loads.load_for(target)
            if load is None and target.loading:
                while target.loading and not self._closed:
                    self._progress.wait()
                return not self._closed
            served = list(paging.served)
            refusal = self._refusal_locked(target) if load is None and target not in served else None
        self._tell(served)
        if refusal is not None:
            raise refusal
        if load is not None:
            self._perform(load)
        return load is not None or target in served

    def _refusal_locked(self, target: TargetList) -> ConsumerNotAdmitted | None:
        """The error for a get whose list has no load: that there is no room for one, and will be none by itself."""
        paging = self.paging
        if target not in paging.wanting or paging.amounts[Account.LOADING] or self._on_the_way:
            return None
        return ConsumerNotAdmitted(
            f"a get of {target.area.name} finds no room for the next message: {paging.free} of {paging.limit} bytes are"
            f" free, and {paging.in_flight} messages are unsettled; settle some, or raise the memory limit"
        )

    def do_later(self, piece: Callable[[], bool]) -> None:
        """Have a loader call this, again and again while it returns True. Nothing of it is called after `close`."""
        with self as paging:
            self._pieces.append(piece)
            paging.stirred = True

    def _start(self) -> None:
        for number in range(_LOADERS):
            name = f"multiqueue-loader-{self.name}-{number}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()  # first: `close` joins those that are there
            self._threads.append(thread)

    def _run(self) -> None:
        had_piece = False
        while not self._closed:
            piece: Callable[[], bool] | None = None
            with self._lock:
                while not self.paging.stirred and not self._closed:
                    self._work.wait()
                load = None if self._closed else self._loads.next_load()
                self.paging.clear_leaving()
                if self._pieces and (load is None or not had_piece):
                    piece = self._pieces.popleft()
                is_more_to_clear = bool(self.paging.leaving)
                if load is not None or is_more_to_clear or self._pieces:
                    self.paging.stirred = True  # there may be one for the other loader as well
                    self._work.notify()
                else:
                    self._progress.notify_all()
                served = list(self.paging.served)
            self._tell(served)
            if load is not None:
                self._try(load)
            elif is_more_to_clear:
                nap()
            had_piece = piece is not None
            if piece is not None and not self._closed:
                self._do(piece)

    def _do(self, piece: Callable[[], bool]) -> None:
        try:
            is_more = piece()
        except BaseException as error:  # noqa: BLE001  # the loader goes on with what else there is
            _log.error("a slice of long work failed", exc_info=error)
            return
        if is_more:
            self.do_later(piece)
            nap()

    def _try(self, load: Load) -> None:
        try:
            self._perform(load)
        except BaseException as error:  # noqa: BLE001  # the loader goes on with the other lists
            reader = self._readers.get(load.area)
            if self._closed or load.area.is_closed or reader is None:
                return
            name = load.area.name
            if load.is_for_head:
                _log.warning("the head of %s cannot be read: %s", name, error, extra={"queue": name})
                return  # no consumer waits for it; consumers to come are told
            message = "a load for %r failed; its consumers are cancelled"
            _log.error(message, load.target, exc_info=error, extra={"queue": name})
            reader.cancel(load.target)  # or they would wait for a load that does not come

    def _perform(self, load: Load) -> None:
        reader = self._readers.get(load.area)
        found: list[Found] | None = None
        try:
            if reader is not None:
                found = reader.perform(load)
        finally:
            with self:
                if found is None:
                    self._loads.failed(load)
                else:
                    self._loads.loaded(load, found)
                served = list(self.paging.served)
                self._progress.notify_all()
        self._tell(served)

    def _tell(self, served: list[TargetList]) -> None:
        for target in served:
            if reader := self._readers.get(target.area):
                reader.feed(target)

    # -- reserving, for what is on queues that do not page: perhaps under a queue's lock

    def reserve(self, holder: DepthLimit) -> bool:
        """Reserve the holder's bytes, and some for its next messages; False without room for it."""
        with self as paging:
            use = holder.in_use
            most = paging.limit * (UNPAGED_SHARE if self._readers else _BACKED_ALONE)
            if use > most and holder.is_backed():
                return False  # a store has it already
            ahead = min(max(use, int(paging.limit * _LEAST)), int(paging.limit * _LARGEST))
            if self._grant_locked(holder, use + ahead):
                return True
            self._trim_locked()
            return self._grant_locked(holder, use)

    def reserve_anyway(self, holder: DepthLimit) -> None:
        """Charge what the holder uses although there is no room for it: it is there."""
        with self as paging:
            paging.room(max(holder.in_use - holder.reserved, 0), first=True)
            self._reserve_locked(holder, max(holder.in_use, holder.reserved))

    def release(self, holder: DepthLimit) -> None:
        with self:
            self._reserve_locked(holder, 0)

    def relieve(self, asking: DepthLimit | None = None) -> None:
        """Have queues page, the largest first, until there is room for the one that asks, and some more."""
        self._relieving.run(self._relieve(asking))

    def _relieve(self, asking: DepthLimit | None) -> Iterator[None]:
        """Yields after each queue that was made to page."""
        tried: set[DepthLimit] = set()
        while True:
            with self as paging:
                need = 0 if asking is None or asking in tried else max(asking.in_use - asking.reserved, 0)
                most = self._unpaged_share * _RELIEVED - need
                if paging.amounts[Account.UNPAGED] <= most:
                    return
                self._trim_locked()
                left = [each for each in {*self._holders, asking} - tried if each is not None and each.can_page]
                if paging.amounts[Account.UNPAGED] <= most or not left:
                    return
            largest = max(left, key=lambda each: each.in_use)
            tried.add(largest)
            largest.page_out()
            yield

    @property
    def is_exhausted(self) -> bool:
        """True when all of the budget is taken, by publishers that were asked to wait and did not: a moment's figure.
        Not the share, which gets smaller when a queue begins to page: a publisher that does wait is not refused.
        """
        return self.paging.amounts[Account.UNPAGED] > self.paging.limit

    @property
    def _unpaged_share(self) -> float:
        return self.paging.limit * (UNPAGED_SHARE if self._readers else _SHARE_ALONE)

    def _grant_locked(self, holder: DepthLimit, amount: int) -> bool:
        amount = max(amount, holder.reserved)
        more = amount - holder.reserved
        if self.paging.amounts[Account.UNPAGED] + more > self._unpaged_share or not self.paging.room(more):
            return False
        self._reserve_locked(holder, amount)
        return True

    def _trim_locked(self) -> None:
        """Take back what was reserved and is not in use."""
        for holder in list(self._holders):
            self._reserve_locked(holder, min(holder.in_use, holder.reserved))

    def _reserve_locked(self, holder: DepthLimit, amount: int) -> None:
        self.paging.charge(Account.UNPAGED, amount - holder.reserved)
        holder.reserved = amount
        if amount:
            self._holders[holder] = None
        else:
            self._holders.pop(holder, None)

    # -- time

    @property
    def is_paging(self) -> bool:
        """True while a queue has messages that are in a store alone."""
        return bool(self._readers)

    def expire(self, due: Iterable[tuple[int, int, int]]) -> int:
        """Drop what a store says has expired, as (queue, level, id), under no lock; how many were tried."""
        tried = 0
        with self._lock:
            readers = {reader.number: reader for reader in self._readers.values()}
        for queue, level, number in due:
            reader = readers.get(queue)
            if reader is not None and number not in self.paging.deleting:
                tried += reader.expire(level << LEVEL_SHIFT | number)
                if not tried % _EXPIRED_AT_ONCE:
                    nap()
        return tried

    # -- writing

    def begin_writing(self, cost: int, *, may_wait: bool) -> None:
        """Account for bytes that are to be committed. Waits while too many others are, if it may."""
        paging = self.paging
        with self._lock:
            share = paging.limit * _WRITING_SHARE
            # Only what is on its way ends by itself: without it there is nothing to wait for.
            while may_wait and self._on_the_way and not self._closed:
                if paging.amounts[Account.WRITING] + cost <= share and paging.room(cost):
                    break
                if paging.stirred:
                    self._wake_loader_locked()  # this hold ends here
                self._progress.wait()
            paging.room(cost, first=True)
            paging.charge(Account.WRITING, cost)
            self._on_the_way += cost
            self._hand_ins += 1
            if paging.stirred:
                self._wake_loader_locked()

    def end_writing(self, cost: int) -> None:
        held_back: list[Callable[[], object]] = []
        with self._lock:  # as `with self`, without its calls: each commit ends here, twice
            self.paging.charge(Account.WRITING, -cost)
            self._on_the_way -= cost
            self._hand_ins -= 1
            if self.paging.stirred:
                self._wake_loader_locked()
            self._progress.notify_all()
            if self._held_back and not self._commits_too_much:
                held_back, self._held_back = self._held_back, held_back
        for go_on in held_back:
            go_on()

    def deleted(self, numbers: Sequence[int]) -> None:
        paging = self.paging
        with self._lock:
            for number in numbers:
                paging.departed.pop(number, None)
                if number in paging.deleting:
                    paging.deleted(number)

    @property
    def writes_too_much(self) -> bool:
        """True when bytes that the store does not have yet take more than their share."""
        return self.paging.amounts[Account.WRITING] > self.paging.limit * _WRITING_SHARE

    @property
    def is_far_behind(self) -> bool:
        """True when they take so much that publishers are to wait for the store."""
        return self.paging.amounts[Account.WRITING] > self.paging.limit * _BEHIND_SHARE

    def hold_back(self, go_on: Callable[[], object]) -> bool:
        """Whether so much waits for its commit that a publisher which cannot wait on its thread is held back.

        Then `go_on` is called, on the store's thread, by a commit after which less does. The next commit is made
        meanwhile, of what others wait for: those who wait until nothing is on its way leave the disk idle.
        """
        with self._lock:
            if self._commits_too_much:
                self._held_back.append(go_on)
                return True
        return False

    @property
    def _commits_too_much(self) -> bool:
        most = _MOST_LARGE if self._hand_ins <= _MOST_HAND_INS else _MOST_ON_THE_WAY
        return self._on_the_way > min(self.paging.limit * _WRITING_SHARE, most)

    def close(self) -> None:
        """End the loaders and join them; waiting threads go on. Closing twice does nothing."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._progress.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def check_invariants(self) -> None:
        with self._lock:
            self.paging.check_invariants()
            amounts = self.paging.amounts
            kept = sum(area.slots[each].cost for area in (*self._readers, *self.paging.closing) for each in area.kept)
            reserved = sum(holder.reserved for holder in self._holders)
            assert amounts[Account.UNPAGED] == reserved + kept, "reservations do not add up"
            # What is under way was admitted, perhaps under a higher limit, and ends by itself.
            settled = self.paging.used - amounts[Account.LOADING] - amounts[Account.WRITING]
            assert settled <= self.paging.limit, f"{settled} of {self.paging.limit} bytes"


def _check_limit(limit: int) -> None:
    check_kind("memory_limit", limit, int, "a whole number of bytes")
    if limit <= 0:
        raise ValueError(f"a memory limit of {limit} bytes has no room for a message")
