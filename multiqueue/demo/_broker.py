"""`multiqueue demo broker`: a broker in a separate process is killed while messages flow, and none is lost.

The broker is `multiqueue broker --data DIR`; a client publishes with confirms and two channels consume. `kill -9` ends
the broker, another one starts over the same directory, and the client finds it again by itself.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live

from .._locks import Lock
from ..client import Channel, Closed, ConnectionInterrupted, Message, connect
from ..errors import MultiQueueError
from ._picture import Picture, Row

_RATE = 200  # messages a second
_MESSAGES = 1200
_KILLED_AT_S = 2.5
_PATIENCE_S = 30.0  # a demonstration in which nothing happens for so long gives up
_SHOWN_S = 8.0  # the width of the picture: a little more than _MESSAGES take
_QUEUE = "demo"


class DemoFailed(MultiQueueError):
    """The demonstration did not show what it promises."""

    exit_status = 1


@dataclass
class Record:
    """The moments of each kind of event, in seconds from the start."""

    start: float = field(default_factory=time.monotonic)
    up: list[float] = field(default_factory=list)
    published: list[float] = field(default_factory=list)
    confirmed: list[float] = field(default_factory=list)
    handled: list[float] = field(default_factory=list)
    numbers: Counter[int] = field(default_factory=Counter)  # how often each message was handled
    _lock: Lock = field(default_factory=Lock)  # of `handled` and `numbers`

    def now(self) -> float:
        return time.monotonic() - self.start

    def confirm(self, confirm: Future[None]) -> None:
        """The broker has a message on disk. The client's thread calls."""
        if confirm.exception() is None:
            self.confirmed.append(self.now())

    def handle(self, message: Message) -> None:
        """A message arrived. The callbacks of both channels call, at the same time."""
        with self._lock:
            self.numbers[int(message.body)] += 1
            self.handled.append(self.now())
        message.ack()

    def is_complete(self) -> bool:
        return len(self.confirmed) >= _MESSAGES and len(self.numbers) >= _MESSAGES

    def is_stuck(self) -> bool:
        last_s = max([0.0, *self.published[-1:], *self.confirmed[-1:], *self.handled[-1:]])
        return self.now() - last_s > _PATIENCE_S

    def picture(self) -> Picture:
        rows = [
            Row("broker up", list(self.up), "", "green"),
            Row("confirmed", list(self.confirmed), f"{len(self.confirmed):,}", "blue"),
            Row("handled", list(self.handled), f"{len(self.numbers):,}", "cyan"),
        ]
        return Picture(rows, max([_SHOWN_S, *(row.moments[-1] for row in rows if row.moments)]))


def run_broker(console: Console) -> None:
    """Publish, kill, restart, and count.

    Raises:
        DemoFailed: the broker did not start, or a message was not confirmed or did not arrive.
    """
    console.print(
        f"A broker in a separate process, two consumers, {_RATE} messages a second, each confirmed once it is on"
        f" disk. After {_KILLED_AT_S} s kill -9 ends the broker, and another one starts over the same directory.\n"
    )
    with _quiet_client(), tempfile.TemporaryDirectory(prefix="multiqueue-demo-") as directory:
        record = _run(console, Path(directory))
    lost = len(record.published) - len(record.numbers)
    doubled = sum(record.numbers.values()) - len(record.numbers)
    console.print("" if console.is_terminal else "\n")
    console.print(
        f"{len(record.published):,} published, {len(record.confirmed):,} confirmed, {len(record.numbers):,} handled,"
        f" {lost} lost; {doubled} handled twice, because the broker had not seen their acknowledgement.\n"
    )
    if not record.is_complete():
        raise DemoFailed(
            f"of {_MESSAGES} messages {_MESSAGES - len(record.published)} could not be published,"
            f" {len(record.published) - len(record.confirmed)} were not confirmed, {lost} were lost"
        )
    console.print("multiqueue broker --data DIR", style="cyan")
    console.print("from multiqueue.client import connect", style="cyan")
    console.print('connection = connect("amqp://localhost")', style="cyan")


@contextmanager
def _quiet_client() -> Iterator[None]:
    """The client would tell of the connection that it loses."""
    logger = logging.getLogger("multiqueue")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _run(console: Console, data: Path) -> Record:
    with ExitStack() as servers:  # they end after the connection
        first, port = servers.enter_context(_server(data, 0))
        record = Record()
        with (
            connect(f"amqp://guest:guest@127.0.0.1:{port}/") as connection,
            Live(console=console, refresh_per_second=8, get_renderable=record.picture),
        ):
            channel = connection.channel()
            channel.queue_declare(_QUEUE, durable=True)
            for _ in range(2):
                consumer = connection.channel()
                consumer.basic_qos(20)
                consumer.basic_consume(_QUEUE, record.handle)
            running, stop = [first], threading.Event()
            threads = [
                threading.Thread(target=_watch, args=(record, running, stop), name="demo-watcher", daemon=True),
                threading.Thread(target=_publish, args=(channel, record), name="demo-publisher", daemon=True),
            ]
            for thread in threads:
                thread.start()
            time.sleep(_KILLED_AT_S)
            first.kill()
            first.wait()
            running.append(servers.enter_context(_server(data, port))[0])
            while not record.is_complete() and not record.is_stuck():
                time.sleep(0.05)
            stop.set()
            for thread in threads:
                thread.join()
    return record


def _publish(channel: Channel, record: Record) -> None:
    """Publish at the rate. The client sends again what it has taken; without a connection it takes nothing.

    It ends with its connection: where Ctrl-C ends the broker too, that may be told before the demonstration ends.
    """
    for number in range(_MESSAGES):
        time.sleep(1 / _RATE)
        while not record.is_stuck():
            try:
                confirm = channel.publish_confirmed(b"%d" % number, routing_key=_QUEUE, delivery_mode=2)
            except ConnectionInterrupted:
                time.sleep(0.05)
                continue
            except Closed:
                return
            record.published.append(record.now())
            confirm.add_done_callback(record.confirm)
            break


def _watch(record: Record, running: list[subprocess.Popen[str]], stop: threading.Event) -> None:
    while not stop.wait(0.05):
        if running[-1].poll() is None:
            record.up.append(record.now())


@contextmanager
def _server(data: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A broker's process, and the port it listens on."""
    command = [sys.executable, "-m", "multiqueue", "broker", "--port", str(port), "--data", str(data)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"listening on \S*:(\d+)", said)
        if found is None:
            raise DemoFailed(f"the broker did not start: {(said + process.communicate()[1]).strip()}")
        yield process, int(found[1])
    finally:
        process.terminate()
        process.communicate()
