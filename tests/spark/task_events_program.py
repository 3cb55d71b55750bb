"""A Spark application that reads what its tasks send while they fail, for the tests of task_events.

python task_events_program.py MASTER SCENARIO... prints a line for each: its name, how many values came, how many of
them distinct, and whether there were duplicates to drop. A scenario is NAME:COMMIT. Exits 0 if each had all its values
once; and by itself, though two iterators are left open: one that lost its broker, and one that waits.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from multiqueue.broker import Broker
from multiqueue.spark import TaskEvents, TaskEventsError, TaskSender, task_events

PARTITIONS, ROWS = 6, 500  # of each partition

OPEN: list[Any] = []  # what is open when the interpreter ends

Task = Callable[[TaskSender, Iterator[Any]], object]


def plain(directory: str) -> Task:
    def fn(task: TaskSender, rows: Iterator[Any]) -> None:
        for row in rows:
            task.send(row["id"])

    return fn


def deliver(task: TaskSender, value: Any) -> None:
    """Send a value, and return when the broker has all those before it: one chunk is taken after the other's answer."""
    until_taken(task)
    task.send(value)
    until_taken(task)


def until_taken(task: TaskSender) -> None:
    while task._pending:
        time.sleep(0.01)


def is_first(directory: str) -> bool:
    """True for the first of all attempts that asks. A number does not tell: an attempt may fail before it begins."""
    try:
        os.close(os.open(Path(directory, "asked"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def failing(directory: str) -> Task:
    """Each third partition fails twice, half way."""

    def fn(task: TaskSender, rows: Iterator[Any]) -> None:
        for number, row in enumerate(rows):
            if number == 250 and task.partition % 3 == 0 and task.attempt < 2:
                deliver(task, row["id"])
                raise ValueError(f"attempt {task.attempt}")
            task.send(row["id"])

    return fn


def dying(directory: str) -> Task:
    """The Python worker of a partition ends without a word, once: the first that comes half way."""

    def fn(task: TaskSender, rows: Iterator[Any]) -> None:
        for number, row in enumerate(rows):
            if number == 250 and task.partition == 1 and is_first(directory):
                deliver(task, row["id"])
                os._exit(1)
            task.send(row["id"])

    return fn


def straggling(directory: str) -> Task:
    """Of one partition the first run that comes half way waits until a second one has come there too.

    Which of the two is Spark's attempt 0 is open: on an executor that starts slowly it is overtaken by its own copy.
    """

    def fn(task: TaskSender, rows: Iterator[Any]) -> None:
        copied = Path(directory, "copied")
        for number, row in enumerate(rows):
            if number != 250 or task.partition != 2:
                task.send(row["id"])
                continue
            deliver(task, row["id"])  # both have then sent the same, whichever of them Spark ends
            if not is_first(directory):
                copied.touch()
            while not copied.exists():
                time.sleep(0.05)

    return fn


def orphaned(directory: str) -> Task:
    """The JVM of the first executor that comes half way is killed; its Python worker goes on and sends to the end."""

    def fn(task: TaskSender, rows: Iterator[Any]) -> None:
        for number, row in enumerate(rows):
            if number != 250 or task.partition != 0 or not is_first(directory):
                task.send(row["id"])
            else:
                deliver(task, row["id"])
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.kill(os.getppid(), signal.SIGSTOP)  # pyspark's daemon, which would end us with the executor
                os.kill(executor_of(os.getppid()), signal.SIGKILL)

    return fn


def executor_of(daemon: int) -> int:
    """The JVM that started pyspark's daemon."""
    fields = Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


SCENARIOS: dict[str, Callable[[str], Task]] = {
    "plain": plain,
    "failing": failing,
    "dying": dying,
    "straggling": straggling,
    "orphaned": orphaned,
}


def main(master: str, names: list[str]) -> int:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    builder = builder.remote(master) if master.startswith("sc:") else builder.master(master)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.speculation": str("straggling:row" in names).lower(),
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "2",
    }
    if not master.startswith("sc:"):
        builder = builder.config(map=settings)
    spark = builder.getOrCreate()
    frame = spark.range(0, PARTITIONS * ROWS, 1, PARTITIONS)
    wrong = 0
    with Broker() as broker, broker.listen() as server:
        for name in names:
            scenario, _, commit = name.partition(":")
            with tempfile.TemporaryDirectory() as directory:
                fn = SCENARIOS[scenario](directory)
                seen, events = collect(task_events(frame, fn, server.url, commit=commit or "task"))  # type: ignore[arg-type]
            duplicates = events.statistics().duplicates
            print(name, len(seen), len(set(seen)), duplicates > 0, flush=True)
            wrong += sorted(seen) != list(range(PARTITIONS * ROWS))
        events = task_events(frame, plain(""), server.url, commit="row", capacity=1)
        next(events)
    try:
        list(events)
    except TaskEventsError as error:
        print("lost broker", "was lost while tasks ran" in str(error), flush=True)
    OPEN.extend([Broker()])
    OPEN.append(OPEN[0].listen())
    OPEN.append(task_events(frame, plain(""), OPEN[1].url, commit="row", capacity=1))
    next(OPEN[2])
    return int(wrong > 0)


def collect(events: TaskEvents) -> tuple[list[int], TaskEvents]:
    with events:
        return [event.value for event in events], events


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
