"""Interrupt a call at every point at which CPython could, one point after the other.

Promise     `interruptions` goes on until a call ended before its point was reached, so every point has had
            its turn. What happens there happens once, inside the call, as a signal handler would run.
State       `_countdown` and `reached` of the point, touched by the thread in the block only.
Waiting     nothing here waits.
Assumes     CPython runs signal handlers and raises asynchronous exceptions when a function starts, after a call of
            something that is not a Python function has returned, and at a backward jump, and nowhere else; in a
            coroutine that goes on after an `await` neither. Calling a Python function and returning from it happen
            inside the interpreter loop, and after the return there is no such check. A method with a name like
            `__init__` is called by C code, whose return is a point; so is that of every `f(*args)`.
            `every_opcode` assumes less and is harsher than reality.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import CO_COROUTINE
from types import CodeType, FrameType

from ._errors import TestToolError
from ._stacks import code_place, frames_from
from ._watch import Points, Watch

# More points than any call of a test should have: a call that grows with each interruption would never end.
_MOST_POINTS = 100_000


class Point:
    """The n-th point of a call. Use `raising` or `running` exactly once.

    With `second`, `raising` raises again at so many points after it, in the code that handles the first exception.
    """

    def __init__(self, number: int, watch: Watch, second: int | None = None) -> None:
        self.number = number
        self.second = second
        self.place: str = ""
        self.second_place: str = ""
        self.used: bool = False
        self.reached: bool = False
        self.second_reached: bool = False
        self._watch = watch
        self._countdown = number
        self._action: Callable[[], object] = _nothing
        self._outside: frozenset[FrameType] = frozenset()  # the block and its callers

    @contextmanager
    def raising(self, exception: type[BaseException] = KeyboardInterrupt) -> Iterator[Point]:
        """Raise `exception` at this point of what the block calls. The block swallows that one exception."""
        fired = exception(f"at point {self.number}")
        fired_again = exception(f"{self.second} points after point {self.number}")

        def fire() -> None:
            raise fired_again if self.second_reached else fired

        try:
            with self.running(fire):
                yield self
        except exception as error:
            if not _stems_from(error, fired) and not _stems_from(error, fired_again):
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
            with self._watch.block(self._visit):
                yield self
        finally:
            self._outside = frozenset()
            if collecting:
                gc.enable()

    def __repr__(self) -> str:
        second = f", then {self.second_place}" if self.second_place else ""
        return f"point {self.number}{' at ' if self.place else ''}{self.place}{second}"

    def _visit(self, frame: FrameType, offset: int | None) -> None:
        if self._countdown == 0 or frame in self._outside:
            return
        if offset is None and goes_on_after_await(frame.f_code, frame.f_lasti):
            return
        self._countdown -= 1
        if self._countdown == 0:
            place = code_place(frame.f_code, frame.f_lasti)
            if not self.reached:
                self.reached, self.place = True, place
                self._countdown = self.second or 0
            else:
                self.second_reached, self.second_place = True, place
            self._action()


def interruptions(*within: str, every_opcode: bool = False, twice: bool = False) -> Iterator[Point]:
    """One point after the other at which a call could be interrupted, until a call ends before its point.

        for point in interruptions("multiqueue.core"):
            lane = LinkedBlockingMultiQueue().add_subqueue("lane")
            with point.raising(KeyboardInterrupt):
                lane.put("x")
            lane.check_invariants()

    `within` names the modules or packages that are interrupted; without any it is all Python code that the
    block calls. The block's own lines are not interrupted. Only the thread that runs the block is.

    With `twice`, each exception is followed by a second one at each point that comes after it: so many blocks for
    one point as its handlers have points. On 3.11 the second ones strike when a function starts and when a function
    in C has returned, not at backward jumps.

    Raises: TestToolError if the loop's body did not use the point.
    """
    watch = Watch(lambda frame: _points(frame, within, every_opcode))
    watch.kept = True
    try:
        number = second = 1
        for _ in range(1, _MOST_POINTS):
            point = Point(number, watch, second if twice else None)
            yield point
            if not point.used:
                raise TestToolError("the loop's body must use its point: `with point.raising(...)` or `.running(...)`")
            if not point.reached:
                return
            number, second = (number, second + 1) if point.second_reached else (number + 1, 1)
    finally:
        watch.end()
    raise TestToolError(f"more than {_MOST_POINTS} points; does the call do more each time?")


def _points(frame: FrameType, within: Sequence[str], every_opcode: bool) -> Points | None:
    """The points of a function, None if it is in no module that `within` names."""
    name = frame.f_globals.get("__name__", "")
    if name.startswith("multiqueue.testing") or name == "contextlib":
        return None
    if within and not any(name == n or name.startswith(n + ".") for n in within):
        return None
    if every_opcode:
        return dict.fromkeys(range(len(frame.f_code.co_code)))
    return dict(interruptible_offsets(frame.f_code))


def interruptible_offsets(code: CodeType) -> Iterator[tuple[int, int | None]]:
    """Offsets of instructions before which CPython could interrupt: a call has returned, or it jumps back.

    With each: the offset of the call, if it is not so when a Python function has returned.
    """
    call: int | None = None
    is_plain = False
    last = ""
    for instruction in dis.get_instructions(code):
        name, before = instruction.opname, last
        if name == "CACHE":
            continue
        last = name
        if call is not None or name == "JUMP_BACKWARD":
            yield instruction.offset, call if is_plain and name != "JUMP_BACKWARD" else None
        is_call = name.startswith("CALL") and not name.startswith("CALL_INTRINSIC")
        if before == "LOAD_SPECIAL" and sys.version_info >= (3, 15):
            is_call = False  # `__enter__` of a `with`, after which 3.14 interrupts and no other CPython
        call = instruction.offset if is_call else None
        is_plain = name != "CALL_FUNCTION_EX"


def goes_on_after_await(code: CodeType, offset: int) -> bool:
    """Is a frame that starts at `offset` a coroutine that has awaited? CPython looks for nothing there."""
    # 3.11 starts it one instruction before or behind
    return bool(code.co_flags & CO_COROUTINE) and any(abs(offset - resume) <= 2 for resume in _awaited(code))


@cache
def _awaited(code: CodeType) -> tuple[int, ...]:
    return tuple(i.offset for i in dis.get_instructions(code) if i.opname == "RESUME" and (i.arg or 0) & 3 >= 2)


def _stems_from(error: BaseException, origin: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None and seen is not origin:
        seen = seen.__cause__ or seen.__context__
    return seen is origin


def _nothing() -> None:
    pass
