"""Use a queue with ten priorities: you receive the highest first, even if it was published last."""

from multiqueue.broker import Broker, Message


def main() -> None:
    with Broker() as broker:
        broker.declare_queue("work", arguments={"x-max-priority": 9})
        for priority, body in [(1, "mail"), (1, "report"), (9, "alarm"), (5, "order")]:
            broker.publish(Message(body, routing_key="work", priority=priority))
        with broker.subscribe("work", auto_accept=True) as subscription:
            print([subscription.get().body for _ in range(4)])  # ['alarm', 'order', 'mail', 'report']


if __name__ == "__main__":
    main()
