"""Submit an urgent job behind a dozen others: to a thread pool, with a scheduler pool, and to a lane.

python examples/spark_fair_pools.py
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from multiqueue.spark import SparkDispatcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OTHERS = 12


class Job:
    """Counts, and notes that it has begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def __call__(self, spark: SparkSession, name: str) -> int:
        self.begun.append(name)
        return spark.range(1_000_000).selectExpr("sum(id)").count()


def in_a_thread_pool(spark: SparkSession) -> int:
    """After how many others the urgent job begins. Its scheduler pool is of no use: Spark has not heard of it yet."""
    job = Job()

    def in_pool(name: str, pool: str) -> int:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
        return job(spark, name)

    with ThreadPoolExecutor(2) as threads:
        for number in range(OTHERS):
            threads.submit(in_pool, f"report {number}", "batch")
        threads.submit(in_pool, "urgent", "people")
    return job.begun.index("urgent")


def in_a_lane(spark: SparkSession) -> int:
    """The same with lanes: the urgent job begins as soon as a place is free."""
    job = Job()
    with SparkDispatcher(spark, max_running=2) as dispatcher:
        batch = dispatcher.lane("batch", priority=10, pool="batch")
        people = dispatcher.lane("people", priority=0, pool="people")
        for number in range(OTHERS):
            batch.submit(job, f"report {number}")
        people.submit(job, "urgent")
    return job.begun.index("urgent")


def main(spark: SparkSession) -> None:
    print(f"in a thread pool the urgent job began after {in_a_thread_pool(spark)} of {OTHERS} others")
    print(f"in a lane it began after {in_a_lane(spark)}")


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(SparkSession.builder.master("local[2]").config("spark.scheduler.mode", "FAIR").getOrCreate())
