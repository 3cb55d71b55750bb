"""The pipeline as a service: it follows a directory and a broker's queue, is killed, goes on, and ends on SIGTERM."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_pipeline_spark import COMMAND, environment, rows, wait_for_done

from multiqueue.amqp import Server, serve
from multiqueue.broker import Broker
from multiqueue.client import Channel, connect

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TOML = """\
[spark]
master = "local[2]"
max_running = 3
[lanes.orders]
source = "%(url)s/work"
format = "message"
priority = -1
[lanes.named]
files = "elsewhere.txt"
events = "%(url)s/paths"
format = "text"
[lanes.files]
files = "drop/*.txt"
format = "text"
batch = 1
[job]
python = "service_job:values"
[output]
path = "out"
format = "json"
expect = "value STRING"
[retry]
attempts = 2
backoff = 0.1
[follow]
poll = 0.2
settle = 0.3
"""

JOB = """\
import time

def values(spark, frame, item):
    time.sleep(0.2)
    if any(message.body == b"poison" for message in item.messages):
        raise ValueError("poison")
    return frame.selectExpr("CAST(body AS STRING) AS value") if item.lane == "orders" else frame.select("value")
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with Broker() as broker, serve(broker) as started:
        yield started


@pytest.fixture
def channel(server: Server) -> Iterator[Channel]:
    with connect(server.url) as connection:
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("work", durable=True, arguments=arguments)
        channel.queue_declare("paths", durable=True)
        yield channel


def publish(channel: Channel, queue: str, *bodies: str) -> None:
    for body in bodies:
        channel.publish_confirmed(body.encode(), routing_key=queue, message_id=f"id-{body}").result(30)


def started(base: Path) -> Any:
    return subprocess.Popen(
        [*COMMAND, "pipeline", "run", "p.toml", "--follow", "--metrics", "m.json"],
        cwd=base,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow(selected=True)
def test_a_service(tmp_path: Path, server: Server, channel: Channel) -> None:
    """Messages, files that messages name and files that come are each in the output once.

    What cannot be done is dead-lettered by the broker and by us; SIGTERM ends the service in peace, and its numbers
    are in the file.
    """
    serve_and_stop(tmp_path, server, channel, is_killed=False)


@pytest.mark.slow
def test_a_service_that_is_killed(tmp_path: Path, server: Server, channel: Channel) -> None:
    """All that holds as well when the service is killed in the middle and started again."""
    serve_and_stop(tmp_path, server, channel, is_killed=True)


def serve_and_stop(tmp_path: Path, server: Server, channel: Channel, *, is_killed: bool) -> None:
    (tmp_path / "p.toml").write_text(TOML % {"url": server.url})
    (tmp_path / "service_job.py").write_text(JOB)
    (tmp_path / "drop").mkdir()
    drop: Callable[[str], int] = lambda name: (tmp_path / "drop" / f"{name}.txt").write_text(f"{name}\n")  # noqa: E731
    (tmp_path / "elsewhere.txt").write_text("elsewhere\n")
    first = [f"m{number}" for number in range(12)]
    publish(channel, "work", *first, "poison")
    publish(channel, "paths", "elsewhere.txt")
    drop("f0")
    if is_killed:
        with started(tmp_path) as service:
            try:
                wait_for_done(tmp_path, 5, service)
            finally:
                service.kill()
    with started(tmp_path) as service:
        try:
            publish(channel, "work", "m0", "late")
            drop("f1")
            wait_for_done(tmp_path, 16, service, failed=1)
            service.send_signal(signal.SIGTERM)
            _, said = service.communicate(timeout=120)
        finally:
            service.kill()
    assert (service.returncode, said) == (1, "")
    assert sorted(str(row["value"]) for row in rows(tmp_path / "out")) == sorted(
        [*first, "late", "f0", "f1", "elsewhere"]
    )
    assert channel.queue_declare("work", passive=True).message_count == 0
    assert channel.basic_get("dead", auto_ack=True).body == b"poison"  # type: ignore[union-attr]
    (letter,) = (tmp_path / "out" / "failed").rglob("*.json")
    assert json.loads(letter.read_text())["messages"][0]["body"] == "poison"
    metrics = json.loads((tmp_path / "m.json").read_text())
    assert (metrics["total"]["done"], metrics["total"]["failed"], metrics["running"]) == (16, 1, False)
