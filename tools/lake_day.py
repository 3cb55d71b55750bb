"""The start of a day of 100 million files: where the memory, the state and the listing of a pipeline go.

    python tools/lake_day.py [--files 100000000] [--hours 1] [--look 15] [--svg FILE]

The runner, the events' JSON, the scanner and the ledger in SQLite are the pipeline's own; store, queue, Spark and clock
are fakes that take no time. A rule of the bucket removes objects after a quarter of an hour; a lane with events is
listed as often, and forgets after as long. Each 450 s `--look` seconds of the day go through all of it, and are
measured; what comes in between is written into the state as such a run leaves it. Forgetting is always the ledger's.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from multiqueue.demo._svg import bars
from multiqueue.errors import Empty
from multiqueue.pipeline import Silent, parse_config
from multiqueue.pipeline._base.items import FileSeen, Lane
from multiqueue.pipeline._base.place import Place
from multiqueue.pipeline._base.storage import Entry, Status, Storage
from multiqueue.pipeline._input.events import Events
from multiqueue.pipeline._input.scanner import Follow, Scanner
from multiqueue.pipeline._run.feeding import Feeding
from multiqueue.pipeline._run.mailbox import Mailbox, Message, StopRequested
from multiqueue.pipeline._run.wiring import Clocks, assemble
from multiqueue.pipeline._state.forgetting import LedgerForgetting
from multiqueue.pipeline._state.ledger import Ledger
from multiqueue.pipeline._state.sqlite import SqliteState
from multiqueue.pipeline._write.publish import Publisher

DAY = 86_400.0
BEGIN = 1_767_225_600.0  # 2026-01-01
KEPT = 900.0  # seconds: of objects in the bucket, of items in the state, from one listing to the next
STEP = 450.0
SIZE = 500
A_JOB = 5_000  # files: the most of an item
JOB_S, FILE_S = 0.5, 0.0004  # what the fake cluster takes for a job and for each of its files
URL = "amqp://queue/events"
Row = dict[str, float]


@dataclass
class Bucket:
    """Objects that come evenly over the day, and go a quarter of an hour later."""

    rate: float
    now: Callable[[], float]
    """Seconds since the day's begin."""

    def place(self, number: int) -> Place:
        second = int(number / self.rate)
        return Place(f"s3://lake/in/hour={second // 3600:02}/minute={second // 60 % 60:02}/{number:09}.csv")

    def status(self, number: int) -> Status:
        return Status(SIZE, int((BEGIN + number / self.rate) * 1e9))

    def statuses(self, places: Sequence[Place]) -> list[Status]:
        return [self.status(int(one.text[-13:-4])) for one in places]

    def pages(self, place: Place, after: str = "") -> Iterator[list[Entry]]:
        """Of the bucket's minutes, and of each of them, a thousand objects at a time."""
        first, end = int(max(self.now() - KEPT, 0.0) * self.rate), int(self.now() * self.rate)
        minutes = dict.fromkeys(self.place(number).parent for number in range(first, end, int(30 * self.rate)))
        if not place.name.startswith("minute="):
            names = {one.parts[len(place.parts)] for one in minutes if one.is_below(place)}
            yield [Entry(name, place / name, None) for name in sorted(names)]
            return
        at = (int(place.parent.name[5:]) * 60 + int(place.name[7:])) * 60
        numbers = range(max(int(at * self.rate) + 1, first), min(int((at + 60) * self.rate), end))
        for start in range(0, len(numbers), 1000):
            found = ((self.place(number), number) for number in numbers[start : start + 1000])
            yield [Entry(one.name, one, self.status(number)) for one, number in found]


@dataclass
class Queue:
    """The broker, its connection, its channel and the consumer's inbox in one: an event for each object."""

    bucket: Bucket
    taken: int = 0
    unsettled: int = 0
    prefetch: int = 0

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def channel(self) -> Queue:
        return self

    def queue_declare(self, name: str, passive: bool) -> None:
        pass

    def basic_qos(self, prefetch: int) -> None:
        self.prefetch = prefetch

    def consume(self, name: str) -> Queue:
        return self

    def qsize(self) -> int:
        return min(int(self.bucket.now() * self.bucket.rate) - self.taken, self.prefetch - self.unsettled)

    def get(self, timeout: float) -> Event:
        if self.qsize() <= 0:
            raise Empty
        self.unsettled += 1
        self.taken += 1
        return Event(self, self.taken - 1)


@dataclass
class Event:
    """A message about an object."""

    queue: Queue
    number: int

    @property
    def body(self) -> bytes:
        key = self.queue.bucket.place(self.number).text.removeprefix("s3://lake/").replace("=", "%3D")
        told = {"bucket": {"name": "lake"}, "object": {"key": key, "size": SIZE, "eTag": "0" * 32}}
        when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(BEGIN + self.number / self.queue.bucket.rate))
        return json.dumps({"Records": [{"eventName": "s3:ObjectCreated:Put", "eventTime": when, "s3": told}]}).encode()

    def ack(self) -> None:
        self.queue.unsettled -= 1


@dataclass
class Cluster:
    """Runs one item at a time; dispatcher and lane in one."""

    queued: deque[tuple[Future[Any], Any]] = field(default_factory=deque)
    waits: list[float] = field(default_factory=list)
    """Of each file, from its upload to its submission."""
    now: Callable[[], float] = lambda: 0.0
    begin: float = 0.0
    """Files that came before were handed back by an earlier look."""

    def lane(self, *settings: Any, **more: Any) -> Cluster:
        return self

    def submit(self, attempt: Any) -> Future[Any]:
        came = (seen.mtime_ns / 1e9 - BEGIN for seen in attempt.item.files)
        self.waits += [self.now() - at for at in came if at >= self.begin]
        self.queued.append((Future(), attempt))
        return self.queued[-1][0]

    def clear(self) -> int:
        while self.queued:
            future, _ = self.queued.popleft()
            future.cancel()
            future.set_running_or_notify_cancel()
        return 0

    def cancel_running(self) -> None:
        pass


class Clock(Mailbox):
    """The mailbox of the run, which instead of waiting lets an item run or the time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.until = 0.0, 0.0
        self.cluster = Cluster(now=lambda: self.now)

    def take_all(self, timeout: float) -> list[Message]:
        messages = super().take_all(0)
        if messages or timeout <= 0:
            return messages
        if self.now >= self.until:
            self.post(StopRequested())
        elif self.cluster.queued:
            future, attempt = self.cluster.queued.popleft()
            future.set_running_or_notify_cancel()
            self.now += JOB_S + FILE_S * len(attempt.item.files)
            future.set_result(attempt(None))
        else:
            self.now += min(timeout, 0.25)
        return super().take_all(0)


class Costs:
    """The CPU of some functions, each without that of the others inside of it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._inside: list[float] = []

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any, **more: Any) -> Any:
            self._inside.append(0.0)
            begin = time.process_time()
            try:
                return function(*arguments, **more)
            finally:
                took = time.process_time() - begin
                self.seconds[name] += took - self._inside.pop()
                if self._inside:
                    self._inside[-1] += took

        return measured


def fill(ledger: Ledger, lane: str, bucket: Bucket, first: int, end: int) -> None:
    """Files that were done, as a run leaves them."""
    connection = ledger._connection
    for start in range(first, end, A_JOB):
        numbers = range(start, min(start + A_JOB, end))
        with ledger.transaction():
            begin_s, end_s = start / bucket.rate, numbers[-1] / bucket.rate
            times = (begin_s, begin_s, end_s, BEGIN + end_s)
            seq = connection.insert(
                "INSERT INTO items (id, lane, path, files, bytes, state, attempt, known_s, started_s, ended_s,"
                " ended_at) VALUES (?, ?, ?, ?, ?, 'done', 1, ?, ?, ?, ?)",
                (f"bulk{start}", lane, bucket.place(start).text, len(numbers), SIZE * len(numbers), *times),
            )
            seen = [FileSeen(bucket.place(n).text, SIZE, bucket.status(n).mtime_ns) for n in numbers]
            ledger._add_files(lane, seq, seen)


def rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def look(base: Path, lane: Lane, ledger: Ledger, clock: Clock, bucket: Bucket, seconds: float, *, lists: bool) -> Row:
    """Some seconds of the day through the whole of it: what they cost."""
    costs, begin, first = Costs(), clock.now, int(clock.now * bucket.rate)
    clock.until, clock.cluster.waits, clock.cluster.begin = begin + seconds, [], begin
    wall = lambda: BEGIN + clock.now  # noqa: E731
    with ledger.transaction():
        ledger.arrivals.note(lane, listed_at=wall() if not lists else wall() - KEPT)
    config = parse_config(
        {"lanes": {"in": {"files": "s3://lake/in/**/*.csv", "format": "text"}}, "job": {"sql": "SELECT 1"},
         "output": {"path": str(base / "out")}}, base,
    )  # fmt: skip
    follow = Follow(10.0, 0.0, lambda: [lane], lambda: clock.now, wall)
    output = Publisher(base / "out")
    with (
        patch.object(Events, "step", costs.of("events", Events.step)),
        patch.object(Scanner, "step", costs.of("listing", Scanner.step)),
        patch.object(Feeding, "step", costs.of("feeding", Feeding.step)),
        patch.object(LedgerForgetting, "forget", costs.of("forgetting", LedgerForgetting.forget)),
        patch.object(Queue, "get", costs.of("fakes", Queue.get)),
        patch.object(Storage, "statuses", costs.of("fakes", lambda storage, places: bucket.statuses(places))),
        patch.object(Storage, "pages", lambda storage, place, after="": bucket.pages(place, after)),
        patch.object(Storage, "exists", lambda self, place: True),
    ):
        output.prepare(ledger)
        runner, _ = assemble(
            config, ledger, lambda: clock.cluster, lanes=[lane], steps=[], output=output,
            work=lambda spark, item, staged: False, mailbox=clock, reporter=Silent(), follow=follow,
            clocks=Clocks(lambda: clock.now, wall, lambda: None),
        )  # fmt: skip
        spent, began = time.process_time(), clock.now
        queue = Queue(bucket, taken=first)
        with runner.intake.open(lambda url: queue):
            runner.run()
    spent = time.process_time() - spent - costs.seconds["fakes"]
    span, waits = clock.now - began, sorted(clock.cluster.waits)
    listed = runner.intake.scanner.looked_at
    return {
        "second": begin, "seconds": span, "files": queue.taken - first, "cpu ms a second": spent / span * 1000,
        **{f"{name} ms a second": costs.seconds[name] / span * 1000 for name in ("events", "listing", "feeding")},
        "forgetting ms a second": costs.seconds["forgetting"] / span * 1000, "listed": listed,
        "listing us a file": costs.seconds["listing"] / listed * 1e6 if listed else 0.0,
        "wait p50 s": waits[len(waits) // 2], "wait p99 s": waits[len(waits) * 99 // 100],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000_000)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--look", type=float, default=15.0)
    parser.add_argument("--svg", type=Path)
    asked = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="multiqueue-day-") as directory:
        base = Path(directory)
        (base / "out" / "_multiqueue").mkdir(parents=True)
        clock = Clock()
        bucket = Bucket(asked.files / DAY, lambda: clock.now)
        lane = Lane(
            "in", Place("s3://lake/in"), ("**/*.csv",), section="in", events=URL, listing_s=KEPT, target_s=10.0,
            batch=64, prefetch=1000, forget_after_s=KEPT,
        )  # fmt: skip
        state = base / "out" / "_multiqueue" / "state.sqlite"
        ledger = Ledger(SqliteState(state), base, wall=lambda: BEGIN + clock.now)
        filled = 0
        for number in range(int(asked.hours * 3600 / STEP) + 1):
            clock.now = max(clock.now, number * STEP)
            fill(ledger, lane.name, bucket, filled, int(clock.now * bucket.rate))
            lists = number % 2 == 0 and number > 0
            forgot = -1
            while forgot != (forgot := ledger.forgetting.of(lane.name).files):
                with ledger.transaction():
                    ledger.forget(lane)
            row = look(base, lane, ledger, clock, bucket, asked.look, lists=lists)
            filled = int(row["second"] * bucket.rate + row["files"])
            (row["known files"],) = ledger._connection.execute("SELECT count(*) FROM files").fetchone()
            row |= {"memory MB": rss_mb(), "state MB": sum(one.stat().st_size for one in state.parent.iterdir()) / 1e6}
            rows.append(row)
            print(json.dumps({name: round(value, 2) for name, value in row.items()}), flush=True)
        ledger.close()
    if asked.svg is not None:
        kinds = ("memory MB", "state MB", "cpu ms a second")
        shown = [(f"{row['second'] / 3600:.2f} h", [row[kind] for kind in kinds]) for row in rows]
        title = f"{asked.files:,} files a day, logarithmic"
        asked.svg.write_text(bars(title, kinds, shown, log=True, said=lambda value: f"{value:,.0f}"))


if __name__ == "__main__":
    main()
