"""The columns of each lane with `schema = "infer"`: inferred once, remembered in the state, extended when asked to.

Promise     K1  The columns are in the state before the first row with them is put out: a run after a crash goes on
                with the same. A column stays, with its type.
            K2  Items that run at the same time learn one after another: each begins with what the last has learnt.
State       `_columns`, the known ones by lane; `_told`, what the runner was told and has not recorded; `_is_over`. All
            under `_lock`. `_learning` has a lock for each lane.
Threads     Those of running items learn; the runner's records, and closes at the end.
Lock order  the lane's lock of `learning` -> `_lock`.
Waiting     `learn` waits until the runner has recorded: the runner never waits for an item, and `close` ends the wait.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ..._locks import Lock
from .._base.errors import PipelineError
from .kinds import Columns, Kind, holds, of_spark, to_spark


@dataclass(frozen=True, slots=True)
class Learned:
    """For the runner: a lane's columns, to be recorded, and who waits for that."""

    lane: str
    schema: str
    """The JSON of a Spark schema."""
    recorded: Future[None]


class KnownColumns:
    """The known columns of lanes. `post` takes a `Learned` to the runner."""

    def __init__(self, remembered: Mapping[str, str], post: Callable[[Learned], None]) -> None:
        self._post = post
        self._lock = Lock()
        self._columns = {lane: of_spark(schema) for lane, schema in remembered.items()}
        self._told: set[Future[None]] = set()
        self._is_over = False
        self._learning: defaultdict[str, Lock] = defaultdict(Lock)

    def of(self, lane: str) -> Columns | None:
        """The columns of the lane; None while none is known."""
        with self._lock:
            return self._columns.get(lane)

    @contextlib.contextmanager
    def learning(self, lane: str) -> Iterator[Columns | None]:
        """The lane's columns; while inside no other thread learns them."""
        with self._lock:
            lock = self._learning[lane]
        with lock:
            yield self.of(lane)

    def learn(self, lane: str, columns: Columns) -> None:
        """Know these columns from now on; returns when the state has them. Call it inside `learning`.

        Raises:
            PipelineError: the run has ended.
        """
        told = Learned(lane, to_spark(columns), Future())
        with self._lock:
            if self._is_over:
                raise _ended()
            self._told.add(told.recorded)
        self._post(told)
        try:
            told.recorded.result()
        finally:
            with self._lock:
                self._told.discard(told.recorded)
        with self._lock:
            self._columns[lane] = dict(columns)

    def close(self) -> None:
        """The runner records nothing any more."""
        with self._lock:
            self._is_over = True
            told = list(self._told)
        for one in told:
            with contextlib.suppress(Exception):  # recorded in this moment
                one.set_exception(_ended())


def _ended() -> PipelineError:
    return PipelineError("the run has ended; the columns that were found are not recorded")


def extended(known: Columns, found: Columns) -> Columns:
    """The columns that are known, then those that were found besides; also those inside of structs."""
    names = {name.lower(): name for name in known}
    columns = dict(known)
    for name, kind in found.items():
        there = names.get(name.lower())
        if there is None:
            columns[name] = kind
        else:
            columns[there] = _extended_kind(columns[there], kind)
    return columns


def common(one: Columns, other: Columns) -> Columns:
    """The columns of both, with types that hold the values of either: of what has no such type the text."""
    names = {name.lower(): name for name in one}
    columns = dict(one)
    for name, kind in other.items():
        there = names.get(name.lower())
        columns[there or name] = kind if there is None else _common_kind(columns[there], kind)
    return columns


def hinted(columns: Columns, hints: Columns) -> Columns:
    """The columns with the types that the hints name; a hint for another column adds it."""
    wanted = {name.lower(): (name, kind) for name, kind in hints.items()}
    given = {name: wanted.pop(name.lower(), (name, kind))[1] for name, kind in columns.items()}
    return {**given, **dict(wanted.values())}


def new_parts(known: Columns, found: Columns) -> list[str]:
    """The names of columns that were found and are not known, and of those inside of structs: `a.b`."""
    names = {name.lower(): kind for name, kind in known.items()}
    parts: list[str] = []
    for name, kind in found.items():
        if name.lower() not in names:
            parts.append(name)
        else:
            parts += (f"{name}.{part}" for part in _new_inside(names[name.lower()], kind))
    return parts


def ddl(columns: Columns) -> str:
    """The columns as DDL, for people."""
    return ", ".join(f"{name} {told_kind(kind)}" for name, kind in columns.items())


def ddl_of_schema(schema: str) -> str:
    """As `ddl`, of the JSON of a Spark schema."""
    return ddl({one["name"]: one["type"] for one in json.loads(schema)["fields"]})


def told_kind(kind: Kind) -> str:
    """A type as DDL, for people."""
    if isinstance(kind, str):
        return {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}.get(kind, kind)
    if kind["type"] == "struct":
        inside = ", ".join(f"{one['name']}: {told_kind(one['type'])}" for one in kind["fields"])
        return f"struct<{inside}>"
    if kind["type"] == "array":
        return f"array<{told_kind(kind['elementType'])}>"
    return f"map<{told_kind(kind['keyType'])}, {told_kind(kind['valueType'])}>"


def _fields(kind: Kind) -> dict[str, Any] | None:
    """The fields of a struct; None of any other type."""
    if isinstance(kind, dict) and kind["type"] == "struct":
        return {one["name"]: one["type"] for one in kind["fields"]}
    return None


def _inside(kind: Kind, other: Kind) -> str | None:
    """Where two arrays, or two maps, have the type of what is in them; None of other types."""
    if isinstance(kind, dict) and isinstance(other, dict) and kind["type"] == other["type"]:
        return {"array": "elementType", "map": "valueType"}.get(kind["type"])
    return None


def _extended_kind(known: Kind, found: Kind) -> Kind:
    return _joined(known, found, extended, _extended_kind) or known


def _joined(
    one: Kind, other: Kind, columns: Callable[[Columns, Columns], Columns], kinds: Callable[[Kind, Kind], Kind]
) -> Kind | None:
    """A struct, array or map of what these functions make of the parts of two; None of other types."""
    mine, its = _fields(one), _fields(other)
    if mine is not None and its is not None:
        return {"type": "struct", "fields": json.loads(to_spark(columns(mine, its)))["fields"]}
    inside = _inside(one, other)
    if inside is None or isinstance(one, str) or isinstance(other, str):
        return None
    return {**one, inside: kinds(one[inside], other[inside])}


def _new_inside(known: Kind, found: Kind) -> list[str]:
    mine, its = _fields(known), _fields(found)
    if mine is not None and its is not None:
        return new_parts(mine, its)
    inside = _inside(known, found)
    if inside is None or isinstance(known, str) or isinstance(found, str):
        return []
    return _new_inside(known[inside], found[inside])


def _common_kind(one: Kind, other: Kind) -> Kind:
    if one == other or holds(one, other):
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        return _joined(one, other, common, _common_kind) or one
    return other if holds(other, one) else "string"
