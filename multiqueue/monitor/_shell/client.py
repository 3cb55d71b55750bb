"""The base of the shell commands: a client of the HTTP API, and tables that keep their numbers.

Speaks to our own API and to RabbitMQ's, which is the same. Needs nothing but the standard library.
"""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from ..._carried import long_string
from ..._words import cells_of, counted
from .._base.errors import MonitorError

DEFAULT_URL: Final = "http://guest:guest@127.0.0.1:15672"
_PATIENCE: Final = 60.0  # seconds
_LEAST_NAME: Final = 8  # columns that a name keeps in a narrow terminal
_NARROW: Final = "…"


class RequestFailed(MonitorError):
    """The broker was asked, and refused."""

    exit_status = 1


@dataclass(frozen=True, slots=True)
class Api:
    """The HTTP API of a broker, at `http://USER:PASSWORD@HOST:PORT`.

    Raises:
        MonitorError: the URL is none.
    """

    url: str

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number
            fits = False
        if not fits:
            raise MonitorError(
                f"{self.url!r} is not the URL of a broker's HTTP API; write http://USER:PASSWORD@HOST:15672"
            )

    @property
    def place(self) -> str:
        """Where it is, without user and password."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"

    def ask(self, method: str, *segments: str, query: str = "", body: object = None) -> Any:
        """The JSON of an answer, None where it has none. `segments` are quoted.

        Raises:
            RequestFailed: the broker refused.
            MonitorError: a segment is empty, or no text; no server answers there, or not with this API.
        """
        for segment in segments:
            try:
                if not long_string(segment):
                    raise MonitorError(f"a name is empty: {'/'.join(segments)!r}; give one")
            except ValueError as error:  # the bytes of an argument that are no UTF-8
                raise MonitorError(str(error)) from None
        parts = urlsplit(self.url)
        path = "/".join(quote(segment, safe="") for segment in segments)
        request = urllib.request.Request(f"{self.place}/api/{path}{query and '?' + query}", method=method)
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        request.add_header("authorization", "Basic " + base64.b64encode(login.encode()).decode())
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("content-type", "application/json")
        context = ssl.create_default_context() if parts.scheme == "https" else None
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE, context=context) as reply:
                raw = reply.read()
            return json.loads(raw) if raw else None
        except urllib.error.HTTPError as error:
            with error:
                raise RequestFailed(self._refusal(error, segments)) from None
        except urllib.error.URLError as error:
            raise MonitorError(
                f"no answer from {self.place}: {error.reason}; start the broker with --http, or correct --url"
            ) from None
        except (ValueError, OSError, http.client.HTTPException) as error:
            raise MonitorError(f"the server at {self.place} has no HTTP API of a broker: {error}") from None

    def _refusal(self, error: urllib.error.HTTPError, segments: tuple[str, ...]) -> str:
        try:
            reason = json.loads(error.read())["reason"]
        except (ValueError, KeyError, TypeError):
            reason = error.reason
        if error.code == 401 and reason == "Login failed":
            return f"{self.place} refuses the user and password of the URL"
        if error.code == 404 and reason == "Not Found":
            reason = _lacking(*segments)
        return f"{self.place} refuses: {error.code} {reason}"


def _lacking(kind: str, *names: str) -> str:
    """The sentence for what is not there."""
    if not names:
        return f"nothing at /api/{kind}"
    one = kind.removesuffix("s").replace("policie", "policy").replace("-", " ")
    if kind not in ("queues", "exchanges", "bindings", "permissions", "policies", "operator-policies"):
        return f"no {one} {names[0]!r}"
    host = f"virtual host {names[0]!r}"
    return f"no {one} {names[1]!r} in {host}, or no such virtual host" if len(names) > 1 else f"no {host}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its title, how to read it, whether it is a number, the field that the API sorts by."""

    title: str
    read: Callable[[Mapping[str, Any]], Any]
    is_number: bool = False
    path: str = ""


def field(name: str, title: str | None = None, *, is_number: bool = False) -> Column:
    """A column that shows one field; `a.b` is a field of a field."""

    def read(row: Mapping[str, Any]) -> Any:
        value: Any = row
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    return Column(title or name, read, is_number, name)


def table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], noun: str, *, drops: bool = False
) -> Iterable[str]:
    """The lines of a table. In a narrow terminal texts are shortened in the middle; numbers stay whole.

    With `drops` columns that do not fit are left out: texts first, then numbers, the first column never.
    """
    room = shutil.get_terminal_size((10_000, 24)).columns
    cells = [[text_of(column.read(row)) for column in columns] for row in rows]
    lines = [[column.title for column in columns], *cells]
    widths = [max(map(cells_of, each)) for each in zip(*lines, strict=True)]
    if drops:
        kept = _fitting(columns, widths, room)
        columns, widths = [columns[place] for place in kept], [widths[place] for place in kept]
        lines = [[line[place] for place in kept] for line in lines]
    texts = [place for place, column in enumerate(columns) if not column.is_number]
    while texts and sum(widths) + 2 * (len(widths) - 1) > room:
        widest = max(texts, key=lambda place: widths[place])
        if widths[widest] <= _LEAST_NAME:
            break
        widths[widest] -= 1
    for line in lines:
        shown = [shortened(cell, width) for cell, width in zip(line, widths, strict=True)]
        spaces = [" " * (width - cells_of(cell)) for cell, width in zip(shown, widths, strict=True)]
        rows_of = zip(shown, spaces, columns, strict=True)
        yield "  ".join(space + cell if column.is_number else cell + space for cell, space, column in rows_of).rstrip()
    if not rows:
        yield counted(0, noun)


def _fitting(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """The places of the columns that fit when each text is as short as it may be."""
    least = [
        width if column.is_number else min(width, _LEAST_NAME) for column, width in zip(columns, widths, strict=True)
    ]
    kept = list(range(len(columns)))
    for place in sorted(kept[1:], key=lambda place: (columns[place].is_number, -place)):
        if sum(least[each] for each in kept) + 2 * (len(kept) - 1) <= room:
            break
        kept.remove(place)
    return kept


def shortened(text: str, width: int) -> str:
    """The text in so many cells of a terminal: without its middle, if it is longer."""
    if cells_of(text) <= width:
        return text
    head, tail = (width - 1) // 2, width - 1 - (width - 1) // 2
    return _beginning(text, head) + _NARROW + _beginning(text[::-1], tail)[::-1]


def _beginning(text: str, width: int) -> str:
    """As much of the text as fits into so many cells."""
    used = 0
    for place, character in enumerate(text):
        used += cells_of(character)
        if used > width:
            return text[:place]
    return text


def text_of(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return json.dumps(value)
    return str(value)
