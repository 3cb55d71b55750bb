"""Where the user's code runs in the server: under no lock, at every place."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from amqp_raw_support import RawClient
from held_locks_support import UserCode, watching
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import Server, ServerSettings, User
from multiqueue.broker import (
    Alert,
    AlertThresholds,
    Broker,
    Message,
    QueueSettings,
    SortedEntryList,
    register_queue_kind,
    unregister_queue_kind,
)
from multiqueue.testing import PATIENCE, wait_until_blocked


class Scene:
    """A server, and the user's code."""

    def __init__(self, broker: Broker, code: UserCode) -> None:
        self.broker, self.code = broker, code
        self.server: Server | None = None
        code.then(self.use)

    def serve(self, measure: Callable[[], set[str]] = set) -> Server:
        self.server = amqp.serve(self.broker, settings=ServerSettings(alarm_interval=0.005), measure=measure)
        return self.server

    def use(self) -> None:
        """What each of the server's locks guards, without an answer of its I/O thread."""
        if self.server is not None:
            self.server.access.put(User.with_password("used", "x"))
            (self.server.status(), self.server.connections(), self.server.connection_figures(), self.server.past())
            self.server.access.remove("used")


@pytest.fixture
def scene(broker: Broker) -> Iterator[Scene]:
    with watching("multiqueue.amqp") as held:
        made = Scene(broker, UserCode(held, lambda: None))
        yield made
        if made.server is not None:
            made.server.close()


def measure(scene: Scene) -> None:
    def measured() -> set[str]:
        scene.code()
        return set()

    scene.serve(measured)
    wait_until_blocked(lambda: scene.code.calls > 2)


def handlers_of_the_log(scene: Scene) -> None:
    """Of what the I/O thread, and the log of strangers, write."""
    lines: list[str] = []
    seen = threading.Event()

    class Handler(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            lines.append(record.getMessage())
            if "login refused" in lines[-1]:
                seen.set()
            return scene.code()

    log, handler = logging.getLogger("multiqueue.amqp"), Handler()
    log.addHandler(handler)
    before = log.level
    log.setLevel(logging.DEBUG)
    try:
        server = scene.serve()
        with RawClient(server.url), RawClient(server.url, opens=False, password="wrong") as stranger:
            stranger.start_ok()
            assert seen.wait(PATIENCE)
        assert any("opened vhost" in line for line in lines)
    finally:
        log.setLevel(before)
        log.removeHandler(handler)


# What the user gives to this room. `keep` of `Access` is the server's own: it writes the file of users in the turn to
# change them.
ENTRY_POINTS = [measure, handlers_of_the_log]


@pytest.mark.parametrize("point", ENTRY_POINTS, ids=lambda point: point.__name__)
def test_user_code_runs_under_no_lock(scene: Scene, point: Callable[[Scene], None]) -> None:
    """Its thread holds no lock of the server's, and another one can use what the locks guard."""
    point(scene)
    scene.code.check()


@pytest.mark.parametrize("durable", [False, True])
def test_an_alert_that_would_end_the_threads_of_the_server(
    tmp_path: Path, durable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """`sys.exit` in `on_alert` is logged; the message is confirmed, and so are the next ones of its connection."""

    def leave(alert: Alert) -> None:
        sys.exit(f"alert on {threading.current_thread().name}")

    settings = QueueSettings(durable=durable, alerts=AlertThresholds(depth=1, repeat_gap=0.0))
    with Broker(on_alert=leave, data=tmp_path if durable else None) as broker:
        broker.declare_queue("q", settings=settings)
        with amqp.serve(broker) as server, RawClient(server.url) as publisher:
            publisher.call(1, commands.Confirm.Select)
            for number in range(3):
                publisher.publish("", "q", b"x", delivery_mode=2)
                assert publisher.method().delivery_tag == number + 1
            assert publisher.ready("q") == 3
    assert f"alert on {'store writer' if durable else 'multiqueue-amqp'}" in caplog.text


def test_a_kind_of_queue_that_would_end_the_thread_of_the_server(scene: Scene) -> None:
    """`sys.exit` in `key_of` costs one connection, as any fault there does."""

    class Leaving(SortedEntryList):
        def key_of(self, message: Message) -> int:
            sys.exit()

    register_queue_kind("leaving", Leaving)
    try:
        scene.broker.declare_queue("q", settings=QueueSettings(kind="leaving"))
        server = scene.serve()
        with RawClient(server.url) as other:
            publisher = RawClient(server.url)
            publisher.publish("", "q", b"x")
            assert publisher.connection_error()[0] == 541
            assert other.ready("q") == 0
    finally:
        unregister_queue_kind("leaving")


@pytest.mark.parametrize("error", [SystemExit, RuntimeError])
def test_a_measure_that_fails_is_asked_again(
    scene: Scene, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """What it told last holds until it tells something else."""
    told: list[set[str] | type[BaseException]] = [{"memory"}]

    def measured() -> set[str]:
        if isinstance(told[-1], set):
            return told[-1]
        raise told[-1]

    server = scene.serve(measured)
    wait_until_blocked(lambda: server.alarms == {"memory"})
    told.append(error)
    wait_until_blocked(lambda: error.__name__ in caplog.text)
    assert server.alarms == {"memory"}
    told.append(set())
    wait_until_blocked(lambda: not server.alarms)
