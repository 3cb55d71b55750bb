"""A store as the journal uses it, with the memory manager told of what is on its way.

Promise     What waits for its commit is charged to the budget; a thread that hands in more than has room waits.
            Paging learns which messages the store no longer shows.
State       None of its own. What follows a commit or a refusal runs on the store's thread, which never waits here: the
            commit that it would wait for is its own to make. Nor does an I/O thread, on which many depend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from multiqueue.store import Delete, Put

from .._base.message import MESSAGE_BYTES
from .._base.waits import may_take_long

if TYPE_CHECKING:
    from multiqueue.store import (
        Commit,
        Definition,
        Durability,
        Header,
        Level,
        MessageStore,
        Operation,
        Outline,
        StoreError,
        StoreStatistics,
    )

    from .._paging.memory import MemoryManager


class _Change:
    """What a submission does to memory. One small object: thousands of them wait for one commit."""

    __slots__ = ("_committed", "_failed", "_gone", "_memory", "_writing")

    def __init__(
        self,
        memory: MemoryManager,
        writing: int,
        gone: list[int] | None,
        committed: Callable[[], object] | None,
        failed: Callable[[BaseException], object] | None,
    ) -> None:
        self._memory = memory
        self._writing = writing  # bytes
        self._gone = gone  # numbers of messages
        self._committed = committed
        self._failed = failed

    def written(self) -> None:
        self.end_writing()
        if self._gone is not None:
            self._memory.deleted(self._gone)
        if self._committed is not None:
            self._committed()

    def refused(self, error: BaseException) -> None:
        self.end_writing()
        if self._failed is not None:
            self._failed(error)

    def end_writing(self) -> None:
        writing, self._writing = self._writing, 0  # once, should a submission be interrupted and accepted all the same
        if writing:
            self._memory.end_writing(writing)


class AccountedStore:
    """A `MessageStore` around another one."""

    def __init__(self, store: MessageStore, memory: MemoryManager) -> None:
        self.inner = store
        self._memory = memory

    def submit(
        self,
        operations: Sequence[Operation],
        committed: Callable[[], object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
        *,
        lingers: bool = False,
        waits: bool = True,
    ) -> Commit:
        """As `MessageStore.submit`; waits also while too much of the budget waits for commits.

        It does not wait on a thread that serves many: there the connection that publishes is held back.
        """
        waits = waits and may_take_long()
        writing = 0
        gone: list[int] | None = None
        for each in operations:
            # A Put that comes with its id is of a message that is in memory anyway, and charged there.
            if type(each) is Put and not each.id:
                writing += _cost(each)
            elif type(each) is Delete:
                gone = [*(gone or ()), *each.ids]
        if not writing and gone is None:
            return self.inner.submit(operations, committed, failed, lingers=lingers, waits=waits)
        change = _Change(self._memory, writing, gone, committed, failed)
        if writing:
            self._memory.begin_writing(writing, may_wait=waits)
        try:
            return self.inner.submit(operations, change.written, change.refused, lingers=lingers, waits=waits)
        except BaseException:
            change.end_writing()
            raise

    def submit_run(
        self,
        parts: Sequence[Sequence[Operation]],
        told: Callable[[Mapping[int, StoreError]], object],
        *,
        waits: bool = True,
    ) -> Commit:
        """As `MessageStore.submit_run`, for parts that delete nothing; waits as `submit`, once for all of them."""
        waits = waits and may_take_long()
        writing = sum([_cost(each) for part in parts for each in part if type(each) is Put and not each.id])
        change = _Change(self._memory, writing, None, None, None)

        def tell(refused: Mapping[int, StoreError]) -> None:
            change.end_writing()
            told(refused)

        self._memory.begin_writing(writing, may_wait=waits)
        try:
            return self.inner.submit_run(parts, tell, waits=waits)
        except BaseException:
            change.end_writing()
            raise

    # -- as the store has it

    @property
    def durability(self) -> Durability:
        return self.inner.durability

    @property
    def redeliver_floor(self) -> int:
        return self.inner.redeliver_floor

    def allocate(self) -> int:
        return self.inner.allocate()

    def page(self, queue: int, after: int, limit: int, *, level: int = 0) -> list[Header]:
        return self.inner.page(queue, after, limit, level=level)

    def outlines(self, queue: int, after: int, limit: int, now: float, *, level: int = 0) -> list[Outline]:
        return self.inner.outlines(queue, after, limit, now, level=level)

    def read(self, ids: Iterable[int]) -> dict[int, bytes]:
        return self.inner.read(ids)

    def expired(self, now: float, limit: int) -> list[tuple[int, int, int]]:
        return self.inner.expired(now, limit)

    def levels(self) -> list[Level]:
        return self.inner.levels()

    def definitions(self) -> list[Definition]:
        return self.inner.definitions()

    def statistics(self) -> StoreStatistics:
        return self.inner.statistics()

    def close(self) -> None:
        self.inner.close()


def _cost(put: Put) -> int:
    if not put.body and not put.properties:
        return 0  # only takes its turn
    return len(put.body) + 2 * len(put.properties) + MESSAGE_BYTES
