"""Answers of the API field by field: what RabbitMQ 3.10 has beside what is here, as docs/reference/http-api.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monitor_support import Reply

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http-api.md"
HEAD = """# The HTTP API field by field

Each GET request of RabbitMQ's management API goes to RabbitMQ 3.10 (Debian's package) and to `multiqueue.monitor`, in
front of brokers that have the same exchanges, queues, bindings, messages and clients.
`tests/monitor/test_monitor_beside_rabbitmq.py` asks, and compares the answers with this page: the status, and what each
field holds. Fields with the suffix `_details` hold the rate.
[What differs otherwise](../design/monitor.md#what-differs-from-rabbitmq) is in the design.

`GET /api/openapi.json` describes all requests as OpenAPI 3.1, with what their bodies may have.

`message_stats` counts `publish`, `confirm`, `return_unroutable`, `drop_unroutable`, `deliver`, `deliver_no_ack`, `get`,
`get_no_ack`, `get_empty`, `redeliver` and `ack` as RabbitMQ does, for queues, channels, virtual hosts and the whole;
`publish` of a queue counts what came, `publish_in` and `publish_out` are an exchange's. `proc_used` and `proc_total`
are threads.

Ours are `troubles` of the overview (virtual hosts that are down, alarms, blocked connections, redelivery loops, the
oldest message without an ack), and `redelivering_since` and `oldest_unacknowledged_since` in milliseconds since 1970.
What came after 3.10, `/api/version`, `/api/deprecated-features`, `/api/queues/detailed` and some health checks, is
answered as by a RabbitMQ 4.3 that is well.
"""

# Why a field is not here.
WITHOUT = {
    "Erlang's": re.compile(
        r"garbage_collection|reductions|erlang|backing_queue|net_ticktime|run_queue|metrics_gc|(^|\.)ra_|mnesia"
        r"|queue_index|release_series|_opts$"
    ),
    "not counted": re.compile(
        r"io_(read|write|seek|reopen|sync_avg)|msg_store|disk_(reads|writes)|gc_bytes|_ram$|paged_out|persistent$|memory$"
        r"|idle_since|(recv|send)_cnt|drop_unroutable"
    ),
    "no such thing": re.compile(r"global_parameters"),
}
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
    """The page, of RabbitMQ's and our answers by request; requests that are answered alike share a table."""
    tables: dict[str, list[str]] = {}
    refused: list[str] = []
    for request, (theirs, ours) in answers.items():
        if theirs.status >= 400:
            here = "the same" if ours.status == theirs.status else str(ours.status)
            refused.append(f"| `{request}` | {theirs.status} | {here} |")
        else:
            tables.setdefault(_table(content(theirs), content(ours)), []).append(f"`{request}`")
    sections = [f"## {_title(requests)}\n\n{', '.join(requests)}\n\n{table}" for table, requests in tables.items()]
    last = "## Refused\n\n| request | RabbitMQ 3.10 | here |\n|---|---|---|\n" + "\n".join(refused)
    return "\n".join([HEAD, *sections, last]) + "\n"


def _title(requests: list[str]) -> str:
    return requests[0].strip("`").removeprefix("/api/")


def _table(theirs: Any, ours: Any) -> str:
    if theirs and ours == []:
        return "A list, which is empty here.\n"
    expected, found = kinds(theirs), kinds(ours)
    if not expected and not found:
        return "An empty list, or no fields.\n"
    rows = []
    for name in sorted(expected.keys() | found.keys()):
        if name.endswith("_details.rate"):
            continue
        here = _said(found.get(name))
        if name not in found:
            here = f"none: {why_without(name) or 'missing'}"
        elif found[name] - {"null"} == expected.get(name, set()) - {"null"} or here == _said(expected.get(name)):
            here = "the same"
        rows.append(f"| `{name}` | {_said(expected.get(name))} | {here} |")
    return "\n".join(["| field | RabbitMQ 3.10 | here |", "|---|---|---|", *rows, ""])


def _said(some: set[str] | None) -> str:
    """`null` is told where there is nothing else."""
    return "none" if some is None else ", ".join(sorted(some - {"null"})) or "null"
