"""Alerts: telling a queue's owner that a threshold was passed, and not again at once.

Promise     A threshold that is reached is reported once, and again after `repeat_gap` seconds at the earliest; of two
            threads that see it one tells.
State       `_lock`, a leaf, guards `_last`, the times of the last alerts; `next_look` reads it without. The owner's
            callback runs under no lock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from ..._locks import Lock
from .settings import AlertThresholds


class AlertKind(Enum):
    """Which threshold was reached."""

    DEPTH = "depth"
    DEPTH_BYTES = "depth_bytes"
    MESSAGE_BYTES = "message_bytes"
    AGE = "age"


@dataclass(frozen=True, slots=True)
class Alert:
    """A threshold that was reached: `value` is the measurement, in messages, bytes or seconds."""

    queue: str
    kind: AlertKind
    value: float
    threshold: float

    def __str__(self) -> str:
        return f"queue {self.queue!r}: {self.kind.value} is {self.value:g}, its threshold {self.threshold:g}"


@dataclass(eq=False)
class AlertMonitor:
    """Compares figures with the thresholds; any thread may call."""

    _queue: str
    _thresholds: AlertThresholds
    _clock: Callable[[], float]
    _on_alert: Callable[[Alert], object]
    _lock: Lock = field(default_factory=Lock)
    _last: dict[AlertKind, float] = field(default_factory=dict)

    def look_at(self, **figures: float) -> None:
        """Tell of those figures, each named by the value of its `AlertKind`, that have reached their thresholds."""
        for name, value in figures.items():
            threshold: float | None = getattr(self._thresholds, name)
            if threshold is not None and value >= threshold:
                self._tell(AlertKind(name), value, threshold)

    def next_look(self, **figures: float) -> float:
        """When time alone gives cause to look at the figures again, on the clock: an alert may then be repeated, or an
        age reaches its threshold. Infinity for never. May be called under the lock of the queue.
        """
        now, again = self._clock(), math.inf
        for name, value in figures.items():
            threshold: float | None = getattr(self._thresholds, name)
            if threshold is not None and value >= threshold:
                last = self._last.get(AlertKind(name))
                again = min(again, now if last is None else last + self._thresholds.repeat_gap)
            elif threshold is not None and name == AlertKind.AGE.value:
                again = min(again, now + threshold - value)
        return again

    def _tell(self, kind: AlertKind, value: float, threshold: float) -> None:
        now = self._clock()
        with self._lock:
            last = self._last.get(kind)
            if last is not None and now - last < self._thresholds.repeat_gap:
                return
            self._last[kind] = now
        self._on_alert(Alert(self._queue, kind, value, threshold))
