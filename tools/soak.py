#!/usr/bin/env python3
"""A soak: a broker under a steady load for hours, ended in turn by SIGTERM and kill -9; what it uses and loses.

    python tools/soak.py --minutes 120 --rate 100 --end-every 300 --record docs/measurements

The broker is `multiqueue broker --data DIR` in a process of its own. This process publishes persistent messages with
confirms, two channels consume and acknowledge. Each half minute is a row: the broker's memory, threads, open files
and disk, the depth of the queue, and the time from publish to delivery. The end is a verdict: a message that never
came is lost, and the status is 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path

import multiqueue
from multiqueue.client import Channel, ConnectionInterrupted, Message, connect

QUEUE = "soak"
ROW_S = 30.0
BODY = 512  # bytes
DRAINED_WITHIN_S = 120.0


@dataclass
class Row:
    """The figures of the last half minute. Times in milliseconds, sizes in MiB."""

    minute: float
    published: int
    handled: int
    doubled: int
    depth: int
    p50_ms: float
    p99_ms: float
    memory_mib: float
    threads: int
    files: int
    disk_mib: float
    ends: int


class Broker:
    """The process, started again over the same directory and port."""

    def __init__(self, data: Path) -> None:
        self.data, self.port, self.ends = data, 0, 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "multiqueue", "broker", "--port", str(self.port), "--data", str(self.data)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.search(r"listening on \S*:(\d+)", said)
        if found is None:
            sys.exit(f"the broker did not start: {said}")
        self.port = int(found[1])

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.communicate()
        self.ends += 1

    def uses(self) -> tuple[float, int, int, float]:
        """Resident memory in MiB, threads, open files, and the data directory's size in MiB."""
        process = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        files = len(list((process / "fd").iterdir()))
        disk = sum(path.stat().st_size for path in self.data.rglob("*") if path.is_file())
        return int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"]), files, disk / 2**20


class Traffic:
    """The messages that were published, confirmed and handled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.published = self.handled = self.doubled = 0
        self.unconfirmed: set[int] = set()
        self.seen: set[int] = set()  # those from `floor` on; all below it were handled
        self.floor = 0
        self.times: list[float] = []  # of this row, in milliseconds
        self.stop = threading.Event()

    def publish(self, channel: Channel, rate: float) -> None:
        number, due = 0, time.monotonic()
        padding = b"x" * BODY
        while not self.stop.is_set():
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))
            body = b"%d %d %s" % (number, time.monotonic_ns(), padding)
            with self.lock:
                self.unconfirmed.add(number)
            try:
                confirm = channel.publish_confirmed(body, routing_key=QUEUE, delivery_mode=2, timeout=60)
            except ConnectionInterrupted:
                due = time.monotonic()  # the rate again from here: what could not be published is not caught up
                time.sleep(0.05)
                continue
            confirm.add_done_callback(partial(self.confirm, number))
            number += 1
            with self.lock:
                self.published = number

    def confirm(self, number: int, done: Future[None]) -> None:
        if done.exception() is None:
            with self.lock:
                self.unconfirmed.discard(number)

    def handle(self, message: Message) -> None:
        number, at = map(int, message.body.split(b" ", 2)[:2])
        with self.lock:
            if number < self.floor or number in self.seen:
                self.doubled += 1
            else:
                self.seen.add(number)
                self.handled += 1
                while self.floor in self.seen:
                    self.seen.discard(self.floor)
                    self.floor += 1
            self.times.append((time.monotonic_ns() - at) / 1e6)
        message.ack()

    def row(self, broker: Broker, minute: float, depth: int) -> Row:
        with self.lock:
            times, self.times = sorted(self.times) or [0.0], []
            memory, threads, files, disk = broker.uses()
            return Row(
                minute=round(minute, 1),
                published=self.published,
                handled=self.handled,
                doubled=self.doubled,
                depth=depth,
                p50_ms=round(statistics.median(times), 2),
                p99_ms=round(times[len(times) * 99 // 100], 2),
                memory_mib=round(memory, 1),
                threads=threads,
                files=files,
                disk_mib=round(disk, 1),
                ends=broker.ends,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--rate", type=float, default=100, help="messages a second")
    parser.add_argument("--end-every", type=float, default=300, help="seconds between two ends of the broker; 0: none")
    parser.add_argument("--record", type=Path, help="a directory for the record")
    options = parser.parse_args()
    logging.getLogger("multiqueue").setLevel(logging.CRITICAL)  # connections are lost all the time
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="multiqueue-soak-") as directory:
        broker = Broker(Path(directory) / "data")
        traffic = Traffic()
        with connect(f"amqp://guest:guest@127.0.0.1:{broker.port}/") as connection:
            channel, watching = connection.channel(), connection.channel()
            channel.queue_declare(QUEUE, durable=True)
            for _ in range(2):
                consumer = connection.channel()
                consumer.basic_qos(50)
                consumer.basic_consume(QUEUE, traffic.handle)
            publisher = threading.Thread(target=traffic.publish, args=(channel, options.rate), name="publisher")
            publisher.start()
            start = row_at = end_at = time.monotonic()
            while (now := time.monotonic()) < start + 60 * options.minutes:
                time.sleep(0.5)
                if now >= row_at + ROW_S:
                    row_at = now
                    try:
                        depth = watching.queue_declare(QUEUE, passive=True).message_count
                    except ConnectionInterrupted:
                        continue
                    rows.append(traffic.row(broker, (now - start) / 60, depth))
                    print(json.dumps(asdict(rows[-1])), flush=True)
                if options.end_every and now >= end_at + options.end_every:
                    end_at = now
                    broker.end(signal.SIGKILL if broker.ends % 2 else signal.SIGTERM)
                    broker.start()
            traffic.stop.set()
            publisher.join()
            deadline = time.monotonic() + DRAINED_WITHIN_S
            while traffic.handled < traffic.published and time.monotonic() < deadline:
                time.sleep(0.1)
            rows.append(traffic.row(broker, (time.monotonic() - start) / 60, 0))
        broker.end(signal.SIGTERM)
        check = [sys.executable, "-m", "multiqueue", "store", "check", str(Path(directory) / "data" / "%2f")]
        checked = subprocess.run(check, capture_output=True, text=True, check=False)
    lost = traffic.published - traffic.handled
    state = "sound" if checked.returncode == 0 else f"NOT sound: {checked.stdout}"
    verdict = (
        f"{traffic.published:,} published, {traffic.published - len(traffic.unconfirmed):,} confirmed,"
        f" {traffic.handled:,} handled, {lost} lost, {traffic.doubled} delivered twice,"
        f" {broker.ends} ends of the broker; the store is {state}"
    )
    print(verdict)
    if options.record:
        record(options, rows, verdict)
    return 1 if lost or checked.returncode else 0


def record(options: argparse.Namespace, rows: list[Row], verdict: str) -> None:
    """A page, and its rows as JSON beside it."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"{date.today()}-soak-{python}"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    facts = {
        "command": f"python tools/soak.py --minutes {options.minutes:g} --rate {options.rate:g}"
        f" --end-every {options.end_every:g}",
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "multiqueue": multiqueue.__version__,
        "commit": commit.stdout.strip() or "unknown",
    }
    document = {"facts": facts, "verdict": verdict, "rows": [asdict(row) for row in rows]}
    (options.record / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    step = max(1, len(rows) // 12)
    shown = [*rows[::step], *([] if (len(rows) - 1) % step == 0 else rows[-1:])]
    head = list(asdict(rows[0]))
    lines = [
        f"# A soak on {date.today()}",
        "",
        *(f"- {key}: `{value}`" for key, value in facts.items()),
        "",
        f"{verdict[0].upper()}{verdict[1:]}.",
        "",
        f"One publisher with confirms, persistent messages of {BODY} bytes, two consumers; SIGTERM and kill -9 in turn."
        " Times are from publish to delivery, over the wire and the disk, and those of the half minute before.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---:|" * len(head),
        *("| " + " | ".join(f"{value:,}" for value in asdict(row).values()) + " |" for row in shown),
        "",
    ]
    (options.record / f"{name}.md").write_text("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
