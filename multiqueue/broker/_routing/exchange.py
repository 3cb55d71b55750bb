"""Exchanges: what they were declared as, and how each type finds the bindings for a routing key.

An exchange only *finds* candidates, by routing key, under the topology's lock; what a binding asks of the
message itself (`Binding.condition`) is asked afterwards and without a lock. A further type of exchange is one
more entry in `EXCHANGE_TYPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

from .arguments import selector_argument
from .binding import Binding, BindingSet, Condition
from .headers import headers_condition
from .topic import TopicTree

DEFAULT_EXCHANGE = ""


class Matcher(Protocol):
    """The bindings of one exchange, ordered for finding. Guarded by the topology's lock."""

    def add(self, binding: Binding) -> None: ...
    def remove(self, binding: Binding) -> None: ...
    def matching(self, routing_key: str) -> tuple[Binding, ...]: ...


class _ByRoutingKey:
    """Direct: the routing key is the binding's."""

    def __init__(self) -> None:
        # Invariant: no set is empty.
        self._by_key: dict[str, BindingSet] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.routing_key, BindingSet()).add(binding)

    def remove(self, binding: Binding) -> None:
        bindings = self._by_key[binding.routing_key]
        bindings.remove(binding)
        if not bindings:
            del self._by_key[binding.routing_key]

    def matching(self, routing_key: str) -> tuple[Binding, ...]:
        bindings = self._by_key.get(routing_key)
        return () if bindings is None else bindings.snapshot()


class _Everything(BindingSet):
    """Fanout and headers: the routing key is not looked at."""

    __slots__ = ()

    def matching(self, routing_key: str) -> tuple[Binding, ...]:
        return self.snapshot()


@dataclass(frozen=True, slots=True)
class ExchangeType:
    """How one type of exchange finds its bindings, and what it makes of a binding's arguments."""

    matcher: Callable[[], Matcher]
    condition: Callable[[Mapping[str, object]], Condition] | None = None


EXCHANGE_TYPES: dict[str, ExchangeType] = {
    "direct": ExchangeType(_ByRoutingKey),
    "fanout": ExchangeType(_Everything),
    "topic": ExchangeType(TopicTree),
    "headers": ExchangeType(_Everything, headers_condition),
}


def binding_condition(exchange: Exchange, arguments: Mapping[str, object]) -> Condition | None:
    """What a binding with these arguments asks of a message: its exchange type's condition, and its selector.

    Raises:
        PreconditionFailed, SelectorError: an argument that does not fit.
    """
    make = EXCHANGE_TYPES[exchange.type].condition
    by_type = None if make is None else make(arguments)
    selector = selector_argument(f"binding from exchange '{exchange.name}'", arguments)
    if by_type is None or selector is None:
        return by_type or selector
    return lambda message: by_type(message) and selector(message)


@dataclass(frozen=True, slots=True)
class ExchangeStatistics:
    """A snapshot of an exchange: messages that reached it, and bindings that leave it."""

    name: str
    type: str
    received: int
    unroutable: int
    bindings: int


class Exchange:
    """One exchange. Its settings never change; everything below them is guarded by the topology's lock."""

    def __init__(
        self,
        name: str,
        type: str = "direct",
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, object] | None = None,
        alternate: str | None = None,
    ) -> None:
        self.name = name
        self.type = type
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments: Mapping[str, object] = dict(arguments or {})
        self.alternate = alternate
        # Invariant: the matcher holds exactly the values of `bindings`.
        self.matcher: Matcher = EXCHANGE_TYPES[type].matcher()
        self.bindings: dict[Hashable, Binding] = {}
        self.received = 0
        self.unroutable = 0

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.type}>"
