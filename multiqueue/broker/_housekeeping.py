"""Housekeeping: one thread that lets queues do what time asks for.

Promise     Every queue that was added and is not deleted has its `housekeeping` called once per interval; a deleted
            one is forgotten. `run_once` does the same on the caller's thread, for tests with a clock of their own.
State       One lock, a leaf, guards the set of queues. Queues are called without it.
Waiting     The thread waits for the interval or for `close`, which joins it.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

_log = logging.getLogger("multiqueue.broker")


class Kept(Protocol):
    """What housekeeping needs of a queue."""

    @property
    def is_deleted(self) -> bool: ...

    def housekeeping(self) -> None: ...


class Housekeeping:
    """Looks after queues every `interval` seconds once started; a context manager that starts and closes it."""

    def __init__(self, interval: float = 0.25, *, name: str = "multiqueue-housekeeping") -> None:
        if interval <= 0:
            raise ValueError(f"interval is {interval!r} s; it must be more than 0")
        self._interval = interval
        self._name = name
        self._lock = threading.Lock()
        self._queues: dict[Kept, None] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, queue: Kept) -> None:
        """Look after a queue from now on."""
        with self._lock:
            self._queues[queue] = None

    def remove(self, queue: Kept) -> None:
        """Forget a queue; harmless when it is not known."""
        with self._lock:
            self._queues.pop(queue, None)

    def run_once(self) -> None:
        """Look after every queue once. A queue that fails is logged and does not keep the others waiting."""
        with self._lock:
            queues = list(self._queues)
        for queue in queues:
            if queue.is_deleted:
                self.remove(queue)
                continue
            try:
                queue.housekeeping()
            except Exception as error:  # noqa: BLE001  # the next queue must have its turn
                _log.error("housekeeping of %r failed", queue, exc_info=error)

    def start(self) -> None:
        """Start the thread; harmless when it runs.

        Raises:
            RuntimeError: it was closed.
        """
        with self._lock:
            if self._closing.is_set():
                raise RuntimeError("housekeeping was closed; make a new one")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread and join it; harmless when it never ran. A callback on that thread may call this."""
        self._closing.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Housekeeping:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing.wait(self._interval):
            self.run_once()
