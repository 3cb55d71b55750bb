"""Hold a million delayed messages in little memory, and see how late those that are due are delivered.

    python tools/delays.py [--messages 1000000] [--rate 2000] [--memory 32] [--seconds 60] [--after 300]

A process of its own writes persistent messages of 1 KiB into the store of a queue; their times are in random order and
spread so that `--rate` are due in each second, from `--after` seconds on. A broker opens it, gets 2,000 more, and one
consumer takes what is due for `--seconds`.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty

from multiqueue.broker import Broker, Message, QueueSettings
from multiqueue.broker._base.message_codec import encode_message
from multiqueue.store import Put

PUBLISHED = 2_000


def resident() -> str:
    """What this process has in memory, and had at most."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    now, peak = (int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return f"{now:.0f} MiB resident, {peak:.0f} at most"


def message(due: float) -> Message:
    """One that is due at a moment, in seconds since 1970, which it tells."""
    delay = max(due - time.time(), 0.001)
    return Message(bytes(1024), routing_key="q", persistent=True, delay=delay, headers={"due": due})


def fill(data: str, messages: int, first: float, spread: float) -> None:
    """Make the queue, and its store."""
    numbers = random.Random(30)
    with Broker(data=data, durability="relaxed") as broker:
        broker.declare_queue("q", settings=QueueSettings(durable=True))
        journal = broker.queue("q").journal
        assert journal is not None, "a durable queue has one"
        for _ in range(0, messages, 1000):
            puts = []
            for _ in range(1000):
                one = message(first + numbers.random() * spread)
                until = math.ceil(1000 * one.headers["due"])
                puts.append(Put(journal.number, encode_message(one), bytes(1024), held_until_ms=until))
            journal.store.submit(puts)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, usual in (("messages", 1_000_000), ("rate", 2000), ("memory", 32), ("seconds", 60), ("after", 300)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    first, spread = time.time() + asked.after, asked.messages / asked.rate
    with tempfile.TemporaryDirectory(prefix="delays-") as data:
        filling = multiprocessing.get_context("spawn").Process(target=fill, args=(data, asked.messages, first, spread))
        filling.start()
        filling.join()
        print(f"filled, {first - time.time():.0f} s before the first is due; {resident()}", flush=True)
        begun = time.monotonic()
        with Broker(data=data, memory_limit=asked.memory << 20) as broker:
            print(f"opened in {time.monotonic() - begun:.1f} s; {resident()}", flush=True)
            begun, cpu = time.monotonic(), time.process_time()
            for number in range(PUBLISHED):
                broker.publish_nowait(message(first + spread + number / asked.rate))
            broker.wait_for_commits()
            took, cpu = time.monotonic() - begun, time.process_time() - cpu
            held = broker.queue("q").statistics().held
            memory = broker.virtual_host().memory_statistics().used / 2**20
            print(f"{PUBLISHED:,} published in {took:.1f} s, {cpu:.1f} s of CPU; {held:,} are held; {resident()},")
            print(f"{memory:.1f} MiB accounted; {first - time.time():.0f} s before the first is due", flush=True)
            measure(broker, first, asked.seconds)


def measure(broker: Broker, first: float, seconds: int) -> None:
    """Consume, and print how late messages were."""
    late: list[float] = []
    accounted, cpu = 0, 0.0
    with broker.subscribe("q", prefetch=1000) as consumer:
        while time.time() < first + seconds:
            with suppress(Empty):
                for received in consumer.get_many(256, timeout=0.1):
                    late.append(1000 * (time.time() - received.message.headers["due"]))
                    received.accept()
            if not cpu and late:
                cpu = time.process_time()
            accounted = max(accounted, broker.virtual_host().memory_statistics().used)
    cpu = time.process_time() - cpu
    late.sort()
    middle, most = (late[int(len(late) * share)] for share in (0.5, 0.99))
    print(f"{len(late):,} delivered in {seconds} s, {cpu:.1f} s of CPU, load {os.getloadavg()[0]:.1f};")
    print(f"late by {middle:.1f} ms (p50), {most:.1f} (p99), {late[-1]:.1f} at most, {late[0]:.1f} at least;")
    print(f"{resident()}, {accounted / 2**20:.1f} MiB accounted at most", flush=True)


if __name__ == "__main__":
    main()
