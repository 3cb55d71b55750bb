"""Cancelling a lane, and everything; statistics; calls in the order of their ends. Without Spark."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from dataclasses import replace
from typing import Any

import pytest
from spark_parts_support import BOUNDS, SparkJob
from spark_support import FakeSpark, dispatcher

from multiqueue.spark import Histogram, Progress, SparkJobTimeout
from multiqueue.testing import PATIENCE, wait_until_blocked


def test_cancelling_a_lane_leaves_the_others() -> None:
    """`lane.cancel` ends what waits and what runs in it; other lanes, and what comes after, run (spark 8)."""
    spark = FakeSpark()
    with dispatcher(spark, 2) as dock:
        ours, theirs = dock.lane("ours"), dock.lane("theirs")
        running, other = ours.submit(FakeSpark.job), theirs.submit(FakeSpark.job)
        waiting = [ours.submit(FakeSpark.job) for _ in range(3)]
        spark.wait_until_active(2)
        assert ours.cancel() == 4
        assert wait([running, *waiting], PATIENCE).not_done == set()
        assert all(future.cancelled() for future in (running, *waiting))
        assert ours.submit(lambda session: "ran").result(PATIENCE) == "ran"
        assert other.running()
        other.cancel()


def test_cancelling_everything_leaves_the_dispatcher_usable() -> None:
    """`dispatcher.cancel` ends what waits and what runs in all lanes; new items run (spark 8)."""
    spark = FakeSpark()
    with dispatcher(spark, 2) as dock:
        futures = [dock.lane(key).submit(FakeSpark.job) for key in "abcd"]
        spark.wait_until_active(2)
        assert dock.cancel() == 4
        assert wait(futures, PATIENCE).not_done == set()
        assert all(future.cancelled() for future in futures)
        assert dock.submit(lambda session: "ran").result(PATIENCE) == "ran"


@pytest.mark.parametrize("what", ["lane", "all"])
def test_an_item_that_a_worker_has_taken_is_cancelled_too(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """An item between its lane and its function is not missed: it is not called any more."""
    taken, go_on = threading.Event(), threading.Event()
    run = SparkJob.run

    def late_run(self: SparkJob[Any]) -> None:
        taken.set()
        assert go_on.wait(PATIENCE)
        run(self)

    monkeypatch.setattr(SparkJob, "run", late_run)
    with dispatcher(FakeSpark()) as dock:
        lane = dock.lane("a")
        future = lane.submit(lambda session: pytest.fail("ran"))
        assert taken.wait(PATIENCE)
        (lane if what == "lane" else dock).cancel()
        go_on.set()
        wait_until_blocked(future.done)
        assert future.cancelled()


def test_every_item_is_counted_once() -> None:
    """Statistics tell how each item of a lane has ended, and how long they waited and ran (spark 11)."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        lane = dock.lane("eu")
        lane.submit(lambda session: 1).result(PATIENCE)
        lane.submit(lambda session: 1 / 0).exception(PATIENCE)
        assert isinstance(lane.with_options(timeout=0.01).submit(FakeSpark.job).exception(PATIENCE), SparkJobTimeout)
        running = lane.submit(FakeSpark.job)
        spark.wait_until_active()
        lane.submit(FakeSpark.job).cancel()
        lane.with_options(start_within=0.01).submit(FakeSpark.job).exception(PATIENCE)
        wait_until_blocked(lambda: lane.statistics().missed == 1)  # the alarm's thread counts behind the result
        waiting = lane.submit(FakeSpark.job)
        lane.pause()
        all_of_it = dock.statistics()
        assert (all_of_it.max_running, all_of_it.waiting, all_of_it.running) == (1, 1, 1)
        (seen,) = all_of_it.lanes
        assert (seen.key, seen.waiting, seen.running, seen.is_paused) == ("eu", 1, 1, True)
        ends = (seen.succeeded, seen.failed, seen.timed_out, seen.missed, seen.cancelled)
        assert ends == (1, 1, 1, 1, 1)
        assert seen.wait.count == 4
        assert seen.run.count == 3
        assert seen.run.longest >= 0.01
        dock.cancel()
        assert wait([running, waiting], PATIENCE).not_done == set()
        wait_until_blocked(lambda: lane.statistics().cancelled == 3)


def test_a_histogram_tells_quantiles_to_the_next_bound() -> None:
    """A quantile is the bound of the bucket it falls in, and never more than the longest."""
    counts = [0] * (len(BOUNDS) + 1)
    counts[BOUNDS.index(0.01)], counts[BOUNDS.index(1.0)], counts[-1] = 90, 9, 1
    histogram = Histogram(BOUNDS, tuple(counts), total=200.0, longest=20_000.0)
    assert histogram.count == 100
    assert histogram.mean == 2.0
    assert [histogram.quantile(share) for share in (0.5, 0.9, 0.99, 1.0)] == [0.01, 0.01, 1.0, 20_000.0]
    assert Histogram(BOUNDS, (0,) * (len(BOUNDS) + 1), 0.0, 0.0).quantile(0.5) == 0.0
    with pytest.raises(ValueError, match="between 0 and 1"):
        histogram.quantile(50)


def test_calls_are_handed_out_as_they_end() -> None:
    """`as_completed` gives the arguments and the future of each call in the order of their ends, failures too."""
    gates = [threading.Event() for _ in range(3)]

    def call(session: FakeSpark, number: int) -> float:
        assert gates[number].wait(PATIENCE)
        return 1 / number

    with dispatcher(FakeSpark(), 3) as dock:
        calls = dock.lane("a").as_completed(call, range(3))
        gates[1].set()
        args, future = next(calls)
        assert (args, future.result()) == ((1,), 1.0)
        gates[0].set()
        args, future = next(calls)
        assert args == (0,)
        assert isinstance(future.exception(), ZeroDivisionError)
        gates[2].set()
        assert [(args, future.result()) for args, future in calls] == [((2,), 0.5)]


def test_inputs_are_read_no_further_than_the_look_ahead() -> None:
    """At most `buffersize` calls are under way that were not handed out."""
    read: list[int] = []

    def inputs() -> Any:
        for number in range(10):
            read.append(number)
            yield number

    with dispatcher(FakeSpark(), 2) as dock:
        calls = dock.as_completed(lambda session, number: number, inputs(), buffersize=3)
        next(calls)
        assert len(read) == 3
        next(calls)
        assert len(read) == 4
        assert len(list(calls)) == 8
        with pytest.raises(ValueError, match="buffersize must be at least 1"):
            dock.as_completed(len, [], buffersize=0)


def test_closing_the_iterator_cancels_what_is_under_way() -> None:
    """What was submitted and not handed out is cancelled, running or not."""
    spark = FakeSpark()
    gate = threading.Event()

    def call(session: FakeSpark, number: int) -> None:
        if number:
            session.job()
        assert gate.wait(PATIENCE)

    with dispatcher(spark, 2) as dock:
        calls = dock.as_completed(call, range(9), buffersize=4)
        gate.set()
        next(calls)
        spark.wait_until_active(2)
        calls.close()
        wait_until_blocked(lambda: dock.statistics().running == 0, PATIENCE)
        assert dock.statistics().waiting == 0


def test_the_iteration_can_be_bounded_in_time() -> None:
    """After `timeout` seconds the iterator raises, and what is under way is cancelled."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        with pytest.raises(TimeoutError, match=r"2 calls had not ended after 0\.05 s"):
            next(dock.as_completed(lambda session, n: session.job(), range(2), timeout=0.05))
        wait_until_blocked(lambda: dock.statistics().running == 0, PATIENCE)


def test_progress_is_what_spark_told_last() -> None:
    """`progress` asks while Spark knows, and keeps the last answer; `watch` ends with the job."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        future = dock.submit(FakeSpark.job)
        (tag,) = spark.wait_until_active()
        assert future.progress() == Progress()
        watch = future.watch(every=0.001)
        assert next(watch) == Progress()
        for done in (1, 2):
            spark.told[tag] = Progress(jobs=1, stages=1, tasks=4, tasks_done=done)
            assert next(watch).share == done / 4
        spark.told[tag] = last = Progress(jobs=1, stages=1, tasks=4, tasks_done=3)
        future.cancel()
        last = replace(last, share=0.75)
        assert list(watch) == [last]
        del spark.told[tag]
        assert future.progress() == last


def test_progress_never_falls_and_ends_at_one() -> None:
    """Further jobs, skipped and forgotten stages take nothing off the share; it is 1 once the function has returned.

    (spark 12)
    """
    spark, go_on = FakeSpark(), threading.Event()
    told = [(0, 0, 0.0), (0, 8, 0.0), (8, 8, 0.99), (8, 17, 0.99), (9, 17, 0.99), (0, 0, 0.99)]
    with dispatcher(spark) as dock:
        future = dock.submit(lambda session: go_on.wait(PATIENCE))
        wait_until_blocked(future.running)
        for done, tasks, share in told:
            spark.told[future.tag] = Progress(jobs=1, stages=2, tasks=tasks, tasks_done=done, tasks_active=1)
            assert future.progress().share == share
        spark.told[future.tag] = Progress(jobs=2, stages=3, stages_done=2, tasks=17, tasks_done=16, tasks_active=1)
        go_on.set()
        assert future.result(PATIENCE)
        assert future.progress() == Progress(2, 3, 3, 17, 0, 17, 0, share=1.0)


def test_progress_of_an_item_without_a_job_or_a_result() -> None:
    """An item that asks Spark for nothing ends at 1; one that fails stays below, however much of its tasks was done."""
    spark = FakeSpark()

    def fail(session: FakeSpark) -> None:
        session.told[session.local.tag] = Progress(jobs=1, stages=1, stages_done=1, tasks=4, tasks_done=4)
        raise ValueError

    with dispatcher(spark) as dock:
        nothing, failing = dock.submit(lambda session: None), dock.submit(fail)
        assert [progress.share for progress in nothing.watch()][-1] == 1.0
        assert [progress.share for progress in failing.watch()][-1] == 0.99
    halves = Progress(tasks=6, tasks_done=3, share=0.5) + Progress(tasks=2, tasks_done=2, share=1.0)
    assert halves == Progress(tasks=8, tasks_done=5, share=0.625)


def test_items_are_labelled_with_their_lane_and_function() -> None:
    """Spark's UI shows tags of the lane and the function beside the item's own; without commas."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        dock.lane("eu,west").submit(FakeSpark.wait_until_active, 0).result(PATIENCE)
    assert spark.entered[0].labels == (
        "multiqueue-lane:eu;west",
        "multiqueue-function:FakeSpark.wait_until_active",
    )
