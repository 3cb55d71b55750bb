"""The job of sales.toml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiqueue.pipeline import Item


def cents(price: str) -> int:
    """Runs on the executors."""
    return round(float(price) * 100)


def clean(spark: Any, frame: Any, item: Item) -> Any:
    """Runs in the driver, once per item."""
    from pyspark.sql.functions import udf

    if "body" in frame.columns:
        frame = frame.selectExpr("from_json(CAST(body AS STRING), 'id INT, price STRING') AS sale").select("sale.*")
    return frame.select("id", udf(cents, "int")("price").alias("cents"))
