"""The commands `multiqueue pipeline run|plan|status|retry|redo|vacuum|optimize`."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .._words import counted
from ..errors import MultiQueueError
from ._base.errors import ExitStatus, Unprepared
from ._base.items import Item, shown
from ._base.lifecycle import ItemState
from ._config.config import PipelineConfig, load_config
from ._config.fingerprint import fingerprints, made_by_others
from ._run.dead_letters import DeadLetters
from ._run.progress import Reporter
from ._state.ledger import open_ledger
from ._state.state import LaneCount
from ._state.view import Failure, ledger_view
from ._tell.arrivals import arrival_sentence, events_told
from ._tell.console import console as new_console
from ._tell.console import reporter_for
from ._tell.metrics import MetricsFile
from ._verbs import upkeep as _upkeep
from ._verbs.plan import plan_of
from ._verbs.plan_console import plan_values, show_plan
from ._verbs.run import RunResult, Watch, run_pipeline
from ._verbs.verdict import lanes_of, result_document, sentence, told_as_document

# At the end of a run; `status` shows them all.
_MOST_LANES = 30

_FILE = click.argument("file", metavar="FILE.toml")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of tables.")


class _Commands(click.Group):
    """A group in which an error that nobody foresaw ends with a traceback and the status that says: try again.

    Python's own would be 1, which says that items are set aside.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (MultiQueueError, OSError, ImportError, click.ClickException, click.exceptions.Exit, click.Abort):
            raise  # told in a sentence by the command above
        except Exception:  # noqa: BLE001 - it is shown whole
            traceback.print_exc()
            ctx.exit(int(ExitStatus.BROKEN_OFF))


@click.group(cls=_Commands)
def pipeline() -> None:
    """Run Spark jobs over many files, in lanes that cannot starve each other.

    Finished items are recorded: after Ctrl-C, kill -9 or a crash the same command finishes the rest.
    """


@pipeline.command(
    epilog="Exit status: 0 all done, 1 items were set aside, 2 not ready or input lost, 3 broken off: try again later, "
    "130 Ctrl-C or SIGTERM."
)
@_FILE
@click.option(
    "--on",
    "url",
    metavar="URL",
    help="Run on this Spark instead of the one in [spark]: local[4], spark://..., sc://...",
)
@click.option("--lane", "lanes", multiple=True, metavar="NAME", help="Only this lane, and no step; may be repeated.")
@click.option("--follow", is_flag=True, help="Keep looking for new files until Ctrl-C or SIGTERM.")
@click.option(
    "--metrics",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the run's numbers in this file: JSON if it ends in .json, otherwise Prometheus's text.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=math.inf,
    metavar="SECONDS",
    help="Seconds that running jobs have to end after SIGTERM; then they are cancelled, and the next run does them.",
)
@click.option("--http", type=click.IntRange(0, 65535), help="Show the lanes on a page at this port; 0 is a free one.")
@_JSON
@click.pass_context
def run(
    ctx: click.Context,
    file: str,
    url: str | None,
    lanes: tuple[str, ...],
    follow: bool,
    metrics: Path | None,
    grace: float,
    http: int | None,
    as_json: bool,
) -> None:
    """Process the input of FILE.toml, or the rest of it.

    Ctrl-C once lets running jobs finish, twice cancels them. SIGTERM works like Ctrl-C. With --json standard output
    gets one document at the end, and standard error one object a line meanwhile.
    """
    console = new_console(stderr=as_json)
    with contextlib.ExitStack() as stack:
        if as_json:
            stack.enter_context(told_as_document())
        config = load_config(file)
        if url is not None:
            config = config.on(url)
        if lanes:
            config = config.only(lanes, ran=set(_that_ran(config) if config.state.exists() else ()))
        reporter = reporter_for(console, as_json=as_json)
        if metrics is not None:
            reporter = MetricsFile(metrics.absolute(), reporter)
        watch: Watch = lambda dispatcher: None  # noqa: E731
        if http is not None:
            windows = stack.enter_context(_windows(http, config, reporter))
            reporter, watch = windows, windows.watch
        result = run_pipeline(config, reporter, follow=follow, watch=watch, grace_s=grace)
        if as_json:
            click.echo(result_document(config, result, file))
        else:
            _show_result(console, config, result, file)
    ctx.exit(int(result.status))


def _windows(port: int, config: PipelineConfig, reporter: Reporter) -> Any:
    """The page of a run."""
    try:
        from .. import monitor
    except ImportError as error:
        raise Unprepared(f"`--http` needs {error.name}: pip install 'blocking-multiqueue[monitor]'") from error
    return monitor.PipelineWindows(Path(config.source).stem, reporter, port=port)


@pipeline.command()
@_FILE
@_JSON
@click.option("--items", default=10, show_default=True, type=click.IntRange(min=0), help="How many to show, in order.")
@click.option("--whole", is_flag=True, help="List all input, however long it takes.")
@click.pass_context
def plan(ctx: click.Context, file: str, as_json: bool, items: int, whole: bool) -> None:
    """Show what `run` would do: lanes, items, steps, and their order. It starts and writes nothing."""
    with told_as_document() if as_json else contextlib.nullcontext():
        config = load_config(file)
        found = plan_of(config, items, whole=whole)
    if as_json:
        click.echo(json.dumps(plan_values(found), ensure_ascii=False))
    else:
        show_plan(new_console(), config, found)
    ctx.exit(int(ExitStatus.NOT_READY if found.lost else ExitStatus.DONE))


@pipeline.command()
@_FILE
@_JSON
@click.option("--failures", default=10, show_default=True, type=click.IntRange(min=0), help="How many to show.")
def status(file: str, as_json: bool, failures: int) -> None:
    """Show the lanes of FILE.toml, and which items failed and why. It works during a run."""
    with contextlib.ExitStack() as stack:
        if as_json:
            stack.enter_context(told_as_document())
        config = load_config(file)
        view = stack.enter_context(ledger_view(config.state))
        counts, failed = view.counts(), view.failures(failures)
        others = view.made_by_others(fingerprints(config))
        found = view.arrivals()
    arrived = events_told(config, found)
    if as_json:
        values = {**_status_values(counts, failed), "made_by_others": others, "events": arrived}
        click.echo(json.dumps(values, ensure_ascii=False))
        return
    console = new_console()
    console.print(lanes_table(counts))
    _show_failures(console, failed, counts)
    for lane, told in arrived.items():
        console.print(escape(arrival_sentence(lane, told, time.time())), style="dim", soft_wrap=True)
    if (said := made_by_others(others, file)) is not None:
        console.print(escape(said), soft_wrap=True)


@pipeline.command()
@_FILE
@click.option("--lane", "lanes", multiple=True, help="Only this lane; may be repeated.")
def retry(file: str, lanes: tuple[str, ...]) -> None:
    """Put the failed items of FILE.toml back; the next `run` tries them again."""
    config = load_config(file)
    lanes = _chosen(lanes, _that_ran(config))
    letters = DeadLetters(config.dead_letters, config.storage)
    forgotten: list[Item] = []
    with (
        config.state.exclusive(),
        open_ledger(config.state, config.base, config.storage) as ledger,
        ledger.transaction(),
    ):
        count = ledger.put_back_failed(lanes or None, forgotten.append)
        for item in forgotten:
            letters.remove(item)
    if forgotten:
        which = "it" if len(forgotten) == 1 else "them"
        click.echo(f"{counted(len(forgotten), 'item')} forgotten: no file of {which} is left")
    click.echo(f"{counted(count, 'item')} put back; `multiqueue pipeline run {shlex.quote(file)}` tries again")


def _that_ran(config: PipelineConfig) -> list[str]:
    """The lanes and steps that the state knows. Before any run it is said that there is none, and no state is made."""
    with ledger_view(config.state) as view:
        return sorted({count.lane for count in view.counts()})


def _chosen(names: tuple[str, ...], known: list[str]) -> tuple[str, ...]:
    """The names. Raises Unprepared: one is not known."""
    if unknown := [name for name in names if name not in known]:
        raise Unprepared(f"no lane {unknown[0]!r} has run here; there are {', '.join(known) or 'none'}")
    return names


class _Moment(click.ParamType[float]):
    """A moment as ISO 8601 has it, in seconds since 1970; without an offset it is the time of this machine."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            self.fail(f"{value!r} is no moment: one is 2026-11-24 or 2026-11-24T20:00", param, ctx)


@pipeline.command(epilog="Exit status: 0 the items wait, 2 wrong usage or nothing has run here, 3 a run is under way.")
@_FILE
@click.option("--lane", "lanes", multiple=True, metavar="NAME", help="Only this lane or step; may be repeated.")
@click.option("--since", type=_Moment(), metavar="TIME", help="Only items done since then, as 2026-11-24T20:00.")
@click.option("--changed", is_flag=True, help="Only items that another version of the job made.")
def redo(file: str, lanes: tuple[str, ...], since: float | None, changed: bool) -> None:
    """Have the next `run` do finished items of FILE.toml again. An item's new rows replace its old ones in one step.

    Old rows stay until then, and where an item fails. Steps that read them run again.
    """
    config = load_config(file)
    ran = _that_ran(config)
    chosen = _chosen(lanes, ran) or ran
    with (
        config.state.exclusive(),
        open_ledger(config.state, config.base, config.storage, fingerprints(config)) as ledger,
        ledger.transaction(),
    ):
        redone = ledger.redo(chosen, since, changed=changed)
    if redone.left:
        click.echo(f"{counted(redone.left, 'item')} left as done: their files are gone, or they were messages")
    if not redone.items:
        click.echo("no item is chosen: all rows stay as they are")
        return
    click.echo(
        f"{counted(redone.items, 'item')} to be done anew; `multiqueue pipeline run {shlex.quote(file)}` does that, "
        "and their rows stay until then"
    )


@pipeline.command()
@_FILE
@click.option(
    "--keep-hours",
    default=168,
    show_default=True,
    type=click.IntRange(min=0),
    help="Keep files that were replaced less than so many hours ago, for readers of older versions.",
)
def vacuum(file: str, keep_hours: int) -> None:
    """Remove files that no commit of FILE.toml's tables names: left by runs that died, or replaced."""
    for place, said in _upkeep.vacuum(load_config(file), keep_hours * 3600.0):
        click.echo(f"{place}: {said}")


@pipeline.command()
@_FILE
def optimize(file: str) -> None:
    """Make few large files of the many small ones in the tables of FILE.toml. `vacuum` removes the small ones later."""
    for place, said in _upkeep.optimize(load_config(file)):
        click.echo(f"{place}: {said}")


def lanes_table(counts: Iterable[LaneCount], most: int | None = None) -> Table:
    """Items per lane and state, and their total; of more than `most` lanes those that are not all done first."""
    lanes: dict[str, dict[ItemState, int]] = {}
    for count in counts:
        lanes.setdefault(count.lane, dict.fromkeys(ItemState, 0))[count.state] = count.items
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("lane")
    for name in ("waiting", "done", "failed"):
        table.add_column(name, justify="right", min_width=7)
    shown = list(lanes)
    if most is not None and len(shown) > most:
        shown = sorted(shown, key=lambda lane: sum(lanes[lane].values()) == lanes[lane][ItemState.DONE])[:most]
    for lane in shown:
        table.add_row(escape(lane), *_cells(lanes[lane]))
    if len(shown) < len(lanes):
        table.add_row(f"[dim]and {len(lanes) - len(shown)} more[/]")
    total = {state: sum(states[state] for states in lanes.values()) for state in ItemState}
    table.add_row(counted(len(lanes), "lane"), *_cells(total), style="bold")
    return table


def _cells(states: dict[ItemState, int]) -> tuple[str, str, str]:
    waiting = states[ItemState.WAITING] + states[ItemState.SUBMITTED]
    failed = states[ItemState.FAILED]
    return f"{waiting:,}", f"{states[ItemState.DONE]:,}", f"[red]{failed:,}[/]" if failed else "0"


def _show_result(console: Console, config: PipelineConfig, result: RunResult, file: str) -> None:
    names = lanes_of(config, result)
    with ledger_view(config.state) as view:
        counts, failed = view.counts(), view.failures(5, names)
    counts = [one for one in counts if names is None or one.lane in names]
    console.print(lanes_table(counts, most=_MOST_LANES))
    _show_failures(console, failed, counts)
    report = "" if result.report is None else f"\nreport {result.report}"
    console.print(f"{sentence(result, file)}\noutput {config.rows_at / 'data'}{report}", soft_wrap=True)


def _show_failures(console: Console, failed: list[Failure], counts: list[LaneCount]) -> None:
    for failure in failed:
        more = f" (+{failure.files - 1})" if failure.files > 1 else ""
        console.print(
            f"[red]failed[/] {escape(failure.lane)}: {escape(shown(failure.path))}{more}, attempt {failure.attempt}: "
            f"{escape(failure.error.splitlines()[0][:300])}",
            soft_wrap=True,
        )
    hidden = sum(count.items for count in counts if count.state is ItemState.FAILED) - len(failed)
    if hidden:
        console.print(f"and {hidden} more failed; `--failures N` of `multiqueue pipeline status` shows them")


def _status_values(counts: list[LaneCount], failed: list[Failure]) -> dict[str, object]:
    lanes: dict[str, dict[str, int]] = {}
    for count in counts:
        lanes.setdefault(count.lane, dict.fromkeys((state.value for state in ItemState), 0))[count.state.value] = (
            count.items
        )
    return {"lanes": lanes, "failures": list(map(asdict, failed))}
