"""A streaming query from a queue to Parquet whose driver is killed: nothing confirmed is lost, doubles are flagged."""

from __future__ import annotations

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
from pyspark.sql import SparkSession
from spark_streaming_query import finish
from spark_streaming_support import wait_for_depth, wait_for_steps

from multiqueue.broker import Broker
from multiqueue.client import connect

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("spark_streaming_query.py")
STARTS_WITHIN = 240.0  # seconds; a JVM on a busy machine
PARTS = ("spool", "checkpoint/offsets", "checkpoint/commits", "output/_spark_metadata")
ORDERS = 400  # to each life: three batches, of three files and more
STEPS = 8  # of those in a life, at most: a life may find a batch begun


class Publisher(threading.Thread):
    """Publishes `count` orders from number `first` on, confirmed ten by ten."""

    def __init__(self, url: str, first: int, count: int) -> None:
        super().__init__(name="publisher")
        self._url = url
        self._numbers = range(first, first + count)
        self.confirmed: list[str] = []

    def run(self) -> None:
        with connect(self._url) as connection, connection.channel() as channel:
            for number in self._numbers:
                channel.publish_confirmed(b"x", routing_key="orders", message_id=str(number), delivery_mode=2)
                if number % 10 == 9:
                    assert channel.wait_for_confirms(60)
            assert channel.wait_for_confirms(60)
        self.confirmed = [str(number) for number in self._numbers]


def start(url: str, directory: Path, form: str) -> subprocess.Popen[str]:
    """A driver with its JVM and its workers in a process group of its own."""
    path = os.pathsep.join([str(PROGRAM.parents[2]), str(PROGRAM.parents[1]), os.environ.get("PYTHONPATH", "")])
    with said_in(directory).open("w") as errors:
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), url, str(directory), form],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": path},
        )


def said_in(directory: Path) -> Path:
    """Where the driver's complaints are."""
    return directory / "driver.err"


def kill(driver: subprocess.Popen[str]) -> None:
    """Driver, JVM and Python workers, all at once."""
    try:
        os.killpg(driver.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    driver.communicate()


def names(directory: Path) -> set[Path]:
    """Every file by which a query has got on."""
    return {path for part in PARTS for path in directory.glob(f"{part}/*")}


def wait_for_first_offset(directory: Path, driver: subprocess.Popen[str]) -> None:
    """Spark itself does not go on from a checkpoint whose first offset was being written: no kill there."""
    deadline = time.monotonic() + STARTS_WITHIN
    while not (directory / "checkpoint/offsets/0").exists():
        assert driver.poll() is None, said_in(directory).read_text()[-5000:]
        assert time.monotonic() < deadline, said_in(directory).read_text()[-5000:]
        time.sleep(0.005)


def one_life(url: str, directory: Path, form: str, dice: random.Random) -> None:
    """Run the query, and kill it when it has got on by some steps, and somewhere in the next one."""
    before = names(directory)
    driver = start(url, directory, form)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "running\n", said_in(directory).read_text()[-5000:]
        wait_for_first_offset(directory, driver)
        wait_for_steps(lambda: names(directory), before, dice.randrange(STEPS), patience=STARTS_WITHIN)
        time.sleep(dice.uniform(0.0, 0.2))  # where it is then is for the dice
    finally:
        kill(driver)


@pytest.mark.parametrize(
    ("kills", "form"),
    [
        pytest.param(1, "leased", marks=pytest.mark.slow(selected=True), id="once"),
        pytest.param(3, "leased", marks=[pytest.mark.slow, pytest.mark.timeout(600)], id="a-few-leased"),
        pytest.param(3, "raw", marks=[pytest.mark.slow, pytest.mark.timeout(600)], id="a-few-spooled"),
        pytest.param(30, "leased", marks=[pytest.mark.slow, pytest.mark.timeout(3600)], id="many-leased"),
        pytest.param(30, "raw", marks=[pytest.mark.slow, pytest.mark.timeout(3600)], id="many"),
        pytest.param(5, "deduplicated", marks=[pytest.mark.slow, pytest.mark.timeout(1200)], id="deduplicated"),
    ],
)
def test_a_killed_driver(tmp_path: Path, spark: SparkSession, kills: int, form: str) -> None:
    """Whenever the driver is killed, every confirmed message is in the output, by a lease once. By a spool it can be
    there twice, then at most one copy is not flagged as redelivered; by message id each is there once, in the stream
    itself if it says so.
    """
    dice = random.Random(kills)
    with Broker(data=tmp_path / "data") as broker:
        url = broker.listen().url
        with connect(url) as connection, connection.channel() as channel:
            channel.queue_declare("orders", durable=True)
        confirmed: list[str] = []
        for life in range(kills):
            publisher = Publisher(url, life * ORDERS, ORDERS)
            publisher.start()
            try:
                one_life(url, tmp_path, form, dice)
            finally:
                publisher.join()
            confirmed += publisher.confirmed
        rows = finish(spark, url, str(tmp_path), form)
        wait_for_depth(url, "orders", 0)
    assert len(confirmed) == kills * ORDERS
    assert {id for id, _ in rows} == set(confirmed)
    first_copies = Counter(id for id, redelivered in rows if not redelivered)
    assert all(copies == 1 for copies in first_copies.values())
    if form != "raw":
        assert len(rows) == len(confirmed)
