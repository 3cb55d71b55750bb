"""A process that works with a durable broker until it is killed, and tells on a pipe what it was promised.

    python broker_durable_child_support.py DIRECTORY FIRST_NUMBER work|drain standard|fair

Publishers send numbers to `first` and `second` at once; what arrives on `first` is moved to `moved` in transactions;
`second` and `moved` are consumed. `drain` publishes nothing and ends cleanly when all queues are empty. Queues of kind
`fair` have `TENANTS` tenants: a number belongs to the tenant `number % TENANTS`. Lines:

    P number              a publish returned, or was confirmed
    D queue number flag   a message is in hand; flag 1 means redelivered
    A queue number        a waited accept returned

Each line is one write, made before the next step, so a killed process has said everything that it knew.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading

from multiqueue.broker import Broker, Message, Received
from multiqueue.errors import Empty

QUEUES = ("first", "second", "moved")
TENANTS = 6  # each has one publisher: that of the odd numbers, or of the even ones


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def declare(broker: Broker, kind: str) -> None:
    broker.declare_exchange("all", "fanout", durable=True)
    for queue in QUEUES:
        broker.declare_queue(queue, durable=True, arguments={"x-queue-kind": kind})
    for queue in ("first", "second"):
        broker.bind_queue(queue, "all")


def number_of(received: Received) -> int:
    body = received.body
    assert isinstance(body, bytes)
    return int(body[:12])


def message(number: int, **address: str) -> Message:
    headers = {"tenant": str(number % TENANTS)}
    return Message(b"%012d" % number + bytes(number % 700), persistent=True, headers=headers, **address)  # type: ignore[arg-type]


def publish(broker: Broker, numbers: itertools.count[int]) -> None:
    """Waits for every commit."""
    for number in numbers:
        broker.publish(message(number, exchange="all"))
        say("P", number)


def pipeline(broker: Broker, numbers: itertools.count[int]) -> None:
    """Waits for none; confirms come from the store's thread."""
    for number in numbers:
        published = broker.publish_nowait(message(number, exchange="all"))
        if number % 100 < 2:  # at most so many are on their way unheard of
            published.wait()
        published.add_done_callback(lambda error, number=number: say("P", number) if error is None else None)  # type: ignore[misc]


def work(broker: Broker, queue: str, is_draining: bool) -> None:
    with broker.subscribe(queue, prefetch=20) as subscription:
        while True:
            try:
                received = subscription.get(timeout=0.5 if is_draining else None)
            except Empty:
                if all(len(broker.queue(each)) == 0 for each in QUEUES):
                    return
                continue
            number = number_of(received)
            say("D", queue, number, int(received.redelivered))
            if queue == "first":
                with broker.transaction() as transaction:
                    transaction.accept(received)
                    transaction.publish(message(number, routing_key="moved"))
            elif number % 3 == 0:
                received.accept()
            else:
                received.accept(wait=True)
                say("A", queue, number)


def main(directory: str, first: int, is_draining: bool, kind: str) -> None:
    with Broker(data=directory, durability="relaxed") as broker:
        declare(broker, kind)
        threads = [threading.Thread(target=work, args=(broker, queue, is_draining)) for queue in QUEUES]
        if not is_draining:
            odd, even = itertools.count(first, 2), itertools.count(first + 1, 2)
            threads.append(threading.Thread(target=publish, args=(broker, odd)))
            threads.append(threading.Thread(target=pipeline, args=(broker, even)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "drain", sys.argv[4])
