"""The command `multiqueue store move`, which needs more than the store: it joins the others of `multiqueue store`."""

from __future__ import annotations

from pathlib import Path

import click

from .._words import counted
from ..store._salvage import store_file
from ..store.cli import store as store


@store.command(epilog="Exit status: 0 moved, 1 something was refused or left, 2 not begun, 3 broken off.")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("url", metavar="URL")
@click.pass_context
def move(ctx: click.Context, path: Path, url: str) -> None:
    """Move what the store in PATH keeps to the broker at URL: durable exchanges, queues, bindings and messages.

    PATH is the directory of a virtual host whose broker has ended: DIR/%2f of `multiqueue broker --data DIR`. A message
    leaves it once the other broker has confirmed it, so if a move breaks off the same command goes on.
    """
    from ..broker import Broker
    from ..broker._durable.data_directory import virtual_host_name
    from ..client import connect
    from ._move import move as move_all

    store_file(path)
    name = virtual_host_name(path.name)
    if name is None:
        raise click.BadParameter(
            f"{str(path)!r} is not named as a broker names the store of a virtual host; that of / is DIR/%2f"
        )
    with connect(url, recover=False) as target, Broker(data=path.parent) as broker:
        moved = move_all(
            broker.virtual_host(name),
            target,
            lambda queue, count: click.echo(f"{queue}: {counted(count, 'message')}"),
        )
    click.echo(
        f"moved {counted(moved.exchanges, 'exchange')}, {counted(moved.queues, 'queue')},"
        f" {counted(moved.bindings, 'binding')} and {counted(moved.messages, 'message')}"
    )
    if moved.left:
        click.echo(f"{counted(moved.left, 'message')} stayed in {path}: no consumer could be given them now", err=True)
        ctx.exit(1)
