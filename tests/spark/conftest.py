"""What all tests of this room need: pyspark, and for those marked `spark` one session for all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent

# Said by pyspark about the pandas that happens to be installed.
PANDAS_IS_NEW = "ignore:PySpark does not yet fully support pandas:FutureWarning"

collect_ignore_glob: list[str] = []
try:
    import pyspark  # noqa: F401
except ImportError:
    collect_ignore_glob += ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(PANDAS_IS_NEW))


@pytest.fixture(scope="session")
def connect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Spark Connect server. Its clients are processes of their own: one has one kind of session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE.parent / "pipeline"))
        from pipeline_cluster_support import shared_connect_server
    with shared_connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """A classic session on two cores. Not stopped: other rooms' tests may have the same one."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("multiqueue tests")
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.authenticate.socketTimeout": "120s",  # a busy machine connects late
    }
    return builder.config(map=settings).getOrCreate()
