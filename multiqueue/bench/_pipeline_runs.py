"""Many CSV files through a pipeline with its defaults, through one Spark job, and through Spark's file stream.

Each is timed from the call until its rows are in place, in a session that is up and warm. The CPU is that of this
process, the JVM and the Python workers together.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._model import Attempt, Figures, ItemsLost, Metric
from ._spark_session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = Metric("seconds", "s", "less")
CPU = Metric("cpu", "CPU s", "less")
LENGTHS = Metric("wait", "job lengths", "less")

SMALL_ROWS = 20
LARGE_BYTES = 50_000_000
_ROW_BYTES = 25
SMALL_LANES = 9

WARM_UP_FILES = 300
WARM_UPS = 3

QUERY = "SELECT customer, CAST(amount AS DOUBLE) AS amount FROM input WHERE amount IS NOT NULL"
SCHEMA = "customer STRING, amount STRING"

Way = Callable[["SparkSession", Path, Path], Path]
"""Reads the files below the first directory, and writes below the second; where the rows are then."""


def _warm_up(spark: SparkSession) -> None:
    """Go each way some times, so that no rival pays for the JVM's loading and compiling of what all run through."""
    with tempfile.TemporaryDirectory(prefix="multiqueue-bench-") as scratch:
        _make_files(Path(scratch) / "in", WARM_UP_FILES, 3, SMALL_ROWS)
        for number in range(WARM_UPS):
            for way in (by_job, by_stream, by_pipeline):
                way(spark, Path(scratch) / "in", Path(scratch) / f"{way.__name__}{number}")


def _make_files(base: Path, files: int, lanes: int, rows: int) -> None:
    text = "".join(f"customer{row % 1000:08},{row:07}\n" for row in range(rows))
    for number in range(files):
        directory = base / f"lane{number % lanes:03}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number:06}.csv").write_text(f"customer,amount\n{text}")


def by_job(spark: SparkSession, files: Path, output: Path) -> Path:
    """One job over all files, as a program for one night is written: no state, no lanes, all or nothing."""
    frame = spark.read.option("header", True).option("recursiveFileLookup", True).csv(str(files))
    spark.sql(QUERY.replace("FROM input", "FROM {input}"), input=frame).write.parquet(str(output))
    return output


def by_stream(spark: SparkSession, files: Path, output: Path) -> Path:
    """Spark's file stream source until all is read: a checkpoint, and one bad file ends it."""
    stream: Any = spark.readStream.schema(SCHEMA).option("header", True).option("recursiveFileLookup", True)
    rows = stream.csv(str(files)).where("amount IS NOT NULL").selectExpr("customer", "CAST(amount AS DOUBLE) AS amount")
    writer = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", str(output / "checkpoint"))
    writer.format("parquet").start(str(output / "rows")).awaitTermination()
    return output / "rows"


def by_pipeline(spark: SparkSession, files: Path, output: Path) -> Path:
    """`multiqueue pipeline run` with its defaults: a lane per directory."""
    from ..pipeline import Silent, parse_config, run_pipeline

    lane = {"directories": "*", "files": "*.csv", "format": "csv", "options": {"header": True}}
    values = {"lanes": {"files": lane}, "job": {"sql": QUERY}, "output": {"path": str(output)}}
    run_pipeline(parse_config(values, files), Silent(), session=lambda: spark)
    return output / "data"


@dataclass
class Reading:
    """n files in some lanes, read and written in some way. An `Attempt`."""

    n: int
    rows: int
    lanes: int
    way: Way
    scratch: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="multiqueue-bench-")))
    output: Path | None = None

    def run(self) -> Figures:
        spark = session()
        cpu, start = _cpu_s(), time.perf_counter()
        self.output = self.way(spark, self.scratch / "in", self.scratch / "out")
        return {SECONDS.name: time.perf_counter() - start, CPU.name: _cpu_s() - cpu}

    def check(self) -> None:
        found = session().read.parquet(str(self.output)).count()
        if found != self.n * self.rows:
            raise ItemsLost(f"{found} rows of {self.n * self.rows}")

    def close(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)


def small(way: Way, lanes: int, n: int) -> Attempt:
    """Files of 20 rows."""
    return _reading(Reading(n, SMALL_ROWS, min(lanes, n), way))


def large(way: Way, n: int) -> Attempt:
    """Files of 50 MB in one lane."""
    return _reading(Reading(n, LARGE_BYTES // _ROW_BYTES, 1, way))


def _reading(attempt: Reading) -> Reading:
    _once()
    _make_files(attempt.scratch / "in", attempt.n, attempt.lanes, attempt.rows)
    return attempt


_is_warm = False


def _once() -> None:
    global _is_warm
    if not _is_warm:
        _warm_up(session())
        _is_warm = True


@dataclass
class Waiting:
    """Lanes of one file each behind a lane of n: how long they wait, in lengths of its longest job. An `Attempt`."""

    n: int
    scratch: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="multiqueue-bench-")))
    waits: int = 0

    def run(self) -> Figures:
        import sqlite3

        by_pipeline(session(), self.scratch / "in", self.scratch / "out")
        with closing(sqlite3.connect(self.scratch / "out" / "_multiqueue" / "state.sqlite")) as state:
            rows = state.execute("SELECT lane, started_s - known_s, ended_s - started_s FROM items").fetchall()
        small = [wait for lane, wait, _ in rows if lane != "lane000"]
        self.waits = len(small)
        return {LENGTHS.name: max(small) / max(took for lane, _, took in rows if lane == "lane000")}

    def check(self) -> None:
        if self.waits != SMALL_LANES:
            raise ItemsLost(f"{self.waits} of {SMALL_LANES} small lanes ran")

    def close(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)


def waiting(n: int) -> Attempt:
    _once()
    attempt = Waiting(n)
    _make_files(attempt.scratch / "in", n, 1, SMALL_ROWS)
    for number in range(SMALL_LANES):
        _make_files(attempt.scratch / "in" / f"small{number}", 1, 1, SMALL_ROWS)
        (attempt.scratch / "in" / f"small{number}" / "lane000" / "000000.csv").rename(
            attempt.scratch / "in" / f"small{number}" / "000000.csv"
        )
    return attempt


class TwoLengths:
    """A wait of two job lengths, for the table: nothing is measured. An `Attempt`."""

    def run(self) -> Figures:
        return {LENGTHS.name: 2.0}

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


def two_lengths(n: int) -> Attempt:
    return TwoLengths()


def _cpu_s() -> float:
    """Seconds of CPU that this process and its children, the JVM among them, have used; those that have ended too."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(map(int, fields[11:15]))
    own = {os.getpid()}
    while found := {one for one, parent in parents.items() if parent in own} - own:
        own |= found
    ticks = sum(used.get(one, 0) for one in own)
    return ticks / os.sysconf("SC_CLK_TCK")
