"""Handing in to a store, with the memory manager told of what is on its way.

Promise     What waits for its commit is charged to the budget; a thread that hands in more than has room waits, unless
            it is one that must not take long. Paging learns which messages the store no longer shows.
Who runs    What follows a commit or a refusal runs on the store's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from multiqueue.store import Delete, Put

from .._base.message import MESSAGE_BYTES
from .._base.waits import may_take_long

if TYPE_CHECKING:
    from multiqueue.store import Commit, MessageStore, Operation, StoreError

    from .._paging.memory import MemoryManager


@dataclass(slots=True, eq=False)
class _Change:
    """What a submission does to memory. One small object: thousands of them wait for one commit."""

    memory: MemoryManager
    writing: int  # bytes
    gone: list[int] | None = None  # numbers of messages
    committed: Callable[[], object] | None = None
    failed: Callable[[BaseException], object] | None = None

    def written(self) -> None:
        self.end_writing()
        if self.gone is not None:
            self.memory.deleted(self.gone)
        if self.committed is not None:
            self.committed()

    def refused(self, error: BaseException) -> None:
        self.end_writing()
        if self.failed is not None:
            self.failed(error)

    def end_writing(self) -> None:
        writing, self.writing = self.writing, 0  # once, should a submission be interrupted and accepted all the same
        if writing:
            self.memory.end_writing(writing)


class Accounting:
    """The way into one store."""

    def __init__(self, store: MessageStore, memory: MemoryManager) -> None:
        self._store = store
        self._memory = memory

    def submit(
        self,
        operations: Sequence[Operation],
        committed: Callable[[], object] | None,
        failed: Callable[[BaseException], object] | None,
        *,
        lingers: bool,
    ) -> Commit:
        """As `MessageStore.submit`; waits also while too much of the budget waits for commits."""
        waits = may_take_long()
        writing = 0
        gone: list[int] | None = None
        for each in operations:
            # A Put that comes with its id is of a message that is in memory anyway, and charged there.
            if type(each) is Put and not each.id:
                writing += _cost(each)
            elif type(each) is Delete:
                gone = [*(gone or ()), *each.ids]
        if not writing and gone is None:
            return self._store.submit(operations, committed, failed, lingers=lingers, waits=waits)
        change = _Change(self._memory, writing, gone, committed, failed)
        if writing:
            self._memory.begin_writing(writing, may_wait=waits)
        try:
            return self._store.submit(operations, change.written, change.refused, lingers=lingers, waits=waits)
        except BaseException:
            change.end_writing()
            raise

    def submit_run(
        self, parts: Sequence[Sequence[Operation]], told: Callable[[Mapping[int, StoreError]], object]
    ) -> Commit:
        """As `MessageStore.submit_run`, for parts that delete nothing; waits as `submit`, once for all of them."""
        waits = may_take_long()
        writing = sum([_cost(each) for part in parts for each in part if type(each) is Put and not each.id])
        change = _Change(self._memory, writing)

        def tell(refused: Mapping[int, StoreError]) -> None:
            change.end_writing()
            told(refused)

        self._memory.begin_writing(writing, may_wait=waits)
        try:
            return self._store.submit_run(parts, tell, waits=waits)
        except BaseException:
            change.end_writing()
            raise


def _cost(put: Put) -> int:
    if not put.body and not put.properties:
        return 0  # only takes its turn
    return len(put.body) + 2 * len(put.properties) + MESSAGE_BYTES
