"""The suite `pipeline`: a pipeline with its defaults beside one Spark job and Spark's file stream, on `local[2]`.

Each is timed from the call until its rows are in place, in a session that is up and warm. The CPU is that of this
process, the JVM and the Python workers together.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._harness import expect
from ._model import Figures, Goal, Metric, Rival, Suite, Workload
from ._spark import LENGTHS, NEEDS, OURS, check_machine, measure, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SUITE", "check_machine"]

SECONDS = Metric("seconds", "s", "less")
CPU = Metric("cpu", "CPU s", "less")

SMALL_ROWS = 20
LARGE_BYTES = 50_000_000
FOUR_BYTES = 175_000_000
_ROW_BYTES = 25
SMALL_LANES = 9
_TICKS: dict[tuple[int, str], int] = {}
"""The CPU of each process that was seen, by its number and when it began."""

WARM_UP_FILES = 300
WARM_UPS = 3

QUERY = "SELECT customer, CAST(amount AS DOUBLE) AS amount FROM input WHERE amount IS NOT NULL"
SCHEMA = "customer STRING, amount STRING"

Way = Callable[["SparkSession", Path, Path], Path]
"""Reads the files below the first directory, and writes below the second; where the rows are then."""


@cache
def _warm_up() -> None:
    """Go each way some times, so that no rival pays for the JVM's loading and compiling of what all run through."""
    with tempfile.TemporaryDirectory(prefix="multiqueue-bench-") as scratch:
        _make_files(Path(scratch) / "in", WARM_UP_FILES, 3, SMALL_ROWS)
        for number in range(WARM_UPS):
            for way in (by_job, by_stream, by_pipeline):
                way(session(), Path(scratch) / "in", Path(scratch) / f"{way.__name__}{number}")


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

    def __post_init__(self) -> None:
        _warm_up()
        _make_files(self.scratch / "in", self.n, min(self.lanes, self.n), self.rows)

    def run(self) -> Figures:
        spark = session()
        cpu, start = _cpu_s(), time.perf_counter()
        self.output = self.way(spark, self.scratch / "in", self.scratch / "out")
        return {SECONDS.name: time.perf_counter() - start, CPU.name: _cpu_s() - cpu}

    def check(self) -> None:
        expect(session().read.parquet(str(self.output)).count(), self.n * self.rows, "rows are there")

    def close(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)


class Waiting(Reading):
    """Lanes of one file each behind a lane of n: how long they wait, in lengths of its longest job. An `Attempt`."""

    waits: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for number in range(SMALL_LANES):
            files = self.scratch / "in" / f"small{number}"
            _make_files(files, 1, 1, self.rows)
            (files / "lane000" / "000000.csv").rename(files / "000000.csv")

    def run(self) -> Figures:
        self.way(session(), self.scratch / "in", self.scratch / "out")
        with closing(sqlite3.connect(self.scratch / "out" / "_multiqueue" / "state.sqlite")) as state:
            rows = state.execute("SELECT lane, started_s - known_s, ended_s - started_s FROM items").fetchall()
        small = [wait for lane, wait, _ in rows if lane != "lane000"]
        self.waits = len(small)
        return {LENGTHS.name: max(small) / max(took for lane, _, took in rows if lane == "lane000")}

    def check(self) -> None:
        expect(self.waits, SMALL_LANES, "small lanes ran")


def _cpu_s() -> float:
    """Seconds of CPU that this process and its children, the JVM among them, have used.

    A child that has ended counts as it was last seen, for Spark's Python workers leave no figures behind.
    """
    parents: dict[int, int] = {}
    used: dict[int, tuple[tuple[int, str], int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = (int(entry.name), fields[19]), sum(map(int, fields[11:13]))
    own = {os.getpid()}
    while found := {one for one, parent in parents.items() if parent in own} - own:
        own |= found
    _TICKS.update(used[one] for one in own if one in used)
    return sum(_TICKS.values()) / os.sysconf("SC_CLK_TCK")


def _reading(
    name: str, title: str, files: int, lanes: int, rows: Callable[[], int], goals: dict[str, float]
) -> Workload:
    """A goal is how many times as long as a rival ours may take."""
    ways = {
        JOB: (by_job, "no state, no lanes, all or nothing"),
        STREAM: (by_stream, "no lanes; a bad file ends it"),
        OURS: (by_pipeline, "defaults"),
    }

    def rival(name: str, way: Way, note: str) -> Rival:
        return Rival(
            name,
            lambda n: Reading(n, rows(), lanes, way),
            role="ours" if name == OURS else "rival",
            requires=NEEDS,
            note=note,
        )

    return Workload(
        name,
        title,
        files,
        tuple(rival(each, *way) for each, way in ways.items()),
        metrics=(SECONDS, CPU),
        n_unit="files",
        threads="local[2]",
        goals=tuple(Goal(SECONDS.name, 1 / at_most, OURS, each) for each, at_most in goals.items()),
    )


def _small(files: int, lanes: int, at_most: float) -> Workload:
    title = f"{files:,} CSV files of {SMALL_ROWS} rows in {lanes} lanes"
    return _reading(f"files-{files}", title, files, lanes, lambda: SMALL_ROWS, {JOB: at_most, STREAM: 1.0})


JOB = "one Spark job"
STREAM = "file stream, availableNow"
TWO = "two job lengths"
SUITE = Suite(
    "pipeline",
    (
        _small(600, 6, 1.3),
        _small(4_000, 40, 0.4),
        _small(20_000, 200, 0.4),
        _reading("large", "40 CSV files of 50 MB in one lane", 40, 1, lambda: LARGE_BYTES // _ROW_BYTES, {JOB: 1.05}),
        _reading("four", "4 CSV files of 175 MB in one lane", 4, 1, lambda: FOUR_BYTES // _ROW_BYTES, {JOB: 1.05}),
        Workload(
            "small-lanes",
            "nine lanes of one file behind a lane of many: the longest wait",
            20_000,
            (
                Rival(TWO, lambda n: measure(2.0), role="yardstick"),
                Rival(
                    OURS, lambda n: Waiting(n, SMALL_ROWS, 1, by_pipeline), role="ours", requires=NEEDS, note="defaults"
                ),
            ),
            metrics=(LENGTHS,),
            n_unit="files of the large lane",
            threads="local[2]",
            goals=(Goal(LENGTHS.name, 1.0, OURS, TWO),),
            note="In lengths of the large lane's longest job.",
        ),
    ),
    does_not_show=(
        "Spark's start: every rival runs in one session that is up and warm.",
        "A cluster, and files in an object store.",
        "What the others do not do: lanes, retries, a bad file set aside alone, a changed file replaced.",
    ),
)
