"""The fixture `multiqueue_broker`, as a test suite that installed multiqueue has it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from held_locks_support import Gate

from multiqueue import pytest_plugin
from multiqueue.broker import Broker, Message, NotFound
from multiqueue.pytest_plugin import BrokerForTests
from multiqueue.testing import PATIENCE, wait_until_blocked

_SUITE = """
import pika
import pytest

ports = []

@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_an_empty_broker(multiqueue_broker, turn):
    connection = pika.BlockingConnection(pika.URLParameters(multiqueue_broker.url))
    channel = connection.channel()
    channel.queue_declare("orders")
    channel.basic_publish("", "orders", b"tea")
    assert multiqueue_broker.bodies("orders") == [b"tea"]
    connection.close()
    ours = multiqueue_broker.connect().channel()
    assert ours.basic_get("orders") is None
    ports.append(multiqueue_broker.port)

def test_nothing_is_left():
    import socket
    for port in ports:
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port))
"""


@pytest.fixture
def rig() -> Iterator[BrokerForTests]:
    """What the fixture gives, made here, where the plugin may not be installed."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker())
        yield BrokerForTests(broker, broker.listen(), stack)


@pytest.fixture
def pika_channel(rig: BrokerForTests, need_module: Callable[[str, str], None]) -> Iterator[Any]:
    """A channel of an open connection of pika's, with the queue `q`."""
    need_module("pika", "pika is not installed: pip install pika")
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(rig.url))
    channel = connection.channel()
    channel.queue_declare("q")
    yield channel
    connection.close()


class Busy:
    """A block while which the server's thread reads nothing."""

    def __init__(self, rig: BrokerForTests) -> None:
        self._io = rig.server.connections()[0].io
        self._go_on = threading.Event()

    def __enter__(self) -> threading.Event:
        self._io.post(self._go_on.wait)
        return self._go_on

    def __exit__(self, *_: object) -> None:
        self._go_on.set()


def test_what_was_published_unconfirmed_is_there(rig: BrokerForTests, pika_channel: Any) -> None:
    """`bodies` waits until the broker has read what was sent on open connections, however busy it is."""
    with Busy(rig) as go_on, ThreadPoolExecutor(1) as pool:
        for number in range(100):
            pika_channel.basic_publish("", "q", b"%d" % number)
        bodies = pool.submit(rig.bodies, "q")
        wait_until_blocked(next(iter(pool._threads)))
        go_on.set()
        assert bodies.result(PATIENCE) == [b"%d" % number for number in range(100)]
    assert rig.bodies("q") == []


def test_a_message_larger_than_a_socket_is_there(rig: BrokerForTests, pika_channel: Any) -> None:
    """Of a message that arrives in pieces `bodies` awaits the last one."""
    with ThreadPoolExecutor(1) as pool:
        for _ in range(5):
            sending = pool.submit(pika_channel.basic_publish, "", "q", b"x" * (8 << 20))
            assert [len(body) for body in rig.bodies("q", 1, PATIENCE)] == [8 << 20]
            sending.result(PATIENCE)


def test_half_a_message_is_told(rig: BrokerForTests, pika_channel: Any) -> None:
    """A client that has sent a part of a message and not the rest is named, instead of an empty list."""
    from multiqueue.amqp import encode_publish

    whole = encode_publish(pika_channel.channel_number, "", "q", b"\0\0", b"tea", 4096)
    stream = pika_channel.connection._impl._transport._sock
    stream.sendall(whole[:-5])
    with pytest.raises(
        TimeoutError, match=r"after 0.1 s the broker still lacks the rest of a frame sent on 127.0.0.1:\d+ -> "
    ):
        rig.bodies("q", timeout=0.1)
    stream.sendall(whole[-5:])
    assert rig.bodies("q") == [b"tea"]


def test_our_client_is_waited_for(rig: BrokerForTests) -> None:
    """What `connect()` of the fixture has sent unconfirmed is there; its connection may be closed too."""
    connection, other = rig.connect(), rig.connect()
    channel = connection.channel()
    channel.queue_declare("q")
    other.close()
    for round_ in range(20):
        channel.publish(b"%d" % round_, routing_key="q")
        assert rig.bodies("q") == [b"%d" % round_]


def test_a_count_is_waited_for(rig: BrokerForTests, monkeypatch: pytest.MonkeyPatch) -> None:
    """`wait_for` and `bodies(count)` wait for what a program publishes later, to a queue that it makes later."""
    later = [
        lambda: rig.broker.declare_queue("later"),
        lambda: rig.broker.publish(Message(b"1", routing_key="later")),
        lambda: rig.broker.publish(Message(b"2", routing_key="later")),
    ]
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: later.pop(0)())
    with monkeypatch.context() as patch:
        patch.setattr(pytest_plugin, "time", clock)
        assert rig.bodies("later", 2) == [b"1", b"2"]
    for body in (b"3", b"4"):
        rig.broker.publish(Message(body, routing_key="later"))
    rig.wait_for("later")
    assert rig.bodies("later", 1) == [b"3", b"4"]  # one too many is seen


def test_too_few_are_told_and_stay(rig: BrokerForTests) -> None:
    """When a count is not reached, the error says what there is, and nothing was taken."""
    rig.broker.declare_queue("q")
    rig.broker.publish(Message(b"1", routing_key="q"))
    rig.broker.publish(Message(b"2", routing_key="q"))
    held = rig.broker.get("q")
    assert held is not None
    with pytest.raises(TimeoutError, match="'q' has 1 ready messages, and consumers hold 1, after 0 s; 2 ready"):
        rig.bodies("q", 2, timeout=0)
    held.release()
    assert rig.bodies("q") == [b"1", b"2"]
    with pytest.raises(TimeoutError, match="there is no queue 'nope', only 'q', after 0 s; 1 ready"):
        rig.wait_for("nope", timeout=0)
    with pytest.raises(NotFound):
        rig.bodies("nope")


def test_a_callback_that_goes_on_is_not_waited_for_longer(rig: BrokerForTests) -> None:
    """`empty` removes a virtual host within its time, though a callback of it still runs."""
    host, gate = rig.broker.add_virtual_host("x"), Gate()
    host.declare_queue("q")
    host.consume("q", gate)
    host.publish(Message(routing_key="q"))
    assert gate.entered.wait(PATIENCE)
    emptying = threading.Thread(target=rig.empty, args=(0.1,), daemon=True)
    emptying.start()
    emptying.join(PATIENCE)
    is_over = not emptying.is_alive()
    gate.open.set()
    emptying.join(PATIENCE)
    assert is_over
    assert [each.name for each in rig.broker.virtual_hosts()] == ["/"]


def test_a_suite_uses_the_fixture(tmp_path: Path) -> None:
    """Two tests, two brokers; pika and our client reach them; ports are closed afterwards."""
    (tmp_path / "test_orders.py").write_text(_SUITE)
    assert "3 passed" in _run(tmp_path)


_SESSION = """
import json
import urllib.request
import pika
import pytest

from multiqueue.amqp import User

ports, left = set(), []

@pytest.mark.parametrize("turn", [1, 2])
def test_one_broker_is_emptied(multiqueue_broker, turn):
    ports.add(multiqueue_broker.port)
    assert len(ports) == 1
    assert multiqueue_broker.broker.virtual_host().queue("kept").statistics().depth == 0
    connection = pika.BlockingConnection(pika.URLParameters(multiqueue_broker.url))
    channel = connection.channel()
    for name, exclusive in (("orders", False), ("mine", True)):
        channel.queue_declare(name, exclusive=exclusive)
    channel.exchange_declare("x", auto_delete=True)
    channel.exchange_declare("y")
    channel.exchange_bind("y", "x")
    channel.basic_publish("", "kept", b"tea")
    left.append(connection)  # it stays open, and nobody reads from it
    multiqueue_broker.broker.add_virtual_host("shop").declare_queue("orders")
    multiqueue_broker.server.access.put(User("ada"))

def test_nothing_is_left(multiqueue_broker):
    host = multiqueue_broker.broker.virtual_host()
    assert [queue.name for queue in host.queues()] == ["kept"]
    assert [host.name for host in multiqueue_broker.broker.virtual_hosts()] == ["/"]
    assert [user.name for user in multiqueue_broker.server.access.users()] == ["guest"]
    assert {exchange.name for exchange in host.exchanges()} & {"x", "y"} == set()
    assert multiqueue_broker.server.connections() == []
    for connection in left:
        with pytest.raises(pika.exceptions.AMQPError):
            connection.process_data_events()
    with urllib.request.urlopen(multiqueue_broker.http_url + "/metrics") as metrics:
        assert b"rabbitmq_queues 1.0" in metrics.read()

def test_definitions_that_are_none(multiqueue_broker, tmp_path):
    (tmp_path / "d.json").write_text("{")
    with pytest.raises(ValueError, match="d.json.*parse_json"):
        multiqueue_broker.load(tmp_path / "d.json")
"""


@pytest.mark.slow(selected=True)
def test_a_suite_shares_one_broker_with_definitions(tmp_path: Path, need_module: Callable[[str, str], None]) -> None:
    """With `multiqueue_broker = session` each test finds the same broker, with the definitions and nothing else."""
    need_module("starlette", "starlette is not installed: pip install 'blocking-multiqueue[monitor]'")
    (tmp_path / "test_orders.py").write_text(_SESSION)
    kept = {"name": "kept", "vhost": "/", "durable": False, "auto_delete": False, "arguments": {}}
    (tmp_path / "broker.json").write_text(json.dumps({"queues": [kept]}))
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmultiqueue_broker = session\nmultiqueue_definitions = broker.json\n"
    )
    assert "4 passed" in _run(tmp_path)


def test_an_unknown_scope_is_told(tmp_path: Path) -> None:
    """The error names the two that there are."""
    (tmp_path / "test_orders.py").write_text("def test_it(multiqueue_broker): pass")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmultiqueue_broker = module\n")
    assert "it is `test` or `session`" in _run(tmp_path, status=1)


def test_definitions_that_are_missing_are_told(tmp_path: Path) -> None:
    """The error names the key of pytest's configuration and the file, without a traceback of ours."""
    (tmp_path / "test_orders.py").write_text("def test_it(multiqueue_broker): pass")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmultiqueue_definitions = no.json\n")
    told = _run(tmp_path, status=1)
    assert "multiqueue_definitions in pytest's configuration names" in told
    assert "no.json', which cannot be read: No such file or directory" in told


def _run(suite: Path, status: int = 0) -> str:
    """What pytest says of a suite."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    plugin = [] if _is_installed() else ["-p", "multiqueue.pytest_plugin"]
    done = subprocess.run(
        [*command, *plugin, str(suite)], cwd=suite, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(point.value == "multiqueue.pytest_plugin" for point in entry_points(group="pytest11"))


def test_the_plugin_loads_nothing_by_itself() -> None:
    """A user who has multiqueue installed and runs other tests pays nothing for the fixture."""
    code = (
        "import sys, multiqueue.pytest_plugin;"
        "print(sorted(m.split('.')[1] for m in sys.modules if m.startswith('multiqueue.') and m.count('.') == 1))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['pytest_plugin']"
