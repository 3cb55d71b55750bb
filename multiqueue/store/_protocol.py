"""The interface of a store: what a broker asks of it.

Promise     Operations that are submitted together are committed together or not at all, and submissions are
            committed in the order they were made: after a crash the store holds what a prefix of them left.
            An id is given once, to one message on one queue, and never again, however empty the store becomes.
Who runs    Any thread may call any method. `committed` callbacks run on the store's own thread, in the order of
            the submissions, and must not block: the next commit waits for them.
Waiting     `submit` of a Put blocks while too many bytes wait for their commit; `Commit.wait` until the commit is made.
            Both end with an error when the store fails or closes.
Failure     A commit that finds no room (`StoreFull`) has changed nothing and the store goes on, so that what
            frees room can still be done. Any other failure of the disk (`StoreFailed`) is the end: every waiter gets
            the error, nothing more is accepted, and all commits are there when it is opened again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Never, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ._errors import StoreError


class Durability(StrEnum):
    """The failures that a commit survives. See the table of promises in docs/design/store.md."""

    SYNC = "sync"  # a commit is on the disk before anybody is told of it
    RELAXED = "relaxed"  # a commit survives the process, the latest ones perhaps not a power loss
    MEMORY = "memory"  # nothing survives

    @classmethod
    def _missing_(cls, value: object) -> Never:
        raise ValueError(f"durability is 'sync', 'relaxed' or 'memory', not {value!r}")


class Put:
    """Store one message on one queue, behind everything that has a lower id.

    `id` is 0 until `submit` gives it the next one; a Put that comes with an id (of `allocate`) keeps it.
    `level` is the place's first part: messages are paged by level, then by id. `expires_at` is in seconds since
    1970; `held_until_ms`, when it may be had, in milliseconds since then. A `transient` message is gone when the store
    is opened again.
    """

    __slots__ = ("body", "deliveries", "expires_at", "held_until_ms", "id", "level", "properties", "queue", "transient")

    def __init__(
        self,
        queue: int,
        properties: bytes,
        body: bytes,
        *,
        level: int = 0,
        expires_at: float | None = None,
        deliveries: int = 0,
        transient: bool = False,
        id: int = 0,
        held_until_ms: int | None = None,
    ) -> None:
        self.queue: int = queue
        self.properties: bytes = properties
        self.body: bytes = body
        self.level: int = level
        self.expires_at: float | None = expires_at
        self.deliveries: int = deliveries
        self.transient: bool = transient
        self.id: int = id
        self.held_until_ms: int | None = held_until_ms


class Delete(NamedTuple):
    """Remove messages: settled, expired, purged, moved. Missing ids are ignored."""

    ids: Sequence[int]


class Delivered(NamedTuple):
    """Remember how often a message was delivered."""

    id: int
    deliveries: int


class Define(NamedTuple):
    """Keep a definition (of a queue, an exchange, a binding), or replace it; `document` is the broker's own."""

    kind: str
    key: str
    document: str


class Undefine(NamedTuple):
    """Forget a definition; a missing one is ignored."""

    kind: str
    key: str


class DropQueue(NamedTuple):
    """Remove every message of a queue, and those that come to it later. Its number must not be used again."""

    queue: int


Operation = Put | Delete | Delivered | Define | Undefine | DropQueue


class Header(NamedTuple):
    """A stored message without its body. `size` is the body's, in bytes."""

    id: int
    size: int
    expires_at: float | None
    deliveries: int
    properties: bytes
    held_until_ms: int | None = None


class Outline(NamedTuple):
    """The part of a stored message that is enough to count or to remove it."""

    id: int
    size: int
    held_until_ms: int | None = None


class Level(NamedTuple):
    """The messages on one level of one queue: how many messages, the bytes of their bodies, the first and last id."""

    queue: int
    level: int
    messages: int
    bytes: int
    first: int
    last: int


class Held(NamedTuple):
    """The messages of one level that wait for their time: how many, and the bytes of their bodies."""

    level: int
    messages: int
    bytes: int


# Where a message stands among those that wait for their time: until when, in milliseconds since 1970; level; id.
Moment = tuple[int, int, int]
FOR_EVER: Final = (1 << 63) - 1


class Definition(NamedTuple):
    """One definition that is kept."""

    kind: str
    key: str
    document: str


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """A snapshot. `pending_bytes` were submitted and are not committed yet."""

    messages: int
    bytes: int
    commits: int
    syncs: int
    pending_operations: int
    pending_bytes: int
    file_bytes: int
    free_bytes: int


class Commit(Protocol):
    """A submission on its way."""

    @property
    def is_done(self) -> bool:
        """True once it is committed or has failed."""

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is committed; False when `timeout` seconds passed first.

        Raises:
            StoreFull: there was no room: nothing of the submission was stored.
            StoreFailed, StoreClosed: it is not known to be stored, and the store is at its end.
        """

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Have `callback(None)` or `callback(error)` called once, on the store's thread, or here if it is done."""


@runtime_checkable
class MessageStore(Protocol):
    """Messages of many queues, in order, with the definitions of these queues."""

    @property
    def durability(self) -> Durability: ...

    @property
    def redeliver_floor(self) -> int:
        """Messages with an id below this may have been delivered before, though its `deliveries` do not say so.

        0 for a store that was always closed cleanly. A crash raises it, and it stays: a message that a crash put in
        doubt is in doubt until it is gone, clean restarts notwithstanding.
        """

    def allocate(self) -> int:
        """A fresh id, higher than every one given before: for a message that is not stored (yet), or a queue."""

    def submit(
        self,
        operations: Sequence[Operation],
        committed: Callable[[], object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
        *,
        lingers: bool = False,
        waits: bool = True,
    ) -> Commit:
        """Have these operations committed, all or none; gives ids to the Puts before it returns.

        Ids rise in the order of the submissions. `committed()` or `failed(error)` is called once, on the store's
        thread, before the threads that wait for the commit go on. A submission that `lingers` waits some
        milliseconds for others, unless a thread waits for it: removals are not worth a separate commit.

        Blocks only while more than `max_pending_bytes` are on their way, never without a Put among the operations,
        and never on the store's own thread, nor where it is not to: then the caller holds back those who bring more.
        Without operations it is done when everything before it is.

        Raises:
            StoreFailed, StoreClosed: nothing was accepted.
        """

    def submit_run(
        self,
        parts: Sequence[Sequence[Operation]],
        told: Callable[[Mapping[int, StoreError]], object],
        *,
        waits: bool = True,
    ) -> Commit:
        """`submit` each of the parts, one or more, in their order, at little more than the price of one.

        Each is whole, and refused alone. `told` is called once, on the store's thread, when the fate of all is known:
        with the errors of those that were refused, by their index: with none when all are committed. The commit is
        done when all are committed or refused, and fails only with the store. Blocks and raises as `submit`.
        """

    def page(
        self, queue: int, after: int, limit: int, *, level: int = 0, held_before_ms: int = FOR_EVER
    ) -> list[Header]:
        """Up to `limit` committed headers of a level of a queue with ids above `after`, in order, but those that are
        held until then, or longer."""

    def held(self, queue: int, after: Moment, limit: int) -> list[tuple[int, Header]]:
        """Up to `limit` committed headers of a queue that are held until later moments, soonest first, with levels."""

    def held_after(self, queue: int, moment_ms: int) -> list[Held]:
        """The messages of a queue that are held beyond a moment, by level."""

    def outlines(self, queue: int, after: int, limit: int, now: float, *, level: int = 0) -> list[Outline]:
        """As `page`, of those that have not expired by `now`, and at a tenth of the price."""

    def read(self, ids: Iterable[int]) -> dict[int, bytes]:
        """The bodies of committed messages by id; without those that are not there (any more)."""

    def expired(self, now: float, limit: int) -> list[tuple[int, int, int]]:
        """Up to `limit` messages that have expired by `now`, soonest first, as (queue, level, id)."""

    def next_expiry(self, now: float) -> float | None:
        """When the first of the messages expires that have not expired by `now`; None when no message expires."""

    def levels(self) -> list[Level]:
        """The messages on each queue and level, counted from the messages themselves: once, at start."""

    def definitions(self) -> list[Definition]:
        """Every definition, in the order in which they were first made."""

    def statistics(self) -> StoreStatistics: ...

    def close(self) -> None:
        """Commit all submissions, record a clean end, and close. Closing twice does nothing.

        From then on nothing more is accepted, except from callbacks. Not from a callback: the close waits for the
        thread that calls it.
        """
