"""Run a worker that acknowledges finished jobs, beside a publisher that waits for confirms.

It uses a broker in this process, or the one at BROKER_URL=amqp://...
"""

from __future__ import annotations

import contextlib
import os
import threading

from multiqueue.broker import Broker
from multiqueue.client import Message, connect

JOBS = 20


def main() -> None:
    done = threading.Event()
    results: list[int] = []

    def work(message: Message) -> None:
        results.append(int(message.body) ** 2)
        message.ack()
        if len(results) == JOBS:
            done.set()

    with contextlib.ExitStack() as stack:
        target = os.environ.get("BROKER_URL") or stack.enter_context(Broker())
        connection = stack.enter_context(connect(target))
        worker, publisher = connection.channel(), connection.channel()
        queue = publisher.queue_declare(exclusive=True).queue
        worker.basic_qos(5)
        worker.basic_consume(queue, work)
        confirms = [publisher.publish_confirmed(b"%d" % number, routing_key=queue) for number in range(JOBS)]
        for confirm in confirms:
            confirm.result(timeout=10)
        done.wait(10)
    print(results[:5], sum(results))  # [0, 1, 4, 9, 16] 2470


main()
