"""A message that is dead-lettered: its next address, and the record of how it got there.

The record is RabbitMQ's `x-death` header: one table per queue and reason, the latest first, with `count`,
`reason`, `queue`, `exchange`, `routing-keys`, `time`, and `original-expiration` when the message had a time to
live of its own; it loses that, or it would die again where it goes. `x-first-death-*` and `x-last-death-*` name
the ends of the story. "Dead letters" in docs/design/broker-front.md has the keys that it goes to. Pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime

from .._base.message import Message, WireForm
from .._base.outcome import DeadLetterReason

DEATHS = "x-death"
CC = "CC"
_REJECTED = DeadLetterReason.REJECTED.value


def deaths_of(message: Message) -> list[Mapping[str, object]]:
    """The message's record, the latest first; what is no such record, as a publisher may send, is none."""
    recorded = message.headers.get(DEATHS)
    if not isinstance(recorded, list | tuple):
        return []
    return [death for death in recorded if isinstance(death, Mapping)]


def dead_letter(
    message: Message, *, queue: str, reason: DeadLetterReason, exchange: str, routing_key: str | None, now: datetime
) -> Message:
    """The message as it goes on from `queue` to `exchange`; without `routing_key` it keeps its own keys."""
    headers = _with_death(message, queue, reason.value, now)
    wire = message.wire
    if routing_key is not None:
        headers.pop(CC, None)
        if wire is not None and wire.bcc:
            wire = WireForm(wire.block)
    return dataclasses.replace(
        message,
        exchange=exchange,
        routing_key=message.routing_key if routing_key is None else routing_key,
        headers=headers,
        expiration=None,
        delay=None,
        wire=wire,
    )


def keys_in(message: Message, header: str) -> list[str]:
    """The routing keys that a header names; what is no text among them is none."""
    keys = message.headers.get(header, ())
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list | tuple) else []


def further_keys(message: Message) -> list[str]:
    """The keys it was published with beside its routing key."""
    bcc = () if message.wire is None else message.wire.bcc
    return [*keys_in(message, CC), *bcc]


def is_cycle(message: Message, queue: str) -> bool:
    """True when putting it on `queue` would send it round for ever: it died there, and was not rejected since.

    A rejection is somebody's decision, so a circle with one in it, as retries are built from, may go on.
    """
    for death in deaths_of(message):
        if death.get("reason") == _REJECTED:
            return False
        if death.get("queue") == queue:
            return True
    return False


def _with_death(message: Message, queue: str, reason: str, now: datetime) -> dict[str, object]:
    earlier = deaths_of(message)
    same = [death for death in earlier if (death.get("queue"), death.get("reason")) == (queue, reason)]
    others = [death for death in earlier if death not in same]
    death: dict[str, object] = {
        "count": 1 + sum(count for each in same if isinstance(count := each.get("count"), int)),
        "reason": reason,
        "queue": queue,
        "time": now,
        "exchange": message.exchange,
        "routing-keys": [message.routing_key, *keys_in(message, CC)],
    }
    if message.expiration is not None:
        death["original-expiration"] = str(round(message.expiration * 1000))
    ends = {"queue": queue, "reason": reason, "exchange": message.exchange}
    first = {f"x-first-death-{name}": value for name, value in ends.items()}
    last = {f"x-last-death-{name}": value for name, value in ends.items()}
    return {**first, **message.headers, **last, DEATHS: [death, *others]}
