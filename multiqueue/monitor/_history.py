"""What figures were: the samples behind RabbitMQ's `lengths_age`, `lengths_incr`, `msg_rates_age` and `msg_rates_incr`.

Promise     A track has a row for each sample in which its figures changed, so one that rests costs nothing; its rows
            are bounded, and all tracks of queues together by `_ROWS`.
State       A `History` belongs to one sampler, which takes its lock for samples around each call.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

FIGURES: Final = ("ready", "unacked", "publish", "deliver_get", "ack", "redeliver")
_MOST: Final = 600  # rows of a track: ten minutes of changes at the shortest interval
_LEAST: Final = 60
_ROWS: Final = 600_000  # of all queues together: 40 MB
_MOST_SAMPLES: Final = 600  # of one answer

Figures = tuple[int, ...]  # in the order of FIGURES


class Track:
    """The figures of one queue or virtual host over time."""

    __slots__ = ("_rows", "_times")

    def __init__(self) -> None:
        self._times: array[float] = array("d")  # seconds since 1970, ascending
        self._rows: list[Figures] = []  # as many; each until the time of the next

    def add(self, at: float, figures: Figures, most: int) -> None:
        """Note figures, if they are others than before."""
        if self._rows and (self._rows[-1] == figures or at < self._times[-1]):
            return
        self._times.append(at)
        self._rows.append(figures)
        if len(self._rows) > most:
            del self._times[: len(self._rows) - most]
            del self._rows[: len(self._rows) - most]

    def samples(self, name: str, now: float, age: int, step: int) -> list[dict[str, int]]:
        """The figure each `step` seconds from `now` back for `age` seconds, the newest first, as RabbitMQ writes it."""
        place, found = FIGURES.index(name), []
        for back in range(0, min(age, step * _MOST_SAMPLES) + 1, step):
            row = bisect_right(self._times, now - back) - 1
            if row < 0:
                break
            found.append({"sample": self._rows[row][place], "timestamp": int((now - back) * 1000)})
        return found


class History:
    """The tracks of many queues, or virtual hosts, by their keys."""

    def __init__(self) -> None:
        self._tracks: dict[Hashable, Track] = {}

    def note(self, at: float, figures: Iterable[tuple[Hashable, Figures]], count: int) -> None:
        """Note the figures of one sample, of `count` objects; those of objects that are gone are forgotten."""
        most = max(_LEAST, min(_MOST, _ROWS // max(1, count)))
        before, self._tracks = self._tracks, {}
        for key, row in figures:
            track = self._tracks[key] = before.get(key) or Track()
            track.add(at, row, most)

    def get(self, key: Hashable) -> Track | None:
        """The track of one object."""
        return self._tracks.get(key)


def add_samples(view: dict[str, Any], track: Track | None, now: float, query: Mapping[str, str]) -> None:
    """Put samples into the `*_details` of a view's lengths and message rates, where the query asks for them."""
    if track is None:
        return
    lengths, rates = _asked(query, "lengths"), _asked(query, "msg_rates")
    if lengths is not None:
        ready, unacked = (track.samples(name, now, *lengths) for name in ("ready", "unacked"))
        both = [{**one, "sample": one["sample"] + other["sample"]} for one, other in zip(ready, unacked, strict=True)]
        for name, samples in (("messages", both), ("messages_ready", ready), ("messages_unacknowledged", unacked)):
            _put(view.get(f"{name}_details"), samples)
    if rates is not None:
        stats = view.get("message_stats", {})
        for name in FIGURES[2:]:
            _put(stats.get(f"{name}_details"), track.samples(name, now, *rates))


def _put(details: dict[str, Any] | None, samples: list[dict[str, int]]) -> None:
    if details is None or not samples:
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
