"""The one thread that commits: it takes everything that was submitted meanwhile, and tells everybody at once.

Promise     Submissions are committed in the order in which they were made, each whole. While one batch is on its
            way to the disk the next one gathers; one of `_AHEAD_BYTES` is written meanwhile. What lingers stays for
            company, `LINGER` seconds at most: it goes with the next submission that does not, or as soon as somebody
            waits for it. The outcome of a submission is reported once: its `committed` or `failed`, then
            `Commit.wait`, then its done callbacks.
State       `_lock` guards every field of `GroupCommit` that changes, and every `Batch.submissions`, `Batch.is_done` and
            `Submission.callbacks`. A batch that the writer has taken is the writer's alone. Invariants: the pending
            counts are sums over `_batches` and the batches in the writer's hands; `_gathering` is the last of
            `_batches` or None; `_end` is set once, and from then on `_batches` is empty and `_closing` set.
Lock order  `_lock` is a leaf. Callbacks, the backend and every `WakeChain.open` run outside of it.
Waiting     The writer waits in `work` for a batch, the close, or the time of the backend's rest; `submit`, `release`,
            `close` and threads that begin to wait for a batch notify it. Submissions with a Put wait in `room` for
            bytes: the writer notifies when half of them are committed, and so do close and end. `Commit.wait` waits
            for its batch: the commit or the end opens its wake chain.
Membership  After a fork the child has no writer and may not touch the files: it is refused everything.
            From the close on (`_closing`) only callbacks may submit, or threads that go on submitting would keep the
            store from ever closing. At the end (`_end`) every pending submission gets the same error.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from os import getpid
from typing import Protocol

from .._locks import Condition, Lock
from ._batch import Batch, Run, Submission, size_of
from ._errors import StoreClosed, StoreError, StoreFailed
from ._protocol import Operation

BATCH_BYTES = 4 << 20  # a batch beyond this is closed: the next submission starts another one
LARGE_BATCH_BYTES = 8 << 20  # as long as it has few operations: a sync then costs less a byte
_FEW_OPERATIONS = 32
BATCH_OPERATIONS = 4000
_LARGE_OPERATION = 16 << 10  # bytes, on average
_AHEAD_BYTES = 256 << 10  # a batch of so many is written while the one before is synced; smaller ones rather grow
LINGER = 0.02  # seconds: a removal alone is not worth a sync, and a crash within them only redelivers
_IDS_BETWEEN_COMMITS = 1 << 18
_BATCHES_BEFORE_REST = 8  # under unbroken load the backend's own work still gets a turn
_committing: set[Batch] = set()  # in the hands of a writer of this process, or for which it was woken
_QUIET = 0.005  # seconds without a batch before that: those who were just told come back sooner


def give_way(seconds: float) -> None:
    """Return at once while nothing is committed, else when those who wait for a commit were told, or after `seconds`.

    For a thread that often lets go of the GIL, and each time for microseconds only, as one that serves sockets: it has
    it back before a writer is awake, which needs it twenty times for one commit. A commit of large bodies is no reason:
    it takes long, and most of that without the GIL.
    """
    for batch in tuple(_committing)[:1]:
        if batch.bytes < _LARGE_OPERATION * batch.operations:
            batch.done.wait(seconds)


class Backend(Protocol):
    """The part that keeps the messages. All three are called by the writer alone."""

    @property
    def is_safe(self) -> bool:
        """False: the last batch is not on the disk yet. It is after the next `commit`, `finish` or idle `rest`."""

    def commit(self, submissions: Sequence[Submission], next_id: int, has_more: Callable[[], bool]) -> None:
        """Commit them in order. Sets `error` on each one that is refused; raises when the store is at its end.
        Where `has_more` says so, it may return before they are safe."""

    def rest(self, next_id: int, *, is_idle: bool) -> float | None:
        """Do a little of the work that can wait, without waiting for the disk unless it is idle; in how many seconds
        there is more, or None."""

    def finish(self, next_id: int) -> None:
        """All is committed: note that the end was clean."""

    def let_go(self) -> None:
        """Close all open files, after `finish` or after a failure."""


class GroupCommit:
    """Gathers submissions into batches and has a thread commit them to a backend."""

    def __init__(self, backend: Backend, *, name: str, next_id: int, max_pending_bytes: int) -> None:
        if max_pending_bytes < 1:
            raise ValueError(f"max_pending_bytes must be at least 1, not {max_pending_bytes}")
        self._backend = backend
        self._name = name
        self._max_pending_bytes = max_pending_bytes
        self._pid = getpid()
        self._lock = Lock()
        self.work = Condition(self._lock)  # a batch, the close, a release; notified by those who bring it
        self.room = Condition(self._lock)  # pending bytes went down to half, or the end came
        self._batches: deque[Batch] = deque()
        self._gathering: Batch | None = None  # the last of them, if it takes more
        self._writer_waits = False
        self._taken: deque[Batch] = deque()  # in the writer's hands, and the writer's own; two at most
        self._next_id = next_id
        self._pending_bytes = 0
        self._pending_operations = 0
        self._waiting_for_room = 0
        self._held: int | None = None  # how many batches may still go; None: all
        self._closing = False  # nothing more is taken, but from callbacks
        self._end: StoreError | None = None
        self._close_error: StoreError | None = None
        self._writer = threading.Thread(target=self._run, name=f"store writer of {name}", daemon=True)
        self._writer.start()

    @property
    def next_id(self) -> int:
        return self._next_id

    def check_open(self) -> None:
        """Return if the store is open in this process.

        Raises:
            StoreFailed, StoreClosed: it is not.
        """
        if getpid() != self._pid:
            raise StoreClosed(
                f"{self._name} was opened by process {self._pid} and this is its child {getpid()}; "
                "open a store after the fork, in the one process that uses it"
            )
        if self._end is not None:
            raise type(self._end)(*self._end.args) from self._end

    def allocate(self) -> int:
        self.check_open()
        with self._lock:
            given = self._next_id
            self._next_id += 1
        if given % _IDS_BETWEEN_COMMITS == 0:
            self.submit(())  # so that the backend can write down how far they went
        return given

    def submit(
        self,
        operations: Sequence[Operation],
        committed: Callable[[], object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
        *,
        lingers: bool = False,
        waits: bool = True,
    ) -> Submission:
        return self._hand_in(Submission(tuple(operations), committed, failed), lingers=lingers, waits=waits)

    def submit_run(
        self,
        parts: Sequence[Sequence[Operation]],
        told: Callable[[Mapping[int, StoreError]], object],
        *,
        waits: bool = True,
    ) -> Submission:
        return self._hand_in(Run(parts, told), waits=waits)

    def pending(self) -> tuple[int, int]:
        """How many operations, and how many bytes, wait for their commit."""
        with self._lock:
            return self._pending_operations, self._pending_bytes

    def hold(self) -> None:
        """Commit nothing until `release`. Every submission from now on is a separate batch."""
        with self._lock:
            self._held = 0
            self._gathering = None

    def release(self, submissions: int | None = None) -> None:
        """Let so many submissions of those held be committed, or all and hold no longer."""
        with self._lock:
            self._held = None if submissions is None else (self._held or 0) + submissions
            self.work.notify()

    def close(self) -> None:
        """Commit all submissions, have the backend finish, end the thread.

        Raises:
            StoreFailed: the disk failed at the very end. Nothing that was committed is lost.
        """
        if getpid() != self._pid:
            return
        if threading.current_thread() is self._writer:
            raise StoreError(f"{self._name}: a callback cannot close the store, for the close waits for it")
        with self._lock:
            is_first = not self._closing
            self._closing = True
            self.work.notify()
            self.room.notify_all()
        self._writer.join()
        if is_first and self._close_error is not None:
            raise self._close_error

    # The submitters' side

    def _hand_in(self, submission: Submission, *, lingers: bool = False, waits: bool) -> Submission:
        size, grows = size_of(submission.operations)
        grows = grows and waits
        if self._end is not None or getpid() != self._pid:
            self.check_open()
        with self._lock:
            if self._closing or (grows and self._pending_bytes + size > self._max_pending_bytes):
                self._wait_for_room_locked(size, grows=grows)
            batch = self._gathering
            if batch is None or _is_full(batch):
                batch = self._new_batch_locked()
            is_first = not batch.submissions
            self._next_id = submission.join_locked(batch, self._next_id)
            batch.operations += len(submission.operations)
            batch.bytes += size
            self._pending_bytes += size
            self._pending_operations += len(submission.operations)
            batch.is_urgent = batch.is_urgent or not lingers
            if self._writer_waits and (batch.is_urgent or is_first):
                self.work.notify()
                if batch.is_urgent and self._held is None:
                    _committing.add(batch)  # before the writer is awake, which takes the interpreter to be
        return submission

    def _wait_for_room_locked(self, size: int, *, grows: bool) -> None:
        if threading.current_thread() is self._writer and self._end is None:
            return  # a callback that waited for a commit would wait for itself; and the close waits for it
        self._waiting_for_room += 1
        try:
            while True:
                is_full = self._pending_bytes and self._pending_bytes + size > self._max_pending_bytes
                waits = grows and is_full and not self._closing
                if not waits:
                    break
                self.room.wait()
        finally:
            self._waiting_for_room -= 1
        if self._end is not None:
            raise type(self._end)(*self._end.args) from self._end
        if self._closing:
            raise StoreClosed(f"{self._name} is being closed, and accepts nothing more")

    def _new_batch_locked(self) -> Batch:
        batch = Batch(self._lock, self.work, is_urgent=self._held is not None)
        self._batches.append(batch)
        self._gathering = batch if self._held is None else None
        return batch

    # The writer's side

    def _run(self) -> None:
        try:
            rest: float | None = 0.0
            since_rest = 0
            while True:
                batch = self._next_batch(0.0 if self._taken else rest)
                if batch is not None:
                    _committing.add(batch)
                    self._backend.commit(batch.submissions, self._next_id, self._has_more)
                    self._tell_taken()
                    since_rest += 1
                    rest = _QUIET
                elif self._closing:
                    break
                if batch is not None and since_rest < _BATCHES_BEFORE_REST:
                    continue
                since_rest = 0
                rest = self._backend.rest(self._next_id, is_idle=batch is None)
                self._tell_taken()
            self._backend.finish(self._next_id)
            self._tell_taken()
            self._conclude(StoreClosed(f"{self._name} was closed"))
        except BaseException as error:  # noqa: BLE001 - waiting threads must hear of any
            self._fail(error)
        finally:
            self._backend.let_go()

    def _next_batch(self, rest: float | None) -> Batch | None:
        """The oldest batch, or None after `rest` seconds without one, or None when all is done and closed."""
        deadline = math.inf if rest is None else time.monotonic() + rest
        with self._lock:
            while True:
                now, due = time.monotonic(), self._due_locked()
                if due <= now:
                    self._held = self._held - 1 if self._held else self._held
                    batch = self._batches.popleft()
                    if batch is self._gathering:
                        self._gathering = None
                    self._taken.append(batch)
                    return batch
                if self._closing or deadline <= now:
                    return None
                left = min(due, deadline) - now
                self._writer_waits = True
                self.work.wait(None if left == math.inf else left)
                self._writer_waits = False

    def _due_locked(self) -> float:
        """When the oldest batch is to be committed, on the monotonic clock; infinity while there is none to commit."""
        if not self._batches or (self._held == 0 and not self._closing):
            return math.inf
        oldest = self._batches[0]
        hurries = oldest.is_urgent or self._closing or len(self._batches) > 1
        return 0.0 if hurries else oldest.since + LINGER

    def _has_more(self) -> bool:
        """Whether the next batch is there, and large."""
        with self._lock:
            return self._due_locked() <= time.monotonic() and self._batches[0].bytes >= _AHEAD_BYTES

    def _tell_taken(self) -> None:
        while len(self._taken) > (0 if self._backend.is_safe else 1):
            batch = self._taken[0]
            for submission in batch.submissions:
                if submission.error is None:
                    if submission.committed is not None:
                        _call(submission.committed)
                elif submission.failed is not None:
                    _call(submission.failed, submission.error)
            self._taken.popleft()
            with self._lock:
                batch.is_done = True
                self._pending_bytes -= batch.bytes
                self._pending_operations -= batch.operations
                if self._waiting_for_room and 2 * self._pending_bytes <= self._max_pending_bytes:
                    self.room.notify_all()
            _tell(batch)

    def _fail(self, error: BaseException) -> None:
        end = error if isinstance(error, StoreFailed) else StoreFailed(f"{self._name} failed: {error!r}; open it again")
        if end is not error:
            end.__cause__ = error
        if self._closing:
            self._close_error = end
        self._conclude(end)

    def _conclude(self, end: StoreError) -> None:
        """Set the end, and tell everybody who is pending or waits for room."""
        with self._lock:
            self._end = end
            self._closing = True
            left = [*self._taken, *self._batches]
            self._batches.clear()
            self._gathering = None
            self.room.notify_all()
        for batch in left:
            for submission in batch.submissions:
                submission.error = end
                if submission.failed is not None:
                    _call(submission.failed, end)
        with self._lock:
            self._pending_bytes = self._pending_operations = 0
            for batch in left:
                batch.is_done = True
        for batch in left:
            _tell(batch)


def _is_full(batch: Batch) -> bool:
    most = BATCH_BYTES if batch.operations > _FEW_OPERATIONS else LARGE_BATCH_BYTES
    return batch.bytes >= most or batch.operations >= BATCH_OPERATIONS


def _tell(batch: Batch) -> None:
    batch.done.open()
    _committing.discard(batch)
    for submission in batch.submissions:
        callbacks, submission.callbacks = submission.callbacks, None  # one may know its commit: a cycle too
        for callback in callbacks or ():
            _call(callback, submission.error)
    batch.submissions.clear()  # they know their batch: a cycle, which would keep every message until it is collected


def _call(callback: Callable[..., object], *arguments: object) -> None:
    """Call it; what it raises goes where an exception that ends a thread goes, and the writer goes on."""
    try:
        callback(*arguments)
    except BaseException as error:  # noqa: BLE001 - threading.excepthook is told
        told = (type(error), error, error.__traceback__, threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(told))


if hasattr(os, "register_at_fork"):  # the child has none of the writers, and would give way to them for ever
    os.register_at_fork(after_in_child=_committing.clear)
