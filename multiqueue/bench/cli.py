"""`multiqueue bench`: a command for each suite, all with the same options."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from .._extras import needs
from ._harness import is_installed, run_suite
from ._model import BenchError, Suite
from ._record import default_directory, record
from ._report import Report
from ._table import as_text, facts, tables

ROUNDS = 9
QUICK_ROUNDS = 3
QUICK_FACTOR = 0.1  # small enough for a minute on two CPUs; too small to trust
HERE = ""  # what `--record` without a directory stands for

_MODULES = {
    "core": "._core_suite",
    "broker": "._broker",
    "store": "._store",
    "amqp": "._amqp",
    "amqp-load": "._amqp_load",
    "spark": "._spark",
    "pipeline": "._pipeline",
}


@click.group()
def bench() -> None:
    """Measure what multiqueue claims, beside its rivals, on this machine."""


class NotReady(click.ClickException):
    """This machine lacks what a suite is about: nothing was measured."""

    exit_code = 2


@dataclass(frozen=True)
class _Options:
    """The options of every suite; the fields are named as the options' parameters."""

    rounds: int | None
    only: tuple[str, ...]
    quick: bool
    as_json: bool
    directory: str | None


_OPTIONS = (
    click.option("--rounds", type=click.IntRange(min=1), help=f"How often each rival runs.  [default: {ROUNDS}]"),
    click.option("--only", multiple=True, metavar="WORKLOAD", help="Run just this workload; can be repeated."),
    click.option("--quick", is_flag=True, help="A tenth of the work and 3 rounds: to see that it runs."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, every sample included."),
    click.option(
        "--record",
        "directory",
        is_flag=False,
        flag_value=HERE,
        metavar="[DIR]",
        help="Write a page and its JSON into DIR, or without DIR into docs/measurements of the checkout.",
    ),
)


class _SuiteCommand(click.Command):
    """A command named as its suite, whose help ends with the workloads. The suite is loaded only where needed."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Workloads"):
            try:
                workloads = _load(str(self.name)).workloads
            except NotReady as lack:
                formatter.write_text(lack.message)
            else:
                formatter.write_dl([(workload.name, workload.title) for workload in workloads])


def _suite(function: Callable[..., None]) -> click.Command:
    """Make `function` a command with the options that every suite has."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return bench.command(cls=_SuiteCommand)(function)


@_suite
def core(**options: Any) -> None:
    """The multi-queue and its rivals.

    Those are queue.Queue, queue.SimpleQueue, culsans, aiologic and janus, and what people write to block on
    several queues. One that is not installed is named and left out.

    Exits with 1 if a queue lost an item, raised or got stuck: the table says which.
    """
    _measure("core", _Options(**options))


@_suite
def broker(**options: Any) -> None:
    """The broker queue: what a message costs.

    queue.Queue is beside it for scale; most workloads ask on what the cost does not depend.

    Exits with 1 if a message was lost, or a queue raised or got stuck: the table says which.
    """
    _measure("broker", _Options(**options))


@_suite
def store(**options: Any) -> None:
    """The store: what it costs that a message survives.

    Beside it a raw log, which appends and syncs and can do nothing else, and persist-queue's SQLite queues.
    Works in MULTIQUEUE_BENCH_DIR, or in the directory for temporary files: choose a real disk.

    Exits with 1 if a message was lost, or a queue raised or got stuck: the table says which.
    """
    suite = _load("store")
    try:
        importlib.import_module("._store_disk", __package__).check_disk()
    except BenchError as error:
        raise click.UsageError(str(error)) from error
    _measure_suite(suite, _Options(**options))


@_suite
@click.option("--against", metavar="URL", help="A server to measure beside ours: amqp://user:password@host:port/vhost.")
@click.option(
    "--load",
    type=click.Choice(["c"]),
    help="Clients in C instead, one and several connections at a time: the server is the limit. Needs a C compiler and"
    " librabbitmq's headers; its workloads are named like publish-4 and publish-ack-1-durable.",
)
def amqp(against: str | None, load: str | None, **options: Any) -> None:
    """Our AMQP server and our client, beside pika's clients and the server at --against.

    Ours is started in a process of its own, on a free port, with its data in a temporary directory.

    Exits with 1 if a message was lost, or a program raised or got stuck: the table says which.
    """
    name = "amqp" if load is None else "amqp-load"
    _check_installed(_load(name), options["only"])
    module = importlib.import_module(_MODULES[name], __package__)
    try:
        with module.measured_suite(against) as suite:
            _measure_suite(suite, _Options(**options))
    except BenchError as error:
        raise NotReady(str(error)) from error


@_suite
def spark(**options: Any) -> None:
    """The Spark dispatcher and the fan-in.

    Needs pyspark and Java; starts one session on local[2]. Beside them are a bare ThreadPoolExecutor, first in first
    out, and threads that put what toLocalIterator and toArrow give into one queue.

    Exits with 1 if a job or a row was lost, or a rival raised or got stuck: the table says which.
    """
    suite = _load("spark")
    _check_installed(suite, options["only"])
    _check_spark()
    _measure_suite(suite, _Options(**options))


@_suite
def pipeline(**options: Any) -> None:
    """A pipeline with its defaults, beside one Spark job over all files and Spark's own file stream.

    Needs pyspark and Java; starts one session on local[2]. 20,000 files and 40 of 50 MB take minutes and 2 GB of the
    directory for temporary files: --only and --quick make it less.

    Exits with 1 if a row was lost, or a rival raised or got stuck: the table says which.
    """
    suite = _load("pipeline")
    _check_installed(suite, options["only"])
    _check_spark()
    _measure_suite(suite, _Options(**options))


def _check_installed(suite: Suite, only: tuple[str, ...]) -> None:
    """Raises: `NotReady` if a module is missing without which ours is not measured; a rival may be missing."""
    for workload in _chosen(suite, only).workloads:
        for rival in workload.rivals:
            if rival.role == "ours" and not is_installed(rival):
                raise NotReady(needs(f"bench {suite.name}", str(rival.requires)))


def _check_spark() -> None:
    """Raises: `NotReady` if no session can be started: no Java, or an old one."""
    findings = importlib.import_module("multiqueue.spark").check_environment()
    errors = [f"{finding.subject}: {finding.message}" for finding in findings if finding.level == "error"]
    if errors:
        raise NotReady(f"bench spark cannot start Spark: {'; '.join(errors)}")


def _load(name: str) -> Suite:
    """The suite of that name; each loads its own room alone.

    Raises: `UsageError` where the environment asks for what it cannot do; `NotReady` where it lacks a module.
    """
    try:
        return cast(Suite, importlib.import_module(_MODULES[name], __package__).SUITE)
    except BenchError as error:
        raise click.UsageError(str(error)) from error
    except ModuleNotFoundError as error:
        raise NotReady(needs(f"bench {name}", error.name or str(error))) from error
    except ImportError as error:  # a room's own, with what to install
        raise NotReady(f"bench {name}: {error}") from error


def _measure(name: str, options: _Options) -> None:
    _measure_suite(_load(name), options)


def _measure_suite(suite: Suite, options: _Options) -> None:
    suite = _chosen(suite, options.only)
    record_to = None if options.directory is None else _directory(options.directory)
    report = run_suite(
        suite.scaled(QUICK_FACTOR) if options.quick else suite,
        rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
        command=_command(),
        progress=lambda line: click.echo(line, err=True),
    )
    if options.as_json:
        click.echo(json.dumps(report.as_json(), indent=1))
    else:
        _show(report)
    if record_to is not None:
        _keep(report, record_to)
    if report.failures:
        raise click.ClickException(_failures(report))


def _chosen(suite: Suite, only: tuple[str, ...]) -> Suite:
    if not only:
        return suite
    try:
        return suite.only(only)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--only") from None


def _directory(given: str) -> Path:
    """Where to record, settled before minutes of work are spent."""
    directory = default_directory() if given == HERE else Path(given)
    if directory is None:
        raise click.UsageError(
            "--record writes into a checkout of multiqueue, and this one is installed without; "
            "name a directory: --record DIR"
        )
    if directory.exists() and not directory.is_dir():
        raise click.UsageError(f"--record {directory}: that is a file; name a directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--record {directory}: {error.strerror}; name another directory") from error
    return directory


def _command() -> str:
    given = shlex.join(["multiqueue", "bench", *_arguments(sys.argv)])
    return re.sub(r"(://[^\s/@:]*):[^\s/@]*@", r"\1:...@", given)  # a record is no place for passwords


def _arguments(argv: list[str]) -> list[str]:
    """The arguments after `bench`, or after the program where that is the benchmarks' own."""
    return argv[argv.index("bench") + 1 :] if "bench" in argv else argv[1:]


def _keep(report: Report, directory: Path) -> None:
    try:
        written = record(report, directory)
    except OSError as error:
        raise click.ClickException(
            f"cannot record into {directory}: {error.strerror}; --record DIR names another"
        ) from error
    click.echo(f"recorded: {', '.join(map(str, written))}", err=True)


def _failures(report: Report) -> str:
    return "; ".join(
        f"{result.workload.name}: {rival.rival.name}: {rival.problem}" for result, rival in report.failures
    )


def _show(report: Report) -> None:
    """Tables by rich at a terminal where it is installed, plain text anywhere else."""
    if not _is_terminal() or not _show_rich(report):
        click.echo(as_text(report))


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _show_rich(report: Report) -> bool:
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ModuleNotFoundError:
        return False
    console = Console(highlight=False)
    for name, value in facts(report):
        console.print(f"[dim]{name}:[/] {escape(value)}")
    for table in tables(report):
        drawn = Table(title=escape(table.title), title_justify="left", title_style="bold")
        for number, column in enumerate(table.header):
            drawn.add_column(escape(column), justify="right" if number else "left")
        for row in table.rows:
            drawn.add_row(*map(escape, row))
        console.print(drawn)
        for remark in table.remarks:
            console.print(f"[dim]{escape(remark)}[/]")
    console.print("[bold]What these figures do not show[/]")
    for line in report.does_not_show:
        console.print(f"- {escape(line)}")
    return True
