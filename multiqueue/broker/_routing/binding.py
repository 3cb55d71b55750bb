"""What is known of bindings without their ends: sets of them, and their arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from types import NoneType
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from .._base.errors import PreconditionFailed

if TYPE_CHECKING:
    from .._base.message import Message

Condition: TypeAlias = "Callable[[Message], bool]"


class Keyed(Protocol):
    """What a set of bindings knows of one."""

    @property
    def routing_key(self) -> str: ...


B = TypeVar("B", bound=Keyed)

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


class BindingSet(Generic[B]):
    """Bindings in the order they were made; a change and a look each cost O(1) while the other rests.

    Not thread-safe: the topology's lock guards it. What `snapshot` returned stays valid after the lock.
    """

    __slots__ = ("_bindings", "_snapshot")

    def __init__(self) -> None:
        self._bindings: dict[B, None] = {}
        # Invariant: None, or exactly the keys of _bindings in order.
        self._snapshot: tuple[B, ...] | None = ()

    def add(self, binding: B) -> None:
        self._bindings[binding] = None
        self._snapshot = None

    def remove(self, binding: B) -> None:
        del self._bindings[binding]
        self._snapshot = None

    def snapshot(self) -> tuple[B, ...]:
        """The bindings as they are now."""
        if self._snapshot is None:
            self._snapshot = tuple(self._bindings)
        return self._snapshot

    def __len__(self) -> int:
        return len(self._bindings)

    def __iter__(self) -> Iterator[B]:
        return iter(self.snapshot())
