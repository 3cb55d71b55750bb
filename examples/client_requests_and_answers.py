"""Send requests and answers over two queues: a coroutine asks, a callback answers."""

from __future__ import annotations

import asyncio

from multiqueue.broker import Broker
from multiqueue.client import Connection, Message, connect


def answer(message: Message) -> None:
    channel, properties = message.channel, message.properties
    channel.publish(
        message.body.upper(), routing_key=properties["reply_to"], correlation_id=properties["correlation_id"]
    )
    message.ack()


async def ask(connection: Connection, questions: list[bytes]) -> list[bytes]:
    """Ask all at once; answers may come in any order."""
    async with await connection.async_channel() as channel:
        replies = (await asyncio.to_thread(channel.queue_declare, exclusive=True)).queue
        answers: dict[str, bytes] = {}
        async with channel.consume(replies, auto_ack=True) as inbox:
            for number, question in enumerate(questions):
                await channel.publish_confirmed(
                    question, routing_key="questions", reply_to=replies, correlation_id=str(number)
                )
            while len(answers) < len(questions):
                message = await inbox.async_get()
                answers[message.properties["correlation_id"]] = message.body
    return [answers[str(number)] for number in range(len(questions))]


def main() -> None:
    with Broker() as broker, connect(broker) as connection:
        server = connection.channel()
        server.queue_declare("questions")
        server.basic_consume("questions", answer)
        print(asyncio.run(ask(connection, [b"one", b"two", b"three"])))  # [b'ONE', b'TWO', b'THREE']


main()
