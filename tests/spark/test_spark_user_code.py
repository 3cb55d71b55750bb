"""Where the user's code runs in the dispatcher, and where that waits for it: under no lock, at every place.

Without Spark: the backend calls Spark, and holds nothing meanwhile.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Queue
from typing import Any

import pytest
from held_locks_support import Gate, HeldLocks, UserCode, others_go_on, watching
from spark_support import FakeSpark, dispatcher

from multiqueue.spark import Retry, SparkDeadlineMissed
from multiqueue.testing import PATIENCE

_numbers = itertools.count()


class Scene:
    """A dispatcher over a Spark without Java, and the user's code."""

    def __init__(self, held: HeldLocks, dock: Any, spark: FakeSpark) -> None:
        self.code = UserCode(held, self.use)
        self.dock = dock
        self.spark = spark
        self.done: Queue[object] = Queue()

    def told(self, *args: object) -> None:
        """The user's code, and the test knows that it has run."""
        try:
            self.code()
        finally:
            self.done.put(args)

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            self.done.get(timeout=PATIENCE)

    def use(self) -> None:
        """What each of the dispatcher's locks guards, a worker and the alarms too."""
        self.dock.statistics()
        lane = self.dock.lane(f"used {next(_numbers)}", timeout=PATIENCE, start_within=PATIENCE)
        assert lane.submit(lambda spark: 1).result(PATIENCE) == 1
        slow = lane.with_options(timeout=1e-3).submit(lambda spark: spark.job())
        assert slow.exception(PATIENCE) is not None
        lane.pause()
        waiting = lane.with_options(start_within=1e-3).submit(lambda spark: 1)
        with pytest.raises(SparkDeadlineMissed):
            waiting.result(PATIENCE)
        assert lane.cancel() == 0
        lane.shutdown()


@pytest.fixture
def scene() -> Iterator[Scene]:
    with watching("multiqueue.spark") as held, dispatcher(spark := FakeSpark(), 4) as dock:
        yield Scene(held, dock, spark)


# -- the entry points


def functions(scene: Scene) -> None:
    scene.dock.submit(lambda spark: scene.code()).result(PATIENCE)


def callbacks_of_a_result(scene: Scene) -> None:
    future = scene.dock.submit(lambda spark: 1)
    future.add_done_callback(scene.told)
    scene.wait()


def callbacks_of_a_cancellation(scene: Scene) -> None:
    lane = scene.dock.lane("paused")
    lane.pause()
    for cancel in (lambda future: future.cancel(), lambda future: lane.cancel(), lambda future: lane.clear()):
        future = lane.submit(lambda spark: 1)
        future.add_done_callback(scene.told)
        cancel(future)
        scene.wait()


def callbacks_of_a_running_jobs_cancellation(scene: Scene) -> None:
    future = scene.dock.submit(lambda spark: spark.job())
    future.add_done_callback(scene.told)
    scene.spark.wait_until_active()
    future.cancel()
    scene.wait()


def callbacks_of_a_timeout(scene: Scene) -> None:
    future = scene.dock.lane("short", timeout=0.01).submit(lambda spark: spark.job())
    future.add_done_callback(scene.told)
    scene.wait()


def callbacks_of_a_missed_deadline(scene: Scene) -> None:
    lane = scene.dock.lane("late", start_within=0.01)
    lane.pause()
    future = lane.submit(lambda spark: 1)
    future.add_done_callback(scene.told)
    scene.wait()


def whether_to_run_again(scene: Scene) -> None:
    lane = scene.dock.lane("again", retry=Retry(2, first_pause=0.0, when=lambda error: scene.code()))
    with pytest.raises(ZeroDivisionError):
        lane.submit(lambda spark: 1 / 0).result(PATIENCE)


def keys_of_lanes(scene: Scene) -> None:
    """Their text; hash and comparison run under the executor lock (core 9), and the lanes that are there go on."""
    there = scene.dock.lane("there")
    scene.code.then(lambda: there.submit(lambda spark: 1).result(PATIENCE))
    lane = scene.dock.lane(scene.code.value())
    lane.submit(lambda spark: 1).result(PATIENCE)
    lane.cancel()
    lane.shutdown()


def names_of_functions(scene: Scene) -> None:
    class Function:
        def __repr__(self) -> str:
            return f"function {scene.code()}"

        def __call__(self, spark: Any) -> int:
            return 1

    scene.dock.submit(Function()).result(PATIENCE)


def iterables(scene: Scene) -> None:
    def arguments() -> Iterator[int]:
        for number in range(3):
            scene.code()
            yield number

    assert list(scene.dock.map(lambda spark, number: number, arguments())) == [0, 1, 2]
    assert len(list(scene.dock.as_completed(lambda spark, number: number, arguments()))) == 3


def ends_of_arguments_and_results(scene: Scene) -> None:
    """What the last reference to a job lets go of."""
    lane = scene.dock.lane("mortal", timeout=PATIENCE, start_within=PATIENCE)
    lane.submit(lambda spark, given: None, scene.code.mortal()).result(PATIENCE)
    lane.submit(lambda spark: scene.code.mortal()).result(PATIENCE)
    lane.pause()
    for end in (lane.cancel, lane.clear):
        lane.submit(lambda spark, given: None, scene.code.mortal())
        end()
    lane.with_options(start_within=1e-3).submit(lambda spark, given: None, scene.code.mortal()).exception(PATIENCE)


def handlers_of_the_log(scene: Scene) -> None:
    class Handler(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            scene.told()
            return True

    log, handler = logging.getLogger("multiqueue.spark"), Handler()
    log.addHandler(handler)
    try:
        lane = scene.dock.lane("odd", retry=Retry(2, first_pause=0.0, when=lambda error: 1 / 0))
        with suppress(ZeroDivisionError):
            lane.submit(lambda spark: 1 / 0).result(PATIENCE)
        scene.wait()
    finally:
        log.removeHandler(handler)


ENTRY_POINTS = [
    functions,
    callbacks_of_a_result,
    callbacks_of_a_cancellation,
    callbacks_of_a_running_jobs_cancellation,
    callbacks_of_a_timeout,
    callbacks_of_a_missed_deadline,
    whether_to_run_again,
    keys_of_lanes,
    names_of_functions,
    iterables,
    ends_of_arguments_and_results,
    handlers_of_the_log,
]


@pytest.mark.parametrize("point", ENTRY_POINTS, ids=lambda point: point.__name__)
def test_user_code_runs_under_no_lock(scene: Scene, point: Callable[[Scene], None]) -> None:
    """Wherever the user's code runs, its thread holds no lock of the room, and another thread can use the dispatcher,
    its lanes, its workers and its alarms."""
    point(scene)
    scene.code.check()


# -- the waits


@pytest.mark.parametrize("wait", ["result", "map", "as_completed"])
def test_no_lock_is_held_while_we_wait_for_user_code(scene: Scene, wait: str) -> None:
    """While a thread waits for a job to end, every other thread uses the dispatcher."""
    gate = Gate()
    lane = scene.dock.lane("gated")
    future = lane.submit(gate)
    waits: dict[str, Callable[[], object]] = {
        "result": future.result,
        "map": lambda: list(lane.map(lambda spark, number: gate(), [1])),
        "as_completed": lambda: list(lane.as_completed(lambda spark, number: gate(), [1])),
    }
    others_go_on(gate, waits[wait], scene.code)
