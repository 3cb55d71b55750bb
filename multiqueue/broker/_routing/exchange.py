"""Exchanges and bindings: their declarations, and how each type of exchange finds those for a routing key.

An exchange only *finds* candidates, by routing key, under the topology's lock; what a binding asks of the
message itself (`Binding.condition`) is asked afterwards and without a lock. A further type of exchange is one
more entry in `MATCHERS`.

Topic       A pattern is words between dots; `*` stands for one word, `#` for any number of them, none included.
            "Topics" in docs/design/broker-front.md has what a match costs, and when a word is empty.
Headers     A binding has `x-match`, `all` (the default) or `any`; either passes over the binding's other arguments
            that begin with `x-`, which `all-with-x` and `any-with-x` do not. An argument that is None asks that the
            header is there, with any value; any other asks for an equal value of the same type. `HeadersIndex` finds
            candidates by the pair of a binding that fewest others have, by each pair for `any`.
Identity    Two bindings are the same when source, destination, routing key and arguments are: binding again changes
            nothing, and binding with other arguments makes a second one. A queue gets one copy however many match.
State       Matchers are guarded by the topology's lock.
Source      A topic's alive set is Thompson's simulation of a nondeterministic automaton (CACM 11(6), 1968).
"""

from __future__ import annotations

import random
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import blake2b
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from .._base.errors import PreconditionFailed
from .._base.message import Message, plain_name
from .._base.settings import Governing
from .._queue.queue import BrokerQueue
from .._selector.selector import SELECTOR_ARGUMENT
from .arguments import frozen, selector_argument

DEFAULT_EXCHANGE = ""
ONE_WORD = "*"
ANY_WORDS = "#"
_MOST_PLACES = 1000
_LONGEST_DELAY = 2**32 - 1  # milliseconds, as the plugin has it
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
        """The bindings as they are now: what a fanout exchange has for any routing key."""
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
    asks_all, wanted = _wanted_headers(arguments)
    combine = all if asks_all else any

    def condition(message: Message) -> bool:
        headers = message.headers
        return combine(name in headers and _meets(value, headers[name]) for name, value in wanted)

    return condition


def _wanted_headers(arguments: Mapping[str, object]) -> tuple[bool, tuple[tuple[str, object], ...]]:
    """Whether all of the pairs are asked for, not any; and the pairs."""
    mode = arguments.get("x-match", "all")
    if mode not in _MODES:
        raise PreconditionFailed(f"Invalid x-match field value {mode!r}; expected {', '.join(_MODES)}")
    wanted = tuple(
        (name, value)
        for name, value in arguments.items()
        if name not in ("x-match", SELECTOR_ARGUMENT)
        and (mode in ("all-with-x", "any-with-x") or not name.startswith("x-"))
    )
    return mode in ("all", "all-with-x"), wanted


def _meets(wanted: object, value: object) -> bool:
    return wanted is None or (type(wanted) is type(value) and wanted == value)


_PLAIN = frozenset({str, int, bool, float, bytes})  # values whose hash and comparison run no user code
_Key: TypeAlias = tuple[object, ...]  # name and value of a header; a name: any value; nothing: whatever there is


class _Asked(NamedTuple):
    """The keys under which a binding of a headers exchange may be found: one of them is enough, or each is needed."""

    one_is_enough: bool
    keys: tuple[_Key, ...]


def _asked_of_headers(arguments: Mapping[str, object]) -> _Asked:
    asks_all, wanted = _wanted_headers(arguments)
    keys = [_key_of(name, value) for name, value in wanted]
    return _Asked(asks_all, tuple(dict.fromkeys(keys)) or (((),) if asks_all else ()))


def _key_of(name: str, value: object) -> _Key:
    if type(name) is not str:
        return ()
    return (name, value) if type(value) in _PLAIN else (name,)


class HeadersIndex:
    """Bindings by the headers they ask for. A look costs by the names that they ask for and the bindings it finds.

    It finds candidates, and each one's condition decides: 1, 1.0 and True are one key here.
    """

    def __init__(self) -> None:
        self._bindings = BindingSet()
        # Invariant: the keys of each binding in `_bindings`; it is in the set of each of them, and no set is empty.
        self._keys: dict[Binding, tuple[_Key, ...]] = {}
        self._by_key: dict[_Key, BindingSet] = {}
        self._counts: Counter[str] = Counter()  # of keys with a name
        self._names: tuple[str, ...] = ()  # those of `_counts`; another object after each change of them

    def add(self, binding: Binding) -> None:
        one_is_enough, keys = binding.asked
        if one_is_enough:
            keys = (min(keys, key=lambda key: len(self._by_key.get(key, ()))),)
        self._bindings.add(binding)
        self._keys[binding] = keys
        for key in keys:
            if key not in self._by_key:
                self._by_key[key] = BindingSet()
                self._count(key, 1)
            self._by_key[key].add(binding)

    def remove(self, binding: Binding) -> None:
        self._bindings.remove(binding)
        for key in self._keys.pop(binding):
            self._by_key[key].remove(binding)
            if not self._by_key[key]:
                del self._by_key[key]
                self._count(key, -1)

    def _count(self, key: _Key, change: int) -> None:
        for name in key[:1]:
            assert isinstance(name, str)
            self._counts[name] += change
            if not self._counts[name]:
                del self._counts[name]
            if len(self._counts) != len(self._names):
                self._names = tuple(self._counts)

    def key_of(self, message: Message) -> Hashable:
        """What `matching` is to be asked with. It reads headers, which may be anybody's objects: under no lock."""
        names, headers = self._names, message.headers
        keys: list[_Key] = [()]
        for name in names:
            if name in headers:
                keys.append((name,))
                if len(key := _key_of(name, headers[name])) > 1:
                    keys.append(key)
        return names, tuple(keys)

    def matching(self, key: Hashable) -> tuple[Binding, ...]:
        """The bindings that may match; all, where they ask for other names now."""
        assert isinstance(key, tuple)
        names, keys = key
        if names is not self._names:
            return self._bindings.matching()
        found = [bindings.matching() for each in keys if (bindings := self._by_key.get(each)) is not None]
        return found[0] if len(found) == 1 else tuple(dict.fromkeys(binding for each in found for binding in each))


class AtRandom(BindingSet):
    """One of the bindings, another one for each message, with any routing key."""

    __slots__ = ()

    def matching(self, routing_key: str = "") -> tuple[Binding, ...]:
        bindings = super().matching()
        return (random.choice(bindings),) if bindings else ()


class HashRing:
    """One of the bindings for each key, the same one until bindings change, and then for most keys. A binding's own
    routing key says how many places it has on the ring.

    Source: Karger and others, Consistent Hashing and Random Trees (STOC 1997); RabbitMQ's plug-in for the arguments.
    """

    def __init__(self) -> None:
        self._places: list[tuple[int, Binding]] = []  # sorted by place

    def add(self, binding: Binding) -> None:
        name = binding.destination.name
        places = [(_place_of(f"{name}/{place}"), binding) for place in range(ring_weight(binding.routing_key))]
        self._places = sorted([*self._places, *places], key=_place_first)

    def remove(self, binding: Binding) -> None:
        self._places = [place for place in self._places if place[1] is not binding]

    def matching(self, routing_key: str) -> tuple[Binding, ...]:
        places = self._places
        if not places:
            return ()
        return (places[bisect(places, _place_of(routing_key), key=_place_first) % len(places)][1],)


_place_first = itemgetter(0)


def _place_of(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest())


def ring_weight(routing_key: str) -> int:
    """How many places a binding has on a ring. Raises PreconditionFailed: its routing key is no such number."""
    is_number = routing_key.isascii() and routing_key.isdigit() and len(routing_key) < 5
    if not is_number or not 0 < int(routing_key) <= _MOST_PLACES:
        raise PreconditionFailed(f"The binding key must be an integer from 1 to {_MOST_PLACES}, not '{routing_key}'")
    return int(routing_key)


def hashed_part(exchange: Exchange) -> Callable[[Message], str] | None:
    """What an exchange with a ring hashes instead of the routing key. Raises PreconditionFailed: nothing known."""
    header, prop = exchange.arguments.get("hash-header"), exchange.arguments.get("hash-property")
    if header is None and prop is None:
        return None
    if header is not None and prop is not None:
        raise PreconditionFailed("hash-header and hash-property are mutually exclusive")
    if prop is not None and prop not in ("correlation_id", "message_id", "timestamp"):
        raise PreconditionFailed(f"Unsupported property: {prop}; one of correlation_id, message_id, timestamp")
    if header is not None:
        return lambda message: str(message.headers.get(str(header), ""))
    return lambda message: str(getattr(message, str(prop)) or "")


Matcher: TypeAlias = _ByRoutingKey | BindingSet | TopicTree | HashRing | HeadersIndex
MATCHERS: dict[str, type[Matcher]] = {
    "direct": _ByRoutingKey,
    "fanout": BindingSet,
    "topic": TopicTree,
    "headers": HeadersIndex,
    "x-consistent-hash": HashRing,
    "x-random": AtRandom,
    "x-local-random": AtRandom,
}
ChoosesOne = (HashRing, AtRandom)  # one of the bindings, by more than the routing key
DELAYED = "x-delayed-message"
"""The type of exchange that has messages wait for their header `x-delay`; it routes as its `x-delayed-type` does."""
EXCHANGE_TYPES = (*MATCHERS, DELAYED)


def binding_condition(exchange: Exchange, arguments: Mapping[str, object]) -> Condition | None:
    """What a binding asks of a message: its exchange type's condition, and its selector. Raises as `bind_queue`."""
    by_type = headers_condition(arguments) if exchange.routes_as == "headers" else None
    selector = selector_argument(f"binding from exchange '{exchange.name}'", arguments)
    if by_type is None or selector is None:
        return by_type or selector
    return lambda message: by_type(message) and selector(message)


def delayed(message: Message) -> Message:
    """The message as it leaves an exchange that delays: held for the milliseconds of `x-delay`, which is negated."""
    delay = message.headers.get("x-delay")
    if not isinstance(delay, int) or not 0 < delay <= _LONGEST_DELAY:
        return message
    return replace(message, delay=delay / 1000, headers={**message.headers, "x-delay": -delay})


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
    """One exchange. Its settings never change; everything below them is guarded by the topology's lock.

    `governing` is what policies say of it.
    """

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
        self.routes_as: str = str(self.arguments.get("x-delayed-type")) if self.type == DELAYED else self.type
        self.matcher: Matcher = MATCHERS[self.routes_as]()
        # What its matcher is asked with instead of the routing key, None for that. Called outside every lock.
        self.key_of: Callable[[Message], Any] | None = None
        if isinstance(self.matcher, HashRing):
            self.key_of = hashed_part(self)
        elif isinstance(self.matcher, HeadersIndex):
            self.key_of = self.matcher.key_of
        self.bindings: dict[Hashable, Binding] = {}
        self.received = 0
        self.unroutable = 0
        self.governing: Governing = Governing()

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
    asked: _Asked = field(init=False, repr=False, default=_Asked(False, ()))  # of headers, by such an exchange

    def __post_init__(self) -> None:
        object.__setattr__(self, "routing_key", plain_name("routing_key", self.routing_key))
        identity = identity_of(self.source, self.destination, self.routing_key, self.arguments)
        object.__setattr__(self, "identity", identity)
        if self.source.routes_as == "headers":
            object.__setattr__(self, "asked", _asked_of_headers(self.arguments))
