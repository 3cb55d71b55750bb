"""Reading a paged queue: what loads, gets, management and time ask for, from the store and from memory.

Promise     The rows that are read are those on the queue: a message that the store does not have yet is merged in at
            its place. A row is claimed under the queue's lock before anything is done to it, so one that has gone
            meanwhile is left alone.
Who runs    Nothing in here is called with a lock held; the memory manager's is taken for moments, and the queue's to
            tell its consumers, to adopt, and to take messages out.
Failures    A row that is no message is logged and passed over: it blocks no consumer, and stays in the store. Where
            the store itself cannot be read, or does not show a message that was not taken, the get fails, and
            consumers are cancelled.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from multiqueue.store import Header, Level, StoreDamaged, StoreError

from .._base.errors import ConsumerNotAdmitted
from .._base.message import MESSAGE_BYTES, DeadLetterReason
from .._base.message_codec import decode_message
from .._base.ports import After
from .._base.settings import QueueKind
from .._base.waits import InPieces, nap
from .._queue.consumer import Predicate, QueueConsumer
from .._queue.entry import HOLD, Entry, EntryState
from .._queue.life import FEW
from .._queue.queue import BrokerQueue
from .._selector.selector import Selector
from .loads import Found, Load
from .memory import MemoryManager
from .paged_entries import PagedEntries, cost_of
from .paged_fair_entries import PagedFairEntries
from .target_list import LEVEL_SHIFT, Moment, TargetList, number_of

if TYPE_CHECKING:
    from .._durable.submission import QueueJournal

_log = logging.getLogger("multiqueue.broker")

_T = TypeVar("_T")

_SLICE: Final = 256  # messages that are adopted, looked at or purged between two holds: 1 to 3 ms
_BYTES: Final = 4 * 2**20  # of bodies that management reads at once, or one body that is larger


@dataclass(eq=False)
class PagedReader:
    """Reads one queue while it pages, and tells its consumers: a part of the memory manager, and a `Walk`."""

    _queue: BrokerQueue
    source: PagedEntries
    _memory: MemoryManager
    rows: QueueJournal
    _told: set[int] = field(default_factory=set)  # positions of what time has met and could not read

    def __post_init__(self) -> None:
        self._area = self.source.area
        self._store = self.rows.store
        self.number: int = self.rows.number
        self._trimming = InPieces(self._memory.do_later)

    # -- telling consumers

    def feed(self, target: TargetList) -> None:
        """A load has brought something, or all that there is: notify as many as it may be enough for."""
        life = self._queue.life
        after: After = []
        with life.lock:  # as `deciding`, without its calls: each load ends here
            with self._memory as paging:
                if target not in paging.served:
                    return  # another loader has told them
                del paging.served[target]
            if not self._is_current():
                return
            if target.browses:
                life.notifier.tell_browsers(after)
            else:
                count = target.direct
                waiting = self._consumers_of(target, life.consumers.interested())
                for consumer in waiting[:count]:
                    life.notifier.notify(consumer, after)
                for consumer in waiting[count : count + 1]:
                    self.source.look_for_loss(consumer, after)
        self._queue.callbacks.act(after)

    def cancel(self, target: TargetList) -> None:
        """Cancel the consumers of a list: the store cannot be read for them. Their messages are theirs to settle."""
        with self._queue.callbacks.deciding() as after:
            if self._is_current():
                self._cancel_locked(target, after)

    def _cancel_locked(self, target: TargetList | None, after: After) -> None:
        life = self._queue.life
        for consumer in self._consumers_of(target, life.consumers):
            life.remove_consumer(consumer, after)
            after.append(consumer.cancelled)

    def _consumers_of(self, target: TargetList | None, consumers: Iterable[QueueConsumer]) -> list[QueueConsumer]:
        target_of = self.source.assignments.target_of
        return [each for each in consumers if target_of(each) is target]

    def _is_current(self) -> bool:
        """True while the queue pages by this source. The lock is held."""
        life = self._queue.life
        source: object = life.source
        return source is self.source and not life.deleted

    def adopt_some(self) -> bool:
        """Adopt a slice, and tell who may have it; True when there is more."""
        life = self._queue.life
        with self._queue.callbacks.deciding() as after:
            count = self.source.adopt_some(_SLICE) if self._is_current() else 0
            if count:
                life.notifier.tell_browsers(after)
                life.notifier.pass_baton(after, count)
        return count > 0 and not self.source.is_whole

    # -- what is lost

    def loss(self, consumer: QueueConsumer | None = None) -> StoreDamaged | None:
        """The error where counted messages are gone, for a get, or a consumer: then all of its list are cancelled."""
        with self._queue.callbacks.deciding() as after:
            if not self._is_current() or not self.source.has_lost(consumer):
                return None
            lost = self._queue.life.figures.available
            if consumer is not None:
                self._cancel_locked(self.source.assignments.target_of(consumer), after)
        return StoreDamaged(
            f"{lost} messages of {self._queue.label} are gone from the store without being settled;"
            " `multiqueue store check` looks for more"
        )

    # -- loads

    def load_for_get(self) -> bool:
        target = self.source.list_for_get
        return target is not None and self._memory.load_now(target)

    def perform(self, load: Load) -> list[Found]:
        """Read the rows that a load asks for, and return the found ones. Its spans end where it was not read
        further.
        """
        if load.positions:
            headers = self._headers(load.positions)
            self._check([each for each in load.positions if each not in headers], "header")
            return self._loaded(headers, math.inf)
        # Before the store is read: what has no payload any more was written out since, and the store shows it.
        in_memory = {slot.position: slot.payload for slot in load.unbacked if slot.payload is not None}
        headers = {}
        horizon_ms = self.source.held.horizon_ms(self.rows.host.wall_ms(self._queue.life.clock()))
        load.horizon_ms = horizon_ms
        for span in load.spans:
            found_here, span.through = self._page(span.level, span.after, span.limit, span.through, horizon_ms)
            headers.update(found_here)
        ends = {span.level: span.through for span in load.spans}
        in_memory = {at: entry for at, entry in in_memory.items() if at <= ends[at >> LEVEL_SHIFT]}
        selector, matches = load.target.selector, self._queue.callbacks.matches
        if selector is None:
            found = self._loaded(headers, load.body_bytes)
        else:
            found = list(self._matching(headers, selector))
            if load.target.windows is not None:
                found = self._loaded({each.position: headers[each.position] for each in found}, load.body_bytes)
        for position, entry in in_memory.items():
            if position not in headers and (selector is None or matches(selector, entry.message)):
                found.append(Found(position, cost_of(entry.message, entry.size), entry, entry.held_until_ms))
        return sorted(found)

    def _page(
        self, level: int, after: int, limit: int, through: int, held_before_ms: int | None = None
    ) -> tuple[dict[int, Header], int]:
        """The first headers of a level behind a position, and up to where these are all of them."""
        base = level << LEVEL_SHIFT
        held = {} if held_before_ms is None else {"held_before_ms": held_before_ms}
        page = self._store.page(self.number, number_of(after), limit, level=level, **held)
        if len(page) == limit:
            through = min(through, base | page[-1].id)
        return {base | header.id: header for header in page if base | header.id <= through}, through

    def _bodies(self, headers: dict[int, Header]) -> dict[int, bytes]:
        """The bodies that belong to headers, by number, of those that are still there. Raises as `_check`."""
        bodies = self._store.read([header.id for header in headers.values()]) if headers else {}
        if len(bodies) < len(headers):
            self._check([each for each, header in headers.items() if header.id not in bodies], "body")
        return bodies

    def _check(self, missing: list[int], what: str) -> None:
        """Return if messages that the store lacks have gone since the look began, else raise StoreDamaged."""
        if not missing:
            return
        with self._memory as paging:
            lost = [number_of(position) for position in missing if paging.is_ready(self._area, position)]
        if lost:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            raise StoreDamaged(
                f"the {what} of message {lost[0]}{more} of {self._queue.label} is gone from the store"
                " without being settled; `multiqueue store check` looks for more"
            )

    def _loaded(self, headers: dict[int, Header], body_bytes: float) -> list[Found]:
        """All of these, the first with their bodies, as far as there is room for these."""
        affordable: dict[int, Header] = {}
        others: list[Found] = []
        for position, header in headers.items():
            is_far = self.source.held.is_far(header.held_until_ms, position)
            body_bytes -= 0 if is_far else _cost(header)
            if body_bytes >= 0 and not is_far:
                affordable[position] = header
            else:
                others.append(Found(position, _cost(header), None, header.held_until_ms))
        entries = self._entries(affordable, self._bodies(affordable))
        found = [Found(each.position, _cost(affordable[each.position]), each, each.held_until_ms) for each in entries]
        return found + others

    def _entries(self, headers: dict[int, Header], bodies: dict[int, bytes]) -> Iterator[Entry]:
        for position, header in headers.items():
            body = bodies.get(header.id)
            entry = None if body is None else self._entry(position, header, body)
            if entry is not None:
                yield entry

    def _matching(self, headers: dict[int, Header], selector: Predicate) -> Iterator[Found]:
        for position, header in headers.items():
            body: bytes | None = b""
            if not isinstance(selector, Selector):  # a predicate may look at it
                body = self._bodies({position: header}).get(header.id)
            if body is None:
                continue
            message = self._read(position, partial(decode_message, header.properties, body))
            if message is not None and self._queue.callbacks.matches(selector, message):
                yield Found(position, _cost(header), None, header.held_until_ms)

    def _headers(self, positions: list[int]) -> dict[int, Header]:
        """The headers at ascending positions, of those that are there."""
        found: dict[int, Header] = {}
        index = 0
        while index < len(positions):
            level = positions[index] >> LEVEL_SHIFT
            limit = len(positions) - index
            if positions[-1] - positions[index] > 4 * limit:
                limit = min(limit, 8)  # far apart: what lies between is not wanted
            rows, end = self._page(level, positions[index] - 1, limit, (level + 1 << LEVEL_SHIFT) - 1)
            while index < len(positions) and positions[index] <= end:
                header = rows.get(positions[index])
                if header is not None:
                    found[positions[index]] = header
                index += 1
        return found

    def name_tenant(self, source: PagedFairEntries, level: Level) -> None:
        """Find the tenant that a level of the store belongs to, by its first message that can be read."""
        for header in self._store.page(self.number, 0, _SLICE, level=level.level):
            position = level.level << LEVEL_SHIFT | header.id
            entry = self._entry(position, header, self._store.read([header.id]).get(header.id, b""))
            if entry is not None:
                source.open_tenant(entry, level.messages, level.bytes)
                return

    # -- everything, a page at a time

    def pages(self, *, bodies: bool, lowest_first: bool = False, only: int | None = None) -> Iterator[list[Entry]]:
        """The messages on the queue now, page by page in service order; `lowest_first` turns the levels round.

        `only` those of this level, unless it is None.

        Everything is adopted before; empty pages come meanwhile. Entries that somebody has are the very objects that he
        has. Ready ones may be objects made for this: claim one before the next page is asked for.
        """
        while self.adopt_some():
            nap()
            yield []
        with self._queue.life.pinned():
            with self._memory:
                levels = [each for each in self._area.last.items() if only in (None, each[0])]
            for level, end in reversed(levels) if lowest_first else levels:
                after = level << LEVEL_SHIFT
                while after < end:
                    after = yield from self._one_page(level, after, end, bodies)

    def _one_page(self, level: int, after: int, end: int, bodies: bool) -> Generator[list[Entry], None, int]:
        area = self._area
        with self._memory.looking(area):
            with self._memory:
                alone = area.unbacked.between(after, end, _SLICE)
                here = {position: area.slots[position].payload for position in alone}
                end = alone[-1] if len(alone) == _SLICE else end
            headers, through = self._page(level, after, _SLICE, end)
            if bodies:
                headers, through = _within(headers, through)
            read = self._bodies(headers) if bodies else {}
            batch: list[Entry] = [entry for at, entry in here.items() if at <= through and at not in headers]
            with self._memory as paging:
                ready = {position for position in headers if paging.is_ready(area, position)}
            for position, header in headers.items():
                entry = self.source.taken.get(position)
                if entry is None and position in ready and (not bodies or header.id in read):
                    entry = self._entry(position, header, read.get(header.id, b""))
                    if entry is not None and self.source.held.is_far(header.held_until_ms, position):
                        entry.apply(HOLD)
                if entry is not None:
                    batch.append(entry)
            batch.sort(key=lambda entry: entry.position)
            yield batch
        return through  # for the next page, which begins behind it

    # -- taking out

    def purge(self, stop: Callable[[], bool]) -> int:
        """As `Walk.purge`. First what the store does not show: rows written out meanwhile, it shows afterwards."""
        life, area, count = self._queue.life, self._area, 0
        while self.adopt_some():
            if stop():
                return count
            nap()
        now = life.clock()
        with life.lock:
            taken = list(self.source.taken.items())
            with self._memory:
                ends, alone = list(area.last.values()), list(area.unbacked)
        known = alone + [position for position, entry in taken if entry.is_ready]
        count = self._purge_known(known, now, stop)
        for end in ends:
            count += self._purge_level(end, stop)
        with life.lock:  # what was far, and has come near meanwhile
            held = [each for each, entry in self.source.taken.items() if entry.state is EntryState.HELD]
        last = {end >> LEVEL_SHIFT: end for end in ends}
        return count + self._purge_known(
            [each for each in held if each <= last.get(each >> LEVEL_SHIFT, -1)], now, stop
        )

    def _purge_known(self, positions: list[int], now: float, stop: Callable[[], bool]) -> int:
        """As `purge`, of what is in memory at these positions."""
        count = 0
        for begin in range(0, len(positions), _SLICE):
            if stop():
                break
            with self._queue.callbacks.deciding() as after:
                found = [self.source.get(position) for position in positions[begin : begin + _SLICE]]
                entries = [each for each in found if each and (each.expires_at is None or each.expires_at > now)]
                count += self._queue.life.purge(entries, after)
        return count

    def _purge_level(self, end: int, stop: Callable[[], bool]) -> int:
        """As `purge`, of what the store has of one level up to its end."""
        rows, life = self.rows, self._queue.life
        level, wall_now = end >> LEVEL_SHIFT, rows.host.wall_clock()
        count, position = 0, level << LEVEL_SHIFT
        while position < end and not (stop() or life.deleted):
            with self._memory.looking(self._area):
                page = rows.store.outlines(rows.number, number_of(position), _SLICE, wall_now, level=level)
                found = [(level << LEVEL_SHIFT | each.id, each.size, each.held_until_ms) for each in page]
                with self._queue.callbacks.deciding() as after:
                    gone, size = self.source.consume_all([each for each in found if each[0] <= end])
                    if gone:
                        life.have_gone(len(gone), size, after)
            count += len(gone)
            if gone:
                rows.delete([number_of(each) for each in gone])
            if len(page) < _SLICE:
                break
            position = found[-1][0]
        return count

    def drop_each(self, reason: DeadLetterReason) -> int:
        dropped = 0
        for batch in self.pages(bodies=True):
            for entry in batch:
                dropped += self._drop(entry, reason)
                if not dropped % FEW:
                    nap()
        return dropped

    def trim(self) -> None:
        """Evict entries above a limit: from the head, of a tenant's too, or from the lowest level."""
        if self._is_above() and not self._trimming.leave_to_other(again=self.trim):
            has_levels = self._queue.settings.kind is QueueKind.PRIORITY
            self._trimming.run(self._trim_levels() if has_levels else self._trim_head())

    def _is_above(self) -> bool:
        life = self._queue.life
        with life.lock:
            return not life.deleted and (life.is_above_limit() or self.source.place_to_cut() is not None)

    def _trim_levels(self) -> Iterator[None]:
        while (yield from self._trim_once()):  # what comes during a walk is not on it
            pass

    def _trim_once(self) -> Generator[None, None, bool]:
        """Evict in one walk; True when another one may find more."""
        life, is_more = self._queue.life, False
        with life.lock, self._memory:
            level, ends = self.source.place_to_cut(), dict(self._area.last)
        for batch in self.pages(bodies=True, lowest_first=True, only=level):
            for begin in range(0, len(batch) or 1, FEW):
                for entry in batch[begin : begin + FEW]:
                    with self._queue.callbacks.deciding() as after:
                        if level is None and not life.is_above_limit():
                            return False
                        if level is None and self._has_come_below(entry, ends):
                            return True
                        if level == self.source.place_to_cut():
                            is_more = life.drop(entry, DeadLetterReason.MAXLEN, after) or is_more
                yield
                nap()
        return is_more

    def _has_come_below(self, entry: Entry, ends: Mapping[int, int]) -> bool:
        """True when a message that came behind these ends is to be evicted before this entry."""
        with self._memory:
            last = self._area.last
            return last != ends and any(last[each] > ends.get(each, 0) for each in last if each > entry.level)

    def _trim_head(self) -> Iterator[None]:
        """Evict from the head; yields after some that were in memory, and after a load."""
        life = self._queue.life
        while True:
            with self._queue.callbacks.deciding() as after:
                victim, may_come = None, True
                for _ in range(FEW):
                    victim, may_come = (None, False) if life.deleted else self.source.next_to_go(after)
                    if victim is None:
                        break
                    life.drop(victim, DeadLetterReason.MAXLEN, after)
            if victim is None:
                if not may_come:
                    break
                try:
                    is_loaded = self.load_for_get()
                except ConsumerNotAdmitted:  # what is unsettled has the memory, and the limit holds all the same
                    break
                if not is_loaded:
                    break
            yield
            nap()
        if self._is_above():  # by what no get finds: it is held until its time, or there is no memory for it
            yield from self._trim_levels()

    def fetch_held(self) -> None:
        """Bring the next messages that wait for their time into memory, if there are any that are not, and room."""
        life, source = self._queue.life, self.source
        with life.lock:
            plan = source.held.begin(life.clock()) if self._is_current() else None
        if plan is None:
            return
        through: Moment | None = None
        try:
            with self._memory.looking(self._area):
                through = self._fetch_behind(*plan)
        except StoreError as error:
            if -1 not in self._told:
                self._told.add(-1)
                label, extra = self._queue.label, {"queue": self._queue.name}
                _log.error("%s: messages stay held, as their store cannot be read", label, exc_info=error, extra=extra)
        finally:
            with life.lock:
                source.held.end(through, life.clock())
                life.visit_by(source.next_time())

    def _fetch_behind(self, after: Moment, room: float) -> Moment | None:
        """Bring what is due behind a moment, as far as there is room; up to where that was all, if it was anything."""
        moment_ms, position = after
        place = (int(moment_ms), position >> LEVEL_SHIFT, number_of(position))
        rows = self._store.held(self.number, place, _SLICE)
        headers: dict[int, Header] = {}
        for level, header in rows:
            room -= _cost(header)
            if headers and room < 0:
                break
            headers[level << LEVEL_SHIFT | header.id] = header
        entries = {entry.position: entry for entry in self._entries(headers, self._bodies(headers))}
        sizes = {position: header.size for position, header in headers.items()}
        matched: dict[TargetList, set[int]] = {}
        while True:
            with self._queue.life.lock:
                with self._memory:
                    lists = [each for each in self._area.lists if each.selector is not None and each not in matched]
                if not lists:
                    refused = self.source.take_held(sizes, entries, matched) if self._is_current() else None
                    break
            for each in lists:
                is_wanted = partial(self._queue.callbacks.matches, each.selector)
                matched[each] = {at for at, entry in entries.items() if is_wanted(entry.message)}
        if len(headers) == len(rows) < _SLICE and refused is None:
            return math.inf, 0
        brought = list(headers if refused is None else itertools.takewhile(lambda at: at != refused, headers))
        return (headers[brought[-1]].held_until_ms or 0, brought[-1]) if brought else None

    def expire(self, position: int) -> bool:
        """Drop a message that is past its time; False when somebody has it, or it is gone."""
        with self._queue.life.pinned(), self._memory.looking(self._area):
            held = self.source.taken.get(position)
            if held is not None and held.is_ready:  # it is near its time
                return self._drop(held, DeadLetterReason.EXPIRED)
            try:
                headers = self._headers([position])
                bodies = self._bodies(headers)
                with self._memory as paging:
                    is_ready = paging.is_ready(self._area, position)
                entries = self._entries(headers, bodies) if is_ready else ()
                return any(self._drop(entry, DeadLetterReason.EXPIRED) for entry in entries)
            except StoreDamaged as error:
                if position not in self._told:  # time comes again and again
                    self._told.add(position)
                    self._complain("message %d does not expire", number_of(position), error)
                return False

    def _drop(self, entry: Entry, reason: DeadLetterReason) -> bool:
        """Drop an entry that was read; False when somebody has it, or it is gone."""
        with self._queue.callbacks.deciding() as after:
            return self._queue.life.drop(entry, reason, after)

    # -- details

    def _entry(self, position: int, header: Header, body: bytes) -> Entry | None:
        entry = self._read(position, partial(self._queue.life.recovered, self.rows, header, body))
        if entry is not None:
            entry.position = position
            entry.level = position >> LEVEL_SHIFT
        return entry

    def _read(self, position: int, decode: Callable[[], _T]) -> _T | None:
        """The message of a row; None where it is damaged, which must not stop the queue."""
        try:
            return decode()
        except Exception as error:  # noqa: BLE001  # it is logged
            self._area.unreadable.add(position)
            self._complain("message %d cannot be read and is passed over", number_of(position), error)
            return None

    def _complain(self, problem: str, number: int, error: Exception) -> None:
        _log.error(f"%s: {problem}", self._queue.label, number, exc_info=error, extra={"queue": self._queue.name})


def _within(headers: dict[int, Header], through: int) -> tuple[dict[int, Header], int]:
    """The first headers, whose bodies are read at once, and up to where these are all."""
    room, kept, last = _BYTES, dict[int, Header](), through
    for position, header in headers.items():
        if kept and header.size > room:
            return kept, last
        kept[position] = header
        room, last = room - header.size, position
    return headers, through


def _cost(header: Header) -> int:
    return header.size + 2 * len(header.properties) + MESSAGE_BYTES
