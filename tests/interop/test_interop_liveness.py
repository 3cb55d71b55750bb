"""Who is there and who may publish: heartbeats, and publishers that are held back, on both brokers."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from interop_wire_support import Hangup, Wire, WireChannel
from pamqp import commands
from rabbitmq_support import Peer, rules, server_program

from multiqueue.amqp import ServerSettings
from multiqueue.broker import Broker

Connect = Callable[..., Wire]
Alarm = Callable[[bool], None]


@pytest.mark.slow(selected=True)
def test_a_silent_client_is_dropped(connect: Connect) -> None:
    """With a heartbeat of one second the broker sends its own, and ends a connection that sends none."""
    wire = connect(heartbeat=1)
    with pytest.raises(Hangup):
        wire.read_frame()
    assert wire.heartbeats >= 1


@pytest.mark.slow(selected=True)
def test_any_byte_is_a_sign_of_life(connect: Connect) -> None:
    """A client that works needs no heartbeats: methods do as well."""
    wire = connect(heartbeat=1)
    channel = wire.channel()
    for _ in range(4):  # of which one comes after half a second at least
        wire.wait_for_heartbeat()
        channel.sync()


@pytest.mark.slow(selected=True)
def test_without_a_heartbeat_silence_is_no_reason(connect: Connect) -> None:
    """Zero switches them off, both ways."""
    silent, other = connect(heartbeat=0), connect(heartbeat=1)
    with pytest.raises(Hangup):
        other.read_frame()
    silent.channel().sync()
    assert silent.heartbeats == 0


# -- publishers that are held back


@pytest.fixture(
    scope="module",
    params=[pytest.param("rabbitmq", marks=pytest.mark.slow), "multiqueue"],
)
def alarmed(request: pytest.FixtureRequest) -> Iterator[tuple[Peer, Alarm]]:
    """A broker, and a function that makes it low on memory, or well again."""
    if request.param == "rabbitmq":
        peer: Peer = request.getfixturevalue("rabbitmq_peer")
        yield peer, lambda on: watermark(peer, 0.000001 if on else 0.6)
        return
    low: set[str] = set()
    settings = ServerSettings(alarm_interval=0.01)
    with Broker(compat=rules()) as broker, broker.listen(settings=settings, measure=lambda: set(low)) as server:

        def alarm(on: bool) -> None:
            low.add("memory") if on else low.clear()
            while bool(server.alarms) is not on:
                time.sleep(0.001)  # it looks again and again

        yield Peer(server.url, server.port, os.getpid()), alarm


def watermark(peer: Peer, fraction: float) -> None:
    """Set how much of the machine's memory RabbitMQ may use, with its own command and the node's environment."""
    variables = Path(f"/proc/{peer.pid}/environ").read_text().split("\0")
    environment = dict(each.split("=", 1) for each in variables if "=" in each)
    command = [str(Path(server_program()).with_name("rabbitmqctl")), "set_vm_memory_high_watermark", str(fraction)]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)


def test_a_publisher_is_blocked_while_memory_is_low(alarmed: tuple[Peer, Alarm]) -> None:
    """It is told so, and told when it may go on; its message arrives then; consumers were served all the time."""
    peer, alarm = alarmed
    with Wire(peer.port).open() as publisher, Wire(peer.port).open() as consumer:
        reading = consumer.channel()
        queue = reading.declare("", exclusive=True)
        reading.fill(queue, b"before")
        writing = publisher.channel()
        alarm(True)
        blocked_by(writing, queue)
        assert reading.drain(queue)[0] == b"before"
        alarm(False)
        assert isinstance(publisher.wait(0), commands.Connection.Unblocked)
        writing.publish(queue, b"after")
        reading.consume(queue, no_ack=True)
        while reading.next().body != b"after":
            pass


def blocked_by(channel: WireChannel, queue: str) -> None:
    """Publish once: the broker takes that one at most, and says why it takes no more."""
    channel.publish(queue, b"during")
    blocked = channel.wire.wait(0)
    assert isinstance(blocked, commands.Connection.Blocked)
    assert blocked.reason == "low on memory"
