"""Housekeeping: one thread that lets queues do what time asks for.

Promise     What was added is visited when it asked to be, or at most one interval later: at first at once, then when
            its last visit, or a call of `ask`, said. What asks for nothing costs nothing, however many there are.
            `run_once` does the same on the caller's thread, for tests with a clock of their own.
State       One lock, a leaf, guards `_planned` and `_due`. Queues are called without it. `ask` may be called under
            the lock of the queue that asks. Invariant: what is in `_planned` is in `_due` with that time. What else is
            in `_due` was planned anew or forgotten, and is passed over.
Waiting     The thread waits for the interval or for `close`, which joins it. No visit is lost: one is taken out of the
            plan before it is made, so what is asked for in the middle of it is planned by itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from .._base.ports import AT_ONCE, Kept

_log = logging.getLogger("multiqueue.broker")

_LEAST_SWEEP: Final = 64  # plans that were changed; fewer are not worth sweeping


class Housekeeping:
    """Visits queues at intervals of `interval` seconds from `start`, or `with`, on. `clock` is that of the queues."""

    def __init__(self, interval: float = 0.25, *, clock: Callable[[], float] = time.monotonic) -> None:
        if interval <= 0:
            raise ValueError(f"interval is {interval!r} s; it must be more than 0")
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._planned: dict[Kept, float] = {}
        self._due: list[tuple[float, int, Kept]] = []
        self._numbers = count()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, queue: Kept) -> None:
        """Look after a queue from now on."""
        queue.attend(self.ask)
        self.ask(queue, AT_ONCE)

    def remove(self, queue: Kept) -> None:
        """Forget a queue; harmless when it is not known."""
        queue.attend(None)
        with self._lock:
            self._planned.pop(queue, None)
            self._sweep_locked()

    def ask(self, queue: Kept, when: float) -> None:
        """Have a queue visited at a time of the clock, unless it is to be visited before that. Any thread."""
        with self._lock:
            planned = self._planned.get(queue)
            if planned is None or when < planned:
                self._planned[queue] = when
                heappush(self._due, (when, next(self._numbers), queue))
                self._sweep_locked()

    def run_once(self) -> None:
        """Visit every queue that is due, once. One that fails is logged, and does not keep the others waiting."""
        now = self._clock()
        due: list[Kept] = []
        with self._lock:
            while self._due and self._due[0][0] <= now:
                when, _, queue = heappop(self._due)
                if self._planned.get(queue) == when:
                    del self._planned[queue]
                    due.append(queue)
        for queue in due:
            again: float | None = AT_ONCE
            try:
                again = queue.housekeeping()
            except Exception as error:  # noqa: BLE001  # the next queue must have its turn
                _log.error("housekeeping of %r failed", queue, exc_info=error)
            if again is not None:
                self.ask(queue, again)

    def _sweep_locked(self) -> None:
        if len(self._due) > 2 * len(self._planned) + _LEAST_SWEEP:
            self._due = [each for each in self._due if self._planned.get(each[2]) == each[0]]
            heapify(self._due)

    def start(self) -> None:
        """Start the thread; harmless when it runs. Raises RuntimeError: it was closed."""
        with self._lock:
            if self._closing.is_set():
                raise RuntimeError("housekeeping was closed; make a new one")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="multiqueue-housekeeping", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread and join it; harmless when it never ran. A callback on that thread may call this."""
        self._closing.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Housekeeping:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing.wait(self._interval):
            self.run_once()
