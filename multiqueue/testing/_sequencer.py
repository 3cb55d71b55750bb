"""Named points that threads pass in the order the test wrote down.

Promise     the block of a point runs after the blocks of all points before it and before all after it.
State       `_next`, the index of the point whose turn it is, and `_inside`, guarded by `_turn`.
Waiting     a thread waits on `_turn` for its point; a thread that leaves a point notifies all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ._errors import StillBlocked, TestToolError
from ._patience import PATIENCE


class Sequencer:
    """Lets threads through the points `names`, in this order.

        order = Sequencer("first put", "take", "second put")
        with order("take"):      # in one thread; the others pass their points likewise
            ...

    A point is passed once. A thread that waits longer than `timeout` real seconds raises `StillBlocked`,
    which names the point that no thread has passed.
    """

    def __init__(self, *names: str, timeout: float = PATIENCE) -> None:
        if len(set(names)) != len(names):
            raise TestToolError(f"the points need different names: {list(names)}")
        self._names = names
        self._timeout = timeout
        self._turn = threading.Condition()
        self._next = 0  # index of the point whose turn it is; only ever grows
        self._inside = False  # True while a thread is in that point's block

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Wait for the turn of `name`, run the block, give the turn to the next; also if the block raises.

        Raises: TestToolError for a name that is unknown or passed already; StillBlocked.
        """
        if name not in self._names:
            raise TestToolError(f"no point {name!r}; there are {list(self._names)}")
        index = self._names.index(name)
        self._enter(index)
        try:
            yield
        finally:
            with self._turn:
                self._next, self._inside = index + 1, False
                self._turn.notify_all()

    def passed(self) -> list[str]:
        """The points that are behind us."""
        with self._turn:
            return list(self._names[: self._next])

    def _enter(self, index: int) -> None:
        name = self._names[index]
        with self._turn:
            in_time = self._turn.wait_for(lambda: self._next >= index, self._timeout)
            if self._next > index or (in_time and self._inside):
                raise TestToolError(f"point {name!r} has been passed already; a point is for one thread, once")
            if not in_time:
                raise StillBlocked(
                    f"point {name!r} waited {self._timeout} s for point {self._names[self._next]!r}, "
                    "which no thread has passed"
                )
            self._inside = True
