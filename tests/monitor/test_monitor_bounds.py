"""What bounds each answer in bytes, and each request in what it holds."""

from __future__ import annotations

import base64
import json
import urllib.request
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from broker_parts_support import reader
from hypothesis import given
from hypothesis import strategies as st
from monitor_parts_support import (
    Refused,
    _app,
    _events,
    _held,
    _listing,
    _messages,
    _pieces,
    _views,
    listing,
    page_of_many,
)
from monitor_support import Client

from multiqueue.broker import Broker, Message
from multiqueue.monitor import HttpServer

# -- which bound each route has

OBJECT = "one object, of a fixed number of columns"
CONSUMERS = "one object, with its consumers, which are written one by one"
LIST = "a list that is written object by object"
NOTHING = "an empty list, or no content"
MESSAGES = "bodies of `LARGEST_ANSWER` bytes, read from `_LARGEST_LOOK`"
TENANTS = "at most `LARGEST_COUNT` tenants, of a fixed number of columns"
EXPORT = "definitions, written object by object"
STREAM = "looks of `_LARGEST_ANSWER` bytes each"

BOUNDS = {
    LIST: """
        /api/nodes /api/vhosts /api/users /api/permissions /api/queues /api/queues/{vhost} /api/exchanges
        /api/exchanges/{vhost} /api/bindings /api/bindings/{vhost} /api/connections /api/channels /api/consumers
        /api/consumers/{vhost} /api/vhosts/{vhost}/permissions /api/vhosts/{vhost}/connections
        /api/topic-permissions /api/users/{user}/topic-permissions /api/vhosts/{vhost}/topic-permissions
        /api/topic-permissions/{vhost}/{user} /api/vhost-limits /api/vhost-limits/{vhost} /api/user-limits
        /api/user-limits/{user}
        /api/vhosts/{vhost}/channels /api/users/{user}/permissions /api/queues/{vhost}/{queue}/bindings
        /api/exchanges/{vhost}/{exchange}/bindings/source /api/exchanges/{vhost}/{exchange}/bindings/destination
        /api/bindings/{vhost}/e/{exchange}/q/{queue} /api/bindings/{vhost}/e/{exchange}/e/{destination}
        /api/connections/{name}/channels /api/connections/username/{user} /api/users/without-permissions
        /api/queues/detailed /api/policies /api/policies/{vhost} /api/operator-policies /api/operator-policies/{vhost}
        /api/global-parameters /api/parameters /api/parameters/{component} /api/parameters/{component}/{vhost}
        """,
    MESSAGES: "/api/queues/{vhost}/{queue}/messages /api/queues/{vhost}/{queue}/get",
    TENANTS: "/api/queues/{vhost}/{queue}/tenants",
    EXPORT: "/api/definitions /api/definitions/{vhost}",
    NOTHING: """
        /api/extensions /api/deprecated-features /api/deprecated-features/used
        /api/feature-flags /api/rebalance/queues
                /api/bindings/{vhost}/e/{exchange}/q/{queue} /api/queues/{vhost}/{queue}/contents /api/users/bulk-delete
        /api/vhost-limits/{vhost}/{limit} /api/user-limits/{user}/{limit}
        """,
    CONSUMERS: "/api/queues/{vhost}/{queue} /api/channels/{name}",
    OBJECT: """
        /api/overview /api/auth /api/auth/hash_password/{password} /api/whoami /api/windows /api/cluster-name
        /api/nodes/{node} /api/vhosts/{vhost}
        /api/users/{user} /api/permissions/{vhost}/{user} /api/policies/{vhost}/{name}
        /api/operator-policies/{vhost}/{name} /api/global-parameters/{name}
        /api/parameters/{component}/{vhost}/{name}
        /api/exchanges/{vhost}/{exchange} /api/bindings/{vhost}/e/{exchange}/q/{queue}/{props}
        /api/bindings/{vhost}/e/{exchange}/e/{destination}/{props} /api/connections/{name}
        /api/aliveness-test/{vhost} /api/queues/{vhost}/{queue}/move
        /api/queues/{vhost}/{queue}/tenants/{tenant}
        /api/exchanges/{vhost}/{exchange}/publish /api/version /api/openapi.json
        """,  # and all checks of health
}


def test_each_route_has_a_bound(client: Client, broker: Broker) -> None:
    """A route that is new has no place in the table, and fails here: say what its largest answer is. (monitor 7)"""
    (server,) = [each for each in broker._servers if isinstance(each, HttpServer)]
    known = {path for paths in BOUNDS.values() for path in paths.split()}
    routes = server.application._table.routes()
    assert {path for path, _, _ in routes if not path.startswith("/api/health")} <= known


# -- lists


class _View(dict[str, Any]):
    """A view that can be referred to weakly."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.mark.parametrize(
    "query", [{}, {"sort": "name", "sort_reverse": "true"}, {"sort": "depth"}, {"columns": "name"}]
)
@pytest.mark.parametrize("makes", ["listing", "page_of_many"])
def test_a_long_list_is_never_there_as_a_whole(query: dict[str, str], makes: str) -> None:
    """Of a hundred thousand views as many are in memory as one piece of the answer has."""
    alive: weakref.WeakSet[_View] = weakref.WeakSet()
    most = 0

    def view(number: int) -> dict[str, Any]:
        nonlocal most
        made = _View(vhost="/", name=f"{number:05}", depth=number % 7)
        alive.add(made)
        most = max(most, len(alive))
        return made

    count = 3 * _listing._FEW
    found = (
        listing(range(count), query, view=view)
        if makes == "listing"
        else page_of_many(list(range(count)), query, lambda n: f"{n:05}", view, {"depth": lambda n: n % 7})
    )
    pieces = list(_pieces.json_pieces(found))
    assert len(json.loads(b"".join(pieces))) == count
    assert max(map(len, pieces)) < 2 * _pieces._PIECE
    assert most <= 3


@pytest.mark.parametrize(
    "path", ["/api/consumers", "/api/consumers/%2F", "/api/queues/%2F/orders", "/api/channels/{channel}"]
)
def test_consumers_are_never_there_as_a_whole(
    client: Client, broker: Broker, server: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Of many consumers as many views are in memory as one piece of the answer has."""
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    channel = connection.channel()
    channel.queue_declare("orders")
    for number in range(40):
        channel.basic_consume("orders", lambda *_: None, consumer_tag=f"{number:02}")
    (shown,) = client.get("/api/channels")
    path = path.format(channel=quote(shown["name"], safe=""))
    few = client.get(path)
    alive: weakref.WeakSet[_View] = weakref.WeakSet()
    most = 0

    def counted(make: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        def view(*args: Any) -> dict[str, Any]:
            nonlocal most
            made = _View(make(*args))
            alive.add(made)
            most = max(most, len(alive))
            return made

        return view

    monkeypatch.setattr(_listing, "_FEW", 10)
    monkeypatch.setattr(_views, "_consumer_view", counted(_views._consumer_view))
    many = client.get(path)
    connection.close()
    consumers = many if isinstance(many, list) else many["consumer_details"]
    assert [each["consumer_tag"] for each in consumers] == [f"{number:02}" for number in range(40)]
    assert consumers == (few if isinstance(few, list) else few["consumer_details"])
    assert 0 < most <= 3


CONTENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(CONTENTS)
def test_pieces_are_the_whole(content: Any) -> None:
    """An answer in pieces is the JSON that it would be at once."""
    assert json.loads(_pieces.as_json(content)) == content


@given(st.one_of(st.binary(max_size=300), st.text(max_size=100).map(str.encode)), st.booleans(), st.integers(1, 7))
def test_a_body_in_slices_is_the_whole(raw: bytes, may_be_text: bool, size: int) -> None:
    """As text or in Base64, wherever it is cut into slices."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_pieces, "_SLICE", 3 * size)
        body = _pieces.Payload(raw, may_be_text=may_be_text)
        (written,) = json.loads(_pieces.as_json([_pieces.Parted(payload=body)]))
    text = written["payload"]
    assert (text.encode() if body.encoding == "string" else base64.b64decode(text)) == raw


# -- messages


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer has a thousand bytes of bodies, read from ten thousand."""
    monkeypatch.setattr(_messages, "LARGEST_ANSWER", 1000)
    monkeypatch.setattr(_messages, "_OF_ONE", 0)
    monkeypatch.setattr(_messages, "_LARGEST_LOOK", 10_000)


def filled(broker: Broker, *bodies: bytes) -> None:
    broker.declare_queue("q")
    for body in bodies:
        broker.publish(Message(body, routing_key="q"))


def sizes(found: list[dict[str, Any]]) -> list[int]:
    return [len(each["payload"]) for each in found]


@pytest.mark.usefixtures("small")
def test_a_look_is_cut_by_bytes(client: Client, broker: Broker) -> None:
    """Not by the number of messages alone; a header says so, and each message its whole size. (monitor 7)"""
    filled(broker, *[b"x" * 400] * 5)
    whole = client("GET", "/api/queues/%2F/q/messages?count=2")
    assert (sizes(whole.json), "x-multiqueue-cut" in whole.headers) == ([400, 400], False)
    cut = client("GET", "/api/queues/%2F/q/messages?count=10000")
    assert sizes(cut.json) == [400, 400, 200]
    assert {each["payload_bytes"] for each in cut.json} == {400}
    assert cut.headers["x-multiqueue-cut"].startswith("3 messages")
    short = client("GET", "/api/queues/%2F/q/messages?count=10000&truncate=10")
    assert (sizes(short.json), "x-multiqueue-cut" in short.headers) == ([10] * 5, False)


@pytest.mark.usefixtures("small")
def test_a_look_reads_so_much_and_no_more(client: Client, broker: Broker) -> None:
    """Also where it shows little of each body."""
    filled(broker, *[b"x" * 4000] * 9)
    found = client("GET", "/api/queues/%2F/q/messages?count=10000&truncate=1")
    assert (sizes(found.json), "x-multiqueue-cut" in found.headers) == ([1] * 3, True)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "mode", ["ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"]
)
def test_a_get_takes_what_it_shows(client: Client, broker: Broker, mode: str) -> None:
    """What does not fit into the answer stays on the queue, whole and in its place. (monitor 7)"""
    filled(broker, b"a" * 600, b"b" * 300, b"c" * 300, b"d")
    asked = {"count": 10000, "ackmode": mode, "encoding": "auto"}
    found = client("POST", "/api/queues/%2F/q/get", asked)
    keeps = mode.endswith("requeue_true")
    assert sizes(found.json) == ([600, 300, 100] if keeps else [600, 300])
    assert "x-multiqueue-cut" in found.headers
    left = [bytes(each.body)[:1] for each in broker.queue("q").browse()]
    assert left == ([b"a", b"b", b"c", b"d"] if keeps else [b"c", b"d"])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("mode", ["ack_requeue_false", "reject_requeue_false"])
def test_a_message_too_large_to_be_shown_is_not_destroyed(client: Client, broker: Broker, mode: str) -> None:
    """It stays, and the answer says what to do. (monitor 7)"""
    filled(broker, b"x" * 1001)
    asked = {"count": 1, "ackmode": mode, "encoding": "base64"}
    refused = client("POST", "/api/queues/%2F/q/get", asked)
    assert refused.status == 400
    assert "1001 bytes" in refused.json["reason"]
    assert len(broker.queue("q")) == 1
    (taken,) = client("POST", "/api/queues/%2F/q/get", {**asked, "truncate": 10}).json
    assert taken["payload_bytes"] == 1001
    assert len(broker.queue("q")) == 0


def test_bodies_are_read_from_a_store_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Management never has more of them at once than a few megabytes, however many messages it looks through."""
    monkeypatch.setattr(reader, "_BYTES", 5000)
    most = 0
    bodies = reader.PagedReader._bodies

    def counting(self: Any, headers: Any) -> Any:
        nonlocal most
        found = bodies(self, headers)
        most = max(most, sum(map(len, found.values())))
        return found

    monkeypatch.setattr(reader.PagedReader, "_bodies", counting)
    with Broker(data=tmp_path, memory_limit=1 << 20) as broker:
        broker.declare_queue("q", durable=True)
        wanted = [bytes([number]) * (9000 if number == 50 else 700) for number in range(100)]
        for body in wanted * 20:
            broker.publish_nowait(Message(body, routing_key="q", persistent=True))
        broker.wait_for_commits()
        assert [bytes(each.body) for each in broker.queue("q").browse()] == wanted * 20
        assert len(broker.queue("q").browse(limit_bytes=6999)) == 10
        assert len(broker.queue("q").browse(limit_bytes=0)) == 1
    assert 700 < most <= 9000


# -- what requests hold


def test_requests_hold_so_much_and_no_more() -> None:
    """A user has half; what it holds is given back, also what was refused in the middle."""
    held = _held.Held()
    with held.of("a") as hold:
        hold(_held._ONE)
        with held.of("a") as more, pytest.raises(Refused, match="user 'a' hold"):
            more(1)
        with held.of("b") as other:
            other(_held._ALL - _held._ONE)
            with held.of("c") as third, pytest.raises(Refused, match="requests hold"):
                third(1)
    with held.of("a") as hold:
        hold(_held._ONE)
    assert (held._all, dict(held._bytes)) == (0, {})


def test_a_look_waits_for_no_room(client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others' answers hold all, it is refused, and nothing is taken from the queue. (monitor 7)"""
    filled(broker, b"tea")
    monkeypatch.setattr(_held, "_ONE", _messages.LARGEST_ANSWER - 1)
    asked = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    for reply in (client("GET", "/api/queues/%2F/q/messages"), client("POST", "/api/queues/%2F/q/get", asked)):
        assert (reply.status, reply.json["error"]) == (503, "too_much_at_once")
    assert len(broker.queue("q")) == 1


def test_a_large_body_is_an_administrators(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitions of megabytes are imported; other bodies are smaller. (monitor 7)"""
    monkeypatch.setattr(_app, "LARGEST_BODY", 1000)
    monkeypatch.setattr(_app, "LARGEST_DEFINITIONS", 5000)
    message = {"properties": {}, "routing_key": "q", "payload": "x" * 2000, "payload_encoding": "string"}
    assert client("POST", "/api/exchanges/%2F/amq.default/publish", message).status == 413
    assert client("POST", "/api/definitions", b" " * 2000 + b"{}").status == 204
    assert client("POST", "/api/definitions", b" " * 6000 + b"{}").status == 413


@pytest.fixture
def many(broker: Broker) -> None:
    for number in range(2500):
        broker.declare_queue(f"q{number:04}")


@pytest.mark.usefixtures("many")
def test_long_answers_come_in_pieces(client: Client) -> None:
    """Lists, metrics and exports of many objects are streamed, and whole. (monitor 7)"""
    for path in ("/api/queues", "/api/bindings", "/api/definitions", "/metrics/per-object"):
        reply = client("GET", path)
        assert reply.headers.get("transfer-encoding") == "chunked", path
        assert reply.text.count("q2499") >= 1
    assert [each["name"] for each in client.get("/api/queues")] == [f"q{number:04}" for number in range(2500)]
    lines = client("GET", "/metrics/per-object").text.splitlines()
    assert len(lines) == len(set(lines))


@pytest.mark.usefixtures("many")
def test_a_look_of_a_stream_has_a_bound(client: Client) -> None:
    """One that is larger is told as refused, with what would be right; the others of the stream go on. (monitor 7)"""
    url = f"{client.url}/api/events?look=/api/queues&look=/api/whoami"
    login = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    with urllib.request.urlopen(urllib.request.Request(url, headers=login), timeout=60) as stream:
        lines = [stream.readline() for _ in range(5)]
    refused = json.loads(lines[1].partition(b": ")[2])
    assert (refused["status"], str(_events._LARGEST_ANSWER) in refused["reason"]) == (413, True)
    assert b"guest" in lines[4]
