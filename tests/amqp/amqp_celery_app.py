"""A Celery application for tests; its broker's URL, and where it writes, come from the environment."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery  # type: ignore[import-untyped]
from kombu import Queue  # type: ignore[attr-defined]

app = Celery("house", broker=os.environ.get("HOUSE_BROKER", "memory://"), backend="rpc://")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_queue_max_priority=9,
    task_default_priority=0,
    broker_connection_retry_on_startup=True,
    task_queues=[
        Queue("house", routing_key="house", queue_arguments={"x-max-priority": 9}),  # type: ignore[no-untyped-call]
    ],
    task_default_queue="house",
    result_expires=60,
)


def _write(line: str) -> None:
    with open(os.environ["HOUSE_LOG"], "a") as log:
        log.write(line + "\n")


@app.task  # type: ignore[untyped-decorator]
def note(word: str) -> str:
    """Write the word down."""
    _write(word)
    return word.upper()


@app.task(bind=True)  # type: ignore[untyped-decorator]
def last_breath(self: Any, gate: str) -> str:
    """Write down that it began; the first time, wait to be killed."""
    _write(f"begun redelivered={self.request.delivery_info['redelivered']}")
    while not self.request.delivery_info["redelivered"] and os.path.exists(gate):
        time.sleep(0.05)
    return "done"
