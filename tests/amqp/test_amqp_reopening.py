"""A disk that fails under a broker in a process of its own, and works again: what clients and operators see."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from amqp_parts_support import fetch_health
from faulty_disk_support import build_faulty_disk

from multiqueue.client import ClientError, connect

PATIENCE = 30.0  # seconds
SYNCS = 40  # of opening, and of a few messages; the last of them fails


@contextmanager
def running(directory: Path, policy: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker whose disk fails once, and its URL."""
    config = directory / "broker.toml"
    config.write_text(f'[listen]\nport = 0\n[data]\ndirectory = "data"\non_store_failure = "{policy}"\n')
    process = subprocess.Popen(
        [sys.executable, "-m", "multiqueue", "broker", "--config", str(config)],
        env=os.environ | {"LD_PRELOAD": str(build_faulty_disk(directory)), "FAIL_AT": str(SYNCS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, f"amqp://guest:guest@{process.stdout.readline().split()[2].rstrip(';')}/%2F"
    finally:
        process.kill()
        process.communicate()


def publish_until_it_fails(url: str) -> list[bytes]:
    """Publish one after the other, each confirmed, until the connection ends; those that were confirmed."""
    confirmed: list[bytes] = []
    try:
        with connect(url, recover=False) as connection, connection.channel() as channel:
            channel.queue_declare("q", durable=True)
            for number in range(1000):
                body = b"%d" % number
                channel.publish_confirmed(body, routing_key="q", delivery_mode=2).result(PATIENCE)
                confirmed.append(body)
    except ClientError:
        return confirmed
    pytest.fail("no sync failed")


@pytest.mark.slow(selected=True)
def test_clients_are_let_in_again_once_the_disk_works(tmp_path: Path) -> None:
    """A sync fails under clients that publish: they are cut off, come again, and find all that was confirmed."""
    with running(tmp_path, "reopen") as (_, url):
        confirmed = publish_until_it_fails(url)
        assert confirmed
        deadline = time.monotonic() + PATIENCE
        while not fetch_health(url) and time.monotonic() < deadline:
            time.sleep(0.02)
        with connect(url, recover=False) as connection, connection.channel() as channel:
            there = []
            while (message := channel.basic_get("q", auto_ack=True)) is not None:
                there.append(message.body)
            assert there[: len(confirmed)] == confirmed
            assert len(there) <= len(confirmed) + 1  # the one in doubt
            channel.publish_confirmed(b"after", routing_key="q", delivery_mode=2).result(PATIENCE)


@pytest.mark.slow(selected=True)
def test_a_broker_that_stops_says_why(tmp_path: Path) -> None:
    """With `on_store_failure = "stop"` the process ends with status 3 and one sentence."""
    with running(tmp_path, "stop") as (process, url):
        assert publish_until_it_fails(url)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 3
        why = "[Errno 5] a commit could not be synced: Input/output error"
        assert f"messages.sqlite' failed: {why};" in said.splitlines()[-1]
