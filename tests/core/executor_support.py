"""What the executor's tests share: a worker that is busy until told, and executors that leave no thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multiqueue import MultiQueueExecutor
from multiqueue.testing import PATIENCE

ROOT = Path(__file__).parents[2]  # where a program run by a test finds the package


class Busy:
    """A job that runs from `with` until it is released, or the block is left."""

    def __init__(self, executor: Executor) -> None:
        self._started = threading.Event()
        self._go_on = threading.Event()
        self.future: Future[None] = executor.submit(self._work)

    def _work(self) -> None:
        self._started.set()
        assert self._go_on.wait(PATIENCE)

    def release(self) -> None:
        self._go_on.set()

    def __enter__(self) -> Busy:
        assert self._started.wait(PATIENCE)
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


@contextmanager
def executor(max_workers: int = 1, **settings: Any) -> Iterator[MultiQueueExecutor]:
    """An executor that must be gone, threads and all, when the block is left."""
    pool = MultiQueueExecutor(max_workers, **settings)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True)
        assert not [thread.name for thread in pool._workers.threads() if thread.is_alive()]


class Outcome(Future[Any]):
    """What a thread of its own came to."""

    thread: threading.Thread


@contextmanager
def in_thread(target: Callable[[], Any]) -> Iterator[Outcome]:
    """Call `target` in a thread of its own, joined when the block is left."""
    future = Outcome()

    def body() -> None:
        try:
            future.set_result(target())
        except BaseException as error:  # noqa: BLE001 - the test asks the future for it
            future.set_exception(error)

    thread = threading.Thread(target=body)
    future.thread = thread
    thread.start()
    try:
        yield future
    finally:
        thread.join(PATIENCE)
        assert not thread.is_alive()
