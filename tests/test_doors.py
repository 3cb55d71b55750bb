"""The names that each public room shows at its door."""

from __future__ import annotations

import pydoc
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import pytest

import multiqueue

DOORS = [
    "",
    ".amqp",
    ".amqp.wire",
    ".broker",
    ".client",
    ".core",
    ".errors",
    ".pipeline",
    ".spark",
    ".store",
    ".testing",
]
NEEDS = {
    ".amqp": "pamqp",
    ".amqp.wire": "pamqp",
    ".client": "pamqp",
    ".pipeline": "rich",
    ".spark": "pyspark",
}


@pytest.mark.parametrize("door", DOORS)
def test_a_star_import_brings_the_public_names_and_nothing_else(
    door: str, need_module: Callable[[str, str], None]
) -> None:
    """`from multiqueue... import *` brings each public name of the room, no module and no `annotations`."""
    if door in NEEDS:
        need_module(NEEDS[door], f"{NEEDS[door]} is not installed")
    module = import_module(f"multiqueue{door}")
    brought: dict[str, object] = {}
    exec(f"from multiqueue{door} import *", brought)
    del brought["__builtins__"]
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and name not in {"annotations", "TYPE_CHECKING", "Any"}
    }
    assert set(brought) == public, "the door's __all__ names what it imports"
    assert len(module.__all__) == len(set(module.__all__))


def test_help_lists_the_classes() -> None:
    """`help(multiqueue)` describes its classes, those too that stand in other modules."""
    text = pydoc.plain(pydoc.render_doc(multiqueue))
    for name in ("LinkedBlockingMultiQueue", "SubQueue", "Queue", "MultiQueueExecutor", "Lane", "Full"):
        assert f"class {name}(" in text


@pytest.mark.parametrize("room", ["multiqueue", "multiqueue.store", "multiqueue.broker", "multiqueue.testing"])
def test_a_room_is_imported_where_there_is_no_fcntl(room: str) -> None:
    """On Windows a store on disk says that it needs locks of files; threads, and a broker in memory, go without."""
    code = f"import sys; sys.modules['fcntl'] = None; sys.modules['termios'] = None; import {room}"
    subprocess.run([sys.executable, "-c", code], check=True)
