"""Interrupt a call at every point at which CPython could, one point after the other.

Promise     `interruptions` goes on until a call ended before its point was reached, so every point has had
            its turn. What happens there happens once, inside the call, as a signal handler would run.
State       `_countdown` and `reached` of the point, touched by the thread in the block only.
Waiting     nothing here waits.
Assumes     CPython runs signal handlers and raises asynchronous exceptions when a function starts, after a
            call has returned and at a backward jump, and nowhere else. `every_opcode` assumes less than that
            and is harsher than reality.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType

from ._errors import TestToolError
from ._stacks import code_place, frames_from
from ._watch import watching

# More points than any call of a test should have: a call that grows with each interruption would never end.
_MOST_POINTS = 100_000


class Point:
    """The n-th point of a call. Use `raising` or `running` exactly once."""

    def __init__(self, number: int, within: Sequence[str], every_opcode: bool) -> None:
        self.number = number
        self.place = ""
        self.used = False
        self.reached = False
        self._within = within
        self._every_opcode = every_opcode
        self._countdown = number
        self._action: Callable[[], object] = _nothing
        self._outside: frozenset[FrameType] = frozenset()  # the block and its callers
        self._offsets: dict[CodeType, frozenset[int]] = {}
        self._last: tuple[FrameType, int] | None = None  # the instruction before this one

    @contextmanager
    def raising(self, exception: type[BaseException] = KeyboardInterrupt) -> Iterator[Point]:
        """Raise `exception` at this point of what the block calls. The block swallows that one exception."""
        fired = exception(f"at point {self.number}")

        def fire() -> None:
            raise fired

        try:
            with self.running(fire):
                yield self
        except exception as error:
            if not _stems_from(error, fired):
                raise

    @contextmanager
    def running(self, action: Callable[[], object]) -> Iterator[Point]:
        """Call `action` at this point of what the block calls, in the same thread, on top of its stack."""
        if self.used:
            raise TestToolError(f"point {self.number} has been used; each one is for a single block")
        self.used = True
        self._action = action
        self._outside = frozenset(frames_from(sys._getframe()))
        collecting = gc.isenabled()
        gc.disable()  # what a collection calls is no point of the call, and comes when it likes
        try:
            with watching(self._visit):
                yield self
        finally:
            self._outside, self._last = frozenset(), None
            if collecting:
                gc.enable()

    def __repr__(self) -> str:
        return f"point {self.number}{' at ' if self.place else ''}{self.place}"

    def _visit(self, frame: FrameType, offset: int | None) -> None:
        if self.reached or frame in self._outside or not self._is_within(frame):
            return
        if offset is None or self._every_opcode or self._is_interruptible(frame, offset):
            self._countdown -= 1
            if self._countdown == 0:
                self.reached = True
                self.place = code_place(frame.f_code, frame.f_lasti)
                self._action()

    def _is_within(self, frame: FrameType) -> bool:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("multiqueue.testing") or name == "contextlib":
            return False
        return not self._within or any(name == n or name.startswith(n + ".") for n in self._within)

    def _is_interruptible(self, frame: FrameType, offset: int) -> bool:
        known = self._offsets.get(frame.f_code)
        if known is None:
            known = self._offsets[frame.f_code] = frozenset(interruptible_offsets(frame.f_code))
        last, self._last = self._last, (frame, offset)
        if offset in known:
            return True
        # 3.11 has backward jumps with a condition, which was true if they led here.
        return last is not None and last[0] is frame and last[1] > offset and last[1] not in known


def interruptions(*within: str, every_opcode: bool = False) -> Iterator[Point]:
    """One point after the other at which a call could be interrupted, until a call ends before its point.

        for point in interruptions("multiqueue.core"):
            lane = LinkedBlockingMultiQueue().add_subqueue("lane")
            with point.raising(KeyboardInterrupt):
                lane.put("x")
            lane.check_invariants()

    `within` names the modules or packages that are interrupted; without any it is all Python code that the
    block calls. The block's own lines are not interrupted. Only the thread that runs the block is.

    Raises: TestToolError if the loop's body did not use the point.
    """
    for number in range(1, _MOST_POINTS):
        point = Point(number, within, every_opcode)
        yield point
        if not point.used:
            raise TestToolError("the loop's body must use its point: `with point.raising(...)` or `.running(...)`")
        if not point.reached:
            return
    raise TestToolError(f"more than {_MOST_POINTS} points; does the call do more each time?")


def interruptible_offsets(code: CodeType) -> Iterator[int]:
    """Offsets of instructions before which CPython could interrupt: a call has returned, or it jumps back."""
    after_call = False
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name == "CACHE":
            continue
        if after_call or name == "JUMP_BACKWARD":
            yield instruction.offset
        after_call = name.startswith("CALL") and not name.startswith("CALL_INTRINSIC")


def _stems_from(error: BaseException, origin: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None and seen is not origin:
        seen = seen.__cause__ or seen.__context__
    return seen is origin


def _nothing() -> None:
    pass
