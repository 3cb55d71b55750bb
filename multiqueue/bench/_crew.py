"""Threads that start together, and a clock that runs only while they work.

Promise     `race` times from the moment all bodies are let go to the moment the last one returns: starting
            and ending threads is outside. A body that raises ends the race with its error; one that never
            returns ends it with `Stuck` after the time limit.
State       `_ends` and `_errors` are appended to by the crew (one atomic append each) and read after
            `_finished` was acquired once for each of them.
Waiting     The crew waits at `_gate` until `race` arrives there; `race` waits for one release of `_finished`
            per body. No other thread waits here.
Membership  A race that failed abandons its other threads: what they are blocked in belongs to a rival that
            may be broken, so there is no way to end them. They are daemons, so that the process can still
            exit.
Assumes     `list.append` is atomic. Linux counts the CPU of a thread that is running on another CPU only up
            to its last tick, so each body reads the process's clock itself as the last thing it does: by then
            the others are parked or done, and what they used is counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ._model import CPU_RATE, RATE, Figures, Stuck

TIME_LIMIT = 120.0  # seconds; the slowest honest rival needs about two


class Elapsed(NamedTuple):
    """Seconds of wall clock, and seconds of CPU of the whole process."""

    wall: float
    cpu: float

    def rates(self, n: int) -> Figures:
        """The two figures of a throughput workload. A clock too coarse to have moved counts as one tick."""
        tick = 1e-9
        return {RATE.name: n / max(self.wall, tick), CPU_RATE.name: n / max(self.cpu, tick)}


class Crew:
    """One thread for each body, started at once and held at the gate until `race`."""

    def __init__(self, bodies: Sequence[Callable[[], object]], name: str = "bench") -> None:
        self._gate = threading.Barrier(len(bodies) + 1, action=self._start_clock)
        self._finished = threading.Semaphore(0)
        self._ends: list[tuple[float, float]] = []  # wall, CPU
        self._errors: list[BaseException] = []
        self._wall_start = self._cpu_start = 0.0
        self._threads = [
            threading.Thread(target=self._work, args=(body,), name=f"{name}-{number}", daemon=True)
            for number, body in enumerate(bodies)
        ]
        for thread in self._threads:
            thread.start()

    def race(self, time_limit: float = TIME_LIMIT) -> Elapsed:
        """Let all bodies go and return what they took together.

        Raises: whatever a body raised; `Stuck` when they did not all return within `time_limit` seconds.
        """
        self._gate.wait()
        deadline = time.monotonic() + time_limit
        for _ in self._threads:
            if not self._finished.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise Stuck(self._describe(time_limit))
            if self._errors:
                raise self._errors[0]
        for thread in self._threads:
            thread.join()
        walls, cpus = zip(*self._ends, strict=True)
        return Elapsed(max(walls) - self._wall_start, max(cpus) - self._cpu_start)

    def abandon(self) -> None:
        """Send home a crew that never raced. Does nothing after a race."""
        self._gate.abort()

    def _start_clock(self) -> None:
        self._cpu_start = time.process_time()
        self._wall_start = time.perf_counter()

    def _work(self, body: Callable[[], object]) -> None:
        try:
            self._gate.wait()
        except threading.BrokenBarrierError:
            return  # abandoned before the race; there is nothing to report
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - race() raises it to the caller
            self._errors.append(error)
        finally:
            self._ends.append((time.perf_counter(), time.process_time()))
            self._finished.release()

    def _describe(self, time_limit: float) -> str:
        running = [thread.name for thread in self._threads if thread.is_alive()]
        return (
            f"{len(running)} of {len(self._threads)} threads did not finish within {time_limit:.0f} s: "
            f"{', '.join(running)}; an item or a wake-up was lost, or the machine is far too busy"
        )
