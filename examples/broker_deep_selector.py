"""Select one message behind ten thousand others, on a durable queue with 1 MiB of memory.

The broker reads headers, not bodies, until it finds the message; the others stay in the queue.
"""

from tempfile import TemporaryDirectory

from multiqueue.broker import Broker, Message

with TemporaryDirectory() as directory, Broker(data=directory, memory_limit=2**20) as broker:
    broker.declare_queue("parcels", durable=True)
    for number in range(10_000):
        broker.publish_nowait(Message(b"%d" % number, routing_key="parcels", persistent=True, headers={"to": "Rome"}))
    broker.publish(Message(b"the one", routing_key="parcels", persistent=True, headers={"to": "Oslo"}))

    with broker.subscribe("parcels", selector="to = 'Oslo'", prefetch=10) as oslo:
        received = oslo.get(timeout=60)
        print(received.body)  # b'the one'
        received.accept(wait=True)

    memory = broker.virtual_host().memory_statistics()
    print(memory.used <= memory.limit)  # True
    print(len(broker.queue("parcels")))  # 10000
