"""Let tenants take turns at a queue, with aio-pika: one argument at the declaration, one header per message."""

import asyncio

import aio_pika

from multiqueue.broker import Broker


async def work(url: str) -> None:
    async with await aio_pika.connect_robust(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=1)  # what a consumer has, nobody can take turns with
        queue = await channel.declare_queue("jobs", durable=True, arguments={"x-queue-kind": "fair"})
        for tenant in ["flood"] * 1000 + ["quiet"]:
            await channel.default_exchange.publish(aio_pika.Message(b"job", headers={"tenant": tenant}), "jobs")

        served = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    served.append(message.headers["tenant"])
                if served[-1] == "quiet":
                    break
        print(served)  # ['flood', 'quiet']


def main() -> None:
    with Broker() as broker, broker.listen() as server:
        asyncio.run(work(server.url))


if __name__ == "__main__":
    main()
