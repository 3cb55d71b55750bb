"""Submits, cancels and `map` that an exception interrupts: what is counted, what is run, what is left."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from core_parts_support import Workers, _results, _sync
from executor_support import Busy, executor

from multiqueue import Lane, MultiQueueExecutor
from multiqueue.testing import PATIENCE, FakeClock, interruptions, wait_until_blocked


def check_at_rest(pool: MultiQueueExecutor) -> None:
    """Nothing waits or runs, and the workers' counts say so."""
    workers = pool._workers
    wait_until_blocked(lambda: workers._load == 0 and not any(lane.running for lane in pool.lanes.values()))
    with workers._lock:
        for line in workers._lines.values():
            line.check_invariants_locked()
        assert workers._serving <= workers.max_workers
        assert workers._serving == len(workers._alive())
    workers.queue.check_invariants()


def test_an_interrupted_submit_leaves_no_count_behind() -> None:
    """Interrupted at any point, `submit` has submitted the job or has not; no job, thread or ticket stays counted.

    (executor 11)
    """
    for point in interruptions("multiqueue.core"):
        ran: list[str] = []
        with executor() as pool:
            with point.raising(KeyboardInterrupt):
                pool.submit(ran.append, "interrupted")
            pool.submit(ran.append, "next").result(PATIENCE)
            check_at_rest(pool)
        assert ran in (["interrupted", "next"], ["next"]), point


def test_an_interrupted_submit_to_a_busy_executor_leaves_no_count_behind() -> None:
    """As above, where the job has to wait: it waits or it does not, and the lane's places are right."""
    for point in interruptions("multiqueue.core"):
        ran: list[str] = []
        with executor() as pool, Busy(pool) as busy:
            lane = pool.lane("small", capacity=2)
            with point.raising(KeyboardInterrupt):
                lane.submit(ran.append, "interrupted")
            waiting = lane.qsize()
            assert waiting in (0, 1), point
            for number in range(2 - waiting):
                lane.submit_nowait(ran.append, f"{number}")
            busy.release()
            check_at_rest(pool)
        assert len(ran) == 2, point


def cancel_one(lane: Lane, futures: list[Future[None]]) -> None:
    futures[1].cancel()


def clear(lane: Lane, futures: list[Future[None]]) -> None:
    lane.clear()


@pytest.mark.parametrize("how", [cancel_one, clear])
def test_an_interrupted_cancel_strands_no_future(how: Callable[[Lane, list[Future[None]]], None]) -> None:
    """Interrupted at any point, a cancel has cancelled the job or has not, and each future comes to its end.

    (executor 11)
    """
    for point in interruptions("multiqueue.core"):
        ran: list[int] = []
        with executor() as pool, Busy(pool) as busy:
            lane = pool.lane("small", capacity=3)
            futures = [lane.submit(ran.append, number) for number in range(3)]
            with point.raising(KeyboardInterrupt):
                how(lane, futures)
            cancelled = [number for number, future in enumerate(futures) if future.cancelled()]
            assert lane.qsize() == 3 - len(cancelled), point
            busy.release()
            check_at_rest(pool)
        assert all(future.done() for future in futures), point
        assert sorted(ran + cancelled) == [0, 1, 2], point


@pytest.mark.parametrize("end", ["next", "close"])
def test_an_interrupted_map_cancels_what_has_not_started(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An iterator of `map` that is interrupted at any point leaves no call of it waiting, whatever ends it.

    (executor 11)
    """
    for point in interruptions("multiqueue.core._lane_map"):
        clock = FakeClock()
        monkeypatch.setattr(_sync, "monotonic", clock)
        with executor() as pool:
            lane = pool.lane("calls")
            results = lane.map(lambda lane: lane.pause(), [lane] * 3, buffersize=3, timeout=10.0)
            next(results)
            clock.advance(11.0)
            assert lane.qsize() == 2
            with point.raising(KeyboardInterrupt), suppress(TimeoutError):
                next(results) if end == "next" else results.close()
            # On 3.11 the tool takes the way into a generator that is closed for a start, which CPython does not.
            assert lane.qsize() == 0 or (end, point.number, sys.version_info < (3, 12)) == ("close", 1, True), point


def test_the_loop_of_map_lies_within_its_handler() -> None:
    """Each jump back of the generator behind `map` is inside its handler, on every CPython."""
    assert jumps_outside(_results) == []


def jumps_outside(function: Callable[..., Any]) -> list[int]:
    """Where the jumps back of a function are that no exception handler covers."""
    code = dis.Bytecode(function)
    covered = [range(entry.start, entry.end) for entry in code.exception_entries]  # type: ignore[attr-defined]
    jumps = [each.offset for each in code if "JUMP_BACKWARD" in each.opname and "NO_INTERRUPT" not in each.opname]
    return [offset for offset in jumps if not any(offset in each for each in covered)]


def test_a_thread_whose_hiring_was_interrupted_serves_or_goes() -> None:
    """An interrupt while a worker starts leaves as many serving as are counted, never more than `max_workers`."""
    started = threading.Event()
    start = threading.Thread.start

    def start_and_fail(thread: threading.Thread) -> None:
        start(thread)
        started.set()
        raise KeyboardInterrupt

    with executor(2) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", start_and_fail)
            with pytest.raises(KeyboardInterrupt):
                pool.submit(int)
        assert started.is_set()
        assert [pool.submit(int).result(PATIENCE) for _ in range(3)] == [0, 0, 0]
        check_at_rest(pool)


@contextmanager
def cancelled_when_found(future: Any) -> Iterator[None]:
    """This job is cancelled when the first worker looks for one."""
    first = Workers._first
    cancelled: list[bool] = []

    def cancel_first(workers: Workers, subqueue: Any) -> Any:
        if not cancelled:
            cancelled.append(future.cancel())
        return first(workers, subqueue)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workers, "_first", cancel_first)
        yield
    assert cancelled == [True]


def test_a_job_cancelled_while_a_worker_has_its_ticket_is_not_run() -> None:
    """A worker whose job is cancelled before it begins runs the next one of the lane, or none; no place is lost."""
    ran: list[int] = []
    with executor() as pool, Busy(pool) as busy:
        lane = pool.lane("one", capacity=4, max_in_flight=1)
        futures = [lane.submit(ran.append, number) for number in range(4)]
        assert futures[3].cancel()  # from now on a ticket is worth any job
        with cancelled_when_found(futures[0]):
            busy.release()
            assert [futures[number].result(PATIENCE) for number in (1, 2)] == [None, None]
            lane.submit(ran.append, 4).result(PATIENCE)
        check_at_rest(pool)
    assert ran == [1, 2, 4]


def test_a_worker_that_finds_its_lane_without_a_job_takes_on() -> None:
    """The only job of a lane is cancelled when a worker has its ticket: nothing runs, and the lane goes on."""
    with executor() as pool, Busy(pool) as busy:
        lane = pool.lane("one", capacity=2, max_in_flight=1)
        futures = [lane.submit(pytest.fail, "ran") for _ in range(2)]
        assert futures[1].cancel()
        with cancelled_when_found(futures[0]):
            busy.release()
            assert lane.submit(int).result(PATIENCE) == 0
        check_at_rest(pool)


def cancel_all(futures: list[Future[Any]]) -> None:
    for future in reversed(futures):
        assert future.cancel()


def steps(call: Callable[[], object]) -> int:
    """How many calls, of Python and of C, `call` makes in this thread."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def test_a_cancel_costs_the_same_however_many_wait() -> None:
    """Cancelling twice as many waiting jobs, the last one first, takes twice as many steps."""
    counts = []
    for waiting in (100, 200, 400):
        with executor() as pool, Busy(pool):
            futures = [pool.submit(int) for _ in range(waiting)]
            counts.append(steps(partial(cancel_all, futures)))
            assert pool.lane("default").qsize() == 0
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])


def test_jobs_keep_their_order_when_others_are_cancelled() -> None:
    """What is cancelled in the middle is not counted any more, makes room, and leaves the others in their order."""
    ran: list[int] = []
    with executor() as pool, Busy(pool) as busy:
        lane = pool.lane("small", capacity=6)
        futures = [lane.submit(ran.append, number) for number in range(6)]
        assert [futures[number].cancel() for number in (2, 5, 3)] == [True] * 3
        assert lane.qsize() == 3
        for number in (6, 7, 8):
            lane.submit_nowait(ran.append, number)
        assert lane.qsize() == 6
        busy.release()
        check_at_rest(pool)
    assert ran == [0, 1, 4, 6, 7, 8]
