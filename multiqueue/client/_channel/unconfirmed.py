"""Publisher confirms: which messages the server has not answered for yet.

Messages are numbered from 1 in the order they go out: the lock of the channel guards an `Unconfirmed`, and is held
while the message is handed to the link. A `Confirm` runs no callback on the thread that reads the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

Dispatch = Callable[[Callable[[Any], object], Any], None]


class Confirm(Future[None]):
    """The server's answer for one message: None when it has taken charge, `Nacked` when it could not.

    A `concurrent.futures.Future`, and awaitable. Callbacks run on the work pool. Messages on their way can not be
    taken back: `cancel` is always False.
    """

    def __init__(self, dispatch: Dispatch, answer_wanted: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._dispatch = dispatch
        self._answer_wanted = answer_wanted

    def cancel(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> None:
        if not self.done():
            with self._answer_wanted():
                return super().result(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            with self._answer_wanted():
                return super().exception(timeout)
        return super().exception(0)

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        """Have `fn(self)` called on a thread of the work pool when the answer is there."""
        super().add_done_callback(lambda confirm: self._dispatch(fn, confirm))

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        answered = asyncio.Event()
        super().add_done_callback(lambda confirm: _tell(loop, answered))
        yield from answered.wait().__await__()
        return super().result(0)


def _tell(loop: asyncio.AbstractEventLoop, answered: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(answered.set)
    except RuntimeError:
        pass  # the loop has ended, and who waited with it


class Publication(NamedTuple):
    """What was published, as it can be published again, and who waits for the answer."""

    exchange: str
    routing_key: str
    mandatory: bool
    properties: bytes
    body: bytes
    confirm: Confirm | None

    @property
    def label(self) -> str:
        return f"the message of {len(self.body)} bytes to {self.exchange!r} {self.routing_key!r}"


class Unconfirmed:
    """The unconfirmed messages of one channel, by number. The channel's lock guards it."""

    def __init__(self) -> None:
        self._next = 1
        self._open: dict[int, Publication] = {}  # in rising order of numbers
        self.has_nack = False  # since somebody last waited for all of them

    def __len__(self) -> int:
        return len(self._open)

    def add(self, message: Publication) -> int:
        number = self._next
        self._next += 1
        self._open[number] = message
        return number

    def settle(self, number: int, multiple: bool) -> list[Publication]:
        if not multiple:
            found = self._open.pop(number, None)
            return [] if found is None else [found]
        settled = []
        while self._open:
            first = next(iter(self._open))
            if first > number:
                break
            settled.append(self._open.pop(first))
        return settled

    def renew(self) -> list[Publication]:
        """Take out everything, in order, and count from 1 again: the connection is another one."""
        unconfirmed = list(self._open.values())
        self._open.clear()
        self._next = 1
        return unconfirmed

    def check_invariants(self) -> None:
        """Raise AssertionError when the numbers contradict themselves. For tests, with the channel's lock held."""
        numbers = list(self._open)
        assert numbers == sorted(numbers), numbers
        assert all(0 < number < self._next for number in numbers), (numbers, self._next)
