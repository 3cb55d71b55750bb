"""Where a thread stands, in words short enough for an assertion message."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType

_OWN = str(Path(__file__).parent)

# Frames shown of a stack: enough to see which operation of the code under test it is.
_DEPTH = 5


def own_frame() -> FrameType:
    """The innermost frame of the caller's stack that is not one of the test tools'."""
    innermost = sys._getframe(1)
    others = (f for f in frames_from(innermost) if not f.f_code.co_filename.startswith(_OWN))
    return next(others, innermost)


def code_place(code: CodeType | None, instruction: int) -> str:
    """`file.py:12 in function` for an instruction of a code object."""
    if code is None:
        return ""
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
    return f"{_short(code.co_filename)}:{line} in {code.co_name}"


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """This frame, its caller, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def places(frame: FrameType) -> str:
    """The innermost frames outside the test tools, innermost first."""
    hidden = (_OWN, threading.__file__)
    shown = [f for f in frames_from(frame) if not f.f_code.co_filename.startswith(hidden)]
    return ", called by ".join(code_place(f.f_code, f.f_lasti) for f in shown[:_DEPTH])


def dump(threads: Iterable[threading.Thread]) -> str:
    """The whole stacks of these threads, as a traceback shows them."""
    frames = sys._current_frames()
    parts = []
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "  not running\n"
        parts.append(f"thread {thread.name!r}:\n{stack}")
    return "\n".join(parts)


def _short(filename: str) -> str:
    return "/".join(Path(filename).parts[-2:])
