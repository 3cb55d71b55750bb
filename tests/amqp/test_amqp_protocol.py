"""The protocol itself: what is said when, and what an offence costs. Against our server, and against RabbitMQ.

The numbers are those of docs/design/amqp.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from amqp_raw_support import Closed, RawClient
from pamqp import commands

from multiqueue import amqp
from multiqueue.broker import Broker

Name = Callable[[str], str]


def header(size: int, properties: bytes = amqp.NO_PROPERTIES, class_id: int = 60) -> bytes:
    """A content header frame on channel 1."""
    return raw_frame(2, 1, class_id.to_bytes(2) + b"\0\0" + size.to_bytes(8) + properties)


def raw_frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    """A frame, right or wrong."""
    return bytes((kind,)) + channel.to_bytes(2) + len(payload).to_bytes(4) + payload + end


PUBLISH = amqp.encode_method(1, commands.Basic.Publish, exchange="", routing_key="nowhere")


# -- the handshake


@pytest.mark.parametrize("beginning", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x00\x09\x02", b"AMQP\x00\x01\x00\x00"])
def test_another_protocol(beginning: bytes, any_url: str) -> None:
    """Whatever is not AMQP 0-9-1 is told what is spoken here, and cut (P1)."""
    client = RawClient(any_url, opens=False)
    client.send(beginning)
    got = b""
    while len(got) < 8:
        got += client.socket.recv(8 - len(got))
    assert got == b"AMQP\x00\x00\x09\x01"


def test_an_older_protocol_header(any_url: str) -> None:
    """A client that begins as with AMQP 0-9 is told that version, and gets 0-9-1 (P21)."""
    client = RawClient(any_url, opens=False)
    client.send(b"AMQP\x01\x01\x00\x09")
    start = client.method()
    client.socket.close()
    assert (start.version_major, start.version_minor) == (0, 9)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (raw_frame(8, 1, b""), 505),
        (raw_frame(8, 0, b"beat"), 501),
        (raw_frame(1, 1, b"\0\x3c\0\x0a" + bytes(7) + b"more"), 501),
        (amqp.encode_method(1, commands.Channel.FlowOk, active=True), 503),
        (amqp.encode_method(1, commands.Basic.CancelOk, consumer_tag="t"), 503),
    ],
    ids=["another channel's heartbeat", "a heartbeat that says something", "bytes behind a method", "flow", "cancel"],
)
def test_what_no_client_sends(frame: bytes, code: int, any_url: str) -> None:
    """A heartbeat of another channel or with a payload, bytes after a method, an unasked answer: the connection is
    closed, with the code of each (P22)."""
    client = RawClient(any_url)
    client.send(frame)
    assert client.connection_error()[0] == code


def test_a_close_that_does_not_decode_is_answered(url: str) -> None:
    """It has not come, so it closes nothing by itself: the connection is closed for what it is."""
    client = RawClient(url)
    client.send(raw_frame(1, 0, b"\0\x0a\0\x32\0"))
    assert client.connection_error()[0] == 501


def test_start(any_url: str) -> None:
    """The server says its version, mechanisms, locale and capabilities (P2)."""
    client = RawClient(any_url, opens=False)
    start = client.start_ok()
    client.socket.close()
    assert (start.version_major, start.version_minor, start.locales) == (0, 9, b"en_US")
    assert {b"PLAIN", b"AMQPLAIN"} <= set(start.mechanisms.split())
    capabilities = start.server_properties["capabilities"]
    for each in (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ):
        assert capabilities[each] is True


def test_tune(any_url: str) -> None:
    """It offers RabbitMQ's limits, and keeps to what the client chose (P3)."""
    client = RawClient(any_url, opens=False, channel_max=9, frame_max=8192)
    client.start_ok()
    tune = client.tune_ok()
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)
    client.call(0, commands.Connection.Open, virtual_host=client.host)
    client.call(1, commands.Channel.Open)
    client.close()


@pytest.mark.parametrize(
    ("channel_max", "frame_max"), [(2048, 131072), (0, 131072), (2047, 131073), (2047, 0), (9, 8191)]
)
def test_a_client_may_only_lower_limits(channel_max: int, frame_max: int, url: str) -> None:
    """A higher limit, or a frame_max below the least, costs the connection: 530 (P3)."""
    client = RawClient(url, opens=False, channel_max=channel_max, frame_max=frame_max)
    client.start_ok()
    client.tune_ok()
    assert client.connection_error()[0] == 530


def amqplain(user: str, password: str) -> bytes:
    return amqp.encode_table({"LOGIN": user, "PASSWORD": password})[4:]


@pytest.mark.parametrize(
    ("mechanism", "response"), [("PLAIN", b"\0guest\0guest"), ("AMQPLAIN", amqplain("guest", "guest"))]
)
def test_mechanisms(mechanism: str, response: bytes, any_url: str) -> None:
    """PLAIN and AMQPLAIN let in a client that knows the password (P4)."""
    RawClient(any_url, mechanism=mechanism, response=response).close()


REFUSED = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("user", ["guest", "nobody"])
def test_a_wrong_password(user: str, told: bool, any_url: str) -> None:
    """403 for a client that knows authentication_failure_close, a closed socket for others (P5)."""
    capabilities = {"authentication_failure_close": True} if told else {}
    client = RawClient(any_url, opens=False, user=user, password="wrong", capabilities=capabilities)
    client.start_ok()
    if told:
        assert client.connection_error() == (403, REFUSED)
    else:
        assert client.is_cut()
        client.socket.close()


def test_an_unknown_virtual_host(any_url: str) -> None:
    """530, with its name (P6)."""
    client = RawClient(any_url, opens=False, host="nonesuch")
    client.start_ok()
    client.tune_ok()
    client.send_method(0, commands.Connection.Open, virtual_host="nonesuch")
    assert client.connection_error() == (530, "NOT_ALLOWED - vhost nonesuch not found")


def test_a_method_that_is_a_servers(any_url: str) -> None:
    """503, and ours says which it was."""
    client = RawClient(any_url)
    client.send_method(1, commands.Queue.DeclareOk, queue="q", message_count=0, consumer_count=0)
    code, text = client.connection_error()
    assert code == 503
    ours = "COMMAND_INVALID - Queue.DeclareOk is not a method that a client calls on a channel"
    assert text in (ours, "COMMAND_INVALID - unimplemented method")


def test_a_method_before_its_time(url: str) -> None:
    """A second start-ok costs the connection (P7)."""
    client = RawClient(url, opens=False)
    client.start_ok()
    client.method()
    client.send_method(0, commands.Connection.StartOk, mechanism="PLAIN", response=b"", locale="en_US")
    assert client.connection_error() == (504, "CHANNEL_ERROR - unexpected method in connection state tuning")


# -- channels


@pytest.mark.parametrize(
    ("channel", "method", "sentence"),
    [(2, commands.Basic.Qos, "expected 'channel.open'"), (1, commands.Channel.Open, "second 'channel.open' seen")],
    ids=["not open", "open already"],
)
def test_a_method_of_a_channel_that_it_does_not_suit(any_url: str, channel: int, method: Any, sentence: str) -> None:
    """504 (P8, P9)."""
    client = RawClient(any_url)
    client.send_method(channel, method)
    assert client.connection_error() == (504, f"CHANNEL_ERROR - {sentence}")


def test_too_many_channels(any_url: str) -> None:
    """The sixth of five open channels costs the connection: 530 (P10)."""
    client = RawClient(any_url, channel_max=5)
    for number in range(2, 6):
        client.channel(number)
    client.send_method(6, commands.Channel.Open)
    code, text = client.connection_error()
    assert code == 530
    assert text.startswith("NOT_ALLOWED - number of channels opened (5) has reached the negotiated channel_max (5)")


@pytest.mark.parametrize("number", [6, 2048, 65535])
def test_the_number_of_a_channel_is_the_clients_business(number: int, any_url: str) -> None:
    """What was agreed is how many are open at a time: a number beyond it is fine (P10)."""
    with RawClient(any_url, channel_max=5) as client:
        client.channel(number)
        assert isinstance(client.call(number, commands.Basic.Qos), commands.Basic.QosOk)


def test_a_client_that_counts_its_channels_up(any_url: str) -> None:
    """It may open as many as it likes, one after the other. One that waits for close-ok counts as open (P10)."""
    with RawClient(any_url, channel_max=2) as client:
        for number in range(2000, 2100):
            client.channel(number)
            assert isinstance(client.call(number, commands.Channel.Close), commands.Channel.CloseOk)
    client = RawClient(any_url, channel_max=2)
    client.channel(7)
    client.send_method(7, commands.Queue.Declare, queue="nonesuch", passive=True)
    assert client.method().reply_code == 404
    client.send_method(8, commands.Channel.Open)
    assert client.connection_error()[0] == 530


def test_after_a_channel_error(any_url: str, name: Name) -> None:
    """Everything but close-ok is ignored; then the number can be used again, the other channels went on (P20)."""
    with RawClient(any_url) as client:
        client.channel(2)
        client.send_method(1, commands.Queue.Declare, queue=name("nonesuch"), passive=True)
        client.send_method(1, commands.Queue.Declare, queue=name("never"))
        client.publish("", "nowhere", b"x" * 10)
        close = client.method()
        assert (close.reply_code, close.class_id, close.method_id) == (404, 50, 10)
        assert isinstance(client.declare(channel=2, exclusive=True), commands.Queue.DeclareOk)
        client.send_method(1, commands.Channel.CloseOk)
        client.channel(1)
        client.send_method(1, commands.Queue.Declare, queue=name("never"), passive=True)
        assert client.channel_error()[0] == 404


def test_closing_a_channel(any_url: str) -> None:
    """It is answered, and the number can be used again at once (P11)."""
    with RawClient(any_url) as client:
        for _ in range(3):
            assert isinstance(client.call(1, commands.Channel.Close), commands.Channel.CloseOk)
            client.channel(1)


def test_nothing_answers_nowait(any_url: str, name: Name) -> None:
    """Methods with no-wait are not answered (P18)."""
    mine, exchange = name("w"), name("we")
    with RawClient(any_url) as client:
        for method, fields in (
            (commands.Queue.Declare, {"queue": mine}),
            (commands.Exchange.Declare, {"exchange": exchange, "exchange_type": "fanout"}),
            (commands.Queue.Bind, {"queue": mine, "exchange": exchange}),
            (commands.Basic.Consume, {"queue": mine, "consumer_tag": "t"}),
            (commands.Basic.Cancel, {"consumer_tag": "t"}),
            (commands.Queue.Purge, {"queue": mine}),
            (commands.Queue.Delete, {"queue": mine}),
            (commands.Exchange.Delete, {"exchange": exchange}),
            (commands.Confirm.Select, {}),
        ):
            client.send_method(1, method, nowait=True, **fields)
        assert client.is_silent()


# -- frames


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (raw_frame(1, 1, b"\0\x3c\0\x0a" + b"\0" * 7, b"\xcd"), 501),
        (b"\x03\x00\x01" + (131073).to_bytes(4) + b"x" * 64, 501),
        (PUBLISH + raw_frame(3, 1, b"x"), 505),
        (PUBLISH + amqp.encode_method(1, commands.Basic.Qos), 505),
        (PUBLISH + header(3) + PUBLISH, 505),
        (PUBLISH + header(3, class_id=50) + raw_frame(3, 1, b"abc"), 505),
        (header(3), 505),
        (raw_frame(3, 1, b"abc"), 505),
        (PUBLISH + header(0) + raw_frame(3, 1, b""), 505),
        ((PUBLISH + header(0) + raw_frame(3, 1, b"")) * 2, 505),
        (amqp.encode_method(1, commands.Connection.Open, virtual_host="/"), 503),
        *((raw_frame(1, channel, b"\0\x3c\0"[:size]), 501) for channel in (0, 1, 7) for size in (0, 2, 3)),
    ],
)
def test_frames_out_of_place(data: bytes, code: int, any_url: str) -> None:
    """A wrong end or size is 501, a wrong kind of frame 505, a method of the connection on a channel 503.

    A method that is shorter than its class and number is 501, whatever its channel (P12, P13)."""
    client = RawClient(any_url)
    client.send(data)
    assert client.connection_error()[0] == code


@pytest.mark.parametrize("frame_max", [8192, 131072])
@pytest.mark.parametrize("size", [0, 1, 8184, 8185, 300_000])
def test_bodies_are_split_by_the_negotiated_size(size: int, frame_max: int, any_url: str, name: Name) -> None:
    """Any body arrives whole, in frames no larger than negotiated; an empty one has no frame (P16, P17)."""
    body = bytes(range(256)) * (size // 256 + 1)
    with RawClient(any_url, frame_max=frame_max) as client:
        client.declare(name("q"), auto_delete=True)
        client.publish("", name("q"), body[:size])
        client.consume(name("q"), no_ack=True)
        client._splitter.frame_max = frame_max
        assert client.content().body == body[:size]


def sized_frame(kind: str, payload: int, queue: str) -> bytes:
    """A declaration, or the one frame of a publish that is asked for, with this many bytes of payload."""
    if kind == "method":
        around = amqp.encode_method(1, commands.Queue.Declare, queue=queue, arguments={"x": ""})
        return amqp.encode_method(
            1, commands.Queue.Declare, queue=queue, arguments={"x": "y" * (payload + 8 - len(around))}
        )
    if kind == "body":
        return amqp.encode_publish(1, "", queue, amqp.NO_PROPERTIES, b"x" * payload, 2**31)
    room = payload - 12 - len(amqp.encode_properties({"headers": {"x": ""}}))
    return amqp.encode_publish(1, "", queue, amqp.encode_properties({"headers": {"x": "y" * room}}), b"", 2**31)


@pytest.mark.parametrize("frame_max", [8192, 131072])
@pytest.mark.parametrize("kind", ["method", "header", "body"])
def test_the_largest_frame(kind: str, frame_max: int, any_url: str, name: Name) -> None:
    """Its payload may have frame_max bytes, as AMQPStorm and rabbitpy fill it; one more costs the connection (P12)."""
    with RawClient(any_url, frame_max=frame_max) as client:
        client.declare(name("q"))
        client.send_method(1, commands.Confirm.Select, nowait=True)
        for payload in (frame_max - 8, frame_max - 7, frame_max):
            client.send(sized_frame(kind, payload, name("q")))
            answer = client.method()
            assert isinstance(answer, commands.Queue.DeclareOk if kind == "method" else amqp.Ack)
        client.send(sized_frame(kind, frame_max + 1, name("q")))
        assert client.connection_error()[0] == 501


@pytest.mark.parametrize("more", [0, 1])
def test_the_largest_frame_before_tuning(more: int, any_url: str) -> None:
    """It is 4096 bytes of payload; a larger start-ok costs the connection (P12)."""
    client = RawClient(any_url, opens=False)
    client.send(amqp.PROTOCOL_HEADER)
    client.method()
    login: dict[str, Any] = {"mechanism": "PLAIN", "response": b"\0guest\0guest", "locale": "en_US"}
    around = amqp.encode_method(0, commands.Connection.StartOk, client_properties={"x": ""}, **login)
    filled = {"x": "y" * (4096 + more + 8 - len(around))}
    client.send(amqp.encode_method(0, commands.Connection.StartOk, client_properties=filled, **login))
    if more:
        with suppress(Closed):  # RabbitMQ cuts it without a word
            assert client.connection_error()[0] == 501
    else:
        assert isinstance(client.method(), commands.Connection.Tune)


def test_closing_the_connection(url: str) -> None:
    """It is answered, and then the socket closes (P19)."""
    client = RawClient(url)
    client.send_method(0, commands.Connection.Close, reply_code=200, reply_text="bye")
    assert isinstance(client.method(), commands.Connection.CloseOk)
    assert client.is_cut()
    client.socket.close()


# -- where RabbitMQ 3.10 hangs, drops the socket without a word, or takes what hurts others: ours alone


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (PUBLISH + header(3) + raw_frame(3, 1, b"abcd"), 501),
        (raw_frame(1, 1, b"\0\x3c\0\xfe"), 503),
        (raw_frame(1, 1, b"\0\x32\0\x0a\0\0\xffq"), 501),
        (raw_frame(7, 1, b""), 501),
        (raw_frame(2, 0, b"\0" * 14), 505),
        (PUBLISH + header(0, b"\x80\x00\xff"), 501),
        (PUBLISH + header(0, b"\x20\x00" + amqp.encode_table({"a": 1})[:-1]), 501),
        (PUBLISH + raw_frame(2, 1, b"\0\x3c"), 501),
    ],
)
def test_nonsense_is_answered(data: bytes, code: int, url: str) -> None:
    """What does not decode is answered with a code, and costs its sender the connection."""
    client = RawClient(url)
    client.send(data)
    assert client.connection_error()[0] == code


def test_one_peers_nonsense_is_nobody_elses(url: str) -> None:
    """While one connection is closed for nonsense, another one works."""
    with RawClient(url) as good:
        good.declare("q")
        for _ in range(3):
            bad = RawClient(url)
            bad.publish("", "q", b"x")
            bad.send(raw_frame(9, 9, b"nonsense"))
            assert bad.connection_error()[0] == 501
        assert good.ready("q") == 3


def test_an_unknown_exchange_type(url: str) -> None:
    """A channel error, as in newer releases of RabbitMQ."""
    with RawClient(url) as client:
        client.send_method(1, commands.Exchange.Declare, exchange="e", exchange_type="x-magic")
        code, text = client.channel_error()
        assert (code, text.partition(";")[0]) == (406, "PRECONDITION_FAILED - unknown exchange type 'x-magic'")


def test_a_message_beyond_the_limit(broker: Any) -> None:
    """It costs the channel, before its body has come."""
    server = broker.listen(settings=amqp.ServerSettings(max_message_bytes=1000))
    with RawClient(server.url) as client:
        client.send(PUBLISH + header(1001))
        assert client.channel_error()[0] == 406
        client.publish("", "nowhere", b"x" * 1000)
        assert client.is_silent()


@pytest.mark.parametrize(("compat", "most"), [("4.3", 16 * 2**20), ("3.10", 128 * 2**20), ("lenient", 128 * 2**20)])
def test_the_largest_message_is_the_versions(compat: str, most: int) -> None:
    with Broker(compat=compat) as broker, RawClient(broker.listen().url) as client:
        client.send(PUBLISH + header(most + 1))
        code, text = client.channel_error()
        assert (code, text) == (
            406,
            f"PRECONDITION_FAILED - message size {most + 1} is larger than configured max size {most}",
        )
        client.send(PUBLISH + header(most))
        client.send_method(1, commands.Basic.Qos)
        assert client.connection_error()[0] == 505  # a body was waited for


def test_an_error_of_the_client_is_told_with_its_method(url: str) -> None:
    """A close names the class and method that was at fault."""
    client = RawClient(url)
    client.send_method(1, commands.Basic.Qos, prefetch_size=1)
    close = client.method()
    assert (close.class_id, close.method_id) == (60, 10)
    client.socket.close()
