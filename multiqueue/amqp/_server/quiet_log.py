"""Log lines that strangers cause: so many of each kind in a while, and then how many were left out.

Peers that have not logged in cost the log `LINES` lines of each kind in `PERIOD` seconds, and one that counts the rest.
Any thread may call; the server calls `flush` now and then. `_lock` is a leaf. Kinds are format strings, so there are
few.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LINES: Final = 10
PERIOD: Final = 10.0


@dataclass(slots=True)
class _Period:
    began: float
    lines: int = 0
    last: tuple[object, ...] = ()


class QuietLog:
    """Warnings of one logger, bounded."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[str, _Period] = {}

    def warning(self, kind: str, connection: object, *args: object) -> None:
        now = self._clock()
        with self._lock:
            left_out = self._ended_locked(now)
            period = self._kinds.setdefault(kind, _Period(now))
            period.lines += 1
            period.last = (connection, *args)
            is_told = period.lines <= LINES
        self._tell(left_out)
        if is_told:
            self._log.warning(kind, connection, *args, extra={"connection": connection})

    def flush(self, *, everything: bool = False) -> None:
        """Tell what was left out in periods that have ended; with `everything`, in those that go on too."""
        with self._lock:
            left_out = self._ended_locked(float("inf") if everything else self._clock())
        self._tell(left_out)

    def _ended_locked(self, now: float) -> dict[str, _Period]:
        """The kinds of which lines were left out, with their periods, which are over."""
        ended = [kind for kind, period in self._kinds.items() if now - period.began >= PERIOD]
        periods = {kind: self._kinds.pop(kind) for kind in ended}
        return {kind: period for kind, period in periods.items() if period.lines > LINES}

    def _tell(self, left_out: dict[str, _Period]) -> None:
        for kind, period in left_out.items():
            message = f"{period.lines - LINES} more lines like this in {PERIOD:g} s were left out; the last: {kind}"
            self._log.warning(message, *period.last, extra={"connection": period.last[0]})
