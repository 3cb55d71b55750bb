"""Rows of files whose columns need not be those that the lane knows: added, rescued, left out, or an error.

Promise     F1  Every item of a lane has the lane's columns with their types, in one order; a file that lacks one has
                NULL there. A file that has none of them is an error.
            F2  With a rescued column nothing is lost: what is no column of the lane, and what is not of its column's
                type, is in that column of its row, as a JSON object of texts with the file's path. Without one, a value
                that is not of its column's type is a record that is not as configured, and of Parquet an error.
            F3  What is malformed (no JSON, too few fields or too many) is not rescued: `corrupt` says what becomes of
                it.
How         CSV is read with its own header's columns, JSON by Spark's reader, or, where values are rescued, as texts
            that Spark's functions parse; Parquet with each file's own types, which are then cast.
Cost        Types are inferred for a lane's first item and, with `add`, for files with new columns. Of JSON all keys
            are looked at for `add` and `set aside`: a pass over the item's files.
Threads     Those of running items.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .._base.errors import JobError
from .._base.items import ADD, ALLOW, INFER, SET_ASIDE
from .._base.place import Place
from .._columns.kinds import Columns, Kind, holds, of_spark, struct_of
from .._columns.known import KnownColumns, common, extended, hinted, new_parts, told_kind
from .csv_input import Headers, options_of
from .json_input import check_documents
from .parquet_input import footer
from .reading import CORRUPT, FILE, Reading, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

PATH = "_file_path"
"""The key of the file's path among what was rescued."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Files of an item that have the same columns."""

    places: Sequence[Place]
    columns: Columns
    """Of CSV every one is a string."""
    header: StructType | None = None
    """Of CSV."""


class Fitting:
    """How items of lanes whose columns are known are read."""

    def __init__(self, known: KnownColumns, headers: Headers) -> None:
        self._known = known
        self._headers = headers
        self._declared: dict[str, Columns] = {}

    def read(self, reading: Reading) -> DataFrame | None:
        """The rows of the item's files; None where nothing is known and there is no row to learn from.

        Raises:
            JobError: a file has none of the lane's columns, or others that it may not have.
        """
        parts = self._parts(reading)
        known = self._columns(reading, parts) if parts else None
        if known is None:
            return None
        if reading.lane.format in ("json", "jsonl"):
            return self._json_frame(reading, known, parts[0])
        frame = _csv_frame if reading.lane.format == "csv" else _parquet_frame
        frames = [frame(reading, part, known) for part in parts]
        return functools.reduce(lambda whole, one: whole.unionByName(one), frames)

    # What the files have

    def _parts(self, reading: Reading) -> list[_Part]:
        if reading.lane.format == "csv":
            return [
                _Part(places, dict.fromkeys(header.names, "string"), header)
                for header, places in self._headers.groups(reading)
            ]
        if reading.lane.format == "parquet":
            return _parquet_parts(reading)
        check_documents(reading)
        lane = reading.lane
        is_known = lane.schema != INFER or self._known.of(lane.name) is not None
        is_enough = is_known and not _looks_at_keys(reading)
        return [_Part(reading.item.places, {} if is_enough else _inferred(reading))]

    def _declared_in(self, reading: Reading, ddl: str | None) -> Columns:
        if ddl is None:
            return {}
        if ddl not in self._declared:
            self._declared[ddl] = of_spark(reading.spark.createDataFrame([], ddl).schema.json())
        return self._declared[ddl]

    # What the lane has

    def _columns(self, reading: Reading, parts: Sequence[_Part]) -> Columns | None:
        """The lane's columns, with those that these files add; None where nothing can be learnt."""
        lane = reading.lane
        if lane.schema != INFER:
            declared = self._declared_in(reading, lane.schema)
            _require_allowed(reading, parts, declared)
            return declared
        hints = self._declared_in(reading, lane.schema_hints)
        known = _sufficing(reading, parts, self._known.of(lane.name), hints)
        if known is not None:
            return known
        with self._known.learning(lane.name) as remembered:
            known = _sufficing(reading, parts, remembered, hints)  # another item may have learnt during the wait
            if known is not None:
                return known
            if remembered is None:
                found = functools.reduce(common, (_typed(reading, part) for part in parts))
                if not found or not _has_rows(reading, parts, found):
                    return None
            else:
                found = remembered
                for part in parts:
                    if new_parts(found, part.columns):
                        found = extended(found, _typed(reading, part))
            columns = hinted(found, hints)
            if lane.rescued_column is not None and lane.rescued_column.lower() in map(str.lower, columns):
                raise JobError(
                    f"{_shown(reading, parts[0])} has a column {lane.rescued_column!r}: rename rescued_column"
                )
            if columns != remembered:
                self._known.learn(lane.name, columns)
            return columns

    # The rows

    def _json_frame(self, reading: Reading, known: Columns, part: _Part) -> DataFrame:
        columns = struct_of(known)
        if reading.lane.rescued_column is None:
            return reading.load(reading.item.places, columns)
        from pyspark.sql import functions as f

        ddl = "map<string,string>"
        wanted = type(columns)(list(columns.fields)).add(CORRUPT, "string")
        options = reading.parser_options()
        rows = reading.texts().select(
            f.col("value"),
            f.col(FILE),
            f.from_json("value", wanted, options).alias("row"),
            f.from_json("value", ddl).alias("raw"),
        )
        row, raw = f.col("row"), f.col("raw")
        is_odd = row.getField(CORRUPT).isNotNull()
        misfits = []
        for name, kind in known.items():
            is_lost = row.getField(name).isNull()
            if not isinstance(kind, str):
                is_lost = is_lost | is_odd | _has_more(raw, name, kind)
            misfits.append(f.when(is_lost & raw[name].isNotNull(), f.lit(name)))
        names = f.array(*(f.lit(name) for name in known))
        lost = f.array_compact(f.array(*misfits))
        kept = f.map_filter(
            raw, lambda key, value: value.isNotNull() & (~f.array_contains(names, key) | f.array_contains(lost, key))
        )
        return rows.select(
            *(row.getField(name).alias(name) for name in known),
            _rescued(kept).alias(reading.lane.rescued_column),
            f.when(is_odd & raw.isNull(), f.col("value")).alias(CORRUPT),
            f.col(FILE),
        )


def _sufficing(reading: Reading, parts: Sequence[_Part], remembered: Columns | None, hints: Columns) -> Columns | None:
    """The lane's columns as they are remembered; None where these files have to add to them.

    Raises:
        JobError: the files have columns that they may not have.
    """
    if remembered is None:
        return None
    known = hinted(remembered, hints)
    _require_allowed(reading, parts, known)
    is_more = reading.lane.on_new_columns == ADD and any(new_parts(known, part.columns) for part in parts)
    return None if is_more else known


def _require_allowed(reading: Reading, parts: Sequence[_Part], known: Columns) -> None:
    """Return if each part has a column that is known, and others only where they may be.

    Raises:
        JobError: one has not.
    """
    lane = reading.lane
    names = {name.lower(): name for name in known}
    is_json = lane.format in ("json", "jsonl")
    for part in parts:
        if not part.columns or (is_json and not _looks_at_keys(reading)):
            continue
        if names.keys().isdisjoint(map(str.lower, part.columns)):
            raise JobError(
                f"{_shown(reading, part)} has none of the columns of lane {lane.name!r}: expected "
                f"{', '.join(map(repr, known))}, found {', '.join(map(repr, part.columns))}"
            )
        if lane.on_new_columns == SET_ASIDE and (new := new_parts(known, part.columns)):
            raise JobError(
                f"{_shown(reading, part)} has columns that lane {lane.name!r} lacks: {', '.join(map(repr, new))}; "
                'on_new_columns = "add" takes them, "rescue" keeps their values in a column, "ignore" leaves them out'
            )
        odd = [name for name in part.columns if is_json and names.get(name.lower(), name) != name]
        if odd and lane.rescued_column is None:
            raise JobError(
                f"{_shown(reading, part)} has the key {odd[0]!r}, and the lane's column is "
                f"{names[odd[0].lower()]!r}: in JSON these differ; name a rescued_column, or a schema"
            )


def _looks_at_keys(reading: Reading) -> bool:
    """Whether the keys of JSON decide what becomes of a file of a lane whose columns are known."""
    return reading.lane.on_new_columns in (ADD, SET_ASIDE)


def _shown(reading: Reading, part: _Part) -> str:
    more = len(part.places) - 1
    return reading.item.shown(part.places[0]) + (f" (or one of {more} read with it)" if more else "")


def _plain(reading: Reading) -> Reading:
    """The same without columns of ours."""
    return replace(
        reading, lane=replace(reading.lane, corrupt=ALLOW, rescued_column=None), schema=None, wants_files=False
    )


def _inferred(reading: Reading) -> Columns:
    """The columns of JSON files, as Spark infers them from all records."""
    plain = _plain(reading)
    columns = of_spark(plain.load(reading.item.places).schema.json())
    return {name: kind for name, kind in columns.items() if name != plain.corrupt_column}


def _typed(reading: Reading, part: _Part) -> Columns:
    """The part's columns with their types; those of CSV are inferred."""
    if part.header is None:
        return part.columns
    infers = {} if reading.option("inferSchema") else {"inferSchema": "true"}
    frame = _plain(reading).load(part.places, None, {**options_of(part.header), **infers})
    return of_spark(frame.schema.json())


def _has_rows(reading: Reading, parts: Sequence[_Part], found: Columns) -> bool:
    """Whether the types were told by rows: columns of headers alone are strings."""
    if reading.lane.format != "csv" or any(kind != "string" for kind in found.values()):
        return True
    headers = [(part.places, part.header) for part in parts if part.header is not None]
    return any(_plain(reading).load(places, header, options_of(header)).take(1) for places, header in headers)


def _sql(kind: Kind) -> str:
    """The type as Spark's SQL has it."""
    return str(struct_of({"a": kind}).fields[0].dataType.simpleString())


def _spelled(known: Columns, names: Sequence[str]) -> dict[str, str]:
    """The file's name of each column that it has, by the lane's."""
    there = {name.lower(): name for name in names}
    return {name: there[name.lower()] for name in known if name.lower() in there}


def _rescued(kept: Column) -> Column:
    """A map of what did not fit as JSON, with the file; NULL where it is empty."""
    from pyspark.sql import functions as f

    kept = f.map_filter(kept, lambda key, value: value.isNotNull() & (key != PATH))
    return f.when(f.size(kept) > 0, f.to_json(f.map_concat(kept, f.create_map(f.lit(PATH), f.col(FILE)))))


def _map(values: Sequence[tuple[str, Column]]) -> Column:
    from pyspark.sql import functions as f

    if not values:
        return f.lit(None).cast("map<string,string>")
    return f.map_from_arrays(f.array(*(f.lit(name) for name, _ in values)), f.array(*(value for _, value in values)))


def _csv_frame(reading: Reading, part: _Part, known: Columns) -> DataFrame:
    from pyspark.sql import functions as f

    header = part.header
    assert header is not None  # of CSV
    spelled = _spelled(known, header.names)
    own = {there: name for name, there in spelled.items()}
    types = {name: known[own[name]] if name in own else "string" for name in header.names}
    frame = reading.load(part.places, struct_of(types), options_of(header))
    missing = [f.lit(None).cast(_sql(kind)).alias(name) for name, kind in known.items() if name not in spelled]
    columns = {name: f.col(quoted(there)).alias(name) for name, there in spelled.items()}
    columns |= dict(zip((name for name in known if name not in spelled), missing, strict=True))
    chosen = [columns[name] for name in known]
    rescued = reading.lane.rescued_column
    if rescued is None:
        return frame.select(*chosen, *reading.own_columns)
    raw = f.col("_multiqueue_raw")
    texts = ", ".join(f"{quoted(name)} STRING" for name in (*type(header)(header.fields).names, CORRUPT))
    frame = frame.withColumn("_multiqueue_raw", f.from_csv(CORRUPT, texts, reading.parser_options()))
    is_whole = raw.getField(CORRUPT).isNull()
    values = [
        (name, f.col(quoted(name)) if name not in own else f.when(f.col(quoted(name)).isNull(), raw.getField(name)))
        for name in header.names
        if name not in own or types[name] != "string"
    ]
    return frame.select(
        *chosen,
        _rescued(_map(values)).alias(rescued),
        f.when(~is_whole, f.col(CORRUPT)).alias(CORRUPT),
        FILE,
    )


def _parquet_parts(reading: Reading) -> list[_Part]:
    groups: dict[tuple[tuple[str, str], ...], list[Place]] = {}
    for place in reading.item.places:
        groups.setdefault(tuple(footer(reading, place).items()), []).append(place)
    plain = _plain(reading)
    return [_Part(places, of_spark(plain.load(places[:1]).schema.json())) for places in groups.values()]


def _parquet_frame(reading: Reading, part: _Part, known: Columns) -> DataFrame:
    from pyspark.sql import functions as f

    plain, rescued = _plain(reading), reading.lane.rescued_column
    wanted = struct_of(part.columns)
    frame = plain.rows_with_files(part.places, wanted) if reading.own_columns else plain.load(part.places, wanted)
    spelled = _spelled(known, list(part.columns))
    values = [
        (there, _text(f.col(quoted(there)), kind))
        for there, kind in part.columns.items()
        if there not in spelled.values()
    ]
    chosen = []
    for name, kind in known.items():
        if name not in spelled:
            chosen.append(f.lit(None).cast(_sql(kind)).alias(name))
            continue
        column, its = f.col(quoted(spelled[name])), part.columns[spelled[name]]
        if _is_held(its, kind):
            fitted = _held(column, its, kind)
            if rescued is not None and new_parts({name: kind}, {name: its}):
                values.append((spelled[name], _text(column, its)))
        elif rescued is None:
            raise JobError(
                f"{_shown(reading, part)} has {name!r} as {told_kind(its)}, and lane {reading.lane.name!r} as "
                f"{told_kind(kind)}"
            )
        else:
            text = _text(column, its)
            fitted = text.try_cast(_sql(kind)) if isinstance(kind, str) else f.lit(None).cast(_sql(kind))
            values.append((spelled[name], f.when(fitted.isNull(), text)))
        chosen.append(fitted.alias(name))
    if rescued is None:
        return frame.select(*chosen, *reading.own_columns)
    return frame.select(*chosen, _rescued(_map(values)).alias(rescued), f.lit(None).cast("string").alias(CORRUPT), FILE)


def _is_held(its: Kind, kind: Kind) -> bool:
    """Whether the second type has every value of the first, but for what structs of the first have besides."""
    if its == kind or isinstance(its, str) or isinstance(kind, str):
        return its == kind or holds(kind, its)
    if its["type"] != kind["type"]:
        return False
    if kind["type"] == "struct":
        there = {one["name"].lower(): one["type"] for one in its["fields"]}
        wanted = {one["name"].lower(): one["type"] for one in kind["fields"]}
        return all(_is_held(there[name], wanted[name]) for name in there.keys() & wanted.keys())
    if kind["type"] == "array":
        return _is_held(its["elementType"], kind["elementType"])
    return its["keyType"] == kind["keyType"] and _is_held(its["valueType"], kind["valueType"])


def _held(column: Column, its: Kind, kind: Kind) -> Column:
    """The column's values as this type, of which `_is_held` is true; what a struct lacks is NULL."""
    from pyspark.sql import functions as f

    if its == kind:
        return column
    if isinstance(its, str) or isinstance(kind, str):
        return column.cast(_sql(kind))
    if kind["type"] == "array":
        return f.transform(column, lambda one: _held(one, its["elementType"], kind["elementType"]))
    if kind["type"] == "map":
        return f.transform_values(column, lambda key, one: _held(one, its["valueType"], kind["valueType"]))
    there = {one["name"].lower(): one for one in its["fields"]}
    fields = []
    for one in kind["fields"]:
        found = there.get(one["name"].lower())
        if found is None:
            value = f.lit(None).cast(_sql(one["type"]))
        else:
            value = _held(column.getField(found["name"]), found["type"], one["type"])
        fields.append(value.alias(one["name"]))
    return f.when(column.isNotNull(), f.struct(*fields))


def _text(column: Column, kind: Kind) -> Column:
    """A value as text, that of a struct, an array or a map as JSON."""
    from pyspark.sql import functions as f

    if isinstance(kind, str):
        return f.base64(column) if kind == "binary" else column.cast("string")
    return f.to_json(column)


def _has_more(raw: Column, name: str, kind: Kind) -> Column:
    """Whether the text of a struct, or of an array of them, has keys that its type has not."""
    from pyspark.sql import functions as f

    text = raw[name]
    return f.lit(False) if not isinstance(kind, dict) else _keys_beside(text, kind)


def _keys_beside(text: Column, kind: Kind) -> Column:
    from pyspark.sql import functions as f

    if not isinstance(kind, dict) or kind["type"] == "map":
        return f.lit(False)
    if kind["type"] == "array":
        inside = kind["elementType"]
        return f.coalesce(
            f.exists(f.from_json(text, "array<string>"), lambda one: _keys_beside(one, inside)), f.lit(False)
        )
    fields = {one["name"]: one["type"] for one in kind["fields"]}
    keys = f.map_keys(f.from_json(text, "map<string,string>"))
    beside = f.size(f.array_except(keys, f.array(*(f.lit(name) for name in fields)))) > 0
    raw = f.from_json(text, "map<string,string>")
    for name, inside in fields.items():
        if isinstance(inside, dict):
            beside = beside | _keys_beside(raw[name], inside)
    return f.coalesce(beside, f.lit(False))
