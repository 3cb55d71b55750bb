"""Where the user's code runs in the server: under no lock, at every place."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest
from amqp_raw_support import RawClient
from held_locks_support import UserCode, watching

from multiqueue import amqp
from multiqueue.amqp import Server, ServerSettings, User
from multiqueue.broker import Broker
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
