"""Exchanges and bindings: what they were declared as, and how each type of exchange finds those for a routing key.

An exchange only *finds* candidates, by routing key, under the topology's lock; what a binding asks of the
message itself (`Binding.condition`) is asked afterwards and without a lock. A further type of exchange is one
more entry in `EXCHANGE_TYPES`.

Topic       A pattern is words between dots; `*` stands for one word, `#` for any number of them, none included.
            "Topics" in docs/design/broker-front.md has what a match costs, and when a word is empty.
Headers     A binding has `x-match`, `all` (the default) or `any`; either passes over the binding's other arguments
            that begin with `x-`, which `all-with-x` and `any-with-x` do not. An argument that is None asks that the
            header is there, with any value; any other asks for an equal value of the same type.
Identity    Two bindings are the same when source, destination, routing key and arguments are: binding again changes
            nothing, and binding with other arguments makes a second one. A queue gets one copy however many match.
State       Matchers are guarded by the topology's lock.
Source      A topic's alive set is Thompson's simulation of a nondeterministic automaton (CACM 11(6), 1968).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeAlias

from .._base.errors import PreconditionFailed
from .._base.message import Message, plain_name
from .._queue.queue import BrokerQueue
from .._selector.selector import SELECTOR_ARGUMENT
from .arguments import frozen, selector_argument

DEFAULT_EXCHANGE = ""
ONE_WORD = "*"
ANY_WORDS = "#"
_MODES = ("all", "any", "all-with-x", "any-with-x")  # of x-match

Condition: TypeAlias = Callable[[Message], bool]


class BindingSet:
    """Bindings in order. A change and a look each cost O(1) while the other rests; what a look returned stays valid."""

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

    def matching(self, routing_key: str = "") -> tuple[Binding, ...]:
        """The bindings as they are now: what a fanout or headers exchange has for any routing key."""
        if self._snapshot is None:
            self._snapshot = tuple(self._bindings)
        return self._snapshot

    def __len__(self) -> int:
        return len(self._bindings)


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
        return () if bindings is None else bindings.matching()


class _Node:
    """A beginning of patterns: what may follow it, and the bindings whose pattern ends here."""

    __slots__ = ("bindings", "children", "repeats")

    def __init__(self, repeats: bool = False) -> None:
        self.children: dict[str, _Node] = {}  # by the pattern's next word, wildcards meaning themselves
        self.bindings: BindingSet = BindingSet()
        # True for a node reached by `#`: it swallows every further word.
        self.repeats = repeats


class TopicTree:
    """The bindings of one topic exchange, found by routing key."""

    def __init__(self) -> None:
        self._root: _Node = _Node()

    def add(self, binding: Binding) -> None:
        """Let the binding's routing key, as a pattern, lead to it."""
        node = self._root
        for word in words_of(binding.routing_key):
            node = node.children.setdefault(word, _Node(repeats=word == ANY_WORDS))
        node.bindings.add(binding)

    def remove(self, binding: Binding) -> None:
        """Forget the binding, and every node that only it needed."""
        path = [self._root]
        words = words_of(binding.routing_key)
        for word in words:
            path.append(path[-1].children[word])
        path.pop().bindings.remove(binding)
        for parent, word in zip(reversed(path), reversed(words), strict=True):
            child = parent.children[word]
            if child.children or child.bindings:
                break
            del parent.children[word]

    def matching(self, routing_key: str) -> tuple[Binding, ...]:
        """The bindings whose pattern matches, each once."""
        *_, alive = self.steps(routing_key)
        found = [node.bindings.matching() for node in alive if node.bindings]
        return found[0] if len(found) == 1 else tuple(binding for each in found for binding in each)

    def steps(self, routing_key: str) -> Iterator[list[_Node]]:
        """The nodes alive before the first word and after each one: all the work that a match does."""
        alive = _with_any_words([self._root])
        yield alive
        for word in words_of(routing_key):
            # A routing key's own `*` or `#` is a word like any other, and no pattern has one.
            steps = (ONE_WORD,) if word in (ONE_WORD, ANY_WORDS) else (word, ONE_WORD)
            reached: list[_Node] = []
            for node in alive:
                if node.repeats:
                    reached.append(node)
                for step in steps:
                    if (following := node.children.get(step)) is not None:
                        reached.append(following)
            alive = _with_any_words(reached)
            yield alive


def _with_any_words(nodes: list[_Node]) -> list[_Node]:
    """`nodes`, each once, and behind them those that a `#` standing for no word leads to.

    The list grows while it is walked, and the walk ends: a node is put in once.
    """
    seen = set(nodes)
    for node in nodes:
        following = node.children.get(ANY_WORDS)
        if following is not None and following not in seen:
            seen.add(following)
            nodes.append(following)
    return nodes


def words_of(routing_key: str) -> list[str]:
    return routing_key.split(".") if routing_key else []


def headers_condition(arguments: Mapping[str, object]) -> Condition:
    """What a binding's arguments ask of a message's headers. Raises PreconditionFailed for another `x-match`."""
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


Matcher: TypeAlias = _ByRoutingKey | BindingSet | TopicTree
EXCHANGE_TYPES: dict[str, type[Matcher]] = {
    "direct": _ByRoutingKey,
    "fanout": BindingSet,
    "topic": TopicTree,
    "headers": BindingSet,
}


def binding_condition(exchange: Exchange, arguments: Mapping[str, object]) -> Condition | None:
    """What a binding asks of a message: its exchange type's condition, and its selector. Raises as `bind_queue`."""
    by_type = headers_condition(arguments) if exchange.type == "headers" else None
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
        self.name = plain_name("name", self.name)
        # Invariant: the matcher holds exactly the values of `bindings`.
        self.matcher: Matcher = EXCHANGE_TYPES[self.type]()
        self.bindings: dict[Hashable, Binding] = {}
        self.received = 0
        self.unroutable = 0

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.type}>"


Destination: TypeAlias = BrokerQueue | Exchange


def identity_of(source: Exchange, destination: Destination, key: str, arguments: Mapping[str, object]) -> Hashable:
    """What makes two bindings one. Its hash and comparison run no user code."""
    return source, destination, plain_name("routing_key", key), frozen(arguments)


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
        object.__setattr__(self, "routing_key", plain_name("routing_key", self.routing_key))
        identity = identity_of(self.source, self.destination, self.routing_key, self.arguments)
        object.__setattr__(self, "identity", identity)
