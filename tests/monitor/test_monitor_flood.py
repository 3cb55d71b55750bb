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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pytest

from multiqueue.amqp import hash_password

PROGRAM = Path(__file__).with_name("monitor_flood_program.py")
MEBIBYTE = 1 << 20
LIMIT = 300 * MEBIBYTE  # memory_limit_bytes

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

    def __enter__(self) -> Sufferer:
        return self

    def __exit__(self, *exc_info: object) -> None:
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


@contextmanager
def run(home: Path, files: int) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A broker in a process of its own, which may have so many files; its URLs of AMQP and HTTP."""
    home.mkdir()
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
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
        )
    assert process.stdout is not None
    http = process.stdout.readline().split()[-1]
    amqp = process.stdout.readline().split(";")[0].split()[-1]
    with process:
        try:
            yield process, f"amqp://honest:honest@{amqp}/%2F", http
        finally:
            process.send_signal(signal.SIGTERM)


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
    ("flood", "files", "messages", "size", "seconds"),
    [
        pytest.param(SMALL, 1024, 12, MEBIBYTE, 2.0, marks=pytest.mark.slow, id="small"),
        pytest.param(FULL, 4096, 125, 4 * MEBIBYTE, 15.0, marks=pytest.mark.slow, id="full"),
    ],
)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of another process is read from /proc")
def test_a_flood_is_the_flooders_alone(
    start: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    flood: dict[str, int],
    files: int,
    messages: int,
    size: int,
    seconds: float,
) -> None:
    """A publisher gets 99 of 100 confirms within 50 ms, a good caller each answer within a second, and memory stays
    within 100 MiB of its limit: while silent peers, wrong logins, unread streams and looks at gigabytes go on, one kind
    after the other and all at once. On a busy machine, or beside floods that take its processors, it is at most three
    times what both have at a second broker, which nobody floods. (monitor 7)"""
    home, other = tmp_path / "flooded", tmp_path / "other"
    with ExitStack() as ends:
        (broker, amqp, http), (_, amqp_beside, http_beside) = (
            ends.enter_context(run(each, files)) for each in (home, other)
        )
        fill(amqp, messages, size)
        pairs = [("publish", amqp), ("good", http), ("publish", amqp_beside), ("good", http_beside)]
        sufferers = [ends.enter_context(Sufferer(start(*each))) for each in pairs]
        time.sleep(seconds / 2)
        figures: dict[str, Figures] = {}
        for phase in ("quiet", *flood, "all"):
            kinds = {"quiet": [], "all": list(flood)}.get(phase, [phase])
            floods = [start(kind, http, str(flood[kind])) for kind in kinds]
            most = 0
            for each in sufferers:
                each.took()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                most = max(most, rss(broker))
                time.sleep(0.02)
            confirms, answers, confirms_beside, answers_beside = [each.took() for each in sufferers]
            p99, p99_beside = (each[len(each) * 99 // 100] for each in (confirms, confirms_beside))
            figures[phase] = Figures(p99, p99_beside, confirms[-1], answers[-1], answers_beside[-1], most)
            for process in floods:
                process.kill()
                process.wait()
            # A new client of AMQP gets in, whatever HTTP has suffered.
            with pika.BlockingConnection(pika.URLParameters(amqp)):
                pass
    log = (home / "log").read_text()
    for phase, each in figures.items():
        print(f"{phase:8} {each}")
    print(f"log {len(log.splitlines())} lines; load {os.getloadavg()[0]:.1f}")
    for phase, each in figures.items():
        assert each.p99 < max(0.05, 3 * each.p99_beside), (phase, each)
        assert each.answer < max(1.0, 3 * each.answer_beside), (phase, each)
        assert each.memory < LIMIT + 100 * MEBIBYTE, (phase, each)
    assert len(log.splitlines()) < 100 + 20 * seconds, log


class Figures(NamedTuple):
    """Of one phase, in seconds and bytes; `beside` at the broker that nobody floods."""

    p99: float
    p99_beside: float
    worst: float
    answer: float
    answer_beside: float
    memory: int

    def __str__(self) -> str:
        p99, p99_beside, worst, answer, answer_beside = (f"{each * 1e3:.1f} ms" for each in self[:5])
        return (
            f"confirms p99 {p99} (beside {p99_beside}), worst {worst}; "
            f"answers worst {answer} (beside {answer_beside}); RSS {self.memory // MEBIBYTE} MiB"
        )
