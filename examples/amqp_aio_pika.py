"""Use aio-pika with a broker in this process: one coroutine publishes, another iterates over a queue."""

import asyncio

import aio_pika

from multiqueue.broker import Broker


async def talk(url: str) -> None:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        queue = await channel.declare_queue("work", arguments={"x-max-priority": 9})
        for priority, body in [(1, b"mail"), (9, b"alarm")]:
            message = aio_pika.Message(body, priority=priority, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, "work")
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    print(message.priority, message.body)  # 9 b'alarm'
                break
        left = await channel.declare_queue("work", passive=True)
        print(left.declaration_result.message_count)  # 1


def main() -> None:
    with Broker() as broker, broker.listen() as server:
        asyncio.run(talk(server.url))


if __name__ == "__main__":
    main()
