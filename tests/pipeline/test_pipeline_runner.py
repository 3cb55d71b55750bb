"""The run: feeding, recording, retrying, stopping."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import ItemState, StopRequested
from pipeline_support import HandDispatcher, HandLane, Pipeline, contents, lane_of, make_tree, rows_in, write_names

from multiqueue.pipeline import Item, JobError, SessionLost, StateDamaged

LANES = {"big": 40, "small": 3}


def pipeline(base: Path, lanes: dict[str, int] = LANES, **settings: Any) -> Pipeline:
    lane_settings = {key: settings.pop(key) for key in ("batch", "capacity") if key in settings}
    return Pipeline(base, [lane_of(base, name, **lane_settings) for name in lanes], **settings)


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("capacity", [1, 2, 16])
def test_every_file_is_in_the_output_once(tmp_path: Path, batch: int, capacity: int) -> None:
    """For each batch and capacity, every file is processed and found in the output exactly once (pipeline 1)."""
    make_tree(tmp_path, LANES)
    run = pipeline(tmp_path, batch=batch, capacity=capacity)
    snapshot = run.run()
    assert rows_in(run.output) == contents(LANES)
    assert snapshot.total.done == sum(-(-count // batch) for count in LANES.values())
    assert (snapshot.total.waiting, snapshot.total.running, snapshot.total.failed) == (0, 0, 0)


def test_a_second_run_finds_nothing_to_do(tmp_path: Path) -> None:
    """What is done is not done again, and no dispatcher is asked for."""
    make_tree(tmp_path, LANES)
    pipeline(tmp_path).run()
    again = pipeline(tmp_path)
    assert again.run().total.done == 43
    assert again.dispatcher.submitted == []


def test_new_files_are_found_by_the_next_run(tmp_path: Path) -> None:
    """A file that was added since the last run is processed; the others are left alone."""
    make_tree(tmp_path, LANES)
    pipeline(tmp_path).run()
    (tmp_path / "small" / "new.txt").write_text("new")
    again = pipeline(tmp_path)
    again.run()
    assert [item.files[0].path for item in again.dispatcher.submitted] == ["small/new.txt"]
    assert rows_in(again.output) == sorted([*contents(LANES), "new"])


@pytest.mark.parametrize("batch", [1, 2])
def test_a_changed_file_replaces_its_output(tmp_path: Path, batch: int) -> None:
    """A file with new content is processed again, with the others of its item, and its old output goes (pipeline 4)."""
    make_tree(tmp_path, LANES)
    pipeline(tmp_path, batch=batch).run()
    (tmp_path / "small" / "0001.txt").write_text("something longer")
    again = pipeline(tmp_path, batch=batch)
    again.run()
    assert len(again.dispatcher.submitted) == 1
    assert rows_in(again.output) == sorted(["something longer", *(row for row in contents(LANES) if row != "small-1")])


def test_lanes_hold_no_more_than_their_capacity(tmp_path: Path) -> None:
    """The runner never fills a lane beyond its capacity, where submitting would block, and fills it up to it."""
    make_tree(tmp_path, LANES)
    most = Counter[str]()

    def look(run: Pipeline) -> None:
        for lane in run.dispatcher.lanes.values():
            most[lane.key] = max(most[lane.key], len(lane.queued))

    pipeline(tmp_path, capacity=5, on_idle=look).run()
    assert most == {"big": 5, "small": 3}


def test_a_small_lane_is_fed_while_a_big_one_is_full(tmp_path: Path) -> None:
    """From the start the lanes are fed in turns, and the big first lane does not wait for the files of others."""
    make_tree(tmp_path, LANES)
    run = pipeline(tmp_path, capacity=4)
    run.run()
    assert [item.lane for item in run.dispatcher.submitted[:7]] == ["big", "small"] * 3 + ["big"]


def test_a_failing_item_is_tried_again_later(tmp_path: Path) -> None:
    """Failures are followed by pauses that double, and a success in the end counts as done (pipeline 5)."""
    make_tree(tmp_path, {"a": 1})
    times: list[float] = []

    def work(spark: Any, item: Item, staged: Path) -> bool:
        times.append(run.runner.clock())
        if len(times) < 3:
            raise OSError("executor lost")
        return write_names(spark, item, staged)

    run = pipeline(tmp_path, {"a": 1}, work=work)
    assert run.run().total.done == 1
    assert [attempt.retry_in_s for attempt in run.reporter.attempts] == [1.0, 2.0, None]
    assert times[1] - times[0] >= 1.0
    assert times[2] - times[1] >= 2.0
    assert rows_in(run.output) == ["a-0"]


def test_a_lane_goes_on_while_an_item_of_it_waits_for_its_retry(tmp_path: Path) -> None:
    """The pause of one item delays no other item, not even in its lane."""
    make_tree(tmp_path, {"a": 30})
    order: list[str] = []

    def work(spark: Any, item: Item, staged: Path) -> bool:
        order.append(item.files[0].path)
        if item.files[0].path == "a/0000.txt" and item.attempt == 1:
            raise OSError("flaky")
        return write_names(spark, item, staged)

    run = pipeline(tmp_path, {"a": 30}, work=work)
    run.run()
    assert order.index("a/0001.txt") == 1
    assert order.count("a/0000.txt") == 2
    assert rows_in(run.output) == contents({"a": 30})


def test_an_item_that_keeps_failing_is_set_aside(tmp_path: Path) -> None:
    """After its last attempt an item is set aside with its error, without output, and everything else is done.

    (pipeline 5)
    """
    make_tree(tmp_path, LANES)

    def work(spark: Any, item: Item, staged: Path) -> bool:
        write_names(spark, item, staged)
        if item.files[0].path == "small/0001.txt":
            raise ValueError("bad row\n\tat java.lang.Thread")
        return True

    run = pipeline(tmp_path, work=work)
    snapshot = run.run()
    assert (snapshot.total.done, snapshot.total.failed) == (42, 1)
    assert [a.item.attempt for a in run.reporter.attempts if a.error] == [1, 2, 3]
    assert [a.error for a in run.reporter.attempts if a.state is ItemState.FAILED] == ["ValueError: bad row"]
    assert rows_in(run.output) == [row for row in contents(LANES) if row != "small-1"]
    assert list((run.output / "_multiqueue" / "staging").iterdir()) == []


def test_a_mistake_of_the_job_is_not_tried_again(tmp_path: Path) -> None:
    """What cannot pass is set aside at its first failure (pipeline 5)."""
    make_tree(tmp_path, {"a": 2})

    class AnalysisException(Exception):
        __module__ = "pyspark.errors.exceptions.captured"

    def work(spark: Any, item: Item, staged: Path) -> bool:
        raise AnalysisException("no such column") if item.files[0].path == "a/0000.txt" else JobError("wrong type")

    run = pipeline(tmp_path, {"a": 2}, work=work)
    assert run.run().total.failed == 2
    assert len(run.reporter.attempts) == 2


def test_a_file_that_is_gone_sets_its_item_aside(tmp_path: Path) -> None:
    """A file that was deleted between scan and job is an error that names it."""
    make_tree(tmp_path, {"a": 3})
    run = pipeline(tmp_path, {"a": 3}, on_idle=lambda run: (tmp_path / "a" / "0002.txt").unlink(missing_ok=True))
    assert (run.run().total.done, run.runner._snapshot().total.failed) == (2, 1)
    (error,) = [attempt.error for attempt in run.reporter.attempts if attempt.error]
    assert "0002.txt" in error
    assert "No such file" in error


def test_a_put_back_item_has_all_its_attempts_again(tmp_path: Path) -> None:
    """`retry` forgets the failures, and the next run does the item."""
    make_tree(tmp_path, {"a": 2})

    def fail(spark: Any, item: Item, staged: Path) -> bool:
        raise OSError("down")

    pipeline(tmp_path, {"a": 2}, work=fail).run()
    again = pipeline(tmp_path, {"a": 2})
    with again.ledger.transaction():
        assert again.ledger.put_back_failed() == 2
    again.runner._tally = type(again.runner._tally).of(["a"], again.ledger.counts())
    assert again.run().total.done == 2
    assert [item.attempt for item in again.dispatcher.submitted] == [4, 4]


def test_what_has_ended_never_becomes_less(tmp_path: Path) -> None:
    """Once the lanes are read, the items that are done or set aside never become less, also when items are tried again
    or halved, and at the end they are all there are."""
    make_tree(tmp_path, {"a": 20})

    def work(spark: Any, item: Item, staged: Path) -> bool:
        if any(seen.path.endswith("7.txt") for seen in item.files) or (item.attempt == 1 and item.seq % 2):
            raise OSError("no")
        return write_names(spark, item, staged)

    run = Pipeline(tmp_path, [lane_of(tmp_path, "a", batch=4)], work=work)
    last = run.run()
    ended = [shot.total.done + shot.total.failed for shot in run.reporter.snapshots if not shot.scanning]
    assert ended == sorted(ended)
    assert (last.total.waiting, last.total.running, ended[-1]) == (0, 0, last.total.total)
    assert last.total.failed == 2


def test_ctrl_c_tells_how_many_end_first(tmp_path: Path) -> None:
    """What is told at Ctrl-C counts the items that run; those that only wait in a lane are not among them."""
    make_tree(tmp_path, LANES)
    run = pipeline(tmp_path)

    def interrupt() -> bool:
        started, fn = next(lane for lane in run.dispatcher.lanes.values() if lane.queued).queued.pop(0)
        started.set_running_or_notify_cancel()
        run.mailbox.post(StopRequested())
        run.runner._settle(run.mailbox.take_all(0))
        started.set_result(fn(None))
        return True

    told: list[tuple[int, int]] = []
    run.reporter.stopping = lambda requests, in_flight: told.append((requests, in_flight))  # type: ignore[method-assign]
    run.dispatcher.run_next = interrupt  # type: ignore[method-assign]
    run.run()
    assert told == [(1, 1)]


def test_ctrl_c_lets_running_items_end(tmp_path: Path) -> None:
    """After one request nothing new begins, what was queued waits in the ledger, and the next run does the rest.

    (pipeline 8)
    """
    make_tree(tmp_path, LANES)

    def interrupt(run: Pipeline) -> None:
        if len(run.reporter.attempts) == 5:
            run.mailbox.post(StopRequested())

    run = pipeline(tmp_path, on_idle=interrupt)
    snapshot = run.run()
    assert run.runner.was_interrupted
    assert (snapshot.total.done, snapshot.total.waiting, snapshot.total.running) == (6, 37, 0)
    assert run.dispatcher.cancels == 0
    again = pipeline(tmp_path)
    assert again.recovered == (0, 0)
    again.run()
    assert rows_in(again.output) == contents(LANES)
    assert len(again.dispatcher.submitted) == 37


def test_ctrl_c_while_the_dispatcher_starts(tmp_path: Path) -> None:
    """What was asked for while Spark started holds before the first item is submitted. (pipeline 8)"""
    make_tree(tmp_path, LANES)
    run = pipeline(tmp_path)

    def start() -> HandDispatcher:
        run.mailbox.post(StopRequested())
        return run.dispatcher

    run.runner.feeding.dispatcher = start
    snapshot = run.run()
    assert run.runner.was_interrupted
    assert run.dispatcher.submitted == []
    assert (snapshot.total.done, snapshot.total.running) == (0, 0)


def test_ctrl_c_twice_cancels_what_runs(tmp_path: Path) -> None:
    """The second request is passed on to the dispatcher (pipeline 8)."""
    make_tree(tmp_path, LANES)

    def work(spark: Any, item: Item, staged: Path) -> bool:
        run.mailbox.post(StopRequested())
        run.mailbox.post(StopRequested())
        return write_names(spark, item, staged)

    run = pipeline(tmp_path, work=work)
    run.run()
    assert run.dispatcher.cancels == 1


def test_a_lost_session_hands_everything_back(tmp_path: Path) -> None:
    """When Spark is gone the run ends with one error, and no item is blamed for it (pipeline 3)."""
    make_tree(tmp_path, LANES)

    class SparkSessionStopped(Exception):
        __module__ = "multiqueue.spark._backend.errors"

    def work(spark: Any, item: Item, staged: Path) -> bool:
        raise SparkSessionStopped("stopped")

    run = pipeline(tmp_path, work=work)
    with pytest.raises(SessionLost, match="the Spark session ended during the run; run the same command to go on"):
        run.run()
    again = pipeline(tmp_path)
    again.run()
    assert rows_in(again.output) == contents(LANES)


def test_a_session_that_is_lost_before_a_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is gone when the next item is submitted ends the run as one that is gone when an item runs."""
    make_tree(tmp_path, LANES)
    submit, calls = HandLane.submit, itertools.count(1)

    class SparkSessionStopped(Exception):
        __module__ = "multiqueue.spark._backend.errors"

    def submit_or_not(lane: HandLane, fn: Any) -> Any:
        if next(calls) > 3:
            raise SparkSessionStopped("stopped")
        return submit(lane, fn)

    monkeypatch.setattr(HandLane, "submit", submit_or_not)
    run = pipeline(tmp_path)
    with pytest.raises(SessionLost, match="the Spark session ended during the run; run the same command to go on"):
        run.run()
    monkeypatch.undo()
    again = pipeline(tmp_path)
    again.run()
    assert rows_in(again.output) == contents(LANES)


def test_waiting_times_go_on_over_a_restart(tmp_path: Path) -> None:
    """The clock of a pipeline stands still between runs: a resumed run starts where the first one ended."""
    make_tree(tmp_path, LANES)

    def interrupt(run: Pipeline) -> None:
        if len(run.reporter.attempts) == 20:
            run.mailbox.post(StopRequested())

    first = pipeline(tmp_path, on_idle=interrupt)
    first.run()
    again = pipeline(tmp_path)
    again.time.advance(1000.0)
    assert again.ledger.seconds_at_work() == pytest.approx(2.1)
    again.run()
    assert again.runner.clock() == pytest.approx(4.3, abs=0.3)


def test_a_job_without_a_result_takes_the_old_output_away(tmp_path: Path) -> None:
    """An item whose job returns nothing has no output, also when an earlier version of its file had one."""
    make_tree(tmp_path, {"a": 2})
    pipeline(tmp_path, {"a": 2}).run()
    (tmp_path / "a" / "0000.txt").write_text("changed")
    again = pipeline(tmp_path, {"a": 2}, work=lambda spark, item, staged: False)
    assert again.run().total.done == 2
    assert rows_in(again.output) == ["a-1"]


@pytest.mark.parametrize("strike", ["remove", "replace", "move the directory"])
def test_a_state_that_is_removed_under_a_run(tmp_path: Path, strike: str) -> None:
    """Once its file is removed or replaced, nothing is recorded any more, and the error says so. (pipeline 8)"""
    make_tree(tmp_path, {"eu": 4})
    path = tmp_path / "out" / "_multiqueue" / "state.sqlite"
    worked: list[int] = []

    def work(spark: Any, item: Item, staged: Path) -> bool:
        worked.append(item.seq)
        if len(worked) == 2:
            copy = path.with_name("copy")
            copy.write_bytes(path.read_bytes())
            if strike == "remove":
                path.unlink()
            elif strike == "replace":
                copy.replace(path)
            else:
                path.parent.rename(tmp_path / "elsewhere")
        return write_names(spark, item, staged)

    run = Pipeline(tmp_path, [lane_of(tmp_path, "eu", batch=1)], work=work)
    with pytest.raises(StateDamaged, match="was removed or replaced under this run"):
        run.run()
