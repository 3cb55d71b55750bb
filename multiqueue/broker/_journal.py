"""What a virtual host hands to its store, and what follows when it is there.

Promise     What a `Submission` holds is stored whole or not at all. Its messages reach their queues after the commit
            and never before, on the store's thread, in the order of the submissions; when it is refused, the room that
            was kept for them is given back and nothing of it was ever seen.
State       Of a submission nothing is shared until `submit`, and nothing is changed after it. `_lock`, a leaf, guards
            what a full store still owes.
Who runs    Callbacks run on the store's thread, which must never wait for itself: `may_wait` says so, and whatever
            would wait there for a commit does not.
Failure     `StoreFull` refuses one submission. What nobody could try again, a dead letter or an expiry, is kept and
            handed in again by `housekeeping`. `StoreFailed` is remembered: the virtual host refuses everything then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from multiqueue.store import Commit, Delete, MessageStore, Operation, Put, StoreClosed, StoreFailed, StoreFull

from ._message_codec import encode_message

if TYPE_CHECKING:
    from ._entry import Entry
    from ._message import Message
    from ._queue_base import QueueBase
    from ._queue_outcome import DeadLetterReason, PutOutcome
    from ._stored_entry import StoredEntry

    DeadLetterSubmission = Callable[[QueueBase, Message, DeadLetterReason, "Submission"], object]

_NO_QUEUE: Final = 0  # rows there only take their turn

_log = logging.getLogger("multiqueue.broker")


class _Here(threading.local):
    """Whether this thread is a store's, running what follows a commit."""

    follows_commit = 0


_here = _Here()


class Admitting(Protocol):
    """A durable queue, as a submission needs it: see `_queue_arrival`."""

    @property
    def store_number(self) -> int: ...

    def admit(
        self, message: Message, *, immediate: bool = False, unlimited: bool = False
    ) -> tuple[PutOutcome, StoredEntry | None]: ...

    def hand_over(self, entry: StoredEntry, put: Put) -> None: ...

    def join_in_turn(self, entry: StoredEntry, turn: Put) -> None: ...

    def withdraw(self, entry: StoredEntry) -> None: ...


_Q = TypeVar("_Q", bound=Admitting)


class Journal:
    """A virtual host's side of its store. Any thread may call any method."""

    def __init__(
        self,
        store: MessageStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.clock = clock
        self.wall_clock = wall_clock
        self.on_failed: Callable[[], object] = lambda: None  # called once, on the thread that notices
        self.failure: StoreFailed | None = None  # set once
        self._is_closed = False
        self._lock = threading.Lock()
        self._owed: list[Submission] = []  # in the order in which they were refused

    @property
    def may_wait(self) -> bool:
        """False on the store's thread: the commit that it would wait for is its own to make."""
        return not _here.follows_commit

    @property
    def is_at_end(self) -> bool:
        """True when the store failed or was closed."""
        return self._is_closed or self.failure is not None

    def check(self) -> None:
        """Return if the store has not failed.

        Raises:
            StoreFailed: it has.
        """
        if self.failure is not None:
            raise StoreFailed(*self.failure.args) from self.failure

    def submit(
        self,
        operations: Sequence[Operation],
        committed: Callable[[], object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
    ) -> Commit:
        """As `MessageStore.submit`, with callbacks that know where they run."""

        def told(error: BaseException) -> None:
            self.note(error)
            if failed is not None:
                follow(partial(failed, error))

        return self.hand_in(operations, None if committed is None else partial(follow, committed), told)

    def hand_in(
        self,
        operations: Sequence[Operation],
        committed: Callable[[], object] | None,
        failed: Callable[[BaseException], object],
    ) -> Commit:
        """`submit` for callbacks that say themselves where they run, and `note` what failed."""
        try:
            return self.store.submit(operations, committed, failed)
        except StoreFailed as failure:
            self.note(failure)
            raise

    def delete(self, numbers: Sequence[int]) -> None:
        """Have messages deleted by one of the next commits; does not wait.

        A store that has failed or was closed keeps them: they are delivered again when it is opened, flagged.
        """
        try:
            self.hand_in([Delete(numbers)], None, self.note)
        except (StoreFailed, StoreClosed):
            pass

    def wait_for_commits(self, timeout: float | None = None) -> bool:
        """Block until everything that was handed in before is committed; False when `timeout` seconds passed first.

        Raises:
            StoreFailed, StoreClosed: the store came to its end first.
            RuntimeError: this is the store's own thread.
        """
        if not self.may_wait:
            raise RuntimeError(
                "a callback that follows a commit runs on the store's thread, and cannot wait for commits"
            )
        return self.submit(()).wait(timeout)

    def wall_time(self, when: float) -> float:
        """A moment of the queues' clock in seconds since 1970."""
        return self.wall_clock() + (when - self.clock())

    def queue_time(self, when: float) -> float:
        """A moment in seconds since 1970 on the queues' clock."""
        return self.clock() + (when - self.wall_clock())

    def owe(self, submission: Submission) -> None:
        """Keep what a full store refused, for another try."""
        with self._lock:
            self._owed.append(submission)

    def housekeeping(self) -> None:
        """Hand in again what a full store refused."""
        if not self._owed:
            return
        with self._lock:
            owed, self._owed = self._owed, []
        for submission in owed:
            submission.submit_again()

    is_deleted = False  # for `Housekeeping`, which forgets it with its thread

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
    _here.follows_commit += 1
    try:
        _guarded(action)
    finally:
        _here.follows_commit -= 1


def _guarded(action: Callable[[], object]) -> None:
    """Nothing may escape: others wait for their turn."""
    try:
        action()
    except Exception as error:  # noqa: BLE001  # the next action must run as well
        _log.error("what follows a commit failed", exc_info=error)


class QueueJournal:
    """One durable queue's side of the journal. `number` is the queue's in the store."""

    __slots__ = ("dead_letter", "host", "number")

    def __init__(self, host: Journal, number: int, dead_letter: DeadLetterSubmission) -> None:
        self.host = host
        self.number = number
        # Adds what becomes of a dead letter to the submission that deletes it.
        self.dead_letter = dead_letter

    @property
    def store(self) -> MessageStore:
        return self.host.store

    def delete(self, numbers: Sequence[int]) -> None:
        """As `Journal.delete`."""
        self.host.delete(numbers)


class Submission:
    """Messages to store and to delete, all or none, and what follows. One thread fills it and submits it once.

    `is_owed` submissions are tried again when the store is full: nobody else could.
    """

    __slots__ = ("_is_owed", "_journal", "_message", "_otherwise", "_stored_form", "_then", "operations")

    def __init__(self, journal: Journal, *, is_owed: bool = False) -> None:
        self.operations: list[Operation] = []
        self._journal = journal
        self._is_owed = is_owed
        self._then: list[Callable[[], object]] = []
        self._otherwise: list[Callable[[], object]] = []
        # The message that was prepared last: it goes to all its queues in one form.
        self._message: Message | None = None
        self._stored_form = (b"", b"")

    def put(
        self,
        queue: Admitting,
        message: Message,
        *,
        immediate: bool = False,
        like: Entry | None = None,
    ) -> PutOutcome:
        """Put a message on a durable queue when this is committed; what the queue says to it is decided now.

        A transient message is not stored, but joins in its turn among those that are.

        With `like` it takes the place of that entry, with its deliveries and times, whatever the limits say.

        Raises:
            TypeError: the body or a header is nothing that a store can keep. Nothing was changed.
        """
        properties, body = self._prepare(message, like) if message.persistent else (b"", b"")
        outcome, entry = queue.admit(message, immediate=immediate, unlimited=like is not None)
        if entry is None:
            return outcome
        if like is not None:
            entry.take_after(like)
        if not message.persistent:
            self.take_turn(queue, entry, otherwise=lambda _: queue.withdraw(entry))
            return outcome
        put = Put(
            queue.store_number,
            properties,
            body,
            level=entry.level,
            expires_at=None if entry.expires_at is None else self._journal.wall_time(entry.expires_at),
            deliveries=entry.delivery_count,
        )
        self.operations.append(put)
        self._then.append(partial(queue.hand_over, entry, put))
        self._otherwise.append(partial(queue.withdraw, entry))
        return outcome

    def take_turn(self, queue: Admitting, entry: StoredEntry, otherwise: Callable[[Put], object]) -> None:
        """Let an entry that is not stored join among those that are: an empty row gives it its number and its turn."""
        turn = Put(_NO_QUEUE, b"", b"", transient=True)
        self.operations.append(turn)
        self.then(partial(queue.join_in_turn, entry, turn), partial(otherwise, turn))

    @property
    def may_wait(self) -> bool:
        """As `Journal.may_wait`."""
        return self._journal.may_wait

    def put_on(self, queues: Sequence[_Q], message: Message, *, immediate: bool = False) -> list[tuple[_Q, PutOutcome]]:
        """`put` on each of the queues, or on none when that raises."""
        try:
            return [(queue, self.put(queue, message, immediate=immediate)) for queue in queues]
        except BaseException:
            self.withdraw()
            raise

    def delete(self, number: int) -> None:
        """Delete a message when this is committed."""
        self.operations.append(Delete((number,)))

    def then(self, action: Callable[[], object], otherwise: Callable[[], object] | None = None) -> None:
        """What else follows the commit, in its turn among the messages; and what a refusal."""
        self._then.append(action)
        if otherwise is not None:
            self._otherwise.append(otherwise)

    def submit(self) -> Commit | None:
        """Hand it in; None when nothing is to be stored, and what follows is done. Blocks as `MessageStore.submit`.

        Raises:
            StoreFailed, StoreClosed: nothing was accepted, and what was kept for it is given back.
        """
        if not self.operations:
            self._go_on()
            return None
        try:
            return self._journal.hand_in(self.operations, self._committed, self._failed)
        except BaseException:
            self.withdraw()
            raise

    def submit_if_open(self) -> None:
        """As `submit`; a store at its end keeps what this would have deleted, and that is no error."""
        try:
            self.submit()
        except (StoreFailed, StoreClosed):
            pass

    def submit_again(self) -> None:
        """After a refusal for want of room."""
        for operation in self.operations:
            if isinstance(operation, Put):
                operation.id = 0
        self.submit_if_open()

    def withdraw(self) -> None:
        """Give back what was kept for it; it will not be submitted."""
        for action in self._otherwise:
            _guarded(action)

    def _go_on(self) -> None:
        for action in self._then:
            _guarded(action)

    def _committed(self) -> None:
        follow(self._go_on)

    def _failed(self, error: BaseException) -> None:
        self._journal.note(error)
        if self._is_owed and isinstance(error, StoreFull):
            self._journal.owe(self)
        else:
            follow(self.withdraw)

    def _prepare(self, message: Message, like: Entry | None) -> tuple[bytes, bytes]:
        if like is not None:
            held_until = None if like.held_until is None else self._journal.wall_time(like.held_until)
            return encode_message(message, held_until, in_doubt=like.maybe_delivered), _body_of(message)
        if message is not self._message:
            held_until = self._journal.wall_clock() + message.delay if message.delay else None
            self._stored_form = (encode_message(message, held_until), _body_of(message))
            self._message = message
        return self._stored_form


def _body_of(message: Message) -> bytes:
    body = message.body
    if type(body) is bytes:
        return body
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise TypeError(
        f"the body of a persistent message for routing key {message.routing_key!r} is a {type(body).__name__};"
        " a durable queue keeps bytes: encode it, or publish it with persistent=False"
    )
