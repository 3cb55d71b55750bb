"""The exception tables of the house and of its core, as the CPython that runs this test compiles them.

A CPython that compiles some loop in a new way fails here, with the name of the function and the line.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import pytest
from core_parts_support import (
    Fifo,
    Guard,
    Head,
    Multi,
    Workers,
    _drop,
    _many,
    _results,
    _surely,
    _take_named,
    drain,
    holding,
)
from protection_support import all_functions, function, report, without

from multiqueue import LinkedBlockingMultiQueue, MultiQueueExecutor

ALL = all_functions("core")

# What a put, a take, a wait and an ending go through. Each has a `try` that the proof needs.
HOT: list[Callable[..., Any]] = [
    Fifo.put,
    Head.take,
    Head.locked,
    Head._sleep,
    Multi._take_selected,
    _take_named,
    _many,
    _drop,
    _surely,
    LinkedBlockingMultiQueue.add_subqueue,
    LinkedBlockingMultiQueue.remove_subqueue,
    Workers.put,
    Workers._start_worker,
    Workers.withdraw,
    Guard.__enter__,
    drain,
    holding,
    _results,
]


def test_no_exception_passes_by_the_handler_around_it() -> None:
    """Wherever an exception can strike inside a `try` that takes all, in any room, it comes to that `try` (core 6).

    No function is excused. A signal strikes in the main thread alone, but `PyThreadState_SetAsyncExc` strikes in any.
    """
    holes = [f"{name}: {hole}" for name, each in all_functions().items() for hole in report(*each).holes]
    assert not holes, "\n".join(
        [
            f"CPython {sys.version.split()[0]} compiles these outside of their try. Put the loop's condition into a "
            "name (`more = ...; if not more: break`), or the loop into a function that the try calls:",
            *holes,
        ]
    )


@pytest.mark.parametrize("call", HOT, ids=[call.__qualname__ for call in HOT])
def test_every_place_of_a_hot_function_is_looked_at(call: Callable[..., Any]) -> None:
    """An exception table that left out any one of the places where it is struck at would be found out."""
    code, node = ALL[f"{call.__module__}.{call.__qualname__}"]
    assert code == call.__code__, "the code that was read is the code that runs"
    places = report(code, node).looked_at
    assert places
    for offset in places:
        assert report(without(code, offset), node).holes, f"{call.__qualname__}: offset {offset} may go unprotected"


def test_what_the_core_holds_by_with_is_a_guard() -> None:
    """No `with` of the core holds a lock of C, past whose `__enter__` CPython 3.14 lets an exception by."""
    held = {
        ast.unparse(item.context_expr)
        for _, node in ALL.values()
        for statement in ast.walk(node)
        if isinstance(statement, ast.With)
        for item in statement.items
    }
    assert held == {"self._lock", "self._starting"}
    with MultiQueueExecutor(max_workers=1) as executor:
        workers = executor._workers
        assert {type(lock) for lock in (executor._lock, workers._lock, workers._starting)} == {Guard}
    assert isinstance(Guard.__enter__, FunctionType)
    assert not isinstance(Guard().__exit__, FunctionType | MethodType), "an exception may arrive at its entry"


# ---- the reading itself -------------------------------------------------------------------------------------------


def until_either(more: Callable[[], bool], enough: Callable[[], bool]) -> None:
    """A loop in a `try` as `get_many` had it: 3.14 leaves its jump back outside."""
    try:
        while True:
            if enough() or not more():
                break
        print()
    except BaseException:
        print()
        raise


def while_condition(more: Callable[[], bool]) -> None:
    """A loop in a `try` as `join` had it: 3.12 and 3.13 leave its jump back outside."""
    try:
        while more():
            print()
    except BaseException:
        print()
        raise


def test_a_loop_that_a_cpython_leaves_outside_is_found() -> None:
    """The loops that lost elements on 3.12, 3.13 and 3.14 are reported there, by function, instruction and line."""
    holes = [
        f"{call.__name__}: {hole}" for call in (until_either, while_condition) for hole in report(*function(call)).holes
    ]
    version = sys.version_info[:2]
    if version in ((3, 12), (3, 13)):
        assert len(holes) == 1
        assert holes[0].startswith("while_condition: JUMP_BACKWARD at ")
    elif version == (3, 14):
        assert len(holes) == 1
        assert holes[0].startswith("until_either: JUMP_BACKWARD at ")
    else:
        assert all("JUMP_BACKWARD" in hole for hole in holes)  # what a later one does is its own


def test_a_function_without_its_table_is_all_holes() -> None:
    """Without an exception table each place in the body of a `try` is reported, calls and jumps back alike."""
    code, node = function(while_condition)
    bare = report(code.replace(co_exceptiontable=b""), node)
    assert bare.looked_at == report(code, node).looked_at
    assert len(bare.holes) == len(bare.looked_at) >= 3
