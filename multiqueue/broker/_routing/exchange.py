"""Exchanges and bindings: what they were declared as, and how each type of exchange finds those for a routing key.

An exchange only *finds* candidates, by routing key, under the topology's lock; what a binding asks of the
message itself (`Binding.condition`) is asked afterwards and without a lock. A further type of exchange is one
more entry in `EXCHANGE_TYPES`.

A binding of a headers exchange has `x-match`, `all` (the default) or `any`; either passes over the binding's other
arguments that begin with `x-`, which `all-with-x` and `any-with-x` do not. An argument that is None asks that the
header is there, with any value; any other asks for an equal value of the same type.

Two bindings are the same when source, destination, routing key and arguments are: binding again changes
nothing, and binding with other arguments makes a second one. A queue gets one copy however many match.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, Protocol, TypeAlias

from .._base.errors import PreconditionFailed
from .._base.message import Message
from .._queue.queue import BrokerQueue
from .._selector.selector import SELECTOR_ARGUMENT
from .arguments import frozen, selector_argument
from .topic import B, BindingSet, TopicTree

DEFAULT_EXCHANGE = ""
_MODES = ("all", "any", "all-with-x", "any-with-x")  # of x-match

Condition: TypeAlias = "Callable[[Message], bool]"


class Matcher(Protocol[B]):
    """The bindings of one exchange, ordered for finding. Guarded by the topology's lock."""

    def add(self, binding: B) -> None: ...
    def remove(self, binding: B) -> None: ...
    def matching(self, routing_key: str) -> tuple[B, ...]: ...


class _ByRoutingKey(Generic[B]):
    """Direct: the routing key is the binding's."""

    def __init__(self) -> None:
        # Invariant: no set is empty.
        self._by_key: dict[str, BindingSet[B]] = {}

    def add(self, binding: B) -> None:
        self._by_key.setdefault(binding.routing_key, BindingSet()).add(binding)

    def remove(self, binding: B) -> None:
        bindings = self._by_key[binding.routing_key]
        bindings.remove(binding)
        if not bindings:
            del self._by_key[binding.routing_key]

    def matching(self, routing_key: str) -> tuple[B, ...]:
        bindings = self._by_key.get(routing_key)
        return () if bindings is None else bindings.matching()


def headers_condition(arguments: Mapping[str, object]) -> Condition:
    """The condition that a binding's arguments put on a message's headers.

    Raises:
        PreconditionFailed: `x-match` is none of the four modes.
    """
    mode = arguments.get("x-match", "all")
    if mode not in _MODES:
        raise PreconditionFailed(f"Invalid x-match field value {mode!r}; expected {', '.join(_MODES)}")
    wanted = tuple(
        (name, value)
        for name, value in arguments.items()
        if name not in ("x-match", SELECTOR_ARGUMENT)
        and (mode in ("all-with-x", "any-with-x") or not name.startswith("x-"))
    )
    combine = all if mode in ("all", "all-with-x") else any

    def condition(message: Message) -> bool:
        headers = message.headers
        return combine(name in headers and _meets(value, headers[name]) for name, value in wanted)

    return condition


def _meets(wanted: object, value: object) -> bool:
    return wanted is None or (type(wanted) is type(value) and wanted == value)


@dataclass(frozen=True, slots=True)
class ExchangeType:
    """How one type of exchange finds its bindings, and what it makes of a binding's arguments."""

    matcher: Callable[[], Matcher[Any]]
    condition: Callable[[Mapping[str, object]], Condition] | None = None


EXCHANGE_TYPES: dict[str, ExchangeType] = {
    "direct": ExchangeType(_ByRoutingKey),
    "fanout": ExchangeType(BindingSet),
    "topic": ExchangeType(TopicTree),
    "headers": ExchangeType(BindingSet, headers_condition),
}


def binding_condition(exchange: Exchange, arguments: Mapping[str, object]) -> Condition | None:
    """The conditions of a binding with these arguments on a message: its exchange type's condition, and its selector.

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


@dataclass(eq=False, repr=False)
class Exchange:
    """One exchange. Its settings never change; everything below them is guarded by the topology's lock."""

    name: str
    type: str = "direct"
    _: KW_ONLY
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)
    alternate: str | None = None

    def __post_init__(self) -> None:
        # Invariant: the matcher holds exactly the values of `bindings`.
        self.matcher: Matcher[Binding] = EXCHANGE_TYPES[self.type].matcher()
        self.bindings: dict[Hashable, Binding] = {}
        self.received = 0
        self.unroutable = 0

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.type}>"


Destination: TypeAlias = "BrokerQueue | Exchange"


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
