"""The shell commands: a broker's queues, users and definitions without a program."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from monitor_parts_support import Api, _watch, field, table
from monitor_support import Client

from multiqueue import MultiQueueExecutor
from multiqueue.broker import Broker, Message
from multiqueue.cli import main
from multiqueue.monitor import Lanes, serve_lanes


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
    assert lines[0].split() == ["name", "vhost", "kind", "ready", "unacked", "consumers"]
    assert [line.split()[0] for line in lines[1:]] == ["dead", "orders"]
    assert lines[2].split()[2:] == ["2", "0", "0"]
    shown = shell("queue", "show", "orders").output
    assert "2 ready, 0 unacked" in shown
    assert "x-max-length  10" in shown
    shell("queue", "delete", "orders", "--if-empty", expect=1)
    shell("queue", "purge", "orders")
    shell("queue", "delete", "orders", "--if-empty")
    assert [each["name"] for each in json.loads(shell("queue", "list", "--json").output)] == ["dead"]


def test_policies(shell: Any) -> None:
    """They are set, listed and cleared; what cannot be is refused in a sentence."""
    shell("queue", "declare", "jobs.mail")
    shell("policy", "set", "jobs", "^jobs", '{"max-length": 5}', "--apply-to", "queues")
    shell("policy", "set", "most", "^jobs", '{"max-length": 3}', "--operator")
    assert shell("policy", "list").output.splitlines()[1].split()[:5] == ["/", "jobs", "^jobs", "queues", "0"]
    assert "most" in shell("policy", "list", "--operator").output
    assert '"max-length": 3' in shell("queue", "show", "jobs.mail", "--json").output
    assert "nonsense are not recognised" in shell("policy", "set", "x", "", '{"nonsense": 1}', expect=1).stderr
    assert "JSON object" in shell("policy", "set", "x", "", "[]", expect=2).stderr
    shell("policy", "clear", "jobs")
    assert "no policy 'jobs' in virtual host '/'" in shell("policy", "clear", "jobs", expect=1).stderr


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
    assert "not JSON" in shell("definitions", "import", "-", input="{", expect=2).stderr
    policy = {"policies": [{"name": "ha", "vhost": "/", "pattern": "", "definition": {"ha-mode": "all"}}]}
    assert "left out: policy 'ha'" in shell("definitions", "import", "-", input=json.dumps(policy), expect=1).stderr


def test_definitions_with_a_byte_order_mark(shell: Any, tmp_path: Path) -> None:
    """A file that an editor has begun with a byte order mark is loaded as one without."""
    (tmp_path / "d.json").write_text('{"vhosts": [{"name": "v"}]}', encoding="utf-8-sig")
    shell("definitions", "import", str(tmp_path / "d.json"))
    assert json.loads(shell("definitions", "export").output)["vhosts"][-1]["name"] == "v"


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
            "has no HTTP API of a broker"
            in shell("queue", "list", "--url", f"http://127.0.0.1:{amqp.port}", expect=2).stderr
        )


def test_what_the_broker_refuses_is_said_in_its_words(shell: Any, client: Client) -> None:
    """A queue that is not there, other arguments, a wrong password: status 1."""
    for words, lacking in [
        (("queue", "purge", "nope"), "no queue 'nope' in virtual host '/', or no such virtual host"),
        (("queue", "show", "nope", "--vhost", "v"), "no queue 'nope' in virtual host 'v', or no such virtual host"),
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
    assert list(table([], (field("name"),), "operator policy")) == ["name", "0 operator policies"]


def test_wide_characters_take_two_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names in Chinese or with accents of their own character stand in columns as wide as a terminal shows them."""
    monkeypatch.setenv("COLUMNS", "20")
    rows = [{"name": "注文の受付と発送の順番待ち", "messages": 7}, {"name": "cafe\u0301", "messages": 8}]
    lines = list(table(rows, (field("name"), field("messages", "messages", is_number=True)), "queue"))
    assert lines == ["name        messages", "注文…待ち          7", "cafe\u0301" + " " * 15 + "8"]


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What is done between the tables of a `--watch`, one after another; Ctrl-C is pressed at the end."""
    steps: list[Callable[[], object]] = []

    def pause(seconds: float) -> None:
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    monkeypatch.setattr(_watch, "_pause", pause)
    return steps


def tables(result: Result) -> list[list[list[str]]]:
    """The rows of each table that was drawn, without titles."""
    return [[line.split() for line in each.splitlines()[1:]] for each in result.stdout.split("\n\n") if each.strip()]


def test_a_watched_list_shows_what_changes(shell: Any, broker: Broker, moments: list[Callable[[], object]]) -> None:
    """A table follows another; the broker sorts and filters; Ctrl-C ends it with status 0; `top` is the same."""
    for name, count in (("a", 1), ("b", 3), ("other", 2)):
        broker.declare_queue(name)
        for _ in range(count):
            broker.publish(Message(b"", routing_key=name))
    moments.append(lambda: broker.publish(Message(b"", routing_key="other")))
    first, second = tables(shell("queue", "list", "--watch", "--sort", "ready"))
    assert [row[0] for row in first] == ["b", "other", "a"]
    assert first[0][:4] == ["b", "/", "3", "0"]
    assert "other" in [row[0] for row in second]
    ((row,),) = tables(shell("top", "--name", "ot"))
    assert row[0] == "other"
    assert shell("top").stdout == shell("queue", "list", "--watch", "--vhost", "/").stdout
    assert "'ready', 'unacked'" in shell("top", "--sort", "length", expect=2).stderr


def test_a_watch_goes_on_when_a_broker_does_not_answer(
    shell: Any, broker: Broker, moments: list[Callable[[], object]]
) -> None:
    """The sentence stands where the table was; a broker that is not there from the start ends it with status 2."""
    moments.append(broker.close)
    answer, refused = shell("top").stdout.split("\n\n")[:2]
    assert "0 queues" in answer
    assert "no answer from http://127.0.0.1" in refused
    assert "no answer" in shell("top", "--url", "http://127.0.0.1:1", expect=2).stderr


def test_a_terminal_is_drawn_over(
    shell: Any, client: Client, moments: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal each table takes the place of the one before, and has no more lines than the terminal."""
    shown: list[str] = []
    monkeypatch.setattr(_watch.sys, "stdout", Terminal())
    monkeypatch.setattr(_watch.click, "clear", lambda: shown.append("clear"))
    monkeypatch.setattr(_watch.click, "echo", lambda text, nl: shown.append(text))
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "3")
    for name in ("first", "second", "third"):
        shell("queue", "declare", name)
    moments.append(int)
    _watch.watch(_watch.QUEUES, Api(client.url.replace("http://", "http://guest:guest@")), None, "")
    assert len(shown) == 3
    assert shown[0] == "clear"
    assert shown[2].startswith("\x1b[Hname")
    assert shown[2].endswith("first          0        0\x1b[K\n\x1b[J") or "first" in shown[2]
    assert "second" not in shown[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("columns", "titles"),
    [
        (40, ["name", "ready", "unacked", "in/s", "out/s"]),
        (80, ["name", "vhost", "kind", "ready", "unacked", "in/s", "out/s", "consumers"]),
    ],
)
def test_a_watched_table_fits_its_terminal(columns: int, titles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are left out before numbers, and the last of these first; what is shown is whole but for the name."""
    monkeypatch.setenv("COLUMNS", str(columns))
    rates = {"publish_details": {"rate": 1234.4}, "deliver_get_details": {"rate": 0.0}}
    row = {"name": "a-very-long-name-of-a-queue-in-a-department", "vhost": "/", "messages_ready": 12, "consumers": 1}
    lines = list(table([{**row, "message_stats": rates}], _watch.QUEUES.columns, "queue", drops=True))
    assert max(map(len, lines)) <= columns
    assert lines[0].split() == titles
    assert "1,234" in lines[1]


def test_options_of_a_watch_need_one(shell: Any) -> None:
    """`--sort` and `--name` without `--watch`, and `--json` with it, are errors of usage."""
    for words in (("--sort", "name"), ("--name", "a"), ("--watch", "--json")):
        assert "--watch" in shell("connection", "list", *words, expect=2).stderr


def test_lanes_of_a_program_without_a_broker(shell: Any, moments: list[Callable[[], object]]) -> None:
    """They are listed and watched; what such a program has not is no error."""
    watched = Lanes()
    with MultiQueueExecutor(1) as executor, serve_lanes(watched) as http:
        watched.watch("nightly", executor)
        executor.lane("acme").submit(int).result()
        where = ("--url", http.url.replace("http://", "http://guest:guest@"))
        row = ["acme", "0", "0", "1", "0", "nightly"]
        assert shell("lane", "list", *where).stdout.splitlines()[1].split() == row
        assert tables(shell("lane", "list", "--watch", "--sort", "done", "--name", "ac", *where)) == [[row]]
        assert tables(shell("lane", "list", "--watch", "--name", "x", *where)) == [[["0", "lanes"]]]
