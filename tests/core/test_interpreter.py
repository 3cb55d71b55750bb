"""What the core assumes of the interpreter, read from its bytecode and seen in its behaviour.

CPython runs signal handlers, delivers asynchronous exceptions and switches threads (where it has a GIL) at a
function's entry, after a call of something in C and at a backward jump, and nowhere else. The core has runs of
statements that must not be split; each is listed here by its first and last line of source, and must compile to no
such instruction.
"""

from __future__ import annotations

import dis
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from core_parts_support import ActiveGroups, Fifo, PlainMultiQueue, PriorityGroup, PutSide, TakeSide, drain_to, wake_one

# The function, the text of the first line and of the last line of the run. The last line may end with one call:
# what interrupts it there comes when the call has been made.
RUNS: list[tuple[Callable[..., Any], str, str]] = [
    (
        PutSide.put,
        "if timeout is None and self._lock_free",
        "if timeout is None and self._lock_free and self._items.append(item) is None:",
    ),
    (PutSide._take_back_locked, "if items[-1] is item", "return True"),
    (TakeSide._take_one, "items = chosen._items", "del items[0]"),
    (TakeSide._take_one, "return None if sub is None", "return None if sub is None"),
    (PlainMultiQueue.get, "if pair is None", "return pair[1]"),
    (PlainMultiQueue.get, "items = chosen._items", "del items[0]"),
    (PlainMultiQueue.get, "if sub is None:", "return item  # type"),
    (Fifo.get, "if pair is None", "return pair[1]"),
    (TakeSide._take_runs_locked, "sub._in_flight += count", "taken.extend(run)"),
    (TakeSide._take_chosen_locked, "item = sub._items[0]", "taken.append(item)"),
    (TakeSide._take_one, "changed = own", "self._stale.extend((None, (runs, taken)))"),
    (TakeSide._locked, "runs: Sequence", "self._stale.extend((None, (runs, [])))"),
    (PlainMultiQueue.get, "runs = ()", "self._stale.extend((None, (runs, taken)))"),
    (PlainMultiQueue.take, "self._stale.extend(", "self._stale.extend((None, (((pair[0], 0),), [pair[1]])))"),
    (drain_to, "container |= {pair[1]}", "pair = None"),
    (drain_to, "container += (pair[1],)", "pair = None"),
    (TakeSide._pay_locked, "item = taken[-1]", "sub._items.appendleft(item)"),
    (Fifo._discard_locked, "swept.extend(", "swept.extend(starmap(items.popleft, repeat((), len(items))))"),
    (Fifo._count_swept_locked, "self._discarded += count", "self._swept = None"),
    (Fifo._remove_locked, "if self._items[index] is wanted", "del self._items[index]"),
    (Fifo._task_done_locked, "self._in_flight -= 1", "self._finished += 1"),
    (PutSide._close_locked, "self._closed = error", "self._lock_free = False"),
    (PutSide._set_limit_locked, "self._capacity = capacity", "self._lock_free = WITH_GIL"),
    (TakeSide._read_stale_locked, "sub = stale[0]", "debt = stale[0]"),
    (TakeSide._read_stale_locked, "debt = stale[0]", "del stale[0]"),
    (wake_one, "del waiters[0]", "waiter.release()"),
    (PriorityGroup.link, "cursor = self.cursor", "member._group = self"),
    (ActiveGroups.group, "if fits and", "groups.insert(index, spare)"),
    (PriorityGroup.unlink, "following, previous", "member._next = member._previous = None"),
]


@pytest.mark.parametrize(("function", "first", "last"), RUNS, ids=[f"{run[0].__qualname__}: {run[1]}" for run in RUNS])
def test_nothing_can_come_in_between(function: Callable[..., Any], first: str, last: str) -> None:
    """Between the first and the last instruction of the run there is no call and no backward jump."""
    source, start = inspect.getsourcelines(function)
    numbers = [start + index for index, line in enumerate(source)]
    begin = next(n for n, line in zip(numbers, source, strict=True) if line.strip().startswith(first))
    end = next(n for n, line in zip(numbers, source, strict=True) if n >= begin and line.strip().startswith(last))
    run = [
        instruction
        for instruction in dis.get_instructions(function)
        if (line := _line(instruction)) is not None and begin <= line <= end
    ]
    assert run, "the run is there"
    offsets = {instruction.offset for instruction in run}
    points = [
        number
        for number, instruction in enumerate(run)
        if instruction.opname.startswith("CALL")
        or ("BACKWARD" in instruction.opname and instruction.argval in offsets)  # others leave the run to begin anew
    ]
    if last.endswith((")", ":")):  # the run ends with the call: whatever comes after it is not in between
        assert run[points[0]].opname.startswith("CALL")
        assert all(_line(instruction) == end for instruction in run[points[0] :])
    else:
        assert not points


def _line(instruction: dis.Instruction) -> int | None:
    positions = instruction.positions
    return positions.lineno if positions else None


def test_rotate_by_nothing_moves_nothing() -> None:
    """`rotate(0)`, which the core uses for the lock inside it, leaves a deque as it is."""
    items = deque([1, 2, 3])
    items.rotate(0)
    assert list(items) == [1, 2, 3]
