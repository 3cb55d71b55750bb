"""The command line: `multiqueue COMMAND`. Each command loads its own room and nothing else.

Promise     A mistake of the user's or a lack of the machine's ends in one sentence on standard error and a status
            that docs/reference/command-line.md explains: 0 done, 1 something failed or was set aside, 2 not started,
            3 broken off, 130 interrupted. A traceback means a bug of ours.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from typing import Any

try:
    import click
except ImportError:
    sys.stderr.write("multiqueue: the command line needs click: pip install 'blocking-multiqueue[cli]'\n")
    sys.exit(2)

from . import __version__
from ._extras import needs
from ._logs import printable
from .core import engine
from .errors import MultiQueueError

# Where each command lives, and what `multiqueue --help` says of it without loading it.
_COMMANDS = {
    "pipeline": ("multiqueue.pipeline.cli:pipeline", "Run a pipeline of files through Spark; show or retry it."),
    "demo": ("multiqueue.demo.cli:demo", "See what it buys: over Python's own sources, with threads, with a broker."),
    "broker": ("multiqueue.amqp.cli:broker", "Serve AMQP 0-9-1 clients; say how a broker does."),
    "publish": ("multiqueue.client.cli:publish", "Publish lines or files to a broker."),
    "consume": ("multiqueue.client.cli:consume", "Write a queue's messages to standard output."),
    "store": ("multiqueue.transfer.cli:store", "Look into a broker's store, check it, dump, load and move it."),
    "top": ("multiqueue.monitor.cli:top", "Queues, live."),
    "status": ("multiqueue.monitor.cli:status", "A running broker in figures."),
    "queue": ("multiqueue.monitor.cli:queue", "List, show, declare, purge, move and delete queues."),
    "exchange": ("multiqueue.monitor.cli:exchange", "List, declare and delete exchanges."),
    "binding": ("multiqueue.monitor.cli:binding", "List, add and delete bindings."),
    "policy": ("multiqueue.monitor.cli:policy", "List, set and clear policies."),
    "connection": ("multiqueue.monitor.cli:connection", "List and close connections."),
    "lane": ("multiqueue.monitor.cli:lane", "List the lanes of a program's executors."),
    "user": ("multiqueue.monitor.cli:user", "List, add, change and delete users; their permissions."),
    "definitions": ("multiqueue.monitor.cli:definitions", "Export and import what is declared."),
    "bench": ("multiqueue.bench.cli:bench", "Measure what multiqueue claims, on this machine."),
}


class _Rooms(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module_name, _, name = _COMMANDS[cmd_name][0].partition(":")
        try:
            command = getattr(importlib.import_module(module_name), name)
        except ModuleNotFoundError as error:
            raise _Sentence(needs(f"`multiqueue {cmd_name}`", error.name or str(error)), 2) from error
        except ImportError as error:  # a room's own, with what to install
            raise _Sentence(str(error), 2) from error
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        other = _other_project()
        if other is not None:
            click.echo(other, err=True)
        try:
            return super().invoke(ctx)
        except MultiQueueError as error:
            raise _Sentence(str(error), int(getattr(error, "exit_status", 1))) from error
        except ImportError as error:
            if "pip install" not in str(error):
                raise  # no extra that is missing, but a bug of ours
            raise _Sentence(str(error), 2) from error
        except BrokenPipeError:
            raise  # `| head`: click ends quietly
        except OSError as error:
            where = f": {error.filename!r}" if error.filename else ""
            raise _Sentence(f"{error.strerror or error}{where}", 3) from error
        except KeyboardInterrupt as error:
            raise _Sentence(str(error) or "interrupted", 130) from None


def _other_project() -> str | None:
    """The error where another project's distribution has files in this package; None where it has not."""
    try:
        version = metadata.version("multiqueue")
    except metadata.PackageNotFoundError:
        return None
    if version == __version__:
        return None  # this project, installed before it had its name on PyPI
    return (
        f"multiqueue: the distribution 'multiqueue' {version} is another project's and writes into the same package:"
        " pip uninstall multiqueue, then pip install --force-reinstall blocking-multiqueue"
    )


class _Sentence(click.ClickException):
    """An error as one sentence, without click's `Error:`."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_code = status  # type: ignore[misc] # click reads it from the instance

    def show(self, file: Any = None) -> None:
        message = "\n".join(map(printable, self.message.split("\n")))  # a server's words may be in it
        click.echo(f"multiqueue: {message}", file=file, err=file is None)


@click.command(cls=_Rooms)
@click.version_option(
    __version__,
    prog_name="multiqueue",
    message=f"%(prog)s, version %(version)s, engine in {'C' if engine == 'c' else 'Python'}",
)
def main() -> None:
    """Queues with many tails and one head, and the tools built on them."""
