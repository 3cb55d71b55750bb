"""The engine room: the multi-queue, the fair queue, the drop-in `Queue`, the executor with lanes.

Promises     an element put is taken once, in order; no wait loses an element or a wake-up; O(1) however many.
May know     the standard library and `multiqueue.errors`, no other room.
Does         no I/O, and has no threads of its own, the executor aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._engines import engine as engine
from ._fair_queue import FairQueue as FairQueue
from ._multi_queue import LinkedBlockingMultiQueue as LinkedBlockingMultiQueue
from ._notebook import notebook_table as notebook_table
from ._protocols import Offerable as Offerable
from ._protocols import Pollable as Pollable
from ._queue import LifoQueue as LifoQueue
from ._queue import PriorityQueue as PriorityQueue
from ._queue import Queue as Queue
from ._selection import SubQueueSelection as SubQueueSelection
from ._sub_queue import SubQueue as SubQueue
from ._taken import FairTaken as FairTaken
from ._taken import Taken as Taken

if TYPE_CHECKING:
    from ._executor import MultiQueueExecutor as MultiQueueExecutor
    from ._executor_job import Job as Job
    from ._executor_job import JobWatcher as JobWatcher
    from ._executor_job import LaneFuture as LaneFuture
    from ._lane import UNSET as UNSET
    from ._lane import Lane as Lane
    from ._lane import LaneSettings as LaneSettings
    from ._lane import Unset as Unset
    from ._lane_waiting import Ticket as Ticket
    from ._ring import Ring as Ring
    from ._ring import Turn as Turn
    from ._statistics import MultiQueueStatistics as MultiQueueStatistics
    from ._statistics import SubQueueStatistics as SubQueueStatistics

# What brings concurrent.futures, logging, dataclasses and inspect along, three times as much as all the rest, is
# loaded when a program first asks for it: `import multiqueue` would cost 45 ms of CPU more than `import queue`.
_LATER = {
    "MultiQueueExecutor": "_executor",
    "Job": "_executor_job",
    "JobWatcher": "_executor_job",
    "LaneFuture": "_executor_job",
    "UNSET": "_lane",
    "Lane": "_lane",
    "LaneSettings": "_lane",
    "Unset": "_lane",
    "Ticket": "_lane_waiting",
    "Ring": "_engine" if engine == "c" else "_ring",
    "Turn": "_engine" if engine == "c" else "_ring",
    "MultiQueueStatistics": "_statistics",
    "SubQueueStatistics": "_statistics",
}

__all__ = [
    *_LATER,
    "FairQueue",
    "FairTaken",
    "LifoQueue",
    "LinkedBlockingMultiQueue",
    "Offerable",
    "Pollable",
    "PriorityQueue",
    "Queue",
    "SubQueue",
    "SubQueueSelection",
    "Taken",
    "engine",
    "notebook_table",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = value = getattr(import_module(f".{_LATER[name]}", __name__), name)
    return value
