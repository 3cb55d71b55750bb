"""The lock of a broker queue: a thread that waits for it holds no other thread up."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest
from broker_parts_support import polled

from multiqueue.broker import BrokerQueue, Message

pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="without a GIL the lock is a plain one"
)

NEVER = 1000.0  # seconds after which a thread has to give up the interpreter though it does not wait


@pytest.fixture
def keeps_interpreter() -> Iterator[None]:
    """A thread has the interpreter until it waits for something."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(NEVER)
    yield
    sys.setswitchinterval(before)


def _busy() -> None:
    """Have the interpreter for as long as the kernel needs to wake a thread, many times over."""
    until = time.perf_counter() + 0.01
    while time.perf_counter() < until:
        pass


@pytest.mark.usefixtures("keeps_interpreter")
def test_a_running_thread_is_not_overtaken_by_one_that_waits() -> None:
    """A thread that waits for a queue's lock does not get it before it has the interpreter: no convoy begins."""
    queue, begun = BrokerQueue("q"), threading.Event()

    def put() -> None:
        begun.set()
        queue.put(Message("of the one that waited"))

    other = threading.Thread(target=put)
    with queue.life.lock:
        other.start()
        begun.wait()  # which gives up the interpreter until the other thread waits for the lock
    _busy()
    queue.put(Message("of the one that ran"))
    other.join()
    assert [message.body for message in queue.browse()] == ["of the one that ran", "of the one that waited"]


def test_one_thread_has_it_at_a_time() -> None:
    """However often threads change, one at a time is between the two ends of a hold."""
    lock, count = polled(threading.Lock()), 0

    def work() -> None:
        nonlocal count
        for _ in range(500):
            with lock:
                seen = count
                time.sleep(0)
                count = seen + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 2000


def test_an_exception_ends_the_hold() -> None:
    """A hold that ends with an exception lets the next thread have the lock, and the exception goes on."""
    lock = polled(threading.Lock())
    with pytest.raises(ZeroDivisionError), lock:
        1 / 0  # noqa: B018
    with lock:
        pass
