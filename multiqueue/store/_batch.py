"""Submissions that are committed together: a batch.

State       The lock of the store's `GroupCommit` guards every field of a batch that gathers, and `is_done` and
            `callbacks` at any time. A batch that the writer has taken is the writer's alone, its submissions'
            `error` included.
Waiting     `Submission.wait` waits for its batch, whose wake chain the commit or the store's end opens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from .._locks import Condition, Lock
from ._errors import StoreError
from ._protocol import Delete, Operation, Put
from ._wake_chain import WakeChain

_OVERHEAD_BYTES = 200  # what an operation itself takes in memory, roughly


class Batch:
    """Submissions that are committed together, and the one gate at which their callers wait."""

    __slots__ = ("bytes", "done", "is_done", "is_urgent", "lock", "operations", "since", "submissions", "work")

    def __init__(self, lock: Lock, work: Condition, *, is_urgent: bool) -> None:
        self.lock: Lock = lock  # the store's
        self.work: Condition = work  # the writer's, over that lock
        self.is_urgent: bool = is_urgent  # something in it does not linger, or somebody waits for it
        self.since: float = time.monotonic()
        self.submissions: list[Submission] = []
        self.operations: int = 0
        self.bytes: int = 0
        self.done: WakeChain = WakeChain()
        self.is_done: bool = False

    def hurry_locked(self) -> None:
        """Somebody waits: let the writer not linger."""
        if not self.is_urgent:
            self.is_urgent = True
            self.work.notify()


class Submission:
    """The operations of one `submit`. It is the `Commit` that its caller has."""

    __slots__ = ("_batch", "callbacks", "committed", "error", "failed", "operations")

    _batch: Batch  # from `join_locked` on

    def __init__(
        self,
        operations: tuple[Operation, ...],
        committed: Callable[[], object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
    ) -> None:
        self.operations: tuple[Operation, ...] = operations
        self.committed: Callable[[], object] | None = committed
        self.failed: Callable[[BaseException], object] | None = failed
        self.error: StoreError | None = None
        self.callbacks: list[Callable[[BaseException | None], object]] | None = None

    def parts(self) -> Sequence[Submission]:
        """The units that are committed whole and refused alone: this, or the parts of a run. For a writer, once."""
        return (self,)

    def join_locked(self, batch: Batch, next_id: int) -> int:
        """Give its messages their ids and go with a batch; returns the id after them."""
        for operation in self.operations:
            if type(operation) is Put and operation.id == 0:
                operation.id = next_id
                next_id += 1
        self._batch = batch
        batch.submissions.append(self)
        return next_id

    @property
    def is_done(self) -> bool:
        return self._batch.is_done

    def wait(self, timeout: float | None = None) -> bool:
        if not self._batch.is_urgent:
            with self._batch.lock:
                self._batch.hurry_locked()
        if not self._batch.done.wait(timeout):
            return False
        if self.error is not None:
            raise type(self.error)(*self.error.args) from self.error  # each waiter has its own traceback
        return True

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        with self._batch.lock:
            if not self._batch.is_done:
                self.callbacks = [*(self.callbacks or ()), callback]
                self._batch.hurry_locked()
                return
        callback(self.error)


class Run(Submission):
    """The submissions of one `submit_run`, most of them committed as one; a writer may part them."""

    __slots__ = ("_given", "_parts", "_told")

    def __init__(
        self, given: Sequence[Sequence[Operation]], told: Callable[[Mapping[int, StoreError]], object]
    ) -> None:
        super().__init__(tuple(chain.from_iterable(given)), self._tell, self._tell)
        self._given = given
        self._told = told
        self._parts: list[Submission] = []

    def parts(self) -> Sequence[Submission]:
        self._parts = [Submission(tuple(part)) for part in self._given]
        return self._parts

    def _tell(self, end: BaseException | None = None) -> None:
        if self.error is not None:
            refused = dict.fromkeys(range(len(self._given)), self.error)
        else:
            refused = {index: part.error for index, part in enumerate(self._parts) if part.error is not None}
        told, self._told = self._told, _nobody
        # The callbacks may keep the commit, but not its messages; and this is no cycle any more.
        self.committed = self.failed = None
        self.operations, self._given, self._parts = (), (), []
        told(refused)


def size_of(operations: Sequence[Operation]) -> tuple[int, bool]:
    """The bytes that operations take until their commit, roughly; and whether a Put is among them.

    A body that the one before has too counts once.
    """
    size = _OVERHEAD_BYTES * len(operations)
    grows = False
    previous: bytes | None = None
    for operation in operations:
        if type(operation) is Put:
            grows = True
            size += len(operation.properties)
            if operation.body is not previous:
                size += len(operation.body)
                previous = operation.body
        elif type(operation) is Delete:
            size += 8 * len(operation.ids)
    return size, grows


def _nobody(refused: Mapping[int, StoreError]) -> None:
    pass
