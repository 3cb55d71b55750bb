"""Read many DataFrames in one loop: rows as they arrive, an early end, and Arrow batches.

python examples/spark_fan_in.py
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING

from multiqueue.spark import fan_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def orders(spark: SparkSession, region: str, rows: int) -> DataFrame:
    return spark.range(0, rows, 1, 8).selectExpr("id", f"'{region}' as region", "id % 100 as price")


def main(spark: SparkSession) -> None:
    regions = {"eu": orders(spark, "eu", 20_000), "us": orders(spark, "us", 10_000)}

    seen = Counter(region for region, _ in fan_in(regions))
    print(f"rows: {dict(sorted(seen.items()))}")

    with fan_in(regions, priorities={"eu": 0, "us": 1}, capacity=100) as rows:
        dear = next(row for _, row in rows if row.price == 99)
    print(f"the first of price {dear.price} was enough: the jobs are cancelled, {rows.statistics().size} rows wait")

    with fan_in(regions, batches="arrow") as batches:
        print(f"sum of all prices: {sum(sum(batch.column('price').to_pylist()) for _, batch in batches)}")


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(SparkSession.builder.master("local[2]").getOrCreate())
