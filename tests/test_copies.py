"""Copies of a template: in C and in Python they are alike."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from importlib import import_module, util
from typing import Any

import pytest

from multiqueue._copies import PlainCopier

COPIERS: list[Any] = [PlainCopier]
if "MULTIQUEUE_REQUIRE_ENGINE" in os.environ or util.find_spec("multiqueue._copier") is not None:
    COPIERS.append(import_module("multiqueue._copier").Copier)
each_copier = pytest.mark.parametrize("copier", COPIERS, ids=lambda copier: copier.__name__)


class Base:
    """Slots of a class and of one beneath it are copied."""

    __slots__ = ("empty", "one")
    one: Any


class Kind(Base):
    """Its `__init__` would do harm."""

    __slots__ = ("three", "two")
    two: Any
    three: Any

    def __init__(self) -> None:
        raise AssertionError("no copy runs it")


class Nearer(Kind):
    """Adds nothing."""

    __slots__ = ()


def template(kind: type[Kind] = Kind) -> Kind:
    made = kind.__new__(kind)
    made.one, made.two, made.three = [], "two", "three"
    return made


@each_copier
def test_a_copy_has_what_its_template_has(copier: Any) -> None:
    """Named slots are given, in each copy or in all; the others are the template's own values, or empty as there."""
    like = template()
    for made, two in zip(copier(Kind, ("two",), ("three",)).copies(like, [1, 2, 3], "all"), [1, 2, 3], strict=True):
        assert type(made) is Kind
        assert made.one is like.one
        assert (made.two, made.three) == (two, "all")
        assert not hasattr(made, "empty")
    assert (like.two, like.three) == ("two", "three")


@each_copier
def test_each_copy_may_have_a_template_of_its_own(copier: Any) -> None:
    """A list of templates gives one copy of each, and its class."""
    likes = [template(), template(Nearer), template()]
    made = copier(Kind, ("two",)).copies(likes, ["a", "b", "c"])
    assert [type(each) for each in made] == [Kind, Nearer, Kind]
    assert [each.two for each in made] == ["a", "b", "c"]
    assert all(each.one is like.one for each, like in zip(made, likes, strict=True))
    assert copier(Kind, ("two",)).copies([], []) == []


@each_copier
def test_only_classes_of_slots_alone_are_copied(copier: Any) -> None:
    """A copier refuses classes whose objects have a dictionary, weak references or other memory, and odd names."""

    class Loose(Kind):
        pass

    class Weak(Base):
        __slots__ = ("__weakref__",)

    class Number(int):
        __slots__ = ()

    for kind in (Loose, Weak, Number, int, object, Exception, tuple):
        with pytest.raises(TypeError):
            copier(kind, ("two",))
    for names in ((), ("four",), ("__init__",)):
        with pytest.raises((TypeError, AttributeError)):
            copier(Kind, names)
    copies = copier(Kind, ("two",)).copies
    for odd in (Loose.__new__(Loose), Base(), 1, None):
        with pytest.raises(TypeError):
            copies(odd, ["a"])
        with pytest.raises(TypeError):
            copies([template(), odd], ["a", "b"])


@each_copier
def test_wrong_arguments_raise(copier: Any) -> None:
    """Too few, too many, or of different lengths."""
    copies = copier(Kind, ("one", "two"), ("three",)).copies
    arguments: tuple[Any, ...]
    for arguments in ((), ([1],), ([1], [2]), ([1], [2], 3, 4)):
        with pytest.raises(TypeError):
            copies(template(), *arguments)
    for arguments in (([1], [2, 3], 4), ([1, 2], [3], 4)):
        with pytest.raises(ValueError):
            copies(template(), *arguments)
        with pytest.raises(ValueError):
            copies([template()] * 3, *arguments)


@each_copier
def test_references_are_counted(copier: Any) -> None:
    """Copies keep what they have, and no longer than they are there; the collector sees them."""

    class Value:
        pass

    like, value = template(), Value()
    like.one = value
    copies = copier(Kind, ("two",)).copies
    gc.collect()
    before = sys.getrefcount(value)
    made = copies(like, [value] * 10)
    assert sys.getrefcount(value) == before + 20
    del made
    assert sys.getrefcount(value) == before
    gone = weakref.ref(value)
    (circle,) = copies(like, [value])
    circle.one = circle
    like.one = None
    del circle, value
    gc.collect()
    assert gone() is None
