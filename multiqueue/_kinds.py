"""Whether an argument is of its kind; else a sentence says what was given, and what is needed."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import TypeVar

Value = TypeVar("Value")


def check_kind(what: str, value: object, kind: type | tuple[type, ...], needed: str) -> None:
    """Return when the value is of this kind.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{what} is {value!r}, {_named(type(value))}; it is {needed}")


def check_function(what: str, value: object) -> None:
    """Return when the value can be called. Raises as `check_kind`."""
    if not callable(value):
        raise TypeError(f"{what} is {value!r}, {_named(type(value))}; it is a function")


def check_path(what: str, value: object) -> None:
    """Return when the value is a path, as a string or otherwise. Raises as `check_kind`."""
    check_kind(what, value, (str, os.PathLike), "a path")


def check_seconds(what: str, value: float | None) -> None:
    """Return when the value is a number of seconds, or None. Raises as `check_kind`, and ValueError for NaN."""
    if value is None:
        return
    check_kind(what, value, (int, float), "a number of seconds")
    if math.isnan(value):
        raise ValueError(f"{what} is {value!r}; it is a number of seconds")


def checked_list(what: str, values: Iterable[Value], kind: type | tuple[type, ...], needed: str) -> list[Value]:
    """The values, each of which is of this kind. A single text is no list of them. Raises as `check_kind`."""
    shown = None if isinstance(values, str | bytes) else values
    if not isinstance(shown, Iterable):
        raise TypeError(f"{what} is {values!r}, {_named(type(values))}; it is a list, each of it {needed}")
    listed = list(shown)
    for each in listed:
        check_kind(f"one of {what}", each, kind, needed)
    return listed


def _named(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'aeiou' else 'a'} {kind.__name__}"
