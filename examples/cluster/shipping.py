"""Many jobs, many results in one loop, and a stream from queue to queue, on a cluster whose machines share nothing."""

from __future__ import annotations

import sys
from typing import Any

from multiqueue.spark import SparkDispatcher, fan_in, register, session_builder

URL = "amqp://lake:secret@services:5672/%2F"


def count(spark: Any, rows: int) -> int:
    return int(spark.range(0, rows, 1, 4).rdd.map(lambda row: 1).sum())


def main(master: str, checkpoint: str) -> None:
    builder = session_builder("shipping").master(master)
    builder = builder.config("spark.scheduler.mode", "FAIR").config("spark.cores.max", 8)  # half, as in sales.toml
    builder = builder.config("spark.archives", "packages.tar.gz#packages")
    spark = builder.config("spark.executorEnv.PYTHONPATH", "packages").getOrCreate()
    register(spark)

    with SparkDispatcher(spark, max_running=4) as dispatcher:
        print("counted", list(dispatcher.lane("counts").map(count, [100, 200, 300])))

    frames = {name: spark.range(0, 1000, 1, 4).selectExpr("id", f"'{name}' AS region") for name in ("eu", "us")}
    with fan_in(frames) as rows:
        print("read", sum(1 for _ in rows), "rows")

    source = spark.readStream.format("multiqueue").options(url=URL, queue="orders", sourceId="shipping")
    orders = source.option("maxMessagesPerBatch", 50).load()
    answers = orders.selectExpr("message_id AS correlation_id", "body")
    sending = answers.writeStream.format("multiqueue").options(url=URL, routingKey="shipped")
    query = sending.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    print("shipped", sum(progress.numInputRows for progress in query.recentProgress), "orders")


if __name__ == "__main__":
    main(*sys.argv[1:])
