"""How a program with a dispatcher comes to its end: Ctrl-C, a stopped session, a lost JVM, a fan-in that is left open.

A JVM takes long to start, so two programs show two ends each, and one of them many stops before.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow(selected=True)]

ROOT = Path(__file__).parents[2]

BEGIN = """
import os, signal, sys, threading, time
os.environ["PYSPARK_PYTHON"] = sys.executable
from concurrent.futures import wait
from pyspark.sql import SparkSession
from multiqueue.spark import Retry, SparkDispatcher, SparkSessionStopped, check_environment, fan_in
from multiqueue.testing import wait_until_blocked

def session():
    return (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
        .config("spark.ui.showConsoleProgress", "false").getOrCreate())

def long_job(spark):
    return spark.sparkContext.parallelize([1], 1).map(lambda row: time.sleep(600)).collect()

def wait_for_a_job():
    while not tracker.getActiveJobsIds():
        time.sleep(0.05)

def say_threads(what):
    print(what, [one.name for one in threading.enumerate() if one.name.startswith(("SparkD", "cancel", "after"))])

spark = session()
tracker = spark.sparkContext.statusTracker()
"""

INTERRUPTED_THEN_KILLED = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark's own cancels all jobs by itself

waits = threading.Event()

def interrupt():
    wait_for_a_job()
    waits.wait()
    wait_until_blocked(threading.main_thread())
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    with SparkDispatcher(spark, 1) as dock:
        futures = [dock.submit(long_job) for _ in range(3)]
        waits.set()
        futures[0].result()
except KeyboardInterrupt:
    print("interrupted:", [future.cancelled() for future in futures], list(tracker.getActiveJobsIds()))

java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
with SparkDispatcher(spark, 1) as dock:
    lane = dock.lane("a", retry=Retry(first_pause=0.0, when=lambda error: True))
    futures = [lane.submit(long_job) for _ in range(3)]
    wait_for_a_job()
    os.kill(java, signal.SIGKILL)
    print("killed:", len(wait(futures, 60).not_done), [type(future.exception(0)).__name__ for future in futures])
    try:
        lane.submit(long_job)
    except Exception as error:
        print("submit after kill:", type(error).__name__)
say_threads("threads after kill:")
"""

STOPPED_OFTEN_THEN_LEFT_OPEN = """
def again(step):
    def loop(spark):
        while True:
            step(spark)
    return loop

loops = [
    again(lambda spark: spark.range(10).count()),
    again(lambda spark: spark.sparkContext.parallelize([1], 1).collect()),
    again(lambda spark: spark.range(10).toArrow()),
]
outcomes = []
for turn in range(4):
    spark = session()
    with SparkDispatcher(spark, 12) as dock:
        futures = [dock.submit(loops[n % 3]) for n in range(15)]  # three wait
        wait_until_blocked(lambda: sum(future.running() for future in futures) == 12)
        time.sleep(0.1 * turn)  # at another moment each time
        other = threading.Thread(target=lambda: (SparkSession.builder.getOrCreate().stop(), spark.stop()))
        other.start()
        other.join()
        not_done = wait(futures, 60).not_done
        if not_done:
            print("ends:", len(not_done), "wait for ever", flush=True)
            os._exit(0)
        outcomes += [type(future.exception()).__name__ for future in futures]
print("ends:", sorted(set(outcomes)))
say_threads("threads after many stops:")

spark = session()
tracker = spark.sparkContext.statusTracker()
with SparkDispatcher(spark, 1) as dock:
    lane = dock.lane("a")
    running, waiting = lane.submit(long_job), lane.submit(long_job)
    wait_for_a_job()
    spark.stop()
    print("stopped:", type(running.exception()).__name__, type(waiting.exception()).__name__)
    try:
        lane.submit(long_job)
    except SparkSessionStopped as error:
        print("submit after stop:", error)
print("findings after stop:", [finding.subject for finding in check_environment(spark)])
say_threads("threads after stop:")
fan = fan_in({"a": session().range(0, 10**6, 1, 100)}, capacity=10)
print("left open:", next(fan))
"""


@cache
def said_by(program: str) -> dict[str, str]:
    """What a program printed, after it exited well: what is before a colon, and what is behind it."""
    run = subprocess.run(
        [sys.executable, "-c", BEGIN + program], capture_output=True, text=True, timeout=180, cwd=ROOT, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "Exception ignored" not in run.stderr
    return dict(line.split(": ", 1) for line in run.stdout.splitlines() if ": " in line)


def test_ctrl_c_cancels_what_waits_and_what_runs() -> None:
    """An interrupt of the main thread cancels all items before it leaves the block, though Spark itself does not."""
    assert said_by(INTERRUPTED_THEN_KILLED)["interrupted"] == "[True, True, True] []"


def test_a_lost_spark_leaves_every_future_with_a_clear_end() -> None:
    """When the JVM is killed, items that run, wait or come end with `SparkSessionStopped`, and no thread is left."""
    said = said_by(INTERRUPTED_THEN_KILLED)
    assert said["killed"] == "0 ['SparkSessionStopped', 'SparkSessionStopped', 'SparkSessionStopped']"
    assert said["submit after kill"] == "SparkSessionStopped"
    assert said["threads after kill"] == "[]"


def test_a_session_stopped_under_the_dispatcher() -> None:
    """Items that run, wait or come when the session is stopped end with `SparkSessionStopped`; no thread is left."""
    said = said_by(STOPPED_OFTEN_THEN_LEFT_OPEN)
    assert said["stopped"] == "SparkSessionStopped SparkSessionStopped"
    assert said["submit after stop"] == (
        "the Spark session was stopped, so nothing can be submitted; make a new session and a new dispatcher"
    )
    assert said["findings after stop"] == "['session']"
    assert said["threads after stop"] == "[]"


def test_no_job_waits_for_ever_for_a_session_that_is_stopped() -> None:
    """Tight loops of jobs end with `SparkSessionStopped` whenever the stop comes, though Spark forgets some of them."""
    said = said_by(STOPPED_OFTEN_THEN_LEFT_OPEN)
    assert said["ends"] == "['SparkSessionStopped']"
    assert said["threads after many stops"] == "[]"


def test_a_program_with_an_open_fan_in_exits() -> None:
    """A fan-in that is not closed does not keep the program from its end, and nothing is said about it."""
    assert said_by(STOPPED_OFTEN_THEN_LEFT_OPEN)["left open"] == "('a', Row(id=0))"
