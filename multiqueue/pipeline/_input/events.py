"""Lanes whose files are found by events: from what a store, or a directory, tells to the ledger.

Promise     An event is a hint that a place deserves a look, and no more: the store is asked for the current version,
            and that one is recorded as a listing would record it. So events may come twice, late, in any order, for
            objects that were written anew or are gone, and for places that no lane reads. What no event told, the next
            listing finds. An event is settled once the version that it led to stands in the ledger, or there is nothing
            to record, or a later one names its file: of a file's events one is kept, so a flood of them holds no others
            up. One that is none is rejected, so that the broker can dead-letter it, and counted.
State       `_hints`, by lane and path: events that are not settled, and `_held`, how many of each source. Bounded by
            the queues' `prefetch`. Where a source gives no more before some are settled, no batch is waited for.
Order       Of a file whose item runs the ledger cannot tell which version that read: it is asked again later, until it
            can. The event stays unsettled meanwhile.
Threads     The runner's; a source may have one of its own.
Crash       Recorded, not settled: comes again, and is known. Settled: was recorded before.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote_plus

from .._base.items import INOTIFY, FileSeen, Lane
from .._base.place import Place, place_of
from .._base.storage import Status, Storage
from .._config.scan import PassedOver, absolute, fits, fixed_root
from .._state.ledger import REFUSED, Ledger, Scanned
from .broker_queue import MOST, BrokerQueue, Settle
from .inotify import Watches
from .presence import Lost
from .scanner import Follow
from .sqs import SqsQueue

# A place is asked for again after so long, while its item runs or its store does not answer.
_BUSY_S = 1.0
_UNREAD_S = 5.0

# Two batches of the largest kind; brokers give no more than `prefetch` besides.
_MOST_HINTS = 20_000

_MOST_KEY_BYTES = 1024
"""S3's bound."""


class Source(Protocol):
    """Where events come from."""

    has_lost: bool
    """Events were dropped since this was set back."""

    @property
    def is_drained(self) -> bool:
        """There was nothing more when last asked; a source that is followed need not know."""

    @property
    def has_more(self) -> bool:
        """Whether some are known to have come."""

    def events(self, room: int) -> Sequence[tuple[bytes | Place, Settle]]:
        """At most so many, without waiting."""


@dataclass(slots=True, eq=False)
class _Event:
    settle: Settle
    at_s: float | None
    open: int = 0
    """Hints that it has given and that wait for it."""


@dataclass(slots=True)
class _Hint:
    """A file that events told of."""

    lane: Lane
    place: Place
    path: str
    due_s: float
    """When to look."""
    event: _Event | None = None
    """The last one."""
    seen: FileSeen | None = None
    """As it was when looked at; None for what is still to be looked at."""


class Events:
    """The lanes with events of a run. Open it before the first step."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        base: Path,
        avoid: Collection[Place],
        ledger: Ledger,
        storage: Storage,
        *,
        follow: Follow | None,
        lane_at: Callable[[str, Place], Lane | None] = lambda source, place: None,
        starts: Mapping[str, Sequence[Place]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`lane_at` makes the lane of a directory that has none yet; `starts` says, by source, where those can be."""
        self._base = base
        self._avoid = avoid
        self._ledger = ledger
        self._storage = storage
        self._follow = follow
        self._lane_at = lane_at
        self._clock = clock
        self._wall = wall
        self._starts = starts or {}
        self._sources: dict[str, Source | None] = dict.fromkeys(self._starts)
        self._names: set[str] = {lane.name for lane in lanes}
        self._lanes: dict[tuple[str, str], list[Lane]] = {}
        self._hints: dict[tuple[str, str], _Hint] = {}
        self._held: Counter[str | None] = Counter()
        self._room: dict[str | None, int] = {}
        self._short_since_s: dict[str, float] = {}
        self._new: list[Lane] = []
        self.passed_over = PassedOver()
        self.lost: dict[str, Lost] = {}
        """Lanes of which an event could not be followed, by name."""
        for lane in lanes:
            self.add_lane(lane)

    def add_lane(self, lane: Lane) -> None:
        """Route events to one more lane."""
        self._names.add(lane.name)
        if lane.events is not None:
            self._sources.setdefault(lane.events, None)
            self._lanes.setdefault((lane.events, str(lane.root)), []).append(lane)

    @contextlib.contextmanager
    def open(self, connect: Callable[[str], Any] | None = None) -> Iterator[None]:
        """While inside, events come. Unsettled events go back at the end.

        Raises:
            Unprepared: a source does not exist, or a library that it needs is missing.
        """
        with contextlib.ExitStack() as stack:
            for name in list(self._sources):
                if name == INOTIFY and self._follow is None:  # a run that ends lists the directories
                    del self._sources[name]
                    continue
                lanes = [lane for (source, _), some in self._lanes.items() if source == name for lane in some]
                self._sources[name] = self._opened(name, lanes, stack, connect)
            yield

    def _opened(
        self, name: str, lanes: Sequence[Lane], stack: contextlib.ExitStack, connect: Callable[[str], Any] | None
    ) -> Source:
        shown = lanes[0].name if lanes else "events"
        if name == INOTIFY:
            return Watches(shown, self._roots(name, lanes), self._avoid, stack)
        if name.startswith("http"):
            return SqsQueue(shown, name, stack)
        prefetch = max((max(lane.prefetch, 2 * lane.batch) for lane in lanes), default=2 * MOST)
        if self._follow is not None:  # otherwise messages are fetched, as many as one likes
            self._room[name] = prefetch
        return BrokerQueue(shown, name, prefetch, stack, connect, follow=self._follow is not None)

    def _roots(self, name: str, lanes: Sequence[Lane]) -> list[Place]:
        """The directories below which the files of this source are, none below another."""
        roots = [fixed_root(absolute(pattern, lane.root))[0] for lane in lanes for pattern in lane.globs]
        tops: list[Place] = []
        for root in sorted({*roots, *self._starts.get(name, ())}, key=lambda root: len(root.parts)):
            if not any(root.is_below(top) for top in tops):
                tops.append(root)
        return tops

    def incomplete(self) -> list[str]:
        """The lanes of which events were dropped since this was last asked: only a listing finds those files."""
        names = []
        for name, source in self._sources.items():
            if source is not None and source.has_lost:
                source.has_lost = False
                names += [lane.name for (of, _), lanes in self._lanes.items() if of == name for lane in lanes]
        return names

    @property
    def finished(self) -> bool:
        """Whether every source had nothing more, and all that came is recorded; never while following."""
        opened = self._sources.values()
        return not self._sources or (
            self._follow is None and not self._hints and all(one is not None and one.is_drained for one in opened)
        )

    @property
    def stands_still(self) -> bool:
        """Whether all that came is recorded."""
        return self.finished or (self._follow is not None and not self._hints)

    def patience_s(self) -> float | None:
        """In how many seconds there is something to do; None when nothing is known to have come."""
        if any(one is not None and one.has_more for one in self._sources.values()):
            return 0.0
        due_s = min((hint.due_s for hint in self._hints.values() if hint.seen is None), default=None)
        return None if due_s is None else max(due_s - self._clock(), 0.0)

    def new_lanes(self) -> list[Lane]:
        """The lanes of directories that events have named first; each once."""
        new, self._new = self._new, []
        return new

    def step(self, known_s: float, found: Callable[[str, Scanned], None]) -> None:
        """Take in the events that have come, and call `found` with each lane that has something new."""
        for name, source in self._sources.items():
            if source is not None and len(self._hints) < _MOST_HINTS:
                for body, settle_one in source.events(MOST):
                    self._receive(name, body, settle_one)
        looked = self._look()
        ready: dict[str, list[_Hint]] = defaultdict(list)
        for hint in self._hints.values():
            if hint.seen is not None:
                ready[hint.lane.name].append(hint)
        chosen = [hints for name, hints in ready.items() if name in looked or self._is_to_go(hints[0].lane, peek=True)]
        if not chosen:
            return
        settled: list[_Event] = []
        told: list[tuple[str, Scanned]] = []
        with self._ledger.transaction():
            for hints in chosen:
                told.append((hints[0].lane.name, self._record(hints, known_s, settled)))
        for event in settled:
            event.settle(True)
        for name, scanned in told:
            found(name, scanned)

    # From an event to hints

    def _receive(self, source: str, body: bytes | Place, settle_one: Settle) -> None:
        try:
            places, at_s = ([body], None) if isinstance(body, Place) else places_told(body, self._base)
        except ValueError as error:
            self.passed_over.add(f"a message that is no event ({error})", source.rpartition("@")[2])
            settle_one(False)
            return
        event = _Event(settle_one, at_s)
        for place in places:
            for lane in self._route(source, place):
                path = place.text
                if place.is_local and place.path.is_relative_to(self._base):
                    path = str(place.path.relative_to(self._base))
                hint = self._hints.get((lane.name, path))
                if hint is None:
                    hint = self._hints[lane.name, path] = _Hint(lane, place, path, 0.0)
                    self._held[lane.events] += 1
                earlier, hint.event = hint.event, event
                event.open += 1
                hint.due_s, hint.seen = self._clock(), None
                for one in _let_go(earlier):
                    one.settle(True)
        if not event.open:
            settle_one(True)  # of a place that no lane reads

    def _route(self, source: str, place: Place) -> list[Lane]:
        """The lanes of this source that read what is at the place."""
        roots = [place]
        while roots[-1].parent != roots[-1]:
            roots.append(roots[-1].parent)
        tops = {str(self._base), *(one.text for one in roots)}
        lanes = [lane for top in tops for lane in self._lanes.get((source, top), ())]
        made = self._lane_at(source, place)
        if made is not None and made.name not in self._names:
            self.add_lane(made)
            self._new.append(made)
            lanes.append(made)
        return [lane for lane in lanes if fits(lane, place, self._avoid)]

    # From hints to the ledger

    def _look(self) -> set[str]:
        """Ask what is at the places that are due; the lanes of those that are there."""
        now_s = self._clock()
        unknown = {lane.name for lane in self._new}  # to the run
        hints = (hint for hint in self._hints.values() if hint.seen is None and hint.due_s <= now_s)
        due = list(islice((hint for hint in hints if hint.lane.name not in unknown), MOST))
        places = list({hint.place for hint in due})
        found = dict(zip(places, self._storage.statuses(places), strict=True))
        lanes = set()
        for hint in due:
            status = found[hint.place]
            if isinstance(status, OSError) or not _is_file(hint.place):
                self._unread(hint, status)
                continue
            seen = FileSeen(hint.path, status.size_bytes, status.mtime_ns)
            if self._follow is not None and hint.place.is_local and not self._follow.has_settled(seen):
                hint.due_s = now_s + self._follow.settle_s / 2
                continue
            hint.seen = seen
            lanes.add(hint.lane.name)
        return lanes

    def _unread(self, hint: _Hint, status: Status | OSError) -> None:
        """There is no file, or it cannot be asked for."""
        is_gone = not isinstance(status, OSError) or isinstance(status, FileNotFoundError) or hint.place.is_local
        reason = status.strerror if isinstance(status, OSError) else ""
        if is_gone or isinstance(status, PermissionError):
            if not is_gone:
                self.passed_over.refuse(f"file not readable ({reason})", hint.path)
            for event in self._closed(hint):
                event.settle(is_gone)
        elif self._follow is None:  # its event goes back, for the next run
            name = hint.lane.name
            self.lost[name] = Lost(name, f"lane {name!r}: cannot ask for {hint.path!r}: {reason}", False)
            self._forget(hint)
        else:
            hint.due_s = self._clock() + _UNREAD_S

    def _record(self, hints: Sequence[_Hint], known_s: float, settled: list[_Event]) -> Scanned:
        """Record a lane's files that were looked at; those events are noted that can be settled then."""
        lane = hints[0].lane
        seen = [hint.seen for hint in hints if hint.seen is not None]
        scanned = self._ledger.record_scan(lane.name, seen, lane.batch, known_s, lane.batch_bytes)
        if not scanned.rest:
            self._short_since_s.pop(lane.name, None)
        elif self._is_to_go(lane):
            self._ledger.record_rest(lane.name, scanned.rest, known_s)
            scanned = scanned.with_rest()
        for one in scanned.refused:
            self.passed_over.add(REFUSED, one.path)
        kept, busy = {one.path for one in scanned.rest}, {one.path for one in scanned.busy}
        at_s: float | None = None
        for hint in hints:
            if hint.path in busy:
                hint.seen, hint.due_s = None, self._clock() + _BUSY_S
            elif hint.path not in kept:
                told_s = hint.event.at_s if hint.event is not None else None
                at_s = max(at_s or 0.0, told_s) if told_s else at_s
                settled += self._closed(hint)
        self._ledger.arrivals.note(lane, by_event=scanned.files, event_at=at_s, taken_at=self._wall())
        return scanned

    def _closed(self, hint: _Hint) -> list[_Event]:
        """The hint is done with: its event, if that waits for no other one."""
        self._forget(hint)
        return _let_go(hint.event)

    def _forget(self, hint: _Hint) -> None:
        del self._hints[hint.lane.name, hint.path]
        self._held[hint.lane.events] -= 1

    def _is_to_go(self, lane: Lane, *, peek: bool = False) -> bool:
        """Whether files that do not fill a batch are an item as they are, or wait for others."""
        if lane.target_s is not None:  # what waits is joined
            return True
        if len(self._hints) >= _MOST_HINTS or self._held[lane.events] >= self._room.get(lane.events, _MOST_HINTS):
            return True  # nothing more comes before some are settled
        if self._follow is None:
            return all(one is not None and one.is_drained for one in self._sources.values())
        now_s = self._clock()
        if now_s - self._short_since_s.setdefault(lane.name, now_s) < lane.batch_s:
            return False
        if not peek:
            del self._short_since_s[lane.name]
        return True

    def check_invariants(self) -> None:
        """Raise AssertionError unless no event is settled before its hints are."""
        open_events: dict[_Event, int] = {}
        for hint in self._hints.values():
            if hint.event is not None:
                open_events[hint.event] = open_events.get(hint.event, 0) + 1
        assert all(event.open >= count for event, count in open_events.items())
        assert self._held == Counter(hint.lane.events for hint in self._hints.values())


def _let_go(event: _Event | None) -> list[_Event]:
    """A hint waits for the event no more: the event, if that was the last."""
    if event is None:
        return []
    event.open -= 1
    return [] if event.open else [event]


def places_told(body: bytes, base: Path) -> tuple[list[Place], float | None]:
    """The places that an event is about, and when it happened, if it says so.

    An event is the JSON of S3's notifications, also inside of SNS's, or a path or URL as plain text.

    Raises:
        ValueError: it is neither.
    """
    text = body.decode().strip()
    if not text.startswith("{"):
        places = [place_of(text, base)]
        return [_checked(place) for place in places], None
    try:
        document = json.loads(text)
        if isinstance(document.get("Message"), str):  # SNS
            document = json.loads(document["Message"])
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(document, dict) or ("Records" not in document and document.get("Event") != "s3:TestEvent"):
        raise ValueError("it has no Records")
    places, at_s = [], None
    try:
        for record in document.get("Records", ()):
            key = unquote_plus(record["s3"]["object"]["key"], errors="strict")
            if not key.endswith("/"):  # the mark of a directory
                places.append(_checked(Place(f"s3://{record['s3']['bucket']['name']}/{key}")))
            with contextlib.suppress(KeyError, ValueError):
                at_s = max(at_s or 0.0, datetime.fromisoformat(record["eventTime"]).timestamp())
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a record has no {error}") from error
    return places, at_s


def _checked(place: Place) -> Place:
    """The place, which can be one. Raises ValueError: it cannot."""
    if "\0" in place.text or len(place.text.encode()) > _MOST_KEY_BYTES + len("s3://") + 64:
        raise ValueError("its key is none")
    return place


def _is_file(place: Place) -> bool:
    return not place.is_local or os.path.isfile(place.text)
