"""Work of one connection that may be long, done piece by piece on its I/O thread.

Work that is added is done to its end, in order, also when the connection ends meanwhile. The first piece is done by
`add`, if nothing is before it; the others when the I/O thread has looked at its sockets, one piece of one connection
each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

PIECE: Final = 512  # messages that are settled at once: 1 to 3 ms

Done = Callable[[Exception | None], object]
"""What follows a work: it is told what the work has raised."""


class Piecework:
    """The works of one connection. A work is an iterator, and a piece is a step of it."""

    def __init__(self, do_piece: Callable[[Callable[[], object]], object], flush: Callable[[], object]) -> None:
        self._do_piece = do_piece  # as the I/O thread's
        self._flush = flush  # ends a turn of the connection
        self._line: deque[tuple[Iterator[object], Done]] = deque()

    @property
    def is_under_way(self) -> bool:
        return bool(self._line)

    def add(self, work: Iterator[object], done: Done) -> None:
        """Do a work after those that are under way, then call `done`."""
        self._line.append((work, done))
        if len(self._line) == 1:
            self._go_on()

    def _go_on(self) -> None:
        while self._line:
            work, done = self._line[0]
            failure: Exception | None = None
            try:
                for _ in work:
                    self._do_piece(self._take_turn)
                    return
            except Exception as error:  # noqa: BLE001  # is told
                failure = error
            self._line.popleft()  # first: `done` may add another, which begins at once
            done(failure)

    def _take_turn(self) -> None:
        self._go_on()
        self._flush()
