"""Bindings: which messages of an exchange go where.

Two bindings are the same when source, destination, routing key and arguments are: binding again changes
nothing, and binding with other arguments makes a second one. A queue gets one copy however many match.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from types import NoneType
from typing import TYPE_CHECKING, TypeAlias

from .._base.errors import PreconditionFailed

if TYPE_CHECKING:
    from .._base.message import Message
    from .._queue.queue import BrokerQueue
    from .exchange import Exchange

Destination: TypeAlias = "BrokerQueue | Exchange"
Condition: TypeAlias = "Callable[[Message], bool]"


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One way from an exchange to a queue or to another exchange.

    `condition` is what the message itself must meet beyond its routing key, None for nothing. It reads header
    values, which may be anybody's objects, so it is called outside every lock.
    """

    source: Exchange
    destination: Destination
    routing_key: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    condition: Condition | None = None
    identity: Hashable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parts = (self.source, self.destination, self.routing_key, frozen(self.arguments))
        object.__setattr__(self, "identity", parts)


_SCALARS = (str, bytes, bool, int, float, Decimal, datetime, NoneType)


def frozen(value: object) -> Hashable:
    """A hashable stand-in, equal for equal tables, lists and values of one type: True is not 1.

    Raises:
        PreconditionFailed: a value that no AMQP table can hold.
    """
    if isinstance(value, Mapping):
        return "table", frozenset((key, frozen(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return "list", tuple(frozen(each) for each in value)
    if isinstance(value, _SCALARS):
        return type(value), value
    raise PreconditionFailed(f"an argument cannot be a {type(value).__name__}: {value!r}")


class BindingSet:
    """Bindings in the order they were made; a change and a look each cost O(1) while the other rests.

    Not thread-safe: the topology's lock guards it. What `snapshot` returned stays valid after the lock.
    """

    __slots__ = ("_bindings", "_snapshot")

    def __init__(self) -> None:
        self._bindings: dict[Binding, None] = {}
        # Invariant: None, or exactly the keys of _bindings in order.
        self._snapshot: tuple[Binding, ...] | None = ()

    def add(self, binding: Binding) -> None:
        self._bindings[binding] = None
        self._snapshot = None

    def remove(self, binding: Binding) -> None:
        del self._bindings[binding]
        self._snapshot = None

    def snapshot(self) -> tuple[Binding, ...]:
        """The bindings as they are now."""
        if self._snapshot is None:
            self._snapshot = tuple(self._bindings)
        return self._snapshot

    def __len__(self) -> int:
        return len(self._bindings)

    def __iter__(self) -> Iterator[Binding]:
        return iter(self.snapshot())
