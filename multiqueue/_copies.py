"""Objects made by copying one, where thousands differ in a field or two: `__init__` would set all the others again.

    entries = Copier(Entry, ("message", "size"))
    entries.copies(Entry(queue, None, 0), messages, sizes)

Promise     A copy is of its template's class. It has in each slot what the template has there, be it nothing, but in
            the named slots what it is given. No `__init__` and no other code of the class runs.
Assumes     that nobody changes a template, or the lists that are given, meanwhile. Any number of threads may use one
            copier.
"""

from __future__ import annotations

import os
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

T = TypeVar("T")


class PlainCopier(Generic[T]):
    """Makes copies of instances of `kind`, whose classes have slots alone. `each` names the slots that are different in
    each copy, `all` those that are different from the template and alike in all copies."""

    def __init__(self, kind: type[T], each: tuple[str, ...], all: tuple[str, ...] = ()) -> None:
        found = [
            (name, value)
            for base in kind.__mro__
            for name, value in vars(base).items()
            if isinstance(value, MemberDescriptorType)
        ]
        slots: dict[str, Any] = dict(reversed(found))
        if not found or len(slots) < len(found) or kind.__dictoffset__ or kind.__weakrefoffset__:
            raise TypeError(f"{kind!r} is no class of slots alone")
        if not each or any(name not in slots for name in (*each, *all)):
            raise TypeError(f"{kind!r} has no slots {each!r} and {all!r}")
        self._kind = kind
        self._each = [slots[name].__set__ for name in each]
        self._all = [slots[name].__set__ for name in all]
        self._rest = [slot for name, slot in slots.items() if name not in (*each, *all)]

    def copies(self, templates: T | list[T], /, *values: Any) -> list[T]:
        """A copy of a template, or of each of a list, for each value of the lists that come next: one list for each
        name of `each`. Then come the values for the names of `all`."""
        columns, alike = values[: len(self._each)], values[len(self._each) :]
        if len(columns) < len(self._each) or len(alike) != len(self._all):
            raise TypeError(f"copies takes {1 + len(self._each) + len(self._all)} arguments, not {1 + len(values)}")
        count = len(columns[0])
        many = templates if isinstance(templates, list) else [templates] * count
        made: list[T] = []
        last: object = self  # no template; nearly all copies have one
        slots: list[tuple[Any, object]] = []
        for template, *own in zip(many, *columns, strict=True):
            if template is not last:
                last, slots = template, self._slots_of(template)
            one = object.__new__(type(template))
            for put, value in slots:
                put(one, value)
            for put, value in zip(self._each, own, strict=True):
                put(one, value)
            for put, value in zip(self._all, alike, strict=True):
                put(one, value)
            made.append(one)
        return made

    def _slots_of(self, template: object) -> list[tuple[Any, object]]:
        if not isinstance(template, self._kind) or hasattr(template, "__dict__"):
            raise TypeError(f"{type(template)!r} is no template for a {self._kind!r}")
        slots: list[tuple[Any, object]] = []
        for slot in self._rest:
            try:
                slots.append((slot.__set__, slot.__get__(template)))
            except AttributeError:
                pass  # it is empty there
        return slots


if TYPE_CHECKING or os.environ.get("MULTIQUEUE_PURE", "") not in ("", "0"):
    Copier = PlainCopier
else:
    try:
        from ._copier import Copier
    except ImportError:
        Copier = PlainCopier
