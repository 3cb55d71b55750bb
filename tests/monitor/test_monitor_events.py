"""Streams of events: what a look would answer, again when it changes, to those who may look."""

from __future__ import annotations

import base64
import http.client
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, cast
from urllib.parse import quote, urlsplit

import pytest
from monitor_parts_support import _events
from monitor_support import Client

from multiqueue.broker import Broker, Message

QUEUE = "/api/queues/%2F/orders?columns=messages"


class Stream:
    """Reads a stream's events. A read that takes longer than a minute fails."""

    def __init__(self, client: Client, *looks: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(client.url).netloc, timeout=60)
        query = "&".join(f"look={quote(look, safe='')}" for look in looks)
        login = base64.b64encode(str(client.user).encode()).decode()
        self._connection.request("GET", f"/api/events?{query}", headers={"authorization": f"Basic {login}"})
        self.reply = self._connection.getresponse()

    def event(self) -> tuple[str, Any]:
        """The next event's name and content; ("", None) at the end."""
        lines = []
        while line := self.reply.readline().decode().rstrip("\n"):
            lines.append(line.partition(": ")[2])
        return (lines[0], json.loads(lines[1])) if lines else ("", None)

    def until(self, name: str, wanted: Callable[[Any], object] = lambda _: True) -> list[tuple[str, Any]]:
        """All events up to the first of this name with this content."""
        events = [self.event()]
        while events[-1][0] != name or not wanted(events[-1][1]):
            assert events[-1][0], events
            events.append(self.event())
        return events

    def close(self) -> None:
        self.reply.close()
        self._connection.close()


@pytest.fixture
def stream(client: Client) -> Iterator[Callable[..., Stream]]:
    opened: list[Stream] = []

    def open_(*looks: str, of: Client = client) -> Stream:
        opened.append(Stream(of, *looks))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.mark.usefixtures("many_samples")
def test_a_stream_tells_what_a_look_answers_and_again_when_it_changes(
    client: Client, broker: Broker, stream: Callable[..., Stream]
) -> None:
    """The first event of a look is its answer; the next comes with a change, and none between. (monitor 9)"""
    broker.declare_queue("orders")
    reading = stream(QUEUE, "/api/whoami")
    assert reading.reply.getheader("content-type") == "text/event-stream"
    assert reading.until("tick")[:2] == [("0", {"messages": 0}), ("1", client.get("/api/whoami"))]
    assert [name for name, _ in reading.until("tick")] == ["tick"]
    broker.publish(Message(b"tea", routing_key="orders"))
    told = reading.until("0")
    assert told[-1] == ("0", {"messages": 1})
    assert {name for name, _ in told[:-1]} <= {"tick"}


def test_a_stream_shows_what_its_user_may_see_alone(client: Client, stream: Callable[..., Stream]) -> None:
    """A look that a GET would refuse is refused inside the stream, with the same words. (monitor 9)"""
    assert client("PUT", "/api/users/m", {"password": "secret", "tags": "management"}).status == 201
    manager = client.as_user("m:secret")
    (name, told), *_ = stream("/api/nodes", of=manager).until("tick")
    refused = manager("GET", "/api/nodes")
    assert (name, told) == ("0", {"status": refused.status, **refused.json})


@pytest.mark.parametrize("path", ["/api/aliveness-test/%2F", "/api/definitions", "/api/queues/%2F/orders/messages"])
def test_a_stream_repeats_samples_and_nothing_else(broker: Broker, stream: Callable[..., Stream], path: str) -> None:
    """Requests that publish, export or read messages are no looks of a stream."""
    broker.declare_queue("orders")
    assert stream(path).until("tick")[0][1]["status"] == 404


@pytest.mark.parametrize(
    "query", ["", "look=", "look=http://evil.example/", "look=/api/overview&" * 9, f"look=/api/{'x' * 3000}"]
)
def test_a_stream_without_good_looks_is_refused(client: Client, query: str) -> None:
    """None, too many, too long or elsewhere: a 400 with its reason. (monitor 7)"""
    reply = client("GET", f"/api/events?{query}")
    assert reply.status == 400
    assert reply.json["reason"]


def test_a_stream_is_for_users(client: Client) -> None:
    """Without a password there is none, and none is posted. (monitor 1)"""
    assert client.as_user(None)("GET", "/api/events?look=/api/overview").status == 401
    assert client("POST", "/api/events?look=/api/overview", {}).status == 405


@pytest.mark.usefixtures("many_samples")
@pytest.mark.parametrize(
    ("method", "body"), [("DELETE", None), ("PUT", {"password": "other", "tags": "administrator"})]
)
def test_a_user_that_is_gone_is_told_no_more(
    client: Client, stream: Callable[..., Stream], method: str, body: object
) -> None:
    """A stream ends when its user is removed, or has another password. (monitor 9)"""
    client("PUT", "/api/users/ada", {"password": "secret", "tags": "administrator"})
    reading = stream("/api/whoami", of=client.as_user("ada:secret"))
    reading.until("tick")
    assert client(method, "/api/users/ada", body).status == 204
    reading.until("end")
    assert reading.event() == ("", None)


@pytest.mark.usefixtures("many_samples")
def test_a_user_with_other_tags_is_told_no_more(client: Client, stream: Callable[..., Stream]) -> None:
    """A stream ends when its user's tags change and nothing else does. (monitor 9)"""
    client("PUT", "/api/users/ada", {"password": "secret", "tags": "administrator"})
    reading = stream("/api/whoami", of=client.as_user("ada:secret"))
    reading.until("tick")
    known = client.get("/api/users/ada")  # with its hash: a password anew would have another salt
    assert client("PUT", "/api/users/ada", {**known, "tags": "monitoring"}).status == 204
    told = [reading.event()[0] for _ in range(20)]  # samples are many: a stream that went on would tick
    assert "end" in told
    assert told[-1] == ""


@pytest.mark.parametrize("bound", ["_STREAMS", "_STREAMS_OF_ONE"])
def test_there_are_so_many_streams_and_no_more(
    client: Client, stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """A user has a share: one more is refused with 503, and requests go on; one that ends makes room. (monitor 7)"""
    assert client("PUT", "/api/users/ada", {"password": "secret", "tags": "management"}).status == 201
    monkeypatch.setattr(_events, bound, 2)
    first, second = stream("/api/whoami"), stream("/api/whoami")
    first.until("tick")
    second.until("tick")
    assert stream("/api/whoami").reply.status == 503
    assert client("GET", "/api/whoami").status == 200
    assert stream("/api/whoami", of=client.as_user("ada:secret")).reply.status == (503 if bound == "_STREAMS" else 200)
    first.close()
    while (third := stream("/api/whoami")).reply.status == 503:  # until the server has heard of the end
        third.close()
    third.until("tick")


def test_streams_end_with_the_server(broker: Broker, server: Any, stream: Callable[..., Stream]) -> None:
    """Closing the server ends streams whose readers are still there, and its threads. (monitor 8)"""
    http = broker.listen_http(amqp=server)
    reading = stream("/api/overview", of=Client(http.url))
    reading.until("tick")
    http.close()
    while reading.event()[0]:
        pass


def test_those_who_look_at_the_same_share_an_answer(
    broker: Broker, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two streams of one user cost one answer for each sample, but where both ask in the same moment. (monitor 3)"""
    asked: list[tuple[_events.Events, Any, _events.Look]] = []
    answer = _events.Events._answer

    def counting(self: _events.Events, user: Any, look: _events.Look) -> str:
        asked.append((self, user, look))
        return answer(self, user, look)

    monkeypatch.setattr(_events.Events, "_answer", counting)
    http = broker.listen_http(amqp=server)
    stream = Stream(Client(http.url), "/api/overview")
    stream.until("tick")
    stream.close()
    http.close()  # from here on nobody else asks
    (events, user, look), pair = asked[0], cast(Any, object())  # some sample
    asked.clear()
    first, second = events._answers(pair, user, [look]), events._answers(pair, user, [look])
    assert first == second
    assert len(asked) == 1
    events._answers(cast(Any, object()), user, [look])
    assert len(asked) == 2


# -- the page's files


def test_the_page_is_for_everybody_and_says_nothing(client: Client, broker: Broker) -> None:
    """Its files need no password, name no other host, and hold nothing of the broker. (monitor 10)"""
    broker.declare_queue("a-secret-name")
    stranger = client.as_user(None)
    page = stranger("GET", "/")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    names = re.findall(r'(?:href|src)="(/[^"]+)"', page.text)
    assert len(names) >= 3
    scripts = {"/page/app.js"}
    while new := scripts - set(names):
        names += new
        for name in new:
            scripts |= {f"/page/{each}" for each in re.findall(r'from "\./([a-z]+\.js)"', stranger("GET", name).text)}
    for name in names:
        found = stranger("GET", name)
        assert found.status == 200, name
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", found.text), name
        assert "a-secret-name" not in found.text
    for name in ("/page/", "/page/../_server/app.py", "/page/%2e%2e/_server/app.py", "/page/nope.js"):
        assert stranger("GET", name).status == 404


def test_a_browser_is_told_to_run_nothing_else(client: Client) -> None:
    """The policy allows this server's files alone: no script or style inside a page, no frame around it. (monitor 6)"""
    policy = client.as_user(None)("GET", "/").headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    text = client.as_user(None)("GET", "/").text
    assert not re.search(r"<style|\bstyle=|\bon[a-z]+=|<script(?![^>]*src=)", text)


def test_pages_of_the_dashboard(client: Client) -> None:
    """Which pages there are, and what the user may do in them, is a look of its own."""
    everything = {"/": ["configure", "write", "read"]}
    pages = ["overview", "queues", "exchanges", "connections", "channels"]
    assert client.get("/api/windows") == {"pages": [*pages, "admin"], "tags": ["administrator"], "rights": everything}
    assert client("PUT", "/api/users/ada", {"password": "secret", "tags": "monitoring"}).status == 201
    ada = client.as_user("ada:secret")
    assert ada.get("/api/windows") == {"pages": pages, "tags": ["monitoring"], "rights": {}}
    may = {"configure": "", "write": "^$", "read": "a"}
    assert client("PUT", "/api/permissions/%2F/ada", may).status == 201
    assert ada.get("/api/windows")["rights"] == {"/": ["read"]}
    assert client("POST", "/", {}).status == 405
