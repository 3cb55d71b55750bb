"""Lanes: their order, their bounds, their pauses."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import pytest
from executor_support import Busy, executor, in_thread

from multiqueue import LinkedBlockingMultiQueue
from multiqueue.errors import Full
from multiqueue.testing import PATIENCE, wait_until_blocked


def test_a_lane_is_made_once() -> None:
    """The same key with the same settings is the same lane."""
    with executor() as pool:
        lane = pool.lane("reports", 5, 10, max_in_flight=2, weight=3)
        assert pool.lane("reports", 5, 10, max_in_flight=2, weight=3) is lane
        assert pool.lanes == {"reports": lane}
        assert lane.key == "reports"


def test_a_lane_is_found_by_its_key() -> None:
    """Once made, a lane is what `lane(key)` returns; settings that a call names must be the lane's."""
    with executor() as pool:
        lane = pool.lane("reports", 5, 10, max_in_flight=2, weight=3)
        assert pool.lane("reports") is lane
        assert pool.lane("reports", capacity=10, weight=3) is lane
        with pytest.raises(ValueError, match="capacity is 10, not None;"):
            pool.lane("reports", 5, None)
        plain = pool.lane("plain")
        assert pool.lane("plain", 0, None, max_in_flight=None, weight=1) is plain


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"priority": 1}, "priority is 5, not 1"),
        ({"capacity": None}, "capacity is 10, not None"),
        ({"max_in_flight": 3}, "max_in_flight is 2, not 3"),
        ({"weight": 1}, "weight is 3, not 1"),
    ],
)
def test_a_lane_with_other_settings_is_refused(other: dict[str, Any], difference: str) -> None:
    """The same key with other settings raises and names the difference."""
    settings = {"priority": 5, "capacity": 10, "max_in_flight": 2, "weight": 3}
    with executor() as pool:
        pool.lane("reports", **settings)
        with pytest.raises(ValueError, match=f"lane 'reports' .*{difference};"):
            pool.lane("reports", **(settings | other))


@pytest.mark.parametrize("setting", ["capacity", "max_in_flight", "weight"])
def test_a_lane_with_a_wrong_setting_is_not_made(setting: str) -> None:
    """A setting below 1 raises and leaves no lane behind."""
    with executor() as pool:
        with pytest.raises(ValueError, match=setting):
            pool.lane("reports", **{setting: 0})
        assert not pool.lanes


def test_priorities_come_first_and_lanes_take_turns() -> None:
    """Waiting jobs start by priority, in turns between lanes of one priority, in order within a lane (executor 2)."""
    started: list[str] = []
    with executor() as pool, Busy(pool):
        for name in ("a1", "a2", "a3"):
            pool.lane("a").submit(started.append, name)
        for name in ("b1", "b2"):
            pool.lane("b").submit(started.append, name)
        pool.lane("urgent", priority=-1).submit(started.append, "u1")
    assert started == ["u1", "a1", "b1", "a2", "b2", "a3"]


def test_a_lane_of_weight_two_gets_two_turns() -> None:
    """A lane gives as many jobs per turn as its weight (executor 2)."""
    started: list[str] = []
    with executor() as pool, Busy(pool):
        for number in range(4):
            pool.lane("heavy", weight=2).submit(started.append, f"h{number}")
        for number in range(2):
            pool.lane("light").submit(started.append, f"l{number}")
    assert started == ["h0", "h1", "l0", "h2", "h3", "l1"]


def test_a_full_lane_holds_the_submitter_until_a_job_starts() -> None:
    """`submit` waits for room, and the start of a job of the lane makes it (executor 4)."""
    with executor() as pool, Busy(pool) as busy:
        lane = pool.lane("small", capacity=1)
        lane.submit(int)
        with in_thread(lambda: lane.submit(str)) as submitted:
            wait_until_blocked(submitted.thread)
            assert lane.qsize() == 1
            busy.release()
            assert submitted.result(PATIENCE).result(PATIENCE) == ""


@pytest.mark.parametrize(
    ("how", "waited"),
    [
        (lambda lane: lane.submit_nowait, ""),
        (lambda lane: lambda *a: lane.submit_within(0.01, *a), " after waiting 0.01 s"),
    ],
)
def test_a_full_lane_refuses_who_does_not_wait(how: Any, waited: str) -> None:
    """`Full` says which lane, how full and what to do, and holds the refused call; the lane is unchanged (executor 4).

    (executor 4)
    """
    with executor() as pool, Busy(pool):
        lane = pool.lane("small", capacity=2)
        lane.submit(int)
        lane.submit(int)
        with pytest.raises(
            Full, match=f"lane 'small' is full: 2 of 2 jobs wait{waited}; raise its capacity"
        ) as refused:
            how(lane)(max, 1, 2)
        assert vars(refused.value)["item"] == (max, (1, 2), {})
        assert lane.qsize() == 2


def test_a_job_keeps_its_keyword_arguments() -> None:
    """No submitting method takes a keyword argument away from the job."""

    def job(**kwargs: int) -> dict[str, int]:
        return kwargs

    names = {"fn": 1, "self": 2, "timeout": 3, "block": 4, "args": 5}
    with executor() as pool:
        lane = pool.lane("a")
        assert lane.submit(job, **names).result(PATIENCE) == names
        assert lane.submit_nowait(job, **names).result(PATIENCE) == names
        assert lane.submit_within(1.0, job, **names).result(PATIENCE) == names
        assert pool.submit(job, **names).result(PATIENCE) == names


def test_a_paused_lane_starts_nothing_and_accepts_jobs() -> None:
    """A paused lane takes jobs up to its capacity and starts them in order when it is resumed; others go on."""
    with executor() as pool:
        lane = pool.lane("paused", capacity=2)
        lane.pause()
        waiting: list[Future[Any]] = [lane.submit(int), lane.submit(str)]
        assert pool.submit(len, "on").result(PATIENCE) == 2
        assert lane.paused
        assert not any(future.done() for future in waiting)
        with pytest.raises(Full):
            lane.submit_nowait(int)
        lane.resume()
        assert [future.result(PATIENCE) for future in waiting] == [0, ""]
        assert not lane.paused


def test_a_lane_is_paused_while_a_reason_stands() -> None:
    """Two reasons to pause need two resumes, in any order; the same reason twice is one."""
    with executor() as pool:
        lane = pool.lane("paused")
        lane.pause("user")
        lane.pause("user")
        lane.pause("back-pressure")
        lane.resume("user")
        assert lane.paused
        lane.resume("back-pressure")
        assert lane.submit(int).result(PATIENCE) == 0


def test_clear_cancels_what_waits() -> None:
    """`clear` cancels the waiting jobs of its lane, not the running one, and says how many."""
    with executor() as pool:
        lane, other = pool.lane("cleared"), pool.lane("other")
        with Busy(lane) as busy:
            waiting = [lane.submit(pytest.fail, "ran") for _ in range(3)]
            bystander = other.submit(int)
            assert lane.clear() == 3
            assert lane.qsize() == 0
            assert lane.running == 1
            assert wait(waiting, PATIENCE).not_done == set()
        assert bystander.result(PATIENCE) == 0
        assert busy.future.result(PATIENCE) is None
        for future in waiting:
            with pytest.raises(CancelledError):
                future.result(0)


def test_clear_lets_a_blocked_submitter_in() -> None:
    """`clear` makes room in a full lane, also in a paused one whose jobs may not start."""
    with executor() as pool:
        lane = pool.lane("small", capacity=1)
        lane.pause()
        lane.submit(int)
        with in_thread(lambda: lane.submit(str)) as submitted:
            wait_until_blocked(submitted.thread)
            assert lane.clear() == 1
            future = submitted.result(PATIENCE)
        lane.resume()
        assert future.result(PATIENCE) == ""


def test_a_lane_runs_no_more_jobs_than_its_limit() -> None:
    """`max_in_flight` bounds the running jobs of a lane; the free workers serve others."""
    with executor(3) as pool:
        lane = pool.lane("limited", max_in_flight=1)
        with Busy(lane):
            second = lane.submit(int)
            assert pool.submit(len, "on").result(PATIENCE) == 2
            assert (lane.running, lane.qsize()) == (1, 1)
            assert not second.running()
        assert second.result(PATIENCE) == 0


def test_a_place_among_the_running_is_free_when_the_future_has_ended() -> None:
    """A callback of a future still counts as its job running: the next job of a lane with limit 1 has not begun.

    (executor 7)
    """
    order: list[str] = []
    with executor(2) as pool:
        lane = pool.lane("limited", max_in_flight=1)
        with Busy(lane) as busy:
            busy.future.add_done_callback(lambda _: order.append("callback"))
            lane.submit(order.append, "next")
    assert order == ["callback", "next"]


def test_a_lane_shut_down_takes_only_itself_along() -> None:
    """A lane's shutdown refuses its own submitters, runs what waits, and frees its key; other lanes go on.

    (executor 10)
    """
    with executor() as pool:
        with pool.lane("gone") as lane, Busy(lane) as busy:
            waiting = lane.submit(int)
            with in_thread(lane.shutdown) as ended:
                wait_until_blocked(ended.thread)
                with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
                    lane.submit(int)
                busy.release()
        assert waiting.result(0) == 0
        assert pool.submit(int).result(PATIENCE) == 0
        again = pool.lane("gone", capacity=3)
        assert again is not lane
        assert again.submit(int).result(PATIENCE) == 0
        lane.shutdown()
        assert again.submit(int).result(PATIENCE) == 0


def test_a_paused_lane_shut_down_runs_what_waits() -> None:
    """Shutdown ends a lane's pause, and a pause after it has no effect."""
    with executor() as pool:
        lane = pool.lane("paused")
        lane.pause("user")
        waiting = lane.submit(int)
        lane.shutdown()
        lane.pause("again")
        assert waiting.result(0) == 0
        assert not lane.paused


def test_a_lane_shut_down_with_cancel_futures_runs_no_more() -> None:
    """`shutdown(cancel_futures=True)` of a lane cancels what waits in it."""
    with executor() as pool:
        lane = pool.lane("gone")
        lane.pause()
        waiting = [lane.submit(pytest.fail, "ran") for _ in range(3)]
        with Busy(pool):
            lane.shutdown(cancel_futures=True)
        assert all(future.cancelled() for future in waiting)


def test_shutting_a_lane_down_wakes_its_blocked_submitter() -> None:
    """A submitter that waits for room in a lane which is shut down gets `RuntimeError`."""
    with executor() as pool:
        lane = pool.lane("small", capacity=1)
        lane.pause()
        lane.submit(int)
        with in_thread(lambda: lane.submit(int)) as submitted:
            wait_until_blocked(submitted.thread)
            lane.shutdown(wait=False)
            assert isinstance(submitted.exception(PATIENCE), RuntimeError)


def test_a_closed_lane_whose_last_job_is_cancelled_is_gone() -> None:
    """A lane that was shut down is forgotten when the last job that waits in it is cancelled."""
    with executor() as pool, Busy(pool):
        lane = pool.lane("gone")
        waiting = [lane.submit(pytest.fail, "ran"), lane.submit(pytest.fail, "ran")]
        lane.shutdown(wait=False)
        waiting[0].cancel()
        assert pool.lanes["gone"] is lane
        waiting[1].cancel()
        assert "gone" not in pool.lanes


def test_a_lane_that_is_shut_down_twice_at_once_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second shutdown in the middle of a lane's end changes nothing; both return."""
    plain = LinkedBlockingMultiQueue.remove_subqueue
    removals: list[Hashable] = []

    def remove(self: LinkedBlockingMultiQueue[Any], key: Hashable) -> Any:
        removals.append(key)
        if len(removals) == 1:
            lane.shutdown(wait=False)
        return plain(self, key)

    with executor() as pool:
        lane = pool.lane("gone")
        monkeypatch.setattr(LinkedBlockingMultiQueue, "remove_subqueue", remove)
        lane.shutdown()
        lane.shutdown()
    assert removals == ["gone"]


def test_many_lanes_that_come_and_go_leave_nothing_behind() -> None:
    """Lanes made, used and shut down in turn are forgotten, so that a lane per tenant or request is no leak."""
    with executor(2) as pool:
        for number in range(200):
            with pool.lane(("tenant", number)) as lane:
                lane.submit(int)
        assert not pool.lanes
        assert not pool._workers.queue.subqueues
        assert not pool._workers._closing


def test_the_default_lane_can_be_made_with_settings() -> None:
    """`submit` goes to the lane "default", with the settings it was made with."""
    with executor() as pool:
        lane = pool.lane("default", capacity=1)
        with Busy(pool):
            pool.submit(int)
            with pytest.raises(Full, match="'default'"):
                lane.submit_nowait(int)


def test_submitters_from_many_threads_lose_nothing() -> None:
    """Jobs submitted by many threads to a small lane are each run once, in order per submitter."""
    seen: list[tuple[int, int]] = []
    with executor() as pool:
        lane = pool.lane("small", capacity=2)

        def submit_many(me: int) -> None:
            for number in range(200):
                lane.submit(seen.append, (me, number))

        threads = [threading.Thread(target=submit_many, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert len(seen) == 800
    for me in range(4):
        assert [number for owner, number in seen if owner == me] == list(range(200))
