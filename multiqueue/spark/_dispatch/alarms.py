"""Calls that are to be made at a time, unless they are turned off before: one thread waits for all of a dispatcher.

Promise     An action is called once, not before its time; or it was turned off before that. It has a separate thread,
            for it may end a future, whose callbacks are the user's: one that blocks holds up no other alarm.
State       `_changed` guards `_heap`, `_on`, `_thread`, `_calls` and every `Alarm.is_on`. It is re-entrant: a signal
            handler may cancel a job, which turns its alarm off.
            Invariant: `_on` counts the alarms in `_heap` that are on; `_on > 0` implies that `_thread` serves.
Lock order  `_changed` alone; actions are called without it.
Waiting     The thread waits for the next time, or for an earlier one to be set, or for the last one to be turned off:
            then it ends, and the next alarm starts another. So it needs no stop.
Membership  Alarms that are off leave the heap when they come to its head, or all at once when they are most of it, so
            that a long timeout of many short jobs does not pile up.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from time import monotonic

from ..._locks import Condition

LOGGER = logging.getLogger("multiqueue.spark")

FEW = 64  # alarms that are off, below which the heap is left as it is


class Alarm:
    """One call to be made."""

    __slots__ = ("_alarms", "action", "at", "is_on")

    def __init__(self, alarms: Alarms, at: float, action: Callable[[], object]) -> None:
        self._alarms = alarms
        self.at: float = at
        self.action: Callable[[], object] | None = action
        self.is_on: bool = True

    def off(self, _: object = None) -> None:
        """Make no call, unless it is being made. Again has no effect. (Fit to be a future's callback.)"""
        self._alarms.turn_off(self)


class Alarms:
    """The alarms of one dispatcher, on the clock `monotonic`."""

    def __init__(self, name: str, clock: Callable[[], float] = monotonic) -> None:
        self._name = name
        self._clock = clock
        self._changed = Condition()
        self._heap: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        self._on = 0
        self._thread: threading.Thread | None = None  # the one that serves
        self._last: threading.Thread | None = None  # the one to be joined
        self._calls: set[threading.Thread] = set()  # those of the actions that are being called

    def at(self, moment: float, action: Callable[[], object]) -> Alarm:
        """Call `action` at `moment` of the clock, or at once if that has passed."""
        alarm = Alarm(self, moment, action)
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name=self._name, daemon=False)
                thread.start()  # it will wait for `_changed`
                self._thread = self._last = thread
            heapq.heappush(self._heap, (moment, next(self._numbers), alarm))
            self._on += 1
            self._changed.notify()
        return alarm

    def after(self, seconds: float, action: Callable[[], object]) -> Alarm:
        """Call `action` in so many seconds."""
        return self.at(self._clock() + seconds, action)

    def turn_off(self, alarm: Alarm) -> None:
        with self._changed:
            if not alarm.is_on:
                return
            alarm.is_on = False
            alarm.action = None  # what it would have been called on is let go of now
            self._on -= 1
            if len(self._heap) > 2 * self._on + FEW or self._on == 0:
                self._heap = [entry for entry in self._heap if entry[2].is_on]
                heapq.heapify(self._heap)
            if self._on == 0:
                self._changed.notify()

    def join(self) -> None:
        """Wait until the threads have ended: no alarm is on, and each action has returned, but one that calls this."""
        here, thread = threading.current_thread(), self._last
        if thread is not None and thread is not here:
            thread.join()
        with self._changed:
            calls = [] if here in self._calls else list(self._calls)
        for call in calls:
            call.join()

    def check_invariants(self) -> None:
        with self._changed:
            assert self._on == sum(alarm.is_on for _, _, alarm in self._heap)
            assert self._on == 0 or self._thread is not None

    def _serve(self) -> None:
        while True:
            with self._changed:
                if self._on == 0:
                    self._thread = None
                    return
                action = self._due_locked()
            if action is not None:
                self._start(action)
            del action  # a waiting thread keeps no job alive

    def _start(self, action: Callable[[], object]) -> None:
        """Call it in another thread, or here if none can be had."""
        call = threading.Thread(target=self._call, args=(action,), name=f"{self._name}-call", daemon=False)
        try:
            with self._changed:
                call.start()  # it will wait for `_changed` before it leaves
                self._calls.add(call)
        except RuntimeError:
            self._call(action)

    def _call(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception:
            LOGGER.exception("a timeout could not be kept")
        del action
        with self._changed:
            self._calls.discard(threading.current_thread())

    def _due_locked(self) -> Callable[[], object] | None:
        """The action whose time has come; None after a wait for it, or for a change."""
        moment, _, alarm = self._heap[0]
        left = moment - self._clock()
        if alarm.is_on and left > 0:
            self._changed.wait(min(left, threading.TIMEOUT_MAX))
            return None
        heapq.heappop(self._heap)
        if not alarm.is_on:
            return None
        alarm.is_on = False
        self._on -= 1
        action, alarm.action = alarm.action, None
        return action
