"""Lanes at work: which job waits, runs or has ended, lane by lane, of any `MultiQueueExecutor`.

Promise     A job that is submitted while its executor is watched is shown until it is one of more than `_ENDED` of its
            lane that have ended since. The cost of a look and the jobs kept are bounded, for any number of submissions.
State       `_lock` guards the book of one executor: its lanes' jobs and counts. It is a leaf: futures and executors are
            asked before or after it, and so is user code that says the name of a lane, a job or an error.
Who runs    `submitted` and `began` are called by submitters and workers, `_ended` by the thread that ends a future;
            looks come from any thread.
Membership  A book refers to its executor weakly: one that its program has dropped is gone, and shown as over. A job's
            future is let go of when it ends.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from ..._locks import RLock
from ...core import Job, Lane, MultiQueueExecutor

_KEPT: Final = 1000  # lanes of an executor whose ended jobs are kept: those in which jobs ended last
_ENDED: Final = 200  # jobs of a lane that are kept after their end
_WAITING: Final = 1000  # waiting jobs of an executor that are kept; of more, the lanes know the number
_LANES: Final = 200  # lanes of one answer
_JOBS: Final = 1500  # jobs of one answer
_TEXT: Final = 2000  # characters of an error

View = dict[str, Any]
Progress = Callable[[], Mapping[str, Mapping[str, int]]]  # for a lane's name: how many items are in each state


class Record:
    """One job. Times are of `time.monotonic`, None for events still to come."""

    __slots__ = ("began", "ended", "error", "future", "lane", "name", "number", "retries", "state", "submitted", "tag")

    def __init__(self, lane: Hashable, job: Job[Any], at: float) -> None:
        self.number: int = 0  # its book gives it one
        self.lane: str = said(lambda: str(lane))
        self.name: str = said(lambda: job.name)[:200]
        self.submitted: float = at
        self.began: float | None = None
        self.ended: float | None = None
        self.state: str = "waiting"
        self.error: str | None = None
        self.tag: str | None = getattr(job.future, "tag", None)  # of a Spark job
        self.retries: list[float] = []  # when attempts after the first began; `attempts` has those up to now
        self.future: Future[Any] | None = job.future

    def attempts(self) -> list[float]:
        """When attempts after the first began, up to now."""
        future = self.future
        return self.retries if future is None else list(getattr(future, "attempt_times", ())[1:])

    def end(self, state: str, error: str | None, at: float) -> None:
        """The future has ended; it may hold a large result, and is let go of."""
        self.retries, self.future = self.attempts(), None
        self.state, self.error, self.ended = state, error, at


def said(say: Callable[[], str]) -> str:
    """The text that user code gives a thing; that code may fail, and must end no worker."""
    try:
        return say()
    except Exception as error:  # noqa: BLE001  # any error here is not ours
        return f"(its name raises {type(error).__name__})"


class Book:
    """The jobs of one executor; its `JobWatcher`."""

    def __init__(
        self, name: str, executor: MultiQueueExecutor, progress: Progress | None, clock: Callable[[], float]
    ) -> None:
        self.name = name
        self.kind: str = type(executor).__name__
        self.executor: weakref.ref[MultiQueueExecutor] = weakref.ref(executor)
        self.progress = progress
        self._clock = clock
        self._lock = RLock()  # the garbage collector may end a future in a thread that holds it
        self._under_way: dict[Job[Any], Record] = {}
        self._ended_ones: dict[str, deque[Record]] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._numbers = 0
        self._waiting = 0

    # -- as its executor tells it

    def submitted(self, lane: Hashable, job: Job[Any]) -> None:
        """A job has been submitted."""
        if self._waiting >= _WAITING:
            return
        record = Record(lane, job, self._clock())
        with self._lock:
            # It may have begun, or even ended, before its submitter comes here.
            if job in self._under_way or job.future.done():
                return
            self._waiting += 1
            self._enter_locked(job, record)
        self._follow(job, record)

    def began(self, lane: Hashable, job: Job[Any]) -> None:
        """A worker runs it now."""
        new = None if job in self._under_way else Record(lane, job, self._clock())
        with self._lock:
            known = self._under_way.get(job)
            if known is not None:
                self._waiting -= known.state == "waiting"
            elif new is None or job.future.done():  # it was cancelled after the worker took it
                return
            else:
                self._enter_locked(job, new)
            record = known or new
            assert record is not None
            record.state = "running"
            record.began = self._clock()
        if known is None:
            self._follow(job, record)

    def _enter_locked(self, job: Job[Any], record: Record) -> None:
        self._numbers += 1
        record.number = self._numbers
        self._under_way[job] = record

    def _follow(self, job: Job[Any], record: Record) -> None:
        job.future.add_done_callback(lambda future: self._ended(job, record, future))

    def _ended(self, job: Job[Any], record: Record, future: Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        state = "cancelled" if future.cancelled() else "done" if error is None else "failed"
        text = None if error is None else said(lambda: f"{type(error).__name__}: {error}")[:_TEXT]
        with self._lock:
            if self._under_way.pop(job, None) is None:
                return
            if record.state == "waiting":
                self._waiting -= 1
            record.end(state, text, self._clock())
            self._counts.setdefault(record.lane, Counter())[state] += 1
            ended = self._ended_ones.pop(record.lane, None)
            ended = self._ended_ones[record.lane] = deque(maxlen=_ENDED) if ended is None else ended  # now the last one
            ended.append(record)
            if len(self._ended_ones) > _KEPT:
                oldest = next(iter(self._ended_ones))
                del self._ended_ones[oldest], self._counts[oldest]

    # -- for those who look

    def counts(self) -> dict[str, dict[str, int]]:
        """How many jobs of each lane ended how."""
        with self._lock:
            return {lane: dict(counts) for lane, counts in self._counts.items()}

    def records(self, since: float) -> dict[str, list[Record]]:
        """By lane, the jobs under way and those that have ended since a time, in the order of their numbers."""
        with self._lock:
            found: dict[str, list[Record]] = {}
            for lane, ended in self._ended_ones.items():
                found[lane] = [record for record in ended if record.ended is None or record.ended >= since]
            for record in self._under_way.values():
                found.setdefault(record.lane, []).append(record)
        return {lane: sorted(records, key=lambda record: record.number) for lane, records in found.items()}

    def waits(self) -> dict[str, list[float]]:
        """By lane, how long the latest jobs had waited when they began, ascending."""
        with self._lock:
            latest = {lane: list(ended) for lane, ended in self._ended_ones.items()}
        return {
            lane: sorted(each.began - each.submitted for each in ended if each.began is not None)
            for lane, ended in latest.items()
        }

    def record(self, number: int) -> Record | None:
        """The job of this number."""
        with self._lock:
            everything = [*self._under_way.values(), *(each for ended in self._ended_ones.values() for each in ended)]
        return next((record for record in everything if record.number == number), None)

    def lanes(self) -> dict[str, Lane]:
        """The executor's lanes now, by their names; none when it is gone."""
        executor = self.executor()
        return {} if executor is None else {str(key): lane for key, lane in executor.lanes.items()}


class Lanes:
    """The executors that a program shows on its page. Any thread may call.

    lanes = Lanes()
    lanes.watch("nightly", dispatcher)
    serve_lanes(lanes, port=15673)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._books: dict[str, Book] = {}

    def watch(self, name: str, executor: MultiQueueExecutor, progress: Progress | None = None) -> None:
        """Show an executor's jobs from now on, under a name; it replaces one of the same name.

        `progress` tells how many items of a lane are `waiting`, `running`, `done` and `failed`, for a work list behind
        the lanes.
        """
        book = Book(name, executor, progress, self._clock)
        before = self._books.get(name)
        if before is not None and before.executor() is executor:
            executor.unwatch(before)
        self._books = {**self._books, name: book}
        executor.watch(book)

    def books(self) -> list[Book]:
        """Of each executor, in the order in which they were named."""
        return list(self._books.values())

    def book(self, name: str) -> Book | None:
        """Of the executor with this name."""
        return self._books.get(name)

    def view(self, seconds: float = 300.0) -> View:
        """All executors, their lanes, and the jobs of the last `seconds`."""
        now = self._clock()
        past = time.time() - now  # from the clock's seconds to those since 1970
        return {"seconds": seconds, "executors": [_book_view(book, now - seconds, past) for book in self.books()]}


def job_view(book: Book, record: Record) -> View:
    """One job in full. Asks Spark for the numbers of its jobs."""
    past = time.time() - time.monotonic()
    executor: Any = book.executor()
    is_spark = executor is not None and hasattr(executor, "job_ids")
    url = executor.ui_url if is_spark else None
    return {
        **dict(zip(_JOB_FIELDS, _job_row(record, past), strict=True)),
        "executor": book.name,
        "lane": record.lane,
        "error": record.error,
        "tag": record.tag,
        "spark": [
            {"job": number, "url": f"{url}/jobs/job/?id={number}" if url else None}
            for number in (executor.job_ids(record.tag) if is_spark else ())
        ],
    }


_JOB_FIELDS: Final = ("number", "name", "submitted", "began", "ended", "state", "retries")


def _job_row(record: Record, past: float) -> list[Any]:
    def wall(at: float | None) -> float | None:
        return None if at is None else round(at + past, 3)

    times = map(wall, (record.submitted, record.began, record.ended))
    return [record.number, record.name, *times, record.state, list(map(wall, record.attempts()))]


def _book_view(book: Book, since: float, past: float) -> View:
    executor: Any = book.executor()
    lanes, records, counts, waits = book.lanes(), book.records(since), book.counts(), book.waits()
    progress = {} if book.progress is None else book.progress()
    names = sorted({*lanes, *records, *counts, *progress})
    left = _JOBS
    views = []
    for name in names[:_LANES]:
        lane, jobs = lanes.get(name), records.get(name, [])[-left:] if left else []
        left -= len(jobs)
        views.append(
            {
                "name": name,
                "waiting": 0 if lane is None else lane.qsize(),
                "running": 0 if lane is None else lane.running,
                "is_paused": lane is not None and lane.paused,
                "priority": None if lane is None else lane.settings.priority,
                "weight": None if lane is None else lane.settings.weight,
                "max_in_flight": None if lane is None else lane.settings.max_in_flight,
                **{state: counts.get(name, {}).get(state, 0) for state in ("done", "failed", "cancelled")},
                "items": progress.get(name),
                "wait_median": _quantile(waits.get(name, []), 0.5),
                "wait_p95": _quantile(waits.get(name, []), 0.95),
                "jobs": [_job_row(record, past) for record in jobs],
            }
        )
    return {
        "name": book.name,
        "kind": book.kind,
        "is_over": executor is None,
        "workers": None if executor is None else executor.max_workers,
        "waiting": sum(view["waiting"] for view in views),
        "running": sum(view["running"] for view in views),
        "ui": getattr(executor, "ui_url", None),
        "lanes_in_all": len(names),
        "lanes": views,
    }


def _quantile(ascending: list[float], share: float) -> float | None:
    """By nearest rank, or None."""
    return round(ascending[max(0, math.ceil(len(ascending) * share) - 1)], 3) if ascending else None
