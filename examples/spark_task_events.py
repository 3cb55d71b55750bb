"""Get findings from tasks while they run: one task fails, and no value is counted twice.

python examples/spark_task_events.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from multiqueue.broker import Broker
from multiqueue.spark import TaskProgress, TaskSender, task_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS, ORDERS = 8, 20_000


def main(spark: SparkSession) -> None:
    orders = spark.range(0, ORDERS, 1, DAYS).selectExpr("id", "(id * 7919) % 1000 - 1 as price")

    def check(task: TaskSender, rows: Iterator[Any]) -> None:  # runs on executors
        for number, row in enumerate(rows, 1):
            if row["price"] < 0:
                task.send(row["id"])
            if number % 500 == 0:
                task.progress(number, ORDERS // DAYS)

    progress: dict[int, TaskProgress] = {}

    def keep(told: TaskProgress) -> None:
        progress[told.partition] = told

    with (
        Broker() as broker,
        broker.listen() as server,
        task_events(orders, check, server.url, commit="row", on_progress=keep) as events,
    ):
        first = next(events)
        print(f"order {first.value} has no price; the job has not ended: {len(progress) < DAYS}")
        found = [first, *events]
    print(f"{len(found)} orders without a price in {len({event.partition for event in found})} of {DAYS} days")
    print(f"rows looked at: {sum(told.done or 0 for told in progress.values())}")


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(SparkSession.builder.master("local[2]").getOrCreate())
