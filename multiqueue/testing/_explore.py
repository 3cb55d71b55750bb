"""Run a scenario under every schedule, and show the one under which it fails.

Promise     `explore` returns only after the scenario held under every schedule of the kind asked for, and
            says how many those were. Its failure names a schedule that `replay` repeats.
State       none between two runs.
Waiting     the runs wait; see `_run`.
Assumes     the scenario builds all it uses anew, from modules whose locks are substituted.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

from ._errors import ScheduleFailed, TestToolError, TooManySchedules
from ._run import Cut, Run
from ._substitute import Global, global_locks, substituted
from ._walk import GO, EveryOrder, FewPreemptions, Replay, Walk

Scenario = Callable[[Run], object]

# Steps of one run after which it is taken to go round in circles; scenarios of a few operations need 100.
MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Exploration:
    """The figures of an exploration."""

    schedules: int
    """Schedules that ran to their ends."""
    cut: int
    """Schedules left half-way, because another order of the same steps had shown the rest."""
    longest: int
    """Steps of the longest schedule."""


def explore(
    scenario: Scenario,
    *,
    preemptions: int | None = None,
    within: Sequence[str] = (),
    modules: Sequence[ModuleType] | None = None,
    max_schedules: int = 100_000,
) -> Exploration:
    """Call `scenario(run)` once for each schedule of the threads it spawns.

    Without `preemptions` the walk is exhaustive: of all interleavings of lock operations it takes one of each
    class that differs only in the order of operations on different locks. That is every behaviour of code
    that touches shared state under locks alone. With `preemptions=n` it is every interleaving with at most
    `n` surprises, and nothing is left out as equivalent; a surprise is that a thread is stopped that could go
    on, that a wait expires while some thread could go on, or that a thread is interrupted. With `within`,
    names of modules or packages, threads can be stopped before each line of those as well, which shows races
    of code that does without locks; that needs `preemptions`. Locks that are globals of those are explored too.

    `modules` are those whose `threading.Lock`, `threading.RLock` and `time.monotonic` are replaced meanwhile,
    by default the core's. Timed waits expire as one more choice; no real time passes.

    Blocks until the end. Not for several threads at once. Garbage collection is off meanwhile.

    Raises: ScheduleFailed from the exception of the scenario or of one of its threads; TooManySchedules when
    `max_schedules` did not suffice; NotDeterministic; TestToolError.
    """
    if within and preemptions is None:
        raise TestToolError("stopping at lines has too many interleavings to try all: pass preemptions=1 or 2")
    walk = EveryOrder() if preemptions is None else FewPreemptions(preemptions)
    locks = global_locks(within)
    schedules = cut = longest = 0
    while True:
        run = _run_once(scenario, walk, within, modules, locks)
        longest = max(longest, len(run.log))
        if run.cut:
            cut += 1
        else:
            schedules += 1
        if not walk.advance():
            return Exploration(schedules, cut, longest)
        if schedules + cut >= max_schedules:
            raise TooManySchedules(
                f"not at the end after {schedules} schedules and {cut} cut ones of up to {longest} steps; "
                "make the scenario smaller, bound its preemptions, or raise max_schedules"
            )


def replay(
    scenario: Scenario,
    schedule: Sequence[str],
    *,
    every_release: bool = False,
    within: Sequence[str] = (),
    modules: Sequence[ModuleType] | None = None,
) -> str:
    """Call `scenario(run)` under one schedule, as printed by a failure; returns the steps taken, in words.

    `every_release` is as the failure prints it: a bounded exploration stops before releases of locks as well.
    Where the schedule ends, the thread that runs goes on. Raises: as `explore`.
    """
    walk = Replay(schedule, merges_releases=not every_release)
    return _steps(_run_once(scenario, walk, within, modules, global_locks(within)))


def _run_once(
    scenario: Scenario,
    walk: Walk,
    within: Sequence[str],
    modules: Sequence[ModuleType] | None,
    locks: Sequence[Global],
) -> Run:
    run = Run(walk, max_steps=MAX_STEPS, within=within)
    collecting = gc.isenabled()
    gc.disable()  # a finalizer that runs at a step of its own choosing would make runs differ
    try:
        with substituted(modules, locks, lock=run.make_lock, rlock=run.make_rlock, monotonic=run.monotonic):
            try:
                scenario(run)
                run.join()
            finally:
                run.close()
    except Cut:
        pass  # an order that another schedule has stood for
    except TestToolError:
        raise
    except Exception as error:
        if not run.cut:
            options = _replay_options(walk, within)
            raise ScheduleFailed(_failure(run, error, options), run.schedule) from error
    finally:
        if collecting:
            gc.enable()
    return run


def _replay_options(walk: Walk, within: Sequence[str]) -> str:
    options = "" if walk.merges_releases else ", every_release=True"
    return options + (f", within={list(within)!r}" if within else "")


def _failure(run: Run, error: Exception, options: str) -> str:
    return (
        f"{type(error).__name__}: {error}\n"
        f"under this schedule:\n{_steps(run)}\n"
        f"Replay it with\n  replay(scenario, {run.schedule!r}{options})"
    )


def _steps(run: Run) -> str:
    """A line for each step: its number, the thread, what it did and where."""
    names = [name if verdict == GO else f"{name}!{verdict}" for name, verdict, _ in run.log]
    width = max(map(len, names), default=0)
    steps = zip(names, run.log, strict=True)
    return "\n".join(f"{n:5} {name:<{width}}  {log[2].describe()}" for n, (name, log) in enumerate(steps))
