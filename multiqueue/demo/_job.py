"""The demo's job: what an engineer would ask of each file of a code base.

`measure` is the function a configuration names with `python = "module:function"`; `facts` runs on the executors.
"""

from __future__ import annotations

import ast
import tokenize
import warnings
from typing import TYPE_CHECKING

from ..pipeline._base.items import Item

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FACTS = (
    "struct<lines:int, functions:int, classes:int, imports:int, longest:string, longest_lines:int, unreadable:string>"
)

Facts = tuple[int, int, int, int, str | None, int, str | None]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def measure(spark: SparkSession, frame: DataFrame, item: Item) -> DataFrame:
    """A row per file: its path, its size, and its facts."""
    spark.udf.register("multiqueue_demo_facts", facts, FACTS)
    named = frame.selectExpr("path", "size_bytes", "multiqueue_demo_facts(path) AS facts")
    return named.select("path", "size_bytes", "facts.*")


def facts(path: str) -> Facts:
    """Lines, definitions, imports and the longest function of one file; why, if it cannot be parsed."""
    try:
        with tokenize.open(path) as stream:
            text = stream.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the file's own string escapes, on the worker's stderr
            tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        return 0, 0, 0, 0, None, 0, f"{type(error).__name__}: {error}"
    functions, classes, imports = [], 0, set[str]()
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            functions.append(node)
        elif isinstance(node, ast.ClassDef):
            classes += 1
        elif isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imports.add("." * node.level + (node.module or ""))
    longest = max(functions, key=_length, default=None)
    name, length = (longest.name, _length(longest)) if longest else (None, 0)
    return len(text.splitlines()), len(functions), classes, len(imports), name, length, None


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1
