"""How far behind lanes with events are, for `status`: what their queues hold, and how their files were found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._words import counted, duration
from .._base.items import INOTIFY
from .._config.config import PipelineConfig
from .._input import broker_queue, sqs
from .._state.arrivals import Arrivals


def events_told(config: PipelineConfig, arrived: Mapping[str, Arrivals]) -> dict[str, dict[str, Any]]:
    """By lane: files that events and listings found, when, and the messages that wait, None where none says so."""
    depths: dict[str, int | str | None] = {}
    told = {}
    for name, section in config.settings.lanes.items():
        if section.events is None:
            continue
        if section.events not in depths:
            depths[section.events] = _waiting(section.events)
        for lane in [lane for lane, found in arrived.items() if found.section == name] or [name]:
            found = arrived.get(lane, Arrivals())
            told[lane] = {
                "waiting": depths[section.events],
                "found_by_event": found.by_event,
                "found_by_listing": found.by_listing,
                "listed_at": found.listed_at,
                "event_at": found.event_at,
                "behind_seconds": found.behind_s,
            }
    return told


def _waiting(source: str) -> int | str | None:
    if source == INOTIFY:
        return None
    try:
        return sqs.waiting(source) if source.startswith("http") else broker_queue.waiting(source)
    except Exception as error:  # noqa: BLE001 - a state can be looked at without its queue
        return f"{type(error).__name__}: {error}".splitlines()[0]


def arrival_sentence(lane: str, told: Mapping[str, Any], now: float) -> str:
    """`inbox: 1,204 events wait; the last one taken was 0.4 s old; 2,000 files by events, 3 by listings, ...`."""
    parts = []
    waiting, behind_s, listed_at = told["waiting"], told["behind_seconds"], told["listed_at"]
    if isinstance(waiting, int):
        parts.append(f"{counted(waiting, 'event')} in its queue")
    elif waiting is not None:
        parts.append(f"its queue does not answer ({waiting})")
    if behind_s is not None:
        parts.append(f"the newest one taken was {behind_s:.1f} s old then")
    parts.append(f"{counted(told['found_by_event'], 'file')} found by events, {told['found_by_listing']:,} by listings")
    when = "never listed" if listed_at is None else f"listed {duration(max(now - listed_at, 0.0))} ago"
    return f"{lane}: {'; '.join([*parts, when])}"
