"""The shell commands: a broker's queues, users and definitions without a program."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from monitor_parts_support import field, table
from monitor_support import Client

from multiqueue.broker import Broker, Message
from multiqueue.cli import main


@pytest.fixture
def shell(client: Client) -> Any:
    """Runs `multiqueue ...` against the broker of the test."""
    url = client.url.replace("http://", "http://guest:guest@")

    def run(*words: str, expect: int = 0, **settings: Any) -> Result:
        result = CliRunner().invoke(main, list(words), env={"MULTIQUEUE_HTTP_URL": url}, **settings)
        assert result.exit_code == expect, result.output
        assert "Traceback" not in result.output
        return result

    return run


def test_a_queue_from_declaration_to_deletion(shell: Any, broker: Broker) -> None:
    """Declare, look, move, purge and delete do what they say, and say what they did."""
    shell("queue", "declare", "orders", "--durable", "--arguments", '{"x-max-length": 10}')
    shell("queue", "declare", "dead")
    for body in (b"tea", b"cake"):
        broker.publish(Message(body, routing_key="dead"))
    peeked = shell("queue", "peek", "dead", "--count", "1").output
    assert "tea" in peeked
    assert "cake" not in peeked
    assert shell("queue", "move", "dead", "orders", "--count", "1").output == "1 message moved\n"
    assert shell("queue", "move", "dead", "orders").output == "1 message moved\n"
    lines = shell("queue", "list").output.splitlines()
    assert lines[0].split() == ["name", "vhost", "ready", "unacked", "consumers"]
    assert [line.split()[0] for line in lines[1:]] == ["dead", "orders"]
    assert lines[2].split()[2:] == ["2", "0", "0"]
    shown = shell("queue", "show", "orders").output
    assert "2 ready, 0 unacked" in shown
    assert "x-max-length  10" in shown
    shell("queue", "delete", "orders", "--if-empty", expect=1)
    shell("queue", "purge", "orders")
    shell("queue", "delete", "orders", "--if-empty")
    assert [each["name"] for each in json.loads(shell("queue", "list", "--json").output)] == ["dead"]


def test_exchanges_and_bindings(shell: Any) -> None:
    """A binding is added and removed by its key; a key that is not there is named."""
    shell("exchange", "declare", "logs", "--type", "topic")
    shell("queue", "declare", "q")
    shell("binding", "add", "logs", "q", "--key", "a.*")
    assert shell("binding", "list").output.splitlines()[1].split() == ["logs", "a.*", "q", "queue"]
    assert "not bound" in shell("binding", "delete", "logs", "q", "--key", "b", expect=2).stderr
    shell("binding", "delete", "logs", "q", "--key", "a.*")
    shell("exchange", "delete", "logs")
    assert "logs" not in shell("exchange", "list").output


def test_users_and_their_permissions(shell: Any, client: Client) -> None:
    """A user is added with a password from standard input, changed and deleted; a second of the name is refused."""
    shell("user", "add", "ada", "--tag", "monitoring", input="lovelace\n")
    assert client.as_user("ada:lovelace").get("/api/whoami")["tags"] == ["monitoring"]
    assert "there is a user 'ada'" in shell("user", "add", "ada", input="x\n", expect=2).stderr
    assert "no password" in shell("user", "password", "ada", input="", expect=2).stderr
    shell("user", "password", "ada", input="byron\n")
    assert client.as_user("ada:byron").get("/api/whoami")["tags"] == ["monitoring"]
    assert "--read: missing" in shell("user", "permissions", "ada", "--configure", ".*", "--write", "", expect=2).stderr
    shell("user", "permissions", "ada", "--configure", "^a", "--write", ".*", "--read", ".*")
    assert shell("user", "permissions", "ada").output.splitlines()[1].split() == ["/", "^a", ".*", ".*"]
    shell("user", "delete", "ada")
    assert "ada" not in shell("user", "list").output


def test_definitions_go_out_and_in(shell: Any, tmp_path: Path) -> None:
    """What was exported is imported; what is no JSON is refused with its name."""
    shell("queue", "declare", "kept", "--durable")
    shell("definitions", "export", str(tmp_path / "d.json"))
    shell("queue", "delete", "kept")
    shell("definitions", "import", str(tmp_path / "d.json"))
    assert "kept" in shell("queue", "list").output
    shell("definitions", "import", "-", input=shell("definitions", "export").output)
    assert "no JSON" in shell("definitions", "import", "-", input="{", expect=2).stderr
    policy = {"policies": [{"name": "ha", "vhost": "/"}]}
    assert "left out: policy 'ha'" in shell("definitions", "import", "-", input=json.dumps(policy), expect=1).stderr


def test_definitions_with_a_byte_order_mark(shell: Any, tmp_path: Path) -> None:
    """A file that an editor has begun with a byte order mark is loaded as one without."""
    (tmp_path / "d.json").write_text('{"vhosts": [{"name": "v"}]}', encoding="utf-8-sig")
    shell("definitions", "import", str(tmp_path / "d.json"))
    assert json.loads(shell("definitions", "export").output)["vhosts"][-1] == {"name": "v"}


def test_top_needs_a_terminal(shell: Any) -> None:
    """Without a terminal `top` says so, and names the commands that need none."""
    assert "`top` needs a terminal; `status` and" in shell("top", expect=2).stderr


def test_the_whole_in_three_lines(shell: Any, broker: Broker) -> None:
    """`status` says what is there, in singular and plural."""
    broker.declare_queue("one")
    lines = shell("status").output.splitlines()
    assert len(lines) == 3
    assert "0 connections, 0 channels, 0 consumers, 1 queue" in lines[1]
    assert json.loads(shell("status", "--json").output)["object_totals"]["queues"] == 1


@pytest.mark.parametrize("url", ["127.0.0.1", "ftp://x", "http://", "http://x:port", ""])
def test_a_url_that_is_none_is_told(url: str) -> None:
    """The sentence shows one that is."""
    result = CliRunner().invoke(main, ["queue", "list", "--url", url])
    assert result.exit_code == 2
    assert "15672" in result.stderr


def test_nobody_there_and_somebody_else(shell: Any) -> None:
    """No listener, a server that speaks no HTTP, and a wrong password are three sentences."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert "no answer" in shell("queue", "list", "--url", nobody, expect=2).stderr
    with Broker() as other, other.listen() as amqp:
        assert (
            "no broker's HTTP API" in shell("queue", "list", "--url", f"http://127.0.0.1:{amqp.port}", expect=2).stderr
        )


def test_what_the_broker_refuses_is_said_in_its_words(shell: Any, client: Client) -> None:
    """A queue that is not there, other arguments, a wrong password: status 1."""
    for words, lacking in [
        (("queue", "purge", "nope"), "no queue 'nope' in virtual host '/', or no such host"),
        (("queue", "show", "nope", "--vhost", "v"), "no queue 'nope' in virtual host 'v', or no such host"),
        (("queue", "list", "--vhost", "v"), "no virtual host 'v'"),
        (("exchange", "delete", "nope"), "no exchange 'nope' in virtual host '/'"),
        (("user", "delete", "nope"), "no user 'nope'"),
        (("connection", "close", "nope"), "no connection 'nope'"),
    ]:
        assert f"refuses: 404 {lacking}" in shell(*words, expect=1).stderr
    shell("queue", "declare", "q")
    assert "404 no queue 'r' in vhost '/'" in shell("queue", "move", "q", "r", expect=1).stderr
    assert "a name is empty: 'queues///'; give one" in shell("queue", "declare", "", expect=2).stderr
    assert "inequivalent arg 'durable'" in shell("queue", "declare", "q", "--durable", expect=1).stderr
    wrong = client.url.replace("http://", "http://guest:wrong@")
    assert "refuses the user and password" in shell("queue", "list", "--url", wrong, expect=1).stderr
    assert "JSON object" in shell("queue", "declare", "r", "--arguments", "[]", expect=2).stderr


def test_numbers_stay_whole_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 40 columns a long name is shortened in the middle, and a million is a million."""
    monkeypatch.setenv("COLUMNS", "40")
    rows = [{"name": "a-very-long-name-of-a-queue-in-a-department", "ready": 1_000_000, "unacked": 12}]
    columns = (field("name"), field("ready", is_number=True), field("unacked", is_number=True))
    lines = list(table(rows, columns, "queue"))
    assert max(map(len, lines)) <= 40
    assert lines[1].split()[1:] == ["1,000,000", "12"]
    assert "…" in lines[1]


def test_an_empty_table_says_so() -> None:
    """Titles, and that there is nothing."""
    assert list(table([], (field("name"),), "queue")) == ["name", "0 queues"]
