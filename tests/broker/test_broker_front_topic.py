"""Topic patterns: what they match, and how little of the tree a match looks at."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from broker_front_support import named_queue
from broker_parts_support import TopicTree, words_of
from hypothesis import given
from hypothesis import strategies as st

from multiqueue.broker import Binding, Exchange

SOURCE = Exchange("topics", "topic")
QUEUE = named_queue("q")


def bound(pattern: str) -> Binding:
    return Binding(SOURCE, QUEUE, pattern)


def tree_of(*patterns: str) -> TopicTree:
    tree = TopicTree()
    for pattern in patterns:
        tree.add(bound(pattern))
    return tree


def visits(tree: TopicTree, key: str) -> int:
    """How many nodes a match of `key` looks at."""
    return sum(len(alive) for alive in tree.steps(key))


@pytest.mark.parametrize(
    ("pattern", "keys", "not_keys"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "b.a", ""]),
        ("*.b", ["a.b", ".b"], ["b", "a.a.b", ""]),
        ("a.*", ["a.b", "a."], ["a", "a.b.c"]),
        ("#", ["", "a", "a.b.c", "."], []),
        ("a.#", ["a", "a.b", "a.b.c"], ["", "b.a"]),
        ("#.a", ["a", "b.a", "a.a.a"], ["", "a.b"]),
        ("a.#.b", ["a.b", "a.x.y.b", "a.b.b"], ["a", "a.b.c"]),
        ("#.#", ["", "a", "a.b"], []),
        ("*.#", ["a", "a.b", "."], [""]),
        ("", [""], ["a", "."]),
        ("*", ["a", "*", "#"], ["", "a.b"]),
        ("a.#.*", ["a.b", "a.b.c"], ["a"]),
    ],
)
def test_a_pattern_matches_word_by_word(pattern: str, keys: list[str], not_keys: list[str]) -> None:
    """`*` is one word, `#` any number of them, an empty word is a word and an empty key is none."""
    tree = tree_of(pattern)
    assert [key for key in keys if not tree.matching(key)] == []
    assert [key for key in not_keys if tree.matching(key)] == []


@cache
def obviously_matches(pattern: tuple[str, ...], key: tuple[str, ...]) -> bool:
    """The rule as it is told."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return obviously_matches(pattern[1:], key) or (bool(key) and obviously_matches(pattern, key[1:]))
    return bool(key) and pattern[0] in ("*", key[0]) and obviously_matches(pattern[1:], key[1:])


_patterns = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=5).map(".".join)
_keys = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)


@given(st.lists(_patterns, max_size=8, unique=True), _keys, st.data())
def test_a_tree_finds_exactly_the_bindings_whose_pattern_matches(
    patterns: list[str], key: str, data: st.DataObject
) -> None:
    """However many patterns share a tree, also after some are gone, each that matches is found once."""
    tree, bindings = TopicTree(), [bound(pattern) for pattern in patterns]
    for binding in bindings:
        tree.add(binding)
    for gone in data.draw(st.lists(st.sampled_from(bindings), unique=True)) if bindings else []:
        tree.remove(gone)
        bindings.remove(gone)
    expected = [
        binding for binding in bindings if obviously_matches(tuple(words_of(binding.routing_key)), tuple(words_of(key)))
    ]
    found = tree.matching(key)
    assert len(found) == len(expected)
    assert set(found) == set(expected)


@given(st.lists(_patterns, max_size=8, unique=True), st.randoms(use_true_random=False))
def test_unbinding_leaves_nothing_behind(patterns: list[str], random: Random) -> None:
    """When the last binding is gone the tree is as small as at the start, whatever the order of unbinding."""
    bindings = [bound(pattern) for pattern in patterns]
    tree = TopicTree()
    for binding in bindings:
        tree.add(binding)
    random.shuffle(bindings)
    for binding in bindings:
        tree.remove(binding)
    assert not tree._root.children


def test_unbinding_what_was_never_bound_changes_nothing() -> None:
    """A pattern that leads nowhere is refused, and the others still match."""
    tree = tree_of("a.b")
    with pytest.raises(KeyError, match="c"):
        tree.remove(bound("a.c"))
    assert len(tree.matching("a.b")) == 1


def test_a_match_among_ten_thousand_bindings_looks_at_a_handful_of_nodes() -> None:
    """The work grows with the words of the key and the patterns that match it, not with the bindings."""
    small, large = TopicTree(), TopicTree()
    for tree, count in ((small, 10), (large, 10_000)):
        for number in range(count):
            pattern = ("orders.*.{}", "#.{}", "orders.{}.#", "*.{}.paid", "{}.eu.paid")[number % 5]
            tree.add(bound(pattern.format(number)))
    key = "orders.7.paid"
    assert [binding.routing_key for binding in large.matching(key)] == ["orders.7.#"]
    assert visits(large, key) == visits(small, key) < 20


def test_many_hashes_in_a_row_do_not_multiply_the_work() -> None:
    """Twenty `#` against twenty words take at most the twenty times twenty-one nodes there are to see."""
    tree = tree_of(".".join(["#"] * 20 + ["end"]))
    key = ".".join(["word"] * 20)
    assert tree.matching(key) == ()
    assert len(tree.matching(key + ".end")) == 1
    assert visits(tree, key) <= 21 * 21
