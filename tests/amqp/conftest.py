"""Brokers for the tests of the gatehouse: ours, and RabbitMQ where a suite holds for both."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from multiqueue.broker import Broker

_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Close the sockets that a test has left open, before its server closes: the server would wait for answers."""
    from amqp_raw_support import opened

    while opened:
        opened.pop().close()


@pytest.fixture(autouse=True)
def _a_refusal_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong login costs a test no second."""
    from amqp_parts_support import connection

    monkeypatch.setattr(connection, "REFUSED_AFTER", 0.02)


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker in this process."""
    with Broker(housekeeping_interval=0.02) as started:
        yield started


@pytest.fixture
def url(broker: Broker) -> str:
    """Where a server for that broker listens."""
    return str(broker.listen().url)


@pytest.fixture(params=["multiqueue", pytest.param("rabbitmq", marks=pytest.mark.slow(selected=True))])
def any_url(request: pytest.FixtureRequest) -> str:
    """Where our server listens, or RabbitMQ: what is asserted holds for both."""
    return str(
        request.getfixturevalue("url")
        if request.param == "multiqueue"
        else request.getfixturevalue("rabbitmq_peer").url
    )


@pytest.fixture
def name() -> Callable[[str], str]:
    """Makes names that no other test has, for brokers that outlive a test."""
    number = next(_numbers)
    return lambda word: f"{word}-{os.getpid()}-{number}"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and certificates that it signed for `localhost` and for the user `anna`."""
    if shutil.which("openssl") is None:
        if os.environ.get("MULTIQUEUE_REQUIRE_PEERS"):
            pytest.fail("MULTIQUEUE_REQUIRE_PEERS is set, and openssl is not installed", pytrace=False)
        pytest.skip("openssl is not installed")
    home = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=home, check=True, capture_output=True)

    ca = ("-addext", "keyUsage=critical,keyCertSign")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test CA", *ca)
    for name in ("localhost", "anna"):
        openssl("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (home / f"{name}.ext").write_text(f"subjectAltName = DNS:{name}\nauthorityKeyIdentifier = keyid\n")
        by_ca = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext")
        openssl("x509", "-req", "-in", f"{name}.csr", *by_ca, "-out", f"{name}.pem")
    return home
