"""The sampler: a sample each second, whether or not somebody looks, and what figures were in the samples before.

Promise     Every answer reads the latest sample; nothing is computed per request over all queues. Earlier figures are
            those of samples; for a time in which no sample was taken (the process was stopped, the machine asleep)
            no figure is given.
State       `_lock` guards the two latest samples. It is a leaf: a sample is taken without it, one at a time, under
            `_taking`, which guards the census and the histories too.
Lock order  `_taking` -> locks of queues, exchanges and servers, each held for the moment it takes to read figures.
Waiting     The thread waits for the next interval; `close` wakes and joins it. The first look for a second waits for
            one sample, which is then the second's; so does a look after a change that came over HTTP.
Cost        10,000 queues that rest: some 3 ms of a processor each second. When samples are dear the interval grows, so
            that sampling takes at most a hundredth of one processor, and a fiftieth while somebody looks.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from ..._locks import Condition, Lock
from ...amqp import Server
from ...broker import Broker
from .history import AGES, LENGTHS, OCTETS, Figures, Gaps, History
from .node import FIGURES as NODE_FIGURES
from .samples import (
    DELIVERIES,
    Census,
    Pair,
    QueueKey,
    QueueSample,
    Sample,
    Totals,
    deliveries,
    lengths,
)

_log = logging.getLogger("multiqueue.monitor")
INTERVAL: Final = 1.0  # seconds between two samples
_SHARE: Final = 100.0  # an interval is at least this many times what a sample takes,
_SHARE_OF_LOOKERS: Final = 50.0  # and this many times while somebody looks
_LATE: Final = 3.0  # intervals after which the time between two samples is a gap
_LEAST_GAP: Final = 5.0  # seconds
_LONGEST_RATE: Final = 30.0  # seconds: a rate over more would be of another time


class Sampler:
    """Takes samples of a broker, and of the server in front of it, from `start` to `close`.

    Without a broker, of a program that has lanes alone, a sample holds nothing but its time.
    """

    def __init__(
        self,
        broker: Broker | None,
        server: Server | None = None,
        *,
        data: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._taking = Lock()
        self._census = Census(broker, server, data, wall_clock)
        self._gaps = Gaps()
        self._queues = History((*LENGTHS, "publish", *DELIVERIES), self._gaps)
        self._hosts = History((*self._queues.names, *OCTETS), self._gaps)  # by name; None: all of them
        self._connections = History(OCTETS, self._gaps)  # by name
        self._nodes = History(NODE_FIGURES, self._gaps)  # of one, by None
        self._lock = Lock()
        self._wake = Condition(self._lock)
        self._pair: Pair | None = None
        self._interval = INTERVAL
        self._due = clock()  # when the thread is to take the next sample
        self._looked_at = -math.inf
        self._is_stale = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Take a sample now, and one each second. A second call does nothing."""
        with self._lock:
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name="multiqueue-monitor-sampler", daemon=True)
                thread.start()
                self._thread = thread

    def look(self) -> Pair:
        """The two latest samples; any thread may call. The first look in an interval waits for one of now."""
        now = self._clock()
        with self._lock:
            pair = self._fresh_locked(now)
            at_least = float("inf") if self._is_stale else self._oldest_locked(now)
            self._is_stale, self._looked_at = False, now
        return self._take(at_least) if pair is None else pair

    def fresh(self) -> Pair | None:
        """The two latest samples, without waiting; None where `look` would take one."""
        with self._lock:
            return self._fresh_locked(self._clock())

    def _fresh_locked(self, now: float) -> Pair | None:
        pair = self._pair
        if pair is None or self._is_stale or pair.latest.at < self._oldest_locked(now):
            return None
        self._looked_at = now
        return pair

    def _oldest_locked(self, now: float) -> float:
        """When a sample must have been taken that is shown now."""
        return now - 2 * self._interval if now - self._looked_at < self._interval else now

    def add_samples(
        self,
        view: dict[str, Any],
        query: Mapping[str, str],
        kind: Literal["queue", "host", "connection", "node"],
        key: QueueKey | str | None = None,
    ) -> None:
        """Put earlier samples into a view, where the query asks. The key of all virtual hosts is None, and the
        node's.
        """
        if not any(f"{name}_age" in query for name in AGES):
            return
        with self._taking:
            with self._lock:
                pair = self._pair
            if pair is not None:
                histories = {
                    "queue": self._queues,
                    "host": self._hosts,
                    "connection": self._connections,
                    "node": self._nodes,
                }
                latest = pair.latest
                histories[kind].add_samples(view, key, latest.time, query, latest.time - latest.wall)

    def refresh(self) -> Pair:
        """A sample of now: for those who have just changed something and look at it next."""
        return self._take(at_least=self._clock())

    def expire(self) -> None:
        """Something was changed: the next look takes a sample."""
        with self._lock:
            self._is_stale = True

    def close(self) -> None:
        """End the thread. A second call does nothing."""
        with self._lock:
            self._closed = True
            self._wake.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    # -- taking samples

    def _take(self, at_least: float) -> Pair:
        with self._taking:
            with self._lock:
                if self._pair is not None and self._pair.latest.at >= at_least:
                    return self._pair  # another thread was faster
                last, interval = self._pair, self._interval
            began, cpu = self._clock(), time.thread_time()
            sample = self._census.take(began)
            if last is not None:
                self._gaps.look_at(last.latest.time, sample.time, max(_LEAST_GAP, _LATE * interval))
            self._note(sample)
            cost = time.thread_time() - cpu  # not the clock's: on a busy machine no time would be short enough
            with self._lock:
                pair = self._pair = _pair(sample, last)
                share = _SHARE_OF_LOOKERS if began - self._looked_at < interval else _SHARE
                # The first sample reads everything, the next one what has changed.
                self._interval = INTERVAL if last is None else max(INTERVAL, cost * share)
                self._due = began + self._interval
            return pair

    def _note(self, sample: Sample) -> None:
        """Write a sample into the histories."""
        at = sample.time
        self._queues.note(at, ((each.key, _of_queue(each)) for each in sample.changed), sample.queues)
        hosts: dict[str | None, Totals] = {None: sample.total}
        hosts.update(sample.hosts)
        self._hosts.note(at, ((name, _of_totals(each)) for name, each in hosts.items()), hosts)
        connections = sample.connections
        bytes_of = ((name, (each.received_bytes, each.sent_bytes)) for name, each in connections.items())
        self._connections.note(at, bytes_of, connections)
        self._nodes.note(at, [(None, tuple(sample.node.values()))], (None,))

    def _run(self) -> None:
        is_well = True
        while self._wait_for_turn():
            try:
                self._take(at_least=self._clock())
                is_well = True
            except Exception:  # noqa: BLE001  # a fault of ours: those who look have it too, and get a status
                if is_well:
                    _log.exception("no sample could be taken of the broker; the next is tried in %g s", INTERVAL)
                is_well = False
                with self._lock:
                    self._due = self._clock() + INTERVAL

    def _wait_for_turn(self) -> bool:
        """Wait until the next sample is due; False when the thread is to end."""
        with self._lock:
            while not self._closed:
                left = self._due - self._clock()
                if left <= 0:
                    return True
                self._wake.wait(left)
            return False


def _pair(sample: Sample, last: Pair | None) -> Pair:
    """The sample, and the one to compare it with: one of long ago would tell no rate, one of just now a wild one."""
    if last is None or sample.at - last.latest.at > _LONGEST_RATE:
        return Pair(sample, sample)
    return Pair(sample, last.previous if sample.at - last.latest.at < INTERVAL / 2 else last.latest)


def _of_queue(sample: QueueSample) -> Figures:
    now = sample.figures
    return (*lengths(now), now.enqueued, *deliveries(now))


def _of_totals(now: Totals) -> Figures:
    return (*lengths(now), now.published, *deliveries(now), now.received_bytes, now.sent_bytes)
