"""`multiqueue publish` and `multiqueue consume`, as a shell runs them."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from client_parts_support import _output

from multiqueue import cli as front
from multiqueue.broker import Broker
from multiqueue.client import Connection, connect
from multiqueue.client import cli as client_cli
from multiqueue.errors import Empty

_NAMES = ("publish", "consume")

# What the console script does, with both commands known to the front door.
_RUN = (
    "from multiqueue import cli\n"
    f"for name in {_NAMES}: cli._COMMANDS.setdefault(name, (f'multiqueue.client.cli:{{name}}', ''))\n"
    "cli.main(prog_name='multiqueue')"
)


def run(*arguments: str, url: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"MULTIQUEUE_URL": url}
    return subprocess.run(
        [sys.executable, "-c", _RUN, *arguments], input=given, capture_output=True, timeout=60, env=environment
    )


@pytest.fixture
def connection(server_url: str) -> Iterator[Connection]:
    with connect(server_url) as made:
        yield made


def test_lines_go_in_and_come_out(server_url: str, connection: Connection) -> None:
    """A pipe through a queue; properties and headers on the way; what was written is acknowledged."""
    options = ["--queue", "q", "--declare", "--persistent", "--property", "content_type=text/plain", "--header", "a=b"]
    done = run("publish", *options, url=server_url, given=b"one\n\ntwo\nthree")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    out = run("consume", "--queue", "q", "--count", "2", url=server_url)
    assert (out.returncode, out.stdout, out.stderr) == (0, b"one\n\n", b"")
    out = run("consume", "--queue", "q", "--timeout", "0.2", "--format", "json", url=server_url)
    assert out.returncode == 0
    first, second = map(json.loads, out.stdout.splitlines())
    assert (first["body"], second["body"]) == ("two", "three")
    assert first["properties"] == {"content_type": "text/plain", "headers": {"a": "b"}, "delivery_mode": 2}
    assert connection.channel().basic_get("q") is None


def test_files_and_nul(server_url: str, connection: Connection, tmp_path: Any) -> None:
    """A file is a message, whatever is in it; -0 separates by NUL; a body that is no text is shown in base64."""
    (tmp_path / "file").write_bytes(b"\xff\n")
    connection.channel().queue_declare("q")
    assert run("publish", "--queue", "q", str(tmp_path / "file"), url=server_url).returncode == 0
    assert run("publish", "--queue", "q", "-0", url=server_url, given=b"a\nb\0c").returncode == 0
    out = run("consume", "--queue", "q", "--count", "1", "--format", "json", url=server_url)
    assert json.loads(out.stdout)["body_base64"] == "/wo="
    assert run("consume", "--queue", "q", "--count", "2", "-0", url=server_url).stdout == b"a\nb\0c\0"


def test_looking_takes_nothing(server_url: str, connection: Connection) -> None:
    """--ack never gives everything back."""
    run("publish", "--queue", "q", "--declare", url=server_url, given=b"1\n2\n")
    assert run("consume", "--queue", "q", "--count", "2", "--ack", "never", url=server_url).stdout == b"1\n2\n"
    channel = connection.channel()
    first = channel.basic_get("q")
    assert first is not None
    assert (first.body, first.redelivered) == (b"1", True)


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["publish", "--queue", "missing"], 2, "NOT_FOUND - no queue 'missing' in vhost '/'; --declare makes it"),
        (["consume", "--queue", "missing"], 2, "NOT_FOUND - no queue 'missing' in vhost '/'; --declare makes it"),
        (["publish", "--exchange", "missing"], 2, "multiqueue: NOT_FOUND - no exchange 'missing' in vhost '/'\n"),
        (
            ["publish", "--exchange", "amq.topic", "--routing-key", "x"],
            1,
            "1 message was refused, for example: NO_ROUTE",
        ),
        (["consume", "--queue", "q", "--declare", "--count", "1", "--timeout", "0"], 1, "0 of 1 message came"),
        (["publish", "--queue", "q", "--property", "colour=red"], 2, "there is no such property; content_type"),
        (["publish", "--queue", "q", "--property", "priority=high"], 2, "a whole number is needed"),
        (["publish", "--queue", "q" * 256], 2, "--queue: 'qqqq"),
        (["consume", "--queue", "\udcff"], 2, "--queue: '\\udcff' is no Unicode text: character 0 is a surrogate"),
        (["publish", "--exchange", "amq.topic", "--routing-key", "k" * 256], 2, "no message can be sent so: 'kkkk"),
        (["publish", "--exchange", "amq.topic", "--property", "priority=999"], 2, "999 does not fit in an octet"),
        (["publish", "--exchange", "missing", "--no-confirm"], 2, "multiqueue: NOT_FOUND - no exchange 'missing'"),
        (["publish", "--exchange", "x" * 256], 2, "--exchange: 'xxxx"),
        (
            ["publish", "--exchange", "amq.topic", "--property", "user_id=bob"],
            3,
            "multiqueue: broken off: PRECONDITION_FAILED - user_id property set to 'bob'",
        ),
        (["publish"], 2, "give a destination"),
        (["consume", "--queue", "q", "--url", "nonsense"], 2, "'nonsense' is not the address of a broker"),
        (["consume", "--queue", "q", "--url", "amqp://127.0.0.1:1"], 2, "127.0.0.1:1: "),
    ],
)
def test_what_is_wrong_is_one_sentence(
    arguments: list[str],
    status: int,
    sentence: str,
    server_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And a status that says how far it came."""
    monkeypatch.setenv("MULTIQUEUE_URL", server_url)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
    monkeypatch.setattr(front, "_COMMANDS", {name: (f"multiqueue.client.cli:{name}", "") for name in _NAMES})
    with pytest.raises(SystemExit) as left:
        front.main(arguments, prog_name="multiqueue")
    said = capsys.readouterr().err
    assert (left.value.code, sentence in said) == (status, True), said


@pytest.mark.parametrize(
    ("stream", "arguments", "sentence"),
    [
        ("stdin", ["publish", "--queue", "q", "--declare"], "standard input is closed; give FILES, or lines in a pipe"),
        (
            "stdout",
            ["consume", "--queue", "q", "--declare"],
            "standard output is closed, and messages are written there",
        ),
    ],
)
def test_a_stream_that_is_closed(
    stream: str,
    arguments: list[str],
    sentence: str,
    server_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As after `<&-` and `>&-`: one sentence, and nothing was begun."""
    monkeypatch.setenv("MULTIQUEUE_URL", server_url)
    monkeypatch.setattr(front, "_COMMANDS", {name: (f"multiqueue.client.cli:{name}", "") for name in _NAMES})
    monkeypatch.setattr(sys, stream, None)
    with pytest.raises(SystemExit) as left:
        front.main(arguments, prog_name="multiqueue")
    assert (left.value.code, capsys.readouterr().err) == (2, f"multiqueue: {sentence}\n")


@contextmanager
def _consumer(server_url: str, *more: str, **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
    """`multiqueue consume` as a process, killed if it is still there in the end."""
    command = [sys.executable, "-c", _RUN, "consume", "--queue", "q", "--url", server_url, *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_reader_may_go_away(server_url: str, connection: Connection) -> None:
    """As `| head -1`: the command ends quietly, and what was not written is back."""
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    for number in range(2000):
        channel.publish(b"%d" % number + b"x" * 1000, routing_key="q")
    with _consumer(server_url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"0x")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0
    left = channel.basic_get("q")
    assert left is not None
    assert left.redelivered


def test_what_the_reader_of_a_pipe_has_not_read_is_back(
    broker: Broker, server_url: str, connection: Connection
) -> None:
    """Of what was written into a pipe, as many messages are done with as its reader has read before it ended."""
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    for number in range(2000):
        channel.publish(b"%d" % number, routing_key="q")
    with _consumer(server_url) as process:
        assert process.stdout is not None
        number = process.stdout.fileno()
        read = b"".join(os.read(number, 65536) for _ in range(3))
        process.stdout.close()
        assert process.wait(30) == 0
    left = 2000 - read.count(b"\n")
    assert 1 < left < 2000
    assert channel.queue_declare("q", passive=True)[1:] == (left, 0)


class _ReadInTime:
    """The other end of a pipe, read whenever the writer sleeps; `pieces` are what each reading found."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number, writer = os.pipe()
        self.stream = os.fdopen(writer, "wb", 0)
        self.pieces: list[bytes] = []
        monkeypatch.setattr(_output, "sleep", self._read)

    def _read(self, seconds: float) -> None:
        self.pieces.append(os.read(self.number, 65536))


def test_a_waiting_reader_gets_one_message_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written first is read before the next is written, so that `head -3` has read three when it ends."""
    reader = _ReadInTime(monkeypatch)
    output = _output.output_to(reader.stream)
    for number in range(3):
        output.write(b"%d\n" % number)
        assert output.taken == 2 * number
    output.flush()
    assert reader.pieces == [b"0\n", b"1\n", b"2\n"]
    assert output.taken == output.written == 6
    output.write(b"3\n")
    os.close(reader.number)
    monkeypatch.undo()
    with pytest.raises(BrokenPipeError):
        output.finish()
    assert output.taken == 6
    reader.stream.close()


def test_a_busy_reader_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the reader does something else more is written, and counted once it has read it."""
    number, writer = os.pipe()
    clock = itertools.count(step=0.06)
    monkeypatch.setattr(_output, "monotonic", lambda: next(clock))
    with open(writer, "wb", 0) as stream, open(number, "rb", 0) as reading:
        output = _output.output_to(stream)
        for _ in range(5):
            output.write(b"12345\n")
        assert next(clock) < 0.5  # it was waited for once
        assert output.taken == 0
        assert reading.read(9) == b"12345\n123"
        output.look()
        assert output.taken == 9
        output.finish()  # the pipe has it, and somebody is there to read it
        assert output.taken == 30


def test_what_a_busy_reader_has_read_before_it_ends_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that finds the pipe closed counts what was read until then, and nothing of what stands in it."""
    number, writer = os.pipe()
    clock = itertools.count(step=0.06)
    monkeypatch.setattr(_output, "monotonic", lambda: next(clock))
    with open(writer, "wb", 0) as stream:
        output = _output.output_to(stream)
        for _ in range(5):
            output.write(b"12345\n")
        assert os.read(number, 12) == b"12345\n" * 2
        os.close(number)
        with pytest.raises(BrokenPipeError):
            output.write(b"12345\n")
        assert output.taken == 12


def test_no_time_passes_while_the_reader_keeps_messages_from_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--timeout` does not count while as many messages as --prefetch wait to be read: the server sends no other."""
    clock = itertools.count()
    monkeypatch.setattr(client_cli, "monotonic", lambda: next(clock))
    answers = iter([Empty, Empty, Empty, Empty, "message", Empty, Empty, Empty])

    def get(timeout: float) -> str:
        if (answer := next(answers)) is Empty:
            raise Empty
        return str(answer)

    inbox: Any = SimpleNamespace(get=get)
    writing: Any = SimpleNamespace(
        output=SimpleNamespace(look=lambda: None), settle=lambda: None, is_full=True, waiting=["a message"]
    )
    assert client_cli._next(inbox, 2.5, writing) == "message"
    writing.is_full = False
    assert client_cli._next(inbox, 2.5, writing) is None


def test_an_interrupt_ends_it_in_order(broker: Broker, server_url: str, connection: Connection) -> None:
    """Ctrl-C: what was written is acknowledged, the connection is closed, status 130."""
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.publish_confirmed(b"1", routing_key="q").result(20)
    with _consumer(server_url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"1\n"
        while broker.queue("q").statistics().unacked:  # written, and about to be acknowledged
            threading.Event().wait(0.001)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == b"multiqueue: interrupted\n"
    assert channel.queue_declare("q", passive=True)[1:] == (0, 0)
