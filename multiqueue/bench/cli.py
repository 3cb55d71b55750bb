"""`multiqueue bench`: a command for each suite, all with the same options."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from .._extras import needs
from ._harness import is_installed, run_suite
from ._model import BenchError, Suite
from ._report import as_page, default_directory, record

ROUNDS = 9
QUICK_ROUNDS = 3
QUICK_FACTOR = 0.1  # small enough for a minute on two CPUs; too small to trust
HERE = ""  # what `--record` without a directory stands for

_FAILS = "Exits with 1 if a message was lost, or anything raised or got stuck: the table says which."
_NEEDS_SPARK = "Needs pyspark and Java; starts one session on local[2]."
# The module of each suite, its `SUITE`, and what its help says. A module may have `check_machine()`, which raises
# `BenchError` where the suite cannot run, and `measured_suite(against)`, which starts what is measured.
_SUITES = {
    "core": (
        "._core",
        """The multi-queue, the executor and their rivals.

        Those are queue.Queue, queue.SimpleQueue, culsans, aiologic and janus, what people write to block on several
        queues, and ThreadPoolExecutor. One that is not installed is named and left out.
        """,
    ),
    "broker": (
        "._broker",
        """The broker queue: what a message costs.

        queue.Queue is beside it for scale; most workloads ask on what the cost does not depend.
        """,
    ),
    "amqp": (
        "._amqp",
        """Our AMQP server and our client, beside pika's clients and the server at --against.

        Ours is started in a separate process, on a free port, with its data in a temporary directory.
        """,
    ),
    "amqp-load": ("._amqp_load", ""),
    "spark": (
        "._spark",
        f"""The Spark dispatcher and the fan-in.

        {_NEEDS_SPARK} Beside them are a bare ThreadPoolExecutor, first in first out, and threads that put what
        toLocalIterator and toArrow give into one queue.
        """,
    ),
    "pipeline": (
        "._pipeline",
        f"""A pipeline with its defaults, beside one Spark job over all files and Spark's own file stream.

        {_NEEDS_SPARK} 20,000 files and 40 of 50 MB take minutes and 2 GB of the directory for temporary files: --only
        and --quick make it less.
        """,
    ),
}


class NotReady(click.ClickException):
    """This machine lacks what a suite is about: nothing was measured."""

    exit_code = 2


@click.group()
def bench() -> None:
    """Measure what multiqueue claims, beside its rivals, on this machine."""


class _SuiteCommand(click.Command):
    """A command named as its suite, whose help ends with the workloads. The suite is loaded only where needed."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for name in (self.name, "amqp-load") if self.name == "amqp" else (self.name,):
            with formatter.section("Workloads" if name == self.name else "Workloads of --load c"):
                try:
                    suite = _load(str(name))
                    _check_installed(str(name), suite)
                except NotReady as lack:
                    formatter.write_text(lack.message)
                    return
                formatter.write_dl([(workload.name, workload.title) for workload in suite.workloads])


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
_OPTIONS_OF_AMQP = (
    click.option("--against", metavar="URL", help="A server to measure too: amqp://user:password@host:port/vhost."),
    click.option(
        "--load",
        type=click.Choice(["c"]),
        help="Clients in C instead, one and several connections at a time: the server is the limit. Needs a C compiler"
        " and librabbitmq's headers; its workloads are named like publish-4 and publish-ack-1-durable.",
    ),
)


def _command_of(name: str, text: str) -> None:
    def measure(against: str | None = None, load: str | None = None, **options: Any) -> None:
        _measure(name if load is None else f"{name}-load", against, **options)

    function = measure
    for option in reversed((*(_OPTIONS_OF_AMQP if name == "amqp" else ()), *_OPTIONS)):
        function = option(function)
    bench.command(name, cls=_SuiteCommand, help=f"{text}\n\n        {_FAILS}")(function)


for _name, (_path, _text) in _SUITES.items():
    if _text:
        _command_of(_name, _text)


def _measure(
    name: str,
    against: str | None,
    *,
    rounds: int | None,
    only: tuple[str, ...],
    quick: bool,
    as_json: bool,
    directory: str | None,
) -> None:
    _check_installed(name, _chosen(_load(name), only))
    record_to = None if directory is None else _directory(directory)
    try:
        module = _module(name)
        getattr(module, "check_machine", lambda: None)()
        with getattr(module, "measured_suite", lambda _: nullcontext(_load(name)))(against) as whole:
            suite = _chosen(whole, only)
            report = run_suite(
                suite.scaled(QUICK_FACTOR) if quick else suite,
                rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS),
                command=_command(),
                progress=lambda line: click.echo(line, err=True),
            )
    except BenchError as error:
        raise NotReady(str(error)) from error
    click.echo(json.dumps(report.as_json(), indent=1) if as_json else as_page(report, full=True))
    if record_to is not None:
        try:
            written = record(report, record_to)
        except OSError as error:
            text = f"cannot record into {record_to}: {error.strerror}; --record DIR names another"
            raise click.ClickException(text) from error
        click.echo(f"recorded: {', '.join(map(str, written))}", err=True)
    if report.failures:
        raise click.ClickException(
            "; ".join(f"{result.workload.name}: {one.rival.name}: {one.problem}" for result, one in report.failures)
        )


def _module(name: str) -> ModuleType:
    """The suite's module; each loads its own room alone. Raises NotReady: the machine lacks a module."""
    try:
        return importlib.import_module(_SUITES[name][0], __package__)
    except ImportError as error:  # else a room's own, with what to install
        is_absent = isinstance(error, ModuleNotFoundError)
        raise NotReady(needs(f"bench {name}", error.name or "") if is_absent else f"bench {name}: {error}") from error


def _load(name: str) -> Suite:
    found: Suite = _module(name).SUITE
    return found


def _check_installed(name: str, suite: Suite) -> None:
    """Raises: `NotReady` if a module is missing without which ours is not measured; a rival may be missing."""
    for rival in (rival for workload in suite.workloads for rival in workload.rivals):
        if rival.role == "ours" and not is_installed(rival):
            raise NotReady(needs(f"bench {name}", str(rival.requires)))


def _chosen(suite: Suite, only: tuple[str, ...]) -> Suite:
    try:
        return suite.only(only) if only else suite
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
    """The command as one would type it, however it was started; a record is no place for passwords."""
    arguments = sys.argv[sys.argv.index("bench") + 1 :] if "bench" in sys.argv else []
    return re.sub(r"(://[^\s/@:]*):[^\s/@]*@", r"\1:...@", shlex.join(["multiqueue", "bench", *arguments]))
