"""TLS: the same client over a socket that two threads must not use at once."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from client_contract_support import Seen
from client_parts_support import TlsSocket

from multiqueue.amqp import Permissions, User, server_tls
from multiqueue.broker import Broker
from multiqueue.client import ConnectionFailed, connect
from multiqueue.testing import PATIENCE


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and certificates that it signed for `localhost` and for the user `anna`."""
    if shutil.which("openssl") is None:
        if os.environ.get("MULTIQUEUE_REQUIRE_PEERS"):
            pytest.fail("MULTIQUEUE_REQUIRE_PEERS is set, and openssl is not installed", pytrace=False)
        pytest.skip("openssl is not installed")
    home = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=home, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    authority = ("-subj", "/CN=test CA", "-addext", "keyUsage=critical,keyCertSign")
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", *authority)
    for name in ("localhost", "anna"):
        openssl("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (home / "extension").write_text(f"subjectAltName = DNS:{name}\nauthorityKeyIdentifier = keyid\n")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "extension")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    return home


def trusting(home: Path, certificate: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(home / "ca.pem"))
    if certificate is not None:
        context.load_cert_chain(home / f"{certificate}.pem", home / f"{certificate}.key")
    return context


def url_of(port: int) -> str:
    return f"amqps://guest:guest@localhost:{port}/%2F"


def test_both_directions_at_once(broker: Broker, home: Path) -> None:
    """Four threads publish bodies of several records while a callback receives them: all arrive whole."""
    server = broker.listen(tls=server_tls(home / "localhost.pem", home / "localhost.key"))
    with connect(url_of(server.port), tls=trusting(home), heartbeat=1) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        seen = Seen()
        channel.basic_consume("q", seen, auto_ack=True)
        body = os.urandom(100_000)

        def work() -> None:
            out = connection.channel()
            for _ in range(25):
                out.publish(body, routing_key="q")
            out.close()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert all(message.body == body for message in seen.wait_for(100))
        for thread in threads:
            thread.join(PATIENCE)
        connection.check_invariants()


def test_a_certificate_that_is_not_trusted_is_refused(broker: Broker, home: Path) -> None:
    """With the reason, before a password was sent."""
    server = broker.listen(tls=server_tls(home / "localhost.pem", home / "localhost.key"))
    with pytest.raises(ConnectionFailed, match="certificate verify failed"):
        connect(url_of(server.port))


def test_a_certificate_can_log_in(broker: Broker, home: Path) -> None:
    """login="external": the server knows who we are by it."""
    tls = server_tls(home / "localhost.pem", home / "localhost.key", client_ca=home / "ca.pem")
    server = broker.listen(tls=tls, users=[User("anna", everywhere=Permissions())])
    with connect(url_of(server.port), tls=trusting(home, "anna"), login="external") as connection:
        assert connection.channel().queue_declare(exclusive=True).message_count == 0
    with pytest.raises(ConnectionFailed, match="ACCESS_REFUSED"):
        connect(url_of(server.port), tls=trusting(home, "localhost"), login="external")


def test_a_loss_is_noticed_and_mended(broker: Broker, home: Path) -> None:
    """Recovery over TLS."""
    server = broker.listen(tls=server_tls(home / "localhost.pem", home / "localhost.key"))
    recovered = Seen()
    options = {"tls": trusting(home), "recovery_interval": 0.01, "on_recovered": recovered}
    with connect(url_of(server.port), **options) as connection:
        channel = connection.channel()
        link = connection._link
        assert link is not None
        link._stream.shutdown(2)  # type: ignore[attr-defined]
        recovered.wait_for(1)
        assert channel.queue_declare(exclusive=True).queue


def test_what_a_shut_down_socket_still_sends_is_encrypted(home: Path) -> None:
    """Another thread may be writing when the reader shuts the socket down."""
    ours, theirs = socket.socketpair()
    peer = server_tls(home / "localhost.pem", home / "localhost.key")
    with ours, theirs, ThreadPoolExecutor() as pool:
        accepted = pool.submit(peer.wrap_socket, theirs, server_side=True)
        stream = TlsSocket(trusting(home).wrap_socket(ours, server_hostname="localhost"), PATIENCE)
        with accepted.result(PATIENCE) as listening:
            stream.shutdown(socket.SHUT_RD)
            stream.sendall(b"a secret")
            assert listening.recv(100) == b"a secret"
        stream.close()
