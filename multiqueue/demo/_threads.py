"""`multiqueue demo threads`: three tenants and two workers, over one `queue.Queue` and over a multi-queue.

`big` puts all its jobs at once; `mail` and `alarm` put theirs one by one meanwhile. Through one queue the two wait
behind the flood; a multi-queue serves each tenant in its turn, and `alarm`, of a better priority, first.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from rich.console import Console
from rich.live import Live

from ..core import LinkedBlockingMultiQueue, SubQueue
from ..errors import ShutDown
from ._picture import Picture, Row

_JOB_S = 0.010  # each job sleeps as long
_WORKERS = 2
Tenants = Mapping[str, tuple[int, float, str]]  # what each puts: how many jobs, how many seconds apart; its colour
_TENANTS: Tenants = {"big": (500, 0.0, "blue"), "mail": (40, 0.05, "green"), "alarm": (8, 0.25, "red")}

Job = tuple[str, float]  # the tenant, and when it was put


class Inbox(Protocol):
    """Where tenants put jobs and workers take them."""

    def put(self, job: Job) -> None: ...

    def take(self) -> Job | None:
        """The next job, waiting for it; None once there will be no more."""
        ...

    def end(self) -> None:
        """Say that no more will be put."""
        ...


class OneQueue:
    """All tenants share a `queue.Queue`."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Job | None] = queue.Queue()

    def put(self, job: Job) -> None:
        self._queue.put(job)

    def take(self) -> Job | None:
        return self._queue.get()

    def end(self) -> None:
        for _ in range(_WORKERS):
            self._queue.put(None)


class MultiQueue:
    """Each tenant has a sub-queue; workers wait for all of them at once."""

    def __init__(self) -> None:
        self._inbox: LinkedBlockingMultiQueue[Job] = LinkedBlockingMultiQueue()
        self._tenants: dict[str, SubQueue[Job]] = {
            name: self._inbox.add_subqueue(name, priority=0 if name == "alarm" else 1) for name in _TENANTS
        }

    def put(self, job: Job) -> None:
        self._tenants[job[0]].put(job)

    def take(self) -> Job | None:
        try:
            return self._inbox.take().item
        except ShutDown:
            return None

    def end(self) -> None:
        self._inbox.shutdown()


@dataclass
class Record:
    """When each tenant's jobs began, and how long they had waited, in seconds from the start of the run."""

    tenants: Tenants
    start: float = field(default_factory=time.monotonic)
    began: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    waited: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def picture(self, seconds: float) -> Picture:
        rows = [Row(name, self.began[name], self._last(name), style) for name, (_, _, style) in self.tenants.items()]
        return Picture(rows, seconds)

    def _last(self, name: str) -> str:
        return f"{median(self.waited[name]):.3f} s" if self.waited[name] else ""


def run_threads(console: Console, *, scale: float = 1.0) -> None:
    """Run both and show when each tenant's jobs began. `scale` is the share of the jobs: a smaller one ends earlier."""
    console.print(
        f"Three tenants, {_WORKERS} workers, {_JOB_S * 1000:.0f} ms a job. 'big' puts {_TENANTS['big'][0]} jobs at"
        " once, 'mail' and 'alarm' put theirs one by one. The height of a block tells how many jobs began then; the"
        " number is the median of their waits.\n"
    )
    before = show(console, "one queue.Queue", OneQueue(), _TENANTS, scale)
    after = show(console, "a multi-queue: a sub-queue each", MultiQueue(), _TENANTS, scale)
    old, new = (median(record.waited["mail"]) for record in (before, after))
    console.print(f"The median wait of 'mail' is {new:.3f} s instead of {old:.3f} s.\n")
    console.print("inbox = LinkedBlockingMultiQueue()", style="cyan")
    console.print('mail = inbox.add_subqueue("mail", priority=1)', style="cyan")
    console.print("subqueue, item = inbox.take()", style="cyan")


def show(console: Console, title: str, inbox: Inbox, tenants: Tenants, scale: float) -> Record:
    """Have the tenants put and the workers work until all is done, and draw it meanwhile."""
    seconds = sum(count for count, _, _ in tenants.values()) * scale * _JOB_S / _WORKERS * 1.1
    console.print(title, style="bold")
    record = Record(tenants)
    with Live(console=console, refresh_per_second=8, get_renderable=lambda: record.picture(seconds)):
        run(inbox, record, scale)
    console.print("" if console.is_terminal else "\n")
    return record


def run(inbox: Inbox, record: Record, scale: float) -> None:
    """Have the tenants put and the workers work until all is done."""

    def produce(name: str) -> None:
        count, gap, _ = record.tenants[name]
        for _ in range(max(1, round(count * scale))):
            inbox.put((name, time.monotonic()))
            if gap:
                time.sleep(gap)

    def work() -> None:
        while (job := inbox.take()) is not None:
            name, put_at = job
            now = time.monotonic()
            record.waited[name].append(now - put_at)
            record.began[name].append(now - record.start)
            time.sleep(_JOB_S)

    floods = [name for name, (_, gap, _) in record.tenants.items() if not gap]
    tenants = [
        threading.Thread(target=produce, args=(name,), name=f"tenant-{name}", daemon=True)
        for name in record.tenants
        if name not in floods
    ]
    workers = [threading.Thread(target=work, name=f"worker-{number}", daemon=True) for number in range(_WORKERS)]
    for thread in workers:
        thread.start()
    for name in floods:
        produce(name)
    for thread in tenants:
        thread.start()
    for thread in tenants:
        thread.join()
    inbox.end()
    for thread in workers:
        thread.join()
