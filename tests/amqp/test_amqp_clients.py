"""Programs written with other clients, as their users write them, against our server."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from multiqueue.broker import Broker, Message

Need = Callable[[str, str], None]


def needed(need_module: Need, name: str, package: str) -> Any:
    """The client's module; without it the test ends as any without its peer."""
    if name not in sys.modules:  # kombu is there, but cannot be found, once it was imported
        need_module(name, f"{package} is not installed: pip install {package}")
    return importlib.import_module(name)


def test_pika_select(url: str, need_module: Need) -> None:
    """pika's SelectConnection publishes a thousand messages with confirms and consumes them with acks in batches."""
    pika = needed(need_module, "pika", "pika")
    count = 1000
    confirmed: set[int] = set()
    got: list[int] = []

    def opened(connection: Any) -> None:
        connection.channel(on_open_callback=channel_opened)

    def channel_opened(channel: Any) -> None:
        channel.confirm_delivery(on_confirm)
        channel.basic_qos(prefetch_count=100)
        channel.queue_declare("q", callback=lambda _: declared(channel))

    def on_confirm(frame: Any) -> None:
        tag = frame.method.delivery_tag
        confirmed.update(range(1, tag + 1) if frame.method.multiple else [tag])

    def declared(channel: Any) -> None:
        channel.basic_consume("q", on_message)
        for number in range(count):
            channel.basic_publish("", "q", b"%d" % number)

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        got.append(int(body))
        if len(got) % 50 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if len(got) == count:
            channel.connection.close()

    connection = pika.SelectConnection(
        pika.URLParameters(url), on_open_callback=opened, on_close_callback=lambda c, _: c.ioloop.stop()
    )
    connection.ioloop.start()
    connection.ioloop.close()
    assert got == list(range(count))
    assert len(confirmed) == count


def test_pika_blocked(broker: Broker, need_module: Need) -> None:
    """pika is told that a publisher is blocked, and that it may go on."""
    pika = needed(need_module, "pika", "pika")
    from multiqueue.amqp import ServerSettings

    low = {"memory"}
    server = broker.listen(settings=ServerSettings(alarm_interval=0.01), measure=lambda: set(low))
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    said: list[Any] = []

    def on_blocked(_: Any, frame: Any) -> None:
        said.append(frame.method.reason)
        low.clear()

    connection.add_on_connection_blocked_callback(on_blocked)
    connection.add_on_connection_unblocked_callback(lambda _, frame: said.append("unblocked"))
    channel = connection.channel()
    while not server.alarms:
        connection.process_data_events(0.01)
    channel.basic_publish("", "q", b"x")
    while len(said) < 2:
        connection.process_data_events(0.1)
    assert said == ["low on memory", "unblocked"]
    channel.queue_declare("q")
    connection.close()


def test_py_amqp(url: str, need_module: Need) -> None:
    """py-amqp declares, publishes with confirms, consumes, and is told of a channel error by its exception."""
    amqp = needed(need_module, "amqp", "amqp")
    host = url.rpartition("@")[2].partition("/")[0]
    with amqp.Connection(host, confirm_publish=True) as connection:
        channel = connection.channel()
        channel.queue_declare("q", auto_delete=False)
        sent = amqp.Message(b"body", application_headers={"a": 1, "big": 2**40, "half": 0.5}, delivery_mode=2)
        channel.basic_publish(sent, routing_key="q")
        got: list[Any] = []
        channel.basic_consume("q", callback=got.append)
        while not got:
            connection.drain_events(5)
        assert (got[0].body, got[0].headers) == (b"body", {"a": 1, "big": 2**40, "half": 0.5})
        got[0].channel.basic_ack(got[0].delivery_tag)
        with pytest.raises(amqp.NotFound, match="no queue 'nonesuch'"):
            connection.channel().queue_declare("nonesuch", passive=True)


def test_amqpstorm(url: str, need_module: Need) -> None:
    """amqpstorm works from several threads on one connection, transactions included."""
    storm = needed(need_module, "amqpstorm", "AMQPStorm")
    with storm.UriConnection(url + "?heartbeat=0") as connection:
        with connection.channel() as channel:
            channel.queue.declare("q")

        def publish() -> None:
            with connection.channel() as own, own.tx:
                for _ in range(20):
                    own.basic.publish(b"x", "q")

        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with connection.channel() as channel:
            assert channel.queue.declare("q", passive=True)["message_count"] == 80
            message = channel.basic.get("q")
            message.reject(requeue=True)
            assert channel.basic.get("q").redelivered


def test_aio_pika(url: str, need_module: Need) -> None:
    """aio-pika runs transactions, headers exchanges, RPC by direct reply-to, and a robust connection."""
    aio_pika = needed(need_module, "aio_pika", "aio-pika")

    async def talk() -> list[Any]:
        seen: list[Any] = []
        async with await aio_pika.connect_robust(url) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange("h", aio_pika.ExchangeType.HEADERS)
            queue = await channel.declare_queue("q")
            await queue.bind(exchange, arguments={"x-match": "all", "kind": "order"})
            await exchange.publish(aio_pika.Message(b"yes", headers={"kind": "order"}), "")
            await exchange.publish(aio_pika.Message(b"no", headers={"kind": "mail"}), "", mandatory=False)
            message = await queue.get(timeout=5)
            seen.append(message.body)
            await message.ack()
            await asyncio.gather(
                *(exchange.publish(aio_pika.Message(b"%d" % n, headers={"kind": "order"}), "") for n in range(50))
            )
            seen.append((await queue.declare()).message_count)
            plain = await connection.channel(publisher_confirms=False)
            async with plain.transaction():
                await plain.default_exchange.publish(aio_pika.Message(b"tx"), "q")
            seen.append((await queue.declare()).message_count)
            rpc = await aio_pika.patterns.RPC.create(channel)

            async def double(*, number: int) -> int:
                return 2 * number

            await rpc.register("double", double, auto_delete=True)
            seen.append(await rpc.proxy.double(number=21))
        return seen

    needed(need_module, "aio_pika.patterns", "aio-pika")
    assert asyncio.run(talk()) == [b"yes", 50, 51, 42]


def test_kombu(url: str, need_module: Need) -> None:
    """kombu's mixins, pools and priorities."""
    kombu = needed(need_module, "kombu", "kombu")
    queue = kombu.Queue("p", kombu.Exchange(""), routing_key="p", max_priority=10)
    with kombu.Connection(url) as connection, connection.Producer() as producer:
        for priority in (1, 5, 3):
            producer.publish({"n": priority}, routing_key="p", priority=priority, declare=[queue], retry=True)
        got = []

        def on_message(body: Any, message: Any) -> None:
            got.append(body["n"])
            message.ack()

        with connection.Consumer([queue], callbacks=[on_message]):
            while len(got) < 3:
                connection.drain_events(timeout=5)
    assert got == [5, 3, 1]


# -- Celery, with workers in processes of their own


@contextmanager
def worker(environment: dict[str, str], name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Celery worker; killed at the end, with its children, if it has not ended."""
    command = [sys.executable, "-m", "celery", "-A", "amqp_celery_app", "worker", "--loglevel", "ERROR"]
    command += ["--concurrency", "1", "--pool", "prefork", "-n", name, "--without-gossip", "--without-mingle"]
    process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """The worker and its children, at once."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def wait_for(log: Path, line: str) -> None:
    """Until the workers have written this."""
    deadline = time.monotonic() + 60
    while not log.exists() or line not in log.read_text().splitlines():
        assert time.monotonic() < deadline, log.read_text() if log.exists() else "nothing was written"
        time.sleep(0.05)


@pytest.mark.slow(selected=True)
def test_celery_tasks_of_a_killed_worker_run_again(url: str, tmp_path: Path, need_module: Need) -> None:
    """With late acks, the task of a worker that is killed -9 goes to the next one, flagged; priorities hold."""
    needed(need_module, "celery", "celery")
    log, gate = tmp_path / "log", tmp_path / "gate"
    gate.touch()
    environment = {
        **os.environ,
        "HOUSE_BROKER": url,
        "HOUSE_LOG": str(log),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    code = (
        "import os, sys, time, amqp_celery_app as a\n"
        "first = a.last_breath.delay(sys.argv[1])\n"
        "while not os.path.exists(os.environ['HOUSE_LOG']): time.sleep(0.01)\n"
        "rest = [a.note.apply_async([str(p)], priority=p) for p in (1, 9, 5)]\n"
        "print(first.get(timeout=60), *[r.get(timeout=60) for r in rest])\n"
    )
    with worker(environment, "one") as doomed:
        asker = subprocess.Popen(
            [sys.executable, "-c", code, str(gate)], env=environment, stdout=subprocess.PIPE, text=True
        )
        wait_for(log, "begun redelivered=False")
        kill(doomed)
    with worker(environment, "two"):
        answer, _ = asker.communicate(timeout=90)
    assert answer.split() == ["done", "1", "9", "5"]
    begun = ["begun redelivered=False", "9", "5", "1", "begun redelivered=True"]
    assert log.read_text().splitlines() == begun


def test_a_program_in_the_process_and_one_outside(broker: Broker, url: str, need_module: Need) -> None:
    """Messages go both ways between the broker's own methods and a client, properties and headers included."""
    pika = needed(need_module, "pika", "pika")
    broker.declare_queue("q")
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    broker.publish(
        Message(b"out", routing_key="q", headers={"n": 1}, priority=3, expiration=60.0, timestamp=1e9, type="t")
    )
    _, properties, body = channel.basic_get("q", auto_ack=True)
    assert (body, properties.headers, properties.priority, properties.expiration) == (b"out", {"n": 1}, 3, "60000")
    assert (properties.timestamp, properties.type, properties.delivery_mode) == (1_000_000_000, "t", 1)
    sent = pika.BasicProperties(content_type="text/plain", headers={"x": [1, None]}, message_id="m", delivery_mode=2)
    channel.basic_publish("", "q", b"in", sent)
    connection.close()
    received = broker.get("q", auto_accept=True)
    assert received is not None
    message = received.message
    assert (message.body, message.content_type, message.message_id, message.persistent) == (
        b"in",
        "text/plain",
        "m",
        True,
    )
    assert (dict(message.headers), message.user_id, message.priority, message.delay) == (
        {"x": [1, None]},
        None,
        None,
        None,
    )


def test_an_object_of_this_process_stays_here(broker: Broker, url: str, need_module: Need) -> None:
    """A message whose body no wire can carry is dead-lettered, and the consumer gets the next one."""
    pika = needed(need_module, "pika", "pika")
    broker.declare_queue("letters")
    broker.declare_queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"})
    broker.publish(Message(object(), routing_key="q"))
    broker.publish(Message("text", routing_key="q"))
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    for _, _, body in channel.consume("q", inactivity_timeout=5):
        assert body == b"text"
        break
    connection.close()
    assert len(broker.queue("letters")) == 1
