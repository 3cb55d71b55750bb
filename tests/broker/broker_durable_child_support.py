"""A process that works with a durable broker until it is killed, and tells on a pipe what it was promised.

    python broker_durable_child_support.py DIRECTORY FIRST_NUMBER work|drain standard|fair|delayed

Publishers send numbers to `first` and `second` at once; what arrives on `first` is moved to `moved` in transactions;
`second` and `moved` are consumed. `drain` publishes nothing and ends cleanly when all queues are empty. Queues of kind
`fair` have `TENANTS` tenants: a number belongs to the tenant `number % TENANTS`. Messages that are `delayed` wait up to
a second on each queue, most of them in the store alone. Lines:

    P number              a publish returned, or was confirmed
    D queue number flag   a message is in hand; flag 1 means redelivered
    E queue number        it came before its time
    A queue number        a waited accept returned

Each line is one write, made before the next step, so a killed process has said everything that it knew.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time

from multiqueue.broker import Broker, Message, Received
from multiqueue.errors import Empty

QUEUES = ("first", "second", "moved")
MEMORY = {"delayed": 2**20}  # bytes; some 40 messages of these are near their time
TENANTS = 6  # each has one publisher: that of the odd numbers, or of the even ones


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def declare(broker: Broker, kind: str) -> None:
    broker.declare_exchange("all", "fanout", durable=True)
    arguments = {} if kind == "delayed" else {"x-queue-kind": kind}
    for queue in QUEUES:
        broker.declare_queue(queue, durable=True, arguments=arguments)
    for queue in ("first", "second"):
        broker.bind_queue(queue, "all")


def number_of(received: Received) -> int:
    body = received.body
    assert isinstance(body, bytes)
    return int(body[:12])


def message(number: int, kind: str, **address: str) -> Message:
    delay = (1 + number * 7919 % 1000) / 1000 if kind == "delayed" else None
    headers = {"tenant": str(number % TENANTS), "due": time.time() + (delay or 0.0)}
    body = b"%012d" % number + bytes(number % 700)
    return Message(body, persistent=True, headers=headers, delay=delay, **address)  # type: ignore[arg-type]


def publish(broker: Broker, numbers: itertools.count[int], kind: str) -> None:
    """Waits for every commit."""
    for number in numbers:
        broker.publish(message(number, kind, exchange="all"))
        say("P", number)


def pipeline(broker: Broker, numbers: itertools.count[int], kind: str) -> None:
    """Waits for none; confirms come from the store's thread."""
    for number in numbers:
        published = broker.publish_nowait(message(number, kind, exchange="all"))
        if number % 100 < 2:  # at most so many are on their way unheard of
            published.wait()
        published.add_done_callback(lambda error, number=number: say("P", number) if error is None else None)  # type: ignore[misc]


def work(broker: Broker, queue: str, is_draining: bool, kind: str) -> None:
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
            if time.time() < received.message.headers["due"] - 0.001:  # type: ignore[operator]
                say("E", queue, number)
            if queue == "first":
                with broker.transaction() as transaction:
                    transaction.accept(received)
                    transaction.publish(message(number, kind, routing_key="moved"))
            elif number % 3 == 0:
                received.accept()
            else:
                received.accept(wait=True)
                say("A", queue, number)


def main(directory: str, first: int, is_draining: bool, kind: str) -> None:
    with Broker(data=directory, durability="relaxed", memory_limit=MEMORY.get(kind, 2**28)) as broker:
        declare(broker, kind)
        threads = [threading.Thread(target=work, args=(broker, queue, is_draining, kind)) for queue in QUEUES]
        if not is_draining:
            odd, even = itertools.count(first, 2), itertools.count(first + 1, 2)
            threads.append(threading.Thread(target=publish, args=(broker, odd, kind)))
            threads.append(threading.Thread(target=pipeline, args=(broker, even, kind)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "drain", sys.argv[4])
