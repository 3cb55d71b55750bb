"""Who comes in, and what they may touch."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from amqp_parts_support import Newcomers
from amqp_parts_support import access as _access
from amqp_parts_support import connection as _connection
from amqp_raw_support import Closed, RawClient
from amqp_tls_support import TlsClient, trusting
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import (
    Access,
    Permissions,
    Server,
    ServerError,
    ServerSettings,
    User,
    check_hash,
    guest,
    hash_password,
    is_loopback,
    server_tls,
)
from multiqueue.broker import Broker, Message
from multiqueue.testing import PATIENCE

MINE = {"/": Permissions(configure="^mine", write="^(mine|amq\\.default)", read="^(mine|amq\\.direct)")}


@pytest.fixture
def server(broker: Broker) -> Iterator[Server]:
    users = [User.with_password("anna", "secret", MINE), User.with_password("root", "all")]
    with amqp.serve(broker, users=users) as started:
        yield started


def test_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash has a salt of its own, is verified in constant time, and says what it was made with."""
    one, two = hash_password("secret"), hash_password("secret")
    assert one != two
    assert one.startswith("scrypt$16384$8$1$")
    monkeypatch.setattr(_access, "_right", {})  # as if the hashes were made elsewhere
    access = Access([User("a", one), User("certified")])
    assert access.look("a", b"secret") is None
    assert access.verify("a", b"secret")
    assert access.look("a", b"secret") is True
    assert not access.verify("a", b"wrong")
    assert access.look("a", b"wrong") is False
    assert not access.verify("nobody", b"")
    assert not access.verify("certified", b"")


def test_a_password_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The right one and each wrong one, of names that are known and of others; then it is right or wrong at once."""
    monkeypatch.setattr(
        _access, "_wrong", {}
    )  # the process may have refused these before: it remembers all its refusals
    access = Access([User("a", hash_password("secret")), User("b", hash_password("other")), User("certified")])
    assert access.look("a", b"secret") is True  # it was hashed here
    assert access.look("a", b"other") is None  # as for a name that is not known
    monkeypatch.setattr(_access, "_right", {})
    assert access.look("a", b"secret") is None
    assert access.look("a", b"wrong") is None
    assert not access.verify("a", b"wrong")
    assert access.look("a", b"wrong") is False
    assert access.look("a", b"secret") is None
    assert access.verify("a", b"secret")
    assert access.look("a", b"secret") is True
    assert access.look("b", b"wrong") is None  # of another
    for name in ("nobody", "certified"):
        assert access.look(name, b"wrong") is None
        assert not access.verify(name, b"wrong")
        assert access.look(name, b"wrong") is False
    access.put(User("a", hash_password("new")))
    assert (access.look("a", b"secret"), access.look("a", b"new")) == (None, True)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes for the newest."""
    table: dict[int, bytes] = {}
    monkeypatch.setattr(_access, "_REMEMBERED", 3)
    for number in range(5):
        _access._remember(table, number, b"")
    assert list(table) == [2, 3, 4]


@pytest.mark.parametrize(
    "hashed", ["", "secret", "scrypt$1$2$3", "scrypt$x$8$1$aaaa$aaaa", f"scrypt${2**30}$8$1$YQ==$YQ=="]
)
def test_what_is_no_hash(hashed: str) -> None:
    """A password in the place of its hash is refused, and so is one that would take a gigabyte to check."""
    with pytest.raises(ValueError, match="hash-password"):
        check_hash(hashed)


def test_a_permission_is_an_expression() -> None:
    """It matches anywhere in a name, an empty one nothing; what is none is refused with its place."""
    permissions = Permissions(configure="ord", write="", read="^a$")
    assert permissions.allow("configure", "my-orders")
    assert not permissions.allow("write", "a")
    assert not permissions.allow("read", "ab")
    with pytest.raises(ValueError, match="write = '\\('"):
        Permissions(write="(")


def test_permissions(server: Server) -> None:
    """Each method asks for what it does to what it names; a refusal says so, and costs the channel."""
    refusals: list[tuple[Any, dict[str, Any], str]] = [
        (commands.Queue.Declare, {"queue": "yours"}, "configure access to queue 'yours'"),
        (commands.Queue.Declare, {"queue": ""}, "configure access to queue 'amq.gen-'"),
        (
            commands.Queue.Declare,
            {"queue": "mine", "arguments": {"x-dead-letter-exchange": "dlx"}},
            "write access to exchange 'dlx'",
        ),
        (commands.Queue.Declare, {"queue": "yours", "passive": True}, "configure access to queue 'yours'"),
        (commands.Exchange.Declare, {"exchange": "e", "passive": True}, "configure access to exchange 'e'"),
        (commands.Queue.Delete, {"queue": "yours"}, "configure access to queue 'yours'"),
        (commands.Queue.Purge, {"queue": "yours"}, "read access to queue 'yours'"),
        (commands.Queue.Bind, {"queue": "yours", "exchange": "amq.direct"}, "write access to queue 'yours'"),
        (commands.Queue.Bind, {"queue": "mine", "exchange": "amq.topic"}, "read access to exchange 'amq.topic'"),
        (commands.Queue.Unbind, {"queue": "mine", "exchange": "amq.topic"}, "read access to exchange 'amq.topic'"),
        (commands.Exchange.Declare, {"exchange": "e"}, "configure access to exchange 'e'"),
        (
            commands.Exchange.Declare,
            {"exchange": "mine", "exchange_type": "fanout", "arguments": {"alternate-exchange": "a"}},
            "write access to exchange 'a'",
        ),
        (commands.Exchange.Delete, {"exchange": "e"}, "configure access to exchange 'e'"),
        (commands.Exchange.Bind, {"destination": "e", "source": "mine"}, "write access to exchange 'e'"),
        (commands.Exchange.Unbind, {"destination": "mine", "source": "e"}, "read access to exchange 'e'"),
        (commands.Basic.Consume, {"queue": "yours"}, "read access to queue 'yours'"),
        (commands.Basic.Get, {"queue": "amq.multiqueue.status"}, "read access to queue 'amq.multiqueue.status'"),
    ]
    with RawClient(server.url, user="anna", password="secret") as client:
        for method, fields, what in refusals:
            client.send_method(1, method, **fields)
            expected = f"ACCESS_REFUSED - {what} in vhost '/' refused for user 'anna'"
            assert client.channel_error() == (403, expected)
        client.publish("amq.fanout", "", b"x")
        assert client.channel_error()[1].startswith("ACCESS_REFUSED - write access to exchange 'amq.fanout'")
        assert isinstance(client.declare("mine"), commands.Queue.DeclareOk)
        client.call(1, commands.Exchange.Declare, exchange="amq.direct", passive=True)  # it may read there
        client.send_method(1, commands.Queue.Declare, queue="mine", arguments={"x-dead-letter-exchange": "dlx"})
        assert "inequivalent arg" in client.channel_error()[1]  # no permission is asked for what is not made
        assert isinstance(client.bind("mine", "amq.direct", "k"), commands.Queue.BindOk)
        client.publish("", "mine", b"x")
        got = client.get("mine")
        assert got is not None


def test_a_virtual_host_without_permissions(broker: Broker, server: Server) -> None:
    """It cannot be opened."""
    broker.add_virtual_host("other")
    client = RawClient(server.url, opens=False, user="anna", password="secret")
    client.start_ok()
    client.tune_ok()
    client.send_method(0, commands.Connection.Open, virtual_host="other")
    assert client.connection_error() == (530, "NOT_ALLOWED - access to vhost 'other' refused for user 'anna'")
    RawClient(server.url, user="root", password="all", host="other").close()


def test_virtual_hosts_are_apart(broker: Broker, server: Server) -> None:
    """A queue of one is unknown in the other."""
    broker.add_virtual_host("other")
    broker.declare_queue("q")
    with RawClient(server.url, user="root", password="all", host="other") as client:
        client.send_method(1, commands.Queue.Declare, queue="q", passive=True)
        assert client.channel_error() == (404, "NOT_FOUND - no queue 'q' in vhost 'other'")


def test_no_line_of_the_log_is_a_peers(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A user name, a mechanism, a virtual host and a consumer tag with newlines are shown with escapes."""
    forged = "x\n2026-11-22 12:00:00 user 'root' opened vhost '/'\x1b[2K"
    for login in ({"user": forged}, {"mechanism": forged}, {"host": forged}):
        client = RawClient(url, opens=False, **login)  # type: ignore[arg-type]
        client.start_ok()
        if "host" in login:
            client.tune_ok()
            client.send_method(0, commands.Connection.Open, virtual_host=forged)
        client.connection_error()
    client = RawClient(url)
    client.declare("q", exclusive=True)
    client.consume("q", tag=forged)
    client.send_method(1, commands.Basic.Consume, queue="q", consumer_tag=forged)
    assert client.connection_error()[0] == 530
    named = [record.getMessage() for record in caplog.records if "x\\n2026" in record.getMessage()]
    assert len(named) >= 3
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_guest_is_for_loopback(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default user comes in from this machine only."""
    assert guest().loopback_only
    for address, expected in (
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("", False),
    ):
        assert is_loopback(address) is expected
    server = broker.listen()
    RawClient(server.url).close()
    monkeypatch.setattr(_connection, "is_loopback", lambda address: False)
    client = RawClient(server.url, opens=False)
    client.start_ok()
    assert client.connection_error()[0] == 403


# -- TLS


def test_tls(broker: Broker, certificates: Path) -> None:
    """Messages go through TLS, large ones too; who speaks plainly is cut, and EXTERNAL is not offered."""
    tls = server_tls(certificates / "localhost.pem", certificates / "localhost.key")
    with amqp.serve(broker, tls=tls) as server:
        assert server.url.startswith("amqps://")
        with TlsClient(server.url, trusting(certificates)) as client:
            assert b"EXTERNAL" not in client.start_ok().mechanisms
            client.tune_ok()
            client.call(0, commands.Connection.Open, virtual_host="/")
            client.channel(1)
            client.declare("q")
            client.publish("", "q", b"x" * 500_000)
            client.consume("q")
            assert len(client.content().body) == 500_000
            client.socket.close()
        plain = RawClient(server.url.replace("amqps", "amqp"), opens=False)
        plain.send(amqp.PROTOCOL_HEADER)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while data := plain.socket.recv(100):
                answer += data
        assert b"AMQP" not in answer


def test_tls_and_plain_ports_together(broker: Broker, certificates: Path) -> None:
    """One server listens without TLS on one port and with it on another; messages cross, and both end with it."""
    tls = server_tls(certificates / "localhost.pem", certificates / "localhost.key")
    server = broker.listen(tls=tls, tls_port=0)
    assert server.tls_port not in (None, server.port)
    assert (server.url.partition(":")[0], server.tls_url.partition(":")[0]) == ("amqp", "amqps")
    plain = RawClient(server.url)
    plain.declare("q")
    with TlsClient(server.tls_url, trusting(certificates)) as client:
        client.handshake()
        client.channel(1)
        client.publish("", "q", b"across")
        plain.consume("q")
        assert plain.bodies(1) == [b"across"]
        server.close(timeout=0.05)  # neither answers while it closes
        assert (client.connection_error()[0], plain.connection_error()[0]) == (320, 320)
    for port in (server.port, server.tls_port):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)


def test_a_port_for_tls_needs_a_certificate(broker: Broker) -> None:
    """It is refused with what is missing, and nothing listens."""
    with pytest.raises(ValueError, match=r"tls_port=5671 needs tls=, what server_tls\(certificate, key\) makes"):
        broker.listen(tls_port=5671)


def test_a_second_port_that_cannot_be_had(broker: Broker, server: Server, certificates: Path) -> None:
    """Then the first is given back too."""
    tls = server_tls(certificates / "localhost.pem", certificates / "localhost.key")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ServerError, match=f"port {server.port} is in use"):
        amqp.serve(broker, port=port, tls=tls, tls_port=server.port)
    with amqp.serve(broker, port=port) as other:
        assert other.tls_port is None


def test_tls_handshakes_that_stall(broker: Broker, certificates: Path) -> None:
    """They are newcomers as any other: the first ones go for those that come, who get in."""
    tls = server_tls(certificates / "localhost.pem", certificates / "localhost.key")
    with amqp.serve(broker, tls=tls, settings=ServerSettings(handshake_timeout=3600)) as server:
        server.newcomers = Newcomers(8)
        silent = [RawClient(server.url.replace("amqps", "amqp"), opens=False) for _ in range(12)]
        with TlsClient(server.url, trusting(certificates)) as client:
            client.host = "/"
            client.handshake()
            assert len(server.newcomers) == server.newcomers.most_of_one - 1 == 3
            for each in silent[:9]:
                assert each.is_cut()
            client.socket.close()


def test_a_server_that_closes_during_a_handshake(broker: Broker, certificates: Path) -> None:
    """A client that has not finished its TLS handshake is cut."""
    tls = server_tls(certificates / "localhost.pem", certificates / "localhost.key")
    with amqp.serve(broker, tls=tls) as server:
        silent = RawClient(server.url.replace("amqps", "amqp"), opens=False)
        with TlsClient(server.url, trusting(certificates)) as client:  # accepted after the silent one
            client.start_ok()
            client.socket.close()
    assert silent.is_cut()


def test_mutual_tls(broker: Broker, certificates: Path) -> None:
    """With a client CA, a certificate is needed, and logs its common name in; a stranger's name does not."""
    paths = certificates / "localhost.pem", certificates / "localhost.key"
    tls = server_tls(*paths, client_ca=certificates / "ca.pem")
    with amqp.serve(broker, tls=tls, users=[User("anna", everywhere=Permissions())]) as server:
        external: dict[str, Any] = {"mechanism": "EXTERNAL", "response": b"", "host": "/"}
        with TlsClient(server.url, trusting(certificates, "anna"), **external) as client:
            client.handshake()
            (connection,) = server.connections()
            assert connection.user.name == "anna"
            client.socket.close()
        stranger = TlsClient(server.url, trusting(certificates, "localhost"), **external)
        stranger.start_ok()
        assert stranger.connection_error()[0] == 403
        with pytest.raises((OSError, Closed)):
            TlsClient(server.url, trusting(certificates)).start_ok()


NO_PASSWORD = amqp.encode_table({"LOGIN": "root"})[4:]


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("EXTERNAL", b"root"),  # by a certificate that the server did not ask for
        *(("PLAIN", response) for response in (b"", b"root\0all", b"\0root\0all\0", b"\0\xff\0x", b"\0root\0")),
        *(("AMQPLAIN", response) for response in (b"", b"\xff", b"\x05LOGINt\x01", NO_PASSWORD)),
    ],
)
def test_a_malformed_response(mechanism: str, response: bytes, server: Server) -> None:
    """A response that is none is a refused login."""
    client = RawClient(server.url, opens=False, mechanism=mechanism, response=response)
    client.start_ok()
    assert client.connection_error()[0] == 403


def test_certificates_that_cannot_be_used(certificates: Path, tmp_path: Path) -> None:
    """The error says which file, and why."""
    with pytest.raises(ServerError, match=r"nonesuch\.pem.*No such file"):
        server_tls(tmp_path / "nonesuch.pem")
    with pytest.raises(ServerError, match="another's"):
        server_tls(certificates / "localhost.pem", certificates / "anna.key")
    with pytest.raises(ServerError, match=r"client CA .*localhost\.key"):
        server_tls(
            certificates / "localhost.pem", certificates / "localhost.key", client_ca=certificates / "localhost.key"
        )


def test_an_address_that_cannot_be_had(broker: Broker, server: Server) -> None:
    """A port in use and a host that is not ours are one sentence each."""
    with pytest.raises(ServerError, match=rf"port {server.port} is in use"):
        amqp.serve(broker, port=server.port)
    with pytest.raises(ServerError, match=r"cannot listen on 192\.0\.2\.1"):
        amqp.serve(broker, "192.0.2.1")


def test_connections_end_with_their_virtual_host(broker: Broker, server: Server) -> None:
    """They are told so; no user has permissions there any more but by `*`, and other connections go on."""
    broker.add_virtual_host("other")
    server.access.put(User.with_password("eve", "x", {"other": Permissions(), "/": Permissions()}))
    with (
        RawClient(server.url, user="root", password="all", host="other") as inside,
        RawClient(server.url, user="root", password="all") as outside,
    ):
        broker.delete_virtual_host("other")
        assert inside.connection_error() == (320, "CONNECTION_FORCED - vhost 'other' is deleted")
        assert isinstance(outside.declare("q"), commands.Queue.DeclareOk)
    eve = server.access.user("eve")
    assert eve is not None
    assert set(eve.permissions) == {"/"}


def test_a_virtual_host_goes_without_the_answers_of_its_clients(broker: Broker, server: Server) -> None:
    """A client that does not answer the close is not waited for: its messages are back, and its connection has nothing
    of the virtual host any more."""
    host = broker.add_virtual_host("other")
    queue = host.declare_queue("q")
    host.publish(Message(b"x", routing_key="q"))
    with RawClient(server.url, user="root", password="all", host="other") as silent:
        assert silent.get("q") is not None
        server.forget_virtual_host("other", timeout=PATIENCE)
        assert len(queue) == 1
        assert queue.statistics().available == 1
        assert len(server.connections()) == 1, "it was cut, after all that time"
        broker.delete_virtual_host("other")
        assert silent.connection_error() == (320, "CONNECTION_FORCED - vhost 'other' is deleted")
