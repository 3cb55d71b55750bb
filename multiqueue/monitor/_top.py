"""`multiqueue top`: queues, connections and lanes of a running broker in a terminal, live.

Who runs    Textual's event loop draws; a thread of its own asks the broker, one question at a time, so that a slow
            answer holds up no key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import quote

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult, ScreenStackError
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.widgets import DataTable, Footer, Input, Static

from .._logs import printable
from ._errors import MonitorError
from ._shell import Api, Column, RequestFailed, field, shortened, text_of
from ._troubles import of_a_connection, of_a_queue, of_the_whole

_EVERY: Final = 1.0  # seconds
_ROWS: Final = 200  # of one view: more than a terminal shows
_MOST_TOLD: Final = 3  # lines about what is wrong
_LEAST_NAME: Final = 8  # columns of a terminal
_MOST_TEXT: Final = 24  # columns of a text that is not the name

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class View:
    """The table of one key: columns, the first of them names; and its rows, sorted, for a part of a name."""

    noun: str
    columns: Sequence[Column]
    rows: Callable[[Api, Column, bool, str], list[Row]]
    trouble: Callable[[Row, float], str] = lambda row, now: ""


def _paged(path: str) -> Callable[[Api, Column, bool, str], list[Row]]:
    """Rows that the broker sorts and filters."""

    def rows(api: Api, by: Column, reverse: bool, name: str) -> list[Row]:
        order = f"sort={by.path}&sort_reverse={str(reverse).lower()}"
        query = f"page=1&page_size={_ROWS}&use_regex=false&name={quote(name)}&{order}"
        found: list[Row] = api.ask("GET", path, query=query)["items"]
        return found

    return rows


def _lanes(api: Api, by: Column, reverse: bool, name: str) -> list[Row]:
    executors = api.ask("GET", "lanes", query="seconds=60")["executors"]
    rows = [{**lane, "executor": each["name"]} for each in executors for lane in each["lanes"] if name in lane["name"]]

    def key(row: Row) -> tuple[bool, Any]:
        value = by.read(row)
        return value is not None, "" if value is None else value

    return sorted(rows, key=key, reverse=reverse)[:_ROWS]


_RATE = "message_stats.{}_details.rate"
VIEWS: Final = {
    "queues": View(
        "queues",
        (
            field("name"),
            field("messages_ready", "ready", is_number=True),
            field("messages_unacknowledged", "unacked", is_number=True),
            field(_RATE.format("publish"), "in/s", is_number=True),
            field(_RATE.format("deliver_get"), "out/s", is_number=True),
            field("consumers", "cons", is_number=True),
        ),
        _paged("queues"),
        of_a_queue,
    ),
    "connections": View(
        "connections",
        (
            field("name"),
            field("channels", is_number=True),
            field("recv_oct_details.rate", "in B/s", is_number=True),
            field("send_oct_details.rate", "out B/s", is_number=True),
            field("user"),
            field("user_provided_name", "client"),
        ),
        _paged("connections"),
        of_a_connection,
    ),
    "lanes": View(
        "lanes",
        (
            field("name"),
            field("waiting", is_number=True),
            field("running", is_number=True),
            field("done", is_number=True),
            field("failed", is_number=True),
            field("executor"),
        ),
        _lanes,
    ),
}


class Top(App[None]):
    """The live tables."""

    TITLE = "multiqueue top"
    ENABLE_COMMAND_PALETTE = False
    CSS = "Input { display: none; } Input.shown { display: block; } #told { height: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "view('queues')", "Queues"),
        Binding("2", "view('connections')", "Connections"),
        Binding("3", "view('lanes')", "Lanes"),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, api: Api) -> None:
        super().__init__()
        self._api = api
        self._shown = VIEWS["queues"]
        self._by = 0
        self._reverse = False
        self._part = ""

    def compose(self) -> ComposeResult:
        yield Static(id="told")
        yield Input(placeholder="part of a name")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).focus()
        self.set_interval(_EVERY, self.ask)
        self.ask()

    @work(thread=True, exclusive=True)
    def ask(self) -> None:
        """Ask the broker, and show what it answers."""
        view, by, reverse, name = self._shown, self._by, self._reverse, self._part
        try:
            rows, wrong = view.rows(self._api, view.columns[by], reverse, name), self._wrong()
            told = f"{len(rows)} {view.noun} of {self._api.place}"
        except MonitorError as error:
            rows, wrong, told = [], [], str(error)
        if not self._exit:
            self.call_from_thread(self._show, view, by, rows, told, wrong)

    def _wrong(self) -> list[str]:
        """What is wrong with the broker as a whole; nothing of a program that has lanes alone."""
        try:
            return of_the_whole(self._api.ask("GET", "overview", query="columns=troubles"), [], time.time())
        except RequestFailed:
            return []

    def _show(self, view: View, by: int, rows: list[Row], told: str, wrong: list[str]) -> None:
        if view is not self._shown or by != self._by:
            return  # another question is under way
        try:
            table, told_at = self.query_one(DataTable), self.query_one("#told", Static)
        except (NoMatches, ScreenStackError):
            return  # the program ends, and its screen is gone
        mark = "▼" if self._reverse else "▲"
        titles = [f"{column.title}{mark if place == by else ''}" for place, column in enumerate(view.columns)]
        whole = [[_cell(column.read(row)) for column in view.columns] for row in rows]
        cells = [[first, *(shortened(each, _MOST_TEXT) for each in rest)] for first, *rest in whole]
        widths = [max(map(len, each)) for each in zip(titles, *cells, strict=True)]
        room = max(_LEAST_NAME, self.size.width - sum(widths[1:]) - 2 * len(widths) - 2)
        cursor = table.cursor_row
        table.clear(columns=True)
        for place, title in enumerate(titles):
            table.add_column(Text(title, justify="right" if view.columns[place].is_number else "left"))
        now = time.time()
        troubles = [view.trouble(row, now) for row in rows]
        if any(troubles):
            table.add_column("look at")
        for trouble, line in zip(troubles, cells, strict=True):
            first, *rest = line
            numbers = [
                Text(text, justify="right" if column.is_number else "left")
                for text, column in zip(rest, view.columns[1:], strict=True)
            ]
            name = Text(shortened(first, room), style="bold red" if trouble else "")
            table.add_row(name, *numbers, *([Text(trouble)] if any(troubles) else []))
        table.move_cursor(row=min(cursor, max(0, len(cells) - 1)))
        more = [f"and {len(wrong) - _MOST_TOLD:,} more; `status` has all"] if len(wrong) > _MOST_TOLD else []
        lines = [shortened(printable(each), self.size.width) for each in [*wrong[:_MOST_TOLD], *more]]
        told_at.update(Text.assemble(*((f"{each}\n", "bold red") for each in lines), told))

    def action_view(self, name: str) -> None:
        """Show another view, in the order of its names."""
        self._shown, self._by, self._reverse = VIEWS[name], 0, False
        self.ask()

    def action_sort(self) -> None:
        """Sort by the next column; numbers begin with the largest."""
        self._by = (self._by + 1) % len(self._shown.columns)
        self._reverse = self._shown.columns[self._by].is_number
        self.ask()

    def action_reverse(self) -> None:
        """Turn the order round."""
        self._reverse = not self._reverse
        self.ask()

    def action_filter(self) -> None:
        """Ask for a part of a name."""
        box = self.query_one(Input)
        box.add_class("shown")
        box.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Show what has this in its name."""
        self._part = event.value
        event.input.remove_class("shown")
        self.query_one(DataTable).focus()
        self.ask()


def _cell(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, float) else printable(text_of(value))
