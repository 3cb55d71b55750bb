"""Requests that no client should send: each is answered, none with an error of ours, and the broker goes on."""

from __future__ import annotations

import http.client
import json
import logging
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_support import examples
from monitor_support import Client

from multiqueue.amqp import User
from multiqueue.broker import Broker
from multiqueue.testing import PATIENCE


def words(text: str) -> list[str]:
    return re.findall(r"\S+", text)


LOGIN = "Basic " + b64encode(b"root:secret").decode()
METHODS = words("GET PUT POST DELETE PATCH HEAD OPTIONS")
KEYS = words(
    """name vhost durable auto_delete exclusive internal type arguments source destination destination_type routing_key
    headers delivery_mode expiration priority timestamp user_id x-max-length x-queue-type x-dead-letter-exchange
    x-message-ttl x-queue-kind alternate-exchange x-match x-selector policies parameters users queues vhosts"""
)
# The keys of bodies that are understood, so that their values are looked at.
SHAPES = [
    words(text)
    for text in (
        "properties routing_key payload payload_encoding",
        "count ackmode encoding truncate",
        "durable auto_delete arguments",
        "type durable auto_delete internal arguments",
        "routing_key arguments",
        "to count",
        "password password_hash hashing_algorithm tags",
        "configure write read",
        "users vhosts permissions exchanges queues bindings policies parameters global_parameters rabbit_version",
        "users",
    )
]
QUERY = words(
    """page page_size sort sort_reverse columns name use_regex count truncate encoding if-empty if-unused look family
    lengths_age lengths_incr msg_rates_age msg_rates_incr node_stats_age node_stats_incr seconds"""
)
TEXTS = words(
    """orders amq.default amq.direct / * .* ( [] 1 0 -1 true name classic quorum fanout topic headers string base64 auto
    ack_requeue_true ack_requeue_false reject_requeue_true rabbit_password_hashing_sha256 AAAA monitoring /api/queues"""
)
texts = st.sampled_from([*TEXTS, "9" * 30, "x" * 300]) | st.text(max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(
    scalars,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | texts, some, max_size=5),
    max_leaves=12,
)
shaped = st.sampled_from(SHAPES).flatmap(lambda keys: st.fixed_dictionaries({}, optional=dict.fromkeys(keys, values)))
whole = st.sampled_from(SHAPES).flatmap(lambda keys: st.fixed_dictionaries(dict.fromkeys(keys, values)))
bodies = st.none() | st.binary(max_size=40) | (shaped | whole | values).map(json.dumps)
queries = st.dictionaries(st.sampled_from(QUERY), texts, max_size=4)
headers = st.dictionaries(
    st.sampled_from(words("accept origin content-type x-vhost cookie if-none-match range sec-fetch-site")),
    st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=20).map(str.strip),
    max_size=2,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """A broker for all requests, whose configuration has the user that asks: no request takes it away."""
    users = [User.with_password("root", "secret", tags=["administrator"])]
    with Broker() as broker, broker.listen(users=users) as amqp:
        broker.declare_queue("orders")
        broker.declare_exchange("logs", "topic")
        yield broker.listen_http(amqp=amqp)


def ask(server: Any, method: str, path: str, body: Any, more: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=PATIENCE)
    try:
        connection.request(method, path, body, {"authorization": LOGIN, **more})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


@settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=examples(300)
)
@given(data=st.data())
def fuzz(server: Any, data: st.DataObject) -> None:
    routes = [each[:2] for each in server.application._table.routes()]
    known = [*routes, ("/api/events", "POST"), ("/metrics/{x}", "GET"), ("/{x}", "GET")]
    pattern, method = data.draw(st.sampled_from(known))
    parts = [quote(data.draw(texts), safe="") if part.startswith("{") else part for part in pattern.split("/")]
    query = "&".join(f"{name}={quote(text)}" for name, text in data.draw(queries).items())
    method = data.draw(st.sampled_from([method, method, method, *METHODS]))
    path = "/".join(parts) + (f"?{query}" if query else "")
    status, text = ask(server, method, path, data.draw(bodies), data.draw(headers))
    assert status < 500 or (status == 503 and "/health/" in path), (method, path, text)
    assert b"Traceback" not in text


def test_no_request_is_answered_with_an_error_of_ours(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Paths, methods, queries, headers and bodies of all kinds: below 500, no traceback, no hang. (monitor 7)"""
    with caplog.at_level(logging.ERROR):
        fuzz(server)
    assert [record.getMessage() for record in caplog.records] == []
    assert Client(server.url, "root:secret")("GET", "/api/overview").status == 200
