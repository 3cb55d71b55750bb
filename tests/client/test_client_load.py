"""Mixed traffic over connections that are cut at random: what was confirmed is consumed, and memory stays flat."""

from __future__ import annotations

import gc
import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from client_proxy_support import Proxy
from client_traffic_support import Traffic

from multiqueue.broker import Broker
from multiqueue.client import Connection, connect
from multiqueue.testing import PATIENCE

CONNECTIONS = 4
WARM_UP = 0.3  # of the time: caches, pools, arenas of the allocator
GROWTH = 60 * 1024  # KiB; what the allocator does not give back varies by half of that


def resident() -> int:
    """KiB of this process that are in memory: client and server both."""
    gc.collect()
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4


def cut_now_and_then(proxy: Proxy, seconds: float, chance: random.Random) -> int:
    """Cut every connection several times a second, for so many seconds; returns how often."""
    deadline, cuts = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        time.sleep(chance.uniform(0.05, 0.5))
        proxy.cut()
        cuts += 1
    return cuts


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(8, marks=pytest.mark.slow(selected=True)), pytest.param(570, marks=pytest.mark.slow)],
)
@pytest.mark.timeout(900)
def test_nothing_confirmed_is_lost(tmp_path: Path, seconds: int) -> None:
    """Confirms, transactions, requeues, dead letters, gets and short-lived channels over a way that is cut; seed 7."""
    traffic = Traffic(seed=7)
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(data=tmp_path))
        proxy = Proxy(stack.enter_context(broker.listen()).url)
        stack.callback(proxy.close)
        options = {"recovery_interval": 0.01, "connection_timeout": 30.0}
        connections = [
            stack.enter_context(connect(proxy.url, name=f"load-{number}", **options)) for number in range(CONNECTIONS)
        ]
        threads = begin(traffic, connections)
        cut_now_and_then(proxy, seconds * WARM_UP, random.Random(7))
        before = resident()
        cuts = cut_now_and_then(proxy, seconds * (1 - WARM_UP), random.Random(8))
        grown = resident() - before
        traffic.over.set()
        for thread in threads:
            thread.join(2 * PATIENCE)
            assert not thread.is_alive()
        assert traffic.record.wait_until(lambda: not traffic.record.on_their_way), traffic.record.missing()[:20]
        assert cuts > 3
        assert traffic.record.confirmed > 100
        assert traffic.record.redelivered > 0
        assert sum(connection.statistics().recoveries for connection in connections) > 3
        assert grown < GROWTH
        for connection in connections:
            connection.check_invariants()
        broker.virtual_host().check_invariants()


def begin(traffic: Traffic, connections: list[Connection]) -> list[threading.Thread]:
    """Declare, consume, and start those that publish and get."""
    consuming, both, publishing, going = connections
    traffic.declare(consuming.channel())
    for connection, queues in ((consuming, ("load-order", "load-event")), (both, ("load-event", "load-dead"))):
        for queue in queues:
            channel = connection.channel()
            channel.basic_qos(50)
            channel.basic_consume(queue, traffic.consume)
    threads = [
        threading.Thread(target=traffic.publish, args=(publishing, 0)),
        threading.Thread(target=traffic.publish, args=(both, 1)),
        threading.Thread(target=traffic.publish_in_transactions, args=(publishing, 2)),
        threading.Thread(target=traffic.get, args=(going,)),
        threading.Thread(target=traffic.come_and_go, args=(going,)),
    ]
    for thread in threads:
        thread.start()
    return threads
