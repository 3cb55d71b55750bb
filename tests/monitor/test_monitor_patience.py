"""Slow clients over HTTP: they hold their own connection, for some time, and lock no other out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from monitor_parts_support import _app, _patience, _server
from monitor_support import Client

from multiqueue.broker import Broker, Message
from multiqueue.monitor import HttpServer

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


@pytest.mark.parametrize("sent", [b"", HALF])
def test_a_newcomer_takes_the_place_of_the_idlest(
    client: Client, slow: Callable[[bytes], socket.socket], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """However many clients send nothing, or half a request: who asks is answered, and the oldest goes. (monitor 7)"""
    monkeypatch.setattr(_patience, "_CONNECTIONS", 4)
    monkeypatch.setattr(_patience, "_PATIENCE", 3600.0)
    oldest, *_ = [slow(sent) for _ in range(4)]
    assert client("GET", "/api/whoami").status == 200
    assert is_cut(oldest)


def test_where_all_are_at_work_a_newcomer_is_refused(
    client: Client, slow: Callable[[bytes], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that are being answered are not cut for it. (monitor 7)"""
    posting = b"POST /api/definitions" + LOGIN + b"Content-Length: 9\r\n"
    at_work = slow(posting + b"Expect: 100-continue\r\n\r\n")
    assert at_work.recv(100).startswith(b"HTTP/1.1 100")  # the body is awaited
    monkeypatch.setattr(_patience, "_CONNECTIONS", 1)
    assert slow(b"").recv(100).startswith(b"HTTP/1.1 503")
    at_work.sendall(b"[" * 9)
    assert at_work.recv(100).startswith(b"HTTP/1.1 400")


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


@pytest.mark.slow(selected=True)
def test_a_stream_that_nobody_reads_is_bounded(
    client: Client, broker: Broker, slow: Callable[[bytes], socket.socket]
) -> None:
    """A client that does not read misses samples: the server keeps no more than two answers for it. (monitor 7)"""
    for number in range(4000):
        broker.declare_queue(f"q{number}" + "x" * 200)
    answer = len(client("GET", "/api/queues").text)
    head = b"GET /api/events?look=%2Fapi%2Fqueues" + LOGIN + b"\r\n"
    slow(head)
    reading = slow(head)  # it sees each sample, so the other stream might
    for number in range(1, 4):
        broker.publish(Message(b"", routing_key="q0" + "x" * 200))
        client("PUT", "/api/queues/%2F/q", {})
        seen = b""
        while f'"publish":{number},'.encode() not in seen:
            seen = seen[-100:] + reading.recv(1 << 20)
    (server,) = [each for each in broker._servers if isinstance(each, HttpServer)]
    waiting = [each.transport.get_write_buffer_size() for each in server._server.server_state.connections]
    assert 0 < max(waiting) <= 2 * answer


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
