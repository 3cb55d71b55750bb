"""The dispatcher on a real Spark Connect session, in a process of its own: one process has one kind of session."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
os.environ["PYSPARK_PYTHON"] = sys.executable
from concurrent.futures import wait
from pyspark.sql import SparkSession
from multiqueue.spark import SparkDispatcher, check_environment

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
running = threading.Semaphore(0)

def marks(session):
    tags = {tag for tag in session.getTags() if ":" not in tag}  # without those of the lane and the function
    return len(tags), "mine" in tags, session.conf.get("spark.scheduler.pool", None)

def sleep_for_ever(batches):
    time.sleep(600)
    yield from batches

def long_job(session):
    frame = session.range(2).mapInPandas(sleep_for_ever, "id long")
    running.release()
    frame.collect()

print("findings", check_environment(spark))
with SparkDispatcher(spark, 2) as dock:
    pooled, plain = dock.lane("pooled", pool="p"), dock.lane("plain")
    print("count", plain.submit(lambda session: session.range(3).count()).result())
    print("marks", pooled.submit(marks).result(), plain.submit(marks).result())
    spark.addTag("mine")
    inherited = pooled.submit(marks), plain.submit(marks)
    spark.clearTags()
    print("inherited", *(future.result() for future in inherited))
    print("nested", plain.submit(lambda session: plain.submit(marks).result()).result())
    for lane in (pooled, plain):
        future = lane.submit(long_job)
        running.acquire()
        print("cancel", future.cancel(), not wait([future], 60).not_done, future.cancelled())
    future = plain.submit(long_job)
    running.acquire()
    while not (future.done() or spark.interruptAll()):
        time.sleep(0.1)
    print("elsewhere", type(future.exception(60)).__name__)
    print("failure", type(plain.submit(lambda s: s.sql("select raise_error('x')").collect()).exception(60)).__name__)
try:
    with SparkDispatcher(spark, 2) as dock:
        futures = [dock.submit(long_job) for _ in range(3)]
        running.acquire()
        running.acquire()
        raise KeyboardInterrupt
except KeyboardInterrupt:
    print("left", [future.cancelled() for future in futures])
with SparkDispatcher(spark, 1) as dock:
    future = dock.submit(long_job)
    running.acquire()
    close = spark.client.close
    spark.client.close = lambda: (wait([future], 60), close())  # the server ends the job before the client is closed
    spark.stop()
    print("stopped", type(future.exception(60)).__name__)
    try:
        dock.submit(long_job)
    except Exception as error:
        print("submit", type(error).__name__)
print("threads", [one.name for one in threading.enumerate() if one.name.startswith(("SparkDispatcher", "cancel"))])
"""


@pytest.mark.spark
@pytest.mark.slow(selected=True)
def test_the_dispatcher_keeps_its_promises_on_spark_connect(
    need_module: Callable[[str, str], None], connect_url: str
) -> None:
    """Marks, pools, cancelling, outcomes and ends are those of a classic session, and the program exits."""
    need_module("grpc", "Spark Connect's client is not installed: pip install 'pyspark[connect]'")
    command = [sys.executable, "-c", PROGRAM, connect_url]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT, check=False)
    said = [line for line in run.stdout.splitlines() if line]
    assert said == [
        "findings []",
        "count 3",
        "marks (1, False, 'p') (1, False, None)",
        "inherited (2, True, 'p') (2, True, None)",
        "nested (1, False, None)",
        "cancel True True True",
        "cancel True True True",
        "elsewhere SparkJobCancelled",
        "failure SparkRuntimeException",
        "left [True, True, True]",
        "stopped SparkSessionStopped",
        "submit SparkSessionStopped",
        "threads []",
    ], run.stderr[-3000:]
    assert run.returncode == 0
