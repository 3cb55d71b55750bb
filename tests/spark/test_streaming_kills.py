"""A streaming query from a queue to Parquet whose driver is killed: nothing confirmed is lost, doubles are flagged."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from spark_streaming_support import wait_for_depth

from multiqueue.broker import Broker
from multiqueue.client import connect

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("spark_streaming_query.py")
STARTS_WITHIN = 240.0  # seconds; a JVM on a busy machine


class Publisher(threading.Thread):
    """Publishes numbered orders, confirmed, until it is told to end."""

    def __init__(self, url: str) -> None:
        super().__init__(name="publisher")
        self._url = url
        self._ends = threading.Event()
        self.confirmed: list[str] = []

    def run(self) -> None:
        with connect(self._url) as connection, connection.channel() as channel:
            while not self._ends.wait(0.005):
                ids = [str(len(self.confirmed) + index) for index in range(10)]
                for each in ids:
                    channel.publish_confirmed(b"x", routing_key="orders", message_id=each, delivery_mode=2)
                assert channel.wait_for_confirms(60)
                self.confirmed += ids

    def end(self) -> None:
        self._ends.set()
        self.join()


def start(what: str, url: str, directory: Path, form: str) -> subprocess.Popen[str]:
    """A driver with its JVM and its workers in a process group of its own."""
    path = os.pathsep.join([str(PROGRAM.parents[2]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), what, url, str(directory), form],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": path},
    )


def kill(driver: subprocess.Popen[str]) -> None:
    """Driver, JVM and Python workers, all at once."""
    try:
        os.killpg(driver.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    driver.communicate()


def one_life(url: str, directory: Path, form: str, seconds: float) -> None:
    """Run the query, and kill it `seconds` after it has begun."""
    driver = start("run", url, directory, form)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "running\n"
        time.sleep(seconds)  # where it is then is for the dice
    finally:
        kill(driver)


def last_life(url: str, directory: Path, form: str) -> list[tuple[str, bool]]:
    """Let the query read the rest; returns the output's message ids, with whether they were redelivered."""
    driver = start("finish", url, directory, form)
    try:
        out, _ = driver.communicate(timeout=STARTS_WITHIN)
    finally:
        kill(driver)
    [line] = [line for line in out.splitlines() if line.startswith("output ")]
    return [tuple(row) for row in json.loads(line.removeprefix("output "))]


@pytest.mark.parametrize(
    ("kills", "form"),
    [
        pytest.param(3, "raw", marks=pytest.mark.slow(selected=True), id="a-few"),
        pytest.param(30, "raw", marks=[pytest.mark.slow, pytest.mark.timeout(3600)], id="many"),
        pytest.param(5, "deduplicated", marks=[pytest.mark.slow, pytest.mark.timeout(1200)], id="deduplicated"),
    ],
)
def test_a_killed_driver(tmp_path: Path, kills: int, form: str) -> None:
    """Whenever the driver is killed, every confirmed message is in the output. A message can be there twice, then at
    most one copy is not flagged as redelivered; by message id each is there once, in the stream itself if it says so.
    """
    dice = random.Random(kills)
    with Broker(data=tmp_path / "data") as broker:
        url = broker.listen().url
        with connect(url) as connection, connection.channel() as channel:
            channel.queue_declare("orders", durable=True)
        publisher = Publisher(url)
        publisher.start()
        try:
            for _ in range(kills):
                one_life(url, tmp_path, form, dice.uniform(0.0, 6.0))
        finally:
            publisher.end()
        rows = last_life(url, tmp_path, form)
        wait_for_depth(url, "orders", 0)
    assert publisher.confirmed
    assert {id for id, _ in rows} == set(publisher.confirmed)
    first_copies = Counter(id for id, redelivered in rows if not redelivered)
    assert max(first_copies.values()) == 1
    if form == "deduplicated":
        assert len(rows) == len(publisher.confirmed)
