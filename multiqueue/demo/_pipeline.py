"""`multiqueue demo`: the pipeline over Python's own sources, then the same items without fairness."""

from __future__ import annotations

import contextlib
import os
import shutil
import sysconfig
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from ..pipeline._base.errors import ExitStatus, Unprepared
from ..pipeline._base.items import FileSeen, Item
from ..pipeline._base.lifecycle import ItemState
from ..pipeline._config.config import PipelineConfig, parse_config
from ..pipeline._run.progress import Reporter
from ..pipeline._run.session import spark_session
from ..pipeline._run.work import work_of
from ..pipeline._state.ledger import open_ledger
from ..pipeline._state.view import ledger_view
from ..pipeline._tell.console import reporter_for
from ..pipeline._tell.report import write_report
from ..pipeline._verbs.run import run_pipeline
from ..pipeline._write.publish import Publisher
from ..pipeline._write.tables import output_of
from ._rival import waits_of_rival
from ._tables import compare, fairness_html, fairness_sentence, fairness_table, summary_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Ten files to a Spark job: a job costs at least 0.1 s, and the demo should end in minutes.
_BATCH = 10
_QUICK_BATCH = 15
_MAX_RUNNING = 4
# The packages of --quick: one that is large, and some that have an item or two.
_QUICK = "[ehjw]*"  # encodings, email, html, http, json, wsgiref and the like
# A JVM that lives for seconds starts sooner when it neither compiles with all its might nor collects in parallel.
_SHORT_LIVED = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
_WARM_UP = "ast.py"  # the job is done on it before the clock starts


def demo_config(
    output: Path, library: Path | None = None, *, quick: bool = False, table: str | None = None
) -> PipelineConfig:
    """The demo's configuration: a lane per top-level package of the standard library, or of a part of it."""
    library = library or Path(sysconfig.get_paths()["stdlib"])
    common = {"format": "paths", "batch": _QUICK_BATCH if quick else _BATCH}
    return parse_config(
        {
            "spark": {
                "master": "local[*]",
                "max_running": _MAX_RUNNING,
                # Plain pickling, for the demo asks for pyspark alone; and the summary has some thousand rows.
                "conf": {
                    "spark.sql.execution.pythonUDF.arrow.enabled": False,
                    "spark.sql.shuffle.partitions": 2,
                    **(_SHORT_LIVED if quick else {}),
                },
            },
            "lanes": {
                "top-level": {"files": "*.py", **common},
                "packages": {
                    "directories": _QUICK if quick else "*",
                    "files": "**/*.py",
                    "exclude": ["site-packages", "dist-packages", "__pycache__"],
                    **common,
                },
            },
            "job": {"python": "multiqueue.demo._job:measure"},
            "output": {"path": str(output), "files_per_item": 1} | ({"table": table} if table else {}),
        },
        library,
        source="demo: Python's own sources",
    )


def run_demo(
    directory: Path,
    console: Console,
    *,
    fresh: bool,
    library: Path | None = None,
    quick: bool = False,
    table: str | None = None,
) -> ExitStatus:
    """Run both pipelines and print what they found; how the first one ended."""
    directory = directory.absolute()
    if fresh:
        forget(directory)
    _make(directory)
    fair = demo_config(directory, library, quick=quick, table=table)
    rival = demo_config(directory / "_multiqueue" / "rival", library, quick=quick)
    _introduce(console, fair)
    with ExitStack() as stack:
        reporter = reporter_for(console, as_json=False)
        session = _Session(fair, stack, reporter)
        result = run_pipeline(fair, reporter, session=session)
        if result.status is ExitStatus.INTERRUPTED:
            _say(console, f"stopped; the same command goes on, the output so far is in {fair.output}")
            return result.status
        summary = summary_table(session(), _rows(session(), fair), console.width)
        _say(console, f"\nWhat {result.snapshot.total.done} Spark jobs found in {fair.base}:\n")
        console.print(summary)
        _say(console, "\nThe same items once more through one queue, mixed at random, to compare waiting times:")
        try:
            waits = waits_of_rival(session(), rival, console)
        except KeyboardInterrupt:
            _say(console, f"stopped; the same command compares anew, the results are in {fair.output}")
            return ExitStatus.INTERRUPTED
    groups = compare(fair.state, waits)
    write_report(fair, fairness_html(groups))
    console.print()
    console.print(fairness_table(groups, console.width))
    _say(console, f"\n{fairness_sentence(groups)}\n")
    readers = f"a {table.capitalize()} table" if table else "spark.read.parquet reads them all"
    _say(console, f"rows    {fair.output / 'data'}   ({readers})\nreport  {result.report}")
    return result.status


def _make(directory: Path) -> None:
    """The directory of a demo, before anything is said of it: here the user knows it as --dir."""
    try:
        (directory / "_multiqueue").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unprepared(f"cannot write into {str(directory)!r}: {error.strerror}; choose another --dir") from error


def forget(directory: Path) -> None:
    """Remove what an earlier demo wrote, and nothing else.

    Raises:
        Unprepared: the directory holds no demo.
    """
    if not directory.exists():
        return
    if not (directory / "_multiqueue" / "state.sqlite").exists():
        if any(directory.iterdir()):
            raise Unprepared(f"{str(directory)!r} is not a demo's, so nothing was removed; choose another --dir")
        return
    for name in ("data", "_multiqueue"):
        shutil.rmtree(directory / name, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.remove(directory / "report.html")


class _Session:
    """The one Spark session of both runs, started when it is first asked for."""

    def __init__(self, config: PipelineConfig, stack: ExitStack, reporter: Reporter) -> None:
        self._config = config
        self._stack = stack
        self._reporter = reporter
        self._spark: Any = None

    def __call__(self) -> Any:
        if self._spark is None:
            log = self._config.output / "_multiqueue" / "spark.log"
            self._reporter.note(f"starting Spark; its log is {log}")
            self._spark = self._stack.enter_context(spark_session(self._config.settings.spark, [], log))
            _warm_up(self._spark, self._config)
            self._reporter.note(f"Spark {self._spark.version} is up")
        return self._spark


def _rows(spark: SparkSession, config: PipelineConfig) -> Any:
    """The output of the run."""
    output = output_of(config)
    with open_ledger(config.state, config.base) as ledger:
        output.check(ledger)
    return work_of(config, [], output).sections[""].sink.read(spark, "", None, None)


def _warm_up(spark: SparkSession, config: PipelineConfig) -> None:
    """Do the job on a file a few times, so that neither run pays for loading and compiling Spark's code."""
    lane = next(lane for lane in config.lanes() if lane.name == "top-level")
    config = demo_config(config.output, config.base)  # directories, whatever the rows go into later
    work = work_of(config, [lane], Publisher(config.output))
    found = (config.base / _WARM_UP).stat()
    item = Item("warm-up", lane.name, (FileSeen(_WARM_UP, found.st_size, found.st_mtime_ns),), config.base)
    scratch = config.output / "_multiqueue" / "warm-up"
    for _ in range(_MAX_RUNNING):
        work(spark, item, scratch)
        shutil.rmtree(scratch)


def _introduce(console: Console, config: PipelineConfig) -> None:
    _say(
        console,
        f"Python's sources in {config.base}: a lane per top-level package, "
        f"{config.lanes()[0].batch} files an item, {_MAX_RUNNING} Spark jobs at a time.",
    )
    if config.state.exists():
        with ledger_view(config.state) as view:
            counts = view.counts()
        done = sum(count.items for count in counts if count.state is ItemState.DONE)
        total = sum(count.items for count in counts)
        _say(
            console, f"{config.output} holds a demo with {done} of {total} items done: going on (--fresh starts anew)."
        )
    else:
        _say(console, f"output: {config.output}")


def _say(console: Console, text: str) -> None:
    console.print(escape(text), soft_wrap=True)
