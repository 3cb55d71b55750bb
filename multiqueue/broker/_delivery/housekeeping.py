"""Housekeeping: one thread that lets queues do what time asks for, when it asks.

Promise     A queue that was added is visited at the time that its last visit, or a call of `ask`, named: a millisecond
            later at most, if the thread gets the interpreter. What named no time (AT_ONCE: something new, or something
            that is looked at again and again) is visited an interval later at most, all of that in one round; this puts
            off no time which is named beside it. Queues that ask for nothing cost nothing, however many exist, and so
            does a time until it comes. `run_once` makes all visits that are due on the caller's thread, for tests with
            another clock.
State       One lock, a leaf, guards all fields that change. Queues are called without it. `ask` may be called under the
            lock of the queue that asks. A time in `_due` has a number, and `_by_number` the queue. Numbers that it does
            not have were planned anew or forgotten, and are passed over: they keep no queue alive, for the end of a
            queue, and of its messages, must not come under a lock.
Waiting     The thread waits on `_is_sooner` for the first time that is planned; `ask` notifies when it plans an earlier
            one, and `close`, which joins the thread. No visit is lost: one is taken out of the plan before it is made,
            so a time that is asked for in the middle of it is planned by itself.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from ..._kinds import check_kind
from ..._locks import Condition, Lock
from .._base.ports import AT_ONCE, Kept

_log = logging.getLogger("multiqueue.broker")

_LEAST_SWEEP: Final = 64  # plans that were changed; fewer are not worth sweeping
_GAP: Final = 0.001  # seconds between two rounds: where times lie close together, what comes in it is done in one


class Housekeeping:
    """Visits queues from `start`, or `with`, on. `clock` is that of the queues.

    `interval` seconds lie between two visits to what names no time. Another clock than `time.monotonic` is looked at as
    often, for how fast it runs is not known.
    """

    def __init__(self, interval: float = 0.25, *, clock: Callable[[], float] = time.monotonic) -> None:
        check_kind("housekeeping_interval", interval, (int, float), "a number of seconds")
        if interval <= 0:
            raise ValueError(f"housekeeping_interval is {interval!r} s; it must be more than 0")
        self._interval = interval
        self._clock = clock
        self._longest_wait = math.inf if clock is time.monotonic else interval
        self._lock = Lock()
        self._is_sooner = Condition(self._lock)  # predicate: a plan before all others, or _is_closing
        self._soon: dict[Kept, None] = {}  # those that named no time
        self._planned: dict[Kept, tuple[float, int]] = {}  # of the others when, and the number of that
        self._by_number: dict[int, Kept] = {}  # Invariant: has the numbers in _planned
        self._due: list[tuple[float, int]] = []  # a heap. Invariant: has all that is planned
        self._numbers = count()
        self._next_look = math.inf  # when those of `_soon` are visited, in time.monotonic
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def add(self, queue: Kept) -> None:
        """Look after a queue from now on."""
        queue.attend(self.ask)
        self.ask(queue, AT_ONCE)

    def remove(self, queue: Kept) -> None:
        """Forget a queue; does nothing if it is not known."""
        queue.attend(None)
        with self._lock:
            self._forget_locked(queue)
            self._sweep_locked()

    def ask(self, queue: Kept, when: float) -> None:
        """Have a queue visited at a time of the clock, unless it is to be visited before that. Any thread."""
        with self._lock:
            if when == AT_ONCE:
                if queue in self._soon:
                    return
                if is_sooner := not self._soon:
                    self._next_look = time.monotonic() + self._interval
                self._soon[queue] = None
            else:
                planned = self._planned.get(queue)
                if planned is not None:
                    if planned[0] <= when:
                        return
                    del self._by_number[planned[1]]
                number = next(self._numbers)
                is_sooner = not self._due or when < self._due[0][0]
                self._planned[queue], self._by_number[number] = (when, number), queue
                heappush(self._due, (when, number))
                self._sweep_locked()
            if is_sooner:
                self._is_sooner.notify()

    def run_once(self) -> None:
        """Visit every queue that is due, once. One that fails is logged, and does not keep the others waiting."""
        with self._lock:
            due = self._take_locked(with_soon=True)
        self._visit(due)

    def start(self) -> None:
        """Start the thread; does nothing if it runs. Raises RuntimeError: it was closed."""
        with self._lock:
            if self._is_closing:
                raise RuntimeError("housekeeping was closed; make a new one")
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="multiqueue-housekeeping", daemon=True)
                thread.start()
                self._thread = thread

    def close(self, timeout: float | None = None) -> None:
        """End the thread and join it, `timeout` seconds at most; does nothing if it never ran. A callback on that
        thread, of an alert say, may call this."""
        with self._lock:
            self._is_closing = True
            self._is_sooner.notify()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def __enter__(self) -> Housekeeping:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self) -> None:
        last_round = -math.inf
        while True:
            with self._lock:
                while not self._is_closing and (left := self._left_locked(last_round)) > 0:
                    self._is_sooner.wait(None if left == math.inf else min(left, threading.TIMEOUT_MAX))
                if self._is_closing:
                    return
                last_round = time.monotonic()
                due = self._take_locked(with_soon=last_round >= self._next_look)
            self._visit(due)
            del due  # or the end of a queue would come in the next hold of the lock

    def _left_locked(self, last_round: float) -> float:
        """Seconds until there is something to visit, infinity for never."""
        now = time.monotonic()
        soon = self._next_look - now if self._soon else math.inf
        while self._due and self._due[0][1] not in self._by_number:
            heappop(self._due)
        due = min(self._due[0][0] - self._clock(), self._longest_wait) if self._due else math.inf
        return max(min(soon, due), last_round + _GAP - now)

    def _take_locked(self, *, with_soon: bool) -> list[Kept]:
        """Take what is due out of the plan."""
        due: list[Kept] = []
        if with_soon:
            due += self._soon
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            queue = self._by_number.get(heappop(self._due)[1])
            if queue is not None and not (with_soon and queue in self._soon):
                due.append(queue)
        for each in due:
            self._forget_locked(each)
        return due

    def _visit(self, due: list[Kept]) -> None:
        for queue in due:
            again: float | None = AT_ONCE
            try:
                again = queue.housekeeping()
            except BaseException as error:  # noqa: BLE001  # the next queue must have its turn, also after `sys.exit`
                _log.error("housekeeping of %r failed", queue, exc_info=error)
            if again is not None:
                self.ask(queue, again)

    def _forget_locked(self, queue: Kept) -> None:
        self._soon.pop(queue, None)
        _, number = self._planned.pop(queue, (0.0, -1))
        self._by_number.pop(number, None)

    def _sweep_locked(self) -> None:
        if len(self._due) > 2 * len(self._planned) + _LEAST_SWEEP:
            self._due = [each for each in self._due if each[1] in self._by_number]
            heapify(self._due)
