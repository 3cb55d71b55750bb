"""The parts of `multiqueue.core` that its tests try alone: the one place where they name its modules."""

from __future__ import annotations

from typing import Any

from multiqueue.core import LinkedBlockingMultiQueue as LinkedBlockingMultiQueue
from multiqueue.core import Ring as Ring
from multiqueue.core import Turn as Turn
from multiqueue.core import _sync as _sync
from multiqueue.core import engine as engine
from multiqueue.core._draining import drain_to as drain_to
from multiqueue.core._executor_job import Job as Job
from multiqueue.core._executor_workers import Workers as Workers
from multiqueue.core._fifo import Fifo as Fifo
from multiqueue.core._fork import Alive as Alive
from multiqueue.core._lane_map import _results as _results
from multiqueue.core._multi_queue import LinkedBlockingMultiQueue as PlainMultiQueue  # noqa: F401
from multiqueue.core._parking import AsyncWaiter as AsyncWaiter
from multiqueue.core._parking import Waiters as Waiters
from multiqueue.core._parking import wake_one as wake_one
from multiqueue.core._priority_groups import ActiveGroups as ActiveGroups
from multiqueue.core._priority_groups import PriorityGroup as PriorityGroup
from multiqueue.core._put_side import WITH_GIL as WITH_GIL
from multiqueue.core._put_side import PutSide as PutSide
from multiqueue.core._queue import Queue as PlainQueue  # noqa: F401
from multiqueue.core._queue_attributes import Contents as Contents
from multiqueue.core._queue_attributes import QueueCondition as QueueCondition
from multiqueue.core._ring import Ring as PlainRing  # noqa: F401
from multiqueue.core._ring import Turn as PlainTurn  # noqa: F401
from multiqueue.core._sync import Guard as Guard
from multiqueue.core._sync import holding as holding
from multiqueue.core._sync import insist as insist
from multiqueue.core._take_side import TakeSide as TakeSide


def choose(multi_queue: LinkedBlockingMultiQueue[Any], selection: Any) -> None:
    """Have `selection` decide from now on, in a multi-queue that was made without one."""
    if engine == "c":
        from multiqueue.core import _engine

        _engine.set_selection(multi_queue, selection)  # type: ignore[arg-type]
    else:
        multi_queue._selection = selection


def is_free(queue: Any) -> bool:
    """Does no thread hold a lock of the core?"""
    return engine == "c" or not queue._take_side._take_lock._is_owned()
