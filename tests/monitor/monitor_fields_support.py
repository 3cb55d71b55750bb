"""Answers of the API beside RabbitMQ's: the fields that differ, as docs/reference/http-api.md shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monitor_support import Reply

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http-api.md"
HEAD = """# The HTTP API beside RabbitMQ's

`multiqueue.monitor` answers the requests of RabbitMQ's management API with the same status, the same fields and the
same types. This page lists what differs from RabbitMQ 4.3.6; a request or a field that is not listed is the same, or
has no value here. `tests/monitor/test_monitor_beside_rabbitmq.py` sends each GET request to both servers and writes
this page; beside RabbitMQ 3.10 (Debian's package) it looks for the same fields. Fields that one of the two has are here
under each `compat`. [The design](../design/monitor.md#what-differs-from-rabbitmq) has other differences.

`GET /api/openapi.json` describes all requests and their bodies as OpenAPI 3.1.

A queue's `publish` counts the messages that reached it. `proc_used` and `proc_total` count threads. `troubles` are
virtual hosts that are down, alarms, blocked connections, redelivery loops and the oldest unacknowledged message; times
with `_since` are milliseconds since 1970, but for RabbitMQ's `idle_since`, which is text, and which queues
alone have. `consumer_timeout` is null where no time holds; RabbitMQ names one for classic queues too, where none holds
either.
"""

# Why a field is not here.
WITHOUT = {
    "Erlang's, and not here": re.compile(
        r"garbage_collection|reductions|erlang|backing_queue|net_ticktime|metrics_gc|(^|\.)ra_|mnesia"
        r"|queue_index|release_series|_opts$|storage_version|cached_segments"
    ),
    "Not counted here": re.compile(
        r"io_(read|write|seek|reopen|sync_avg)|msg_store|disk_(reads|writes)|gc_bytes|_ram$|paged_out|persistent$|memory$"
        r"|idle_since|(recv|send)_cnt|drop_unroutable"
    ),
}
MISSING = "Missing here"
_CLOSED = frozenset(
    {
        "arguments",
        "client_properties",
        "cluster_state",
        "properties",
        "garbage_collection",
        "backing_queue_status",
        "socket_opts",
        "metrics_gc_queue_length",
        "ra_open_file_metrics",
        "applications",
        "troubles",
    }
)


def why_without(field: str) -> str | None:
    """Why this field of RabbitMQ's is not here; None where there is no reason."""
    name = field.removesuffix(".rate").removesuffix("_details")
    return next((why for why, pattern in WITHOUT.items() if pattern.search(name)), None)


def kinds(value: Any, prefix: str = "") -> dict[str, set[str]]:
    """What each field holds; what users or Erlang named is not looked into. A list's items are as one."""
    found: dict[str, set[str]] = {}
    if isinstance(value, dict):
        for key, each in value.items():
            found.setdefault(prefix + key, set()).add(_kind(each))
            if key not in _CLOSED:
                for name, some in kinds(each, f"{prefix}{key}.").items():
                    found.setdefault(name, set()).update(some)
    elif isinstance(value, list):
        for each in value:
            for name, some in kinds(each, prefix).items():
                found.setdefault(name, set()).update(some)
    return found


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "number"
    return {str: "text", list: "list", dict: "object"}.get(type(value), "null")


def content(reply: Reply) -> Any:
    """The JSON of an answer, None where it is none."""
    return reply.json if reply.headers.get("content-type", "").startswith("application/json") and reply.text else None


def page_of(answers: Mapping[str, tuple[Reply, Reply]]) -> str:
    """The page, of RabbitMQ's and our answers by request; requests that differ alike share a section."""
    sections: dict[str, list[str]] = {}
    for request, (theirs, ours) in answers.items():
        if theirs.status != ours.status:
            text = f"RabbitMQ answers {theirs.status}, multiqueue {ours.status}.\n"
        elif theirs.status >= 400:
            text = ""
        else:
            text = _differences(content(theirs), content(ours))
        if text:
            sections.setdefault(text, []).append(f"`{request}`")
    return "\n".join([HEAD, *(f"## {_title(some)}\n\n{', '.join(some)}\n\n{text}" for text, some in sections.items())])


def _title(requests: list[str]) -> str:
    return requests[0].strip("`").removeprefix("/api/")


def _differences(theirs: Any, ours: Any) -> str:
    """The fields that differ, a line for each reason; empty where none does."""
    if theirs and ours == []:
        return "A list, which is always empty here.\n"
    expected, found = kinds(theirs), kinds(ours)
    lines: dict[str, list[str]] = {}
    for name in sorted(expected.keys() | found.keys()):
        if name.endswith(("_details", "_details.rate", "idle_since")):
            continue  # the rate of the field that is named before it; and RabbitMQ has an idle_since after a while
        if name not in found:
            lines.setdefault(why_without(name) or MISSING, []).append(f"`{name}`")
        elif found[name] == {"null"}:
            continue
        elif name not in expected:
            lines.setdefault("Here alone", []).append(f"`{name}` ({_said(found[name])})")
        elif found[name] - {"null"} != expected[name] - {"null"} and _said(found[name]) != _said(expected[name]):
            lines.setdefault(f"RabbitMQ: {_said(expected[name])}, here {_said(found[name])}", []).append(f"`{name}`")
    return "".join(f"- {reason}: {', '.join(names)}\n" for reason, names in sorted(lines.items()))


def _said(some: set[str]) -> str:
    """The types of a field; `null` only where there is no other."""
    return ", ".join(sorted(some - {"null"})) or "null"
