"""Publishes whose commit takes its time: when they are confirmed, and what waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from amqp_raw_support import RawClient
from pamqp import commands

from multiqueue import amqp
from multiqueue.broker import Broker, Message, NotFound
from multiqueue.testing import wait_until_blocked


class Commit:
    """A commit that ends when the test says so, on the test's thread."""

    queues = 1
    throttled = ()

    def __init__(self) -> None:
        self.commit = self
        self.is_confirmed = False
        self._callbacks: list[Callable[[BaseException | None], object]] = []

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        self._callbacks.append(callback)

    def end(self, error: BaseException | None = None) -> None:
        self.is_confirmed = True
        for callback in self._callbacks:
            callback(error)


@pytest.fixture
def commits(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[Commit]:
    """The commits of what is published, in order; to publish to the exchange `nonesuch` is an error."""
    begun: list[Commit] = []

    def publish(message: Message, *, mandatory: bool = False) -> Commit:
        if message.exchange == "nonesuch":
            raise NotFound("no exchange 'nonesuch'")
        begun.append(Commit())
        return begun[-1]

    monkeypatch.setattr(broker, "publish_nowait", publish)
    return begun


@pytest.fixture
def client(url: str) -> Iterator[RawClient]:
    """A client whose channel 1 confirms."""
    with RawClient(url) as client:
        client.call(1, commands.Confirm.Select)
        yield client


def published(client: RawClient, commits: list[Commit], count: int) -> None:
    """Publish, and wait until the server has them all: a flow on channel 1 would wait, one on another does not."""
    before = len(commits)
    for _ in range(count):
        client.publish("", "q", b"x")
    client.channel(9)
    assert len(commits) == before + count


def test_a_confirm_follows_the_commit(client: RawClient, commits: list[Commit]) -> None:
    """Nothing is said before it; then all that are done in order are one ack, and one that failed is a nack."""
    published(client, commits, 4)
    commits[0].end()
    assert client.method() == amqp.Ack(1, False)
    commits[2].end()
    assert client.method() == amqp.Ack(3, False)
    commits[1].end(OSError("disk"))
    assert client.method() == amqp.Nack(2, False, False)
    commits[3].end()
    assert client.method() == amqp.Ack(4, False)


def test_a_commit_that_ends_after_its_channel(client: RawClient, commits: list[Commit]) -> None:
    """It is told to nobody: neither on the channel that was closed, nor on its successor."""
    published(client, commits, 1)
    client.publish("nonesuch", "", b"x")
    assert client.channel_error()[0] == 404
    client.call(1, commands.Confirm.Select)
    commits[0].end()
    assert client.is_silent()


def wait_until_held(broker: Broker) -> None:
    """Until a connection is not read from."""
    while not [each for each in broker._servers[0].connections() if each._holds]:  # type: ignore[attr-defined]
        pass


def test_a_method_waits_for_the_last_commit(client: RawClient, broker: Broker, commits: list[Commit]) -> None:
    """It is answered after the confirms of everything before it, and what follows it comes after it."""
    published(client, commits, 2)
    client.send_method(1, commands.Queue.Declare, queue="q")
    client.publish("", "q", b"later")
    wait_until_held(broker)
    for commit in commits[:]:
        commit.end()
    said = [client.method() for _ in range(2)]
    acks = [each for each in said if isinstance(each, amqp.Ack)]
    assert acks
    answer = said[-1] if len(acks) == 1 else client.method()
    assert isinstance(answer, commands.Queue.DeclareOk)
    wait_until_blocked(lambda: len(commits) == 3)
    commits[2].end()
    assert client.method() == amqp.Ack(3, False)


def test_a_fault_while_a_method_waits(client: RawClient, broker: Broker, commits: list[Commit]) -> None:
    """The connection is closed, and the method is not called when the commit ends."""
    published(client, commits, 1)
    client.send_method(1, commands.Queue.Declare, queue="late")
    wait_until_held(broker)
    (connection,) = broker._servers[0].connections()  # type: ignore[attr-defined]
    connection.io.post(connection.failed, RuntimeError("no matter what"))
    close = client.method()
    assert close.reply_code == 541
    commits[0].end()
    client.send_method(0, commands.Connection.CloseOk)
    assert client.is_cut()
    assert [queue.name for queue in broker.queues()] == []
