"""The parts of `multiqueue.core` that its tests try alone: the one place where they name its modules."""

from __future__ import annotations

from typing import Any

from multiqueue.core import LinkedBlockingMultiQueue as LinkedBlockingMultiQueue
from multiqueue.core import Ring as Ring
from multiqueue.core import Turn as Turn
from multiqueue.core import _sync as _sync
from multiqueue.core import engine as engine
from multiqueue.core._engines import NAMES as NAMES
from multiqueue.core._executor_job import Job as Job
from multiqueue.core._executor_workers import Workers as Workers
from multiqueue.core._fork import Alive as Alive
from multiqueue.core._lane_map import _results as _results
from multiqueue.core._parking import AsyncWaiter as AsyncWaiter
from multiqueue.core._parking import Line as Line
from multiqueue.core._parking import wake_one as wake_one
from multiqueue.core._plain import Multi as Multi
from multiqueue.core._plain import _drop as _drop
from multiqueue.core._plain import _many as _many
from multiqueue.core._plain import _surely as _surely
from multiqueue.core._plain import _take_named as _take_named
from multiqueue.core._plain_fair import FairFifo as FairFifo
from multiqueue.core._plain_fair import FairHead as FairHead
from multiqueue.core._plain_fifo import Fifo as Fifo
from multiqueue.core._plain_head import Group as Group
from multiqueue.core._plain_head import Head as Head
from multiqueue.core._queue import Contents as Contents
from multiqueue.core._ring import Level as Level
from multiqueue.core._ring import Ring as PlainRing  # noqa: F401
from multiqueue.core._ring import Turn as PlainTurn  # noqa: F401
from multiqueue.core._sub_queue import drain as drain
from multiqueue.core._sync import Guard as Guard
from multiqueue.core._sync import holding as holding


def choose(multi_queue: LinkedBlockingMultiQueue[Any], selection: Any) -> None:
    """Have `selection` decide from now on, in a multi-queue that was made without one."""
    if engine == "c":
        from multiqueue.core import _engine

        _engine.set_selection(multi_queue, selection)  # type: ignore[arg-type]
    else:
        multi_queue._engine_selection = selection


def is_free(queue: Any) -> bool:
    """Does no thread hold a lock of the core?"""
    return engine == "c" or not queue._engine_head.lock._is_owned()
