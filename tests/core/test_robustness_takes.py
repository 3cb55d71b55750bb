"""Signal handlers that take, wherever in an operation of the same thread they strike."""

from __future__ import annotations

from functools import partial
from typing import Any

from test_robustness import CORE, Operation, every_operation, house, still_works

from multiqueue import LinkedBlockingMultiQueue
from multiqueue.testing import interruptions


def poll_into(taken: list[Any], multi_queue: LinkedBlockingMultiQueue[str]) -> None:
    """What a signal handler that takes does."""
    item = multi_queue.poll()
    if item is not None:
        taken.append(item)


@every_operation
def test_a_take_inside_any_operation_neither_hangs_nor_corrupts(operation: Operation) -> None:
    """A handler that polls, wherever in an operation of the same thread, takes each element at most once."""
    for point in interruptions(CORE):
        multi_queue, lane, other = house()
        inside: list[Any] = []
        with point.running(partial(poll_into, inside, multi_queue)):
            operation(multi_queue, lane, other)
        left = inside + list(lane) + list(other)
        assert len(set(left)) == len(left), point
        still_works(multi_queue, lane)
