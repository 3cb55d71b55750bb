"""Stream orders from a queue into Parquet, each once, and answer each in another queue.

It uses a broker in this process, which leases the messages to the query. For another AMQP 0-9-1 broker, pass its URL
and a directory: spool="/...".
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from multiqueue.broker import Broker
from multiqueue.client import connect
from multiqueue.spark import register, session_builder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = 200


def publish_orders(url: str) -> None:
    with connect(url) as connection, connection.channel() as channel:
        channel.queue_declare("orders", durable=True)
        channel.queue_declare("answers", durable=True)
        for number in range(ORDERS):
            order = json.dumps({"id": number, "item": "tea", "price": number % 10}).encode()
            channel.publish_confirmed(order, routing_key="orders", message_id=f"order-{number}", delivery_mode=2)
        channel.wait_for_confirms(30)


def read_orders(spark: SparkSession, url: str) -> DataFrame:
    return (
        spark.readStream.format("multiqueue")
        .options(url=url, queue="orders", sourceId="orders", bodies="json", maxMessagesPerBatch=100)
        .schema("id INT, item STRING, price INT, _message_id STRING")
        .load()
    )


def main(spark: SparkSession) -> None:
    register(spark)
    with Broker() as broker, tempfile.TemporaryDirectory() as directory:
        url, base = broker.listen().url, Path(directory)
        publish_orders(url)

        orders = read_orders(spark, url)
        files = orders.writeStream.format("parquet").trigger(availableNow=True)
        files.start(str(base / "orders"), checkpointLocation=str(base / "checkpoint")).awaitTermination()
        stored = spark.read.schema(orders.schema).parquet(str(base / "orders"))
        prices = [row.price for row in stored.collect()]
        print(f"{len(prices)} orders for {sum(prices)}")  # 200 orders for 900

        answers = stored.selectExpr("to_json(struct(id, 'shipped' AS state)) AS body", "_message_id AS correlation_id")
        sink = answers.write.format("multiqueue").options(url=url, routingKey="answers", sinkId="shipping")
        sink.mode("append").save()
        look = spark.read.format("multiqueue").options(url=url, queue="answers").load()
        ids = [row.message_id for row in look.select("message_id").collect()]
        print(f"{len(ids)} answers, {len(set(ids))} ids")  # 200 answers, 200 ids


if __name__ == "__main__":
    main(session_builder("multiqueue streaming").master("local[2]").getOrCreate())
