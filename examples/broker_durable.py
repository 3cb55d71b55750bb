"""Keep messages across a restart: close a broker with a data directory and open it again."""

import tempfile

from multiqueue.broker import Broker, Message


def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        with Broker(data=data) as broker:
            broker.declare_queue("orders", durable=True)
            published = [
                broker.publish_nowait(Message(b"order %d" % number, routing_key="orders", persistent=True))
                for number in range(1000)
            ]
            published[-1].wait()  # they are stored in order: all of them are, now
            first = broker.get("orders")
            assert first is not None
            first.accept(wait=True)  # for good, also after a crash

        with Broker(data=data) as broker:
            orders = broker.queue("orders")
            print(len(orders), orders.browse(limit=1)[0].body)  # 999 b'order 1'


if __name__ == "__main__":
    main()
