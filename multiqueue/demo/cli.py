"""The command `multiqueue demo`, and its parts that need no Java: `threads`, `fair` and `broker`."""

from __future__ import annotations

from pathlib import Path

import click

_DIRECTORY = "multiqueue-demo"


@click.group(
    invoke_without_command=True,
    epilog="Exit status: 0 done, 1 items were set aside, 2 not ready, 3 broken off, 130 Ctrl-C.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Where the output goes.  [default: {_DIRECTORY}, with --quick {_DIRECTORY}-quick, and so on]",
)
@click.option("--fresh", is_flag=True, help="Forget what an earlier demo left in DIR and start anew.")
@click.option("--quick", is_flag=True, help="A part of the sources: half a minute on two cores.")
@click.option(
    "--table",
    type=click.Choice(["delta", "iceberg"]),
    help="Put the rows into a table.",
)
@click.pass_context
def demo(ctx: click.Context, directory: Path | None, fresh: bool, quick: bool, table: str | None) -> None:
    """Run a pipeline over the sources of Python's standard library, and show what fairness buys.

    A lane per top-level package; Spark jobs extract lines, definitions, imports and the longest function of each
    file. Then the same items run first in, first out, and the waiting times of the small lanes are compared.

    Spark needs Java. `multiqueue demo threads`, `fair` and `broker` do not, and take ten seconds each.
    """
    if ctx.invoked_subcommand is not None:
        if directory is not None or fresh or quick or table:
            raise click.UsageError(f"`demo {ctx.invoked_subcommand}` has no --dir, --fresh, --quick or --table")
        return
    from ..pipeline._base.errors import Unprepared
    from ..pipeline._run.session import check_machine
    from ..pipeline._tell.console import console
    from ._pipeline import run_demo

    try:
        check_machine(classic=True)
    except Unprepared as missing:
        instead = "`multiqueue demo threads`, `fair` and `broker` need no Java"
        raise Unprepared(f"{missing}; {instead}") from missing
    chosen = directory or Path("-".join([_DIRECTORY, *(["quick"] if quick else []), *([table] if table else [])]))
    ctx.exit(int(run_demo(chosen, console(), fresh=fresh, quick=quick, table=table)))


@demo.command()
def threads() -> None:
    """Three tenants through one queue, then through a multi-queue: who waits how long. No Java; eight seconds."""
    from rich.console import Console

    from ._threads import run_threads

    run_threads(Console(highlight=False))


@demo.command()
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=Path("multiqueue-demo-fair.svg"),
    show_default=True,
    help="Where the picture goes.",
)
def fair(svg: Path) -> None:
    """Eight tenants beside a flood, first in first out and with a fair queue. No Java; ten seconds."""
    from rich.console import Console

    from ._fair import run_fair

    run_fair(Console(highlight=False), svg)


@demo.command()
def broker() -> None:
    """A broker is killed while messages flow, and none is lost. No Java; ten seconds."""
    from rich.console import Console

    from ._broker import run_broker

    run_broker(Console(highlight=False))
