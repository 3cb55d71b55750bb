"""Pyspark as the rooms above use it before there is a session."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from ..._kinds import check_kind


def session_builder(app_name: str) -> Any:
    """A builder for a session of this name; it returns the existing session if there is one.

    Sets the environment variable `PYSPARK_PYTHON` to the Python that runs, unless it is set: Spark takes `python3` of
    the `PATH` otherwise, which is another one where a virtual environment is used and not activated.
    """
    check_kind("app_name", app_name, str, "a string")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.appName(app_name)


def quiet_query_contexts() -> None:
    """Keep PySpark from printing each AnalysisException as a page of JSON on standard error.

    It does so through loggers of a separate class that do not propagate. The exception itself still reaches its caller.
    """
    with contextlib.suppress(ImportError):  # not in every version
        from pyspark.logger import PySparkLogger

        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(name).disabled = True
