"""The lists of the shell: their columns, and the table that `--watch` draws again each second until Ctrl-C.

A watched table has rates, is sorted and filtered by the broker, and has troubles above and below it. It fits the
terminal: beside the name, texts are left out first, then numbers, the last of them first.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import click

from ..._logs import printable
from .._base.errors import MonitorError
from .client import Api, Column, RequestFailed, field, shortened, table
from .troubles import Row, of_a_connection, of_a_queue, of_the_whole

_EVERY: Final = 1.0  # seconds
_ROWS: Final = 200  # asked of the broker: more than a terminal shows
_MOST_TOLD: Final = 3  # lines about what is wrong
_HOME, _TO_END_OF_LINE, _TO_END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_pause = time.sleep


@dataclass(frozen=True, slots=True)
class View:
    """Objects of a broker as rows of a table, and the troubles of a row. Rates are those whose title ends in `/s`.

    `rows` reads those for a watched table: sorted by a column if one is given, with a part of a name, of one virtual
    host or of all.
    """

    noun: str
    columns: Sequence[Column]
    rows: Callable[[Api, Column | None, str, str | None], list[Row]]
    trouble: Callable[[Row, float], str] = lambda row, now: ""

    @property
    def listed(self) -> list[Column]:
        """The columns of a list that is printed once, where a rate says little."""
        return [each for each in self.columns if not each.title.endswith("/s")]

    def column(self, title: str) -> Column:
        """The column of that title.

        Raises:
            MonitorError: there is none.
        """
        for each in self.columns:
            if each.title == title:
                return each
        titles = ", ".join(repr(each.title) for each in self.columns)
        raise MonitorError(f"--sort is {title!r}; it is one of {titles}")

    def troubles(self, rows: Sequence[Row]) -> Iterator[str]:
        """A line for each row that somebody should look at."""
        now = time.time()
        for row in rows:
            if wrong := self.trouble(row, now):
                name = row.get("user_provided_name") or row["name"]
                yield printable(f"{self.noun} {name!r}: {wrong}")


def in_host(path: str, vhost: str | None) -> list[str]:
    """The path of a list, of one virtual host or of all."""
    return [path] if vhost is None else [path, vhost]


def _paged(path: str) -> Callable[[Api, Column | None, str, str | None], list[Row]]:
    """Rows that the broker sorts and filters."""

    def rows(api: Api, by: Column | None, name: str, vhost: str | None) -> list[Row]:
        order = f"&sort={by.path}&sort_reverse={str(by.is_number).lower()}" if by else ""
        query = f"page=1&page_size={_ROWS}&use_regex=false&name={quote(name)}{order}"
        found: list[Row] = api.ask("GET", *in_host(path, vhost), query=query)["items"]
        return found

    return rows


def lanes(api: Api, by: Column | None = None, name: str = "", _: str | None = None) -> list[Row]:
    """The lanes of all executors that are watched, also those of a program without a broker."""
    executors = api.ask("GET", "lanes", query="seconds=60")["executors"]
    rows: list[Row] = [
        {**lane, "executor": each["name"]} for each in executors for lane in each["lanes"] if name in lane["name"]
    ]
    if by is not None:
        rows.sort(key=lambda row: by.read(row), reverse=by.is_number)
    return rows


def _number(name: str, title: str | None = None) -> Column:
    return field(name, title, is_number=True)


QUEUES: Final = View(
    "queue",
    (
        field("name"),
        field("vhost"),
        field("arguments.x-queue-kind", "kind"),
        _number("messages_ready", "ready"),
        _number("messages_unacknowledged", "unacked"),
        _number("message_stats.publish_details.rate", "in/s"),
        _number("message_stats.deliver_get_details.rate", "out/s"),
        _number("consumers"),
    ),
    _paged("queues"),
    of_a_queue,
)
CONNECTIONS: Final = View(
    "connection",
    (
        field("name"),
        field("user_provided_name", "client"),
        field("state"),
        field("user"),
        field("vhost"),
        _number("channels"),
        _number("recv_oct_details.rate", "in B/s"),
        _number("send_oct_details.rate", "out B/s"),
        _number("recv_oct", "in"),
        _number("send_oct", "out"),
    ),
    _paged("connections"),
    of_a_connection,
)
LANES: Final = View(
    "lane",
    (field("name"), *map(_number, ("waiting", "running", "done", "failed")), field("executor")),
    lanes,
)


def watch(view: View, api: Api, sort: str | None, name: str, vhost: str | None = None) -> None:
    """Draw the table again each second, until Ctrl-C. An error is shown where the table was, but for the first.

    Without a terminal, tables follow one another, each behind an empty line.
    """
    by = None if sort is None else view.column(sort)
    lines = list(screen(view, api, by, name, vhost))
    is_terminal = sys.stdout.isatty()
    if is_terminal:
        click.clear()
    try:
        while True:
            if is_terminal:
                kept = lines[: shutil.get_terminal_size().lines - 1]
                text = "".join(f"{line}{_TO_END_OF_LINE}\n" for line in kept)
                click.echo(f"{_HOME}{text}{_TO_END_OF_SCREEN}", nl=False)
            else:
                click.echo("\n".join([*lines, ""]))
            _pause(_EVERY)
            try:
                lines = list(screen(view, api, by, name, vhost))
            except MonitorError as error:
                lines = [printable(str(error))]
    except KeyboardInterrupt:
        return


def screen(view: View, api: Api, by: Column | None, name: str, vhost: str | None) -> Iterator[str]:
    """The lines of one moment: the troubles of the whole, the table, the troubles of its rows."""
    rows = view.rows(api, by, name, vhost)
    room = shutil.get_terminal_size((10_000, 24)).columns
    yield from _first(_whole(api), room)
    for line in table(rows, view.columns, view.noun, drops=True):
        yield printable(line)
    yield from _first(list(view.troubles(rows)), room)


def _whole(api: Api) -> list[str]:
    """What is wrong with the broker as a whole; nothing of a program that has lanes alone."""
    try:
        return of_the_whole(api.ask("GET", "overview", query="columns=troubles"), [], time.time())
    except RequestFailed:
        return []


def _first(wrong: list[str], room: int) -> Iterator[str]:
    for each in wrong[:_MOST_TOLD]:
        yield shortened(printable(each), room)
    if len(wrong) > _MOST_TOLD:
        yield f"and {len(wrong) - _MOST_TOLD:,} more"
