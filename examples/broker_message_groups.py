"""Group messages: two workers share a queue, and each customer's messages go to one of them at a time."""

from collections import defaultdict

from multiqueue.broker import Broker, Message, MessageGroups, QueueSettings


def main() -> None:
    settings = QueueSettings(groups=MessageGroups.STANDARD, group_key="customer")
    with Broker() as broker:
        broker.declare_queue("steps", settings=settings)
        for step in range(3):
            for customer in ("ann", "bob"):
                broker.publish(Message(step, routing_key="steps", headers={"customer": customer}))
        one, two = broker.subscribe("steps", prefetch=1), broker.subscribe("steps", prefetch=1)
        seen: dict[object, list[object]] = defaultdict(list)
        workers: dict[object, set[str]] = defaultdict(set)
        for _ in range(3):
            for name, worker in (("one", one), ("two", two)):
                received = worker.get()
                who = received.message.headers["customer"]
                seen[who].append(received.body)
                workers[who].add(name)
                received.accept()
        print(dict(seen))  # {'ann': [0, 1, 2], 'bob': [0, 1, 2]}
        print([len(names) for names in workers.values()])  # [1, 1]


if __name__ == "__main__":
    main()
