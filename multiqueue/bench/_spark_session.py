"""The one Spark session of the suite `spark`: `local[2]`, started by the first rival that needs it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
WARM_UP = 60  # jobs; the JVM compiles what a job runs through


@cache
def session() -> SparkSession:
    """The session, warmed up. It ends with the process."""
    from multiqueue.spark import quiet_query_contexts, session_builder

    settings: dict[str, Any] = {
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    spark: SparkSession = (
        session_builder("multiqueue bench").master(f"local[{CORES}]").config(map=settings).getOrCreate()
    )
    quiet_query_contexts()
    for _ in range(WARM_UP):
        trivial(spark)
    return spark


def trivial(spark: SparkSession) -> int:
    """A job with nothing to compute: one task, one row."""
    return int(spark.range(1, numPartitions=1).collect()[0].id)
