"""What the core assumes of the interpreter, read from its bytecode and seen in its behaviour.

CPython runs signal handlers, delivers asynchronous exceptions and switches threads (where it has a GIL) at a
function's entry, after a call of something in C and at a backward jump, and nowhere else. The core has runs of
statements that must not be split; each is listed here by its first and last line of source, and must compile to no
such instruction.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from core_parts_support import FairFifo, FairHead, Fifo, Group, Head, Level, _drop, _many, drain, wake_one

# The function, the text of the first line and of the last line of the run. The last line may end with one call:
# what interrupts it there comes when the call has been made.
RUNS: list[tuple[Callable[..., Any], str, str]] = [
    (Fifo.put, "items = self.items", "self.arrived += 1"),
    (Fifo.put_some_locked, "items = self.items", "self.arrived += count"),
    (Fifo.put_first_locked, "self.arrived += 1", "self.items.appendleft(item)"),
    (Fifo.remove_locked, "items = self.items", "return True"),
    (Fifo.sweep_locked, "swept = self.items", "return swept"),
    (Fifo.replace_locked, "before = self.items", "return before"),
    (Fifo.attach_locked, "self.attached = True", "head.tails[self] = None"),
    (Fifo.detach_locked, "self.closed = DETACHED", "del self.head.tails[self]"),
    (Fifo.close_locked, "self.closed = SHUT", "self.limit = -1"),
    (Head.take, "items = tail.items", "taken = tail"),
    (Head.take, "return None if taken is None", "return None if taken is None"),
    (Head.mend, "source.taken -= 1", "source.items.appendleft(item)"),
    (Head._group_locked, "if priority not in self.groups", "insort(self.active, priority)"),
    (Head.due_locked, "if not self.active", "return tail"),
    (Group.link, "cursor = self.cursor", "tail.group = self"),
    (Group.unlink, "following, previous", "tail.turn = 0"),
    (Level.join, "cursor = self.cursor", "last._next = cursor"),
    (Level.leave, "following, previous", "place._next = place._previous = None"),
    (Level.charge, "place._served += step", "self.round += 1"),
    (FairFifo.put_locked, "items, costs = self.items", "head.owed += 1"),
    (FairFifo.sweep_locked, "swept += (items[0],)", "head.owed -= 1"),
    (FairHead.take, "items, costs = tail.items", "taken = tail"),
    (FairHead.come_locked, "if tail.attached", "outer.nested += 1"),
    (FairHead.go_locked, "if tail.attached and self.table", "tail.outer.nested -= 1"),
    (wake_one, "elif line and line[0] is waiter", "waiter.release()"),
    (_many, "pairs += (pair,)", "items += (pair[1]"),
    (_drop, "items = fifo.items", "dropped = True"),
    (drain, "container |= {taken[1]}", "taken = None"),
    (drain, "container += (taken[1],)", "taken = None"),
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
