"""How programs end that use a connection: without closing it, with a child that was forked, with the executor gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from client_contract_support import Seen

from multiqueue.broker import Broker
from multiqueue.client import Connection, ConnectionClosed, connect
from multiqueue.testing import PATIENCE

BEGINNING = """
import os, sys
from multiqueue.client import connect

connection = connect(sys.argv[1])
channel = connection.channel()
"""


def program(text: str, url: str) -> str:
    """What a program says that begins with a connection and a channel."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BEGINNING + text, url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE * 3, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_what_was_published_leaves_before_the_program_ends(server_url: str) -> None:
    """Though it does not close: each message arrives, and what it consumed and did not settle is back (client 11)."""
    text = """
name = channel.queue_declare("exit").queue
channel.publish(b"first", routing_key=name)
inbox = channel.consume(name)
inbox.get(30)
for number in range(300):
    channel.publish(b"x" * 5000, routing_key=name)
"""
    assert program(text, server_url) == ""
    with connect(server_url) as connection, connection.channel() as channel:
        assert channel.queue_declare("exit", passive=True).message_count == 301
        first = channel.basic_get("exit")
        assert first is not None
        assert (first.body, first.redelivered) == (b"first", True)


@pytest.mark.parametrize("runs", ["", "go_on.wait()"], ids=["idle", "running"])
def test_no_thread_keeps_the_program_waiting_for_a_callback(server_url: str, runs: str) -> None:
    """A thread that ran a callback waits for the next one, and ends with the program, then or after its callback."""
    text = f"""
import threading
connection.callbacks._pool.linger = 10**6  # seconds
go_on, called = threading.Event(), threading.Semaphore(0)
def call(delivery):
    called.release()
    {runs or "pass"}
for _ in range(2):
    channel = connection.channel()
    name = channel.queue_declare(exclusive=True).queue
    channel.basic_consume(name, call, auto_ack=True)
    channel.publish(b"x", routing_key=name)
for _ in range(2):
    called.acquire()
threading._register_atexit(go_on.set)
"""
    assert program(text, server_url) == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_leaves_the_connection_alone(server_url: str) -> None:
    """It ends at once, and its parent goes on."""
    text = """
child = os.fork()
if not child:
    sys.exit(0)
status = os.waitpid(child, 0)[1]
print(status, channel.queue_declare(exclusive=True).message_count, connection.statistics().recoveries)
"""
    assert program(text, server_url) == "0 0 0\n"


def test_an_executor_that_was_shut_down_first(opened: Callable[..., Connection]) -> None:
    """Nothing waits for it: what would have run there runs on the thread that closes the connection (client 11)."""
    closed, ended = Seen(), Seen()
    with ThreadPoolExecutor(2) as executor:
        connection = opened(
            executor=executor, on_closed=lambda connection, error: closed(error), close_timeout=PATIENCE
        )
        channel = connection.channel()
        channel.basic_consume(channel.queue_declare(exclusive=True).queue, Seen(), on_ended=ended)
    connection.close()
    assert (ended.all, closed.all) == ([None], [None])


def test_in_process_nothing_beats_and_nothing_is_recovered(broker: Broker) -> None:
    """A connection in process has no heartbeats, whatever was asked for, and ends when it is lost (client 12)."""
    ended, interrupted = Seen(), Seen()
    connection = connect(
        broker,
        name="in process",
        heartbeat=1,
        recover=True,
        on_closed=lambda connection, error: ended(str(error)),
        on_interrupted=lambda connection, error: interrupted(error),
    )
    link = connection._link
    assert link is not None
    assert not [thread.name for thread in threading.enumerate() if thread.name == "in process-heartbeat"]
    link.end(ConnectionClosed("lost", reply_code=320))
    ended.wait_for(1)
    connection.close()
    assert (connection.is_closed, ended.all, interrupted.all) == (True, ["lost"], [])
