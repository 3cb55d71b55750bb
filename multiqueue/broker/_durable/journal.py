"""A virtual host's side of its store: handing in, reports, waiting, and the remains of a failure.

Promise     What follows a commit runs on the store's thread, in the order in which things were handed in. A step of it
            that fails does not stop the next.
Memory      What waits for its commit is charged to the budget; a thread that hands in more than has room waits, unless
            it is one that must not take long. Paging learns which messages the store no longer shows.
State       `_lock`, a leaf, guards the submissions and deletions that a full store still owes, and that a failure is
            reported once. `_last_look` is when expired messages were looked for: two threads that look at once find the
            same, and the one that claims a message first drops it.
Time        What a queue that pages has in the store alone expires by the store's index of times. Housekeeping comes at
            the next of these times; it is asked for earlier ones when they are committed, and when a queue begins to
            page.
Failure     Promises 10 and 11 of docs/design/broker-durability.md: `owe`, `delete_again` and `housekeeping`, `note` and
            `check`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

from multiqueue.store import (
    Commit,
    Delete,
    MessageStore,
    Operation,
    Put,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreFull,
)

from ..._locks import Lock
from .._base.message import MESSAGE_BYTES
from .._base.ports import AT_ONCE, Kept
from .._base.waits import here, may_take_long
from .._paging.memory import MemoryManager

_log = logging.getLogger("multiqueue.broker")

_FIRST_LOOK: Final = 256  # expired messages; more while all of them are with consumers
_LAST_LOOK: Final = 65_536
_LEAST_GAP: Final = 0.05  # seconds: every queue of the virtual host asks, and one look is for all
_FURTHEST_MS: Final = 1 << 62  # 146 million years; a store has 63 bits, and who reads looks a little beyond a moment
_SLICE: Final = 64  # messages that are deleted together where there is little room: what that takes in the log is small
_MOST_AGAIN: Final = 16 * _SLICE  # that are tried again at once
_SLICES_ON_THE_WAY: Final = 4  # of 256 removals, to the store: some 10 ms that other commits wait
_GAP: Final = 0.005  # seconds between two looks at the times in the store: what expires in between goes in one


@dataclass(slots=True, eq=False)
class _Change:
    """The effect of a submission on memory. One small object: thousands of them wait for one commit."""

    journal: Journal
    committed: Callable[[], object] | None = None
    failed: Callable[[BaseException], object] | None = None
    writing: int = 0  # bytes
    gone: Sequence[int] | None = None  # numbers of messages
    expires_at: float | None = None  # the first of its messages; seconds since 1970

    def add(self, operations: Sequence[Operation]) -> None:
        body = None
        for each in operations:
            if type(each) is Put:
                # One that comes with its id is of a message that is in memory anyway, and charged there.
                if not each.id and (each.body or each.properties):  # else it only takes its turn
                    self.writing += 2 * len(each.properties) + MESSAGE_BYTES
                    if each.body is not body:  # a fanout's have one
                        body = each.body
                        self.writing += len(body)
                if each.expires_at is not None and (self.expires_at is None or each.expires_at < self.expires_at):
                    self.expires_at = each.expires_at
            elif type(each) is Delete:
                self.gone = [*(self.gone or ()), *each.ids]

    def written(self) -> None:
        if self.writing:
            self.end_writing()
        if self.expires_at is not None:
            self.journal.expires_at(self.expires_at)
        if self.gone is not None:
            self.journal.deleted(self.gone)
        if self.committed is not None:
            follow(self.committed)

    def refused(self, error: BaseException) -> None:
        self.end_writing()
        self.journal.note(error)
        if self.failed is not None:
            follow(partial(self.failed, error))

    def not_deleted(self, error: BaseException) -> None:
        self.journal.note(error)
        if isinstance(error, StoreFull):
            self.journal.delete_again(self.gone or (), error)

    def end_writing(self) -> None:
        writing, self.writing = self.writing, 0  # once, should a submission be interrupted and accepted all the same
        if writing:
            self.journal.memory.end_writing(writing)


@dataclass(eq=False)
class Journal:
    """A virtual host's side of its store. Any thread may call any method."""

    store: MessageStore  # to read from; what changes it is handed in here
    memory: MemoryManager
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    on_failed: Callable[[], object] = lambda: None  # called once, on the thread that notices
    failure: StoreFailed | None = None  # set once
    _is_closed: bool = False
    # What hands in again what a full store refused, in the order of the refusals.
    _owed: list[Callable[[], object]] = field(default_factory=list)
    _handing_in: bool = False  # just now
    _undeleted: dict[int, None] = field(default_factory=dict)  # numbers of messages that it would not even delete
    _no_room: StoreFull | None = None  # the last refusal of these
    _ask: Callable[[Kept, float], object] | None = None
    _last_look: float = -_LEAST_GAP

    def __post_init__(self) -> None:
        self._lock = Lock()

    @property
    def may_wait(self) -> bool:
        """False on the store's thread: the commit that it would wait for is its own to make."""
        return not here.follows_commit

    @property
    def is_at_end(self) -> bool:
        return self._is_closed or self.failure is not None

    def check(self) -> None:
        """Return if the store has not failed, else raise StoreFailed."""
        if self.failure is not None:
            raise StoreFailed(*self.failure.args) from self.failure

    def submit(
        self,
        operations: Sequence[Operation],
        committed: Callable[[], object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
        *,
        lingers: bool = False,
    ) -> Commit:
        """As `MessageStore.submit`, with callbacks that know where they run."""
        change = _Change(self, committed, failed)
        change.add(operations)
        submit = partial(self.store.submit, operations, change.written, change.refused, lingers=lingers)
        return self._charged(change, submit)

    def submit_run(
        self,
        parts: Sequence[Sequence[Operation]],
        told: Callable[[Mapping[int, StoreError]], object],
        writing: int | None = None,
    ) -> Commit:
        """As `MessageStore.submit_run`, of parts that delete nothing; `told` knows where it runs. They charge so many
        bytes and none expires, if `writing` says so."""
        change = _Change(self, writing=writing or 0)
        for part in parts if writing is None else ():
            change.add(part)

        def tell(refused: Mapping[int, StoreError]) -> None:
            change.written()
            for error in refused.values():
                self.note(error)
            follow(partial(told, refused))

        return self._charged(change, partial(self.store.submit_run, parts, tell))

    def _charged(self, change: _Change, submit: Callable[..., Commit]) -> Commit:
        """Hand in what a change charges; waits also while too much of the budget waits for commits."""
        waits = may_take_long()
        if change.writing:
            self.memory.begin_writing(change.writing, may_wait=waits)
        try:
            return submit(waits=waits)
        except BaseException as error:
            change.end_writing()
            self.note(error)
            raise

    def delete(self, numbers: Sequence[int]) -> Commit | None:
        """Have messages deleted by one of the next commits, which is returned; does not wait.

        A store at its end keeps them: they are delivered again when it is opened, flagged. One that has no room even
        for that is asked again.
        """
        change = _Change(self, gone=numbers)
        try:
            return self.store.submit([Delete(numbers)], change.written, change.not_deleted, lingers=True, waits=False)
        except (StoreFailed, StoreClosed) as error:
            self.note(error)
            return None

    def deleted(self, numbers: Sequence[int]) -> None:
        """A commit has deleted these messages."""
        self.memory.deleted(numbers)
        if self._undeleted:
            with self._lock:
                for number in numbers:
                    self._undeleted.pop(number, None)

    def delete_again(self, numbers: Sequence[int], error: StoreFull) -> None:
        """Have housekeeping delete these, which the store would not."""
        with self._lock:
            self._undeleted.update(dict.fromkeys(numbers))
            self._no_room = error
        self._ask_soon()

    def submit_if_open(
        self, operations: Sequence[Operation], failed: Callable[[BaseException], object] | None = None
    ) -> Commit | None:
        """As `submit`; a store at its end changes nothing any more, and that is no error."""
        try:
            return self.submit(operations, failed=failed)
        except (StoreFailed, StoreClosed):
            return None

    def wait_for_commits(self, timeout: float | None = None) -> bool:
        """As `Verbs.wait_for_commits`."""
        if not self.may_wait:
            raise RuntimeError(
                "a callback that follows a commit runs on the store's thread, and cannot wait for commits"
            )
        is_done = self.submit(()).wait(timeout)
        error = self._no_room
        if error is not None and (self._owed or self._handing_in or self._undeleted):
            raise StoreFull(f"what was settled or deleted could not be stored, and is tried again: {error}") from error
        return is_done

    def paced(self, stop: Callable[[], bool] = lambda: False) -> Callable[[], bool]:
        """`stop`, to be called between slices of removals: what other publishers' commits wait for is bounded."""
        slices = 0

        def look() -> bool:
            nonlocal slices
            slices += 1
            if slices % _SLICES_ON_THE_WAY == 0 and may_take_long():
                with suppress(StoreFailed, StoreClosed):  # whoever waits for the removals gets that error
                    self.submit(()).wait()
            return stop()

        return look

    def wall_time(self, when: float) -> float:
        """A moment of the queues' clock in seconds since 1970."""
        return self.wall_clock() + (when - self.clock())

    def wall_ms(self, when: float) -> int:
        """As `wall_time`, in milliseconds, not before it; what is further away than a store can note is cut."""
        return math.ceil(min(self.wall_time(when) * 1000, _FURTHEST_MS))

    def queue_time(self, when: float) -> float:
        """A moment in seconds since 1970 on the queues' clock."""
        return self.clock() + (when - self.wall_clock())

    def owe(self, submit_again: Callable[[], object], error: StoreFull) -> None:
        """Have what a full store refused tried again."""
        with self._lock:
            self._owed.append(submit_again)
            self._no_room = error
        self._ask_soon()

    def _ask_soon(self) -> None:
        ask = self._ask
        if ask is not None:
            ask(self, AT_ONCE)

    def attend(self, ask: Callable[[Kept, float], object] | None) -> None:
        """For `Housekeeping`: from now on, `ask(journal, when)` has `housekeeping` called."""
        self._ask = ask

    def housekeeping(self) -> float | None:
        """Hand in again what a full store refused, and drop expired rows; returns when the next message expires there.
        What is refused once more waits for the next time.
        """
        self.hand_in_again(_MOST_AGAIN)
        if self.is_at_end or not self.memory.is_paging:
            return None  # all that can be had is in memory: queues have its times
        now = self.wall_clock()
        try:
            self._drop_expired(now)
            following = self.store.next_expiry(now)
        except StoreError:
            return None  # somebody has been told
        return None if following is None else max(self.queue_time(following), self.clock() + _GAP)

    def hand_in_again(self, most: int | None = None) -> None:
        """Hand in the submissions that a full store refused, and some of the deletions."""
        with self._lock:
            owed, self._owed = self._owed, []
            undeleted = list(islice(self._undeleted, most))
            self._handing_in = bool(owed)
        try:
            for submit_again in owed:
                submit_again()
        finally:
            self._handing_in = False
        for begin in range(0, len(undeleted), _SLICE):
            self.delete(undeleted[begin : begin + _SLICE])
        if undeleted:
            self._ask_soon()

    def begin_paging(self) -> None:
        """From now on messages are in the store alone, with their times. Any lock of a queue may be held."""
        if self._ask is not None:
            self._ask(self, self.clock())

    def expires_at(self, when: float) -> None:
        """Note when a stored message expires, in seconds since 1970."""
        if self._ask is not None and self.memory.is_paging:
            self._ask(self, self.queue_time(when))

    def drop_expired(self) -> None:
        """Drop the expired rows of every paged queue; nothing when that was asked for just now."""
        now = self.clock()
        if now - self._last_look >= _LEAST_GAP:
            self._last_look = now
            with suppress(StoreError):  # somebody has been told
                self._drop_expired(self.wall_clock())

    def _drop_expired(self, now: float) -> None:
        limit = _FIRST_LOOK
        while limit <= _LAST_LOOK and not self.is_at_end:
            due = self.store.expired(now, limit)
            dropped = self.memory.expire(due)
            if len(due) < limit:
                break
            if not dropped:
                limit *= 4  # consumers have all of these

    def note(self, error: BaseException) -> None:
        """Remember the end of the store, and have it told once."""
        if isinstance(error, StoreClosed):
            self._is_closed = True
        if not isinstance(error, StoreFailed):
            return
        with self._lock:
            is_first = self.failure is None
            self.failure = self.failure or error
        if is_first:
            _log.error("the store failed; close its virtual host and open it again", exc_info=error)
            follow(self.on_failed)


def follow(action: Callable[[], object]) -> None:
    """Run what follows a commit, as the store's thread does: nothing in it may wait for another one."""
    here.follows_commit += 1
    try:
        guarded(action)
    finally:
        here.follows_commit -= 1


def guarded(action: Callable[[], object]) -> None:
    """Nothing may escape: others wait for their turn."""
    try:
        action()
    except BaseException as error:  # noqa: BLE001  # the next action must run as well
        _log.error("a callback of a commit failed", exc_info=error)
