"""Be called at the points of functions that a series of blocks is watched at, from inside the thread of the block.

Promise     inside `Watch.block(visit)`, `visit(frame, offset)` is called when a function starts that has points, also
            when a generator or coroutine goes on (offset None), and before each instruction that `points` names for
            it, in the thread of the block alone. Its exceptions are raised there. From 3.12 on what strikes after a
            call is raised in the call, as by CPython: it comes to a handler around the call, not to one around what
            follows. On 3.11, once it has raised, it is called at the points that `sys.setprofile` knows (a function
            starts, one in C has returned), with None: a function of `sys.settrace` is forgotten when it raises.
State       `_visit`, `_thread`, `_returned` and `_last` belong to the block. From 3.12 on `_current` is the watch that
            the interpreter's events are set for; while `kept`, between its blocks too, for setting them has each
            function's code written anew. An instruction that is no point is switched off when the block first comes to
            it, and costs nothing from then on.
Waiting     nothing here waits.
Assumes     no other code needs `sys.settrace` (3.11) or the tool number (3.12 and later) meanwhile.
            `sys.settrace` is not used where `sys.monitoring` exists: in 3.12 and 3.13 it forgets to report
            opcodes of a function once an exception of the tracer has passed through it.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType
from typing import Any, ClassVar

Visit = Callable[[FrameType, int | None], None]
# Offsets of the instructions before which a function could be interrupted; with each the offset of the call before it,
# if it is no point when that call was of a Python function. None: the function has no points at all.
Points = Mapping[int, int | None]

# The tools a process can have at once are numbered; 0 to 2 and 5 are meant for debuggers and the like.
_TOOL = 4

_RUNS_IN_PIECES = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


class _Watch:
    """The common part of both kinds: which functions have points, and what was called last."""

    def __init__(self, points: Callable[[FrameType], Points | None]) -> None:
        self.kept = False
        self._points = points
        self._known: dict[CodeType, Points | None] = {}
        self._visit: Visit = _nothing
        self._thread = 0

    def _points_of(self, frame: FrameType) -> Points | None:
        try:
            return self._known[frame.f_code]
        except KeyError:
            points = self._known[frame.f_code] = self._points(frame)
            return points


if sys.version_info >= (3, 12):
    _monitoring = sys.monitoring
    _EVENTS = _monitoring.events
    _AT_POINTS = _EVENTS.INSTRUCTION | _EVENTS.CALL  # the latter brings C_RETURN along

    class Watch(_Watch):
        """What watches the blocks of one series."""

        _current: ClassVar[Watch | None] = None

        @contextmanager
        def block(self, visit: Visit) -> Iterator[None]:
            """Call `visit` at the points that the block's thread comes to."""
            self._begin()
            self._thread, self._visit = threading.get_ident(), visit
            self._listen(self._on_start, self._on_c_return, self._on_instruction)
            try:
                yield
            finally:
                self._listen(None, None, None)
                if not self.kept:
                    self.end()

        def end(self) -> None:
            """Watch nothing any more; a further block begins anew."""
            self.kept = False
            if Watch._current is self:
                Watch._current = None
                self._set_events(0, 0)
                _monitoring.free_tool_id(_TOOL)

        def _begin(self) -> None:
            if Watch._current is not self:
                if Watch._current is None:
                    _monitoring.use_tool_id(_TOOL, "multiqueue.testing")
                Watch._current = self
                self._set_events(_EVENTS.PY_START | _EVENTS.PY_RESUME, _AT_POINTS)
                _monitoring.restart_events()

        def _set_events(self, everywhere: int, where_points_are: int) -> None:
            _monitoring.set_events(_TOOL, everywhere)
            for code, points in self._known.items():
                if points is not None:
                    _monitoring.set_local_events(_TOOL, code, where_points_are)

        def _listen(self, start: Any, returned: Any, instruction: Any) -> None:
            _monitoring.register_callback(_TOOL, _EVENTS.PY_START, start)
            _monitoring.register_callback(_TOOL, _EVENTS.PY_RESUME, start)
            _monitoring.register_callback(_TOOL, _EVENTS.C_RETURN, returned)
            _monitoring.register_callback(_TOOL, _EVENTS.INSTRUCTION, instruction)

        def _on_start(self, code: CodeType, offset: int) -> Any:
            frame = sys._getframe(1)
            is_new = code not in self._known
            if self._points_of(frame) is None:
                return _monitoring.DISABLE
            if is_new:
                _monitoring.set_local_events(_TOOL, code, _AT_POINTS)
            if threading.get_ident() == self._thread:
                self._visit(frame, None)
            return None

        def _on_instruction(self, code: CodeType, offset: int) -> Any:
            frame = sys._getframe(1)
            points = self._points_of(frame)
            if points is None or offset not in points or points[offset] is not None:
                return _monitoring.DISABLE
            if threading.get_ident() == self._thread:
                self._visit(frame, offset)
            return None

        def _on_c_return(self, code: CodeType, offset: int, called: object, argument: object) -> None:
            frame = sys._getframe(1)
            points = self._points_of(frame)
            if points is not None and threading.get_ident() == self._thread and offset in points.values():
                self._visit(frame, offset)

else:

    class Watch(_Watch):
        """What watches the blocks of one series."""

        @contextmanager
        def block(self, visit: Visit) -> Iterator[None]:
            """Call `visit` at the points that the block's thread comes to."""
            before = sys.gettrace()
            self._visit = visit
            self._last: tuple[FrameType, int] | None = None  # the instruction before this one
            self._returned: tuple[FrameType | None, int] = (
                None,
                0,
            )  # to whom a Python function has returned, and where
            sys.settrace(self._on_call)
            try:
                yield
            finally:
                sys.setprofile(None)
                sys.settrace(before)
                self._last = None
                self._returned = None, 0

        def end(self) -> None:
            """Watch nothing any more."""

        def _on_call(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
            frame.f_trace_lines = False
            if self._points_of(frame) is None:
                caller = frame.f_back
                is_known = caller is not None and self._known.get(caller.f_code) is not None
                return self._in_others if is_known else None
            frame.f_trace_opcodes = True
            self._visit_and_follow(frame, None)
            return self._inside

        def _note_return(self, frame: FrameType) -> None:
            """Note that a function returns, unless C code called it, as it does `__init__`."""
            caller = frame.f_back
            if caller is not None and self._known.get(caller.f_code) is not None:
                code = frame.f_code
                if not code.co_name.startswith("__") and not code.co_flags & _RUNS_IN_PIECES:
                    self._returned = caller, caller.f_lasti

        def _is_point(self, frame: FrameType, offset: int, call: int | None) -> bool:
            """Is the instruction at `offset` one, behind a call at `call`? Not where a Python function returned."""
            caller, place = self._returned
            if caller is None:
                return True
            self._returned = None, 0
            return call is None or caller is not frame or not call <= place < offset

        def _in_others(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            if event == "return":
                self._note_return(frame)
            return self._in_others

        def _inside(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            if event == "return":
                self._note_return(frame)
            elif event == "opcode":
                offset = frame.f_lasti
                points = self._known[frame.f_code] or {}
                last = self._last
                self._last = frame, offset
                if offset in points:
                    if self._is_point(frame, offset, points[offset]):
                        self._visit_and_follow(frame, offset)
                else:
                    self._returned = None, 0
                    # Backward jumps with a condition, true if they led here. Those of `await` are no points.
                    before = last[1] if last is not None and last[0] is frame else 0
                    jumped = before > offset and before not in points
                    if jumped and dis.opname[frame.f_code.co_code[before]] != "JUMP_BACKWARD_NO_INTERRUPT":
                        self._visit_and_follow(frame, offset)
            return self._inside

        def _visit_and_follow(self, frame: FrameType, offset: int | None) -> None:
            try:
                self._visit(frame, offset)
            except BaseException:
                sys.setprofile(self._on_event)
                raise

        def _on_event(self, frame: FrameType, event: str, argument: object) -> None:
            if event in ("call", "c_return") and self._points_of(frame) is not None:
                self._visit(frame, None)


def _nothing(frame: FrameType, offset: int | None) -> None:
    pass
