"""Mixed traffic over connections that are cut at random: what was confirmed is consumed, and memory stays flat."""

from __future__ import annotations

import random
import resource
import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest
from client_proxy_support import Proxy

from multiqueue.client import ClientError, Confirm, Connection, Message, connect

PUBLISHERS = 3


class Traffic:
    """Publishers that know what was confirmed, consumers that remember what they did, until told to stop."""

    def __init__(self, proxy: Proxy, queue: str, seed: int) -> None:
        self.proxy, self.queue = proxy, queue
        self.random = random.Random(seed)
        self.over = threading.Event()
        self.confirmed: set[bytes] = set()
        self.consumed: Counter[bytes] = Counter()
        self.lock = threading.Lock()

    def publish(self, connection: Connection, name: int) -> None:
        channel = connection.channel()
        number, window = 0, dict[bytes, Confirm]()
        while not self.over.is_set():
            body = b"%d-%d" % (name, number)
            try:
                window[body] = channel.publish_confirmed(body, routing_key=self.queue, delivery_mode=2)
                number += 1
            except ClientError:
                assert connection.wait_until_open(60)
            if len(window) >= 50:
                self.settle(window)
        self.settle(window)

    def settle(self, window: dict[bytes, Confirm]) -> None:
        for confirm in window.values():
            confirm.result(60)
        with self.lock:
            self.confirmed.update(window)
        window.clear()

    def consume(self, message: Message) -> None:
        with self.lock:
            self.consumed[message.body] += 1
        message.ack()

    def missing(self) -> set[bytes]:
        """What was confirmed and has not been consumed."""
        with self.lock:
            return self.confirmed - self.consumed.keys()

    def cut(self, seconds: float) -> int:
        """Cut the way now and then for so many seconds; returns how often."""
        deadline, cuts = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            time.sleep(self.random.uniform(0.05, 0.5))
            self.proxy.cut()
            cuts += 1
        return cuts


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(6, marks=pytest.mark.slow(selected=True)), pytest.param(570, marks=pytest.mark.slow)],
)
@pytest.mark.timeout(900)
def test_nothing_confirmed_is_lost(server_url: str, seconds: int) -> None:
    """Three publishers and two consumers, over a way that is cut several times a second; seed 7."""
    with ExitStack() as stack:
        proxy = Proxy(server_url)
        stack.callback(proxy.close)
        options = {"recovery_interval": 0.01, "connection_timeout": 30.0}
        connections = [stack.enter_context(connect(proxy.url, name=f"load-{number}", **options)) for number in range(3)]
        run(Traffic(proxy, "load", seed=7), connections, seconds)


def run(traffic: Traffic, connections: list[Connection], seconds: float) -> None:
    connections[0].channel().queue_declare("load", durable=True)
    for connection in connections[:2]:
        channel = connection.channel()
        channel.basic_qos(50)
        channel.basic_consume("load", traffic.consume)
    publishers = [threading.Thread(target=traffic.publish, args=(connections[2], name)) for name in range(PUBLISHERS)]
    for thread in publishers:
        thread.start()
    traffic.cut(seconds / 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cuts = traffic.cut(seconds / 2)
    traffic.over.set()
    for thread in publishers:
        thread.join(120)
        assert not thread.is_alive()
    deadline = time.monotonic() + 60
    while traffic.missing() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert cuts > 3
    assert len(traffic.confirmed) > 100
    assert not traffic.missing()
    assert sum(connection.statistics().recoveries for connection in connections) > 3
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    known = len(traffic.confirmed) * 0.3  # the test's own memory of what it saw, generously
    assert grown < 50_000 + known
    for connection in connections:
        connection.check_invariants()
