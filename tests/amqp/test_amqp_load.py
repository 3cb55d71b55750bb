"""A broker that is used hard: many connections, random cuts, and no message lost."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from amqp_raw_support import Closed, RawClient
from pamqp import commands

from multiqueue import amqp
from multiqueue.broker import Broker

SEED = 20261121


def publish(url: str, queue: str, numbers: range, chance: random.Random, confirmed: set[int]) -> None:
    """Publish numbers with confirms; now and then cut the connection, and begin anew with what is not confirmed."""
    left = list(numbers)
    while left:
        with RawClient(url) as client:
            client.call(1, commands.Confirm.Select)
            batch = left[: chance.randint(1, 60)]
            for number in batch:
                client.publish("", queue, b"%d" % number, delivery_mode=2)
            try:
                told = 0
                until = len(batch) if chance.random() < 0.7 else chance.randrange(len(batch))
                while told < until:
                    ack = client.method()
                    assert isinstance(ack, amqp.Ack)
                    told = ack.delivery_tag if ack.multiple else told + 1
                    confirmed.update(batch[:told] if ack.multiple else [batch[ack.delivery_tag - 1]])
            except Closed:
                pass
            client.socket.close()
        left = [number for number in left if number not in confirmed]


def consume(url: str, queue: str, chance: random.Random, seen: Counter[int], enough: threading.Event) -> None:
    """Consume with acks; now and then leave with messages in hand. Flagged ones may have been seen before."""
    while not enough.is_set():
        client = RawClient(url)
        client.call(1, commands.Basic.Qos, prefetch_count=chance.randint(1, 30))
        client.consume(queue)
        client.socket.settimeout(0.2)
        try:
            for _ in range(chance.randint(1, 150)):
                delivery = client.content()
                number = int(delivery.body)
                seen[number] += 1
                client.ack(delivery.method.delivery_tag)
        except TimeoutError:
            pass
        client.socket.close()


def check_nothing_is_lost(count: int, data: Path) -> None:
    """With publishers and consumers that are cut at random, every confirmed message is consumed at least once."""
    confirmed: list[set[int]] = [set() for _ in range(3)]
    seen: Counter[int] = Counter()
    enough = threading.Event()
    with Broker(data=data) as broker, amqp.serve(broker) as server:
        broker.declare_queue("q", durable=True)
        publishers = [
            threading.Thread(
                target=publish,
                args=(server.url, "q", range(n * count, (n + 1) * count), random.Random(SEED + n), confirmed[n]),
            )
            for n in range(3)
        ]
        consumers = [
            threading.Thread(target=consume, args=(server.url, "q", random.Random(SEED - n), seen, enough))
            for n in range(1, 4)
        ]
        for thread in (*publishers, *consumers):
            thread.start()
        for thread in publishers:
            thread.join()
        while broker.queue("q").statistics().depth:
            enough.wait(0.01)
        enough.set()
        for thread in consumers:
            thread.join()
        broker.virtual_host().check_invariants()
        # What was on its way when the consumer left is back on the queue: it was consumed by nobody, or acked.
        left = set()
        while (received := broker.get("q", auto_accept=True)) is not None:
            body = received.body
            assert isinstance(body, bytes)
            left.add(int(body))
    assert set().union(*confirmed) == set(range(3 * count))
    assert set(range(3 * count)) <= set(seen) | left


@pytest.mark.slow(selected=True)
def test_what_was_confirmed_is_consumed(tmp_path: Path) -> None:
    """Whatever connections are cut, of 900 messages none that was confirmed is lost."""
    check_nothing_is_lost(300, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_was_confirmed_is_consumed_for_minutes(tmp_path: Path) -> None:
    """The same of 60,000, a minute or two."""
    check_nothing_is_lost(20_000, tmp_path)


@pytest.mark.slow
def test_the_frame_path_under_a_coverage_guided_fuzzer(tmp_path: Path) -> None:
    """atheris, where it is installed, finds in a minute no bytes that a connection answers with a fault of ours."""
    pytest.importorskip("atheris")
    program = Path(__file__).with_name("amqp_fuzz_program.py")
    command = [sys.executable, program, tmp_path, "-max_total_time=60", "-max_len=600"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
