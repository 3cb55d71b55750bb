"""The end of the work pool, in every order: a callback that was accepted runs once, wherever the end stands."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

pytest.importorskip("pamqp")

from client_parts_support import Pool
from core_parts_support import _sync

from multiqueue import ShutDown
from multiqueue.testing import Run, explore


class AtOnce(Executor):
    """Runs what is submitted in the thread that submits it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        fn(*args, **kwargs)
        return Future()


def pool_with_two_lanes() -> tuple[Pool, Any, Any]:
    pool = Pool(AtOnce(), 2, linger=1.0)
    pool.runner._lock = _sync.allocate_lock()
    return pool, pool.add_lane("one"), pool.add_lane("two")


@pytest.mark.slow(selected=True)
def test_no_callback_is_forgotten_by_the_end_of_the_pool() -> None:
    """Beside a run that waits for the next callback and the end of the pool, an accepted callback runs once."""

    def scenario(run: Run) -> None:
        pool, one, two = pool_with_two_lanes()
        ran: list[str] = []
        one.put((ran.append, "first"))
        pool.runner._runs = 1
        run.spawn(pool.runner._run, *pool.work.take())
        put = run.spawn_expecting(ShutDown, pool.put, two, ran.append, "late")
        run.spawn(pool.work.shutdown)
        run.join()
        assert ran.count("first") == 1
        assert ran.count("late") == (put.error is None)
        assert not pool.work.subqueues["two"].qsize()
        pool.runner.check_invariants()

    explored = explore(scenario, preemptions=1, within=("multiqueue.core._multi_queue", "multiqueue.client._dispatch"))
    assert explored.schedules > 100
