"""Be called before every instruction that a thread executes, from inside that thread.

Promise     inside the block `visit(frame, offset)` is called when a function starts (offset None) and before
            each instruction after that, in the thread of the block alone. What it raises is raised there.
            On 3.11, once it has raised, it is called at the points that `sys.setprofile` knows (a function starts, one
            in C has returned), with None: a function of `sys.settrace` is forgotten when it raises.
Waiting     nothing here waits.
Assumes     nobody else needs `sys.settrace` (3.11) or the tool number (3.12 and later) meanwhile.
            `sys.settrace` is not used where `sys.monitoring` exists: in 3.12 and 3.13 it forgets to report
            opcodes of a function once an exception of the tracer has passed through it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

Visit = Callable[[FrameType, int | None], None]

# The tools a process can have at once are numbered; 0 to 2 and 5 are meant for debuggers and the like.
_TOOL = 4

if sys.version_info >= (3, 12):

    @contextmanager
    def watching(visit: Visit) -> Iterator[None]:
        """Call `visit` before every instruction of Python code that the block's thread runs."""
        monitoring, events = sys.monitoring, sys.monitoring.events
        watched = threading.get_ident()

        def on_start(code: CodeType, offset: int) -> None:
            if threading.get_ident() == watched:
                visit(sys._getframe(1), None)

        def on_instruction(code: CodeType, offset: int) -> None:
            if threading.get_ident() == watched:
                visit(sys._getframe(1), offset)

        monitoring.use_tool_id(_TOOL, "multiqueue.testing")
        try:
            monitoring.register_callback(_TOOL, events.PY_START, on_start)
            monitoring.register_callback(_TOOL, events.PY_RESUME, on_start)
            monitoring.register_callback(_TOOL, events.INSTRUCTION, on_instruction)
            monitoring.set_events(_TOOL, events.PY_START | events.PY_RESUME | events.INSTRUCTION)
            yield
        finally:
            monitoring.set_events(_TOOL, 0)
            monitoring.free_tool_id(_TOOL)

else:

    @contextmanager
    def watching(visit: Visit) -> Iterator[None]:
        """Call `visit` before every instruction of Python code that the block's thread runs."""

        def on_call(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            frame.f_trace_lines = False
            frame.f_trace_opcodes = True
            visit_and_follow(frame, None)
            return inside

        def inside(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            if event == "opcode":
                visit_and_follow(frame, frame.f_lasti)
            return inside

        def visit_and_follow(frame: FrameType, offset: int | None) -> None:
            try:
                visit(frame, offset)
            except BaseException:
                sys.setprofile(on_event)
                raise

        def on_event(frame: FrameType, event: str, argument: object) -> None:
            if event in ("call", "c_return"):
                visit(frame, None)

        before = sys.gettrace()
        sys.settrace(on_call)
        try:
            yield
        finally:
            sys.setprofile(None)
            sys.settrace(before)
