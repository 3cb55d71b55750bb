"""Items that a stopped classic session leaves waiting for ever: found each second, and ended.

A job that reaches Spark's scheduler in the moment of its stop is taken and never answered. So the thread that waits for
it is freed from outside, and its item fails as every other of a stopped session.

Promise     While the session lives no item is touched. Once it is stopped, each item's thread is looked at each second
            until it has left; `free` decides whether it waits in vain.
State       `_changed` guards `_items`, `_thread`, `_closed`.
            Invariant: an item in `_items` implies that `_thread` serves.
Lock order  `_changed` alone; Spark is asked without it.
Waiting     The thread waits a second at a time, or for `close`. It ends when it finds no item, and the next item starts
            another: items that come one after the other share one, and it needs no stop.
Membership  An item is in from before its function's first call of Spark until the function has left. One that leaves
            while it is looked at may be freed late: what its thread calls then is the stopped session's as well.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from ..._locks import Condition, Lock

LOGGER = logging.getLogger("multiqueue.spark")

EVERY = 1.0  # seconds between two questions whether the session is stopped; one costs some 0.2 ms

# Where a thread of the JVM stands that waits for what only a scheduler can bring: a job's end, a stage of an adaptive
# query, a broadcast, a subquery, or the thread that serves a result and waits for one of these itself.
READ = "SocketIO.readinto"  # where Python waits for a socket's next bytes
PARKED = "Unsafe.park("
WAITS = (
    "scheduler.DAGScheduler.runJob(",
    "adaptive.AdaptiveSparkPlanExec.",
    "exchange.BroadcastExchangeExec.",
    "execution.SubqueryExec.",
    "SocketAuthServer.getResult(",
    "SocketFuncServer.getResult(",
)


@dataclass(slots=True, eq=False)
class Item:
    """One item's threads: Python's, and the JVM's if it is known. `read` is what the first was seen reading last."""

    python: int
    java: Any = None
    read: FrameType | None = None


class AfterStop:
    """The running items of one dispatcher, of which those are freed that wait for a stopped session."""

    def __init__(self, is_stopped: Callable[[], bool], free: Callable[[Item], object], every: float = EVERY) -> None:
        self._is_stopped = is_stopped
        self._free = free
        self._every = every
        self._changed = Condition(Lock())
        self._items: set[Item] = set()
        self._thread: threading.Thread | None = None
        self._closed = False

    def enter(self, item: Item) -> None:
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="after-stop", daemon=False)
                thread.start()  # it will wait for `_changed`
                self._thread = thread
            self._items.add(item)

    def leave(self, item: Item) -> None:
        with self._changed:
            self._items.discard(item)

    def close(self) -> None:
        """No item comes any more: let the thread end, and wait for that. Again has no effect."""
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def check_invariants(self) -> None:
        with self._changed:
            assert not self._items or self._thread is not None

    def _serve(self) -> None:
        while True:
            with self._changed:
                if self._items or not self._closed:
                    self._changed.wait(self._every)
                items = list(self._items)
                if not items:
                    self._thread = None
                    return
            self._look(items)

    def _look(self, items: list[Item]) -> None:
        if not self._is_stopped():
            return
        for item in items:
            try:
                self._free(item)
            except Exception:
                LOGGER.exception("whether an item waits for a stopped Spark session could not be told")


def waits_in_vain(stack: Iterable[str]) -> bool:
    """Whether a thread of the JVM that stands here, innermost call first, waits for a scheduler.

    Nothing else is to be interrupted: it may be committing what its jobs have written.
    """
    calls = iter(stack)
    return PARKED in next(calls, "") and any(one in call for call in calls for one in WAITS)


def end_read_of_result(item: Item) -> bool:
    """End the item's wait for a result that Spark sends through a separate socket, if it is the same as last time.

    Whether there was one. `toArrow` and `toLocalIterator` read so; their jobs run in a thread of the JVM that is not
    the item's.
    """
    frame = sys._current_frames().get(item.python)
    if frame is None or frame.f_code.co_qualname != READ or not _is_of_pyspark(frame.f_back):
        item.read = None
        return False
    if frame is not item.read:
        item.read = frame
        return False
    item.read = None
    frame.f_locals["self"]._sock.shutdown(socket.SHUT_RD)  # the reader sees the end of the stream
    return True


def _is_of_pyspark(frame: FrameType | None) -> bool:
    """Whether PySpark reads, by way of Arrow or by itself."""
    while frame is not None and _module(frame) == "pyarrow":
        frame = frame.f_back
    return frame is not None and _module(frame) == "pyspark"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
