"""Slow clients over HTTP: they hold their own connection, for some time, and lock no other out."""

from __future__ import annotations

import asyncio
import base64
import select
import socket
import ssl
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from monitor_parts_support import Refused, _access, _app, _events, _patience, _reading, _server
from monitor_support import Client

from multiqueue import client as mq
from multiqueue.amqp import Access, Server, User
from multiqueue.broker import Broker, Message
from multiqueue.monitor import HttpServer
from multiqueue.testing import wait_until_blocked

LOGIN = b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
HALF = b"GET /api/overview HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


@pytest.fixture
def slow(client: Client) -> Iterator[Callable[[bytes], socket.socket]]:
    """Opens a connection and sends something. A read that takes longer than half a minute fails."""
    opened: list[socket.socket] = []

    def open_(sent: bytes) -> socket.socket:
        where = urlsplit(client.url)
        opened.append(socket.create_connection((where.hostname, where.port), timeout=30))
        opened[-1].sendall(sent)
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


def is_cut(connection: socket.socket) -> bool:
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server has four places for strangers, and four for users, one for each."""
    monkeypatch.setattr(_server, "http_connections_limit", lambda: 8)
    monkeypatch.setattr(_patience, "_PATIENCE", 3600.0)


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for `localhost`, and its key."""
    home = tmp_path_factory.mktemp("tls")
    names = str(home / "server.pem"), str(home / "server.key")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-out", names[0], "-keyout", names[1]], check=True, capture_output=True)
    return names


WRONG = b"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic Z3Vlc3Q6eA==\r\n\r\n"


@pytest.mark.usefixtures("few_places")
@pytest.mark.parametrize("sent", [b"", HALF, WRONG])
def test_strangers_lock_nobody_out(
    client: Client, slow: Callable[[bytes], socket.socket], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """However many clients send nothing, half a request, or a wrong login: who asks is answered, the oldest goes, and a
    user that is connected stays. (monitor 7)"""
    monkeypatch.setattr(_access, "REFUSED_AFTER", 3600.0)
    guest = slow(b"GET /api/whoami" + LOGIN + b"\r\n")
    assert guest.recv(100).startswith(b"HTTP/1.1 200")
    other = client.as_user("ada:secret")
    assert client("PUT", "/api/users/ada", {"password": "secret", "tags": "management"}).status in (201, 503)
    crowd = []
    for _ in range(12):
        crowd.append(slow(sent))
        assert client("GET", "/api/whoami").status == 200
    left = set(crowd)
    while len(left) > 4:
        for each in select.select(left, [], [], 30)[0]:
            assert is_cut(each)
            left.remove(each)
    # A login that has been found wrong goes before an older one that is still being verified.
    assert sent == WRONG or left <= set(crowd[8:])
    assert other("GET", "/api/whoami").status == 200
    assert client("GET", "/metrics").status == 200


@pytest.mark.usefixtures("few_places")
def test_a_user_has_a_share_of_the_places(client: Client, slow: Callable[[bytes], socket.socket]) -> None:
    """Its idle connection goes for another of its own. Those at work are not cut, and lock no other user out."""
    assert client("PUT", "/api/users/ada", {"password": "secret", "tags": "management"}).status == 201
    idle = slow(b"GET /api/whoami" + LOGIN + b"\r\n")
    assert idle.recv(100).startswith(b"HTTP/1.1 200")
    at_work = slow(b"POST /api/definitions" + LOGIN + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n")
    assert at_work.recv(100).startswith(b"HTTP/1.1 100")  # the body is awaited
    while not is_cut(idle):
        pass
    refused = client("GET", "/api/whoami")
    assert (refused.status, refused.json["reason"]) == (503, "1 connections of user 'guest' are at work already")
    assert client.as_user("ada:secret")("GET", "/api/whoami").status == 200
    at_work.sendall(b"[" * 9)
    assert at_work.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.usefixtures("few_places")
def test_silent_peers_keep_neither_door_shut(broker: Broker, server: Server, tls_files: tuple[str, str]) -> None:
    """Handshakes that do not begin are strangers, too: HTTPS and AMQP let others in meanwhile, and the log is short."""
    http = broker.listen_http(amqp=server, tls=tls_files)
    silent = [socket.create_connection((http.host, http.port), timeout=30) for _ in range(20)]
    trusting = ssl.create_default_context(cafile=tls_files[0])
    trusting.check_hostname = False
    with urllib.request.urlopen(f"{http.url}/", context=trusting, timeout=30) as answer:
        assert answer.status == 200
    assert all(is_cut(each) for each in silent[:17])
    mq.connect(server.url).close()
    for each in silent:
        each.close()


def test_a_user_has_a_share_of_the_threads(broker: Broker, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of one user that take long are not waited for by another's. (monitor 7)"""
    gate, began = threading.Event(), threading.Semaphore(0)

    def wait_there(self: object, ask: Any) -> object:
        if ask.caller.user.name == "guest":
            began.release()
            assert gate.wait(60)
        return {"status": "ok"}

    monkeypatch.setattr(_reading.Reading, "check_hosts", wait_there)
    client = Client(broker.listen_http(amqp=server).url)
    assert client("PUT", "/api/users/ada", {"password": "secret", "tags": "administrator"}).status == 201
    path = "/api/health/checks/virtual-hosts"
    with ThreadPoolExecutor(20) as crowd:
        asked = [crowd.submit(client, "GET", path) for _ in range(20)]
        for _ in range(_app._THREADS_OF_ONE):
            assert began.acquire(timeout=60)
        assert client.as_user("ada:secret")("GET", path).status == 200
        assert not began.acquire(blocking=False)
        gate.set()
    assert {each.result().status for each in asked} == {200}


@pytest.mark.parametrize("path", [b"/api/events?look=%2Fapi%2Fqueues%3Fpage%3D1%26page_size%3D500", b"/api/queues"])
def test_a_client_that_does_not_read_is_cut(
    client: Client, broker: Broker, server: Server, monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    """Before it has its answer, and in a stream: nothing is kept for it for long. (monitor 7)"""
    for number in range(400):
        broker.declare_queue(f"q{number}" + "x" * 200)
    monkeypatch.setattr(_patience, "_PATIENCE", 0.05)
    where = urlsplit(client.url)
    (http,) = [each for each in broker._servers if isinstance(each, HttpServer)]
    http._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.connect((where.hostname, where.port))
        unread.sendall(b"GET " + path + LOGIN + b"\r\n")
        wait_until_blocked(lambda: len(http._server.server_state.connections) == 1)
        wait_until_blocked(lambda: not http._server.server_state.connections)
    assert client("GET", "/api/whoami").status == 200


@pytest.mark.parametrize("sent", [b"", HALF, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + HALF])
def test_a_client_that_sends_no_whole_request_is_cut(
    client: Client, slow: Callable[[bytes], socket.socket], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """Before its first request, and between two. (monitor 7)"""
    monkeypatch.setattr(_patience, "_PATIENCE", 0.05)
    connection = slow(sent)
    while not is_cut(connection):
        pass


def test_a_body_that_does_not_come_is_refused(
    client: Client, slow: Callable[[bytes], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says how long it was awaited. (monitor 7)"""
    monkeypatch.setattr(_app, "_BODY_TIME", 0.05)
    connection = slow(
        b"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
        b"Content-Length: 99\r\n\r\n{"
    )
    assert connection.recv(1000).startswith(b"HTTP/1.1 408")


def test_a_stream_that_nobody_reads_is_bounded(
    client: Client, broker: Broker, slow: Callable[[bytes], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not read misses samples: the server keeps a piece or two of an answer for it. (monitor 7)"""
    monkeypatch.setattr(_patience, "_PATIENCE", 3600.0)
    for number in range(400):
        broker.declare_queue(f"q{number:03}" + "x" * 200)
    (server,) = [each for each in broker._servers if isinstance(each, HttpServer)]
    server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    look = b"GET /api/events?look=%2Fapi%2Fqueues%3Fpage%3D1%26page_size%3D200" + LOGIN + b"\r\n"
    slow(look)
    reading = slow(look)  # it sees each sample, so the other stream might
    for number in range(1, 4):
        broker.publish(Message(b"", routing_key="q000" + "x" * 200))
        client("PUT", "/api/queues/%2F/q", {})
        seen = b""
        while f'"publish":{number},'.encode() not in seen:
            seen = seen[-100:] + reading.recv(1 << 20)
    waiting = [each.transport.get_write_buffer_size() for each in server._server.server_state.connections]
    assert 0 < max(waiting) <= 3 * _events._PIECE


def test_an_idle_client_does_not_hold_up_the_end(
    broker: Broker, server: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` wakes a server that waits, and cuts clients that ask nothing, with no look at a clock. (monitor 8)"""
    monkeypatch.setattr(_server, "_TICK", 3600.0)
    monkeypatch.setattr(_server, "_GRACE", 3600.0)
    monkeypatch.setattr(_patience, "_PATIENCE", 3600.0)
    http = broker.listen_http(amqp=server)
    where = urlsplit(http.url)
    with socket.create_connection((where.hostname, where.port), timeout=30) as idle:
        idle.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(100).startswith(b"HTTP/1.1 200")
        idle.sendall(HALF)  # uvicorn would cut a client that is done
        http.close(timeout=30)
        assert not [each for each in threading.enumerate() if each.name == "multiqueue-http"]


def test_a_crowd_is_refused_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The more wrong logins of an address wait for their refusal, the longer each waits; one from elsewhere and a right
    one wait for none of them. (monitor 7)"""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(round(seconds))
        await real_sleep(0)

    real_sleep = asyncio.sleep
    monkeypatch.setattr(_access.asyncio, "sleep", sleep)
    monkeypatch.setattr(_access, "REFUSED_AFTER", 100.0)
    authenticator = _access.Authenticator(Access([User.with_password("anna", "secret", tags=["management"])]))
    wrong, right = (f"Basic {base64.b64encode(each).decode()}" for each in (b"anna:wrong", b"anna:secret"))

    async def crowd() -> None:
        await asyncio.gather(authenticator.caller(wrong, "10.0.0.1"), return_exceptions=True)  # hashed from now on
        asked = [authenticator.caller(wrong, "10.0.0.1") for _ in range(2 * _access._CROWD)]
        elsewhere, good = authenticator.caller(wrong, "10.0.0.2"), authenticator.caller(right, "10.0.0.1")
        *refused, caller = await asyncio.gather(*asked, elsewhere, good, return_exceptions=True)
        assert all(isinstance(each, Refused) for each in refused)
        assert isinstance(caller, _access.Caller)

    asyncio.run(crowd())
    authenticator.close()
    assert (waited[0], waited[-2], waited[-1]) == (100, 200, 100)
    assert not authenticator._refused
