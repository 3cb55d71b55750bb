"""What all tests of this room need: pyspark, and for those marked `spark` one session for all of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent

# Said by pyspark about the pandas that happens to be installed.
PANDAS_IS_NEW = "ignore:PySpark does not yet fully support pandas:FutureWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.filterwarnings(PANDAS_IS_NEW))


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of a broker of ours, in memory."""
    from multiqueue.broker import Broker

    with Broker() as broker:
        yield broker.listen().url


@pytest.fixture
def engine(url: str, way: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """A function of options that makes an engine over the queue `orders`, ended with the test.

    `way` is a fixture of the test file: the options that say where messages wait.
    """
    from spark_streaming_support import RAW, Engine, source_reader

    with ExitStack() as stack:

        def make(schema: Any = RAW, **options: str) -> Engine:
            given = {"url": url, "queue": "orders", **way, **options}
            made = Engine(lambda: source_reader(given, schema))
            stack.callback(lambda: made.reader.stop())  # that of the end: a restart makes another
            return made

        yield make


@pytest.fixture(scope="session")
def elsewhere() -> Any:
    """Spark beyond this process: the module that the pipeline's tests have it from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE.parent / "pipeline"))
        return importlib.import_module("pipeline_cluster_support")


@pytest.fixture(scope="session")
def connect_url(tmp_path_factory: pytest.TempPathFactory, elsewhere: Any) -> Iterator[str]:
    """The URL of a Spark Connect server. Its clients are processes of their own: one has one kind of session."""
    with elsewhere.shared_connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, elsewhere: Any) -> Iterator[Any]:
    """A standalone cluster of two workers."""
    with elsewhere.shared_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.heal()
        yield cluster


@pytest.fixture
def spark(elsewhere: Any) -> SparkSession:
    """A classic session on two cores: the one of all tests, or a new one where a test has stopped it."""
    session: SparkSession = elsewhere.common_session()
    return session
