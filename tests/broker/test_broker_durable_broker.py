"""A broker with a data directory: its virtual hosts, their directories, and who may open them."""

from __future__ import annotations

import queue
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from broker_durable_support import bodies, persistent, take_all
from broker_parts_support import directory_name, virtual_host_name
from hypothesis import given
from hypothesis import strategies as st

from multiqueue.broker import Broker, BrokerClosed, Message, NotAllowed, Received
from multiqueue.store import StoreDamaged, StoreLocked
from multiqueue.testing import PATIENCE


def test_a_broker_comes_back_with_everything(tmp_path: Path) -> None:
    """Opened again, it has its virtual hosts, their queues, and the messages on them."""
    with Broker(data=tmp_path / "new" / "data", durability="relaxed") as broker:
        broker.declare_queue("q", durable=True)
        broker.publish(persistent(b"1"))
        other = broker.add_virtual_host("Ünder/World")
        other.declare_queue("q", durable=True)
        other.publish(persistent(b"2"))
    with Broker(data=str(tmp_path / "new" / "data"), durability="relaxed") as broker:
        assert bodies(broker) == [b"1"]
        assert bodies(broker.virtual_host("Ünder/World")) == [b"2"]
        assert broker.add_virtual_host("Ünder/World") is broker.virtual_host("Ünder/World")
        with pytest.raises(NotAllowed):
            broker.virtual_host("never made")


@pytest.mark.parametrize("durability", ["sync", "memory"])
def test_without_data_or_durability_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """In memory, a durable queue is a name for a queue: bodies may be anything, and nothing comes back."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data" if durability == "memory" else None
    for _ in range(2):
        with Broker(data=data, durability=durability) as broker:
            broker.declare_queue("q", durable=True)
            assert broker.publish(Message({"any": "object"}, routing_key="q", persistent=True)).is_confirmed
            assert broker.virtual_host().store is None
            assert broker.wait_for_commits()
            assert len(broker.queue("q")) == 1
    assert list(tmp_path.iterdir()) == []


def test_one_broker_per_directory(tmp_path: Path) -> None:
    """A second broker is refused, whichever virtual host it meets first, and leaves no thread behind."""
    threads = set(threading.enumerate())
    with Broker(data=tmp_path) as broker:
        broker.add_virtual_host("other")
        with pytest.raises(StoreLocked):
            Broker(data=tmp_path)
    assert set(threading.enumerate()) <= threads


def test_a_virtual_host_that_cannot_be_opened_stops_the_broker(tmp_path: Path) -> None:
    """A damaged store is an error of the start, not a missing virtual host; the others are let go."""
    with Broker(data=tmp_path) as broker:
        broker.add_virtual_host("broken")
    for file in (tmp_path / "broken").iterdir():
        if file.stat().st_size:
            file.write_bytes(b"no store at all" * 1000)
    threads = set(threading.enumerate())
    with pytest.raises(StoreDamaged):
        Broker(data=tmp_path)
    assert set(threading.enumerate()) <= threads
    for file in (tmp_path / "broken").iterdir():
        file.unlink()
    (tmp_path / "broken").rmdir()
    Broker(data=tmp_path).close()


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    """The error comes before anything is made."""
    with pytest.raises(ValueError, match="durability is 'sync', 'relaxed' or 'memory', not 'mostly'"):
        Broker(data=tmp_path, durability="mostly")
    assert list(tmp_path.iterdir()) == []


def test_a_closed_broker_opens_no_virtual_host(tmp_path: Path) -> None:
    """Neither a new one, nor one that is on the disk."""
    broker = Broker(data=tmp_path)
    broker.close()
    broker.close()
    with pytest.raises(BrokerClosed):
        broker.add_virtual_host("other")
    assert [each.name for each in tmp_path.iterdir()] == ["%2f"]


def test_a_callback_may_publish_settle_and_close(tmp_path: Path) -> None:
    """On the broker's threads everything may wait for commits, and what they settled is settled."""
    done = threading.Event()
    with Broker(data=tmp_path, durability="relaxed") as broker:
        broker.declare_queue("q", durable=True)
        broker.declare_queue("r", durable=True)

        def move(received: Received) -> None:
            broker.publish(persistent(bytes(received.body) + b"'", key="r"))  # type: ignore[call-overload]
            received.accept(wait=True)
            if received.body == b"3":
                broker.close()
                done.set()

        for number in (b"1", b"2", b"3", b"4"):
            broker.publish(persistent(number))
        broker.consume("q", move, prefetch=1)
        assert done.wait(PATIENCE)
    with Broker(data=tmp_path, durability="relaxed") as broker:
        assert take_all(broker) == [(b"4", False)]
        assert bodies(broker, "r") == [b"1'", b"2'", b"3'"]


def test_what_follows_a_commit_cannot_close_the_broker(tmp_path: Path) -> None:
    """On the store's thread a close is refused, and nothing of it is done: subscriptions go on, and new ones work."""
    told: queue.Queue[object] = queue.Queue()
    received = threading.Event()

    def close(error: BaseException | None) -> None:
        with pytest.raises(RuntimeError, match="cannot be closed by a callback of a commit"):
            broker.close()
        told.put(error)

    with Broker(data=tmp_path, durability="relaxed") as broker:
        broker.declare_queue("q", durable=True)
        published = broker.publish_nowait(persistent(b"1"))
        published.add_done_callback(close)
        assert told.get(timeout=PATIENCE) is None
        broker.consume("q", lambda _: received.set())
        assert received.wait(PATIENCE)


@pytest.mark.parametrize("end", ["", "raise SystemExit(1)", "os._exit(1)"], ids=["end", "exit", "crash"])
def test_a_program_that_forgets_to_close_flags_what_it_had(tmp_path: Path, end: str) -> None:
    """However a program ends, what it was given and did not settle comes back flagged, and nothing hangs."""
    code = f"""
import os, sys, threading
from multiqueue.broker import Broker, Message
broker = Broker(data=sys.argv[1], durability="relaxed")
broker.declare_queue("q", durable=True)
for body in (b"1", b"2", b"3"):
    broker.publish(Message(body, routing_key="q", persistent=True))
unsettled = broker.get("q")
stuck = threading.Event()
broker.consume("q", lambda received: (stuck.set(), threading.Event().wait()), prefetch=1)
stuck.wait()
{end}
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.stderr) == ("", "")
    with Broker(data=tmp_path, durability="relaxed") as broker:
        in_doubt = end.startswith("os._exit")
        assert take_all(broker) == [(b"1", True), (b"2", True), (b"3", in_doubt)]


# Directories


def test_a_directory_without_a_store_is_left_alone(tmp_path: Path) -> None:
    """What else is in the data directory is neither taken for a virtual host nor touched, whatever its name."""
    (tmp_path / "backup").mkdir()
    (tmp_path / "notes").write_text("mine")
    with Broker(data=tmp_path, durability="relaxed") as broker:
        broker.add_virtual_host("other")
    with Broker(data=tmp_path, durability="relaxed") as broker:
        assert [host.name for host in broker.virtual_hosts()] == ["/", "other"]
    assert list((tmp_path / "backup").iterdir()) == []


def test_messages_on_a_level_that_a_queue_has_not_are_damage(tmp_path: Path) -> None:
    """A place that no queue of this kind can have says that the file is damaged; nothing is opened half."""
    threads = set(threading.enumerate())
    with Broker(data=tmp_path, durability="relaxed") as broker:
        broker.declare_queue("q", durable=True)
        broker.publish(persistent(b"1"))
    with closing(sqlite3.connect(tmp_path / "%2f" / "messages.sqlite", isolation_level=None)) as connection:
        connection.execute("UPDATE header SET level = 7")
    with pytest.raises(StoreDamaged, match="messages on level 7 of queue 'q' in vhost '/', which has 1"):
        Broker(data=tmp_path)
    assert set(threading.enumerate()) <= threads


def test_an_empty_path_is_refused() -> None:
    """An empty setting does not quietly mean the current directory."""
    with pytest.raises(ValueError, match="data is an empty path"):
        Broker(data="")


@given(st.text(min_size=1, max_size=21))  # the longest directory has 255 bytes: 21 times four that are three each
def test_every_name_has_a_directory_of_its_own(name: str) -> None:
    """The way back is the same, and no file system takes two of them for one."""
    directory = directory_name(name)
    assert virtual_host_name(directory) == name
    assert directory == directory.lower()
    assert "/" not in directory
    assert "." not in directory


@pytest.mark.parametrize("directory", ["A", "a.b", "lost+found", "%2F", "%61", "%ff", "a%", ""])
def test_a_directory_of_somebody_else_is_no_virtual_host(directory: str) -> None:
    """Only what this broker would write is read."""
    assert virtual_host_name(directory) is None


@pytest.mark.parametrize("name", ["", "/" * 86])
def test_a_name_that_fits_no_directory_is_refused(tmp_path: Path, name: str) -> None:
    """The error says so; the broker goes on."""
    with Broker(data=tmp_path) as broker:
        with pytest.raises(ValueError, match="choose another name"):
            broker.add_virtual_host(name)
        broker.declare_queue("q", durable=True)


def test_a_deleted_virtual_host_is_gone_from_the_disk(tmp_path: Path) -> None:
    """Its messages come back neither under its name nor at the next start; others stay. (broker-durability 13)"""
    with Broker(data=tmp_path) as broker:
        for name in ("stays", "goes"):
            host = broker.add_virtual_host(name)
            host.declare_queue("q", durable=True)
            host.publish(persistent(b"1"))
        broker.delete_virtual_host("goes")
        assert not (tmp_path / "goes").exists()
        with pytest.raises(NotAllowed, match="vhost 'goes' not found"):
            broker.delete_virtual_host("goes")
        assert broker.add_virtual_host("goes").queues() == []
        broker.delete_virtual_host("goes")
    with Broker(data=tmp_path) as broker:
        assert [host.name for host in broker.virtual_hosts()] == ["/", "stays"]
        assert len(broker.virtual_host("stays").queue("q")) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["%2f", "stays"]


def test_a_crash_while_a_virtual_host_is_deleted_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has another name before its files go; the next start removes the rest. (broker-durability 13)"""
    with Broker(data=tmp_path) as broker:
        broker.add_virtual_host("goes")
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if the process ended here
        broker.delete_virtual_host("goes")
        assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.undo()
    with Broker(data=tmp_path) as broker:
        assert [host.name for host in broker.virtual_hosts()] == ["/"]
    assert [each.name for each in tmp_path.iterdir()] == ["%2f"]
