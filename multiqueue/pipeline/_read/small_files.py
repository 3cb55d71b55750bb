"""Small CSV files as the driver reads them: Spark gets their lines as a table, and no task opens a file.

Promise     The rows are those of Spark's own reader with the same options and columns. Files that this way may read
            otherwise are left to Spark's reader, or to the executors' Python: large ones, bytes that are no UTF-8, and
            options that Python's way of reading does not honour.
How         A task takes a millisecond of CPU to open a file, and twenty rows a hundredth of that; the driver looks at
            the file's start anyway, for its header: of a store that is one request instead of two. Python cuts the
            lines, as the executors' Python does, and Spark's `from_csv` makes rows of them. A generator above it has
            each record parsed once, with every column: a job that takes few of them overlooks no malformed record.
Memory      `_MOST_BYTES` of an item, in the driver and in its tasks.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._base.place import Place
from .._base.storage import UNPACKED, Status
from .._config.refusal import refusal
from .executor import Reading as Cut
from .executor import lines_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_LARGEST_BYTES = 16 << 10
_MOST_BYTES = 4 << 20
# A row of the table: the tasks of an item share its lines by such pieces.
_TEXT_BYTES = 256 << 10

# Options with which Spark's reader of files and `from_csv` differ, or Spark's lines and Python's may.
_LEFT_TO_SPARK = ("lineSep", "encoding", "charset", "mode", "inferSchema", "enforceSchema")


def contents_of(reading: Any, versions: dict[Place, Status] | None = None) -> dict[Place, bytes]:
    """The item's files by their places; empty where Spark's own reader is to read them. `reading` is a `Reading`.

    `versions` is as for `Storage.starts_of`.
    """
    lane, item = reading.lane, reading.item
    if lane.format != "csv" or lane.io != "auto" or reading.sets_aside or refusal(lane.format, lane.options):
        return {}
    if any(map(reading.option, _LEFT_TO_SPARK)) or not (reading.is_true("header") or lane.schema is not None):
        return {}
    if item.size_bytes > _MOST_BYTES or max(seen.size_bytes for seen in item.files) > _LARGEST_BYTES:
        return {}
    places = item.places
    if any(place.is_local and ":" in place.text for place in places):
        return {}
    contents: dict[Place, bytes] = {}
    starts = reading.storage.starts_of(places, _LARGEST_BYTES + 1, versions)
    for seen, place, content in zip(item.files, places, starts, strict=True):
        if not isinstance(content, bytes) or len(content) > _LARGEST_BYTES:
            return {}
        if len(content) != seen.size_bytes and place.suffix not in UNPACKED:  # an answer may be cut off unnoticed
            return {}
        contents[place] = content
    try:
        b"\n".join(contents.values()).decode()
    except UnicodeDecodeError:
        return {}
    return contents


def frame_of(
    spark: SparkSession,
    texts: Mapping[str, bytes],
    cut: Cut,
    columns: str,
    options: Mapping[str, str],
    file_column: str = "",
) -> DataFrame:
    """The rows of these texts, which have names, with the columns of this DDL; in a last one, if asked, the name."""
    from pyspark.sql import functions as f

    if file_column:  # a text begins with its name, which has no line break
        rows = ["\n".join([name, *lines_of(io.BytesIO(text), cut)]) for name, text in texts.items()]
        split = _table(spark, rows).select(f.split("value", "\n").alias("lines"))
        below = f.explode(f.slice("lines", 2, f.greatest(f.size("lines") - 1, f.lit(0))))
        lines = split.select(f.get("lines", f.lit(0)).alias(file_column), below.alias("line"))
        made = lines.select(file_column, f.inline(f.array(f.from_csv("line", columns, options))))
        return made.select(*(one for one in made.columns if one != file_column), file_column)
    lines = _table(spark, list(_joined(list(texts.values()), cut))).select(
        f.explode(f.split("value", "\n")).alias("line")
    )
    return lines.select(f.inline(f.array(f.from_csv("line", columns, options))))


def _joined(texts: Sequence[bytes], cut: Cut) -> Iterator[str]:
    """The lines of the texts, in a few long ones."""
    held: list[str] = []
    size = 0
    for text in texts:
        held += lines_of(io.BytesIO(text), cut)
        size += len(text)
        if size >= _TEXT_BYTES and held:
            yield "\n".join(held)
            held, size = [], 0
    if held:
        yield "\n".join(held)


def _table(spark: SparkSession, texts: list[str]) -> DataFrame:
    """A row for each text, in the plan itself."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:  # Spark Connect, which has such tables
        return spark.createDataFrame([(text,) for text in texts], "value string")
    from pyspark.sql import DataFrame

    # PySpark's createDataFrame would ship pickled rows through an RDD.
    strings = getattr(spark._jvm, "org.apache.spark.sql.Encoders").STRING()
    return DataFrame(session.createDataset(texts, strings), spark)
