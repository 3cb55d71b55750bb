"""The configuration file and the command line of the broker."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from amqp_parts_support import (
    RANGES,
    LimitsSection,
    access,
    config,
    fetch_health,
    fetch_status,
    load_config,
    memory_of_machine,
)
from amqp_raw_support import SHUTDOWN, RawClient
from amqp_tls_support import TlsClient, trusting
from click.testing import CliRunner
from pamqp import commands
from rabbitmq_support import Peer

from multiqueue import amqp
from multiqueue.amqp import ConfigError, Permissions, ServerError, ServerSettings, hash_password
from multiqueue.amqp.cli import broker as command
from multiqueue.broker import Broker
from multiqueue.client import ClientError, connect
from multiqueue.store import StoreFailed

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "broker-toml.md"


def complaint(tmp_path: Path, text: str) -> str:
    """What is said of this file, without its path."""
    path = tmp_path / "broker.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value).replace(f"{path}: ", "")


def test_without_a_file() -> None:
    """The defaults: loopback, guest, no data, 40 % of the machine's memory."""
    config = load_config(None)
    assert (config.file.listen.host, config.file.listen.port, config.data, config.tls()) == (
        "127.0.0.1",
        5672,
        None,
        None,
    )
    assert [user.name for user in config.users()] == ["guest"]
    assert (config.settings().memory_limit_bytes or 0) > 2**27


def test_a_whole_file(tmp_path: Path) -> None:
    """Every section comes to what it says; relative paths start at the file."""
    path = tmp_path / "broker.toml"
    path.write_text(
        f"""
        virtual_hosts = ["/", "staging"]
        [listen]
        host = "0.0.0.0"
        port = 5673
        [data]
        directory = "store"
        durability = "relaxed"
        [limits]
        max_connections = 7
        max_connections_per_user = 5
        handshake_timeout = 3
        [users.anna]
        password_hash = "{hash_password("secret")}"
        [users.anna.permissions."/"]
        configure = ""
        write = "^orders"
        read = ".*"
        [users.anna.everywhere]
        [policies.jobs]
        pattern = "^jobs"
        definition = {{ max-length = 5 }}
        operator = true
        virtual_host = "staging"
        """
    )
    config = load_config(path)
    assert (config.data, config.file.data.durability) == (tmp_path / "store", "relaxed")
    limits = config.settings()
    assert (limits.max_connections, limits.max_connections_per_user, limits.handshake_timeout) == (7, 5, 3)
    (anna,) = config.users()
    permissions = anna.permissions_in("/")
    assert permissions is not None
    assert (permissions.configure, permissions.write, permissions.read) == ("", "^orders", ".*")
    assert anna.permissions_in("staging") == Permissions()
    jobs = config.file.policies["jobs"].policy("jobs")
    assert (jobs.pattern, jobs.definition, jobs.is_operators) == ("^jobs", {"max-length": 5}, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[listen\n", "not TOML: "),
        ("[listen]\nprot = 1", "listen.prot: unknown key; did you mean 'port'?"),
        ("[listn]", "listn: unknown key; did you mean 'listen'?"),
        ("[listen]\nport = 70000", "listen.port: must be at most 65535, not 70000"),
        ('[listen]\nport = "5672"', "listen.port: must be a whole number, not '5672'"),
        ('[data]\ndurability = "much"', "data.durability: must be one of 'sync', 'relaxed' or 'memory', not 'much'"),
        ("[limits]\nframe_max = 100", "limits.frame_max: must be at least 4096, not 100"),
        ("[limits]\nhandshake_timeout = 0", "limits.handshake_timeout: must be at least 0.01, not 0"),
        ("[tls]", ":1: tls.certificate: missing"),
        ('[policies.a]\npattern = "("\ndefinition = {max-length = 1}', "is not a regular expression"),
        ('[policies.a]\npattern = "a"\ndefinition = {max-length = -1}', "max-length: -1 is out of range"),
        ('[policies.a]\npattern = "a"\ndefinition = {ha-mode = "all"}', "ha-mode are not recognised policy settings"),
        (
            '[policies.a]\npattern = "a"\ndefinition = {max-length = 1}\nvirtual_host = "no"',
            ":4: policies.a.virtual_host: there is no such virtual host; name it in virtual_hosts",
        ),
        ("[listen]\n[tls]\nkye = 1", ":3: tls.kye: unknown key; did you mean 'key'?"),
        ('[users.a]\npassword_hash = "secret"', "users.a.password_hash: not a scrypt hash; make one with"),
        ('[users.a.permissions."/"]\nread = "("', "users.a.permissions.\"/\": read = '(' is not a regular expression"),
        (
            '[users.a]\npassword_hash = "scrypt$16384$8$1$AAAA$AAAA"',
            "users.a.password_hash: not a scrypt hash",
        ),
        ('[users.a.permissions."/"]\nreed = ""', "did you mean 'read'?"),
        (
            '[users.a.permissions."/"]\nread = "x"',
            ':1: users.a.permissions."/": configure and write: missing; name all three, or none to permit everything',
        ),
        (
            'virtual_hosts = ["one"]\n[users.a.permissions.one]\n[users.a.permissions.noe]',
            ":3: users.a.permissions.noe: there is no such virtual host; name it in virtual_hosts",
        ),
        (
            '[users.a.permissions."*"]',
            'users.a.permissions."*": there is no such virtual host; name it in virtual_hosts, or write'
            " [users.a.everywhere] for all of them",
        ),
        ("[users.a]\nrole = 1", "unknown key; known are everywhere, loopback_only, password_hash, permissions"),
        ("virtual_hosts = 1", "virtual_hosts: must be an array, not 1"),
        ('virtual_hosts = [""]', "virtual_hosts.0: must not be empty"),
        ("listen = true", "listen: must be a table, not True"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str, tmp_path: Path) -> None:
    """A mistake is told with its key and what would be right."""
    assert said in complaint(tmp_path, text)


@pytest.mark.parametrize("name", LimitsSection.model_fields)
def test_a_limit_has_its_range(name: str, tmp_path: Path) -> None:
    """What the server would refuse, the file's reader refuses, with the line: no traceback later."""
    least, most = RANGES[name]
    assert f":2: limits.{name}: must be at least" in complaint(tmp_path, f"[limits]\n{name} = {least - 1}")
    assert f":2: limits.{name}: must be at most" in complaint(tmp_path, f"[limits]\n{name} = {most + 1}")


def test_every_mistake_is_said(tmp_path: Path) -> None:
    """A sentence per mistake, each with the file."""
    assert len(complaint(tmp_path, "[listen]\nport = -1\nhots = 1\n[tls]").splitlines()) == 3


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """It is named."""
    with pytest.raises(ConfigError, match=r"nonesuch\.toml: cannot be read: No such file"):
        load_config(tmp_path / "nonesuch.toml")


def test_the_reference_is_complete() -> None:
    """Every key has a row in the reference with its default, and no row is without its key."""
    sections = {
        "listen": config.ListenSection,
        "http": config.HttpSection,
        "data": config.DataSection,
        "tls": config.TlsSection,
        "limits": config.LimitsSection,
        "users.NAME": config.UserSection,
        'users.NAME.permissions."VHOST"': config.PermissionsSection,
    }
    text = REFERENCE.read_text()
    for section, model in sections.items():
        part = text.split(f"## `[{section}]`")[1].split("\n## ")[0]
        rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", part, re.MULTILINE))
        assert set(rows) == set(model.model_fields), section
        for key, field in model.model_fields.items():
            if field.is_required():
                assert rows[key] == "required", key
            elif field.default is not None and not field.default_factory:
                assert rows[key] == f"`{json.dumps(field.default)}`", key


def test_limits_are_the_servers() -> None:
    """The file's limits are fields of ServerSettings, with the same defaults where both have one."""
    for key, field in LimitsSection.model_fields.items():
        assert key in ServerSettings.__dataclass_fields__
        assert getattr(ServerSettings(), key) == field.default, key


def test_the_limit_of_a_small_disk_is_a_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free disk is low at 50 MiB, on a disk below 400 MiB at an eighth of it, unless the file says when."""
    usage = shutil.disk_usage(tmp_path)
    for total, limit in ((1 << 40, 50 << 20), (16 << 20, 2 << 20)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, total=total: usage._replace(total=total))
        file = tmp_path / "broker.toml"
        directory = f"[data]\ndirectory = '{tmp_path / 'not' / 'there'}'\n"
        file.write_text(directory)
        assert load_config(file).settings().disk_free_limit_bytes == limit
        file.write_text(f"{directory}[limits]\ndisk_free_limit_bytes = 7\n")
        assert load_config(file).settings().disk_free_limit_bytes == 7
        file.write_text("")
        assert load_config(file).settings().disk_free_limit_bytes is None


def test_settings_have_ranges() -> None:
    """A value out of range is refused with its name."""
    with pytest.raises(ValueError, match="frame_max is 100; it is from 4096"):
        ServerSettings(frame_max=100)


# -- the command line


SAID: list[str] = []  # what each of them said first


@contextmanager
def running(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`multiqueue broker` in a process of its own, and the URL it says it listens at."""
    program = "from multiqueue.amqp.cli import broker; broker()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said = process.stdout.readline()
        SAID.append(said)
        found = re.match(r"listening on ([^ ;]+)", said)
        assert found, said + process.stderr.read()
        yield process, f"amqp://guest:guest@{found[1]}/%2F"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(ending: signal.Signals, tmp_path: Path) -> None:
    """Clients are told, and the status is 0."""
    with running() as (process, url):
        client = RawClient(url)
        process.send_signal(ending)
        assert client.connection_error() == (320, SHUTDOWN)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "closing\n", "")


def test_what_was_confirmed_survives_a_kill(tmp_path: Path) -> None:
    """Persistent messages that were confirmed are there after a kill -9, once each and in order."""
    with running("--data", str(tmp_path / "data")) as (process, url):
        client = RawClient(url)
        client.declare("q", durable=True)
        client.call(1, commands.Confirm.Select)
        for number in range(200):
            client.publish("", "q", b"%d" % number, delivery_mode=2)
        highest = 0
        while highest < 150:
            ack = client.method()
            assert isinstance(ack, amqp.Ack)
            highest = ack.delivery_tag
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with running("--data", str(tmp_path / "data")) as (_, url), RawClient(url) as client:
        bodies = []
        while (got := client.get("q", no_ack=True)) is not None:
            bodies.append(int(got.body))
        assert bodies == list(range(len(bodies)))
        assert len(bodies) >= highest


def test_status(broker: Broker, url: str) -> None:
    """It names connections and queues, as a table or as JSON."""
    broker.declare_queue("orders")
    with RawClient(url) as client:
        client.publish("", "orders", b"x")
        client.consume("orders")
        client.content()
        shown = CliRunner().invoke(command, ["status"], env={"MULTIQUEUE_URL": url})
        assert shown.exit_code == 0
        assert re.search(r", up \d+ s, 2 connections, 2 channels\n", shown.output)
        assert re.search(r"^/ +orders +0 +1 +1$", shown.output, re.MULTILINE)
        figures = json.loads(CliRunner().invoke(command, ["status", "--json", "--url", url]).output)
        assert figures["virtual_hosts"]["/"]["queues"] == {"orders": {"ready": 0, "unacked": 1, "consumers": 1}}
    shown = CliRunner().invoke(command, ["status", "--url", url])
    assert re.search(r", 1 connection, 1 channel\n", shown.output)  # that of the question


def test_a_status_is_aligned_by_what_a_terminal_shows(broker: Broker, url: str) -> None:
    """A wide character takes two cells: the figures behind it stand below the others."""
    for name in ("日本語", "orders"):
        broker.declare_queue(name)
    _, *lines = CliRunner().invoke(command, ["status", "--url", url]).output.splitlines()
    assert lines == [
        "vhost  queue   ready  unacked  consumers",
        "/      日本語      0        0          0",
        "/      orders      0        0          0",
    ]


def test_health_needs_no_account(tmp_path: Path) -> None:
    """`broker health` ends with 0 while every virtual host is up, with 1 when a store failed; nobody logs in.

    `broker status` names the virtual host and why, and ends with 1 too.
    """
    me = amqp.User("me", hash_password("secret"), {"/": Permissions(), "x": Permissions()})
    with (
        Broker(data=tmp_path) as broker,
        amqp.serve(broker, users=[me]) as server,
    ):
        url = server.url.replace("guest:guest@", "")
        assert CliRunner().invoke(command, ["health", "--url", url]).output == "healthy\n"
        journal = broker.add_virtual_host("x")._journal
        assert journal is not None
        journal.note(StoreFailed("the disk of x failed"))
        shown = CliRunner().invoke(command, ["health"], env={"MULTIQUEUE_URL": url})
        assert (shown.exit_code, "a virtual host is down" in shown.output) == (1, True)
        shown = CliRunner().invoke(command, ["status", "--url", server.url.replace("guest:guest", "me:secret")])
        assert (shown.exit_code, "vhost 'x' is down: the disk of x failed" in shown.output) == (1, True)
        with pytest.raises(
            ClientError, match="INTERNAL_ERROR - access to vhost 'x' refused for user 'me': vhost 'x' is"
        ):
            connect(server.url.replace("guest:guest", "me:secret").replace("%2F", "x"))
    with pytest.raises(ServerError, match=r"does not answer: Connection refused"):
        fetch_health(url)


def test_health_of_a_rabbitmq(rabbitmq_peer: Peer) -> None:
    """Another broker does not tell its health so, and says which it is."""
    with pytest.raises(ServerError, match="is RabbitMQ; only multiqueue"):
        fetch_health(rabbitmq_peer.url)


def test_status_of_nobody(url: str) -> None:
    """No server there, a wrong password, no URL: one sentence each."""
    with pytest.raises(ClientError, match=r"cannot connect to .*127\.0\.0\.1:1: .*Connection refused"):
        fetch_status("amqp://127.0.0.1:1")
    with pytest.raises(ClientError, match="the server refused: ACCESS_REFUSED"):
        fetch_status(url.replace("guest:guest", "guest:wrong"))
    for wrong in ("http://127.0.0.1", "amqp://localhost:99999", "amqp://localhost:port", "amqp://[::1/", ""):
        with pytest.raises(ClientError, match=r"is not (the address of a broker|a host with a port)"):
            fetch_status(wrong)


def test_status_of_something_else() -> None:
    """What answers, and is no broker of any kind, is told apart from one that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                accepted.recv(100)

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(ClientError, match=r"cannot connect to .*FRAME_ERROR"):
            fetch_status(f"amqp://127.0.0.1:{listener.getsockname()[1]}")
        answering.join()


@pytest.mark.parametrize("case", ["port", "directory", "config"])
def test_what_keeps_it_from_starting(case: str, url: str, tmp_path: Path) -> None:
    """A port in use, a directory that cannot be written, a wrong file: one sentence, status 2."""
    from multiqueue.cli import main

    port = url.rpartition(":")[2].partition("/")[0]
    blocked = tmp_path / "file"
    blocked.touch()
    options = {
        "port": ["--port", port],
        "directory": ["--port", "0", "--data", str(blocked / "data")],
        "config": ["--config", str(tmp_path / "nonesuch.toml")],
    }[case]
    done = CliRunner().invoke(main, ["broker", *options])
    assert done.exit_code == 2
    assert done.output.startswith("multiqueue: ")
    assert len(done.output.splitlines()) == 1


def test_the_command_leaves_its_process_as_it_was(tmp_path: Path) -> None:
    """Called within a process, it puts back the limit of open files, and takes its filters from the log's handlers."""
    resource = pytest.importorskip("resource")
    handlers = list(logging.getLogger().handlers)
    filters = [list(each.filters) for each in handlers]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        assert CliRunner().invoke(command, ["--config", str(tmp_path / "nonesuch.toml")]).exit_code != 0
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft - 1, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [list(each.filters) for each in handlers] == filters


def test_hash_password() -> None:
    """What it prints lets the password in."""
    hashed = CliRunner().invoke(command, ["hash-password"], input="secret\n").output.strip()
    user = amqp.User("anna", hashed)

    assert access.Access([user]).verify("anna", b"secret")


@pytest.mark.parametrize(("given", "said"), [(b"", "no password"), (b"\n", "no password"), (b"\xff\n", "not UTF-8")])
def test_hash_of_nothing(given: bytes, said: str) -> None:
    """No password, and one that no client could send, are refused: their hashes would let a client in."""
    from multiqueue.cli import main

    done = CliRunner().invoke(main, ["broker", "hash-password"], input=given)
    assert (done.exit_code, said in done.output, len(done.output.splitlines())) == (2, True, 1)


def test_it_does_what_the_file_says(tmp_path: Path) -> None:
    """Virtual hosts, users and limits of the file are those of the broker that runs."""
    config = tmp_path / "broker.toml"
    config.write_text(
        f"""
        virtual_hosts = ["staging"]
        [data]
        directory = "data"
        messages_in_memory_bytes = 10_000_000
        [limits]
        heartbeat = 7
        [users.anna]
        password_hash = "{hash_password("secret")}"
        permissions.staging = {{ }}
        """
    )
    with running("--config", str(config)) as (_, url):
        client = RawClient(url, opens=False, user="anna", password="secret", host="staging")
        client.start_ok()
        assert client.tune_ok().heartbeat == 7
        client.call(0, commands.Connection.Open, virtual_host="staging")
        client.channel(1)
        client.declare("q", durable=True)
        client.close()
        stranger = RawClient(url, opens=False)
        stranger.start_ok()
        assert stranger.connection_error()[0] == 403
    assert (tmp_path / "data").is_dir()


def test_a_port_for_tls_beside_the_plain_one(certificates: Path, tmp_path: Path) -> None:
    """`port` in [tls], or --tls-port, is one beside that of [listen]; both are said, and both are served."""
    config = tmp_path / "broker.toml"
    tls = f'[tls]\ncertificate = "{certificates}/localhost.pem"\nkey = "{certificates}/localhost.key"\n'
    for text, options in ((tls + "port = 0\n", ()), (tls, ("--tls-port", "0"))):
        config.write_text(text)
        with running("--config", str(config), *options) as (_, url):
            RawClient(url).close()
            (port,) = re.findall(r" and, with TLS, 127\.0\.0\.1:(\d+);", SAID[-1])
            TlsClient(f"amqps://guest:guest@127.0.0.1:{port}/%2F", trusting(certificates)).start_ok()


def test_a_port_for_tls_without_a_certificate() -> None:
    """The sentence says where the certificate belongs."""
    done = CliRunner().invoke(command, ["--tls-port", "0"])
    assert isinstance(done.exception, ServerError)
    assert "--tls-port needs a configuration with a section [tls]" in str(done.exception)


def test_a_certificate_that_is_not_there(tmp_path: Path) -> None:
    """It is named, with the directory of the file."""
    config = tmp_path / "broker.toml"
    config.write_text('[tls]\ncertificate = "server.pem"\nclient_ca = "ca.pem"\n')
    with pytest.raises(ServerError, match=f"cannot use the certificate {tmp_path / 'server.pem'}: No such file"):
        load_config(config).tls()


@pytest.mark.parametrize("key", [None, "server.key"])
def test_files_for_tls_start_at_the_configuration(tmp_path: Path, key: str | None) -> None:
    """AMQP and HTTP get the same certificate and key, from the directory of the file."""
    config = tmp_path / "broker.toml"
    config.write_text('[tls]\ncertificate = "server.pem"\n' + (f'key = "{key}"\n' if key else ""))
    files = str(tmp_path / "server.pem"), None if key is None else str(tmp_path / key)
    assert load_config(config).tls_files == files
    assert load_config(None).tls_files is None


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/\n", {"memory.max": "1000000"}, 1_000_000),
        ("0::/system.slice/mq.service\n", {"system.slice/memory.max": "3000000", "memory.max": "max"}, 3_000_000),
        (
            "0::/a/b\n",
            {"a/b/memory.max": "max", "a/memory.max": "2000000", "memory.max": "5000000"},
            2_000_000,
        ),
        ("4:cpu,memory:/docker/1\n0::/x\n", {"memory/memory.limit_in_bytes": "4000000"}, 4_000_000),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, None),
        ("0::/\n", {"memory.max": "max"}, None),
        ("0::/\n", {}, None),
        ("nonsense\n", {"memory.max": "1000"}, None),
        ("", {"memory.max": "1000"}, None),
    ],
)
def test_the_limit_of_a_container_counts(
    tmp_path: Path, groups: str, limits: dict[str, str], expected: int | None
) -> None:
    """A process in a container or a service has the memory that its control groups leave it, else the machine's."""
    (tmp_path / "own").write_text(groups)
    for name, limit in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{limit}\n")
    machine = memory_of_machine(tmp_path / "none", tmp_path / "none")
    assert memory_of_machine(tmp_path, tmp_path / "own") == (machine if expected is None else expected)


def test_the_file_says_whose_rules_hold(tmp_path: Path) -> None:
    """`compat` and the deprecated features that are permitted; what is unknown is named beside what is known."""
    path = tmp_path / "broker.toml"
    path.write_text('compat = "3.10"\nconsumer_timeout = 60\n[deprecated_features]\npermit.global_qos = true\n')
    found = load_config(path).file
    assert (found.compat, found.consumer_timeout) == ("3.10", 60.0)
    assert found.deprecated_features.permit == {"global_qos": True}
    assert "'4.3', '3.10' or 'lenient'" in complaint(tmp_path, 'compat = "4.2"\n')
    wrong = complaint(tmp_path, "[deprecated_features]\npermit.mirroring = true\n")
    assert "there is no deprecated feature 'mirroring'; one of global_qos, " in wrong
