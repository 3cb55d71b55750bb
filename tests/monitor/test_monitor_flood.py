"""A flood over HTTP, by strangers and by users, one kind after the other and all at once, beside honest work."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika
import pytest

from multiqueue.amqp import hash_password

PROGRAM = Path(__file__).with_name("monitor_flood_program.py")
MEBIBYTE = 1 << 20
LIMIT = 300 * MEBIBYTE  # memory_limit_bytes
FILES = 1024  # that the broker may have open: fewer than silent peers want

CONFIG = """
[listen]
port = 0
[http]
port = 0
[data]
directory = "store"
messages_in_memory_bytes = 33554432
[limits]
memory_limit_bytes = {limit}
"""


class Sufferer:
    """Somebody who works honestly, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def end(self) -> None:
        """Work no more."""
        self._process.kill()
        self._process.wait()

    def took(self) -> list[float]:
        """Seconds that each piece of work took since the last call, in order."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return sorted(json.loads(self._process.stdout.readline()))


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a part of the flood; each ends with the test."""
    with ExitStack() as ends:

        def start_one(*arguments: str) -> subprocess.Popen[str]:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = ends.enter_context(subprocess.Popen([sys.executable, str(PROGRAM), *arguments], **pipes))
            ends.callback(process.kill)
            return process

        yield start_one


def broker_in(home: Path) -> tuple[subprocess.Popen[str], str, str]:
    """A broker in a process of its own, with few files; its URLs of AMQP and HTTP."""
    text = CONFIG.format(limit=LIMIT)
    for name in ("honest", "greedy", "curious"):
        text += f'[users.{name}]\npassword_hash = "{hash_password(name)}"\ntags = ["management"]\n'
        text += f'[users.{name}.permissions."/"]\n'
    (home / "broker.toml").write_text(text)
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "multiqueue", "broker", "--config", str(home / "broker.toml")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES)),
        )
    assert process.stdout is not None
    http = process.stdout.readline().split()[-1]
    amqp = process.stdout.readline().split(";")[0].split()[-1]
    return process, f"amqp://honest:honest@{amqp}/%2F", http


def rss(process: subprocess.Popen[str]) -> int:
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def fill(url: str, count: int, size: int) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name, body in (("zeros", bytes(size)), ("noise", os.urandom(size))):
            channel.queue_declare(name, durable=True)
            for _ in range(count):
                channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2))


FULL = {"silent": 1500, "wrong": 600, "streams": 128, "looks": 16}
SMALL = {"silent": 300, "wrong": 120, "streams": 40, "looks": 6}


@pytest.mark.parametrize(
    ("flood", "messages", "size", "seconds"),
    [
        pytest.param(SMALL, 12, MEBIBYTE, 2.0, marks=pytest.mark.slow(selected=True), id="small"),
        pytest.param(FULL, 125, 4 * MEBIBYTE, 15.0, marks=pytest.mark.slow, id="full"),
    ],
)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of another process is read from /proc")
def test_a_flood_is_the_flooders_alone(
    start: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    flood: dict[str, int],
    messages: int,
    size: int,
    seconds: float,
) -> None:
    """A publisher gets 99 of 100 confirms within 50 ms, a good caller each answer within a second, and memory stays
    within 100 MiB of its limit: while silent peers, wrong logins, unread streams and looks at gigabytes go on, one kind
    after the other and all at once. A machine that is busy anyway is given three times what it takes without a flood.
    (monitor 7)"""
    broker, amqp, http = broker_in(tmp_path)
    figures: dict[str, tuple[float, float, float, int]] = {}
    try:
        fill(amqp, messages, size)
        publisher, caller = Sufferer(start("publish", amqp)), Sufferer(start("good", http))
        time.sleep(seconds / 2)
        for phase in ("quiet", *flood, "all"):
            kinds = {"quiet": [], "all": list(flood)}.get(phase, [phase])
            floods = [start(kind, http, str(flood[kind])) for kind in kinds]
            most = 0
            publisher.took(), caller.took()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                most = max(most, rss(broker))
                time.sleep(0.02)
            confirms, answers = publisher.took(), caller.took()
            figures[phase] = (
                confirms[len(confirms) * 99 // 100],
                confirms[-1],
                answers[-1],
                most // MEBIBYTE,
            )
            for each in floods:
                each.kill()
                each.wait()
            # A new client of AMQP gets in, whatever HTTP has suffered.
            with pika.BlockingConnection(pika.URLParameters(amqp)):
                pass
        log = (tmp_path / "log").read_text()
        for each in (publisher, caller):
            each.end()
    finally:
        with broker:
            broker.send_signal(signal.SIGTERM)
    load = os.getloadavg()[0]
    for phase, (p99, worst, answer, memory) in figures.items():
        print(
            f"{phase:8} confirms p99 {p99 * 1e3:7.1f} ms, worst {worst * 1e3:7.1f} ms; "
            f"answers worst {answer * 1e3:7.1f} ms; RSS {memory} MiB"
        )
    print(f"log {len(log.splitlines())} lines; load {load:.1f}")
    quiet_p99, _, quiet_answer, _ = figures["quiet"]
    for phase, (p99, _, answer, memory) in figures.items():
        assert p99 < max(0.05, 3 * quiet_p99), (phase, figures)
        assert answer < max(1.0, 3 * quiet_answer), (phase, figures)
        assert memory * MEBIBYTE < LIMIT + 100 * MEBIBYTE, (phase, figures)
    assert len(log.splitlines()) < 100 + 20 * seconds, log
