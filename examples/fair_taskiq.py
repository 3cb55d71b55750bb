"""Let tenants take turns at taskiq's workers: one argument of the queue, one label per task."""

import asyncio

from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker, Queue

from multiqueue.broker import Broker


async def work(url: str) -> None:
    queue = Queue(name="jobs", arguments={"x-queue-kind": "fair"})
    tasks = AioPikaBroker(url, qos=1).with_queue(queue)  # what a worker has, nobody can take turns with
    served: list[str] = []
    is_served = asyncio.Event()

    @tasks.task
    async def job(tenant: str) -> None:
        served.append(tenant)
        if tenant == "quiet":
            is_served.set()

    tasks.is_worker_process = True  # here one process does both
    await tasks.startup()
    for tenant in ["flood"] * 300 + ["quiet"]:
        await job.kicker().with_labels(tenant=tenant).kiq(tenant)  # labels go out as headers
    worker = asyncio.create_task(run_receiver_task(tasks, max_async_tasks=1, max_prefetch=1))
    await is_served.wait()
    worker.cancel()
    await asyncio.wait([worker])
    await tasks.shutdown()
    print(served[:2])  # ['flood', 'quiet']


def main() -> None:
    with Broker() as broker, broker.listen() as server:
        asyncio.run(work(server.url))


if __name__ == "__main__":
    main()
