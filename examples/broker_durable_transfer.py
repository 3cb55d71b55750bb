"""Take a message and publish its result in one commit: after a crash you find one of them, never both."""

import tempfile

from multiqueue.broker import Broker, Message


def main() -> None:
    with tempfile.TemporaryDirectory() as data, Broker(data=data) as broker:
        for queue in ("jobs", "results"):
            broker.declare_queue(queue, durable=True)
        for number in range(3):
            broker.publish(Message(b"%d" % number, routing_key="jobs", persistent=True))

        while (job := broker.get("jobs")) is not None:
            with broker.transaction() as transaction:
                assert isinstance(job.body, bytes)
                square = int(job.body) ** 2
                transaction.publish(Message(b"%d" % square, routing_key="results", persistent=True))
                transaction.accept(job)

        print([message.body for message in broker.queue("results").browse()])  # [b'0', b'1', b'4']


if __name__ == "__main__":
    main()
