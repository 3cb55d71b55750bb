"""`interruptions`: every point at which CPython could strike, one after the other."""

from __future__ import annotations

import dis
import gc
import queue
import signal
import sys
import threading
from types import CodeType, FrameType

import pytest

from multiqueue.testing import Point, TestToolError, interruptions


def inner(seen: list[str]) -> None:
    seen.append("in")


def outer(seen: list[str]) -> None:
    inner(seen)
    for _ in range(2):
        seen.append("loop")
    seen.append("out")


def test_every_point_has_its_turn() -> None:
    """The points go through the entries, the returns of calls and the loops, in the order of execution."""
    seen: list[list[str]] = []
    points: list[Point] = []
    for point in interruptions():
        seen.append([])
        with point.raising():
            outer(seen[-1])
        points.append(point)
    assert [point.number for point in points] == list(range(1, len(points) + 1))
    assert not points[-1].reached
    assert seen[-1] == ["in", "loop", "loop", "out"]
    lengths = [len(entries) for entries in seen]
    assert lengths == sorted(lengths), "each point comes later than the one before"
    assert set(lengths) == {0, 1, 2, 3, 4}, "there is a point before and after every call"
    assert "in inner" in points[1].place


def test_the_return_of_a_python_function_is_no_point() -> None:
    """There is a point when a function in C has returned, and none when one in Python has."""

    def caller(seen: list[str]) -> None:
        inner(seen)
        seen.append("out")

    number = 0
    for point in interruptions():
        with point.raising():
            caller([])
        number += point.reached
    assert number == len(["entry of caller", "entry of inner", "append in inner", "append in caller"])


def test_a_second_exception_strikes_wherever_the_first_is_handled() -> None:
    """With `twice` each first exception is followed by second ones, at all points up to the end of the block."""
    places: dict[str, list[str]] = {}
    for point in interruptions(twice=True):
        seen: list[str] = []
        with point.raising():
            try:
                seen.append("before")
                inner(seen)
            finally:
                inner(seen)
                inner(seen)
        if point.second_reached:
            places.setdefault(point.place, []).append(point.second_place)
    assert len(places) >= 2
    assert {len(second) for second in places.values()} <= {2, 4}
    assert 4 in {len(second) for second in places.values()}, "entry and append, twice"


def test_every_opcode_is_more_than_every_point() -> None:
    """Asked for, the points are all opcodes; what happens stays in order."""

    def count(every_opcode: bool) -> int:
        number = 0
        for point in interruptions(every_opcode=every_opcode):
            with point.raising():
                outer([])
            number += 1
        return number

    assert count(True) > 2 * count(False)


def test_only_the_modules_named_are_interrupted() -> None:
    """Points are in the modules or packages asked for, also where others are called in between."""
    places = []
    for point in interruptions("threading"):
        with point.raising():
            queue.Queue[str]().put("a")
        places.append(point.place)
    assert places.pop() == ""
    assert places
    assert all("threading.py" in place for place in places)


def test_the_exception_is_the_one_asked_for() -> None:
    """The block swallows the exception it was struck by, and no other."""
    for point in interruptions():
        with point.raising(ZeroDivisionError):
            outer([])
        break
    point = next(interruptions())
    with pytest.raises(ZeroDivisionError, match="own"), point.raising(ZeroDivisionError):
        raise ZeroDivisionError("the block's own")


def test_an_action_runs_on_top_of_the_stack() -> None:
    """`running` calls the action once, where a signal handler would be called, and lets the call go on."""
    number = 0
    for point in interruptions():
        seen: list[str] = []
        with point.running(lambda seen=seen: seen.append("signal")):  # type: ignore[misc]
            outer(seen)
        assert seen.count("signal") == int(point.reached)
        assert [entry for entry in seen if entry != "signal"] == ["in", "loop", "loop", "out"]
        number += 1
    assert number > 8


def test_signals_are_handled_at_such_points_alone() -> None:
    """CPython handles a real signal when a function starts, at a call or at a backward jump, nowhere else."""
    codes = (inner.__code__, outer.__code__)
    struck: set[tuple[CodeType, int]] = set()
    signals = 0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if frame is not None and frame.f_code in codes:
            struck.add((frame.f_code, frame.f_lasti))

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        while signals < 200:
            outer([])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert struck
    calls_of_inner = {i.offset for i in dis.get_instructions(outer) if i.opname.startswith("CALL")}
    first_call = min(calls_of_inner)
    assert (outer.__code__, first_call) not in struck, "the return of a Python function is none"
    for code, offset in struck:
        # 3.11 executes a comparison and the jump after it as one: hence two instructions.
        here = [i.opname for i in dis.get_instructions(code) if i.offset >= offset][:2]
        assert any("RESUME" in name or "CALL" in name or "JUMP_BACKWARD" in name for name in here), here


def test_a_lock_is_held_where_cpython_lets_it_be_held() -> None:
    """After a `with` that is struck its lock is free, but on 3.14, which interrupts before the block has begun."""

    def hold(lock: threading.RLock) -> None:  # type: ignore[valid-type]
        with lock:  # type: ignore[attr-defined]
            len("block")

    left_held = 0
    for point in interruptions():
        lock = threading.RLock()
        with point.raising():
            hold(lock)
        left_held += lock._is_owned()  # type: ignore[attr-defined]
    assert left_held == (1 if sys.version_info[:2] == (3, 14) else 0)


def test_a_strike_after_a_call_is_in_the_call() -> None:
    """What strikes when a call has returned comes to the handler around the call, not to one around what follows."""

    def catch(seen: list[str]) -> None:
        try:
            seen.append("called")
        except KeyboardInterrupt:
            seen.append("caught")

    ends = []
    for point in interruptions():
        seen: list[str] = []
        with point.raising():
            catch(seen)
        ends.append(seen)
    assert ends.count(["called", "caught"]) >= 1


def test_a_point_is_used_once() -> None:
    """A loop that forgets its point would go on for ever, and one that uses it twice would miss some."""
    with pytest.raises(TestToolError, match="must use its point"):
        for _ in interruptions():
            pass
    point = next(interruptions())
    with point.raising():
        outer([])
    with pytest.raises(TestToolError, match="has been used"), point.raising():
        outer([])


def test_a_collection_is_no_point_of_a_call() -> None:
    """What the garbage collector calls is not interrupted, however often it would run."""
    collections: list[str] = []

    def collected(phase: str, info: object) -> None:
        collections.append(phase)

    def allocate() -> list[list[object]]:
        return [[] for _ in range(3)]

    threshold = gc.get_threshold()
    gc.callbacks.append(collected)
    try:
        for point in interruptions():
            with point.raising():
                gc.set_threshold(1)
                allocate()
                gc.set_threshold(*threshold)
            gc.set_threshold(*threshold)
            assert "collected" not in point.place
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collected)
    assert gc.isenabled()
