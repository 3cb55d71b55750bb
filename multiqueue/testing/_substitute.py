"""Put other locks and another clock in the place of the real ones, for the duration of a test.

Promise     inside the block every name of the given modules that stood for `threading.Lock`, `RLock` or
            `time.monotonic` stands for the substitute, and every lock of `locks` is a substitute too; afterwards all
            of them are as they were.
State       the modules' globals, changed by the one thread that runs the test.
Assumes     the modules look these names up when they make a lock or ask for the time. Other locks that were made
            before the block stay real.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from .. import _locks
from ._errors import TestToolError

# The module in which the core looks up its locks and its clock.
CORE = "multiqueue.core._sync"

_LOCKS: tuple[object, ...] = (_thread.allocate_lock, threading.Lock, _locks.Lock)
_RLOCKS: tuple[object, ...] = (_thread.RLock, threading.RLock, _locks.RLock)
_CLOCKS: tuple[object, ...] = (time.monotonic,)

Global = tuple[ModuleType, str]


def global_locks(within: Sequence[str]) -> list[Global]:
    """The locks that are globals of these modules and packages: each by its module and its name there."""
    return [
        (module, name)
        for module_name, module in sorted(sys.modules.items())
        if is_within(module_name, within)
        for name, value in vars(module).items()
        if isinstance(value, _thread.LockType | _thread.RLock | _locks.Guard)
    ]


def is_within(module_name: str, within: Collection[str]) -> bool:
    """True if the module is one of these modules, or in one of these packages."""
    return any(module_name == package or module_name.startswith(package + ".") for package in within)


@contextmanager
def substituted(
    modules: Sequence[ModuleType] | None,
    locks: Sequence[Global] = (),
    *,
    lock: Callable[[], object],
    rlock: Callable[[], object],
    monotonic: Callable[[], float],
) -> Iterator[None]:
    """Inside the block `modules` (the core's, if None) make these locks and read this clock, and `locks` are of these.

    Raises: TestToolError if a module holds nothing that could be replaced.
    """
    if modules is None:
        modules = [import_module(CORE)]
    undo: list[tuple[ModuleType, str, object]] = []
    for module in modules:
        found = _names(module, lock, rlock, monotonic)
        if not found:
            raise TestToolError(
                f"module {module.__name__!r} names no lock and no clock; pass the module whose globals hold "
                "`threading.Lock`, `threading.RLock` or `time.monotonic` (for code that says "
                "`threading.Lock()` that is `threading` itself)"
            )
        undo += [(module, name, vars(module)[name]) for name in found]
        vars(module).update(found)
    for module, name in locks:
        real = vars(module)[name]
        undo.append((module, name, real))
        setattr(module, name, rlock() if isinstance(real, _thread.RLock) else lock())
    try:
        yield
    finally:
        for module, name, value in undo:
            setattr(module, name, value)


def _names(
    module: ModuleType,
    lock: Callable[[], object],
    rlock: Callable[[], object],
    monotonic: Callable[[], float],
) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in vars(module).items():
        for originals, substitute in ((_LOCKS, lock), (_RLOCKS, rlock), (_CLOCKS, monotonic)):
            if any(value is original for original in originals):
                found[name] = substitute
    return found
