"""The commands `multiqueue publish` and `multiqueue consume`: lines of a pipe to messages, and back."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, BinaryIO

import click

from .._words import counted
from ..amqp.wire import Properties
from ..errors import Empty, ShutDown
from ._base.errors import ClientError, Closed, Nacked
from ._base.message import Message, Returned
from ._channel.channel import Channel
from ._channel.consumers import Inbox
from ._channel.publishing import Confirm
from ._connection.connection import connect
from ._output import Output, forget_output, output_to

DEFAULT_URL = "amqp://guest:guest@localhost:5672/%2F"
_WINDOW = 1000  # messages on their way to the server before the first of them must be confirmed
_BATCH = 100  # messages written to a file before they are flushed and acknowledged
_LONGEST_SLEEP = 1.0  # seconds
_SHORT_SLEEP = 0.01

_URL = click.option(
    "--url", envvar="MULTIQUEUE_URL", default=DEFAULT_URL, show_default=True, help="The broker; also MULTIQUEUE_URL."
)
_NUL = click.option("-0", "--null", "nul", is_flag=True, help="NUL between messages instead of newlines.")


class CannotStart(ClientError):
    """The broker answers, and refuses a request that the command needs before its first message."""

    exit_status = 2


class BrokenOff(ClientError):
    exit_status = 3


@click.command(epilog="Exit status: 0 all published, 1 messages were refused, 2 not started, 3 broken off, 130 Ctrl-C.")
@_URL
@click.option("--exchange", default="", help="Where to publish; by default to the queue itself.")
@click.option("--routing-key", default=None, help="By default the queue's name, or nothing.")
@click.option("--queue", default=None, help="The queue to publish to.")
@click.option("--declare", is_flag=True, help="Declare a durable queue if it does not exist.")
@click.option(
    "--confirm/--no-confirm", default=True, show_default=True, help="Wait until the server has every message."
)
@click.option("--persistent", is_flag=True, help="Have durable queues keep messages on disk.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Such as content_type=text/plain.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header, as text.")
@_NUL
@click.argument("files", nargs=-1, type=click.File("rb"))
def publish(
    url: str,
    exchange: str,
    routing_key: str | None,
    queue: str | None,
    declare: bool,
    confirm: bool,
    persistent: bool,
    properties: tuple[str, ...],
    headers: tuple[str, ...],
    nul: bool,
    files: tuple[BinaryIO, ...],
) -> None:
    """Publish each line of standard input, or each of FILES as one message.

    With --confirm, a message that no queue takes is an error too.
    """
    if declare and queue is None:
        raise click.UsageError("--declare needs --queue")
    if routing_key is None and queue is None and not exchange:
        raise click.UsageError("give a destination: --queue, or --exchange with --routing-key")
    set_ = _properties(properties, headers, persistent)
    key = routing_key if routing_key is not None else queue or ""
    messages = (file.read() for file in files) if files else separated(_input(), b"\0" if nul else b"\n")
    returned: list[Returned] = []
    with connect(url, recover=False, name="multiqueue publish") as connection:
        channel = connection.channel(on_returned=returned.append)
        if exchange:
            with _before_the_start("--exchange"):
                channel.exchange_declare(exchange, passive=True)
        if queue is not None:
            _prepare(channel, queue, declare)
        refused = _publish_all(channel, messages, confirm, {"exchange": exchange, "routing_key": key, **set_})
    refused += len(returned)
    if refused:
        example = f", for example: {returned[0].reply_text}" if returned else ""
        raise ClientError(f"{counted(refused, 'message')} {'was' if refused == 1 else 'were'} refused{example}")


def _publish_all(channel: Channel, messages: Iterable[bytes], confirm: bool, fields: dict[str, Any]) -> int:
    window: list[Confirm] = []
    refused = 0
    try:
        for body in messages:
            if not confirm:
                channel.publish(body, **fields)
                continue
            window.append(channel.publish_confirmed(body, mandatory=True, **fields))
            if len(window) == _WINDOW:
                refused += sum(isinstance(each.exception(), Nacked) for each in window)
                window.clear()
        for each in window:
            error = each.exception()
            refused += isinstance(error, Nacked)
            if isinstance(error, Closed):
                raise error
        if not confirm:
            channel.basic_qos(1)  # the server has everything, or says why not, when it answers
    except Closed as error:
        raise _broken_off(error) from error
    except ValueError as error:  # it is the same for every message, so none was sent
        raise CannotStart(f"no message can be sent so: {error}") from error
    return refused


def _input() -> BinaryIO:
    if sys.stdin is None:
        raise CannotStart("standard input is closed; give FILES, or lines in a pipe")
    return sys.stdin.buffer


def separated(stream: BinaryIO, separator: bytes) -> Iterator[bytes]:
    """The pieces of a stream as they come; a separator at its end begins no further piece."""
    if separator == b"\n":
        for line in stream:
            yield line.removesuffix(b"\n")
        return
    rest = b""
    while data := os.read(stream.fileno(), 65536):
        *whole, rest = (rest + data).split(separator)
        yield from whole
    if rest:
        yield rest


def _properties(properties: Iterable[str], headers: Iterable[str], persistent: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in map(_pair, properties):
        if name == "headers" or name not in Properties.__annotations__:
            known = ", ".join(name for name in Properties.__annotations__ if name != "headers")
            raise click.UsageError(f"--property {name}: there is no such property; {known}")
        if name in ("delivery_mode", "priority", "timestamp") and not value.isdecimal():
            raise click.UsageError(f"--property {name}={value}: a whole number is needed")
        found[name] = int(value) if name in ("delivery_mode", "priority", "timestamp") else value
    if headers:
        found["headers"] = dict(map(_pair, headers))
    if persistent:
        found["delivery_mode"] = 2
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is not NAME=VALUE")
    return name, value


def _broken_off(error: Exception) -> BrokenOff:
    return BrokenOff(f"broken off: {getattr(error, 'reply_text', '') or error}")


def _prepare(channel: Channel, queue: str, declare: bool) -> None:
    with _before_the_start("--queue", "; --declare makes it"):
        channel.queue_declare(queue, durable=declare, passive=not declare)


@contextmanager
def _before_the_start(option: str, if_missing: str = "") -> Iterator[None]:
    try:
        yield
    except Closed as error:
        raise CannotStart(f"{error.reply_text or error}{if_missing if error.reply_code == 404 else ''}") from error
    except ValueError as error:
        raise CannotStart(f"{option}: {error}") from error


@click.command(epilog="Exit status: 0 done, 1 fewer than --count came, 2 not started, 3 broken off, 130 Ctrl-C.")
@_URL
@click.option("--queue", required=True, help="The queue to consume from.")
@click.option("--declare", is_flag=True, help="Declare a durable queue if it does not exist.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--timeout", type=click.FloatRange(min=0), help="End after so many seconds without a message.")
@click.option(
    "--ack",
    type=click.Choice(["written", "auto", "never"]),
    default="written",
    show_default=True,
    help="When to acknowledge a message: once written, and read if to a pipe; on delivery; or never, so that all go "
    "back at the end.",
)
@click.option("--format", "format_", type=click.Choice(["raw", "json"]), default="raw", show_default=True)
@click.option("--prefetch", type=click.IntRange(min=1), default=_BATCH, show_default=True)
@_NUL
def consume(
    url: str,
    queue: str,
    declare: bool,
    count: int | None,
    timeout: float | None,
    ack: str,
    format_: str,
    prefetch: int,
    nul: bool,
) -> None:
    """Write messages of a queue to standard output, one a line, until Ctrl-C or the reader of the pipe ends.

    With --format json each is an object with body (or body_base64, if it is no text), properties, exchange,
    routing_key, redelivered. A message that could not be written, or that a pipe's reader has not read when it ends, is
    back in its queue.
    """
    end = b"\0" if nul else b"\n"
    if sys.stdout is None:
        raise CannotStart("standard output is closed, and messages are written there")
    with connect(url, recover=False, name="multiqueue consume") as connection:
        channel = connection.channel()
        _prepare(channel, queue, declare)
        if ack != "never":
            channel.basic_qos(prefetch)
        try:
            with channel.consume(queue, auto_ack=ack == "auto") as inbox:
                written = _write_all(
                    inbox, count, timeout, prefetch if ack == "written" else None, format_ == "json", end
                )
        except BrokenPipeError:
            forget_output()
            return
        except (Closed, ShutDown) as error:
            raise _broken_off(error) from error
    if count is not None and written < count:
        raise ClientError(f"{written:,} of {counted(count, 'message')} came; none for {timeout:g} s")


class _Writing:
    """Messages on their way out: those that are written are acknowledged once they are taken."""

    def __init__(self, output: Output, prefetch: int | None) -> None:
        self.output = output
        self._prefetch = prefetch  # None: nothing is to be acknowledged
        self.waiting: deque[tuple[int, Message]] = deque()  # and how much is written when each is

    def write(self, message: Message, data: bytes) -> None:
        self.output.write(data)
        if self._prefetch is not None:
            self.waiting.append((self.output.written, message))

    def settle(self) -> None:
        last = None
        while self.waiting and self.waiting[0][0] <= self.output.taken:
            _, last = self.waiting.popleft()
        if last is not None:
            last.ack(multiple=True)

    @property
    def is_full(self) -> bool:
        """Whether the server sends nothing further before something is taken."""
        return self._prefetch is not None and len(self.waiting) >= self._prefetch


def _write_all(
    inbox: Inbox, count: int | None, timeout: float | None, prefetch: int | None, as_json: bool, end: bytes
) -> int:
    """Returns how many messages were written, and acknowledged if there is a `prefetch`."""
    writing = _Writing(output_to(sys.stdout.buffer), prefetch)
    written = 0
    try:
        while True:
            more = count is None or written < count
            message = _next(inbox, timeout, writing) if more else None
            if message is None:
                break
            writing.write(message, (_as_json(message) if as_json else message.body) + end)
            written += 1
            if written % _BATCH == 0 or not inbox.qsize() or written == count:
                writing.output.flush()
            writing.settle()
        writing.output.finish()
    finally:
        writing.settle()  # after a broken pipe too: what was read before is done
    return written


def _next(inbox: Inbox, timeout: float | None, writing: _Writing) -> Message | None:
    """The next message; None when none has come for `timeout` seconds.

    It waits a second at a time: a Ctrl-C that comes just before the thread falls asleep is seen when it wakes. And
    shorter while something waits to be taken.
    """
    begun = monotonic()
    while True:
        writing.output.look()
        writing.settle()
        if writing.is_full:
            begun = monotonic()  # none can come
        longest = _SHORT_SLEEP if writing.waiting else _LONGEST_SLEEP
        left = longest if timeout is None else min(begun + timeout - monotonic(), longest)
        try:
            return inbox.get(max(left, 0))
        except Empty:
            if left < longest:
                return None


def _as_json(message: Message) -> bytes:
    fields: dict[str, Any] = {
        "properties": message.properties,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "redelivered": message.redelivered,
    }
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode()}
    return json.dumps(body | fields, ensure_ascii=False, default=_plain).encode()


def _plain(value: object) -> object:
    """A value that JSON has no word for: bytes, times, decimals in a table of headers."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
