"""What the dispatcher's tests share: a Spark that needs no Java, and a session's worth of the real one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from spark_parts_support import Marks, Spent, _dispatcher

from multiqueue.spark import Progress, SparkDispatcher
from multiqueue.testing import PATIENCE

T = TypeVar("T")


class Cancelled(Exception):
    """What the fake Spark's jobs raise when they are cancelled."""


class Stopped(Exception):
    """What the fake Spark's jobs raise when the session was stopped."""


class Gone(ConnectionError):
    """The fake Spark's jobs raise it when no JVM answers."""


class FakeSpark:
    """A session and its backend: jobs run until they are cancelled by tag, and cancelling finds only active ones."""

    sparkContext = None  # the name by which a session is known

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._active: dict[str, str | None] = {}  # tag -> why it is to end
        self.asked: Counter[str] = Counter()  # how often a tag was to be cancelled
        self.entered: list[Marks] = []
        self.told: dict[str, Progress] = {}
        self.local = threading.local()
        self.closed = 0
        self.tells_spent = True
        self.spends: Callable[[str], Spent | None] = lambda tag: None

    def job(self) -> None:
        """What a Spark action does: blocks until it is cancelled."""
        tag = self.local.tag
        with self._lock:
            self._active[tag] = None
            self._lock.notify_all()
            assert self._lock.wait_for(lambda: self._active[tag], PATIENCE)
            raise {"cancelled": Cancelled, "stopped": Stopped}[self._active.pop(tag) or ""](tag)

    def wait_until_active(self, count: int = 1) -> list[str]:
        """The tags of the active jobs, once there are `count`."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self._active) == count, PATIENCE)
            return list(self._active)

    def stop(self) -> None:
        """End all jobs as a stopped session does."""
        self._end("stopped", list(self._active))

    def cancel_elsewhere(self, tag: str) -> None:
        """Cancel as the Spark UI does."""
        self._end("cancelled", [tag])

    def _end(self, why: str, tags: list[str]) -> None:
        with self._lock:
            self._active.update((tag, why) for tag in tags if tag in self._active)
            self._lock.notify_all()

    # The backend

    def session_for(self, pool: str | None) -> Any:
        return self

    def inheriting(self, fn: Callable[..., T]) -> Callable[..., T]:
        inherited = getattr(self.local, "inherited", None)

        def call(*args: Any, **kwargs: Any) -> T:
            self.local.inherited = inherited
            return fn(*args, **kwargs)

        return call

    def enter(self, marks: Marks) -> None:
        self.local.tag = marks.tag
        self.entered.append(marks)

    def leave(self, tag: str) -> Progress | None:
        return self.told.get(tag)

    def progress(self, tag: str) -> Progress | None:
        return self.told.get(tag)

    def spent(self, tag: str) -> Spent | None:
        return self.spends(tag)

    def job_ids(self, tag: str) -> list[int]:
        return [7] if tag in self.told else []

    def ui_url(self) -> str | None:
        return "http://spark.example:4040"

    def cancel(self, tag: str) -> None:
        with self._lock:
            self.asked[tag] += 1
        self._end("cancelled", [tag])

    def close(self) -> None:
        self.closed += 1

    def is_cancellation(self, error: BaseException) -> bool:
        return isinstance(error, Cancelled)

    def is_stop(self, error: BaseException) -> bool:
        return isinstance(error, Stopped)

    def is_gone(self, error: BaseException) -> bool:
        return isinstance(error, Gone)


@contextmanager
def dispatcher(spark: Any, max_running: int = 1, **options: Any) -> Iterator[Any]:
    """A dispatcher that must be gone, threads and all, when the block is left."""
    before = set(threading.enumerate())
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(spark, FakeSpark):
            patch.setattr(_dispatcher, "backend_of", lambda session: session)
        with SparkDispatcher(spark, max_running, **options) as dock:
            yield dock
    assert set(threading.enumerate()) <= before
