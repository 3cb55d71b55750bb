"""Programs made up by Hypothesis, run against RabbitMQ and against this project's server, must see the same.

What is meant to differ is not made up: an expiration that strikes in the middle of a queue (RabbitMQ notices at its
head), and which message a full queue with priorities drops.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from interop_differential_support import (
    EXCHANGES,
    NEVER_WAS,
    QUEUES,
    Side,
    agree,
    call,
    consume_one,
    get,
    publish,
    recover,
    settle,
)
from pamqp import commands
from rabbitmq_support import Peer, rules

from multiqueue.broker import Broker

Queue, Exchange, Basic = commands.Queue, commands.Exchange, commands.Basic
HOUR = 3_600_000  # milliseconds


def comparable(arguments: dict[str, object]) -> dict[str, object]:
    """Without what is meant to differ: a full queue with priorities drops its lowest here, its highest in RabbitMQ."""
    if "x-max-priority" in arguments:
        arguments = {key: value for key, value in arguments.items() if not key.startswith("x-max-length")}
    if arguments.get("x-dead-letter-exchange") == "":
        arguments = arguments | {"x-dead-letter-routing-key": "q0"}
    return arguments


queues = st.sampled_from(QUEUES)
exchanges = st.sampled_from(EXCHANGES)
anywhere = st.sampled_from(("", *EXCHANGES, "amq.direct", "amq.fanout"))
keys = st.sampled_from(("q0", "q1", "q2", "a", "a.b", "a.*", "#", ""))
flags = st.sampled_from((False, False, True))
kinds = st.sampled_from(("direct", "fanout", "topic", "headers"))
queue_arguments = st.fixed_dictionaries(
    {},
    optional={
        "x-max-length": st.sampled_from((0, 1, 3)),
        "x-max-length-bytes": st.sampled_from((0, 4)),
        "x-overflow": st.sampled_from(("drop-head", "reject-publish", "reject-publish-dlx")),
        "x-dead-letter-exchange": st.sampled_from(("", "x0", "nope")),
        "x-message-ttl": st.just(HOUR),
        "x-max-priority": st.just(2),
        "x-single-active-consumer": st.booleans(),
        "x-unknown": st.just(1),
    },
).map(comparable)
wrong_arguments = st.fixed_dictionaries(
    {},
    optional={
        "x-overflow": st.just("other"),
        "x-max-length": st.sampled_from((-1, "text", 1.5)),
        "x-message-ttl": st.sampled_from((-1, "text")),
        "x-max-priority": st.sampled_from((-1, 300, "text")),
        "x-dead-letter-exchange": st.just(5),
        "x-dead-letter-routing-key": st.sampled_from(("no exchange is named", 5)),
        "x-expires": st.sampled_from((0, "text")),
    },
)
header_arguments = st.fixed_dictionaries(
    {}, optional={"x-match": st.sampled_from(("all", "any", "bad")), "h": st.sampled_from((1, "1", True))}
)
few = st.one_of(st.none(), st.none(), queue_arguments)
headers = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {}, optional={"h": st.sampled_from((1, "1", True)), "CC": st.lists(keys, max_size=2), "BCC": st.lists(queues)}
    ),
)

# Each step as a description that Hypothesis can show, and the function that makes it.
MAKERS = {
    "call": lambda method, fields: call(method, **fields),
    "publish": lambda body, fields: publish(body, **fields),
    "get": lambda queue, no_ack: get(queue, no_ack=no_ack),
    "consume": lambda queue, fields: consume_one(queue, **fields),
    "recover": recover,
    "settle": lambda method, which, fields: settle(method, which, **fields),
}


def calls(method: type, **fields: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.tuples(st.just("call"), st.just(method), st.fixed_dictionaries(fields))


which = st.sampled_from((0, 1, 2, NEVER_WAS))
often = st.sampled_from(("q0", "q0", *QUEUES))
topology = st.one_of(
    calls(Queue.Declare, queue=queues, durable=flags, auto_delete=flags, exclusive=flags, arguments=few),
    calls(Queue.Declare, queue=st.just("wrong"), arguments=wrong_arguments),
    calls(Queue.Declare, queue=queues, passive=st.just(True)),
    calls(Queue.Delete, queue=queues, if_unused=flags, if_empty=flags),
    calls(Queue.Purge, queue=queues),
    calls(Queue.Bind, queue=queues, exchange=anywhere, routing_key=keys, arguments=st.none() | header_arguments),
    calls(Queue.Bind, queue=queues, exchange=exchanges, routing_key=keys),
    calls(Queue.Unbind, queue=queues, exchange=anywhere, routing_key=keys),
    calls(
        Exchange.Declare,
        exchange=exchanges,
        exchange_type=kinds,
        auto_delete=flags,
        internal=flags,
        arguments=st.none() | st.just({"alternate-exchange": "x1"}),
    ),
    calls(Exchange.Declare, exchange=exchanges, exchange_type=kinds),
    calls(Exchange.Declare, exchange=exchanges, passive=st.just(True)),
    calls(Exchange.Delete, exchange=exchanges, if_unused=flags),
    calls(Exchange.Bind, destination=exchanges, source=exchanges, routing_key=keys),
    calls(Exchange.Unbind, destination=exchanges, source=exchanges, routing_key=keys),
)
messages = st.one_of(
    *[
        st.tuples(
            st.just("publish"),
            st.binary(min_size=1, max_size=3),
            st.fixed_dictionaries(
                {"exchange": exchange, "key": key, "mandatory": flags},
                optional={"headers": headers, "priority": st.integers(0, 5), "expiration": expiration},
            ),
        )
        for exchange, key, expiration in (
            (st.just(""), often, st.just("3600000")),
            (st.just(""), often, st.just("3600000")),
            (st.just(""), queues, st.sampled_from(("x", "-1"))),
            (exchanges, keys, st.just("3600000")),
            (anywhere, keys, st.just("3600000")),
        )
    ],
    st.tuples(st.just("get"), often, flags),
    st.tuples(st.just("get"), often, flags),
    st.tuples(
        st.just("consume"),
        often,
        st.fixed_dictionaries({}, optional={"exclusive": st.booleans(), "no_ack": st.just(False)}),
    ),
    st.tuples(st.just("recover"), st.sampled_from((True, True, False))),
    calls(Basic.Qos, prefetch_size=st.sampled_from((0, 1)), prefetch_count=st.integers(0, 2)),
    calls(Basic.Cancel, consumer_tag=st.just("nobody")),
    st.tuples(st.just("settle"), st.just(Basic.Ack), which, st.fixed_dictionaries({"multiple": flags})),
    st.tuples(
        st.just("settle"),
        st.just(Basic.Nack),
        which,
        st.fixed_dictionaries({"multiple": flags, "requeue": st.booleans()}),
    ),
    st.tuples(st.just("settle"), st.just(Basic.Reject), which, st.fixed_dictionaries({"requeue": st.booleans()})),
)


@pytest.fixture(scope="module")
def ports(rabbitmq_peer: Peer) -> Iterator[tuple[int, int]]:
    with Broker(compat=rules()) as broker, broker.listen() as server:
        yield rabbitmq_peer.port, server.port


_programs = itertools.count(1)


def compare(ports: tuple[int, int], program: list[tuple[object, ...]]) -> None:
    prefix = str(next(_programs))
    sides = [Side(port, prefix) for port in ports]
    try:
        for kind, *details in program:
            step = MAKERS[str(kind)](*details)  # type: ignore[operator]
            one, other = (side.do(step) for side in sides)
            note(f"{kind} {details}: {one}")
            assert one == other, f"RabbitMQ saw {one}, the server's client {other}"
            states = agree(*sides)
            assert states[0] == states[1], f"RabbitMQ has {states[0]} ready, the server {states[1]}"
    finally:
        for side in sides:
            side.close()


def settings_for(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        print_blob=False,
        phases=[Phase.generate],  # a smaller program is not worth the minutes: the notes tell every step
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


steps = st.sampled_from((messages, messages, messages, topology)).flatmap(lambda kind: kind)

# A program declares before it does anything else, or it would meet little but 404.
declarations = st.tuples(
    *[calls(Queue.Declare, queue=st.just(queue), durable=flags, arguments=few) for queue in QUEUES],
    *[calls(Exchange.Declare, exchange=st.just(exchange), exchange_type=kinds) for exchange in EXCHANGES],
)
programs = st.tuples(declarations, st.lists(steps, min_size=20, max_size=40)).map(lambda parts: [*parts[0], *parts[1]])


@pytest.mark.slow(selected=True)
@settings_for(20)
@given(program=programs)
def test_programs_see_the_same_on_both(ports: tuple[int, int], program: list[tuple[object, ...]]) -> None:
    """Replies, errors with their codes and causes, what is returned, refused, delivered, and what is left."""
    compare(ports, program)


@pytest.mark.slow
@settings_for(300)
@given(program=programs)
def test_many_programs_see_the_same_on_both(ports: tuple[int, int], program: list[tuple[object, ...]]) -> None:
    """The same, for minutes."""
    compare(ports, program)
