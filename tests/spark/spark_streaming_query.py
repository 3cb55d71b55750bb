"""A streaming query from a queue to Parquet, and a driver of it to be killed.

    python spark_streaming_query.py URL DIRECTORY raw|deduplicated|leased

goes on until its standard input ends. `finish` is what another driver makes of it then.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from multiqueue.spark import register


def query(spark: SparkSession, url: str, directory: str, form: str, most: int) -> Any:
    """What starts the query: batches of `most` messages at most."""
    register(spark)
    source = {"url": url, "queue": "orders", "maxMessagesPerBatch": str(most)}
    source |= {"sourceId": "orders"} if form == "leased" else {"spool": f"{directory}/spool"}
    orders = spark.readStream.format("multiqueue").options(**source).load()
    if form == "deduplicated":
        orders = orders.withWatermark("received", "1 hour").dropDuplicatesWithinWatermark(["message_id"])
    return (
        orders.select("message_id", "redelivered")
        .writeStream.format("parquet")
        .option("path", f"{directory}/output")
        .option("checkpointLocation", f"{directory}/checkpoint")
    )


def finish(spark: SparkSession, url: str, directory: str, form: str) -> list[tuple[str, bool]]:
    """Read what there is still; the output's message ids, with whether they were redelivered."""
    query(spark, url, directory, form, 100_000).trigger(availableNow=True).start().awaitTermination()
    rows = spark.read.parquet(f"{directory}/output").collect()
    return [(row.message_id, row.redelivered) for row in rows]


def main(url: str, directory: str, form: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",  # compiling code for some rows takes longer than reading them
        "spark.python.authenticate.socketTimeout": "120s",  # for workers to start, on a busy machine
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    query(spark, url, directory, form, 150).start()
    print("running", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
