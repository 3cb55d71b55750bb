"""A submission: messages and changes handed to the store together, in parts that are stored whole or not at all; and
what follows.

Promise     The messages of a part reach their queues after its commit and never before, each queue in the order in
            which they were put; when it is refused, the room that was kept for them is given back and nothing of it was
            ever seen. Most have one part; a publisher that does not wait puts each message into a separate part.
State       Nothing is shared until it is handed in, and nothing is changed after that. No lock.
Memory      One object per message waits for the commit beside its row: a garbage collector looks at all of
            them, and there may be thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from multiqueue.store import (
    Commit,
    Delete,
    DropQueue,
    MessageStore,
    Operation,
    Put,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreFull,
)

from ..._copies import Copier
from .._base.message import MESSAGE_BYTES, DeadLetterReason, Message, PutOutcome
from .._base.message_codec import encode_message
from .._queue.entry import Entry
from .._queue.life import Life
from .._queue.queue import BrokerQueue
from .journal import Journal, guarded

_NO_QUEUE: Final = 0  # rows there only take their turn

Outcomes = list[tuple[BrokerQueue, PutOutcome]]
Tell = Callable[[list[tuple[object, bool]]], object]
"""A callback that takes the tags of messages, each with whether a store has refused it."""
# What follows a part, by its index: an entry joins its queue with its `Put`, or is withdrawn; or one of two calls. Or
# what follows parts one behind the other, by the first one's: lists of entries and of their `Put`s.
_Step = tuple[int, Life | None, Any, Any]
_puts: Final[Copier[Put]] = Copier(Put, ("properties", "body"))


class Submission:
    """Messages to store and to delete, and what follows. One thread fills it and hands it in once.

    `is_owed`: tried again when the store is full, for no other part could. `tell` gets the tags of parts.
    """

    __slots__ = (
        *("_commit", "_form", "_in_runs", "_is_owed", "_journal", "_message", "_parts", "_steps", "_tags", "_tell"),
        *("_writing", "length"),
    )

    def __init__(self, journal: Journal, *, is_owed: bool = False, tell: Tell | None = None) -> None:
        self._journal = journal
        self._is_owed = is_owed
        self._tell = tell
        self._parts: list[list[Operation]] = [[]]
        self._tags: list[object] = []  # of parts whose fate `tell` is to have; None for what no one wants to be told of
        self._steps: list[_Step] = []
        self.length: int = 0  # how many parts were ended
        self._in_runs = self._writing = 0  # how many of them came by `put_all`, and what they charge, in bytes
        self._commit: Commit | None = None  # once it is handed in as a run
        # The message that was prepared last: it goes to all its queues in one form.
        self._message: Message | None = None
        self._form = (b"", b"")

    # -- filling it

    def put(
        self, queue: BrokerQueue, message: Message, *, immediate: bool = False, like: Entry | None = None
    ) -> PutOutcome:
        """Put a message on a durable queue when this is committed; what the queue says to it is decided now.

        A transient message is not stored, but joins in its turn among those that are. With `like` it takes the place of
        that entry, with its deliveries and times, also beyond the limits. Raises TypeError as `BrokerQueue.put`.
        """
        if message.persistent and (like is not None or message is not self._message):
            self._prepare(message, like)
        life = queue.life
        outcome, entry = life.admit(message, immediate=immediate, like=like)
        if entry is None:
            return outcome
        if not message.persistent:
            self.take_turn(partial(life.join_in_turn, entry), lambda _: life.withdraw(entry))
            return outcome
        properties, body = self._form
        put = Put(
            queue.store_number,
            properties,
            body,
            level=entry.level,
            expires_at=None if entry.expires_at is None else self._journal.wall_time(entry.expires_at),
            deliveries=entry.delivery_count,
            held_until_ms=None if entry.held_until is None else self._journal.wall_ms(entry.held_until),
        )
        self._parts[-1].append(put)
        self._steps.append((self.length, life, entry, put))
        return outcome

    def put_on(self, queues: Sequence[BrokerQueue], message: Message, *, immediate: bool = False) -> Outcomes:
        """`put` on each of the queues that are durable, or on none when that raises."""
        outcomes: Outcomes = []
        stored = [queue for queue in queues if queue.is_stored]  # here: CPython 3.14 has an `if`'s jump outside the try
        try:
            for queue in stored:
                outcomes.append((queue, self.put(queue, message, immediate=immediate)))
        except BaseException:
            self.withdraw_part()
            raise
        return outcomes

    def put_all(
        self, queue: BrokerQueue, messages: Sequence[Message], tags: Sequence[object], *, alike: bool = False
    ) -> bool:
        """Put messages whose bodies are bytes on a queue, each in a separate part; False, and nothing was done: the
        queue decides about each. With `alike` they differ in their bodies alone. Raises as `encode_message`.
        """
        count = len(messages)
        forms = [encode_message(message) for message in messages[: 1 if alike else count]]
        entries = queue.life.admit_all(messages)
        if entries is None:
            return False
        bodies: list[Any] = [message.body for message in messages]
        puts = _puts.copies(Put(queue.store_number, b"", b""), forms * count if alike else forms, bodies)
        life, begin = queue.life, self.length
        for entry, put in zip(entries, puts, strict=True) if life.is_fair else ():
            put.level = entry.level  # its tenant's: where the queue looks for it when it pages
        assert not self._parts[begin], "the part before was not ended"
        self._steps.append((begin, life, entries, puts))
        self._in_runs += count
        self._writing += 2 * sum([len(put.properties) for put in puts]) + MESSAGE_BYTES * count + sum(map(len, bodies))
        parts: list[list[Operation]] = [[put] for put in puts]
        self._parts[begin:] = [*parts, []]
        self._tags += tags
        self.length += count
        return True

    def end_part(self, tag: object = None) -> None:
        """Later puts are stored, or refused, apart from those since the last part, if it has any."""
        if self._parts[-1]:
            self._parts.append([])
            self._tags.append(tag)
            self.length += 1

    def take_turn(self, join: Callable[[Put], object], otherwise: Callable[[Put], object]) -> None:
        """Let a transient message join among stored ones: an empty row gives it its number and its turn."""
        turn = Put(_NO_QUEUE, b"", b"", transient=True)
        self._parts[-1].append(turn)
        self.then(partial(join, turn), partial(otherwise, turn))

    def delete(self, number: int) -> None:
        self._parts[-1].append(Delete((number,)))

    def then(self, action: Callable[[], object], otherwise: Callable[[], object] = lambda: None) -> None:
        """Add a callback for the commit, in its turn among the messages, and one for a refusal."""
        self._steps.append((self.length, None, action, otherwise))

    # -- handing it in

    def submit(self) -> Commit | None:
        """Hand in its only part; None when nothing is to be stored, and what follows is done. Blocks as
        `MessageStore.submit`. Raises so too; its reservations are given back then.
        """
        if not self._parts[0]:
            self._follow({})
            return None
        self._forget_message()
        try:
            return self._journal.submit(self._parts[0], partial(self._follow, {}), self._failed)
        except BaseException:
            self.withdraw()
            raise

    def hand_in(self) -> None:
        """Hand in all parts that were ended, each to be committed or refused for itself. Raises as `submit`."""
        self._forget_message()
        try:
            writing = self._writing if self._in_runs == self.length else None
            self._commit = self._journal.submit_run(self._parts[:-1], self._conclude, writing)
        except BaseException:
            self.withdraw()
            raise

    def submit_if_open(self) -> None:
        """As `submit`; a store at its end keeps what this would have deleted, and that is no error."""
        with suppress(StoreFailed, StoreClosed):
            self.submit()

    def withdraw(self) -> None:
        """Give back its reservations; it will not be submitted."""
        self._give_up(self._steps)

    def withdraw_part(self) -> None:
        """Give back the reservations of the part that is being filled: nothing of it is stored."""
        part = self.length
        begin = len(self._steps)
        while begin and self._steps[begin - 1][0] == part:
            begin -= 1
        self._give_up(self._steps[begin:])
        del self._steps[begin:]
        self._parts[part] = []

    @property
    def is_done(self) -> bool:
        """True once all that was handed in is committed or refused, and told."""
        return self._commit is not None and self._commit.is_done

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """As `Commit.add_done_callback`, of the submission that was handed in: when all of it is done, before or after
        that.
        """
        assert self._commit is not None, "what is not handed in is never done"
        self._commit.add_done_callback(callback)

    # -- what follows, on the store's thread

    def _conclude(self, refused: Mapping[int, StoreError]) -> None:
        self._follow(refused)
        self._steps, self._parts = [], []
        if refused:
            told = [(tag, index in refused) for index, tag in enumerate(self._tags) if tag is not None]
        else:
            told = [(tag, False) for tag in self._tags if tag is not None]
        if told and self._tell is not None:
            self._tell(told)

    def _follow(self, refused: Mapping[int, StoreError]) -> None:
        """Go on, in order, with what was not refused. Messages of one queue join it together, as those of a fanout do,
        so that it tells its consumers once; only callbacks keep their place among them.
        """
        joining: dict[Life, tuple[list[Entry], list[Put]]] = {}
        for part, life, one, other in _one_by_one(self._steps) if refused else self._steps:
            if life is not None and part not in refused:
                entries, puts = joining.setdefault(life, ([], []))
                if type(one) is list:
                    entries += one
                    puts += other
                else:
                    entries.append(one)
                    puts.append(other)
                continue
            self._join(joining)
            if part in refused:
                guarded(other if life is None else partial(life.withdraw, one))
            else:
                guarded(one)
        self._join(joining)

    @staticmethod
    def _join(joining: dict[Life, tuple[list[Entry], list[Put]]]) -> None:
        for life, (entries, puts) in joining.items():
            guarded(partial(life.join, entries, puts))
        joining.clear()

    def _failed(self, error: BaseException) -> None:
        if self._is_owed and isinstance(error, StoreFull):
            self._journal.owe(self._submit_again, error)
        else:
            self.withdraw()

    def _submit_again(self) -> None:
        """After a refusal for want of room."""
        for operation in self._parts[0]:
            if isinstance(operation, Put):
                operation.id = 0
        self.submit_if_open()

    # -- details

    @staticmethod
    def _give_up(steps: Sequence[_Step]) -> None:
        for _, life, one, other in _one_by_one(steps):
            guarded(other if life is None else partial(life.withdraw, one))

    def _forget_message(self) -> None:
        self._message, self._form = None, (b"", b"")

    def _prepare(self, message: Message, like: Entry | None) -> None:
        if like is not None:
            self._form = encode_message(message, in_doubt=like.maybe_delivered), _body_of(message)
            return
        body = message.body
        self._form = encode_message(message), body if type(body) is bytes else _body_of(message)
        self._message = message


def _one_by_one(steps: Iterable[_Step]) -> Iterator[_Step]:
    for part, life, one, other in steps:
        if type(one) is list:
            yield from ((part + index, life, *each) for index, each in enumerate(zip(one, other, strict=True)))
        else:
            yield part, life, one, other


def _body_of(message: Message) -> bytes:
    body = message.body
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise TypeError(
        f"the body of a persistent message for routing key {message.routing_key!r} is a {type(body).__name__};"
        " a durable queue keeps bytes: encode it, or publish it with persistent=False"
    )


DeadLetterSubmission = Callable[[Any, "Message", DeadLetterReason, Any], object]


class QueueJournal:
    """One durable queue's side of the journal: where it has its rows. `number` is the queue's in the store."""

    def __init__(self, host: Journal, number: int, dead_letter: DeadLetterSubmission) -> None:
        self.host = host
        self.store: MessageStore = host.store
        self.number = number
        self.batch: partial[Submission] = partial(Submission, host)
        self.delete: Callable[[Sequence[int]], Commit | None] = host.delete
        self.submit: Callable[..., Commit] = host.submit
        self.drop_queue: partial[Commit | None] = partial(host.submit_if_open, [DropQueue(number)])
        # Adds what becomes of a dead letter to the submission that deletes it.
        self.dead_letter = dead_letter
