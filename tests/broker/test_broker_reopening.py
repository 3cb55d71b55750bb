"""A store that fails under one virtual host: what a broker does then, and that the others go on."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from broker_parts_support import GlobalParameters, Housekeeping, Spill, reopening
from store_parts_support import SqliteWriter

from multiqueue.broker import Broker, BrokerClosed, BrokerQueue, Message, NotAllowed, VirtualHost
from multiqueue.store import SqliteStore, StoreFailed
from multiqueue.testing import wait_until_blocked


class Disk:
    """A disk under one virtual host's directory; commits on it, and openings, fail while it is broken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = "x"
        self.is_broken = False
        self.openings = 0
        commit, open_ = SqliteWriter.commit, SqliteStore._open

        def failing_commit(writer: SqliteWriter, *arguments: object) -> None:
            if self.is_broken and writer._file.parent.name == self.directory:
                raise StoreFailed("the disk failed")
            commit(writer, *arguments)  # type: ignore[arg-type]

        def failing_open(store: SqliteStore, path: Path, *arguments: object) -> None:
            self.openings += path.name == self.directory
            if self.is_broken and path.name == self.directory:
                raise OSError(errno.EIO, "Input/output error")
            open_(store, path, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(SqliteWriter, "commit", failing_commit)
        monkeypatch.setattr(SqliteStore, "_open", failing_open)
        monkeypatch.setattr(reopening, "_FIRST_PAUSE", 0.001)
        monkeypatch.setattr(reopening, "_LONGEST_PAUSE", 0.002)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def fail(host: VirtualHost | Broker, disk: Disk) -> None:
    """Break the disk under a host that has a durable queue `q`."""
    disk.is_broken = True
    with pytest.raises(StoreFailed, match="the disk failed"):
        host.publish(Message(b"lost", routing_key="q", persistent=True))


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """A broker whose virtual hosts `/` and `x` have a durable queue with a message each."""
    policy = getattr(request, "param", "reopen")
    with Broker(data=tmp_path, on_store_failure=policy) as broker:
        for host in (broker, broker.add_virtual_host("x")):
            host.declare_queue("q", durable=True)
            host.publish(Message(b"kept", routing_key="q", persistent=True))
        yield broker


def test_it_is_open_again_when_the_disk_works_again(
    broker: Broker, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    """The virtual host whose disk failed is down, says why, and is there with what was confirmed once the disk works.

    The other virtual host goes on meanwhile, and each reason is logged once.
    """
    failed = broker.virtual_host("x")
    with caplog.at_level(logging.WARNING, "multiqueue.broker"):
        fail(failed, disk)
        wait_until_blocked(lambda: disk.openings > 3)
        assert isinstance(broker.virtual_host("x").failure, StoreFailed)
        with pytest.raises(StoreFailed):
            broker.virtual_host("x").get("q")
        assert broker.publish(Message(b"more", routing_key="q", persistent=True)).queues
        disk.is_broken = False
        wait_until_blocked(lambda: "open again" in caplog.text)
    opened = broker.virtual_host("x")
    received = opened.get("q", auto_accept=True)
    assert received is not None
    assert received.body == b"kept"
    assert received.redelivered  # in doubt: it may have been delivered before
    assert opened.get("q") is None
    with pytest.raises(StoreFailed):
        failed.publish(Message(b"to the old one", routing_key="q", persistent=True))
    said = [record.getMessage() for record in caplog.records if "vhost 'x'" in record.getMessage()]
    assert [each.partition(":")[0] for each in said] == ["vhost 'x' stays down", "vhost 'x' is open again"]


def test_housekeeping_comes_to_no_queue_that_is_half_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs while a virtual host is opened again, and would take a queue that is not counted yet for an empty one."""
    with closing(VirtualHost(store=SqliteStore(tmp_path))) as host:
        host.declare_queue("q", durable=True)
        host.publish(Message(b"kept", routing_key="q", persistent=True))
    keeper, recover = Housekeeping(), Spill.recover

    def disturbed(spill: Spill, *arguments: Any) -> bool:
        is_taken = recover(spill, *arguments)
        keeper.run_once()
        return is_taken

    monkeypatch.setattr(Spill, "recover", disturbed)
    with closing(VirtualHost(store=SqliteStore(tmp_path), housekeeping=keeper)) as host:
        keeper.run_once()
        received = host.get("q", auto_accept=True)
        assert received is not None
        assert received.body == b"kept"


def test_a_get_that_its_virtual_host_is_closed_under_is_not_told_that_nothing_is_there(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it asks for is on the disk."""
    host, get = broker.virtual_host("x"), BrokerQueue.get

    def late(queue: BrokerQueue, owner: object, *, auto_accept: bool = False) -> object:
        host.close()
        return get(queue, owner, auto_accept=auto_accept)

    monkeypatch.setattr(BrokerQueue, "get", late)
    with pytest.raises(BrokerClosed):
        host.get("q")


def test_it_stays_down_while_its_directory_is_gone(
    broker: Broker, disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A virtual host whose disk is not mounted any more is not begun anew, empty, in the directory beneath."""
    fail(broker.virtual_host("x"), disk)
    wait_until_blocked(lambda: disk.openings > 3)  # the old store has let go
    (tmp_path / "x").rename(tmp_path / "elsewhere")
    disk.is_broken = False
    wait_until_blocked(lambda: "vhost 'x' stays down: there is no store" in caplog.text)
    (tmp_path / "elsewhere").rename(tmp_path / "x")
    wait_until_blocked(lambda: "open again" in caplog.text)
    received = broker.virtual_host("x").get("q", auto_accept=True)
    assert received is not None
    assert received.body == b"kept"


def test_the_verbs_of_a_broker_mean_the_virtual_host_that_was_opened(tmp_path: Path, disk: Disk) -> None:
    """When `/` was opened again, the broker's own verbs work on it."""
    disk.directory = "%2f"
    with Broker(data=tmp_path, on_store_failure="reopen") as broker:
        broker.declare_queue("q", durable=True)
        fail(broker, disk)
        disk.is_broken = False
        wait_until_blocked(lambda: broker.virtual_host().failure is None)
        wait_until_blocked(lambda: not broker.is_closed and broker.virtual_host().parts is broker.parts)
        broker.publish(Message(b"after", routing_key="q", persistent=True))
        assert len(broker.queue("q")) == 1


def test_a_broker_gets_the_parts_of_what_is_open_again_as_one(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two of them a call is told that `/` is down, or is done there, and never that nothing is there."""
    disk.directory = "%2f"
    with Broker(data=tmp_path, on_store_failure="reopen") as broker:
        broker.declare_queue("q", durable=True)
        broker.publish(Message(b"kept", routing_key="q", persistent=True))
        seen: list[object] = []

        def assigned(broker: Broker, name: str, value: object) -> None:
            object.__setattr__(broker, name, value)
            try:
                received = broker.get("q")
            except StoreFailed as error:
                seen.append(error)
            else:
                seen.append(received)
                if received is not None:
                    received.release()

        fail(broker, disk)
        monkeypatch.setattr(Broker, "__setattr__", assigned, raising=False)
        disk.is_broken = False
        wait_until_blocked(lambda: seen and not isinstance(seen[-1], StoreFailed))
        monkeypatch.undo()
    assert len(seen) > 5
    assert None not in seen


@pytest.mark.parametrize("broker", ["stay"], indirect=True)
def test_it_stays_down(broker: Broker, disk: Disk) -> None:
    """With "stay", the default in a program, nothing is done: each call raises until the broker is opened anew."""
    fail(broker.virtual_host("x"), disk)
    disk.is_broken = False
    openings = disk.openings
    with pytest.raises(StoreFailed):
        broker.virtual_host("x").publish(Message(b"", routing_key="q"))
    assert disk.openings == openings
    assert not [each for each in threading.enumerate() if each.name == "multiqueue-broker-reopening"]


@pytest.mark.parametrize("broker", ["stop"], indirect=True)
def test_it_stops(broker: Broker, disk: Disk) -> None:
    """With "stop" the broker closes itself, and what was confirmed is on the disk."""
    fail(broker.virtual_host("x"), disk)
    wait_until_blocked(lambda: broker.is_closed)
    with pytest.raises(BrokerClosed):
        broker.add_virtual_host("y")


def test_a_virtual_host_that_is_deleted_while_it_is_down_is_gone(broker: Broker, disk: Disk, tmp_path: Path) -> None:
    """Deleting a virtual host that is down ends the tries to open it."""
    fail(broker.virtual_host("x"), disk)
    wait_until_blocked(lambda: disk.openings > 1)
    broker.delete_virtual_host("x")
    disk.is_broken = False
    with pytest.raises(NotAllowed):
        broker.virtual_host("x")
    assert not (tmp_path / "x").exists()


def test_a_broker_that_is_closed_while_one_is_down_ends_its_thread(broker: Broker, disk: Disk) -> None:
    """Closing the broker ends the tries; twice is harmless."""
    fail(broker.virtual_host("x"), disk)
    wait_until_blocked(lambda: disk.openings > 1)
    broker.close()
    broker.close()
    assert not [each for each in threading.enumerate() if each.name == "multiqueue-broker-reopening"]


def test_a_policy_that_there_is_not() -> None:
    """An unknown policy is refused before anything is started."""
    with pytest.raises(ValueError, match="on_store_failure is 'stay', 'reopen' or 'stop', not 'restart'"):
        Broker(on_store_failure="restart")


def test_it_is_opened_once_more_when_its_store_fails_while_it_is_opened(
    broker: Broker, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What its opening deletes is committed by the store's thread, which finds the failure before anybody is told."""
    recover, failures = GlobalParameters.recover, [StoreFailed("the disk failed again")]

    def late(parameters: GlobalParameters, definitions: Any) -> None:
        recover(parameters, definitions)
        journal = parameters._kept._journal
        if failures and journal is not None:
            journal.note(failures.pop())

    failed = broker.virtual_host("x")
    monkeypatch.setattr(GlobalParameters, "recover", late)
    with caplog.at_level(logging.WARNING, "multiqueue.broker"):
        disk.is_broken = True
        with pytest.raises(StoreFailed):
            failed.publish(Message(b"lost", routing_key="q", persistent=True))
        disk.is_broken = False
        wait_until_blocked(lambda: "open again" in caplog.text)
    assert "'x' stays down: the disk failed again" in caplog.text
    received = broker.virtual_host("x").get("q", auto_accept=True)
    assert received is not None
    assert received.body == b"kept"


def test_it_is_opened_again_when_its_store_fails_before_its_broker_knows_it(
    broker: Broker, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that opens it again does not find it under its name then, and is told once more."""
    make, reopen, tried = broker._make_host, Broker._reopen, threading.Event()

    def failing(name: str, **options: Any) -> VirtualHost:
        monkeypatch.undo()
        monkeypatch.setattr(reopening, "_FIRST_PAUSE", 0.001)
        monkeypatch.setattr(broker._reopening, "_reopen", seen)
        host = make(name, **options)
        assert host._journal is not None
        host._journal.note(StoreFailed("the disk failed"))
        tried.wait()
        return host

    def seen(host: VirtualHost) -> bool:
        is_open = reopen(broker, host)
        tried.set()
        return is_open

    monkeypatch.setattr(broker, "_make_host", failing)
    with caplog.at_level(logging.WARNING, "multiqueue.broker"):
        broker.add_virtual_host("y")
        wait_until_blocked(lambda: "'y' is open again" in caplog.text)
    assert broker.virtual_host("y").failure is None
