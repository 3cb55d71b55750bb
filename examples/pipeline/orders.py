"""The job of pipeline.toml: it cleans each file of orders."""

from __future__ import annotations

from typing import Any

from multiqueue.pipeline import Item


def clean(spark: Any, orders: Any, item: Item) -> Any:
    """Orders without an amount are dropped; the others say which file they came from."""
    return orders.dropna(subset=["amount"]).selectExpr("*", f"'{item.paths[0].name}' AS file")
