"""A Spark application whose source runs elsewhere, for the tests of the source on clusters and on Spark Connect.

    python spark_streaming_elsewhere.py MASTER URL DIRECTORY SCENARIO...

MASTER is a master or, beginning with sc://, a Connect server. A scenario reads the queue of its name, in two runs of a
query, while a task raises and a Python worker dies; it prints its name and the JSON list of the ids in its output, or
what ended it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from multiqueue.spark import register


def session(master: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    settings: dict[str, Any] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    return SparkSession.builder.master(master).config(map=settings).getOrCreate()


def options(scenario: str, directory: str) -> dict[str, str]:
    if scenario == "lease":
        return {"sourceId": "s"}
    if scenario == "spool":
        return {"spool": f"{directory}/spool"}
    # A directory that no process shares with another: each has its own working directory.
    return {"spool": "/proc/self/cwd/unshared-spool"}


def stumbling(frame: DataFrame) -> DataFrame:
    """The body as text, by tasks of which one raises and one kills its worker, the first time."""

    def text(body: bytes) -> str:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            if body == b"7":
                raise ArithmeticError("the first attempt")
            if body == b"33":
                os._exit(1)
        return body.decode()

    # Spark would infer another kind of function from the hints of `text`.
    return frame.select(udf(lambda body: text(body), "string")("body").alias("body"))


def run(spark: SparkSession, url: str, directory: str, scenario: str) -> str:
    source = {"url": url, "queue": scenario, "maxMessagesPerBatch": "25", "partitions": "4"}
    for _ in range(2):
        frame = spark.readStream.format("multiqueue").options(**source, **options(scenario, directory)).load()
        query = (
            stumbling(frame)
            .writeStream.format("parquet")
            .option("path", f"{directory}/{scenario}")
            .option("checkpointLocation", f"{directory}/{scenario}-checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    rows = spark.read.parquet(f"{directory}/{scenario}").collect()
    return json.dumps(sorted(int(row.body) for row in rows))


def main(master: str, url: str, directory: str, *scenarios: str) -> None:
    spark = session(master)
    register(spark)
    for scenario in scenarios:
        try:
            said = run(spark, url, directory, scenario)
        except PySparkException as error:
            said = str(error)
        print(scenario, said.replace("\n", " "), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
