"""What the engine in C assumes of the interpreter: nothing strikes between a door and the caller of the method."""

from __future__ import annotations

import _thread
import dis
import inspect
import signal
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from multiqueue import FairQueue, LinkedBlockingMultiQueue, Queue, SubQueue
from multiqueue.core import engine

pytestmark = pytest.mark.skipif(engine != "c", reason="the engine in C was not built, or MULTIQUEUE_PURE is set")

TAKES = [
    LinkedBlockingMultiQueue.get,
    LinkedBlockingMultiQueue.take,
    LinkedBlockingMultiQueue.poll,
    LinkedBlockingMultiQueue.get_many,
    FairQueue.take,
    SubQueue.get,
    SubQueue.poll,
    SubQueue.get_many,
    Queue.get,
    Queue.poll,
    Queue.get_many,
]
# After these CPython looks for signals and asynchronous exceptions.
STRIKES = ("CALL", "PRECALL", "JUMP_BACKWARD", "RESUME", "SEND", "YIELD")
SUBSCRIPTIONS = ("BINARY_SUBSCR", "BINARY_OP")  # the latter from 3.14 on


def after_doors(function: FunctionType) -> list[list[str]]:
    """The instructions from each subscription of a function to the next return."""
    names = [instruction.opname for instruction in dis.get_instructions(function)]
    runs = []
    for place, name in enumerate(names):
        if name in SUBSCRIPTIONS:
            run = []
            for following in names[place + 1 :]:
                run.append(following)
                if following == "RETURN_VALUE":
                    break
            runs.append(run)
    return runs


@pytest.mark.parametrize("function", TAKES, ids=lambda function: function.__qualname__)
def test_a_take_ends_with_its_door(function: Any) -> None:
    """From the subscription that takes to the return there is no instruction at which anything strikes."""
    runs = after_doors(function)
    assert runs, inspect.getsource(function)
    for run in runs:
        assert not [name for name in run if name.startswith(STRIKES)], inspect.getsource(function)


def test_a_door_that_is_called_is_found() -> None:
    """Were the item taken by a call, this test would see it."""

    def wrong(queue: Any, doors: Any, out: Callable[[Any], Any]) -> Any:
        return out(doors[queue])

    assert any(name.startswith(STRIKES) for run in after_doors(wrong) for name in run)  # type: ignore[arg-type]


def test_a_signal_takes_the_result_of_a_call_in_c_away() -> None:
    """That is why a take is no call: a handler that raises runs before what the call returned is stored."""

    class Struck(Exception):
        pass

    def handler(*_: object) -> None:
        raise Struck

    before = signal.signal(signal.SIGINT, handler)
    try:
        result: Any = "nothing"
        with pytest.raises(Struck):
            result = _thread.interrupt_main()
        assert result == "nothing"
    finally:
        signal.signal(signal.SIGINT, before)
