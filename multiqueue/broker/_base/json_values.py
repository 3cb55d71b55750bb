"""Values of headers and arguments as JSON, without loss.

JSON knows no bytes, decimals or times, and its readers disagree on large numbers. Each of those is written as an
object with one key that begins with `~`; a table that itself has that key is written as a list of pairs. A tuple
comes back as a list, a subclass as its base, a time zone as its offset. Pure functions, asked under no lock: what they
read are the user's objects.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from multiqueue._carried import DEEPEST

_MARK: Final = "~"
# Types that JSON writes as they are. Not int: see _LARGE.
_PLAIN: Final = frozenset({str, bool, float, type(None)})
_LARGE: Final = 1 << 63  # beyond it decimal digits cost quadratic time, and Python refuses more than 4300 of them

# What `to_json` made, as a line of ASCII.
write: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def dump(value: object) -> str:
    """The value as a line of ASCII. Raises TypeError for a value or key that no header can hold, and says where; and
    for twice as many tables and lists within each other as AMQP can carry."""
    return write(to_json(value, ""))


def load(text: str | bytes) -> object:
    """The value that `dump` wrote. Raises ValueError: it wrote no such text."""
    if isinstance(text, bytes):
        text = text.decode()
    value = json.loads(text)
    return from_json(value) if _MARK in text else value


def to_json(value: object, where: str, depth: int = 2 * DEEPEST) -> object:
    """The value in what `json` can write; `where` names it in errors."""
    if type(value) in _PLAIN:
        return value
    if type(value) is int and -_LARGE < value < _LARGE:
        return value
    if isinstance(value, Mapping | list | tuple):
        if depth <= 0:
            raise TypeError(f"{where[:80]}... is too many tables and lists within each other to be stored")
        if isinstance(value, Mapping):
            return _table(value, where, depth - 1)
        return [to_json(each, f"{where}[{index}]", depth - 1) for index, each in enumerate(value)]
    return _marked(value, where)


def _table(table: Mapping[object, object], where: str, depth: int) -> object:
    items: dict[str, object] = {}
    is_marked = False
    for key, value in table.items():
        if not isinstance(key, str):
            raise TypeError(f"a key of {where or 'a table'} is {key!r}, a {type(key).__name__}; keys are strings")
        is_marked = is_marked or key.startswith(_MARK)
        items[str(key)] = to_json(value, f"{where}[{key!r}]", depth)
    return {"~m": [[key, value] for key, value in items.items()]} if is_marked else items


def _marked(value: object, where: str) -> object:
    if isinstance(value, bool | str | float):
        return value
    if isinstance(value, int) and -_LARGE < int(value) < _LARGE:
        return int(value)
    for kinds, mark, as_text, _ in _MARKED:
        if isinstance(value, kinds):
            return {mark: as_text(value)}
    raise TypeError(
        f"{where or 'a value'} is {value!r}, a {type(value).__name__}, which cannot be stored; what can is None, bool,"
        " int, float, str, bytes, Decimal, datetime, and lists and dicts of those"
    )


# Types that JSON lacks: the mark of each, as text, and back.
_MARKED: Final[tuple[tuple[Any, str, Callable[[Any], str], Callable[[str], object]], ...]] = (
    (int, "~i", lambda value: f"{int(value):x}", lambda text: int(text, 16)),
    ((bytes, bytearray, memoryview), "~b", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    (Decimal, "~d", str, Decimal),
    (datetime, "~t", lambda value: value.isoformat(), datetime.fromisoformat),
)
_READERS: Final = {mark: read for _, mark, _, read in _MARKED}


def from_json(value: object) -> object:
    """The value that `to_json` was given."""
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(key, content)] = value.items()
        if key == "~m":
            return {name: from_json(each) for name, each in content}
        if key in _READERS:
            return _READERS[key](content)
    return {key: from_json(each) for key, each in value.items()}
