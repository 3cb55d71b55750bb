"""Programs written with aio-pika, on both brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import aio_pika
import aio_pika.exceptions
import pytest
from aio_pika.patterns import RPC, Master
from interop_proxy_support import Proxy
from rabbitmq_support import Peer

from multiqueue.testing import PATIENCE

Name = Callable[[str], str]


def run(program: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(3 * PATIENCE):
            await program

    asyncio.run(bounded())


def test_iterating_over_a_queue(peer: Peer, name: Name) -> None:
    """`async for` over a queue, with process() that acknowledges, and gives back what raised."""

    async def program() -> None:
        async with await aio_pika.connect(peer.url) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=1)
            queue = await channel.declare_queue(name("q"), exclusive=True)
            for body in (b"good", b"bad", b"last"):
                await channel.default_exchange.publish(aio_pika.Message(body), queue.name)
            seen: list[tuple[bytes, bool | None]] = []
            async with queue.iterator() as messages:
                async for message in messages:
                    try:
                        async with message.process(requeue=True):
                            seen.append((message.body, message.redelivered))
                            if message.body == b"bad" and not message.redelivered:
                                raise ValueError
                    except ValueError:
                        continue
                    if message.body == b"last":
                        break
            assert seen == [(b"good", False), (b"bad", False), (b"bad", True), (b"last", False)]
            left = await channel.declare_queue(queue.name, passive=True)
            assert left.declaration_result.message_count == 0

    run(program())


def test_many_publishes_at_once(peer: Peer, name: Name) -> None:
    """A hundred coroutines wait for their confirms on one channel."""

    async def program() -> None:
        async with await aio_pika.connect(peer.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name("q"), exclusive=True)
            exchange = channel.default_exchange
            await asyncio.gather(
                *(exchange.publish(aio_pika.Message(b"%d" % number), queue.name) for number in range(100))
            )
            bodies = {(await queue.get(no_ack=True, timeout=PATIENCE)).body for _ in range(100)}
            assert bodies == {b"%d" % number for number in range(100)}

    run(program())


def test_refusals_are_exceptions(peer: Peer, name: Name) -> None:
    """Unroutable, full, absent: each raises where it was awaited."""

    async def program() -> None:
        async with await aio_pika.connect(peer.url) as connection:
            channel = await connection.channel(on_return_raises=True)
            with pytest.raises(aio_pika.exceptions.PublishError):
                await channel.default_exchange.publish(aio_pika.Message(b""), "nowhere", mandatory=True)
            limits: dict[str, Any] = {"x-max-length": 0, "x-overflow": "reject-publish"}
            full = await channel.declare_queue(name("full"), exclusive=True, arguments=limits)
            with pytest.raises(aio_pika.exceptions.DeliveryError):
                await channel.default_exchange.publish(aio_pika.Message(b""), full.name)
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                await channel.declare_queue("nope", passive=True)

    run(program())


def test_a_transaction(peer: Peer, name: Name) -> None:
    """What was published inside is there after commit, and not after rollback."""

    async def program() -> None:
        async with await aio_pika.connect(peer.url) as connection:
            channel = await connection.channel(publisher_confirms=False)
            queue = await channel.declare_queue(name("q"), exclusive=True)
            async with channel.transaction():
                await channel.default_exchange.publish(aio_pika.Message(b"yes"), queue.name)
            transaction = channel.transaction()
            await transaction.select()
            await channel.default_exchange.publish(aio_pika.Message(b"no"), queue.name)
            await transaction.rollback()
            assert (await queue.get(no_ack=True, timeout=PATIENCE)).body == b"yes"
            assert await queue.get(no_ack=True, fail=False) is None

    run(program())


def test_calls_and_tasks(peer: Peer, name: Name) -> None:
    """RPC answers and hands back exceptions; Master gives tasks to workers."""

    async def program() -> None:
        async with await aio_pika.connect(peer.url) as connection:
            channel = await connection.channel()
            rpc = await RPC.create(channel)
            double = name("double")

            async def twice(*, number: int) -> int:
                return 2 * number

            await rpc.register(double, twice, auto_delete=True)
            assert await rpc.call(double, kwargs={"number": 21}) == 42
            with pytest.raises(TypeError):
                await rpc.call(double, kwargs={"wrong": 1})
            await rpc.close()

            done: asyncio.Queue[int] = asyncio.Queue()
            master, task = Master(channel), name("task")

            async def work(*, number: int) -> None:
                done.put_nowait(number)

            worker = await master.create_worker(task, work, auto_delete=True)
            for number in range(3):
                await master.create_task(task, kwargs={"number": number})
            assert [await done.get() for _ in range(3)] == [0, 1, 2]
            await worker.close()

    run(program())


def test_a_robust_connection_comes_back(peer: Peer, name: Name) -> None:
    """After a cut it connects, declares, binds and consumes again, and unacknowledged messages are redelivered."""

    async def program(proxy: Proxy) -> None:
        queue_name, exchange_name = name("q"), name("x")
        connection = await aio_pika.connect_robust(proxy.url("?reconnect_interval=0.1"))
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            exchange = await channel.declare_exchange(exchange_name, aio_pika.ExchangeType.FANOUT, auto_delete=True)
            queue = await channel.declare_queue(queue_name)
            await queue.bind(exchange)
            came: asyncio.Queue[aio_pika.abc.AbstractIncomingMessage] = asyncio.Queue()
            await queue.consume(came.put)
            await exchange.publish(aio_pika.Message(b"first"), "")
            first = await came.get()
            assert not first.redelivered
            connected = asyncio.Event()
            connection.reconnect_callbacks.add(lambda *_: connected.set())
            proxy.cut()
            again = await came.get()
            await connected.wait()
            assert (again.body, again.redelivered) == (b"first", True)
            await again.ack()
            await exchange.publish(aio_pika.Message(b"second"), "")
            second = await came.get()
            assert second.body == b"second"
            await second.ack()
            await queue.delete(if_unused=False)

    with Proxy(peer.port) as proxy:
        run(program(proxy))
        assert proxy.connections == 2
