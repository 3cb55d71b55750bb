"""Messages of job threads and signal handlers to the runner: posted by any thread, read by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ...core import Queue
from ...errors import Empty
from .._base.items import FileSeen
from .._columns.known import Learned
from .._state.leaving import Leaving
from .._write.table import Written


@dataclass(frozen=True, slots=True)
class Started:
    """An item's thread has begun."""

    seq: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Committing:
    """An item's job is over, and its rows wait for a commit."""

    seq: int


@dataclass(frozen=True, slots=True)
class Numbered:
    """A commit is about to be made for these items: it gets its number, which is recorded before."""

    seqs: tuple[int, ...]
    recorded: Future[str]


@dataclass(frozen=True, slots=True)
class Ended:
    """An item's future is done: with a `Met`, an exception, or cancelled."""

    seq: int
    future: Future[Met]
    at_s: float


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Ctrl-C or SIGTERM. The first lets running items finish, the second cancels them."""

    cancel_at_s: float = math.inf
    """When the second is due if none comes, by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Left:
    """The outcome for files that were to be taken away."""

    outcomes: Sequence[tuple[Leaving, str]]


@dataclass(frozen=True, slots=True)
class Met:
    """The result of an item's job: the files as they were when it read them, and the records it did not read."""

    files: tuple[FileSeen, ...]
    corrupt: int = 0
    """Records that it has set aside."""
    written: Written | None = None
    """The commit that comes before the item is done."""


Message = Started | Committing | Numbered | Ended | Learned | Left | StopRequested


class Mailbox:
    """Messages in the order they were posted. `post` may be called in a signal handler: the queue allows it."""

    def __init__(self) -> None:
        self._queue: Queue[Message] = Queue()
        self.is_to_stop: bool = False
        """Whether a StopRequested was ever posted."""

    def post(self, message: Message) -> None:
        self.is_to_stop = self.is_to_stop or isinstance(message, StopRequested)
        self._queue.put(message)

    def take_all(self, timeout: float) -> list[Message]:
        """The messages that are there; waits up to `timeout` seconds for a first message."""
        messages: list[Message] = []
        try:
            messages.append(self._queue.get(timeout=timeout) if timeout > 0 else self._queue.get_nowait())
            while True:
                messages.append(self._queue.get_nowait())
        except Empty:
            return messages


def ended(post: Callable[[Message], None], seq: int, clock: Callable[[], float]) -> Callable[[Future[Any]], None]:
    """A done-callback that posts the end of item `seq`."""
    return lambda future: post(Ended(seq, future, clock()))
