"""Scheduler pools: the file that Spark reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

from multiqueue.spark import SchedulerPool, pools_xml

ALLOCATION_FILE = "spark.scheduler.allocation.file"


def test_pools_are_written_for_spark_to_read(tmp_path: Path) -> None:
    """The file behind the URI has each pool with its mode, weight and minimum share, names escaped."""
    uri = pools_xml([SchedulerPool("a & <b>", weight=3, min_share=2, mode="FIFO"), "plain"], tmp_path / "")
    root = ElementTree.parse(unquote(urlparse(uri).path)).getroot()
    assert uri.startswith("file:///")
    assert root.tag == "allocations"
    assert [(pool.get("name"), {child.tag: child.text for child in pool}) for pool in root] == [
        ("a & <b>", {"schedulingMode": "FIFO", "weight": "3", "minShare": "2"}),
        ("plain", {"schedulingMode": "FAIR", "weight": "1", "minShare": "0"}),
    ]


def test_a_directory_of_its_own_by_default() -> None:
    """Without a directory the file is in a new one, so that two programs do not share it."""
    assert pools_xml(["a"]) != pools_xml(["a"])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"name": ""}, "needs a name"),
        ({"name": "p", "weight": 0}, "'p': weight must be at least 1, not 0"),
        ({"name": "p", "min_share": -1}, "'p': min_share must not be negative, not -1"),
        ({"name": "p", "mode": "LIFO"}, "'p': mode must be 'FAIR' or 'FIFO', not 'LIFO'"),
    ],
)
def test_a_wrong_pool_is_refused(settings: dict[str, object], problem: str) -> None:
    """A pool that Spark would ignore or misread is refused by name."""
    with pytest.raises(ValueError, match=problem):
        SchedulerPool(**settings)  # type: ignore[arg-type]


def test_a_pool_named_twice_is_refused(tmp_path: Path) -> None:
    """Two pools of one name are refused, and no file is written."""
    with pytest.raises(ValueError, match="'a' is defined twice"):
        pools_xml(["a", SchedulerPool("a", weight=2)], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_url_is_no_directory_of_the_driver(tmp_path: Path) -> None:
    """The allocation file is read by Spark's driver from its own disk; a URL is refused with that reason."""
    with pytest.raises(
        ValueError, match="'s3://bucket/pools' is no directory; Spark's driver reads the file on its own"
    ):
        pools_xml(["a"], "s3://bucket/pools")
    with pytest.raises(ValueError, match="'dbfs:/pools' is no directory"):
        pools_xml(["a"], Path("dbfs:/pools"))
    assert not list(tmp_path.iterdir())


@pytest.mark.spark
def test_spark_reads_the_file(spark: SparkSession, tmp_path: Path) -> None:
    """What builds a session's pools finds those of the file, with their weights and shares."""
    uri = pools_xml([SchedulerPool("gold", weight=1000, min_share=1), "plain"], tmp_path)
    context: Any = spark.sparkContext._jsc.sc()
    scheduler: Any = spark.sparkContext._jvm.org.apache.spark.scheduler  # type: ignore[union-attr]
    root = scheduler.Pool("", scheduler.SchedulingMode.FAIR(), 0, 0)
    context.conf().set(ALLOCATION_FILE, uri)
    try:
        scheduler.FairSchedulableBuilder(root, context).buildPools()
    finally:
        context.conf().remove(ALLOCATION_FILE)
    found = {name: root.getSchedulableByName(name) for name in ("gold", "plain")}
    assert {name: (pool.weight(), pool.minShare()) for name, pool in found.items()} == {
        "gold": (1000, 1),
        "plain": (1, 0),
    }
