"""A run from its configuration: everything that is opened is closed here, in the opposite order.

Order: the state's exclusive lock, then the ledger, the queues' connections, the session, the dispatcher. The session
starts only when there is something to do, in the thread that called.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._kinds import check_function, check_kind, check_seconds
from .._base.errors import ConfigError, ExitStatus, PipelineError, unwritten
from .._base.items import Lane
from .._columns.known import KnownColumns
from .._columns.put_out import OutputTypes
from .._config.config import PipelineConfig
from .._config.fingerprint import fingerprints, made_by_others
from .._input.presence import lost_directories, require_input
from .._input.scanner import Follow
from .._read.read import Inputs
from .._run.attempt import Dispatcher
from .._run.mailbox import Mailbox, StopRequested
from .._run.progress import Reporter
from .._run.runner import Runner
from .._run.session import spark_session
from .._run.tally import Snapshot
from .._run.traces import leaving_nothing_unbegun
from .._run.wiring import assemble
from .._run.work import SparkWork, prepare, work_of
from .._state.ledger import Ledger, open_ledger
from .._tell.report import write_report
from .._write.output import Output
from .._write.tables import output_of

Session = Any
"""A Spark session, or a function that gives one: it is called when there is something to do."""

Watch = Callable[[Any], object]
"""Is shown the `SparkDispatcher` of a run."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    snapshot: Snapshot
    status: ExitStatus
    report: Path | None
    """None where it could not be written."""
    resumed: bool
    """Whether an earlier run had left something done."""
    lost: tuple[str, ...] = ()
    """Why the input of lanes was not whole: a sentence each."""
    tables: Mapping[str, str | int | None] = field(default_factory=dict)
    """The version of each table as the run saw it last, by place: None where there is no table yet."""
    made_by_others: int = 0
    """Items that are done and were made by another job than the configuration has now."""


def run_pipeline(
    config: PipelineConfig,
    reporter: Reporter,
    *,
    session: Session | None = None,
    follow: bool = False,
    watch: Watch = lambda dispatcher: None,
    grace_s: float = math.inf,
) -> RunResult:
    """Run until every item is done or set aside, or Ctrl-C; the report is written in any case.

    With `follow` it goes on to watch for files, until Ctrl-C. SIGTERM is as Ctrl-C, and what still runs `grace_s`
    after it is cancelled. `watch` is called with the dispatcher, when there is one, before its first item.

    Call it in the main thread: it takes over both signals while it runs. With `session`, that session is used and left
    running; otherwise one is started if there is anything to do, and stopped.

    Raises:
        ConfigError: no lane has a file, or the job cannot be imported.
        Unprepared: Java or a package is missing, Spark does not start, or the output cannot be written.
        Unreachable: Spark's server or the state's does not answer.
        StateInUse: another process runs this pipeline.
        StateMismatch: the state and the output do not belong together.
        StateDamaged: the state is damaged.
        SessionLost: the Spark session ended in the middle.
    """
    check_kind("config", config, PipelineConfig, "what `load_config` returns")
    check_function("watch", watch)
    check_seconds("grace_s", grace_s)
    output = output_of(config)
    output.require_place()
    lanes, met = config.look()
    work = work_of(config, lanes, output)
    mailbox = Mailbox()
    with ExitStack() as stack:
        stack.enter_context(leaving_nothing_unbegun(config))
        stack.enter_context(config.state.exclusive())
        jobs = fingerprints(config)
        ledger = stack.enter_context(open_ledger(config.state, config.base, config.storage, jobs))
        _prepare(output, ledger, reporter)
        if not follow:
            require_input(config, ledger, lanes)
        resumed = not ledger.is_empty()
        known = KnownColumns(ledger.schemas(), mailbox.post)
        work.inputs, work.types = Inputs(config.storage, known), OutputTypes(known, jobs)
        stack.enter_context(_stop_signals_post_to(mailbox, grace_s))
        following = _follow(config, reporter) if follow else None
        lost = [] if follow else lost_directories(config, met, lanes, ledger)
        runner, committer = assemble(
            config,
            ledger,
            lambda: _dispatcher(config, runner.feeding.lanes, session, work, output, reporter, watch, stack),
            lanes=lanes,
            steps=config.steps(),
            output=output,
            work=work,
            meet=work.meet,
            mailbox=mailbox,
            reporter=reporter,
            follow=following,
            lost=lost,
            on_new_lane=work.add,
        )
        stack.enter_context(runner.intake.open())
        stack.enter_context(runner.disposal.open())
        stack.enter_context(committer.open())
        try:
            snapshot = runner.run()
        finally:
            known.close()
            for sentence in (*runner.disposal.sentences(), *runner.intake.sentences()):
                reporter.note(sentence)
            if config.chosen and config.settings.steps:
                reporter.note("steps wait for a run of all lanes")
            if runner.corrupt_records:
                reporter.note(_corrupt_sentence(runner.corrupt_records, output))
            report = _report(config, reporter)
        with ledger.transaction():  # what is there now is missed when it is gone
            ledger.lost(output.there())
        others = ledger.made_by_others(ledger.jobs)
        if (said := made_by_others(others, config.source)) is not None:
            reporter.note(said)
    versions = {table.place: table.version() for table in output.tables.values()}
    lost_sentences = tuple(one.why for one in runner.intake.lost)
    return RunResult(snapshot, _status(runner, snapshot), report, resumed, lost_sentences, versions, others)


def _prepare(output: Output, ledger: Ledger, reporter: Reporter) -> None:
    output.prepare(ledger)
    done, waiting = ledger.recover(output.is_published)
    if done or waiting:
        reporter.note(f"the last run was cut off: {done} items turned out done, {waiting} run again")
    with ledger.transaction():
        ledger.record_process()


def _report(config: PipelineConfig, reporter: Reporter) -> Path | None:
    """The report, written; a run that has come to its end, or to an error, is not made another by a full disk."""
    try:
        return write_report(config)
    except (OSError, PipelineError) as error:
        told = unwritten("the report", error, "[output]") if isinstance(error, OSError) else f"no report: {error}"
        reporter.note(str(told))
        return None


def _follow(config: PipelineConfig, reporter: Reporter) -> Follow:
    last: list[Lane] = []
    told: set[str] = set()
    listed: dict[str, float] = {}

    def lanes() -> list[Lane]:
        """The lanes now; those of the last time, and a sentence, when a new directory makes no good lane."""
        nonlocal last
        now_s = time.monotonic()
        kept = [one for one in last if one.events is not None and now_s < listed.get(one.section, 0.0) + one.listing_s]
        try:
            last, met = config.look(kept)
            listed.update(dict.fromkeys({one.section for one in last} - {one.section for one in kept}, now_s))
            sentences = [
                f"lanes.{name}.directories: cannot read {one.unread}" for name, one in met.items() if one.unread
            ]
        except ConfigError as error:
            sentences = [str(error)]
        for sentence in sentences:
            if sentence not in told:
                told.add(sentence)
                reporter.note(sentence)
        return last

    return Follow(config.settings.follow.poll, config.settings.follow.settle, lanes)


def _corrupt_sentence(count: int, output: Output) -> str:
    what = "1 record that is not as configured is" if count == 1 else f"{count} records that are not as configured are"
    return f"{what} set aside in {str(output.places.corrupt)!r}"


def _dispatcher(
    config: PipelineConfig,
    scheduled: Sequence[Lane],
    session: Session | None,
    work: SparkWork,
    output: Output,
    reporter: Reporter,
    watch: Watch,
    stack: ExitStack,
) -> Dispatcher:
    section = config.settings.spark
    if session is None:
        pools = sorted({lane.pool for lane in scheduled if lane.pool})
        log = config.output / "_multiqueue" / "spark.log"
        reporter.note(f"starting Spark on {section.remote or section.master or 'local[*]'}, its log is {log}")
        spark = stack.enter_context(spark_session(section, pools, log))
        reporter.note(f"Spark {spark.version} is up")
    else:
        spark = session() if callable(session) else session
    from ...spark import SparkDispatcher  # here: everything else in this room works without pyspark

    prepare(spark, config, work, output)
    dispatcher = stack.enter_context(SparkDispatcher(spark, max_running=section.max_running))
    watch(dispatcher)
    return dispatcher


@contextlib.contextmanager
def _stop_signals_post_to(mailbox: Mailbox, grace_s: float) -> Iterator[None]:
    """While inside, Ctrl-C and SIGTERM ask the runner to stop; a third one ends the process at once, as kill would.

    SIGTERM comes once: after the grace the runner goes on as if it had come again.
    """
    requests = 0

    def stop(signum: int, frame: object) -> None:
        nonlocal requests
        requests += 1
        if requests == 3:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        mailbox.post(StopRequested(time.monotonic() + grace_s if signum == signal.SIGTERM else math.inf))

    before = {signum: signal.signal(signum, stop) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _status(runner: Runner, snapshot: Snapshot) -> ExitStatus:
    if runner.was_interrupted:
        return ExitStatus.INTERRUPTED
    if runner.intake.lost:
        return ExitStatus.NOT_READY
    return ExitStatus.SET_ASIDE if snapshot.total.failed else ExitStatus.DONE
