"""Reading a paged queue: what loads, gets, management and time ask for, from the store and from memory.

Promise     What is read is what stands on the queue: a message that the store does not have yet is merged in at its
            place, and one that goes meanwhile is refused when it is claimed.
Who runs    Nothing in here is called with a lock held; the memory manager's is taken for moments, and the queue's to
            tell its consumers.
Failures    A row that is no message is logged and passed over: it blocks no consumer, and stays in the store. Where
            the store itself cannot be read, or does not show a message that was not taken, the get fails, and
            consumers are cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from multiqueue.store import Header, StoreDamaged

from .._base.message import MESSAGE_BYTES
from .._base.message_codec import decode_message
from .._base.outcome import DeadLetterReason
from .._base.ports import After
from .._queue.consumer import Predicate, QueueConsumer
from .._queue.entry import Entry
from .._queue.ports import Rows
from .._queue.queue import BrokerQueue
from .._selector.selector import Selector
from .loads import Found, Load, LoadKind
from .memory import MemoryManager
from .paged_entries import PagedEntries, cost_of
from .target_list import LEVEL_SHIFT, Look, TargetList, number_of

_log = logging.getLogger("multiqueue.broker")

_T = TypeVar("_T")

_PAGE: Final = 256  # headers that management looks at between two holds


def acting(queue: BrokerQueue) -> AbstractContextManager[After]:
    """As `Callbacks.deciding`, with the queue's lock."""
    return queue.callbacks.deciding(queue.state.lock)


@dataclass(eq=False)
class PagedReader:
    """Reads one queue while it pages, for its `Pager` and `PagedQueue`, and tells its consumers."""

    _queue: BrokerQueue
    _source: PagedEntries
    _memory: MemoryManager
    _rows: Rows
    _told: set[int] = field(default_factory=set)  # positions of what time has met and could not read

    def __post_init__(self) -> None:
        self._area = self._source.area
        self._store = self._rows.store
        self.number: int = self._rows.number
        self._extra = {"queue": self._queue.name}  # of what is logged

    # -- telling consumers

    def feed(self, target: TargetList) -> None:
        """A load has brought something, or all that there is: notify as many as it may be enough for."""
        after: After = []
        with self._queue.state.lock:  # as `acting`, without its calls: each load ends here
            if self._is_current():
                self._feed_locked(target, after)
        self._queue.callbacks.act(after)

    def _feed_locked(self, target: TargetList, after: After) -> None:
        state, target_of = self._queue.state, self._source.assignments.target_of
        if target.browses:
            state.tell_browsers(after)
            return
        count = target.direct
        for consumer in list(state.consumers.interested()):
            if target_of(consumer) is not target:
                continue
            if count <= 0:
                self._source.look_for_loss(consumer, after)
                return
            state.notify(consumer, after)
            count -= 1

    def cancel(self, target: TargetList) -> None:
        """Cancel the consumers of a list: the store cannot be read for them. What they have is theirs to settle."""
        with acting(self._queue) as after:
            if self._is_current():
                self._cancel_locked(target, after)

    def _cancel_locked(self, target: TargetList, after: After) -> None:
        state, target_of = self._queue.state, self._source.assignments.target_of
        for consumer in [each for each in state.consumers if target_of(each) is target]:
            state.remove_consumer(consumer, after)
            after.append(consumer.cancelled)

    def _is_current(self) -> bool:
        """True while the queue pages by this source. The lock is held."""
        state = self._queue.state
        source: object = state.source
        return source is self._source and not state.deleted

    def report_loss(self, consumer: QueueConsumer) -> None:
        with acting(self._queue) as after:
            if not self._is_current() or not self._source.has_lost(consumer):
                return
            lost, target = self._queue.state.counters.available, self._source.assignments.target_of(consumer)
            assert target is not None, "what has lost something has a list"
            self._cancel_locked(target, after)
        _log.error("%s; its consumers are cancelled", self._loss_of(lost), extra=self._extra)

    # -- gets without a consumer

    def load_for_get(self) -> bool:
        target = self._source.list_for_get
        return target is not None and self._memory.load_now(target)

    def check_for_loss(self) -> None:
        with self._queue.state.lock:
            has_lost = self._is_current() and self._source.has_lost()
            lost = self._queue.state.counters.available if has_lost else 0
        if lost:
            raise self._loss_of(lost)

    def _loss_of(self, lost: int) -> StoreDamaged:
        return StoreDamaged(
            f"{lost} messages of {self._queue.label} are gone from the store without being settled;"
            " `multiqueue store check` looks for more"
        )

    # -- loads

    def perform(self, load: Load) -> tuple[list[Found], int]:
        # Before the store is read: what has no payload any more was written out since, and the store shows it.
        in_memory = {slot.position: slot.payload for slot in load.unbacked if slot.payload is not None}
        if load.kind in (LoadKind.PAGE, LoadKind.HEAD):
            headers, through = self._page(load.level, load.after, load.limit, load.through)
            in_memory = {position: entry for position, entry in in_memory.items() if position <= through}
        else:
            headers, through = self._headers(load.positions), 0
            missing = [each for each in load.positions if each not in headers and each not in in_memory]
            self._check(load, missing, "header")
        selector = load.target.selector
        if load.kind is LoadKind.BODIES:
            found = self._loaded(load, headers)
        elif selector is None:
            found = self._unasked(load, headers)
        else:
            found = list(self._matching(load, headers, selector))
        matches = self._queue.callbacks.matches
        found += [
            Found(position, cost_of(entry.message, entry.size), entry)
            for position, entry in in_memory.items()
            if position not in headers and (selector is None or matches(selector, entry.message))
        ]
        return sorted(found), through

    def _page(self, level: int, after: int, limit: int, through: int) -> tuple[dict[int, Header], int]:
        """The first headers of a level behind a position, and up to where these are all of them."""
        base = level << LEVEL_SHIFT
        page = self._store.page(self.number, number_of(after), limit, level=level)
        if len(page) == limit:
            through = min(through, base | page[-1].id)
        return {base | header.id: header for header in page if base | header.id <= through}, through

    def _bodies(self, look: Look, headers: dict[int, Header]) -> dict[int, bytes]:
        """The bodies that belong to headers, by number, of those that are still there. Raises as `_check`."""
        bodies = self._store.read([header.id for header in headers.values()]) if headers else {}
        if len(bodies) < len(headers):
            self._check(look, [each for each, header in headers.items() if header.id not in bodies], "body")
        return bodies

    def _check(self, look: Look, missing: list[int], what: str) -> None:
        """Return if messages that the store lacks have gone since the look began, else raise StoreDamaged."""
        if not missing:
            return
        with self._memory as paging:
            lost = [number_of(position) for position in missing if paging.is_ready(look, position)]
        if lost:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            raise StoreDamaged(
                f"the {what} of message {lost[0]}{more} of {self._queue.label} is gone from the store"
                " without being settled; `multiqueue store check` looks for more"
            )

    def _unasked(self, load: Load, headers: dict[int, Header]) -> list[Found]:
        """All of a page, the first of them with their bodies, as far as there is room for these."""
        affordable: dict[int, Header] = {}
        body_bytes = load.body_bytes
        for position, header in headers.items():
            body_bytes -= _cost(header)
            if body_bytes < 0:
                break
            affordable[position] = header
        others = [(position, header) for position, header in headers.items() if position not in affordable]
        return self._loaded(load, affordable) + [Found(position, _cost(header), None) for position, header in others]

    def _loaded(self, look: Look, headers: dict[int, Header]) -> list[Found]:
        entries = self._entries(headers, self._bodies(look, headers))
        return [Found(entry.position, _cost(headers[entry.position]), entry) for entry in entries]

    def _entries(self, headers: dict[int, Header], bodies: dict[int, bytes]) -> Iterator[Entry]:
        for position, header in headers.items():
            body = bodies.get(header.id)
            entry = None if body is None else self._entry(position, header, body)
            if entry is not None:
                yield entry

    def _matching(self, look: Look, headers: dict[int, Header], selector: Predicate) -> Iterator[Found]:
        for position, header in headers.items():
            body: bytes | None = b""
            if not isinstance(selector, Selector):  # a predicate may look at it
                body = self._bodies(look, {position: header}).get(header.id)
            if body is None:
                continue
            message = self._read(position, partial(decode_message, header.properties, body))
            if message is not None and self._queue.callbacks.matches(selector, message):
                yield Found(position, _cost(header), None)

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

    # -- everything, a page at a time

    def pages(self, *, bodies: bool, lowest_first: bool = False) -> Iterator[list[Entry]]:
        """The messages on the queue now, page by page in service order; `lowest_first` turns the levels round.

        Entries that somebody has are the very objects that he has. Ready ones may be objects made for this: claim one
        before the next page is asked for.
        """
        with self._queue.state.pinned():
            with self._memory:
                ends = list(self._area.last)
            levels = list(enumerate(ends))
            for level, end in reversed(levels) if lowest_first else levels:
                after = level << LEVEL_SHIFT
                while after < end:
                    after = yield from self._one_page(level, after, end, bodies)

    def _one_page(self, level: int, after: int, end: int, bodies: bool) -> Generator[list[Entry], None, int]:
        area = self._area
        with self._memory.looking(area) as look:
            with self._memory:
                alone = area.unbacked.between(after, end, _PAGE)
                here = {position: area.slots[position].payload for position in alone}
                end = alone[-1] if len(alone) == _PAGE else end
            headers, through = self._page(level, after, _PAGE, end)
            read = self._bodies(look, headers) if bodies else {}
            batch: list[Entry] = [
                entry for position, entry in here.items() if position <= through and position not in headers
            ]
            with self._memory as paging:
                ready = {position for position in headers if paging.is_ready(look, position)}
            for position, header in headers.items():
                entry = self._source.taken.get(position)
                if entry is None and position in ready and (not bodies or header.id in read):
                    entry = self._entry(position, header, read.get(header.id, b""))
                if entry is not None:
                    batch.append(entry)
            batch.sort(key=lambda entry: entry.position)
            yield batch
        return through  # for the next page, which begins behind it

    def expire(self, position: int) -> bool:
        with self._queue.state.pinned(), self._memory.looking(self._area) as look:
            try:
                headers = self._headers([position])
                bodies = self._bodies(look, headers)
                with self._memory as paging:
                    is_ready = paging.is_ready(look, position)
                entries = self._entries(headers, bodies) if is_ready else ()
                return any(self.drop(entry, DeadLetterReason.EXPIRED) for entry in entries)
            except StoreDamaged as error:
                if position not in self._told:  # time comes again and again
                    self._told.add(position)
                    self._complain("message %d does not expire", number_of(position), error)
                return False

    def drop(self, entry: Entry, reason: DeadLetterReason | None) -> bool:
        """Drop an entry that was read; False when somebody has it, or it is gone."""
        with acting(self._queue) as after:
            return self._queue.state.drop(entry, reason, after)

    # -- details

    def _entry(self, position: int, header: Header, body: bytes) -> Entry | None:
        entry = self._read(position, partial(self._queue.joining.recovered, self._rows, header, body))
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
        _log.error(f"%s: {problem}", self._queue.label, number, exc_info=error, extra=self._extra)


def _cost(header: Header) -> int:
    return header.size + 2 * len(header.properties) + MESSAGE_BYTES
