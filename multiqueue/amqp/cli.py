"""`multiqueue broker`: a broker in a separate process, and a look at one that runs.

Who runs    The main thread waits for a signal; the server's threads do the work. SIGINT and SIGTERM end it cleanly:
            clients get a close, durable messages are on disk. A second one ends it where it stands.
Waiting     On a socket that the interpreter writes to when a signal comes. Of a lock, the signal that comes just before
            the thread falls asleep would be seen when something else wakes it, that is, never.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import click

from .._extras import needs
from .._logs import OneLine, printable
from .._words import cells_of, counted, duration
from ..broker import VERSIONS, Broker
from ..errors import MultiQueueError
from ..store import Durability
from ._server.access import hash_password
from ._server.config import BrokerConfig, HttpSection, load_config
from ._server.server import Server, serve
from ._server.settings import patient_collector
from ._session.calls import STATUS_QUEUE
from ._wire.errors import ConnectionFault, ServerError
from ._wire.frames import PROTOCOL_HEADER, Frame, FrameSplitter
from ._wire.methods import decode_method

_FILES: Final = 65536
_PATIENCE: Final = 10.0  # seconds, with a broker that is asked for its status


@click.group(invoke_without_command=True)
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="The port; 0 is a free one.  [default: 5672]")
@click.option(
    "--tls-port", type=click.IntRange(0, 65535), help="A second port, for TLS as [tls] says; 0 is a free one."
)
@click.option("--data", type=click.Path(path_type=Path), help="A directory for durable queues and persistent messages.")
@click.option(
    "--durability",
    type=click.Choice([each.value for each in Durability]),
    help="What a confirm survives: a power loss (sync), a crash of the broker, as at RabbitMQ (relaxed), or nothing"
    " (memory).  [default: sync]",
)
@click.option("--http", type=click.IntRange(0, 65535), help="A port for HTTP: RabbitMQ's management API, metrics.")
@click.option("--compat", type=click.Choice(VERSIONS), help="Which RabbitMQ's rules hold.  [default: 4.3]")
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file; options here win over it.")
@click.option("--verbose", is_flag=True, help="Log every connection, not only errors.")
@click.pass_context
def broker(
    context: click.Context,
    host: str | None,
    port: int | None,
    tls_port: int | None,
    data: Path | None,
    durability: str | None,
    http: int | None,
    compat: str | None,
    config: Path | None,
    verbose: bool,
) -> None:
    """Run an AMQP 0-9-1 broker until Ctrl-C or SIGTERM."""
    if context.invoked_subcommand is not None:
        return
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(message)s")
    with _lines_of_all_loggers(), _many_files():
        found = load_config(config)
        listen, section, tls = found.file.listen, found.file.tls, found.tls()
        directory = data or found.data
        if tls_port is not None and section is None:
            raise ServerError("--tls-port needs a configuration with a section [tls], which names the certificate")
        with _signal_socket() as signals, _open(found, directory, compat, durability) as started:
            for name in found.file.virtual_hosts:
                _add_virtual_host(started, name)
            for name, each in found.file.policies.items():
                started.virtual_host(each.virtual_host).policies.set(each.policy(name))
            server = serve(
                started,
                listen.host if host is None else host,
                listen.port if port is None else port,
                users=None if found.file.users is None else found.users(),
                tls=tls,
                tls_port=section.port if tls_port is None and section is not None else tls_port,
                settings=found.settings(),
                data=directory,
            )
            with server, patient_collector():
                where = f"messages that must survive are in {directory}" if directory else "messages are in memory"
                _listen_http(started, server, found, host, http, directory)
                click.echo(f"listening on {_places(server)}; {where}; Ctrl-C ends it")
                started.add_server(_Bell(signals.ring))
                signals.wait()
                click.echo("closing")
        if found.file.data.on_store_failure == "stop":
            for failure in [each.failure for each in started.virtual_hosts() if each.failure is not None]:
                raise failure


def _add_virtual_host(started: Broker, name: str) -> None:
    try:
        started.add_virtual_host(name)
    except ValueError as error:  # a directory cannot have the name
        raise ServerError(str(error)) from None


def _places(server: Server) -> str:
    """Where clients connect: `127.0.0.1:5672`, and with TLS on another port `... and, with TLS, 127.0.0.1:5671`."""
    urls = [server.url] if server.tls_url in (None, server.url) else [server.url, server.tls_url]
    return " and, with TLS, ".join(url.rpartition("@")[2].partition("/")[0] for url in urls if url)


def _listen_http(
    started: Broker, server: Server, config: BrokerConfig, host: str | None, port: int | None, directory: Path | None
) -> None:
    """Open the windows, where the command or the file asks for them; closing the broker closes them."""
    section = config.file.http
    if port is None and section is None:
        return
    listen = section or HttpSection()
    host, port = listen.host if host is None else host, listen.port if port is None else port
    try:
        http = started.listen_http(
            host,
            port,
            amqp=server,
            data=directory,
            tls=config.tls_files,
            hosts=listen.hosts,
            proxies=listen.proxies,
        )
    except ImportError as error:
        raise ServerError(needs("`--http`", error.name or str(error))) from error
    click.echo(f"HTTP on {http.url}")


@contextmanager
def _lines_of_all_loggers() -> Iterator[None]:
    """Records of other loggers, asyncio's too, are one line each in this block."""
    handlers, one_line = list(logging.getLogger().handlers), OneLine()
    for handler in handlers:
        handler.addFilter(one_line)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(one_line)


@contextmanager
def _many_files() -> Iterator[None]:
    """Each connection is a file: have as many in this block as the system lets this process have."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # as many as before
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class _Signals(NamedTuple):
    """What the main thread waits for: a signal, or `ring`."""

    reader: socket.socket
    writer: socket.socket

    def wait(self) -> None:
        self.reader.recv(1)

    def ring(self) -> None:
        with suppress(OSError):  # it is full, or the command has ended
            self.writer.send(b"\0")


@contextmanager
def _signal_socket() -> Iterator[_Signals]:
    """Wakes once SIGINT or SIGTERM has come; a second one raises KeyboardInterrupt in this thread."""
    came = 0

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came += 1
        if came == 2:
            raise KeyboardInterrupt

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    with reader, writer:
        woken = signal.set_wakeup_fd(writer.fileno())
        before = {each: signal.signal(each, end) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield _Signals(reader, writer)
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
            signal.set_wakeup_fd(woken)


class _Bell:
    """Rings when the broker closes by itself, as it does with `on_store_failure = "stop"`."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring

    def close(self, timeout: float) -> None:
        self._ring()

    def forget_virtual_host(self, name: str) -> None:
        pass

    def leave_virtual_host(self, name: str, why: str) -> None:
        pass


def _open(config: BrokerConfig, directory: Path | None, compat: str | None, durability: str | None) -> Broker:
    section = config.file.data
    permitted = config.file.deprecated_features.permit
    options: dict[str, Any] = {"compat": compat or config.file.compat, "deprecated_features": permitted}
    options["consumer_timeout"] = config.file.consumer_timeout
    if section.messages_in_memory_bytes is not None:
        options["memory_limit"] = section.messages_in_memory_bytes
    if directory is None:
        return Broker(**options)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        why = f"cannot keep messages in {directory}: {error.strerror}; choose another with --data"
        raise ServerError(why) from error
    try:
        on_failure = section.on_store_failure
        kept = durability or section.durability
        return Broker(data=directory, durability=kept, on_store_failure=on_failure, **options)
    except MultiQueueError as error:  # another process has it, or it is damaged
        raise ServerError(str(error)) from error


@broker.command()
@click.option(
    "--url",
    envvar="MULTIQUEUE_URL",
    default="amqp://guest:guest@127.0.0.1:5672/%2F",
    show_default=True,
    help="The broker; also MULTIQUEUE_URL.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def status(url: str, as_json: bool) -> None:
    """The connections and queues of a running broker."""
    found = fetch_status(url)
    if as_json:
        json.dump(found, sys.stdout, indent=1)
        click.echo()
        return
    click.echo(
        f"{found['product']} {found['version']}, up {duration(found['uptime_seconds'])},"
        f" {counted(found['connections'], 'connection')}, {counted(found['channels'], 'channel')}"
    )
    if found["alarms"]:
        click.echo(f"low on {' and '.join(found['alarms'])}: publishers are blocked")
    down = {name: each["failure"] for name, each in found["virtual_hosts"].items() if each["failure"]}
    for name, why in down.items():
        click.echo(f"vhost '{printable(name)}' is down: {printable(why)}")
    rows: list[tuple[str, ...]] = [("vhost", "queue", "ready", "unacked", "consumers")]
    for host, each in found["virtual_hosts"].items():
        rows += [
            (printable(host), printable(name), *map(str, figures.values())) for name, figures in each["queues"].items()
        ]
    widths = [max(map(cells_of, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        spaces = [" " * (width - cells_of(cell)) for cell, width in zip(row, widths, strict=True)]
        names, numbers = zip(row[:2], spaces, strict=False), zip(row[2:], spaces[2:], strict=True)
        cells = [cell + space for cell, space in names] + [space + cell for cell, space in numbers]
        click.echo("  ".join(cells).rstrip())
    if down:
        sys.exit(1)


@broker.command()
@click.option("--url", envvar="MULTIQUEUE_URL", default="amqp://127.0.0.1:5672", show_default=True, help="The broker.")
def health(url: str) -> None:
    """Whether a running broker can be used: status 0, or 1 when a virtual host is down. Needs no account."""
    if not fetch_health(url):
        click.echo("a virtual host is down; `multiqueue status` says which one and why")
        sys.exit(1)
    click.echo("healthy")


def fetch_health(url: str) -> bool:
    """`Server.is_healthy` of the server at an AMQP URL, by the greeting that it sends before a login.

    Raises ServerError: nothing answers there in time, or it is another broker. ClientError: that is no address.
    """
    from ..client import parse_address

    address = parse_address(url)
    try:
        with socket.create_connection(address.endpoints[0], _PATIENCE) as plain, _tls(plain, address.tls) as connected:
            connected.sendall(PROTOCOL_HEADER)
            splitter = FrameSplitter()
            frames: list[Frame] = []
            while not frames:
                data = connected.recv(65536)
                if not data:
                    raise ServerError(f"{address} closed the connection instead of answering")
                frames = splitter.feed(data)
    except OSError as error:
        raise ServerError(f"{address} does not answer: {error.strerror or error}") from error
    except ConnectionFault as error:
        raise ServerError(f"{address} is not an AMQP broker: {error}") from error
    greeting = decode_method(frames[0][2])
    properties = getattr(greeting, "server_properties", {})
    if properties.get("product") != "multiqueue":
        raise ServerError(f"{address} is {properties.get('product')}; only multiqueue answers this health check")
    return properties.get("healthy") is True


def _tls(connected: socket.socket, is_wanted: bool) -> socket.socket:
    """Nothing secret is sent, and the answer decides about nothing but a restart: the certificate is not checked."""
    if not is_wanted:
        return connected
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connected)


def fetch_status(url: str) -> dict[str, Any]:
    """`Server.status` of the server at an AMQP URL: a message from a queue that it answers itself. Raises ServerError:
    it is another broker. ClientError: no server listens there, or the login is refused."""
    from .. import client

    with client.connect(url, recover=False, call_timeout=_PATIENCE, name="multiqueue broker status") as connection:
        product = connection.server_properties.get("product")
        if product != "multiqueue":
            raise ServerError(f"{client.parse_address(url)} is {product}; only multiqueue answers this command")
        with connection.channel() as channel:
            answer = channel.basic_get(STATUS_QUEUE, auto_ack=True)
            assert answer is not None, "the server answers this queue itself"
            status: dict[str, Any] = json.loads(answer.body)
            return status


@broker.command("hash-password")
def hash_one() -> None:
    """A password's hash, for `password_hash` in the configuration."""
    if sys.stdin is not None and sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        line = b"" if sys.stdin is None else sys.stdin.buffer.readline()
        try:
            password = line.removesuffix(b"\n").decode()
        except UnicodeDecodeError:
            raise ServerError("the password on standard input is not UTF-8") from None
        if not password:
            raise ServerError("no password on standard input; give one as a line")
    click.echo(hash_password(password))
