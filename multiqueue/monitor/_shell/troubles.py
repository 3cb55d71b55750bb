"""What somebody should look at, as `status` and the lists of the shell say it.

Reads answers of the HTTP API, also RabbitMQ's, which has less of this. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..._words import counted, duration

OLD: Final = 60.0  # seconds that a consumer may have a message before anybody is told

Row = Mapping[str, Any]


def of_the_whole(overview: Row, nodes: Sequence[Row], now: float) -> list[str]:
    """The sentences about a broker, the most urgent first. `now` is in seconds since 1970."""
    told = overview.get("troubles", {})
    alarms = told.get("alarms")
    if alarms is None:  # RabbitMQ's overview has none
        alarms = [name for name, key in _ALARMS.items() if any(node.get(key) for node in nodes)]
    sentences = [f"vhost {name!r} is down: {why}" for name, why in told.get("virtual_hosts_down", {}).items()]
    sentences += [f"ALARM: low on {' and '.join(alarms)}, publishers are blocked"] if alarms else []
    if told.get("connections_blocked"):
        sentences.append(f"{counted(told['connections_blocked'], 'connection')} blocked")
    loops = told.get("redelivering", [])
    sentences += [f"{_queue(each)} redelivers the same messages{_for(each['since'], now)}" for each in loops]
    if (more := told.get("queues_redelivering", 0) - len(loops)) > 0:
        sentences.append(f"so {'does' if more == 1 else 'do'} {counted(more, 'other queue')}")
    oldest = told.get("oldest_unacknowledged")
    if oldest is not None and now - oldest["since"] / 1000 >= OLD:
        sentences.append(f"{_queue(oldest)} has a message without an ack{_for(oldest['since'], now)}")
    return sentences


_ALARMS: Final = {"disk": "disk_free_alarm", "memory": "mem_alarm"}


def of_a_queue(row: Row, now: float) -> str:
    """In a few words; empty where all is well."""
    parts = ["publishers wait"] if row.get("state") == "flow" else []
    if (since := row.get("redelivering_since")) is not None:
        parts.append(f"redelivers{_for(since, now)}")
    return ", ".join([*parts, *_held(row, now)])


def of_a_connection(row: Row, now: float) -> str:
    """In a few words; empty where all is well."""
    parts = {"blocked": ["blocked by an alarm"], "flow": ["waits for a queue"]}.get(row.get("state", ""), [])
    return ", ".join([*parts, *_held(row, now)])


def _held(row: Row, now: float) -> list[str]:
    since = row.get("oldest_unacknowledged_since")
    return [f"no ack{_for(since, now)}"] if since is not None and now - since / 1000 >= OLD else []


def _queue(row: Row) -> str:
    return f"queue {row['queue']!r} in {row['vhost']!r}"


def _for(since: float, now: float) -> str:
    return f" for {duration(max(0.0, now - since / 1000))}"
