"""`executor.keyed(key)`: lanes that come with the first job of a key and go with its last."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from concurrent.futures import wait

import pytest

from multiqueue import Full, Lane, MultiQueueExecutor
from multiqueue.testing import PATIENCE


def test_keys_take_turns() -> None:
    """A key's only job does not wait behind another one's hundred."""
    order: list[str] = []
    go = threading.Event()
    with MultiQueueExecutor(1) as executor:
        executor.submit(go.wait, PATIENCE)
        for number in range(100):
            executor.keyed("flood").submit(order.append, f"flood {number}")
        executor.keyed("small").submit(order.append, "small")
        go.set()
    assert "small" in order[:2]
    assert len(order) == 101


def test_a_lane_goes_with_its_last_job() -> None:
    """Also when that one is cancelled; nothing of a thousand keys is left in the executor (executor 10)."""
    go = threading.Event()
    with MultiQueueExecutor(2) as executor:
        wait([executor.keyed(key).submit(str, key) for key in range(1000)])
        busy = [executor.keyed("busy", max_in_flight=1).submit(go.wait, PATIENCE) for _ in range(2)]
        while not busy[0].running():
            pass
        assert busy[1].cancel()
        go.set()
        wait(busy)
        executor.submit(str).result(PATIENCE)
    workers = executor._workers
    assert set(executor.lanes) == {"default"}
    assert len(workers._lines) == 1
    assert not workers._closing
    assert set(workers.queue.subqueues) == {"default"}


def test_settings_are_those_of_the_lane_it_makes() -> None:
    """Capacity, priority, weight and limit; wrong ones are refused before there is a lane."""
    go = threading.Event()
    with MultiQueueExecutor(1) as executor:
        executor.submit(go.wait, PATIENCE)
        keyed = executor.keyed("a", 1, 1, max_in_flight=2, weight=3)
        keyed.submit(str)
        settings = executor.lanes["a"].settings
        assert (settings.priority, settings.capacity, settings.max_in_flight, settings.weight) == (1, 1, 2, 3)
        with pytest.raises(Full):
            keyed.submit_nowait(str)
        go.set()
        for wrong in ({"capacity": 0}, {"weight": 0}, {"max_in_flight": 0}):
            with pytest.raises(ValueError, match="at least 1"):
                executor.keyed("b", **wrong)


def test_a_key_is_of_lane_or_of_keyed() -> None:
    """A lane that stays and one that goes are not the same one."""
    go = threading.Event()
    with MultiQueueExecutor(1) as executor:
        executor.lane("stays")
        with pytest.raises(ValueError, match="has a lane that"):
            executor.keyed("stays").submit(str)
        executor.keyed("goes").submit(go.wait, PATIENCE)
        with pytest.raises(ValueError, match="that of keyed"):
            executor.lane("goes")
        executor.keyed("default").submit(go.wait, PATIENCE)
        with pytest.raises(ValueError, match="that of keyed"):
            executor.submit(str)
        go.set()


def test_after_shutdown_it_refuses() -> None:
    """As the executor does."""
    executor = MultiQueueExecutor(1)
    keyed = executor.keyed("a")
    keyed.submit(str).result(PATIENCE)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        keyed.submit(str)


def test_many_threads_submit_while_lanes_come_and_go() -> None:
    """Each job is run once, whichever lane it found on its way out."""
    done: list[int] = []

    def submit(executor: MultiQueueExecutor, first: int) -> None:
        for number in range(first, first + 500):
            executor.keyed(number % 3, capacity=1).submit(done.append, number)

    with MultiQueueExecutor(3) as executor:
        threads = [threading.Thread(target=submit, args=(executor, first)) for first in (0, 500, 1000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert sorted(done) == list(range(1500))
    assert not executor.lanes


def test_a_lane_of_a_key_is_one_for_whoever_finds_it() -> None:
    """`submit` looks for the lane "default" without a lock, and takes none that passes."""
    found: list[bool] = []

    class Lanes(dict[Hashable, Lane]):
        def __setitem__(self, key: Hashable, lane: Lane) -> None:
            found.append(lane._is_passing)
            super().__setitem__(key, lane)

    with MultiQueueExecutor(1) as executor:
        executor._lanes = Lanes()
        executor.keyed("default").submit(int).result(PATIENCE)
    assert found == [True]
