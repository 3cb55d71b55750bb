"""The commands `multiqueue store info|check|dump|load|compact`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import IO

import click

from .._words import counted
from . import _dump, _inspect

_PATH = click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
_MOST_LEVELS = 30
_MOST_PROBLEMS = 1000


@click.group()
def store() -> None:
    """Inspect, check, dump and load a store of messages.

    PATH is the store's directory. You can look at a store that is open.
    """


@store.command()
@_PATH
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def info(path: Path, as_json: bool) -> None:
    """Show what the store in PATH has: messages by queue and level, definitions, sizes, how it was closed."""
    found = _inspect.info(path)
    if as_json:
        levels = [level._asdict() for level in found.levels]
        click.echo(json.dumps({**dataclasses.asdict(found), "levels": levels}))
        return
    state = "open, or crashed" if found.is_open_or_crashed else "closed cleanly"
    definitions = ", ".join(f"{count} of {kind}" for kind, count in found.definitions.items()) or "none"
    for name, value in (
        ("file", f"{found.file}, format {found.format}, {state}"),
        ("messages", f"{found.messages:,} with {counted(found.bytes, 'byte')}; {found.transient:,} of them transient"),
        ("definitions", definitions),
        ("next id", f"{found.next_id}; those below {found.redeliver_floor} may have been delivered"),
        ("size", f"{found.file_bytes:,} bytes, {found.free_bytes:,} of them free; log {found.log_bytes:,}"),
        ("in files", f"{found.bodies_bytes:,} bytes, of large bodies"),
        ("to remove", counted(found.queues_to_remove, "dropped queue")),
    ):
        click.echo(f"{name + ':':<13}{value}")
    for level in found.levels[:_MOST_LEVELS]:
        click.echo(
            f"queue {level.queue}, level {level.level}: {counted(level.messages, 'message')}, "
            f"{counted(level.bytes, 'byte')}, "
            f"ids {level.first} to {level.last}"
        )
    if len(found.levels) > _MOST_LEVELS:
        click.echo(f"and {len(found.levels) - _MOST_LEVELS} more; --json has them all")


@store.command(epilog="Exit status: 0 sound, 1 problems found, 2 no store there.")
@_PATH
@click.pass_context
def check(ctx: click.Context, path: Path) -> None:
    """Check every promise of the store in PATH that can be checked; each problem is a line. Changes nothing."""
    count = 0
    for problem in _inspect.problems(path):
        count += 1
        if count <= _MOST_PROBLEMS:
            click.echo(f"{path}: {problem}")
    if count:
        click.echo(f"{counted(count, 'problem')}; `multiqueue store dump {path}` saves the readable part", err=True)
        ctx.exit(1)
    click.echo(f"{path}: sound")


@store.command(epilog="Exit status: 0 all of it, 1 with gaps, 2 no store there.")
@_PATH
@click.option("--output", type=click.File("w", encoding="utf-8"), default="-", help="By default standard output.")
@click.pass_context
def dump(ctx: click.Context, path: Path, output: IO[str]) -> None:
    """Write everything readable in the store in PATH as lines of JSON, also where it is damaged."""
    damages = 0
    for kind, text in _dump.dump(path):
        if kind == "line":
            _write(output, text)
        else:
            damages += 1
            click.echo(f"{path}: {text}", err=True)
    if damages:
        click.echo(f"{counted(damages, 'gap')}; what could be read was written", err=True)
        ctx.exit(1)


@store.command(epilog="Exit status: 0 all of it, 1 some messages were damaged, 2 not begun, 3 broken off.")
@click.argument("path", type=click.Path(file_okay=False, path_type=Path))
@click.option("--input", "source", type=click.File(encoding="utf-8"), default="-", help="By default standard input.")
@click.pass_context
def load(ctx: click.Context, path: Path, source: IO[str]) -> None:
    """Load the output of `dump` into a new or empty store in PATH."""
    loaded, damaged = _dump.load(path, source)
    click.echo(f"{counted(loaded, 'message')} loaded into {path}")
    if damaged:
        click.echo(f"{counted(damaged, 'message')} left out: not all of it could be read", err=True)
        ctx.exit(1)


@store.command()
@_PATH
def compact(path: Path) -> None:
    """Write the file in PATH anew without free space; files of large bodies stay as they are.

    No process may have it open; it takes as much disk meanwhile.
    """
    before, after = _dump.compact(path)
    click.echo(f"{path}: {before:,} bytes before, {after:,} now")


def _write(output: IO[str], line: str) -> None:
    try:
        output.write(line + "\n")
    except click.FileError as error:  # the file is opened now, not before there is something to write
        raise click.BadParameter(error.format_message(), param_hint="--output") from error
