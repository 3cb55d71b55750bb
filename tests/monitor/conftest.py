"""A broker with both its servers, new for each test: an API that changes things is best tried on a fresh one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from monitor_support import Client

from multiqueue.broker import Broker

# At a desk without the extra these tests are left out; where peers are required they cannot be imported, and fail.
collect_ignore_glob: list[str] = []
if not os.environ.get("MULTIQUEUE_REQUIRE_PEERS") and any(
    find_spec(name) is None for name in ("pamqp", "prometheus_client", "starlette", "uvicorn")
):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def _a_refusal_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong login costs a test no second."""
    from amqp_parts_support import connection
    from monitor_parts_support import _access

    for module in (connection, _access):
        monkeypatch.setattr(module, "REFUSED_AFTER", 0.02)


@pytest.fixture
def many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is sampled, and told to streams, in a twentieth of a second."""
    from monitor_parts_support import _events, _sampler

    monkeypatch.setattr(_sampler, "INTERVAL", 0.05)
    monkeypatch.setattr(_events, "_TURN", 0.01)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def server(broker: Broker) -> object:
    return broker.listen()


@pytest.fixture
def client(broker: Broker, server: object) -> Client:
    return Client(broker.listen_http(amqp=server).url)
