"""`map` with bounded look-ahead: results in order, and only so many jobs ahead of who reads them.

Promise     Results come in the order of the calls. At most `look_ahead` calls are submitted whose result has not been
            read; the iterables are read no further than that. An early end of the iteration cancels
            the calls that have not started.
State       A deque of futures, owned by the generator; used by one thread at a time, like every generator.
Waiting     The reader waits for the oldest future, and inside `submit` when the lane is full; both end at the
            deadline.
Source      `Executor.map` of CPython 3.14, whose `buffersize` this is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import TypeVar

from . import _sync

A = TypeVar("A")
T = TypeVar("T")


def ordered_results(
    submit: Callable[[A, float | None], Future[T]],
    calls: Iterable[A],
    look_ahead: int | None,
    timeout: float | None,
) -> Generator[T, None, None]:
    """Submit the first `look_ahead` calls (None: all of them) now, and one more for each result that is read.

    `submit` gets a call and the seconds it may wait. `timeout` counts from now.

    Raises:
        ValueError: `look_ahead` is less than 1.
        TypeError: one of the numbers is none.
    """
    if look_ahead is not None and not isinstance(look_ahead, int):
        raise TypeError(f"'buffersize' must be an int, not {look_ahead!r}")
    if look_ahead is not None and look_ahead < 1:
        raise ValueError(f"buffersize must be at least 1 or None, not {look_ahead}")
    if timeout is not None and not isinstance(timeout, int | float):
        raise TypeError(f"'timeout' must be a number, not {timeout!r}")
    deadline = None if timeout is None else _sync.monotonic() + timeout
    submitted = (submit(call, _seconds_left(deadline)) for call in calls)  # once exhausted it holds nothing
    pending: deque[Future[T]] = deque()
    try:
        pending.extend(islice(submitted, look_ahead))
        return _results(submitted, pending, deadline)
    except BaseException:
        try:
            _cancel(pending)
        except BaseException:  # interrupted again
            _cancel(pending)
            raise
        raise


def _results(
    submitted: Iterator[Future[T]], pending: deque[Future[T]], deadline: float | None
) -> Generator[T, None, None]:
    try:
        while True:  # not `while pending`, whose jump back is outside of the handler from CPython 3.12 on
            if not pending:
                break
            yield _first_result(pending, deadline)
            pending.extend(islice(submitted, 1))
    except BaseException:
        try:
            _cancel(pending)
        except BaseException:  # interrupted again
            _cancel(pending)
            raise
        raise


def _first_result(pending: deque[Future[T]], deadline: float | None) -> T:
    result = pending[0].result(_seconds_left(deadline))
    del pending[0]  # now, for what strikes before finds it in there
    return result


def _cancel(pending: deque[Future[T]]) -> None:
    """Cancel and let go of them: the traceback of an error holds this deque. May be repeated."""
    while pending:
        pending[0].cancel()
        del pending[0]


def _seconds_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - _sync.monotonic(), 0.0)
