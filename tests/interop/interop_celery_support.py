"""A Celery application for tests, and workers of it in processes of their own.

A worker imports this module and finds its broker in the environment; a test makes the same application for itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from multiqueue import LinkedBlockingMultiQueue, Queue
from multiqueue.testing import PATIENCE

celery: Any = import_module("celery")
kombu: Any = import_module("kombu")

HIGHEST_PRIORITY = 9


def make_app(broker: str, results: str, queue: str) -> Any:
    """The application: its tasks are named as the functions below."""
    app = celery.Celery("shop", broker=broker, backend=results, set_as_current=False)
    app.conf.update(
        task_queues=[
            kombu.Queue(queue, routing_key=queue, queue_arguments={"x-max-priority": HIGHEST_PRIORITY}),
        ],
        task_default_queue=queue,
        task_default_exchange="",
        task_default_routing_key=queue,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_send_task_events=True,
        task_send_sent_event=True,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True},
        result_chord_retry_interval=0.2,
        result_persistent=False,
    )
    for bound, function in TASKS:
        app.task(function, name=function.__name__, bind=bound, max_retries=5)
    return app


def close_app(app: Any) -> None:
    """Close what `app.close` leaves open: the pools of connections, and the consumer of results by rpc://."""
    if app.conf.result_backend == "rpc://":
        app.backend.result_consumer.stop()
    import_module("kombu.pools").reset()
    app.close()


def price(item: str) -> int:
    return len(item)


def total(prices: list[int]) -> int:
    return sum(prices)


def both(one: int, other: int) -> int:
    return one + other


def fail() -> None:
    raise KeyError("no such thing")


def pay(task: Any, amount: int) -> str:
    """Succeeds at the third attempt."""
    if task.request.retries < 2:
        raise task.retry(countdown=0)
    return f"{amount} paid, attempt {task.request.retries + 1}"


def is_late(task: Any) -> bool:
    return task.request.eta is not None


def note(log: str, word: str) -> str:
    """Write the word down in the file."""
    with open(log, "a") as file:
        file.write(word + "\n")
    return word


def last_breath(task: Any, log: str) -> str:
    """The first time, say so in the file and wait to be killed."""
    if task.request.delivery_info["redelivered"]:
        return "done by the next one"
    note(log, "begun")
    time.sleep(3600)
    return "never"


def hand_over(count: int) -> list[object]:
    """Hand numbers from thread to thread, which are greenlets in a worker that is patched for them."""
    lanes: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
    lane = lanes.add_subqueue("lane", capacity=1)
    queue: Queue[int] = Queue(1)
    threads = [
        threading.Thread(target=lambda: [lane.put(number) for number in range(count)]),
        threading.Thread(target=lambda: [queue.put(lanes.get()) for _ in range(count)]),
    ]
    for thread in threads:
        thread.start()
    return [type(threading.Lock()).__module__, *(queue.get() for _ in range(count))]


TASKS: list[tuple[bool, Callable[..., Any]]] = [
    (False, price),
    (False, total),
    (False, both),
    (False, fail),
    (True, pay),
    (True, is_late),
    (False, note),
    (True, last_breath),
    (False, hand_over),
]


@contextmanager
def worker(app: Any, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the application's queue, ready, with gossip, mingle and events as they are by default."""
    queue = app.conf.task_default_queue
    here = Path(__file__).parent
    environment = os.environ | {
        "INTEROP_BROKER": app.conf.broker_url,
        "INTEROP_RESULTS": app.conf.result_backend,
        "INTEROP_QUEUE": queue,
        "PYTHONPATH": os.pathsep.join([str(here), *(each for each in sys.path if each)]),
    }
    command = [sys.executable, "-m", "celery", "-A", Path(__file__).stem, "worker", "-n", name, "-Q", queue, "-E"]
    process = subprocess.Popen(
        [*command, "--loglevel", "ERROR", *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until_ready(app, name, process)
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                kill(process)


def wait_until_ready(app: Any, name: str, process: subprocess.Popen[bytes]) -> None:
    """The worker answers a ping, which goes by a fanout exchange and comes back to a queue of this process."""
    deadline = time.monotonic() + PATIENCE
    while not app.control.broadcast("ping", destination=[name], reply=True, limit=1, timeout=1.0):
        assert process.poll() is None, f"the worker {name} ended with {process.returncode}"
        assert time.monotonic() < deadline, f"the worker {name} does not answer"


def kill(process: subprocess.Popen[bytes]) -> None:
    """The worker and its children, at once."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(log: Path, line: str) -> None:
    """Until a task has written this."""
    deadline = time.monotonic() + PATIENCE
    while not log.exists() or line not in log.read_text().splitlines():
        assert time.monotonic() < deadline, f"{line!r} was not written within {PATIENCE:g} s"
        time.sleep(0.02)


if "INTEROP_BROKER" in os.environ:
    app = make_app(os.environ["INTEROP_BROKER"], os.environ["INTEROP_RESULTS"], os.environ["INTEROP_QUEUE"])
