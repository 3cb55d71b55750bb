"""The source's process is killed wherever it is: nothing confirmed is lost, doubles are flagged, by leases there are
none. Without a JVM."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from spark_streaming_support import publish, wait_for_depth, wait_for_steps

from multiqueue.broker import Broker

PROGRAM = Path(__file__).with_name("spark_streaming_engine.py")
PARTS = ("spool", "offsets", "output", "commits")
ORDERS = 200  # to each life: eight batches, of three files and more


def start(what: str, url: str, directory: Path, way: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(PROGRAM.parents[2]), str(PROGRAM.parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(PROGRAM), what, url, str(directory), way]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path})


def names(directory: Path) -> set[str]:
    return {f"{part}/{path.name}" for part in PARTS for path in directory.glob(f"{part}/*")}


def one_life(url: str, directory: Path, way: str, dice: random.Random) -> None:
    """Kill it when it has got on by some steps, and somewhere in the next one."""
    before = names(directory)
    with start("run", url, directory, way) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            wait_for_steps(lambda: names(directory), before, dice.randrange(24))
            time.sleep(dice.uniform(0.0, 0.01))  # where it is then is for the dice
        finally:
            process.kill()


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(2, marks=pytest.mark.slow(selected=True)),
        pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
@pytest.mark.parametrize("way", ["spool", "lease"])
def test_a_killed_source(tmp_path: Path, kills: int, way: str) -> None:
    """Every confirmed message is in the output, by a lease once. By a spool some are there twice, then one copy at most
    is not flagged.

    (streaming source 3, 4)
    """
    dice = random.Random(kills)
    with Broker(data=tmp_path / "data") as broker:
        url = broker.listen().url
        for life in range(kills):
            publish(url, "orders", *(b"%d" % number for number in range(life * ORDERS, (life + 1) * ORDERS)))
            one_life(url, tmp_path, way, dice)
        with start("finish", url, tmp_path, way) as last:
            assert last.stdout is not None
            rows = json.loads(last.stdout.read())
        wait_for_depth(url, "orders", 0)
    assert {id for id, _ in rows} == {str(number) for number in range(kills * ORDERS)}
    assert max(Counter(id for id, redelivered in rows if not redelivered).values()) == 1
    if way == "lease":
        assert len(rows) == kills * ORDERS
    assert len(list((tmp_path / "spool").glob("*.chunk"))) <= 2, "what was committed is gone"
