"""A submission: what is stored together, all or nothing, and what follows.

Promise     What it holds is stored whole or not at all. Its messages reach their queues after the commit and never
            before, in the order in which they were put into it; when it is refused, the room that was kept for them is
            given back and nothing of it was ever seen.
State       Nothing is shared until `submit`, and nothing is changed after it. No lock.
Memory      One object per message waits for the commit besides what is stored: a garbage collector looks at all of
            them, and there may be thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from multiqueue.store import Commit, Delete, DropQueue, Operation, Put, StoreClosed, StoreError, StoreFailed, StoreFull

from .._base.message import DeadLetterReason, Message, PutOutcome
from .._base.message_codec import encode_message
from .._queue.entry import Entry
from .._queue.life import Life
from .._queue.queue import BrokerQueue
from .journal import Journal, guarded

_NO_QUEUE: Final = 0  # rows there only take their turn
_NOTHING: Final = (b"", b"")

Outcomes = list[tuple[BrokerQueue, PutOutcome]]


@dataclass(slots=True, eq=False)
class _Arrival:
    """A message that joins its queue."""

    life: Life
    entry: Entry
    put: Put

    def go_on(self) -> None:
        self.life.join((self.entry,), (self.put,))

    def give_up(self) -> None:
        self.life.withdraw(self.entry)


@dataclass(slots=True, eq=False)
class _Step:
    """Any other pair of calls that follows."""

    go_on: Callable[[], object]
    give_up: Callable[[], object] = lambda: None


@dataclass(slots=True, eq=False, repr=False)
class Submission:
    """Messages to store and to delete, all or none, and what follows. One thread fills it and submits it once."""

    _journal: Journal
    is_owed: bool = False  # tried again when the store is full: no other part could
    operations: list[Operation] = field(default_factory=list)
    _steps: list[_Arrival | _Step] = field(default_factory=list)
    # The message that was prepared last: it goes to all its queues in one form.
    _message: Message | None = None
    _stored_form: tuple[bytes, bytes] = _NOTHING

    def put(
        self, queue: BrokerQueue, message: Message, *, immediate: bool = False, like: Entry | None = None
    ) -> PutOutcome:
        """Put a message on a durable queue when this is committed; what the queue says to it is decided now.

        A transient message is not stored, but joins in its turn among those that are. With `like` it takes the place of
        that entry, with its deliveries and times, also beyond the limits. Raises TypeError as `BrokerQueue.put`.
        """
        properties, body = self._prepare(message, like) if message.persistent else _NOTHING
        life = queue.life
        outcome, entry = life.admit(message, immediate=immediate, like=like)
        if entry is None:
            return outcome
        if not message.persistent:
            self.take_turn(partial(life.join_in_turn, entry), lambda _: life.withdraw(entry))
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
        self._steps.append(_Arrival(life, entry, put))
        return outcome

    def take_turn(self, join: Callable[[Put], object], otherwise: Callable[[Put], object]) -> None:
        """Let what is not stored join among what is: an empty row gives it its number and its turn."""
        turn = Put(_NO_QUEUE, b"", b"", transient=True)
        self.operations.append(turn)
        self.then(partial(join, turn), partial(otherwise, turn))

    def put_on(self, queues: Sequence[BrokerQueue], message: Message, *, immediate: bool = False) -> Outcomes:
        """`put` on each of the queues, or on none when that raises."""
        try:
            return [(queue, self.put(queue, message, immediate=immediate)) for queue in queues]
        except BaseException:
            self.withdraw()
            raise

    def delete(self, number: int) -> None:
        self.operations.append(Delete((number,)))

    def then(self, action: Callable[[], object], otherwise: Callable[[], object] | None = None) -> None:
        """Add a callback for the commit, in its turn among the messages, and one for a refusal."""
        self._steps.append(_Step(action) if otherwise is None else _Step(action, otherwise))

    def submit(self) -> Commit | None:
        """Hand it in; None when nothing is to be stored, and what follows is done. Blocks as `MessageStore.submit`.
        Raises so too; what was kept for it is given back then.
        """
        if not self.operations:
            self.go_on()
            return None
        self._message, self._stored_form = None, _NOTHING
        try:
            return self._journal.submit(self.operations, self.go_on, self.failed)
        except BaseException:
            self.withdraw()
            raise

    def submit_if_open(self) -> None:
        """As `submit`; a store at its end keeps what this would have deleted, and that is no error."""
        with suppress(StoreFailed, StoreClosed):
            self.submit()

    def submit_again(self) -> None:
        """After a refusal for want of room."""
        for operation in self.operations:
            if isinstance(operation, Put):
                operation.id = 0
        self.submit_if_open()

    def withdraw(self) -> None:
        """Give back what was kept for it; it will not be submitted."""
        for step in self._steps:
            guarded(step.give_up)

    def go_on(self) -> None:
        for step in self._steps:
            guarded(step.go_on)

    @property
    def parts(self) -> list[Sequence[Operation]]:
        """The parts that are stored whole or refused alone: all of it as one. For a run."""
        return [self.operations]

    def conclude(self, refused: Mapping[int, StoreError]) -> None:
        """The store has committed it, or refused its only part. For a run."""
        if refused:
            self.failed(refused[0])
        else:
            self.go_on()

    def failed(self, error: BaseException) -> None:
        if self.is_owed and isinstance(error, StoreFull):
            self._journal.owe(self.submit_again)
        else:
            self.withdraw()

    def _prepare(self, message: Message, like: Entry | None) -> tuple[bytes, bytes]:
        if like is not None:
            held_until = None if like.held_until is None else self._journal.wall_time(like.held_until)
            return encode_message(message, held_until, in_doubt=like.maybe_delivered), _body_of(message)
        if message is not self._message:
            held_until = self._journal.wall_clock() + message.delay if message.delay else None
            self._stored_form = (encode_message(message, held_until), _body_of(message))
            self._message = message
        return self._stored_form


class Arrivals:
    """Messages that come to one queue in a row, each stored whole or refused alone: a run has it like a `Submission`.

    Their bodies are bytes. Raises as `encode_message`.
    """

    __slots__ = ("_entries", "_life", "_puts")

    def __init__(self, queue: BrokerQueue, messages: Sequence[Message]) -> None:
        self._life = queue.life
        self._puts = [
            Put(queue.store_number, encode_message(message), message.body)  # type: ignore[arg-type] # they are bytes
            for message in messages
        ]
        self._entries: Sequence[Entry] = ()  # until they are admitted

    def admit(self, messages: Sequence[Message]) -> bool:
        """Have the queue keep room for the messages; False, and nothing was done: it decides about each."""
        self._entries = self._life.admit_all(messages) or ()
        return bool(self._entries)

    @property
    def parts(self) -> list[Sequence[Operation]]:
        """The parts that are stored whole or refused alone: each message."""
        return [(put,) for put in self._puts]

    def withdraw(self) -> None:
        for entry in self._entries:
            guarded(partial(self._life.withdraw, entry))

    def conclude(self, refused: Mapping[int, StoreError]) -> None:
        """The store has committed the parts, or refused those of these indexes."""
        if not refused:
            guarded(partial(self._life.join, self._entries, self._puts))
            return
        for index, (entry, put) in enumerate(zip(self._entries, self._puts, strict=True)):
            if index in refused:
                guarded(partial(self._life.withdraw, entry))
            else:
                guarded(partial(self._life.join, (entry,), (put,)))


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


DeadLetterSubmission = Callable[[Any, "Message", DeadLetterReason, Any], object]


class QueueJournal:
    """One durable queue's side of the journal: its `Rows`. `number` is the queue's in the store."""

    def __init__(self, host: Journal, number: int, dead_letter: DeadLetterSubmission) -> None:
        self.host = host
        self.store = host.store
        self.number = number
        self.batch = partial(Submission, host)
        self.delete = host.delete
        self.submit = host.submit
        self.drop_queue = partial(host.submit_if_open, [DropQueue(number)])
        # Adds what becomes of a dead letter to the submission that deletes it.
        self.dead_letter = dead_letter
