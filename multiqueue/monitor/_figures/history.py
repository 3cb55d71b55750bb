"""Past figures: the samples behind RabbitMQ's `lengths_age`, `msg_rates_age`, `data_rates_age`, `node_stats_age`
and their `_incr`.

Promise     A track has a row for each sample in which its figures changed, so one that rests costs nothing; its rows
            are bounded, and all rows of a history together by `_CELLS`. A gap, in which no samples were taken, has
            none.
Time        Seconds since 1970 at the first sample; they go on as the wall clock does, but never back with it.
State       A `History` belongs to one sampler, which takes its lock for samples around each call.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, Final

from .node import FIGURES as NODE_FIGURES

_MOST: Final = 600  # rows of a track: ten minutes of changes at the shortest interval
_LEAST: Final = 60
_CELLS: Final = 5_000_000  # figures of all tracks together: 40 MB
_MOST_SAMPLES: Final = 600  # of one answer
_MOST_GAPS: Final = 100

Figures = tuple[int, ...]  # in the order of the history's names
LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
OCTETS: Final = ("recv_oct", "send_oct")


class Gaps:
    """The times in which no samples were taken, the latest last."""

    def __init__(self) -> None:
        self._gaps: deque[tuple[float, float]] = deque(maxlen=_MOST_GAPS)

    def look_at(self, last: float, now: float, longest: float) -> None:
        """Two samples came one after the other: further apart than this, there is a gap between them."""
        if now - last > longest:
            self._gaps.append((last, now))

    def have(self, at: float) -> bool:
        """Whether this time is within a gap."""
        return any(begin < at < end for begin, end in self._gaps)


class Track:
    """The figures of one object over time."""

    __slots__ = ("_last", "_rows", "_times")

    def __init__(self) -> None:
        self._times: array[float] = array("d")  # ascending
        self._rows: array[int] = array("q")  # one after the other; each until the time of the next
        self._last: Figures = ()

    def __len__(self) -> int:
        return len(self._times)

    def add(self, at: float, figures: Figures, most: int) -> None:
        """Note figures, if they are others than before."""
        if self._times and (self._last == figures or at < self._times[-1]):
            return
        self._times.append(at)
        self._rows.extend(figures)
        self._last = figures
        over = len(self._times) - most
        if over > 0:
            del self._times[:over]
            del self._rows[: over * len(figures)]

    def samples(
        self,
        place: int,
        now: float,
        age: int,
        step: int,
        is_unknown: Callable[[float], bool] = lambda at: False,
        back_by: float = 0.0,
    ) -> list[dict[str, int]]:
        """The figure each `step` seconds from `now` back for `age` seconds, the newest first, as RabbitMQ writes it;
        but those of times that are unknown. The wall clock is `back_by` seconds behind.
        """
        found, width = [], len(self._last)
        for back in range(0, min(age, step * _MOST_SAMPLES) + 1, step):
            row = bisect_right(self._times, now - back) - 1
            if row < 0:
                break
            if not is_unknown(now - back):
                found.append(
                    {"sample": self._rows[row * width + place], "timestamp": int((now - back - back_by) * 1000)}
                )
        return found


class History:
    """The tracks of many objects of a kind by their keys. `names` are RabbitMQ's of the figures that are noted."""

    def __init__(self, names: Iterable[str], gaps: Gaps) -> None:
        self.names: tuple[str, ...] = tuple(names)
        self._gaps = gaps
        self._tracks: dict[Hashable, Track] = {}

    def note(self, at: float, figures: Iterable[tuple[Hashable, Figures]], known: Collection[Hashable]) -> None:
        """Note the figures that may have changed by this sample; objects that are no more `known` are forgotten."""
        tracks = self._tracks
        most = max(_LEAST, min(_MOST, _CELLS // len(self.names) // max(1, len(known))))
        for key, row in figures:
            track = tracks.get(key)
            if track is None:
                track = tracks[key] = Track()
            track.add(at, row, most)
        if len(tracks) > len(known):
            for key in [key for key in tracks if key not in known]:
                del tracks[key]

    def get(self, key: Hashable) -> Track | None:
        """The track of one object."""
        return self._tracks.get(key)

    def add_samples(
        self, view: dict[str, Any], key: Hashable, now: float, query: Mapping[str, str], back_by: float = 0.0
    ) -> None:
        """Put samples into the `*_details` of a view and its `message_stats`, where the query asks for them."""
        track = self._tracks.get(key)
        if track is None:
            return
        asked = {kind: _asked(query, kind) for kind in AGES}
        for place, name in enumerate(self.names):
            wanted = asked[_kind(name)]
            inside = view if f"{name}_details" in view else view.get("message_stats", view)
            details = inside.get(f"{name}_details")
            if wanted is not None and details is not None:
                _put(details, track.samples(place, now, *wanted, self._gaps.have, back_by))


AGES: Final = ("lengths", "msg_rates", "data_rates", "node_stats")


def _kind(name: str) -> str:
    if name in NODE_FIGURES:
        return "node_stats"
    return "lengths" if name in LENGTHS else "data_rates" if name in OCTETS else "msg_rates"


def _put(details: dict[str, Any], samples: list[dict[str, int]]) -> None:
    if not samples:
        return
    newest, oldest = samples[0], samples[-1]
    seconds = (newest["timestamp"] - oldest["timestamp"]) / 1000
    details["samples"] = samples
    details["avg_rate"] = (newest["sample"] - oldest["sample"]) / seconds if seconds else 0.0
    details["avg"] = sum(each["sample"] for each in samples) / len(samples)


def _asked(query: Mapping[str, str], kind: str) -> tuple[int, int] | None:
    """The age and the step that are asked for, in seconds; None unless both are whole numbers above 0."""
    age, step = query.get(f"{kind}_age", ""), query.get(f"{kind}_incr", "")
    if not (age.isdecimal() and step.isdecimal() and len(age) < 10 and len(step) < 10 and int(age) and int(step)):
        return None
    return int(age), int(step)
