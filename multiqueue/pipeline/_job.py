"""What is done with one item on Spark: read its files, run the job, write what it returns.

Everything is reached through the session that is handed in, so this module imports no Spark; it is called by
many threads at once, each with an item of its own, and keeps no state between calls.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._config import OutputSection, PipelineConfig, spark_options
from ._errors import ConfigError, JobError
from ._items import FileSeen, Item, Lane

DataFrame = Any
SparkSession = Any
Job = Callable[[SparkSession, DataFrame, Item], DataFrame | None]

# The reader's name and options for each format of a lane.
_READERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "csv": ("csv", {}),
    "json": ("json", {"multiLine": "true"}),
    "jsonl": ("json", {}),
    "parquet": ("parquet", {}),
    "text": ("text", {}),
    "binary": ("binaryFile", {}),
}
_PATHS_SCHEMA = "array<struct<path:string,size_bytes:bigint,modified:double>>"
_PARTITIONS = ("lane", "item")


@dataclass(frozen=True)
class SparkWork:
    """The work of a configuration. Call it in the thread of a running item."""

    lanes: Mapping[str, Lane]
    job: Job
    output: OutputSection

    def __call__(self, spark: SparkSession, item: Item, staged: Path) -> bool:
        """Whether the job returned something, which is then in `staged`, complete.

        Raises:
            JobError: the job or the input is wrong for good. Whatever Spark raises comes through unchanged.
        """
        result = self.job(spark, read(spark, self.lanes[item.lane], item), item)
        if result is None:
            return False
        write(result, self.output, staged)
        return True


def work_of(config: PipelineConfig, lanes: Mapping[str, Lane]) -> SparkWork:
    """The work that the configuration describes.

    Raises:
        ConfigError: the Python function cannot be imported.
    """
    section = config.settings.job
    job = sql_job(section.sql) if section.sql is not None else python_job(section.python or "", config.base)
    return SparkWork(lanes, job, config.settings.output)


def sql_job(query: str) -> Job:
    """A query over `input`, the item's rows.

    The query sees the rows as `input` through a common table expression around it. A view of that name would
    not do: views belong to the session, which all running items share.
    """
    wrapped = wrapped_query(query)

    def run(spark: SparkSession, frame: DataFrame, item: Item) -> DataFrame:
        return spark.sql(wrapped, frame=frame)

    return run


def check_query(spark: SparkSession, config: PipelineConfig) -> None:
    """Return if Spark can parse the configured query; whether its columns exist, each item will show.

    Raises:
        ConfigError: it cannot: every item would fail.
    """
    query = config.settings.job.sql
    if query is None:
        return
    try:
        spark.sql(wrapped_query(query), frame=spark.range(0))
    except Exception as error:  # of the many errors of Spark, one is the query's own
        if type(error).__name__ == "ParseException":
            raise ConfigError(f"job.sql: {str(error).strip().splitlines()[0]}") from error


def wrapped_query(query: str) -> str:
    """The query with `input` standing for `{frame}`. It may itself start with WITH and end in a comment."""
    literal = query.strip().rstrip(";").replace("{", "{{").replace("}", "}}")
    return f"WITH input AS (SELECT * FROM {{frame}}) SELECT * FROM ({literal}\n)"


def python_job(name: str, base: Path) -> Job:
    """The function `module:function`; the configuration's directory is searched first.

    Raises:
        ConfigError: there is no such module or function, or importing it fails.
    """
    module_name, _, function_name = name.partition(":")
    if str(base) not in sys.path:
        sys.path.insert(0, str(base))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"job.python: cannot import {module_name!r}: {type(error).__name__}: {error}; searched {str(base)!r} first"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"job.python: {module.__file__} has no function {function_name!r}")

    def run(spark: SparkSession, frame: DataFrame, item: Item) -> DataFrame | None:
        result = function(spark, frame, item)
        if result is not None and not hasattr(result, "write"):
            raise JobError(f"{name} returned {type(result).__name__}; a DataFrame or None is expected")
        return result

    return run


def met(item: Item) -> tuple[FileSeen, ...]:
    """The item's files as they are now; call it before reading them.

    Raises:
        JobError: one of them is gone.
    """
    files = []
    for seen, path in zip(item.files, item.paths, strict=True):
        try:
            status = os.stat(path)
        except OSError as error:
            raise JobError(
                f"cannot read {str(path)!r}: {error.strerror}; "
                "`multiqueue pipeline retry` tries again and forgets files that are gone"
            ) from error
        files.append(FileSeen(seen.path, status.st_size, status.st_mtime_ns))
    return tuple(files)


def read(spark: SparkSession, lane: Lane, item: Item) -> DataFrame:
    """The item's files as one DataFrame: rows of the format, or for `paths` a row per file."""
    if lane.format == "paths":
        return _paths(spark, item)
    name, preset = _READERS[lane.format]
    reader = spark.read.format(name).options(**{**preset, **lane.options})
    if lane.schema is not None:
        reader = reader.schema(lane.schema)
    return reader.load([spark_path(path) for path in item.paths])


def _paths(spark: SparkSession, item: Item) -> DataFrame:
    # A literal in the plan: half the time of createDataFrame, which ships pickled rows through an RDD.
    rows = [
        {"path": str(path), "size_bytes": seen.size_bytes, "modified": seen.mtime_ns / 1e9}
        for path, seen in zip(item.paths, item.files, strict=True)
    ]
    return spark.sql(f"SELECT inline(from_json(:files, '{_PATHS_SCHEMA}'))", args={"files": json.dumps(rows)})


def spark_path(path: Path) -> str:
    """The path as Spark takes it literally: it reads a glob where we mean a name.

    Raises:
        JobError: the name has a colon, which Hadoop cannot read.
    """
    if ":" in str(path):
        raise JobError(f'Spark cannot read {str(path)!r}: its name has a colon; rename it, or use format = "paths"')
    return "file://" + "".join("\\" + c if c in "\\*?[]{}" else c for c in str(path))


def write(frame: DataFrame, output: OutputSection, staged: Path) -> None:
    """Write the rows into `staged`, which must not exist.

    Raises:
        JobError: a column has the name of one of the directories `lane=` and `item=`.
    """
    taken = [column for column in frame.columns if column.lower() in _PARTITIONS]
    if taken:
        raise JobError(f"the job's result has a column {taken[0]!r}, which the output's directories add; rename it")
    if output.files_per_item is not None:
        frame = frame.coalesce(output.files_per_item)
    writer = frame.write.format(output.format).options(**spark_options(output.options))
    if output.partition_by:
        writer = writer.partitionBy(*output.partition_by)
    writer.save("file://" + str(staged))
