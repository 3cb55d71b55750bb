"""The job of sensors.toml: a reading per line, `2026-11-21T06:00 71.6F` or `... 22.0C`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # executors have this file, and not the package
    from multiqueue.pipeline import Item


def celsius(reading: str) -> float:
    """Runs on the executors: this file is sent to them."""
    degrees, unit = float(reading[:-1]), reading[-1]
    return round((degrees - 32) / 1.8, 2) if unit == "F" else degrees


def parse(spark: Any, lines: Any, item: Item) -> Any:
    """Runs in the driver, once per item."""
    spark.udf.register("celsius", celsius, "double")
    return lines.selectExpr("split(value, ' ')[0] AS at", "celsius(split(value, ' ')[1]) AS celsius")
