"""A run from its configuration: everything that is opened is closed here, in the opposite order.

Lock order: the state's exclusive lock, then the ledger, then the session, then the dispatcher. The session starts
only when there is something to do, in the thread that called.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _scan
from ._attempt import Attempts, Dispatcher
from ._config import PipelineConfig
from ._errors import ConfigError, ExitStatus
from ._intake import Intake
from ._items import Lane
from ._job import check_query, work_of
from ._ledger import Ledger
from ._ledger_file import exclusive
from ._mailbox import Mailbox, StopRequested
from ._progress import Reporter
from ._publish import Publisher
from ._report import write_report
from ._retry import Backoff
from ._runner import Runner
from ._session import spark_session
from ._tally import Snapshot
from ._work_clock import WorkClock

Session = Callable[[], Any]
"""Gives the Spark session, starting it at the first call."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    snapshot: Snapshot
    status: ExitStatus
    report: Path
    resumed: bool
    """Whether an earlier run had left something done."""


def run_pipeline(
    config: PipelineConfig,
    reporter: Reporter,
    *,
    session: Session | None = None,
    fifo: bool = False,
) -> RunResult:
    """Run until every item is done or set aside, or Ctrl-C; the report is written in any case.

    Call it in the main thread: it takes over Ctrl-C while it runs. With `session`, that session is used and left
    running; otherwise one is started if there is anything to do, and stopped.

    Raises:
        ConfigError: no lane has a file, or the job cannot be imported.
        Unprepared: Java or a package is missing, Spark does not start, or the output cannot be written.
        StateInUse: another process runs this pipeline.
        StateMismatch: the state and the output do not belong together.
        SessionLost: the Spark session ended in the middle.
    """
    lanes = config.lanes()
    work = work_of(config, {lane.name: lane for lane in lanes})
    mailbox = Mailbox()
    with ExitStack() as stack:
        stack.enter_context(exclusive(config.state))
        ledger = stack.enter_context(contextlib.closing(Ledger(config.state, config.base)))
        publisher = _prepared(config, ledger, lanes, reporter)
        resumed = not ledger.is_empty()
        clock = WorkClock(ledger.seconds_at_work())
        stack.enter_context(_ctrl_c_posts_to(mailbox))
        runner = Runner(
            lanes,
            ledger,
            Intake(lanes, config.base, config.written, ledger),
            lambda: _dispatcher(config, lanes, session, reporter, stack),
            Attempts(work, publisher, mailbox.post, clock),
            _backoff(config),
            mailbox,
            clock,
            reporter,
            fifo,
        )
        try:
            snapshot = runner.run()
        finally:
            for sentence in runner.intake.passed_over.sentences():
                reporter.note(sentence)
            report = write_report(config)
    return RunResult(snapshot, _status(runner, snapshot), report, resumed)


def _prepared(config: PipelineConfig, ledger: Ledger, lanes: list[Lane], reporter: Reporter) -> Publisher:
    publisher = Publisher(config.output)
    publisher.prepare(ledger_is_empty=ledger.is_empty())
    done, waiting = ledger.recover(publisher.is_published)
    if done or waiting:
        reporter.note(f"the last run was cut off: {done} items turned out done, {waiting} run again")
    _check_input(config, ledger, lanes)
    with ledger.transaction():
        ledger.record_process()
    return publisher


def _check_input(config: PipelineConfig, ledger: Ledger, lanes: list[Lane]) -> None:
    """Raise if this is a first run and no lane has any file: better said before Spark starts."""
    if not ledger.is_empty():
        return
    passed_over = _scan.PassedOver()
    if any(True for lane in lanes for _ in _scan.scan(lane, config.base, passed_over, config.written)):
        return
    globs = ", ".join(f"lanes.{name}.files = {section.files!r}" for name, section in config.settings.lanes.items())
    why = "".join(f"; {sentence}" for sentence in passed_over.sentences())
    raise ConfigError(f"no input files below {str(config.base)!r}: {globs}{why}")


def _backoff(config: PipelineConfig) -> Backoff:
    retry = config.settings.retry
    return Backoff(retry.attempts, retry.backoff, retry.backoff_factor, retry.backoff_max)


def _dispatcher(
    config: PipelineConfig, lanes: list[Lane], session: Session | None, reporter: Reporter, stack: ExitStack
) -> Dispatcher:
    section = config.settings.spark
    if session is None:
        pools = sorted({lane.pool for lane in lanes if lane.pool})
        log = config.output / "_multiqueue" / "spark.log"
        reporter.note(f"starting Spark on {section.remote or section.master or 'local[*]'}, its log is {log}")
        spark = stack.enter_context(spark_session(section, pools, log))
        reporter.note(f"Spark {spark.version} is up")
    else:
        spark = session()
    from ..spark import SparkDispatcher  # here: everything else in this room works without pyspark

    check_query(spark, config)
    return stack.enter_context(SparkDispatcher(spark, max_running=section.max_running))


@contextlib.contextmanager
def _ctrl_c_posts_to(mailbox: Mailbox) -> Iterator[None]:
    """While inside, Ctrl-C asks the runner to stop; a third one ends the process at once, as kill would."""
    requests = 0

    def stop(signum: int, frame: object) -> None:
        nonlocal requests
        requests += 1
        if requests == 3:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        mailbox.post(StopRequested())

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _status(runner: Runner, snapshot: Snapshot) -> ExitStatus:
    if runner.was_interrupted:
        return ExitStatus.INTERRUPTED
    return ExitStatus.SET_ASIDE if snapshot.total.failed else ExitStatus.DONE
