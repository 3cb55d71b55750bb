"""Runs a suite: rivals interleaved in rounds, set-up and checks outside the clock; threads that race against it.

In each round every rival runs once, or some parts in turn with the others, and each round starts with the next rival:
what else the machine does, and what the caches hold, hits all of them alike. The cyclic garbage collector is off while
an attempt runs, as `timeit` has it.

Promise     `Crew.race` times from the moment all bodies are let go to the moment the last one returns. A body that
            raises ends the race with its error; one that never returns ends it with `Stuck` after the time limit.
State       `_ends` and `_errors` are appended to by the crew (one atomic append each) and read after `_finished` was
            acquired once for each of them.
Waiting     The crew waits at `_gate` until `race` arrives there; `race` waits for one release of `_finished` per body.
Membership  A race that failed abandons its other threads: what they are blocked in belongs to a rival that may be
            broken. They are daemons, so that the process can still exit.
Assumes     Linux counts the CPU of a thread that is running on another CPU only up to its last tick, so each body reads
            the process's clock itself as the last thing it does: by then the others are parked or done.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import platform
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, TypeVar

from ._model import CPU_RATE, RATE, Attempt, BenchError, Figures, ItemsLost, Rival, Stuck, Suite, Workload
from ._report import Report, RivalResult, Status, WorkloadResult

T = TypeVar("T")
TIME_LIMIT = 120.0  # seconds of one race; the slowest honest rival needs about two


def run_suite(
    suite: Suite, *, rounds: int, command: str, progress: Callable[[str], object] = lambda line: None
) -> Report:
    """Run all workloads and return the report. Takes as long as all rivals' rounds together.

    A rival that loses items, raises or gets stuck has no figures in the workload, and the report says why.
    `progress` is told of each workload before it starts.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
    machine, source = _describe_machine(), _commit()  # before the work: what was loaded, and the others' load
    started, date = time.monotonic(), datetime.now(UTC)
    results = []
    for workload in suite.workloads:
        progress(f"{workload.name}: {workload.title}")
        results.append(run_workload(workload, rounds))
    needed = [rival.requires for w in suite.workloads for rival in w.rivals if rival.requires]
    return Report(
        suite=suite.name,
        date=date.isoformat(timespec="seconds"),
        command=command,
        rounds=rounds,
        seconds=round(time.monotonic() - started, 1),
        machine=machine,
        versions=_versions([*needed, "blocking-multiqueue"]),
        commit=source,
        workloads=tuple(results),
        does_not_show=suite.does_not_show,
    )


def run_workload(workload: Workload, rounds: int) -> WorkloadResult:
    """Run one workload's rivals in rounds: A B C, B C A, C A B, ...; in parts: A B, B A, A B, ... One that failed is
    not run again.

    It has no figures: part of the rounds is none.
    """
    rivals = workload.rivals
    found: dict[str, list[Figures]] = {rival.name: [] for rival in rivals}
    problems: dict[str, tuple[Status, str]] = {
        rival.name: ("missing", f"{rival.requires} is not installed") for rival in rivals if not is_installed(rival)
    }
    for number in range(rounds):
        start = number % len(rivals)
        turn = rivals[start:] + rivals[:start]
        for together in [turn] if workload.parts > 1 else [(each,) for each in turn]:
            _run_together(workload, together, found, problems)

    def result(rival: Rival) -> RivalResult:
        n, (status, problem) = workload.n_for(rival), problems.get(rival.name, ("measured", ""))
        if problem:
            return RivalResult(rival, n, status, problem=problem)
        samples = {m.name: tuple(figures[m.name] for figures in found[rival.name]) for m in workload.metrics}
        return RivalResult(rival, n, status, samples)

    return WorkloadResult(workload, tuple(map(result, rivals)))


def _problem(rival: Rival, error: Exception) -> tuple[Status, str]:
    """What another's queue loses is a result; what ours loses is a failure."""
    said = f"{type(error).__name__}: {error}"
    is_lost = isinstance(error, ItemsLost) and rival.role != "ours"
    return "lost" if is_lost else "failed", said if isinstance(error, BenchError) else f"raised {said}"


def _run_together(
    workload: Workload,
    rivals: Sequence[Rival],
    found: dict[str, list[Figures]],
    problems: dict[str, tuple[Status, str]],
) -> None:
    """Open an attempt of each, run all their parts, check and close them."""
    attempts: dict[str, Attempt] = {}

    def tried(rival: Rival, do: Callable[[], T]) -> T | None:
        try:
            return do()
        except Exception as error:  # noqa: BLE001 - a rival's bug must not end the run of the others
            problems.setdefault(rival.name, _problem(rival, error))
            return None

    with ExitStack() as stack:
        for rival in rivals:
            if rival.name in problems:
                continue
            attempt = tried(rival, partial(rival.open, workload.n_for(rival)))
            if attempt is not None:
                attempts[rival.name] = attempt
                stack.callback(tried, rival, attempt.close)
        with ExitStack() as collecting:
            collecting.callback(gc.enable if gc.isenabled() else gc.disable)
            gc.collect()
            gc.disable()
            for part in range(workload.parts):
                for rival in rivals[:: -1 if part % 2 else 1]:
                    figures = None if rival.name in problems else tried(rival, attempts[rival.name].run)
                    if figures is not None:
                        found[rival.name].append(figures)
        for rival in rivals:
            if rival.name not in problems:
                tried(rival, attempts[rival.name].check)


def is_installed(rival: Rival) -> bool:
    """Whether the module that a rival needs is there."""
    try:
        return rival.requires is None or importlib.util.find_spec(rival.requires) is not None
    except ModuleNotFoundError:
        return False  # the parent package is missing


class Elapsed(NamedTuple):
    """Seconds of wall clock, and seconds of CPU of the whole process."""

    wall: float
    cpu: float

    def rates(self, n: int) -> Figures:
        """The two figures of a throughput workload. A clock too coarse to have moved counts as one tick."""
        return {RATE.name: n / max(self.wall, 1e-9), CPU_RATE.name: n / max(self.cpu, 1e-9)}


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
                running = [thread.name for thread in self._threads if thread.is_alive()]
                raise Stuck(
                    f"{len(running)} of {len(self._threads)} threads did not finish within {time_limit:.0f} s: "
                    f"{', '.join(running)}; an item or a wake-up was lost, or the machine is far too busy"
                )
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


@dataclass
class Race:
    """Bodies that run together n units of work, what must be true afterwards, and what ends them. An `Attempt`."""

    n: int
    bodies: Sequence[Callable[[], object]]
    check: Callable[[], None]  # raises `ItemsLost`
    on_close: Sequence[Callable[[], object]] = ()
    figures: Callable[[Elapsed], Figures] | None = None  # None: the rates of n

    def __post_init__(self) -> None:
        self._crew = Crew(self.bodies)

    def run(self) -> Figures:
        elapsed = self._crew.race()
        return elapsed.rates(self.n) if self.figures is None else self.figures(elapsed)

    def close(self) -> None:
        self._crew.abandon()
        for action in self.on_close:
            action()


@dataclass
class Once:
    """One call that times itself, and what must be true afterwards. An `Attempt`."""

    run: Callable[[], Figures]
    check: Callable[[], None] = lambda: None  # raises `ItemsLost`
    close: Callable[[], None] = lambda: None


def expect(found: int, expected: int, what: str = "messages are there") -> None:
    """Raise `ItemsLost` unless that many were found."""
    if found != expected:
        raise ItemsLost(f"{found} {what}, and {expected} should be")


def _describe_machine() -> dict[str, str | int | float | None]:
    """The facts of the machine and interpreter this process runs on.

    `build` is the interpreter in a file name: `3.11`, or `3.14t` for a free-threaded build. A load above the number of
    CPUs says that others were at work.
    """
    free_threaded = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "build": f"{sys.version_info.major}.{sys.version_info.minor}{free_threaded}",
        "switch_interval_ms": sys.getswitchinterval() * 1000,
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _cpu_model() -> str:
    with suppress(OSError):  # not a Linux
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _versions(distributions: Iterable[str]) -> dict[str, str]:
    """The version of each distribution that is installed."""
    found = {}
    for name in sorted(set(distributions)):
        with suppress(metadata.PackageNotFoundError):  # absence is the report's "missing"
            found[name] = metadata.version(name)
    return found


def _commit() -> str:
    """The commit this package's source is of, with `+changes` if it differs from it; or `unknown`."""
    package = Path(__file__).resolve().parent.parent
    head = _git(package, "rev-parse", "--short=12", "HEAD")
    if not head or not _git(package, "ls-files", "--", "__init__.py"):
        return "unknown"
    return f"{head}+changes" if _git(package, "status", "--porcelain", "--", ".") else head


def _git(directory: Path, *arguments: str) -> str:
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""  # no git, no commit: the report says "unknown"
    return done.stdout.strip() if done.returncode == 0 else ""
