"""The common front of stores: questions go to the reader, submissions to the one thread that commits.

Promise     A store that was closed, failed, or belongs to the process that this one was forked from, answers nothing.
State       A store sets the three fields when it is opened, and they stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, Self

from ._batch import Submission
from ._errors import StoreError
from ._group_commit import GroupCommit
from ._protocol import FOR_EVER, Definition, Header, Held, Level, Moment, Operation, Outline


class Reader(Protocol):
    """Answers from committed rows, for any thread."""

    def page(self, queue: int, after: int, limit: int, level: int, held_before_ms: int) -> list[Header]: ...

    def held(self, queue: int, after: Moment, limit: int) -> list[tuple[int, Header]]: ...

    def held_after(self, queue: int, moment_ms: int) -> list[Held]: ...

    def outlines(self, queue: int, after: int, limit: int, now: float, level: int) -> list[Outline]: ...

    def read(self, ids: Iterable[int]) -> dict[int, bytes]: ...

    def expired(self, now: float, limit: int) -> list[tuple[int, int, int]]: ...

    def next_expiry(self, now: float) -> float | None: ...

    def levels(self) -> list[Level]: ...

    def definitions(self) -> list[Definition]: ...


class StoreFront:
    """The part of a `MessageStore` that does not depend on where the messages are."""

    _commits: GroupCommit
    _reader: Reader
    _floor: int

    @property
    def redeliver_floor(self) -> int:
        return self._floor

    def allocate(self) -> int:
        return self._commits.allocate()

    def submit(
        self,
        operations: Sequence[Operation],
        committed: Callable[[], object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
        *,
        lingers: bool = False,
        waits: bool = True,
    ) -> Submission:
        return self._commits.submit(operations, committed, failed, lingers=lingers, waits=waits)

    def submit_run(
        self,
        parts: Sequence[Sequence[Operation]],
        told: Callable[[Mapping[int, StoreError]], object],
        *,
        waits: bool = True,
    ) -> Submission:
        return self._commits.submit_run(parts, told, waits=waits)

    def page(
        self, queue: int, after: int, limit: int, *, level: int = 0, held_before_ms: int = FOR_EVER
    ) -> list[Header]:
        return self._opened_reader().page(queue, after, limit, level, held_before_ms)

    def held(self, queue: int, after: Moment, limit: int) -> list[tuple[int, Header]]:
        return self._opened_reader().held(queue, after, limit)

    def held_after(self, queue: int, moment_ms: int) -> list[Held]:
        return self._opened_reader().held_after(queue, moment_ms)

    def outlines(self, queue: int, after: int, limit: int, now: float, *, level: int = 0) -> list[Outline]:
        return self._opened_reader().outlines(queue, after, limit, now, level)

    def read(self, ids: Iterable[int]) -> dict[int, bytes]:
        return self._opened_reader().read(ids)

    def expired(self, now: float, limit: int) -> list[tuple[int, int, int]]:
        return self._opened_reader().expired(now, limit)

    def next_expiry(self, now: float) -> float | None:
        return self._opened_reader().next_expiry(now)

    def levels(self) -> list[Level]:
        return self._opened_reader().levels()

    def definitions(self) -> list[Definition]:
        return self._opened_reader().definitions()

    def close(self) -> None:
        """Commit all submissions, record a clean end, and close. Closing twice does nothing.

        Raises:
            StoreFailed: the disk failed only now. All that was committed survives.
        """
        self._commits.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _opened_reader(self) -> Reader:
        self._commits.check_open()
        return self._reader
