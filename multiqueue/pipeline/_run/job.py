"""The jobs that a configuration names: queries and Python functions, checked before the first item needs them.

Everything is reached through the session that is handed in, so this module imports no Spark. A job is called by
many threads at once and keeps no state between calls.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._base.errors import ConfigError, JobError
from .._base.items import Item
from .._config.config import PipelineConfig
from .._read.of_path import METADATA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Job = Callable[["SparkSession", Mapping[str, "DataFrame"], Item], "DataFrame | None"]
"""Called with the frames that it reads, by name; a lane's job reads one, `input`."""

INPUT = "input"

# Texts, names in quotes and comments, which stay, or the function.
_FILE_NAME = re.compile(
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/)|\binput_file_name\s*\(\s*\)""",
    re.IGNORECASE | re.DOTALL,
)


def job_of(place: str, sql: str | None, python: str | None, base: Path) -> Job:
    """The job that the configuration has at `place`: a query or a function.

    Raises:
        ConfigError: the function cannot be imported.
    """
    if sql is not None:
        return sql_job(sql)
    return python_job(place, python or "", base)


def lane_job(query: str) -> Job:
    """A query over the rows of lanes, in which each row knows its file; `*` stands for the columns of the files."""
    told = by_metadata(query)
    run = sql_job(told)
    if not asks_for_metadata(told) or asks_for_metadata(told, whole=True):
        return run
    return lambda spark, frames, item: (result := run(spark, frames, item)) and result.drop(METADATA)


def sql_job(query: str) -> Job:
    """A query over the frames.

    The query sees them by name through common table expressions around it. Views of those names would not do: views
    belong to the session, which all running items share.
    """

    def run(spark: SparkSession, frames: Mapping[str, DataFrame], item: Item) -> DataFrame:
        return query_over(spark, query, frames)

    return run


def asks_for_blocks(query: str) -> bool:
    """Whether the query may ask which part of a file a row is of: only Spark's own readers tell it."""
    return re.search("input_file_block", query, re.IGNORECASE) is not None


def by_metadata(query: str) -> str:
    """The query with `_metadata.file_path` for each `input_file_name()`: that is the same for all ways of reading."""
    return _FILE_NAME.sub(lambda found: found[1] or f"{METADATA}.file_path", query)


def asks_for_metadata(query: str, *, whole: bool = False) -> bool:
    """Whether the query names `_metadata`; with `whole` as a column, and not only a part of it."""
    end = r"(?!\s*\.)" if whole else ""
    return re.search(rf"\b{METADATA}\b{end}", _FILE_NAME.sub("", query), re.IGNORECASE) is not None


def file_functions(frame: DataFrame) -> bool:
    """Whether Spark's functions `input_file_name`, `input_file_block_start` or `_length` are in the frame's plan.

    They are empty, without an error, for rows that no reader of Spark's has just read.
    """
    to_jvm = getattr(frame, "_jdf", None)
    if to_jvm is not None:
        return ".expressions.InputFile" in to_jvm.queryExecution().analyzed().toJSON()
    on_connect: Any = frame
    plan: bytes = on_connect._plan.to_proto(on_connect.sparkSession.client).SerializeToString()
    return re.search(rb"input_file_(name|block_start|block_length)", plan, re.IGNORECASE) is not None


def query_over(spark: SparkSession, query: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    """The query's result, with each frame a table of its name."""
    numbered: dict[str, Any] = {f"frame{place}": frame for place, frame in enumerate(frames.values())}
    return spark.sql(wrapped_query(query, list(frames)), **numbered)


def wrapped_query(query: str, names: list[str]) -> str:
    """The query with each name standing for `{frameN}`. It may itself start with WITH and end in a comment."""
    literal = query.strip().rstrip(";").replace("{", "{{").replace("}", "}}")
    tables = ", ".join(f"{_quoted(name)} AS (SELECT * FROM {{frame{place}}})" for place, name in enumerate(names))
    return f"WITH {tables} SELECT * FROM ({literal}\n)"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``").replace("{", "{{").replace("}", "}}") + "`"


def check_queries(spark: SparkSession, config: PipelineConfig) -> None:
    """Return if Spark can parse the configured queries; whether their columns exist, each item will show.

    Raises:
        ConfigError: it cannot: every item would fail.
    """
    settings = config.settings
    queries: list[tuple[str, str | None, tuple[str, ...]]] = [("job.sql", settings.job.sql, (INPUT,))]
    queries += [(f"steps.{name}.sql", step.sql, step.sources) for name, step in settings.steps.items()]
    for place, query, names in queries:
        if query is not None:
            _check(spark, place, query, names)


def _check(spark: SparkSession, place: str, query: str, names: tuple[str, ...]) -> None:
    try:
        query_over(spark, query, {name: spark.range(0) for name in names})
    except Exception as error:  # of the many errors of Spark, one is the query's own
        if type(error).__name__ == "ParseException":
            raise ConfigError(f"{place}: {str(error).strip().splitlines()[0]}") from error


def python_job(place: str, name: str, base: Path) -> Job:
    """The function `module:function`; the configuration's directory is searched first.

    A lane's function is called with the frame, a step's with the frames by name.

    Raises:
        ConfigError: there is no such module or function, importing it fails, or it takes other arguments.
    """
    module_name, _, function_name = name.partition(":")
    module = _imported(place, module_name, base)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"{place}.python: {module.__file__} has no function {function_name!r}")
    _check_arguments(place, name, function)

    def run(spark: SparkSession, frames: Mapping[str, DataFrame], item: Item) -> DataFrame | None:
        result: DataFrame | None = function(spark, frames[INPUT] if item.part is None else frames, item)
        if result is not None and not hasattr(result, "write"):
            raise JobError(f"{name} returned {type(result).__name__}; a DataFrame or None is expected")
        return result

    return run


def _check_arguments(place: str, name: str, function: Callable[..., Any]) -> None:
    """Return if it can be called as it will be: otherwise every item would fail, each several times."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some that are written in C have none
        return
    try:
        signature.bind("spark", "frame", "item")
    except TypeError as error:
        what = "frame" if place == "job" else "frames"
        raise ConfigError(
            f"{place}.python: {name} is called as (spark, {what}, item), which does not fit: {error}"
        ) from None


def _imported(place: str, module_name: str, base: Path) -> ModuleType:
    added = str(base) not in sys.path
    if added:
        sys.path.insert(0, str(base))
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        if added:
            sys.path.remove(str(base))
        raise ConfigError(
            f"{place}.python: cannot import {module_name!r}: {type(error).__name__}: {error}; "
            f"searched {str(base)!r} first"
        ) from error


def ship_modules(spark: SparkSession, config: PipelineConfig) -> None:
    """Give the executors, wherever they are, the modules beside the configuration file that have its functions.

    Without this a function that runs there (a UDF) is found in local mode alone. Packages are left to
    `spark.submit.pyFiles`.

    Raises:
        ConfigError: Spark refuses one; a session takes no second version of a module.
    """
    settings = config.settings
    functions = [settings.job.python, *(step.python for step in settings.steps.values())]
    names = {function.partition(":")[0] for function in functions if function is not None}
    for name in sorted(names):
        path = config.base / f"{name}.py"
        if path.is_file():
            try:
                spark.addArtifacts(str(path), pyfile=True)
            except Exception as error:
                why = str(error).strip().splitlines()[0]
                raise ConfigError(f"cannot send {str(path)!r} to the executors: {why}; use a new session") from error
