"""Let tenants take turns at Dramatiq's workers: a broker that names the kind of its queues and sends the header."""

import os
import threading
from functools import partial

os.environ["dramatiq_queue_prefetch"] = "1"  # noqa: SIM112  # not two a thread: nobody can take turns with those

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from multiqueue.broker import Broker


class FairBroker(RabbitmqBroker):
    """Its queues are fair, and a message's option `tenant` goes out as a header."""

    def _build_queue_arguments(self, queue_name):
        return super()._build_queue_arguments(queue_name) | {"x-queue-kind": "fair"}

    @RabbitmqBroker.channel.getter
    def channel(self):
        is_new = getattr(self.state, "channel", None) is None
        channel = RabbitmqBroker.channel.fget(self)
        if is_new:
            channel.basic_publish = partial(self._publish, channel.basic_publish)
        return channel

    def _publish(self, publish, *, body, properties, **rest):
        properties.headers = {"tenant": dramatiq.Message.decode(body).options.get("tenant", "")}
        publish(body=body, properties=properties, **rest)


def main() -> None:
    with Broker() as broker, broker.listen() as server:
        tasks = FairBroker(url=server.url)
        served: list[str] = []
        is_served = threading.Event()

        @dramatiq.actor(queue_name="jobs", broker=tasks)
        def job(tenant: str) -> None:
            served.append(tenant)
            if tenant == "quiet":
                is_served.set()

        for tenant in ["flood"] * 300 + ["quiet"]:
            job.send_with_options(args=(tenant,), tenant=tenant)
        worker = dramatiq.Worker(tasks, worker_threads=1)
        worker.start()
        is_served.wait(30)
        worker.stop()
        tasks.close()
        print(served[:2])  # ['flood', 'quiet']


if __name__ == "__main__":
    main()
