"""The same pipeline on this machine's cores, on a standalone cluster and on a Connect server, and what dies there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_cluster_support import (
    Cluster,
    common_session,
    connect_server,
    shared_cluster,
    shared_connect_server,
    standalone_cluster,
)
from pipeline_parts_support import SparkSection, _servers, check_reachable
from pipeline_support import Recorder
from test_pipeline_spark import COMMAND, HOUSE, environment, rows, run, wait_for_done

from multiqueue.pipeline import ExitStatus, load_config, run_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

TOML = """\
[spark]
%(where)s
max_running = 4
[spark.conf]
"spark.executor.memory" = "512m"
"spark.executor.extraJavaOptions" = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"spark.sql.execution.pythonUDF.arrow.enabled" = false
"spark.sql.shuffle.partitions" = 1
"spark.sql.codegen.wholeStage" = false
"spark.sql.adaptive.enabled" = false
[lanes.inbox]
directories = "inbox/*"
files = "*.csv"
format = "csv"
schema = "number INT, word STRING"
expect = "number INT, word STRING"
batch = %(batch)d
[job]
python = "cluster_job:tag"
[steps.sums]
after = "inbox"
sql = "SELECT lane AS of_lane, sum(number) AS total, count(*) AS n FROM inbox GROUP BY lane"
[output]
path = "%(output)s"
format = "json"
expect = "number INT, tagged STRING"
[retry]
attempts = 20
backoff = 0.1
backoff_max = 1.0
"""

JOB = """\
import os, random

def risky(word):
    \"\"\"One row in twenty kills its task, one in sixty the whole Python worker.\"\"\"
    if RISK:
        chance = random.SystemRandom().random()
        if chance < 1 / 60:
            os._exit(1)
        if chance < 1 / 20:
            raise OSError("bad luck")
    return word + "!"

def tag(spark, frame, item):
    from pyspark.sql.functions import udf
    return frame.select("number", udf(risky, "string")("word").alias("tagged"))

RISK = %r
"""


def make_inbox(base: Path, files: int, *, risk: bool) -> None:
    """So many files of one row in two lanes, one of them with a tenth of the files, and the job."""
    for number in range(files):
        lane = base / "inbox" / ("small" if number % 10 == 0 else "big")
        lane.mkdir(parents=True, exist_ok=True)
        (lane / f"{number:05}.csv").write_text(f"{number},w{number}\n")
    (base / "cluster_job.py").write_text(JOB % risk)


def configure(base: Path, where: str, *, batch: int = 5, output: str = "out") -> None:
    (base / "p.toml").write_text(TOML % {"where": where, "batch": batch, "output": output})
    load_config(base / "p.toml")


def steps_of(output: Path) -> list[dict[str, Any]]:
    """The rows of all steps."""
    parts = [path for path in (output / "steps").rglob("*.json") if path.name[0] not in "._"]
    return [json.loads(line) for path in parts for line in path.read_text().splitlines()]


def assert_everything_once(base: Path, files: int, output: str = "out") -> None:
    """Each row exactly once in the output, and the step's sums are those of all rows."""
    found = rows(base / output)
    assert sorted(str(row["tagged"]) for row in found) == sorted(f"w{number}!" for number in range(files))
    sums = {row["of_lane"]: row for row in steps_of(base / output)}
    small = range(0, files, 10)
    assert sums["small"] == {"of_lane": "small", "total": sum(small), "n": len(small)}
    assert sums["big"]["total"] == sum(range(files)) - sum(small)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with shared_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="session")
def connect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with shared_connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.mark.slow(selected=True)
def test_the_same_everywhere(tmp_path: Path, cluster: Cluster, connect_url: str) -> None:
    """Only the URL differs: the guide's example gives the same on local cores, on a cluster and on a Connect server.

    Its function runs on executors that have never seen the directory of the configuration.
    """
    example = tmp_path / "sensors"
    shutil.copytree(HOUSE / "examples" / "pipeline" / "sensors", example, ignore=shutil.ignore_patterns("out"))
    text = (example / "sensors.toml").read_text()

    def configure(name: str) -> Path:
        (example / "sensors.toml").write_text(text.replace('"out"', f'"{name}"') + 'format = "json"\n')
        return example / "sensors.toml"

    for name, url in {"standalone": cluster.url, "connect": connect_url}.items():
        answer = run("pipeline", "run", configure(name), "--on", url, cwd=Path("/"))
        assert (answer.returncode, answer.stderr) == (0, ""), (name, answer.stdout)
        assert f"starting Spark on {url}" in answer.stdout
    # What the command does is tested elsewhere; here a JVM is saved.
    assert run_pipeline(load_config(configure("local")), Recorder(), session=common_session).status == ExitStatus.DONE
    for name in ("standalone", "connect", "local"):
        found = sorted((row["at"], row["celsius"]) for row in rows(example / name))
        assert [celsius for _, celsius in found] == [-3.5, 10.0, -3.0, -2.5, 12.0, 12.5, -1.0], name
        assert sorted(steps_of(example / name), key=str) == [
            {"station": "north", "celsius": -2.5, "readings": 4},
            {"station": "south", "celsius": 11.5, "readings": 3},
        ], name  # fmt: skip


@pytest.mark.slow
def test_a_worker_and_the_driver_die(tmp_path: Path, cluster: Cluster) -> None:
    """100 files while tasks fail at random, a worker with its executors is killed, then the driver: each file once."""
    survive(tmp_path, cluster, files=100, batch=10)


@pytest.mark.slow
def test_a_worker_and_the_driver_die_over_2000_files(tmp_path: Path) -> None:
    """The same with 2,000 files."""
    with standalone_cluster(tmp_path) as cluster:
        survive(tmp_path, cluster, files=2000, batch=20)


def survive(base: Path, cluster: Cluster, files: int, batch: int) -> None:
    make_inbox(base, files, risk=True)
    configure(base, f'master = "{cluster.url}"', batch=batch)
    items = -(-files // batch)
    with subprocess.Popen(
        [*COMMAND, "pipeline", "run", "p.toml"], cwd=base, env=environment(), stdout=subprocess.DEVNULL
    ) as driver:
        try:
            wait_for_done(base, items // 5, driver)
            # The group: the executors die with their worker; their Python workers have groups of their own and live on.
            os.killpg(cluster.workers[1].process.pid, signal.SIGKILL)
            wait_for_done(base, items // 2, driver)
        finally:
            driver.kill()
    answer = run("pipeline", "run", "p.toml", cwd=base)
    assert (answer.returncode, answer.stderr) == (0, ""), answer.stdout
    assert "the last run was cut off" in answer.stdout
    assert_everything_once(base, files)


@pytest.mark.slow
def test_the_client_of_a_connect_server_dies(tmp_path: Path) -> None:
    """The client is killed while the server goes on with its operations; the next run has each file once."""
    make_inbox(tmp_path, 60, risk=True)
    with connect_server(tmp_path) as remote:
        configure(tmp_path, f'remote = "{remote}"', batch=3)
        for target in (4, 10):
            with subprocess.Popen(
                [*COMMAND, "pipeline", "run", "p.toml"], cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL
            ) as client:
                try:
                    wait_for_done(tmp_path, target, client)
                finally:
                    client.kill()
        answer = run("pipeline", "run", "p.toml", cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, ""), answer.stdout
    assert_everything_once(tmp_path, 60)


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("where", ['remote = "sc://127.0.0.1:1/;user_id=me"', 'master = "spark://127.0.0.1:1"'])
def test_no_such_place(tmp_path: Path, where: str) -> None:
    """A server that is not there is one sentence, at once, and nothing was run."""
    make_inbox(tmp_path, 1, risk=False)
    configure(tmp_path, where)
    answer = run("pipeline", "run", "p.toml", cwd=tmp_path)
    assert answer.returncode == 3, answer.stdout
    assert re.fullmatch(
        r"multiqueue: nothing answers at '.*' \(127\.0\.0\.1:1: Connection refused\); start it, "
        r"or correct --on or \[spark\]\n",
        answer.stderr,
    )


def test_one_of_several_masters_is_enough() -> None:
    """With several masters one that answers is enough; without a port Spark's own is meant."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_reachable(SparkSection(master=f"spark://127.0.0.1:1,127.0.0.1:{port}"))
    check_reachable(SparkSection(master="local[*]"))
    assert _servers("sc://host") == [("host", 15002)]
    assert _servers("sc://[::1]:7/;token=a") == [("::1", 7)]
    assert _servers("spark://a,b:1") == [("a", 7077), ("b", 1)]
