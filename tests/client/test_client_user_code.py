"""Where the user's code runs in the client, and where the client waits for it: under no lock, at every place."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Queue
from typing import Any

import pytest
from held_locks_support import Gate, HeldLocks, UserCode, others_go_on, watching

from multiqueue.amqp import Server, ServerSettings
from multiqueue.broker import Broker
from multiqueue.client import ClientError, Connection, connect
from multiqueue.testing import PATIENCE, wait_until_blocked

_numbers = itertools.count()


class Scene:
    """A client of a broker, over a socket or in process, and the user's code."""

    def __init__(self, held: HeldLocks, is_direct: bool) -> None:
        self.code = UserCode(held, self.use)
        self.low: set[str] = set()
        self.is_direct = is_direct
        self.broker = Broker()
        self.server: Server = self.broker.listen(
            settings=ServerSettings(alarm_interval=0.005), measure=lambda: set(self.low)
        )
        self.broker.declare_queue("q")
        self.done: Queue[object] = Queue()
        self.connection = self.connect()

    def connect(self, **options: Any) -> Connection:
        peer = self.broker if self.is_direct else self.server.url
        self.connection = connect(peer, threads=4, recovery_interval=0.01, **options)
        return self.connection

    def told(self, *args: object) -> None:
        """The user's code, and the test knows that it has run."""
        try:
            self.code(*args)
        finally:
            self.done.put(args)

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            self.done.get(timeout=PATIENCE)

    def use(self) -> None:
        """What each of the client's locks guards."""
        with suppress(ClientError):
            self.look()
            for channel in list(self.connection._channels.values()):
                channel.publish(b"used", routing_key="nowhere")
            with self.connection.channel() as other:
                name = f"used {next(_numbers)}"
                other.queue_declare(name)
                other.basic_consume(name, lambda message: None, auto_ack=True)
                other.publish_confirmed(b"used", routing_key=name).result(PATIENCE)
                other.queue_delete(name)

    def look(self) -> None:
        """As much of that as needs no answer of the server."""
        self.connection.statistics()
        for channel in list(self.connection._channels.values()):
            channel.statistics()

    def close(self) -> None:
        self.connection.close()
        self.broker.close(5.0)


@pytest.fixture(params=["in_process", "server"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with watching("multiqueue.client", "multiqueue.amqp") as held:
        made = Scene(held, request.param == "in_process")
        try:
            yield made
        finally:
            made.close()


# -- the entry points


def deliveries(scene: Scene) -> None:
    channel = scene.connection.channel()
    channel.basic_consume("q", scene.told, on_ended=scene.told, auto_ack=True)
    channel.publish(b"", routing_key="q")
    scene.wait()
    channel.close()
    scene.wait()


def channel_callbacks(scene: Scene) -> None:
    channel = scene.connection.channel(on_returned=scene.told, on_closed=scene.told)
    channel.publish(b"", routing_key="nowhere at all", mandatory=True)
    scene.wait()
    channel.close()
    scene.wait()


def confirm_callbacks(scene: Scene) -> None:
    channel = scene.connection.channel()
    confirm = channel.publish_confirmed(b"", routing_key="q")
    confirm.add_done_callback(scene.told)
    confirm.result(PATIENCE)
    scene.wait()
    confirm.add_done_callback(scene.told)
    scene.wait()


def callback_errors(scene: Scene) -> None:
    scene.connection.close()
    scene.connect(on_callback_error=scene.told)
    channel = scene.connection.channel()
    channel.basic_consume("q", lambda message: 1 / 0)
    channel.publish(b"", routing_key="q")
    scene.wait()


def life_of_a_connection(scene: Scene) -> None:
    """A server that is low on memory answers nobody, so nothing that is done meanwhile may need it."""
    scene.code.then(scene.look)
    scene.connection.close()
    callbacks = dict.fromkeys(("on_blocked", "on_interrupted", "on_recovered", "on_closed"), scene.told)
    scene.connect(**callbacks)
    if not scene.is_direct:  # which has no heartbeats, no alarms and no recovery
        scene.low.add("memory")
        wait_until_blocked(lambda: scene.server.alarms)
        scene.connection.channel().publish(b"", routing_key="q")
        scene.wait()
        scene.low.clear()
        scene.wait()
        scene.server.close_connection(scene.server.connections()[-1], "as a test")
        scene.wait(2)
    scene.connection.close()
    scene.wait()


def executor(scene: Scene) -> None:
    """An executor of the user's: `submit` is its code. The reader calls it, so nobody gets an answer meanwhile."""
    scene.code.then(scene.look)

    class Mine(Executor):
        def __init__(self) -> None:
            self.threads = ThreadPoolExecutor(4)

        def submit(self, /, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
            try:
                scene.code()
                return self.threads.submit(fn, *args, **kwargs)
            finally:
                scene.done.put(None)

    scene.connection.close()
    mine = Mine()
    scene.connect(executor=mine)
    channel = scene.connection.channel()
    channel.basic_consume("q", lambda message: None, auto_ack=True)
    channel.publish(b"", routing_key="q")
    scene.wait()
    scene.connection.close()
    mine.threads.shutdown()


def names_and_keys(scene: Scene) -> None:
    """Strings of a class of the user's, wherever a name, a key, a tag or an argument is given."""
    text, channel = scene.code.text, scene.connection.channel()
    channel.exchange_declare(text("x"), "topic", arguments={text("x-mine"): text("mine")})
    channel.queue_declare(text("named"), arguments={text("x-mine"): text("mine")})
    channel.queue_bind(text("named"), text("x"), text("a.b"), {text("x-mine"): text("mine")})
    channel.basic_consume(text("named"), scene.told, auto_ack=True, consumer_tag=text("tag"))
    channel.publish(b"", exchange=text("x"), routing_key=text("a.b"), headers={text("a"): text("b")})
    scene.wait()
    channel.basic_cancel(text("tag"))
    channel.consume(text("named"), consumer_tag=text("inbox")).close()
    channel.queue_unbind(text("named"), text("x"), text("a.b"), {text("x-mine"): text("mine")})
    channel.queue_delete(text("named"))
    channel.exchange_delete(text("x"))


def handlers_of_the_log(scene: Scene) -> None:
    """The reader writes lines as well, so nobody gets an answer meanwhile."""
    scene.code.then(scene.look)

    class Handler(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            scene.told()
            return True

    log, handler = logging.getLogger("multiqueue.client"), Handler()
    log.addHandler(handler)
    try:
        channel = scene.connection.channel()
        channel.publish(b"", routing_key="nowhere at all", mandatory=True)
        scene.wait()
        channel.basic_consume("q", lambda message: 1 / 0)
        channel.publish(b"", routing_key="q")
        scene.wait()
    finally:
        log.removeHandler(handler)


ENTRY_POINTS = [
    deliveries,
    channel_callbacks,
    confirm_callbacks,
    callback_errors,
    life_of_a_connection,
    executor,
    names_and_keys,
    handlers_of_the_log,
]


@pytest.mark.parametrize("point", ENTRY_POINTS, ids=lambda point: point.__name__)
def test_user_code_runs_under_no_lock(scene: Scene, point: Callable[[Scene], None]) -> None:
    """Wherever the user's code runs, its thread holds no lock of the room, and another thread can use the connection,
    its channels and new ones (client 4)."""
    point(scene)
    scene.code.check()


# -- the waits


def behind_a_gate(scene: Scene) -> Gate:
    gate = Gate()
    channel = scene.connection.channel()
    channel.basic_consume("q", gate, auto_ack=True)
    channel.publish(b"", routing_key="q")
    assert gate.entered.wait(PATIENCE)
    return gate


def close_channel(scene: Scene) -> tuple[Gate, Callable[[], object]]:
    """Its end is told behind the callback that runs."""
    gate = behind_a_gate(scene)
    (channel,) = scene.connection._channels.values()
    ended: Queue[object] = Queue()
    channel.on_closed = ended.put

    def close() -> None:
        channel.close()
        ended.get(timeout=PATIENCE)

    return gate, close


def close_connection(scene: Scene) -> tuple[Gate, Callable[[], object]]:
    return behind_a_gate(scene), scene.connection.close


def close_inbox(scene: Scene) -> tuple[Gate, Callable[[], object]]:
    gate = behind_a_gate(scene)
    inbox = scene.connection.channel().consume("q")

    def close() -> None:
        inbox.close()
        gate.open.wait(PATIENCE)

    return gate, close


@pytest.mark.parametrize("wait", [close_channel, close_connection, close_inbox], ids=lambda wait: wait.__name__)
def test_no_lock_is_held_while_we_wait_for_user_code(
    scene: Scene, wait: Callable[[Scene], tuple[Gate, Callable[[], object]]]
) -> None:
    """While a thread waits for a callback to end, every other thread uses the connection as far as it is open
    (client 4)."""
    gate, begin = wait(scene)
    others_go_on(gate, begin, scene.code)
