"""Columns that stand in a file's path, as `dt=2026-01-01/`: their types, their values, and which of them a lane reads.

Values are as Hive and Spark write them: `%XX` for what no path may have, `__HIVE_DEFAULT_PARTITION__` for NULL.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any
from urllib.parse import unquote

from .._base.items import PathColumn
from .._base.place import Place

_NULL = "__HIVE_DEFAULT_PARTITION__"
_COLUMN = re.compile(r"\s*(?P<name>\w+)\s+(?P<type>\w+)\s*")
_CONDITION = re.compile(r"\s*(?P<how><=|>=|<|>|!=|=)\s*(?P<value>[^\s<>=].*?)\s*")
_BEGINS_ONE = re.compile(r"\s*[<>=]|\s*!=")
_HOW: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "!=": operator.ne,
    "=": operator.eq,
}


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_TYPES: Mapping[str, Callable[[str], Any]] = {
    "STRING": str,
    "INT": int,
    "BIGINT": int,
    "DOUBLE": float,
    "DATE": date.fromisoformat,
    "BOOLEAN": _boolean,
}
# Python takes more than Spark: 1_0 for ten, 20260101 for a day.
_SHAPES = {"INT": r"[+-]?[0-9]+", "BIGINT": r"[+-]?[0-9]+", "DOUBLE": r"[^_\s]+", "DATE": r"[0-9]{4}-[0-9]{2}-[0-9]{2}"}


@dataclass(frozen=True, slots=True)
class _AnyOf:
    """A test of a value: one of these, or all of these comparisons."""

    values: tuple[Any, ...] = ()
    comparisons: tuple[tuple[Callable[[Any, Any], bool], Any], ...] = ()

    def __call__(self, value: Any) -> bool:
        return value in self.values if self.values else all(how(value, other) for how, other in self.comparisons)


def columns_in(ddl: str) -> tuple[tuple[str, str], ...]:
    """The names and types in `dt DATE, region STRING`.

    Raises:
        ValueError: it is not like that.
    """
    found = []
    for part in ddl.split(","):
        column = _COLUMN.fullmatch(part)
        if column is None or column["type"].upper() not in _TYPES:
            raise ValueError(f"{part.strip()!r} is no column of a path: one is `NAME TYPE` with {', '.join(_TYPES)}")
        if column["name"].lower() == "_metadata":
            raise ValueError("_metadata is the column that tells of each row's file: no column of a path has this name")
        found.append((column["name"], column["type"].upper()))
    if len({name.lower() for name, _ in found}) < len(found):
        raise ValueError(f"{ddl!r} names a column twice")
    return tuple(found)


def path_columns(ddl: str | None, wanted: Mapping[str, Any]) -> tuple[PathColumn, ...]:
    """The columns of a lane, with the filter of each that has one.

    Raises:
        ValueError: a column or its filter is none.
    """
    columns = dict(columns_in(ddl)) if ddl is not None else {}
    for name in wanted:
        if name not in columns:
            raise ValueError(f"path_filter names {name!r}, which path_columns lacks")
    return tuple(
        PathColumn(name, kind, _test(name, kind, wanted[name]) if name in wanted else None)
        for name, kind in columns.items()
    )


def _test(name: str, kind: str, wanted: Any) -> _AnyOf:
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        if not wanted:
            raise ValueError(f"path_filter: {name} = [] would read nothing; leave {name} out to read all")
        return _AnyOf(values=tuple(_typed(name, kind, str(one)) for one in wanted))
    text = str(wanted)
    if _BEGINS_ONE.match(text) is None:
        return _AnyOf(values=(_typed(name, kind, text),))
    comparisons = []
    for part in re.split(r"\s+and\s+", text, flags=re.IGNORECASE):
        condition = _CONDITION.fullmatch(part)
        if condition is None:
            raise ValueError(f"path_filter: {part!r} is no condition of {name}: one is `>= VALUE`")
        comparisons.append((_HOW[condition["how"]], _typed(name, kind, condition["value"])))
    return _AnyOf(comparisons=tuple(comparisons))


def _typed(name: str, kind: str, text: str) -> Any:
    try:
        if kind in _SHAPES and re.fullmatch(_SHAPES[kind], text) is None:
            raise ValueError
        value = _TYPES[kind](text)
    except ValueError:
        raise ValueError(f"{text!r} is no {kind} of {name}") from None
    if kind in ("INT", "BIGINT") and not -(2 ** (31 if kind == "INT" else 63)) <= value < 2 ** (
        31 if kind == "INT" else 63
    ):
        raise ValueError(f"{text!r} is no {kind} of {name}")
    return value


def is_pruned(columns: Sequence[PathColumn], directory: str) -> bool:
    """Whether the name of a directory says that the lane reads nothing below it. One with no good value is looked at:
    its files are reported."""
    name, equals, text = directory.partition("=")
    for column in columns if equals else ():
        if column.name == name and column.test is not None:
            text = unquote(text)
            try:
                return text == _NULL or not column.test(_typed(name, column.type, text))
            except ValueError:
                return False
    return False


def values_in(columns: Sequence[PathColumn], place: Place) -> tuple[Any, ...]:
    """The values in the path, a column each; None for NULL.

    Raises:
        ValueError: the path has no such directory, or no value of the column's type.
    """
    told = [part.split("=", 1) for part in place.parts[1:-1] if "=" in part]
    there = dict(told)
    values = []
    for column in columns:
        if sum(name == column.name for name, _ in told) > 1:
            raise ValueError(f"its path has {column.name}=VALUE twice")
        if column.name not in there:
            raise ValueError(f"its path has no directory {column.name}=VALUE")
        text = unquote(there[column.name])
        values.append(None if text == _NULL else _typed(column.name, column.type, text))
    return tuple(values)
