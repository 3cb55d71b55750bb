"""Runs a suite: rivals interleaved in rounds, set-up and checks outside the clock.

In each round every rival runs once, and each round starts with the next rival: what else the machine does,
and what the caches hold, hits all of them alike. The cyclic garbage collector is off while an attempt runs,
as `timeit` has it: what it costs depends on the whole heap and not on the queue.
"""

from __future__ import annotations

import gc
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from ._machine import commit, describe_machine, versions
from ._model import BenchError, Figures, ItemsLost, Rival, Suite, Workload
from ._report import Report, RivalResult, Status, WorkloadResult


def _tell_nobody(_: str) -> None:
    pass


def run_suite(suite: Suite, *, rounds: int, command: str, progress: Callable[[str], object] = _tell_nobody) -> Report:
    """Run all workloads and return the report. Takes as long as all rivals' rounds together.

    A rival that loses items, raises or gets stuck has no figures in the workload, and the report says why.
    `progress` is told of each workload before it starts.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
    machine, source = describe_machine(), commit()  # before the work: what was loaded, and the others' load
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
        seconds=time.monotonic() - started,
        machine=machine,
        versions=versions([*needed, "multiqueue"]),
        commit=source,
        workloads=tuple(results),
        does_not_show=suite.does_not_show,
    )


def run_workload(workload: Workload, rounds: int) -> WorkloadResult:
    """Run one workload's rivals in rounds: A B C, B C A, C A B, ..."""
    entrants = [_Entrant(workload, rival) for rival in workload.rivals]
    for number in range(rounds):
        start = number % len(entrants)
        for entrant in entrants[start:] + entrants[:start]:
            entrant.run_once()
    return WorkloadResult(workload, tuple(entrant.result() for entrant in entrants))


class _Entrant:
    """A rival in a workload, and what became of it so far. After its first failure it is not run again."""

    def __init__(self, workload: Workload, rival: Rival) -> None:
        self.rival = rival
        self._metrics = workload.metrics
        self._n = workload.n_for(rival)
        self._figures: list[Figures] = []
        self._problem = "" if is_installed(rival) else f"{rival.requires} is not installed"
        self._status: Status = "missing" if self._problem else "measured"

    def run_once(self) -> None:
        """Run one attempt, unless the rival is out."""
        if self._problem:
            return
        try:
            self._figures.append(run_attempt(self.rival, self._n))
        except ItemsLost as error:  # what another's queue loses is a result; what ours loses is a failure
            self._fail(f"{type(error).__name__}: {error}", "failed" if self.rival.role == "ours" else "lost")
        except BenchError as error:
            self._fail(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - a rival's bug must not end the run of the others
            self._fail(f"raised {type(error).__name__}: {error}")

    def _fail(self, problem: str, status: Status = "failed") -> None:
        self._status, self._problem = status, problem

    def result(self) -> RivalResult:
        """The samples of all rounds, or the problem: part of the rounds is no figure."""
        if self._problem:
            return RivalResult(self.rival, self._n, self._status, problem=self._problem)
        samples = {m.name: tuple(figures[m.name] for figures in self._figures) for m in self._metrics}
        return RivalResult(self.rival, self._n, self._status, samples)


def run_attempt(rival: Rival, n: int) -> Figures:
    """Open, run, check and close one attempt; return its figures.

    Raises: `BenchError` if the work was not done, and whatever the rival itself raised.
    """
    attempt = rival.open(n)
    try:
        with _no_garbage_collector():
            figures = attempt.run()
        attempt.check()
    finally:
        attempt.close()
    return figures


@contextmanager
def _no_garbage_collector() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def is_installed(rival: Rival) -> bool:
    """Whether the module that a rival needs is there."""
    if rival.requires is None:
        return True
    try:
        return importlib.util.find_spec(rival.requires) is not None
    except ModuleNotFoundError:
        return False  # the parent package is missing
