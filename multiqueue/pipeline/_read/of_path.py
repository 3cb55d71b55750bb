"""Columns that say of each row where it is from: those in the path of its file, and `_metadata`.

Promise     They are the same whichever way a file is read: by Spark, by the executors' Python, or by the driver.
How         Where all files of the item have the same values these are literals. Otherwise each way brings the file of
            each row (`Reading.wants_files`), by which the rows are joined with a small table of the item's files.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .._base.errors import JobError
from .._base.place import Place
from .._config.path_columns import values_in
from .reading import FILE, Reading, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

METADATA = "_metadata"
_KEY = "_multiqueue_key"
_OTHER_KEY = "_multiqueue_other_key"

# Java's URIs keep letters beyond ASCII.
_ESCAPED = re.compile(r'[\x00-\x20"%<>\\^`{|}#?\[\]]')


def wants_files(reading: Reading, *, metadata: bool) -> bool:
    """Whether rows of the item differ in what their files say of them.

    Raises:
        JobError: a path has not the columns of the lane.
    """
    item = reading.item
    return len(item.files) > 1 and (metadata or len({_values(reading, place) for place in item.places}) > 1)


def with_path(reading: Reading, frame: DataFrame, *, metadata: bool) -> DataFrame:
    """The rows with the lane's columns of the path, and with `metadata` with `_metadata`, as last ones.

    A column of the file by that name gives way, as with Spark.
    """
    columns = reading.lane.path_columns
    if not columns and not metadata:
        return frame
    from pyspark.sql import functions as f

    names = [*(one.name for one in columns), *([METADATA] if metadata else [])]
    own = [name for name in frame.columns if name.lower() not in {one.lower() for one in names}]
    frame, told = frame.select(*map(quoted, own)), _table(reading)
    if reading.wants_files:
        text = f"url_decode(replace({FILE}, '+', '%2B'))"  # the ways spell a place each in its own words
        frame = frame.withColumn(
            _KEY, f.expr(f"regexp_replace(regexp_replace({text}, '^file:/+', '/'), '^s3a:', 's3:')")
        )
        frame = frame.join(f.broadcast(told), f.col(_KEY) == f.col(_OTHER_KEY), "left")
        lost = f.col(_OTHER_KEY).isNull()
        missing = f.raise_error(f.concat(f.lit("a row is of no file of the item: "), f.col(_KEY)))
        found = [
            f.when(lost, missing.cast(told.schema[name].dataType)).otherwise(f.col(quoted(name))) for name in names
        ]
    else:
        frame = frame.crossJoin(f.broadcast(told.limit(1)))
        found = [f.col(quoted(name)) for name in names]
    return frame.select(*map(quoted, own), *(one.alias(name) for one, name in zip(found, names, strict=True)))


def _table(reading: Reading) -> DataFrame:
    """A row for each file: its key, the columns of its path, and `_metadata`."""
    columns = reading.lane.path_columns
    rows = []
    for place, seen in zip(reading.item.places, reading.item.files, strict=True):
        values = {f"c{number}": value for number, value in enumerate(_values(reading, place))}
        rows.append(
            {
                "k": place.text,
                "p": shown_as_spark(place),
                "n": place.name,
                "s": seen.size_bytes,
                "t": seen.mtime_ns // 1000,
                "v": str(seen.mtime_ns),
                **values,
            }
        )
    types = {"k": "STRING", "p": "STRING", "n": "STRING", "s": "BIGINT", "t": "BIGINT", "v": "STRING"}
    types |= {f"c{number}": column.type for number, column in enumerate(columns)}
    ddl = ", ".join(f"{name}: {kind}" for name, kind in types.items())
    described = (
        "named_struct('file_path', p, 'file_name', n, 'file_size', s, 'file_modification_time', timestamp_micros(t), "
        f"'file_version', v) AS {METADATA}"
    )
    chosen = ", ".join(
        [f"k AS {_OTHER_KEY}", described, *(f"c{number} AS {quoted(one.name)}" for number, one in enumerate(columns))]
    )
    return reading.spark.sql(
        f"SELECT {chosen} FROM (SELECT inline(from_json(:files, 'array<struct<{ddl}>>')))",
        args={"files": json.dumps(rows, default=str)},
    )


def _values(reading: Reading, place: Place) -> tuple[Any, ...]:
    try:
        return values_in(reading.lane.path_columns, place)
    except ValueError as error:
        section = reading.lane.section
        raise JobError(f"{reading.item.shown(place)}: {error}, as lanes.{section}.path_columns says") from error


def shown_as_spark(place: Place) -> str:
    """The place as `input_file_name()` of Spark's own readers names it."""
    text = f"file://{place.text}" if place.is_local else place.text
    return _ESCAPED.sub(lambda found: quote(found[0]), text)
