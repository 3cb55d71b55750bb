"""Whether an argument is of its kind; else a sentence says what was given, and what is needed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Value = TypeVar("Value")


def check_kind(what: str, value: object, kind: type | tuple[type, ...], needed: str) -> None:
    """Return when the value is of this kind.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{what} is {value!r}, a {type(value).__name__}; it is {needed}")


def checked_list(what: str, values: Iterable[Value], kind: type, needed: str) -> list[Value]:
    """The values, each of which is of this kind. A single text is no list of them. Raises as `check_kind`."""
    shown = None if isinstance(values, str | bytes) else values
    if not isinstance(shown, Iterable):
        raise TypeError(f"{what} is {values!r}, a {type(values).__name__}; it is a list, each of it {needed}")
    listed = list(shown)
    for each in listed:
        check_kind(f"one of {what}", each, kind, needed)
    return listed
