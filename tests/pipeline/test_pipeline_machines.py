"""Machines that share nothing: the guide's commands on them, and what is right after each of them has died."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from machines_support import HOUSE, Machine, Program, machines, missing_for_machines, pack, services
from pipeline_support import do_without
from postgres_support import PASSWORD, NoPeer, Postgres, postgres

from multiqueue.amqp import Permissions, User
from multiqueue.broker import Broker
from multiqueue.client import connect
from multiqueue.errors import Empty
from multiqueue.testing import PATIENCE

if TYPE_CHECKING:
    from s3_support import Store

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

GUIDE = HOUSE / "docs" / "guides" / "laptop-to-cluster.md"
WORKERS = ("worker-1", "worker-2")
DRIVERS = ("driver-1", "driver-2")


def commands(where: str) -> str:
    """What the guide says to run on this machine, a command a line."""
    blocks = re.findall(r"<!-- on: (.*?) -->\n\n((?:    .*\n)+)", GUIDE.read_text())
    return "".join(block.replace("    ", "", 1).replace("\n    ", "\n") for name, block in blocks if name == where)


@dataclass
class Lab:
    """The machines, and what `services` has."""

    machines: dict[str, Machine]
    store: Store
    state: Postgres
    broker: str
    """Its URL."""
    base: Path

    def start(self, machine: str, command: str) -> Program:
        """Start it there, with the secrets of this run and limits that fit into a small machine."""
        secrets = {"STATE_PASSWORD": PASSWORD, "LAKE_KEY": "access-of-the-tests", "LAKE_SECRET": "secret-of-the-tests"}
        limits = {
            "SPARK_WORKER_CORES": "1",
            "SPARK_WORKER_MEMORY": "1g",
            "SPARK_MASTER_OPTS": "-Dspark.worker.timeout=20",
        }
        return self.machines[machine].start(command, **secrets, **limits)

    def start_master(self) -> Program:
        master = self.start("master", commands("master"))
        master.wait_for("Starting Spark master at")
        return master

    def install(self, batch: int) -> None:
        """The archive and the programs on both drivers, with the ports of this run."""
        changed = {
            "services:9000": f"services:{self.store.endpoint.rpartition(':')[2]}",
            "services:5672": f"services:{urlsplit(self.broker).port}",
            "lake:${STATE_PASSWORD}@services/lake": f"tester:${{STATE_PASSWORD}}@services:{self.state.port}/postgres",
            'format = "csv"': f'format = "csv"\nbatch = {batch}',
            '"spark.cores.max" = 8': '"spark.cores.max" = 1',
            '"spark.cores.max", 8': '"spark.cores.max", 1',
        }
        pack(self.base / "packages.tar.gz", "s3fs", "pamqp")
        for driver in DRIVERS:
            there = self.machines[driver].directory
            shutil.copy(self.base / "packages.tar.gz", there)
            (there / "volume").mkdir()
            for path in (HOUSE / "examples" / "cluster").glob("s*.*"):
                text = path.read_text()
                for name, found in changed.items():
                    text = text.replace(name, found)
                (there / path.name).write_text(text)

    def feed(self, files: int, messages: int, orders: int) -> None:
        """Sales of three shops, a row a file, and online, and orders to ship."""
        self.store.client.create_bucket(Bucket="lake")
        for number in range(files):
            body = f"id,price\n{number},{number / 100:.2f}\n".encode()
            self.store.client.put_object(Bucket="lake", Key=f"inbox/shop{number % 3}/{number:04}.csv", Body=body)
        with connect(self.broker) as connection, connection.channel() as channel:
            for queue, first, count in (("sales", files, messages), ("orders", 0, orders), ("shipped", 0, 0)):
                channel.queue_declare(queue, durable=True)
                for number in range(first, first + count):
                    body = b'{"id": %d, "price": "%.2f"}' % (number, number / 100)
                    channel.publish_confirmed(body, routing_key=queue, message_id=f"{queue}-{number}", delivery_mode=2)
            assert channel.wait_for_confirms(PATIENCE)

    def forget(self) -> None:
        """Remove the bucket: the stand-in keeps it for its process's next test, with the table of another state."""
        for page in self.store.client.get_paginator("list_objects_v2").paginate(Bucket="lake"):
            for found in page.get("Contents", ()):
                self.store.client.delete_object(Bucket="lake", Key=found["Key"])
        self.store.client.delete_bucket(Bucket="lake")

    def done(self) -> int:
        """How many items are done, by the state."""
        import psycopg

        with psycopg.connect(self.state.url) as connection, contextlib.suppress(psycopg.errors.UndefinedTable):
            return connection.execute("SELECT count(*) FROM sales.items WHERE state = 'done'").fetchone()[0]
        return 0

    def wait_until_done(self, count: int) -> None:
        """Wait until so many items are done: a cluster begins, or the state's server misses a driver, meanwhile."""
        end = time.monotonic() + 15 * PATIENCE
        while True:
            statuses = [one.process.poll() for driver in DRIVERS for one in self.machines[driver].programs]
            if self.done() >= count:
                return
            said = [one.said[-2000:] for machine in self.machines.values() for one in machine.programs]
            assert time.monotonic() < end, f"{self.done()} of {count} items are done: {said}"
            assert None in statuses, f"all drivers have ended, by {statuses}: {said}"
            time.sleep(0.5)

    def assert_sold_once(self, count: int) -> None:
        """Each sale is in the table once, as two readers that know nothing of us see it."""
        import deltalake
        import polars
        from test_pipeline_table_store import options

        place = "s3://lake/sales/data"
        arrow = deltalake.DeltaTable(place, storage_options=options(self.store)).to_pyarrow_table()
        by_polars = polars.read_delta(place, storage_options=options(self.store))
        for rows in (arrow.to_pylist(), by_polars.to_dicts()):
            assert sorted((row["id"], row["cents"]) for row in rows) == [(number, number) for number in range(count)]

    def shipped(self) -> list[tuple[str, str]]:
        """The ids of all answers, and of what they answer; they stay in the queue."""
        found = []
        with connect(self.broker) as connection, connection.channel() as channel:
            while (message := channel.basic_get("shipped")) is not None:
                found.append((message.properties["message_id"], message.properties["correlation_id"]))
        return found


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    if missing := missing_for_machines():
        do_without(missing)
    from s3_support import s3_server

    with ExitStack() as stack:
        made = stack.enter_context(machines(tmp_path, DRIVERS, ("master", *WORKERS)))
        store = stack.enter_context(s3_server(services()))
        try:
            state = stack.enter_context(postgres(services()))
        except NoPeer as missing:
            do_without(str(missing))
        broker = stack.enter_context(Broker())
        user = User.with_password("lake", "secret", {"/": Permissions()})
        port = broker.listen(services(), users=[user]).port
        lab = Lab(made, store, state, f"amqp://lake:secret@{services()}:{port}/%2F", tmp_path)
        lab.start_master()
        for worker in WORKERS:
            lab.start(worker, commands("workers"))
        for worker in WORKERS:
            made[worker].programs[0].wait_for("Successfully registered with master")
        yield lab
        lab.forget()


def test_the_guide_on_machines_that_share_nothing(lab: Lab) -> None:
    """Pipeline, dispatcher, fan-in and both ends of a stream run by the guide's commands, without our package there."""
    lab.install(batch=50)
    lab.feed(files=6, messages=4, orders=20)
    assert all(not (lab.machines[worker].directory / "packages.tar.gz").exists() for worker in WORKERS)
    sales = lab.start("driver-1", commands("driver-1, driver-2"))
    assert sales.status() == 0, sales.said
    lab.assert_sold_once(10)
    shipping = lab.start("driver-1", commands("driver-1"))
    assert shipping.status() == 0, shipping.said
    for line in ("counted [100, 200, 300]", "read 2000 rows", "shipped 20 orders"):
        assert line in shipping.said
    assert sorted(Counter(answered for _, answered in lab.shipped()).items()) == sorted(
        (f"orders-{number}", 1) for number in range(20)
    )


def test_a_driver_that_loses_its_power(lab: Lab) -> None:
    """The other driver goes on once PostgreSQL lets it in: it has cores, though the lost one's are taken.

    (pipeline 3)
    """
    lab.install(batch=1)
    lab.feed(files=12, messages=4, orders=0)
    lab.start("driver-1", commands("driver-1, driver-2"))
    lab.wait_until_done(1)
    second = lab.start("driver-2", commands("driver-1, driver-2"))
    second.wait_for("is in use by")
    lab.machines["driver-1"].lose_power()
    assert lab.done() < 12, "the first driver was to die before its end"
    lab.wait_until_done(13)
    assert second.status() == 0, second.said
    lab.assert_sold_once(16)


def test_a_stream_whose_driver_loses_its_power(lab: Lab) -> None:
    """The other driver goes on with the checkpoint's volume: each order is answered, and twice only under one id.

    (streaming source 4; streaming sink 3)
    """
    orders = 600
    lab.install(batch=1)
    lab.feed(files=0, messages=0, orders=orders)
    ids: dict[str, set[str]] = {}
    with connect(lab.broker) as connection, connection.channel() as channel:
        inbox = channel.consume("shipped", auto_ack=True)

        def take(by: Program) -> None:
            try:
                message = inbox.get(timeout=5 * PATIENCE)
            except Empty:
                raise AssertionError(by.said[-3000:]) from None
            ids.setdefault(message.properties["correlation_id"], set()).add(message.properties["message_id"])

        first = lab.start("driver-1", commands("driver-1"))
        while len(ids) < 60:  # the second batch of fifty is under way
            take(first)
        lost, other = lab.machines["driver-1"], lab.machines["driver-2"]
        lost.lose_power()
        lost.stop()
        began = time.monotonic()
        shutil.copytree(lost.directory / "volume", other.directory / "volume", dirs_exist_ok=True)
        second = lab.start("driver-2", commands("driver-1"))
        before = len(ids)
        while len(ids) < orders:
            take(second)
            if before and len(ids) > before + 50:  # of the next batch
                print(f"taken over within {time.monotonic() - began:.0f} s")
                before = 0
        assert second.status() == 0, second.said
    assert 0 < int(second.wait_for(r"shipped (\d+) orders")[1]) < orders, "the first driver was to die before its end"
    assert all(len(of_one) == 1 for of_one in ids.values())
