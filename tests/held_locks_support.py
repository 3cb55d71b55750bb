"""Code of the user's that looks, while it runs, at the locks of ours: those that its thread holds, and those that
another thread would have to wait for.

A room's test has one list of the places where such code runs, and one of those where we wait for it, and walks them.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from multiqueue import _locks
from multiqueue.testing import wait_until_blocked

_REAL = (_thread.allocate_lock, threading.Lock, threading.RLock, _thread.RLock, _locks.Lock, _locks.RLock)
_MAKERS = (_thread.allocate_lock, threading.Lock)
PATIENCE = 10.0  # seconds for a thread that uses what a lock guards


class WatchedLock:
    """A lock that knows which thread holds it. `of` has all that are held, by thread."""

    def __init__(self, of: HeldLocks, lock: object, made_by: str) -> None:
        self._of = of
        self._lock = lock
        self._owner = 0
        self.made_by = made_by

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = bool(self._lock.acquire(blocking, timeout))  # type: ignore[attr-defined]
        if taken:
            self._owner = threading.get_ident()
            self._of.by_thread[self._owner].append(self)
        return taken

    def release(self) -> None:
        self._of.by_thread[self._owner].remove(self)
        self._lock.release()  # type: ignore[attr-defined]

    def locked(self) -> bool:
        return bool(self._lock.locked())  # type: ignore[attr-defined]

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<lock of {self.made_by}>"


class HeldLocks:
    """The locks that modules of some rooms make while this watches."""

    def __init__(self) -> None:
        self.by_thread: defaultdict[int, list[WatchedLock]] = defaultdict(list)

    def here(self) -> list[WatchedLock]:
        """Those that the calling thread holds."""
        return list(self.by_thread[threading.get_ident()])


def modules_of(rooms: tuple[str, ...]) -> Iterator[ModuleType]:
    for name, module in sorted(sys.modules.items()):
        if name in rooms or name.startswith(tuple(f"{room}." for room in rooms)):
            yield module


@contextmanager
def watching(*rooms: str) -> Iterator[HeldLocks]:
    """Inside the block every lock that a module of these rooms makes is watched, and every lock among its globals."""
    held = HeldLocks()
    make_lock, make_rlock = threading.Lock, threading.RLock

    def maker(real: Callable[[], object]) -> Callable[[], object]:
        def make() -> object:
            made_by = sys._getframe(1).f_globals.get("__name__", "")
            return WatchedLock(held, real(), made_by) if made_by.startswith(rooms) else real()

        return make

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "Lock", maker(make_lock))
        patch.setattr(threading, "RLock", maker(make_rlock))
        for module in modules_of(rooms):
            for name, value in list(vars(module).items()):
                if any(value is each for each in _REAL):
                    patch.setattr(module, name, maker(value))
                elif isinstance(value, _thread.LockType | _thread.RLock | _locks.Guard):
                    patch.setattr(module, name, WatchedLock(held, value, module.__name__))
        yield held


class UserCode:
    """Code of the user's, to be called in any way. It has another thread `use` what our locks guard, and waits for
    that; what it finds wrong stands in `faults`."""

    def __init__(self, held: HeldLocks, use: Callable[[], object]) -> None:
        self._held = held
        self._use = use
        self._using: set[int] = set()
        self.calls = 0
        self.faults: list[str] = []
        code = self

        class Text(str):
            __slots__ = ()

            def __eq__(self, other: object) -> bool:
                code()
                return super().__eq__(other)

            def __hash__(self) -> int:
                code()
                return super().__hash__()

        self._text = Text

    def __call__(self, *args: object, **kwargs: object) -> bool:
        self.calls += 1
        if locks := self._held.here():
            self.faults.append(f"it runs under {locks}")
        if threading.get_ident() not in self._using:
            self.use_elsewhere()
        return True

    def then(self, use: Callable[[], object]) -> None:
        """Have another thread use something else from now on."""
        self._use = use

    def use_elsewhere(self) -> None:
        errors: list[BaseException] = []

        def run() -> None:
            self._using.add(threading.get_ident())
            try:
                self._use()
            except BaseException as error:  # noqa: BLE001  # told below
                errors.append(error)
            finally:
                self._using.discard(threading.get_ident())

        thread = threading.Thread(target=run, name="uses what the locks guard", daemon=True)
        thread.start()
        thread.join(PATIENCE)
        if thread.is_alive():
            self.faults.append("another thread has to wait for it")
        self.faults += [f"another thread cannot use it: {error!r}" for error in errors]

    def check(self) -> None:
        """It has run, and nothing was wrong."""
        assert self.calls, "it was never called"
        assert not self.faults, self.faults

    # -- objects whose own methods are the user's

    def value(self) -> object:
        """An object whose comparison, hash and text are user code."""
        code = self

        class Value:
            def __eq__(self, other: object) -> bool:
                return code()

            def __hash__(self) -> int:
                return int(code())

            def __str__(self) -> str:
                return f"value {code()}"

        return Value()

    def text(self, of: str) -> str:
        """A string whose comparison and hash are user code."""
        return self._text(of)

    def mortal(self) -> object:
        """An object whose end is user code."""
        code = self

        class Mortal:
            def __del__(self) -> None:
                code()

        return Mortal()


class Gate:
    """User code that stays until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, *args: object, **kwargs: object) -> bool:
        self.entered.set()
        assert self.open.wait(2 * PATIENCE)
        return True


def others_go_on(gate: Gate, wait: Callable[[], object], code: UserCode) -> None:
    """While one thread `wait`s for the code behind the gate, another one uses what our locks guard."""
    assert gate.entered.wait(PATIENCE)
    waiting = threading.Thread(target=wait, name="waits for the user's code", daemon=True)
    waiting.start()
    try:
        wait_until_blocked(waiting)
        code.use_elsewhere()
    finally:
        gate.open.set()
        waiting.join(PATIENCE)
    assert not code.faults, code.faults
    assert not waiting.is_alive()
