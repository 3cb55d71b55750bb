"""The columns of a table, and the changes that make an item's rows fit into them.

A column's type is in the words of Spark's JSON: `"long"`, or a dict for a struct, an array or a map. Names are
compared without case, as Spark does; whether a value may be NULL does not count. The rules are those of
`on_other_columns`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._base.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Kind = str | dict[str, Any]
Columns = Mapping[str, Kind]

REFUSE = "refuse"
"""An item has exactly the table's columns."""
ADD = "add"
"""A column that the table lacks becomes one of the table; one that the item lacks is NULL in its rows."""
WIDEN = "widen"
"""As `ADD`; and where one of two types holds every value of the other, the wider one is taken."""

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_SIMPLE = frozenset(
    "boolean byte short integer long float double string binary date timestamp timestamp_ntz".split()  # noqa: SIM905
)
# The numbers in the order in which each holds every value of those before it.
_NUMBERS = (("byte", "short", "integer", "long"), ("byte", "short", "integer", "double"), ("float", "double"))


@dataclass(frozen=True, slots=True)
class Fit:
    """How an item's rows become rows of the table."""

    spelled: Mapping[str, str]
    """The table's name of each of the item's columns."""
    casts: Mapping[str, str] = field(default_factory=dict)
    """By the item's name, the simple type that a column is written as."""
    added: Columns = field(default_factory=dict)
    """Columns that the table gets."""
    widened: Columns = field(default_factory=dict)
    """Columns of the table, by its names, that get a wider type."""


def of_spark(schema: str) -> dict[str, Kind]:
    """The columns in the JSON of a Spark schema.

    Raises:
        JobError: a column has a type that tables have not.
    """
    return {one["name"]: _plain(one["name"], one["type"]) for one in json.loads(schema)["fields"]}


def to_spark(columns: Columns) -> str:
    """The columns as the JSON of a Spark schema, which is that of a Delta table as well."""
    return json.dumps({"type": "struct", "fields": [_field(name, kind) for name, kind in columns.items()]})


def struct_of(columns: Columns) -> StructType:
    """The columns as PySpark has them, on classic and Connect alike."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(to_spark(columns)))


def told(kind: Kind) -> str:
    """A type for people."""
    return kind if isinstance(kind, str) else str(kind["type"])


def fitted(table: Columns, found: Columns, rule: str, place: str, *, may_widen: bool = True) -> Fit:
    """How rows with the columns `found` become rows of the table at `place`; `may_widen`: whether its columns can.

    Raises:
        JobError: they cannot by this rule; the message names each column that differs.
    """
    theirs = {name.lower(): name for name in table}
    spelled = {name: theirs.get(name.lower(), name) for name in found}
    added = {name: kind for name, kind in found.items() if name.lower() not in theirs}
    casts: dict[str, str] = {}
    widened: dict[str, Kind] = {}
    wrong: list[str] = []
    for name, kind in found.items():
        there = table.get(spelled[name], kind)
        if there == kind:
            continue
        if rule == WIDEN and holds(there, kind):
            casts[name] = str(there)
        elif rule == WIDEN and may_widen and holds(kind, there):
            widened[spelled[name]] = kind
        else:
            wrong.append(f"{name!r} is {told(kind)}, not {told(there)}")
    if rule == REFUSE:
        here = {name.lower() for name in found}
        wrong += [f"{name!r} ({told(kind)}) is unexpected" for name, kind in added.items()]
        wrong += [f"{name!r} ({told(kind)}) is missing" for name, kind in table.items() if name.lower() not in here]
    if wrong:
        raise JobError(
            f"the columns are not those of the table {place!r}: {'; '.join(wrong)}; "
            f"output.on_other_columns is {rule!r}, and may be {', '.join(repr(one) for one in _RULES if one != rule)}"
        )
    return Fit(spelled, casts, added, widened)


_RULES = (REFUSE, ADD, WIDEN)


def holds(wide: Kind, narrow: Kind) -> bool:
    """Whether the first type has every value of the second."""
    if not isinstance(wide, str) or not isinstance(narrow, str):
        return False
    one, other = _DECIMAL.fullmatch(wide), _DECIMAL.fullmatch(narrow)
    if one and other:
        (digits, scale), (least, least_scale) = ((int(match[1]), int(match[2])) for match in (one, other))
        return scale >= least_scale and digits - scale >= least - least_scale
    return any(narrow in row and wide in row and row.index(wide) > row.index(narrow) for row in _NUMBERS)


def _field(name: str, kind: Kind) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _plain(name: str, kind: Kind) -> Kind:
    """The type, with every value of it free to be NULL."""
    if isinstance(kind, str):
        if kind not in _SIMPLE and not _DECIMAL.fullmatch(kind):
            raise JobError(f"the column {name!r} is {kind}, which no table has; cast it, or leave it out")
        return kind
    if kind["type"] == "struct":
        return {"type": "struct", "fields": [_field(one["name"], _plain(name, one["type"])) for one in kind["fields"]]}
    if kind["type"] == "array":
        return {"type": "array", "elementType": _plain(name, kind["elementType"]), "containsNull": True}
    if kind["type"] == "map":
        return {
            "type": "map",
            "keyType": _plain(name, kind["keyType"]),
            "valueType": _plain(name, kind["valueType"]),
            "valueContainsNull": True,
        }
    return _plain(name, kind["sqlType"])  # a type of the user's own, stored as another
