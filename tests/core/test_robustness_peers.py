"""What breaks other queues in a living process: signals, finalizers, asynchronous exceptions, fork."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest

from multiqueue import LinkedBlockingMultiQueue, Queue
from multiqueue.testing import PATIENCE, Threads, switch_interval, wait_until_blocked

# Seconds between two signals of the interval timer: as often as a put and a take take a few microseconds.
OFTEN = 0.0002

# Signals, finalizers or exceptions that strike in one test: enough to hit every few instructions of a put.
STRIKES = 300

# Seconds after which a forked child is killed.


@contextmanager
def alarms(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Inside the block `handler` is called all the time, as a signal handler of the main thread."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, OFTEN, OFTEN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_may_put() -> None:
    """A handler that puts into the queue it interrupts loses nothing and never deadlocks."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("lane")
    signals = 0

    def on_alarm(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        lane.put("signal")
        signals += 1

    put = 0
    taken = {"main": 0, "signal": 0}
    with alarms(on_alarm):
        while signals < STRIKES:
            lane.put("main")
            put += 1
            taken[multi_queue.get()] += 1
    while (item := multi_queue.poll()) is not None:
        taken[item] += 1
    assert taken == {"main": put, "signal": signals}
    multi_queue.check_invariants()


def test_a_signal_handler_may_raise() -> None:
    """A handler that raises out of puts and takes leaves a queue that works, with every element in its place."""
    queue: Queue[int] = Queue()
    raised = number = 0
    taken: list[int] = []

    class Alarm(Exception):
        pass

    def on_alarm(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_globals["__name__"].startswith("multiqueue.core"):
            raise Alarm  # anywhere else it would strike the test itself

    with alarms(on_alarm):
        while raised < STRIKES:
            number += 1  # counted before the put: an interrupted one may have put its element
            try:
                queue.put(number)
                taken.append(queue.get())
            except Alarm:
                raised += 1
    queue.check_invariants()
    assert taken == sorted(set(taken)), "each element at most once, and in order"
    queue.put(number + 1)
    rest = queue.get_many(STRIKES + 2)
    assert [*taken, *rest] == sorted(set(taken + rest))
    assert number + 1 - len(taken) - len(rest) <= raised, "each interruption prevented one element at most"


def test_a_blocked_take_ends_with_ctrl_c() -> None:
    """Ctrl-C ends a `get` that waits for ever, and an element that comes afterwards is not lost."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("lane")

    def interrupt() -> None:
        wait_until_blocked(lambda: multi_queue.statistics().waiting_takers == 1)
        wait_until_blocked(threading.main_thread())  # a signal just before a lock's wait is seen when that ends
        os.kill(os.getpid(), signal.SIGINT)

    with Threads() as threads:
        threads.start(interrupt)
        with pytest.raises(KeyboardInterrupt):
            multi_queue.get()
    assert multi_queue.statistics().waiting_takers == 0
    lane.put("x")
    assert multi_queue.get() == "x"
    multi_queue.check_invariants()


def test_a_finalizer_may_put() -> None:
    """`__del__` that runs while the garbage collector interrupts a put or a take may put as well."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("lane")
    finalized = 0

    class Cyclic:
        def __init__(self) -> None:
            self.myself = self

        def __del__(self) -> None:
            nonlocal finalized
            lane.put("finalizer")
            finalized += 1

    before = gc.get_threshold()
    gc.set_threshold(3)
    try:
        for _ in range(STRIKES):
            Cyclic()
            lane.put("main")
            multi_queue.get()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert finalized == STRIKES
    assert multi_queue.qsize() == finalized
    multi_queue.check_invariants()


def test_an_element_that_puts_when_it_is_dropped_may_be_discarded() -> None:
    """`clear` drops elements without holding a lock: their `__del__` may use the queue, from any thread."""
    multi_queue: LinkedBlockingMultiQueue[object] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("lane", capacity=1)  # a bounded one, whose puts take a lock

    class Last:
        def __del__(self) -> None:
            with Threads(PATIENCE) as threads:  # would wait for ever if this thread held a lock
                threads.start(lane.put, "from another thread").result(PATIENCE)

    lane.put(Last())
    lane.clear()
    assert list(lane) == ["from another thread"]
    multi_queue.check_invariants()


class Stop(Exception):
    """Thrown into a thread from outside."""


def _is_longer(hits: list[Stop], number: int) -> bool:
    return len(hits) > number


def throw_into(thread: threading.Thread) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stop))


def test_asynchronous_exceptions_in_workers_lose_no_wake_up() -> None:
    """Exceptions thrown into putters and takers from outside leave a queue that serves all the others."""
    multi_queue: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("lane", capacity=4)
    stopping = threading.Event()

    def work(step: Callable[[], object], hits: list[Stop]) -> None:
        latest = None
        while True:
            try:
                if latest is not None:
                    hits.append(latest)  # in here, where the next one, which comes after this, may strike
                    latest = None
                while True:  # not `while not ...`: its jump back is outside of this `try`, from CPython 3.12 on
                    if stopping.is_set():
                        return
                    step()
            except Stop as hit:
                latest = hit

    hits: tuple[list[Stop], list[Stop]] = ([], [])
    with switch_interval(), Threads() as threads:
        victims = (
            threads.start(work, lambda: lane.offer(1, timeout=0.01), hits[0]),
            threads.start(work, lambda: multi_queue.poll(timeout=0.01), hits[1]),
        )
        for number in range(STRIKES // 2):
            for victim, hit in zip(victims, hits, strict=True):
                throw_into(victim.thread)
                wait_until_blocked(partial(_is_longer, hit, number))
                time.sleep(0.0002)  # the victim goes on to somewhere else
        stopping.set()
    multi_queue.check_invariants()
    lane.clear()
    lane.put(7)
    assert multi_queue.get() == 7
    multi_queue.check_invariants()


@pytest.mark.slow(selected=True)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_child_can_use_the_queue_after_fork() -> None:
    """Forked while other threads are in the middle of puts and takes, a child puts and takes without hanging (core 8).

    (core 8)
    """
    multi_queue: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("lane", capacity=8)
    stopping = threading.Event()

    def churn(step: Callable[[], object]) -> None:
        while not stopping.is_set():
            step()

    with switch_interval(), Threads() as threads:
        for step in (lambda: lane.offer(1, timeout=0.01), lambda: multi_queue.poll(timeout=0.01)):
            threads.start(churn, step)
            threads.start(churn, step)
        try:
            statuses = [_fork_and_use(multi_queue) for _ in range(10)]
        finally:
            stopping.set()
    assert statuses == [0] * 10


def _fork_and_use(multi_queue: LinkedBlockingMultiQueue[int]) -> int:
    """The exit status of a child that uses the queue: 0, or what went wrong."""
    with warnings.catch_warnings():
        # 3.12 and later warn that forking with threads may deadlock; that it does not is the point here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(int(PATIENCE))  # kills the child if it hangs
            lane = multi_queue.get_subqueue("lane")
            lane.clear()
            for number in range(8):
                lane.put(number)
            taken = [multi_queue.get() for _ in range(8)]
            multi_queue.check_invariants()
            status = 0 if taken == list(range(8)) else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_peer_fails_where_we_do_not() -> None:
    """What these tests strike at is real: the same interruption leaves a `queue.Queue` locked for ever."""
    import queue

    from multiqueue.testing import interruptions

    locked = 0
    for point in interruptions("queue", "threading"):
        peer: queue.Queue[str] = queue.Queue()
        with point.raising(KeyboardInterrupt):
            peer.put("x")
        locked += not peer.mutex.acquire(blocking=False)
    assert locked > 0, f"CPython {sys.version_info[:2]} has mended queue.Queue; say so in the documentation"
