"""The entry: one message's stay on one queue, as a table of states and steps.

Promise     A step that the table does not allow, or that comes from a consumer which does not own the entry,
            raises `IllegalStep`, names the entry's last steps and changes nothing.
State       Every field but `message`, `queue` and `size` is guarded by the lock of the queue the entry stands on, which
            makes each step atomic. The table itself knows no lock, clock or queue.
Source      Apache Qpid Broker-J, QueueEntryImpl and MessageInstance, for the states and who may move them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final, Protocol

from multiqueue.errors import MultiQueueError

from .._base.message import Message
from .._base.settings import QueueSettings


class EntryState(IntEnum):
    """Where an entry is in its life. IntEnum, because the states index the compiled table."""

    AVAILABLE = 0
    HELD = 1  # not valid before its time
    ACQUIRED = 2  # by no consumer: housekeeping, management, a ring at its limit
    LOCKED = 3  # by its owner, and cannot be stolen: it is being sent or settled
    UNLOCKED = 4  # by its owner, whose client has it; management may steal it
    DEQUEUED = 5  # logically gone
    DELETED = 6  # gone


class Step(IntEnum):
    """An event in the life of an entry. Each fits in four bits, as the history of an entry is kept."""

    PUT = 1
    HOLD = 2
    UNHOLD = 3
    ACQUIRE = 4
    SEIZE = 5
    LOCK = 6
    UNLOCK = 7
    STEAL = 8
    RELEASE = 9
    DEQUEUE = 10
    DELETE = 11


_S = EntryState

# The whole state machine. LOCK and UNLOCK may be repeated by the owner; every other step moves.
TRANSITIONS: Final[Mapping[Step, Mapping[EntryState, EntryState]]] = {
    Step.HOLD: {_S.AVAILABLE: _S.HELD},
    Step.UNHOLD: {_S.HELD: _S.AVAILABLE},
    Step.ACQUIRE: {_S.AVAILABLE: _S.LOCKED},
    Step.SEIZE: {_S.AVAILABLE: _S.ACQUIRED, _S.HELD: _S.ACQUIRED},
    Step.LOCK: {_S.UNLOCKED: _S.LOCKED, _S.LOCKED: _S.LOCKED},
    Step.UNLOCK: {_S.LOCKED: _S.UNLOCKED, _S.UNLOCKED: _S.UNLOCKED},
    Step.STEAL: {_S.UNLOCKED: _S.ACQUIRED},
    Step.RELEASE: {_S.ACQUIRED: _S.AVAILABLE, _S.LOCKED: _S.AVAILABLE, _S.UNLOCKED: _S.AVAILABLE},
    Step.DEQUEUE: {_S.ACQUIRED: _S.DEQUEUED, _S.LOCKED: _S.DEQUEUED, _S.UNLOCKED: _S.DEQUEUED},
    Step.DELETE: {_S.DEQUEUED: _S.DELETED},
}

# Steps that only the owner may take; of an entry ACQUIRED by no consumer the owner is None.
OWNERS_STEPS: Final = frozenset({Step.LOCK, Step.UNLOCK, Step.RELEASE, Step.DEQUEUE})

_STEP_BITS: Final = 4
_HISTORY_MASK: Final = (1 << 7 * _STEP_BITS) - 1  # the last seven steps, in an int of one digit


class Move:
    """One step, or two that are taken together, looked up in the table beforehand: an entry moves in one look."""

    __slots__ = ("acquires", "bits", "code", "keeps_owner", "owners_only", "steps", "targets")

    def __init__(self, *steps: Step) -> None:
        self.steps: tuple[Step, ...] = steps
        # Where the steps lead from each state; None where one of them cannot be taken.
        self.targets: list[EntryState | None] = [*EntryState]
        for step in steps:
            self.targets = [None if state is None else TRANSITIONS[step].get(state) for state in self.targets]
        self.bits: int = _STEP_BITS * len(steps)
        self.code: int = sum(step << _STEP_BITS * place for place, step in enumerate(reversed(steps)))
        self.owners_only: bool = steps[0] in OWNERS_STEPS
        self.acquires: bool = steps[0] is Step.ACQUIRE
        self.keeps_owner: bool = steps[-1] in (Step.LOCK, Step.UNLOCK)


HOLD, UNHOLD = Move(Step.HOLD), Move(Step.UNHOLD)
ACQUIRE, LOCK, UNLOCK = Move(Step.ACQUIRE), Move(Step.LOCK), Move(Step.UNLOCK)
SEIZE, STEAL, RELEASE = Move(Step.SEIZE), Move(Step.STEAL), Move(Step.RELEASE)
# What every message goes through: acquired and sent; settled and gone.
DELIVER, SETTLE = Move(Step.ACQUIRE, Step.UNLOCK), Move(Step.DEQUEUE, Step.DELETE)


class IllegalStep(MultiQueueError, RuntimeError):
    """A step that the entry's state or owner does not allow: the caller's mistake. Nothing was changed."""


class EntryQueue(Protocol):
    """A queue as the owner of an entry, or of a consumer, sees it: see `BrokerQueue`."""

    name: str
    settings: QueueSettings

    @property
    def effective_settings(self) -> QueueSettings: ...
    @property
    def label(self) -> str: ...
    @property
    def is_stored(self) -> bool: ...
    @property
    def is_deleted(self) -> bool: ...
    def check_open(self) -> None: ...
    def accept(self, entries: Entries, consumer: object) -> int: ...
    def release(
        self, entries: Entries, consumer: object, *, refused: bool = False, counted: bool = True, failed: bool = False
    ) -> int: ...
    def fail(self, entries: Entries, consumer: object) -> int: ...
    def reject(self, entries: Entries, consumer: object) -> int: ...
    def lock(self, entries: Entries, consumer: object) -> int: ...
    def unlock(self, entries: Entries, consumer: object) -> int: ...
    def wait_for_commits(self, timeout: float | None = None) -> bool: ...

    # `consumer` is a `QueueConsumer`, which knows this module.
    def deliver_messages(
        self, consumer: Any, most: int, most_bytes: int = ..., *, may_end: bool = False
    ) -> list[Entry]: ...
    def set_notify_work_desired(self, consumer: Any, desired: bool) -> None: ...
    def credit_changed(self, consumer: Any) -> None: ...
    def remove_consumer(self, consumer: Any) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class Entry:
    """A message on a queue. `position` orders it among its queue's entries for its whole life."""

    queue: EntryQueue
    message: Message
    size: int
    # Given by the entry list when the entry is added, never changed.
    position: Position = field(init=False)
    # Invariant: owner is not None if and only if state is LOCKED or UNLOCKED.
    state: EntryState = EntryState.AVAILABLE
    owner: object | None = None
    steps: int = 1  # Step.PUT
    delivery_count: int = 0
    failures: int = 0  # of its deliveries, and its message's, those that ended in a reject or with their consumer
    expires_at: float | None = None
    held_until: float | None = None
    held_until_ms: int | None = None  # as the row of it says, in milliseconds since 1970
    arrived_at: float = 0.0  # kept only where an alert asks for the oldest entry's age
    group: Key = None
    key: Any = None  # what the entry list orders or finds the entry by, made before it is added; see `EntryList.key_of`
    refused_by: set[int] | None = None  # numbers of the consumers that do not want it again
    was_stolen: bool = False  # it was once taken away from a consumer, which may still try to settle it
    superseded: bool = False  # a last-value queue has a later one of its key

    # Of a queue that a store knows: `number` and `level` are given before the entry joins, in rising numbers.
    number: int = 0  # the store's id, which is the order of arrival; 0 until it has one
    level: int = 0  # of a priority queue, 0 the highest: where the store pages it
    is_stored: bool = False  # taking it out owes the store a delete
    is_settled_elsewhere: bool = False  # a transaction has committed its dead letter and its delete
    maybe_delivered: bool = False  # a process that crashed may have delivered it, or the queue it is a dead letter of

    def apply(self, move: Move, consumer: object | None = None) -> None:
        """Move as the table says; the queue's lock must be held.

        Raises:
            IllegalStep: the table has no such step from here, or `consumer` is not the owner.
        """
        state = move.targets[self.state]
        if state is None or (self.owner is not consumer and move.owners_only):
            raise self.illegal(move, consumer)
        self.state = state
        self.steps = (self.steps << move.bits | move.code) & _HISTORY_MASK
        if move.acquires:
            self.owner = consumer
            self.delivery_count += 1
        elif not move.keeps_owner:
            self.owner = None

    @property
    def is_ready(self) -> bool:
        """True while no one has it: available, or held until its time. What depth limits count."""
        return self.state <= EntryState.HELD

    @property
    def is_acquired(self) -> bool:
        """True while a consumer, or an owner that is none, holds it."""
        return EntryState.ACQUIRED <= self.state <= EntryState.UNLOCKED

    @property
    def redelivered(self) -> bool:
        """True when a consumer had it before the present delivery, or may have had it."""
        return self.delivery_count > 1 or self.maybe_delivered

    def take_after(self, other: Entry) -> None:
        """Take the place of another entry: its past and its times."""
        self.delivery_count, self.failures = other.delivery_count, other.failures
        self.maybe_delivered = other.maybe_delivered
        self.refused_by, self.group = other.refused_by, other.group
        self.expires_at, self.held_until = other.expires_at, other.held_until

    def take_failures(self) -> None:
        """Go on counting the failures of a dead letter."""
        self.failures = self.message.failures
        self.maybe_delivered |= self.failures > 0

    def letter(self, *, failed: bool = False) -> Message:
        """The message as it leaves, with its failures, and with one more if this delivery has `failed`."""
        failures = self.failures + failed
        return self.message if failures == self.message.failures else replace(self.message, failures=failures)

    @property
    def history(self) -> list[Step]:
        """The last seven steps, oldest first."""
        places = range(6 * _STEP_BITS, -1, -_STEP_BITS)
        return [Step(self.steps >> place & 0xF) for place in places if self.steps >> place]

    def check_invariants(self) -> None:
        """Raise AssertionError when owner and state contradict each other."""
        owned = self.state in (EntryState.LOCKED, EntryState.UNLOCKED)
        assert (self.owner is not None) == owned, f"{self!r} is owned by {self.owner!r}"

    def illegal(self, move: Move, consumer: object | None) -> IllegalStep:
        """The error for a move that cannot be made, with the entry's past."""
        wanted = " and ".join(step.name for step in move.steps)
        holder = f", owned by {self.owner!r}" if self.owner is not None else ""
        asker = f" by {consumer!r}" if consumer is not None else ""
        past = ", ".join(taken.name.lower() for taken in self.history)
        return IllegalStep(f"{self!r} cannot take step {wanted}{asker}{holder}; its last steps: {past}")

    def __repr__(self) -> str:
        return f"<entry {self.position} of queue {self.queue.name!r}, {self.state.name}>"


Entries = Entry | Iterable[Entry]
# Plain values only, so that comparing and hashing them under the queue's lock runs no user code.
Key = int | float | str | None
# Where an entry stands: an int or a tuple, of one type within one list, rising in service order.
Position = Any
