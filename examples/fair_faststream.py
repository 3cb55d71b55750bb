"""Let tenants take turns at a FastStream subscriber: one argument of the queue, one header per message."""

import asyncio
from typing import Annotated

from faststream import Header
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

from multiqueue.broker import Broker


async def work(url: str) -> None:
    # A prefetch of one: what a subscriber has, nobody can take turns with. A subscriber's own `channel=` does not count
    # where the program declares the queue by itself, as here.
    app = RabbitBroker(url, default_channel=Channel(prefetch_count=1), logger=None)
    jobs = RabbitQueue("jobs", arguments={"x-queue-kind": "fair"})
    served: list[str] = []
    is_served = asyncio.Event()

    @app.subscriber(jobs)
    async def job(body: str, tenant: Annotated[str, Header()]) -> None:
        served.append(tenant)
        if tenant == "quiet":
            is_served.set()

    await app.connect()
    await app.declare_queue(jobs)
    for tenant in ["flood"] * 300 + ["quiet"]:
        await app.publish("job", jobs, headers={"tenant": tenant})
    await app.start()
    await is_served.wait()
    await app.stop()
    print(served[:2])  # ['flood', 'quiet']


def main() -> None:
    with Broker() as broker, broker.listen() as server:
        asyncio.run(work(server.url))


if __name__ == "__main__":
    main()
