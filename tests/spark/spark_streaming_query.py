"""A driver to be killed: a streaming query from a queue to Parquet, as a program.

    python spark_streaming_query.py run|finish URL DIRECTORY raw|deduplicated|leased

`run` goes on until its standard input ends. `finish` reads what there is, and prints what the output has: a JSON list
of [message id, redelivered].
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

from multiqueue.spark import register


def main(what: str, url: str, directory: str, form: str) -> None:
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
    register(spark)
    most = "150" if what == "run" else "100000"
    source = {"url": url, "queue": "orders", "maxMessagesPerBatch": most}
    source |= {"sourceId": "orders"} if form == "leased" else {"spool": f"{directory}/spool"}
    orders = spark.readStream.format("multiqueue").options(**source).load()
    if form == "deduplicated":
        orders = orders.withWatermark("received", "1 hour").dropDuplicatesWithinWatermark(["message_id"])
    query = (
        orders.select("message_id", "redelivered")
        .writeStream.format("parquet")
        .option("path", f"{directory}/output")
        .option("checkpointLocation", f"{directory}/checkpoint")
    )
    if what == "run":
        query.start()
        print("running", flush=True)
        sys.stdin.read()
        return
    query.trigger(availableNow=True).start().awaitTermination()
    rows = spark.read.parquet(f"{directory}/output").collect()
    print("output " + json.dumps([[row.message_id, row.redelivered] for row in rows]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
