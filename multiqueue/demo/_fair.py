"""`multiqueue demo fair`: eight tenants beside a flood, over a standard queue of a broker and over a fair one."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import cast

from rich.console import Console

from ..broker import Broker, Message
from ..errors import ShutDown
from ._svg import bars, spoken
from ._threads import Job, Record, Tenants, show

_TENANTS: Tenants = {"flood": (600, 0.0, "blue"), **{f"tenant {n}": (8, 0.3, "green") for n in range(1, 9)}}
_ARGUMENTS = {"x-queue-kind": "fair"}
_POLL_S = 0.01


class BrokerInbox:
    """A queue of a broker in this process; each message names its tenant in a header."""

    def __init__(self, broker: Broker, name: str, arguments: dict[str, object]) -> None:
        self._broker = broker
        self._queue = broker.declare_queue(name, arguments=arguments)
        self._jobs = broker.subscribe(name, prefetch=1, auto_accept=True)

    def put(self, job: Job) -> None:
        self._broker.publish(Message(job, routing_key=self._queue.name, headers={"tenant": job[0]}))

    def take(self) -> Job | None:
        try:
            return cast(Job, self._jobs.get().message.body)
        except ShutDown:
            return None

    def end(self) -> None:
        while len(self._queue):
            time.sleep(_POLL_S)
        self._jobs.close()


def run_fair(console: Console, svg: Path, *, scale: float = 1.0) -> None:
    """Run both, show when jobs began and how long half of them waited, and write a picture of these waits to `svg`."""
    console.print(
        f"One tenant floods a queue with {_TENANTS['flood'][0]} jobs; eight others put one every 0.3 s. Two workers"
        " take 10 ms a job. The height of a block tells how many jobs began then; the number is the median of their"
        " waits.\n"
    )
    with Broker() as broker:
        before = show(console, "first in, first out", BrokerInbox(broker, "standard", {}), _TENANTS, scale)
        after = show(console, "a fair queue", BrokerInbox(broker, "fair", {**_ARGUMENTS}), _TENANTS, scale)
    rows = [(name, [median(record.waited[name]) for record in (before, after)]) for name in _TENANTS]
    svg.write_text(bars("Median wait of a job, beside a flood", ("first in, first out", "fair"), rows))
    old, new = (spoken(_of_small(record)) for record in (before, after))
    console.print(f"Half of the eight tenants' jobs wait {new} instead of {old}. The picture is in {svg}.\n")
    console.print('arguments={"x-queue-kind": "fair"}', style="cyan")
    console.print('headers={"tenant": "acme"}', style="cyan")


def _of_small(record: Record) -> float:
    return median(wait for name, waits in record.waited.items() if name != "flood" for wait in waits)
