"""The steps before which threads of a run stand, and the choices there."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ._locks import ExploredLock
from ._stacks import code_place
from ._walk import EVERYTHING, EXPIRE, GO, INTERRUPT, NOTHING, Choice


@dataclass(slots=True)
class Pending:
    """The step a thread stands before. `deadline` is None where it may wait for ever."""

    what: str
    lock: ExploredLock | None = None
    waits: bool = False
    deadline: float | None = None
    entering: bool = False  # by `with`: CPython delivers no exception between taking the lock and the block
    code: CodeType | None = None
    instruction: int = 0

    @property
    def blocked(self) -> bool:
        return self.waits and self.lock is not None and self.lock.held

    @property
    def interruptible(self) -> bool:
        # CPython delivers no exception between two lines as such; `interruptions` goes into that.
        return self.lock is not None and (self.blocked or not self.entering)

    @property
    def touches(self) -> int:
        if self.lock is not None:
            return self.lock.number
        return NOTHING if self.what == "start" else EVERYTHING

    def describe(self) -> str:
        what = f"{self.what} {self.lock!r}" if self.lock is not None else self.what
        return f"{what:<18} {code_place(self.code, self.instruction)}"


@dataclass(slots=True, eq=False)
class Spawned:
    """A thread of the scenario. After `Run.join` it has a `result`, or an `error` that was expected."""

    name: str
    function: Callable[[], Any]
    expected: tuple[type[BaseException], ...]
    interruption: type[BaseException] | None
    result: Any = None
    error: BaseException | None = None
    finished: bool = False
    verdict: str = GO
    pending: Pending = field(default_factory=lambda: Pending("start"))
    baton: _thread.LockType = field(default_factory=_thread.allocate_lock)
    thread: threading.Thread | None = None

    def choices(self) -> Iterator[Choice]:
        pending = self.pending
        if not pending.blocked:
            yield Choice(self.name, GO, pending.touches)
        elif pending.deadline is not None:
            yield Choice(self.name, EXPIRE, pending.touches)
        if self.interruption is not None and pending.interruptible:
            yield Choice(self.name, INTERRUPT, pending.touches)
