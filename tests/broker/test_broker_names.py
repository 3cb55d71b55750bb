"""Names of the wrong type, or that nothing can have, in every verb of a broker that takes one."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator

import pytest

from multiqueue.broker import Broker, BrokerError, Message, QueueSettings, VirtualHost

NAMES = ("name", "queue", "queues", "exchange", "source", "destination", "routing_key")
GIVEN = {"exchange": "amq.direct", "source": "amq.direct", "destination": "amq.fanout", "callback": print}
CASES = sorted(
    (method, parameter)
    for owner in (Broker, VirtualHost)
    for method, function in inspect.getmembers(owner, inspect.isfunction)
    if not method.startswith("_")
    for parameter, what in inspect.signature(function).parameters.items()
    if parameter in NAMES and "str" in str(what.annotation)
)
WRONG = (5, None, b"x", 1.5, object(), [5])
STRANGE = ("", "x" * 256, "a\0b", "\ud800", "amq.x", "*" * 200)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.declare_queue("q")
        yield broker


def call(broker: Broker, method: str, parameter: str, value: object) -> object:
    """Call a verb with this for one name, and names that are there for the others."""
    target = broker if hasattr(broker, method) else broker.virtual_host()
    function = getattr(target, method)
    needed = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    return function(**{each: GIVEN.get(each, "q") for each in needed} | {parameter: value})


@pytest.mark.parametrize(("method", "parameter"), CASES)
def test_what_is_no_string_is_no_name(broker: Broker, method: str, parameter: str) -> None:
    """A name that is no string raises TypeError, and is not taken for one that nothing has."""
    assert len(CASES) > 30
    for value in WRONG:
        with pytest.raises(TypeError):
            call(broker, method, parameter, value)


@pytest.mark.parametrize(("method", "parameter"), CASES)
def test_a_strange_name_is_refused_or_found_nowhere(broker: Broker, method: str, parameter: str) -> None:
    """Each ends as the verb says, and what was declared can be carried by AMQP."""
    for value in STRANGE:
        with contextlib.suppress(BrokerError, ValueError):
            call(broker, method, parameter, value)
    host = broker.virtual_host()
    for name in [*(each.name for each in host.queues()), *(each.name for each in host.exchanges())]:
        assert len(name.encode()) <= 255
    host.check_invariants()


def test_what_is_not_published_has_no_room(broker: Broker) -> None:
    """`wait_for_room` says what it takes, and so does a declaration by settings."""
    with pytest.raises(TypeError, match="'x' is nothing that was published"):
        broker.wait_for_room("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="QueueSettings are needed"):
        broker.declare_queue("y", settings="durable")  # type: ignore[arg-type]
    assert broker.wait_for_room(broker.publish(Message(b"", routing_key="q")))
    assert broker.declare_queue("y", settings=QueueSettings()).name == "y"
