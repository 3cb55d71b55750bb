"""Mistakes in the machine or the session, told before the first job fails because of them."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyspark

from .._backend.backend import is_connect
from .._backend.causes import cause_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGER = logging.getLogger("multiqueue.spark")

OLDEST_PYSPARK = (4, 0)
OLDEST_JAVA = 17  # what Spark 4 asks for
EXECUTOR_ANSWERS_WITHIN = 120.0  # seconds; a cluster that gives executors on demand takes a minute
JAVA_ANSWERS_WITHIN = 30.0  # seconds; `java -version` takes about 0.1


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `error`: jobs will fail; `warning`: a promise does not hold."""

    level: Literal["error", "warning"]
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.level}: {self.subject}: {self.message}"


def check_environment(spark: SparkSession | None = None) -> list[Finding]:
    """The mistakes in the configuration: of the session if you pass one, else of the machine that will start it.

    Without a session this runs `java -version`. With one of a cluster or of Spark Connect it runs a job of one task,
    whose Python must have this package: streams and task events need it there, the dispatcher and `fan_in` do not.
    An empty list means that nothing was found.
    """
    findings = [*_check_pyspark()]
    if spark is None:
        findings += [*_check_java(), *_check_worker_python(os.environ.get("PYSPARK_PYTHON", "python3"))]
    elif is_connect(spark):
        findings += _check_executor(spark)
    else:
        findings += _check_classic(spark)
    return findings


def warn_of_another_python(spark: SparkSession) -> None:
    """Log it if the workers of a local session run another Python, or none: their own errors do not say so."""
    context = None if is_connect(spark) else spark.sparkContext
    if context is not None and (context.master or "").startswith("local"):
        for finding in _check_worker_python(context.pythonExec):
            LOGGER.warning("%s", finding)


def _check_pyspark() -> Iterator[Finding]:
    version = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if version < OLDEST_PYSPARK:
        yield Finding("error", "pyspark", f"version {pyspark.__version__} is too old; install pyspark 4.0 or later")
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
        yield Finding(
            "error",
            "PYSPARK_PIN_THREAD",
            "is false, so all threads share one JVM thread and jobs cannot be told apart or cancelled; unset it "
            "before the session starts",
        )


def _check_java() -> Iterator[Finding]:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    if shutil.which(java) is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "no java on PATH, and JAVA_HOME is not set"
        yield Finding("error", "Java", f"{where}; install Java {OLDEST_JAVA} or later")
        return
    version = _java_version(java)
    if version is None:
        yield Finding("error", "Java", f"{java} does not say its version; install Java {OLDEST_JAVA} or later")
    elif version < OLDEST_JAVA:
        yield Finding("error", "Java", f"{java} is Java {version}; Spark needs Java {OLDEST_JAVA} or later")


def _java_version(java: str) -> int | None:
    """The major version, or None if there is no telling."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWERS_WITHIN, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _check_classic(spark: SparkSession) -> Iterator[Finding]:
    context = spark.sparkContext
    if context._jsc is None:
        yield Finding("error", "session", "it was stopped; make a new one")
        return
    is_here = re.match(r"local(\[|$)", context.master or "")  # `local-cluster` has processes of its own
    yield from _check_worker_python(context.pythonExec) if is_here else _check_executor(spark)
    if context.getConf().get("spark.scheduler.mode", "FIFO") != "FAIR":
        yield Finding(
            "warning",
            "spark.scheduler.mode",
            "is FIFO, so of the jobs that run at the same time the first takes all cores and scheduler pools have no "
            "effect; set it to FAIR before the session starts",
        )


def _check_executor(spark: SparkSession) -> Iterator[Finding]:
    """Whether a Python worker of the cluster, any of them, has what streams and task events need there."""
    from .dispatcher import SparkDispatcher

    with SparkDispatcher(spark, 1) as dispatcher:
        lane = dispatcher.lane("check_environment", timeout=EXECUTOR_ANSWERS_WITHIN)
        error = lane.submit(_ask_executor).exception()
    if error is not None:
        yield Finding(
            "warning",
            "executors",
            f"a Python worker cannot use multiqueue, so streams and task events will fail there: {cause_of(error)}; "
            "install blocking-multiqueue[spark,amqp] for the Python of the executors",
        )


def _ask_executor(spark: SparkSession) -> None:
    spark.range(0, 1, 1, 1).mapInArrow(_probe, "id long").collect()


def _probe(batches: Iterator[Any]) -> Iterator[Any]:
    """Runs in the worker, which imports this room to get at it."""
    from ... import client  # noqa: F401 - needs pamqp

    for batch in batches:
        yield batch.slice(0, 0)


def _is_this_python(path: Path) -> bool:
    """Whether that is what runs, perhaps by another of its names: `python3` beside `python`."""
    here = Path(sys.executable).absolute()
    return path.parent == here.parent and path.resolve() == here.resolve()


def _check_worker_python(command: str) -> Iterator[Finding]:
    """Workers on this machine must be the driver's Python: other versions and other packages fail in odd ways."""
    found = shutil.which(command)
    if found is None:
        yield Finding("error", "PYSPARK_PYTHON", f"there is no {command!r}; set it to {sys.executable}")
    elif not _is_this_python(Path(found).absolute()):
        yield Finding(
            "warning",
            "PYSPARK_PYTHON",
            f"workers run {found}, the driver {sys.executable}; set it to sys.executable before the session starts",
        )
