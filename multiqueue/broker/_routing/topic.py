"""Topic matching: the bindings of a topic exchange as a tree of words.

A pattern is words between dots; `*` stands for one word, `#` for any number of them, none included. An empty
routing key is no word at all, every other empty word counts: `a.` is two words.

Promise     A match looks at the patterns' common beginnings once: its cost is words times the nodes alive
            after each, for any number of bindings. `#` next to `#` does not multiply it.
State       Guarded by the topology's lock. A node lives while a binding needs it.
Source      The alive set is Thompson's simulation of a nondeterministic automaton (CACM 11(6), 1968).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

ONE_WORD = "*"
ANY_WORDS = "#"


class Keyed(Protocol):
    """One binding as its set keeps it."""

    @property
    def routing_key(self) -> str: ...


B = TypeVar("B", bound=Keyed)


class BindingSet(Generic[B]):
    """Bindings in the order they were made; a change and a look each cost O(1) while the other rests.

    Not thread-safe: the topology's lock guards it. What `matching` returned stays valid after the lock.
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

    def matching(self, routing_key: str = "") -> tuple[B, ...]:
        """The bindings as they are now: what a fanout or headers exchange has for any routing key."""
        if self._snapshot is None:
            self._snapshot = tuple(self._bindings)
        return self._snapshot

    def __len__(self) -> int:
        return len(self._bindings)


class _Node(Generic[B]):
    """A beginning of patterns: what may follow it, and the bindings whose pattern ends here."""

    __slots__ = ("bindings", "children", "repeats")

    def __init__(self, repeats: bool = False) -> None:
        self.children: dict[str, _Node[B]] = {}  # by the pattern's next word, wildcards meaning themselves
        self.bindings: BindingSet[B] = BindingSet()
        # True for a node reached by `#`: it swallows every further word.
        self.repeats = repeats


class TopicTree(Generic[B]):
    """The bindings of one topic exchange, found by routing key."""

    def __init__(self) -> None:
        self._root: _Node[B] = _Node()

    def add(self, binding: B) -> None:
        """Let the binding's routing key, as a pattern, lead to it."""
        node = self._root
        for word in words_of(binding.routing_key):
            node = node.children.setdefault(word, _Node(repeats=word == ANY_WORDS))
        node.bindings.add(binding)

    def remove(self, binding: B) -> None:
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

    def matching(self, routing_key: str) -> tuple[B, ...]:
        """The bindings whose pattern matches, each once."""
        *_, alive = self.steps(routing_key)
        found = [node.bindings.matching() for node in alive if node.bindings]
        return found[0] if len(found) == 1 else tuple(binding for each in found for binding in each)

    def steps(self, routing_key: str) -> Iterator[list[_Node[B]]]:
        """The nodes alive before the first word and after each one: all the work that a match does."""
        alive = _with_any_words([self._root])
        yield alive
        for word in words_of(routing_key):
            # A routing key's own `*` or `#` is a word like any other, and no pattern has one.
            steps = (ONE_WORD,) if word in (ONE_WORD, ANY_WORDS) else (word, ONE_WORD)
            reached: list[_Node[B]] = []
            for node in alive:
                if node.repeats:
                    reached.append(node)
                for step in steps:
                    if (following := node.children.get(step)) is not None:
                        reached.append(following)
            alive = _with_any_words(reached)
            yield alive


def _with_any_words(nodes: list[_Node[B]]) -> list[_Node[B]]:
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
    """The words of a routing key or a pattern."""
    return routing_key.split(".") if routing_key else []
