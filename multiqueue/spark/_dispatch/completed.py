"""Calls over many inputs with bounded look-ahead, in the order in which they end.

Promise     Each call's future is handed out once, when it has ended. At most `look_ahead` calls are under way whose
            future has not been handed out, and the inputs are read no further than that. An early end of the iteration
            cancels the calls under way.
State       The generator owns `under_way`. The futures' callbacks put into `ended`, which has its own locks.
Waiting     The reader waits for the first future to end, and inside `submit` when the lane is full; both end at the
            deadline.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from itertools import islice
from time import monotonic
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Future[Any])
Call = tuple[Any, ...]


def completed(
    submit: Callable[[Call, float | None], F],
    calls: Iterable[Call],
    look_ahead: int,
    timeout: float | None,
) -> Generator[tuple[Call, F], None, None]:
    """Submit `look_ahead` calls, and one more for each that has ended and was handed out.

    `submit` gets a call and the seconds it may wait. `timeout` counts from now.

    Raises:
        ValueError: `look_ahead` is less than 1.
    """
    if look_ahead < 1:
        raise ValueError(f"buffersize must be at least 1 or None, not {look_ahead}")
    deadline = None if timeout is None else monotonic() + timeout
    return _completed(submit, iter(calls), look_ahead, deadline, timeout)


def _completed(
    submit: Callable[[Call, float | None], F],
    calls: Iterable[Call],
    look_ahead: int,
    deadline: float | None,
    timeout: float | None,
) -> Generator[tuple[Call, F], None, None]:
    ended: queue.SimpleQueue[F] = queue.SimpleQueue()
    under_way: dict[F, Call] = {}

    def submit_up_to(count: int) -> None:
        for call in islice(calls, count):
            future = submit(call, _seconds_left(deadline))
            under_way[future] = call
            future.add_done_callback(cast(Callable[[Future[Any]], None], ended.put))

    try:
        submit_up_to(look_ahead)
        while True:  # not `while under_way`, whose jump back is outside of the `finally` from CPython 3.12 on
            if not under_way:
                break
            try:
                future = ended.get(timeout=_seconds_left(deadline))
            except queue.Empty:
                raise TimeoutError(
                    f"{len(under_way)} calls had not ended after {timeout:g} s; they are cancelled"
                ) from None
            yield under_way.pop(future), future
            del future  # the reader's alone now
            submit_up_to(1)
    finally:
        for future in under_way:
            future.cancel()


def _seconds_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - monotonic(), 0.0)
