"""Run a slow consumer beside a fast one: with a prefetch of one it holds one message, the fast one gets the others."""

import threading

from multiqueue.broker import Broker, Message, Received


def main() -> None:
    busy, finished, let_go = threading.Event(), threading.Event(), threading.Event()
    by_slow: list[object] = []
    by_fast: list[object] = []

    def slow(received: Received) -> None:
        busy.set()
        let_go.wait()  # as long as the fast one takes for all the others
        by_slow.append(received.body)
        received.accept()

    def fast(received: Received) -> None:
        by_fast.append(received.body)
        received.accept()
        if len(by_fast) == 9:
            finished.set()

    with Broker() as broker:
        broker.declare_queue("work")
        slow_one = broker.consume("work", slow, prefetch=1)
        for number in range(10):
            broker.publish(Message(number, routing_key="work"))
        busy.wait()
        broker.consume("work", fast, prefetch=1)
        finished.wait()
        let_go.set()
        slow_one.close()
        print(len(by_slow), len(by_fast))  # 1 9


if __name__ == "__main__":
    main()
