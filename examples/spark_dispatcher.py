"""Run many Spark jobs from one driver: priorities, at most two at a time, and a cancel that reaches Spark.

python examples/spark_dispatcher.py
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

from multiqueue.spark import SparkDispatcher, check_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def count(spark: SparkSession, rows: int) -> int:
    return spark.range(rows).count()


def endless(spark: SparkSession) -> list[None]:
    return spark.sparkContext.parallelize([0], 1).map(lambda _: time.sleep(3600)).collect()


def main(spark: SparkSession) -> None:
    for finding in check_environment(spark):
        print(finding)
    with SparkDispatcher(spark, max_running=2) as dispatcher:
        batch = dispatcher.lane("batch", priority=10, capacity=100, max_in_flight=1, pool="batch")
        people = dispatcher.lane("people", priority=0, pool="people")
        runaway = batch.submit(endless)
        print(list(people.map(count, [1, 2, 3])))  # the second place is never taken by batch
        runaway.cancel()
        try:
            runaway.result()
        except CancelledError:
            print("the runaway job was cancelled in Spark")


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(SparkSession.builder.master("local[2]").config("spark.scheduler.mode", "FAIR").getOrCreate())
