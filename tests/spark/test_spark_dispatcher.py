"""The dispatcher: admission, threads, context, its ends. Without Spark."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

import pytest
from spark_parts_support import Running, SparkJob
from spark_support import FakeSpark, dispatcher

from multiqueue.errors import Full
from multiqueue.spark import Retry, SparkDispatcher
from multiqueue.testing import PATIENCE, wait_until_blocked


def test_at_least_one_item_must_run() -> None:
    """`max_running` below 1 is refused."""
    with pytest.raises(ValueError, match="max_running must be at least 1, not 0"):
        SparkDispatcher(FakeSpark(), 0)  # type: ignore[arg-type]


def test_the_function_gets_the_session_first() -> None:
    """Items are called as `fn(spark, *args, **kwargs)`, through every way to submit."""
    spark = FakeSpark()

    def item(session: FakeSpark, *args: int, **kwargs: int) -> tuple[bool, tuple[int, ...], dict[str, int]]:
        return session is spark, args, kwargs

    expected = (True, (1, 2), {"timeout": 3})
    with dispatcher(spark) as dock:
        lane = dock.lane("a")
        assert dock.submit(item, 1, 2, timeout=3).result(PATIENCE) == expected
        assert lane.submit(item, 1, 2, timeout=3).result(PATIENCE) == expected
        assert lane.submit_nowait(item, 1, 2, timeout=3).result(PATIENCE) == expected
        assert lane.submit_within(1.0, item, 1, 2, timeout=3).result(PATIENCE) == expected
        assert list(lane.map(item, [1], [2])) == [(True, (1, 2), {})]


def test_each_item_has_a_fresh_thread() -> None:
    """No two items share a thread, so that nothing thread-local leaks from one to the next (spark 2)."""
    local = threading.local()

    def is_first(session: FakeSpark) -> bool:
        first = not hasattr(local, "used")
        local.used = True
        return first

    with dispatcher(FakeSpark(), 2) as dock:
        assert all(future.result(PATIENCE) for future in [dock.submit(is_first) for _ in range(20)])


def test_each_item_has_a_mark_of_its_own() -> None:
    """Every item enters with a tag of its own, a description that names lane and function, and its lane's pool."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        for key, pool in (("eu", "fast"), ("us", None)):
            lane = dock.lane(key, pool=pool)
            assert lane.pool == pool
            lane.submit(FakeSpark.wait_until_active, 0).result(PATIENCE)
    assert len({marks.tag for marks in spark.entered}) == 2
    assert [(marks.description, marks.pool) for marks in spark.entered] == [
        ("eu: FakeSpark.wait_until_active", "fast"),
        ("us: FakeSpark.wait_until_active", None),
    ]


def test_an_item_inherits_what_the_submitter_has_when_it_submits() -> None:
    """The context is taken at submit, not when the item starts."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        lane = dock.lane("a")
        lane.pause()
        spark.local.inherited = "at submit"
        future = lane.submit(lambda session: session.local.inherited)
        spark.local.inherited = "later"
        lane.resume()
        assert future.result(PATIENCE) == "at submit"


def test_a_lane_made_with_options_is_found_by_its_key() -> None:
    """`lane(key)` returns the lane with its options, pool and bounds; named again, they must be the lane's."""
    with dispatcher(FakeSpark()) as dock:
        lane = dock.lane("r", 3, pool="p", timeout=60.0, retry=Retry(attempts=2))
        assert dock.lane("r") is lane
        assert dock.lane("r", pool="p", timeout=60.0) is lane
        for other, difference in (
            ({"pool": None}, "pool is 'p', not None"),
            ({"timeout": 5.0}, "timeout is 60.0, not 5"),
        ):
            with pytest.raises(ValueError, match=difference):
                dock.lane("r", **other)
        with pytest.raises(ValueError, match="start_within must be more than 0"):
            dock.lane("new", start_within=0.0)
        assert list(dock.lanes) == ["r"]


def test_map_reads_an_endless_input_no_further_than_needed() -> None:
    """`dispatcher.map` has twice `max_running` calls under way, and reads one more input for each result read."""
    read = []

    def numbers() -> Iterator[int]:
        for number in itertools.count():
            read.append(number)
            yield number

    with dispatcher(FakeSpark(), 2) as dock:
        results = dock.map(lambda session, number: number * number, numbers())
        assert len(read) == 4
        assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
        assert len(read) == 8
        results.close()
        assert list(dock.map(lambda session, a, b: a + b, [1, 2], [3, 4], buffersize=1)) == [4, 6]


def test_no_more_items_run_than_admitted() -> None:
    """`max_running` is the limit over all lanes; the next starts when one has ended (spark 1)."""
    spark = FakeSpark()
    with dispatcher(spark, 2) as dock:
        futures = [dock.lane(key).submit(FakeSpark.job) for key in "abc"]
        spark.wait_until_active(2)
        assert [dock.lane(key).running for key in "abc"] == [1, 1, 0]
        assert dock.lane("c").qsize() == 1
        futures[0].cancel()
        wait_until_blocked(lambda: dock.lane("c").running == 1)
        for future in futures[1:]:
            future.cancel()


def test_a_future_has_ended_before_its_place_is_free() -> None:
    """While the callbacks of a future run its item holds its place, and the next one waits (spark 7)."""
    spark = FakeSpark()
    seen: list[tuple[bool, int, int]] = []
    with dispatcher(spark, 1) as dock:
        lane = dock.lane("a")
        first = lane.submit(FakeSpark.job)
        first.add_done_callback(lambda future: seen.append((future.done(), lane.running, lane.qsize())))
        second = lane.submit(lambda session: "second")
        spark.wait_until_active(1)
        first.cancel()
        assert second.result(PATIENCE) == "second"
    assert seen == [(True, 1, 1)]


def test_a_full_lane_refuses_who_does_not_wait() -> None:
    """A lane with a capacity bounds the items that wait for it."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        lane = dock.lane("small", capacity=1)
        first, second = lane.submit(FakeSpark.job), lane.submit(FakeSpark.job)
        spark.wait_until_active()
        with pytest.raises(Full, match="lane 'small' is full: 1 of 1"):
            lane.submit_nowait(FakeSpark.job)
        second.cancel()
        first.cancel()


def test_clearing_a_lane_leaves_running_items_alone() -> None:
    """`clear` cancels what waits; the running item is not asked to end."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        lane = dock.lane("a")
        running, waiting = lane.submit(FakeSpark.job), lane.submit(FakeSpark.job)
        spark.wait_until_active()
        assert lane.clear() == 1
        assert waiting.cancelled()
        assert not spark.asked
        running.cancel()


def test_cancel_running_asks_for_the_end_of_all_that_runs() -> None:
    """`cancel_running` cancels the running items and says how many; what waits is started after them."""
    spark = FakeSpark()
    with dispatcher(spark, 2) as dock:
        running = [dock.submit(FakeSpark.job) for _ in range(2)]
        waiting = dock.submit(lambda session: "ran")
        spark.wait_until_active(2)
        assert dock.cancel_running() == 2
        assert waiting.result(PATIENCE) == "ran"
        assert wait(running, PATIENCE).not_done == set()
        assert all(future.cancelled() for future in running)
        assert dock.cancel_running() == 0


def test_what_has_ended_is_not_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item whose future has ended is not counted by `cancel_running`, though its worker has not left yet."""
    leaves, leave = threading.Event(), Running.leave

    def late(self: Running, future: Any) -> None:
        assert leaves.wait(PATIENCE)
        leave(self, future)

    monkeypatch.setattr(Running, "leave", late)
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        future = dock.submit(FakeSpark.job)
        spark.wait_until_active()
        try:
            assert dock.cancel_running() == 1
            assert wait([future], PATIENCE).not_done == set()
            assert dock.cancel_running() == 0
        finally:
            leaves.set()


def test_shutdown_waits_for_what_runs_and_waits() -> None:
    """Shutdown without more words is the standard library's: all items come to their end (spark 6)."""
    spark = FakeSpark()
    with dispatcher(spark) as dock:
        futures = [dock.submit(lambda session: "ran") for _ in range(3)]
        dock.shutdown(wait=False)
        assert spark.closed == 0, "items may run that need what the backend made"
        dock.shutdown()
        assert spark.closed == 1
        assert [future.result(0) for future in futures] == ["ran"] * 3
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            dock.submit(FakeSpark.job)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_leaving_by_an_exception_cancels_everything(error: type[BaseException]) -> None:
    """An exception or an interrupt in the block cancels what waits and what runs, paused lanes included (spark 6)."""
    spark = FakeSpark()
    with pytest.raises(error), dispatcher(spark, 2) as dock:  # noqa: PT012 - the block is what is left
        futures = [dock.submit(FakeSpark.job) for _ in range(4)]
        paused = dock.lane("paused")
        paused.pause()
        futures.append(paused.submit(FakeSpark.job))
        spark.wait_until_active(2)
        raise error
    assert all(future.cancelled() for future in futures)
    assert len(spark.asked) == 2


def test_an_interrupt_while_the_block_ends_cancels_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the end of the block waits for the items cancels them, and is raised (spark 6)."""
    spark = FakeSpark()
    plain_join = threading.Thread.join

    def interrupted_join(self: threading.Thread, timeout: float | None = None) -> None:
        monkeypatch.setattr(threading.Thread, "join", plain_join)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), dispatcher(spark) as dock:  # noqa: PT012
        futures = [dock.submit(FakeSpark.job), dock.submit(FakeSpark.job)]
        spark.wait_until_active()
        monkeypatch.setattr(threading.Thread, "join", interrupted_join)
    assert all(future.cancelled() for future in futures)


def test_an_item_taken_but_not_begun_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item between the lane and its function when everything is cancelled is cancelled too, without being called.

    (spark 8)
    """
    spark = FakeSpark()
    begun = threading.Event()
    go_on = threading.Event()

    run = SparkJob.run

    def late_run(self: SparkJob[None]) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)
        run(self)

    monkeypatch.setattr(SparkJob, "run", late_run)
    with pytest.raises(ZeroDivisionError), dispatcher(spark) as dock:  # noqa: PT012
        future = dock.submit(lambda session: pytest.fail("ran"))
        assert begun.wait(PATIENCE)
        close = dock._running.close

        def close_and_go_on() -> None:
            close()
            go_on.set()

        monkeypatch.setattr(dock._running, "close", close_and_go_on)
        raise ZeroDivisionError
    assert future.cancelled()
    assert not spark.entered
