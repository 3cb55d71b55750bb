"""Threads that a test cannot forget, and rounds of them that race as hard as they can.

Promise     `Threads` joins every thread it started and raises their errors; a thread that does not end is
            reported with its stack and its name. `switch_interval` and `stress` put back their changes.
State       `_started`, touched only by the thread that uses the block; each handle's outcome is written by
            its thread and read after it was joined.
Waiting     the gate of `start_together` opens when all threads are at it; the join has a deadline.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar, cast

from ._errors import StillBlocked
from ._patience import PATIENCE
from ._stacks import dump

P = ParamSpec("P")
T = TypeVar("T")


# Seconds between two thread switches under stress: a 5,000th of the interpreter's default.
SHORTEST_INTERVAL = 1e-6


@contextmanager
def switch_interval(seconds: float = SHORTEST_INTERVAL) -> Iterator[None]:
    """Inside the block the interpreter switches threads this often. For the whole process."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Handle(Generic[T]):
    """A thread of `Threads`."""

    def __init__(self, function: Callable[[], T], name: str | None) -> None:
        self.thread: threading.Thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.error: BaseException | None = None
        self._function = function
        self._result: T | None = None

    def join(self, timeout: float = PATIENCE) -> None:
        """Block until the thread has ended. Raises: StillBlocked, with its stack, after `timeout` seconds."""
        self.thread.join(timeout)
        if self.thread.is_alive():
            raise StillBlocked(f"not ended within {timeout} s:\n{dump([self.thread])}")

    def result(self, timeout: float = PATIENCE) -> T:
        """The result of the function, once it has returned. Raises: what the function raised; StillBlocked."""
        self.join(timeout)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return cast(T, self._result)

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised by `result` or by the end of the block
            self.error = error


class Threads:
    """Starts threads and, at the end of the block, joins them all and raises their errors.

        with Threads() as threads:
            taker = threads.start(multi_queue.get)
            lane.put("x")
            assert taker.result() == "x"

    An error that `result` raised is not raised again. A single error is raised as it is, several as an
    `ExceptionGroup`. A thread that does not end within `timeout` seconds of the end of the block raises
    `StillBlocked` with the stacks of all that hang; such threads are daemons and do not keep the process.
    """

    def __init__(self, timeout: float = PATIENCE) -> None:
        self._timeout = timeout
        self._started: list[Handle[object]] = []

    def start(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """A running thread that calls `function`, named after it."""
        handle = self._prepare(lambda: function(*args, **kwargs), getattr(function, "__name__", None))
        handle.thread.start()
        return handle

    def start_together(self, *functions: Callable[[], object]) -> list[Handle[object]]:
        """One running thread for each function; none calls its function before all are there to do so."""
        gate = threading.Barrier(len(functions))

        def behind_gate(function: Callable[[], object]) -> Callable[[], object]:
            def run() -> object:
                gate.wait(self._timeout)
                return function()

            return run

        return [self.start(behind_gate(function)) for function in functions]

    def __enter__(self) -> Threads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = time.monotonic() + self._timeout
        for handle in self._started:
            handle.thread.join(max(0.0, deadline - time.monotonic()))
        hanging = [handle.thread for handle in self._started if handle.thread.is_alive()]
        errors = [handle.error for handle in self._started if handle.error is not None]
        if hanging:
            message = f"{len(hanging)} threads not ended within {self._timeout} s:\n{dump(hanging)}"
            errors.append(StillBlocked(message))
        if error is not None:
            for other in errors:
                error.add_note(f"besides, in a thread: {other!r}")
        elif len(errors) == 1:
            raise errors[0]
        elif errors:
            raise BaseExceptionGroup(f"{len(errors)} threads failed", errors)

    def _prepare(self, function: Callable[[], T], name: str | None) -> Handle[T]:
        handle = Handle(function, name)
        self._started.append(cast("Handle[object]", handle))
        return handle


def stress(
    scenario: Callable[[Threads, random.Random], Callable[[], object] | None],
    *,
    rounds: int,
    seed: object,
    timeout: float = PATIENCE,
) -> None:
    """Call `scenario(threads, random)` `rounds` times, switching threads as often as the interpreter can.

    The scenario starts its threads; once they are joined, the check it returned, if any, is called. The
    random numbers depend on `seed` and the round alone; the schedule does not.

    Raises: the error of a round, with a note that names the seed and the round.
    """
    with switch_interval():
        for number in range(rounds):
            try:
                with Threads(timeout) as threads:
                    check = scenario(threads, random.Random(f"{seed}/{number}"))
                if check is not None:
                    check()
            except BaseException as error:
                error.add_note(f"in round {number} of seed {seed!r}")
                raise
