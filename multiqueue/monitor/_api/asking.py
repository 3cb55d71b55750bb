"""A request as handlers see it, the table that finds its handler, and the answer.

Paths are matched on their raw segments: the name of a virtual host is `%2F` as often as not, and must not be taken
for two segments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import unquote

from ...broker import Broker, BrokerError, NotAllowed, VirtualHost
from .._base.errors import Refused, bad_request, not_found
from .._base.held import Hold
from .._door.access import Caller
from .bodies import Body, read_body

_METHODS: Final = ("HEAD", "GET", "POST", "PUT", "DELETE")
LARGEST_BODY: Final = 4 * 2**20  # bytes of a request; parsing them holds the interpreter's lock for some 10 ms
LARGEST_DEFINITIONS: Final = 32 * 2**20  # of an administrator's import


def _no_number(text: str) -> NoReturn:
    """NaN and Infinity are Python's JSON, and nobody else's."""
    raise ValueError(text)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a known user. `parts` are the variable segments of its path, decoded; `shape` is what its body
    may have, `why` its `X-Reason`."""

    caller: Caller
    parts: Mapping[str, str]
    query: Mapping[str, str]
    raw: bytes = b""
    shape: Body = field(default_factory=dict)
    why: str = ""
    hold: Hold = field(default=lambda size: None, kw_only=True)  # room for what the answer has of messages

    def __getitem__(self, name: str) -> str:
        """A variable segment of the path."""
        return self.parts[name]

    def body(self) -> dict[str, Any]:
        """The fields of the request's body, as its path has them.

        Raises:
            Refused: it is not a JSON object, or a field is missing or has a wrong value.
        """
        return read_body(self.shape, self.json())

    def json(self) -> dict[str, Any]:
        """The request's JSON object; empty when nothing was sent. Raises Refused: it is none."""
        if not self.raw.strip():
            return {}
        try:
            found = json.loads(self.raw, parse_constant=_no_number)
        except (ValueError, RecursionError):
            raise bad_request("not_json") from None
        if not isinstance(found, dict):
            raise bad_request("not_json")
        return found

    def flag(self, name: str) -> bool:
        """A switch of the query."""
        return self.query.get(name) == "true"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: a status, and what `json_pieces` writes."""

    status: int = 200
    content: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Ask], Any]  # returns an Answer, or the content of one with status 200


class Route(NamedTuple):
    """The handler of a method of a path, and the fields of its body, or of the query of a GET."""

    handler: Handler
    body: Body


class Table:
    """Which handler answers which method and path."""

    def __init__(self) -> None:
        self._known: dict[int, list[tuple[tuple[str, ...], dict[str, Route]]]] = {}

    def add(self, method: str, path: str, handler: Handler, body: Body | None = None) -> None:
        """Answer `path`, whose `{name}` segments stand for anything; `body` is what its requests bring."""
        pattern = tuple(path.strip("/").split("/"))
        rows = self._known.setdefault(len(pattern), [])
        for known, methods in rows:
            if known == pattern:
                methods[method] = Route(handler, body or {})
                return
        rows.append((pattern, {method: Route(handler, body or {})}))
        rows.sort(key=lambda row: sum(part.startswith("{") for part in row[0]))  # a literal segment goes first

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
        """The handler and the shape of its body, and the variable segments.

        Raises:
            Refused: no such path, or not with this method.
        """
        segments = raw_path.strip("/").split("/")
        for pattern, methods in self._known.get(len(segments), ()):
            parts = _match(pattern, segments)
            if parts is None:
                continue
            route = methods.get("GET" if method == "HEAD" else method)
            if route is None:
                has_head = "GET" in methods
                allowed = [each for each in _METHODS if each in methods or (each == "HEAD" and has_head)]
                raise MethodNotAllowed(", ".join([*allowed, "OPTIONS"]))
            return route, parts
        raise not_found()

    def routes(self) -> list[tuple[str, str, Route]]:
        """Every path and method with what answers it, in order."""
        rows = [row for rows in self._known.values() for row in rows]
        found = [(f"/{'/'.join(pattern)}", *each) for pattern, methods in rows for each in methods.items()]
        return sorted(found, key=lambda each: each[:2])


class MethodNotAllowed(Refused):
    """The path is known, and the method is none of its."""

    def __init__(self, allowed: str) -> None:
        super().__init__(405, "method_not_allowed", f"one of {allowed}")
        self.allowed = allowed


def host_of(broker: Broker, ask: Ask, absent: Refused | None = None) -> VirtualHost:
    """The virtual host of the path. Raises Refused: there is none, which RabbitMQ says here and there otherwise."""
    try:
        return broker.virtual_host(ask["vhost"])
    except NotAllowed:
        raise absent or Refused(404, "not_found", "vhost_not_found") from None


def done(change: Callable[[], object]) -> Answer:
    """Make a change: 201 when something is new by it, else 204. Raises Refused: the broker does not take it."""
    try:
        return Answer(201 if change() is True else 204)
    except BrokerError as error:
        raise bad_request(error.detail) from None
    except (ValueError, TypeError) as error:
        raise bad_request(str(error)) from None


def _match(pattern: tuple[str, ...], segments: list[str]) -> dict[str, str] | None:
    parts: dict[str, str] = {}
    for expected, segment in zip(pattern, segments, strict=True):
        if expected.startswith("{"):
            parts[expected[1:-1]] = _decoded(segment)
        elif expected != segment:
            return None
    return parts


def _decoded(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise bad_request(f"{segment} in the path is not UTF-8") from None
