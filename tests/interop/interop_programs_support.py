"""Programs made up by Hypothesis: steps of AMQP and HTTP by several connections, and the run of one at two brokers.

What is meant to differ is not made up, where that can be said of a program beforehand; decision 0841 has the table.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from interop_differential_support import (
    EXCHANGES,
    LAG,
    NEVER_WAS,
    QUEUES,
    SHORT,
    Side,
    agree,
    call,
    consume_one,
    enter,
    get,
    http,
    publish,
    recover,
    settle,
)
from pamqp import commands

Queue, Exchange, Basic, Tx = commands.Queue, commands.Exchange, commands.Basic, commands.Tx
HOUR = 3_600_000  # milliseconds
MODES = ("confirms", "transactions", "plain")  # of the connections of a program


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
        "x-max-length": st.sampled_from((1, 3)),  # 0 is meant to differ
        "x-max-length-bytes": st.sampled_from((3, 4)),
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
        {},
        optional={
            "h": st.sampled_from((1, "1", True)),
            "CC": st.lists(keys, max_size=2),
            "BCC": st.lists(queues),
            "odd": st.sampled_from((None, 1.5, -1, 2**40, "", [1, ["a"], {}], {"a": {"b": None}}, Decimal("1.5"))),
        },
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
others = {
    "delivery_mode": st.sampled_from((1, 2)),
    "user_id": st.just("guest"),  # wrong ones beside another error are told in another order
    "reply_to": st.just("back"),
    "message_id": st.just(""),
    "app_id": st.just("an app"),
}
messages = st.one_of(
    *[
        st.tuples(
            st.just("publish"),
            st.binary(min_size=1, max_size=3),
            st.fixed_dictionaries(
                {"exchange": exchange, "key": key, "mandatory": flags},
                optional={"headers": headers, "priority": st.integers(0, 5), "expiration": expiration, **others},
            ),
        )
        for exchange, key, expiration in (
            (st.just(""), often, st.just("3600000")),
            (st.just(""), often, st.just("3600000")),
            (st.just(""), queues, st.sampled_from(("x", "-1"))),
            (st.just(""), often, st.just(SHORT)),
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
tags = st.sampled_from(("c0", "c0", "c1"))
lasting = st.fixed_dictionaries(
    {"no_ack": flags},
    optional={"exclusive": flags, "arguments": st.sampled_from(({"x-priority": 1}, {"x-priority": "a"}, {"x-odd": 1}))},
)
lives = st.one_of(
    st.tuples(st.just("start"), often, tags, lasting),
    st.tuples(st.just("start"), often, tags, lasting),
    calls(Basic.Cancel, consumer_tag=tags),
    calls(Basic.Qos, prefetch_count=st.integers(0, 2), global_=flags),
    calls(Tx.Commit),
    calls(Tx.Commit),
    calls(Tx.Rollback),
    calls(commands.Confirm.Select),
    calls(Tx.Select),
    st.just(("reopen",)),
    st.just(("die",)),
)
_QUEUE_PATHS, _EXCHANGE_PATHS = ("/api/queues/%%2F/{}%s", "/api/exchanges/%%2F/{}%s")
queue_paths = queues.map(lambda name: _QUEUE_PATHS % name)
exchange_paths = exchanges.map(lambda name: _EXCHANGE_PATHS % name)
binding_paths = st.builds("/api/bindings/%2F/e/{{}}{}/q/{{}}{}".format, exchanges, queues)


def asks(method: str, paths: st.SearchStrategy[str], **body: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.tuples(st.just("http"), st.just(method), paths, st.fixed_dictionaries(body) if body else st.none())


requests = st.one_of(
    asks("GET", queue_paths),
    asks("GET", exchange_paths),
    asks("GET", binding_paths),
    asks("GET", exchange_paths.map(lambda path: f"{path}/bindings/source")),
    asks("PUT", queue_paths, durable=flags, auto_delete=flags, arguments=few.map(lambda given: given or {})),
    asks("PUT", queue_paths, arguments=wrong_arguments),
    asks("PUT", exchange_paths, type=kinds, durable=flags, auto_delete=flags, internal=flags),
    asks("DELETE", st.builds("{}{}".format, queue_paths, st.sampled_from(("", "?if-empty=true", "?if-unused=true")))),
    asks("DELETE", exchange_paths),
    asks("POST", binding_paths, routing_key=keys, arguments=st.just({})),
    asks("DELETE", st.builds("{}/{}".format, binding_paths, st.sampled_from(("a", "q0", "~")))),
    asks(
        "POST",
        exchange_paths.map(lambda path: f"{path}/publish"),
        routing_key=keys,
        payload=st.sampled_from(("", "text")),
        payload_encoding=st.sampled_from(("string", "string", "base64")),
        properties=st.sampled_from(({}, {"priority": 1}, {"headers": {"h": 1}})),
    ),
    asks(
        "POST",
        queue_paths.map(lambda path: f"{path}/get"),
        count=st.integers(1, 2),
        ackmode=st.sampled_from(("ack_requeue_true", "ack_requeue_false", "reject_requeue_true")),
        encoding=st.sampled_from(("auto", "base64")),
    ),
)
definitions = st.fixed_dictionaries(
    {},
    optional={
        "max-length": st.sampled_from((1, 3)),
        "max-length-bytes": st.sampled_from((3, 4)),
        "overflow": st.sampled_from(("drop-head", "reject-publish")),
        "dead-letter-exchange": st.sampled_from(("x0", "nope")),
        "message-ttl": st.just(HOUR),
        "expires": st.just(HOUR),
        "delivery-limit": st.just(2),
        "alternate-exchange": st.just("x1"),
    },
)
operators = st.fixed_dictionaries(
    {},
    optional={
        "max-length": st.sampled_from((1, 2)),
        "message-ttl": st.just(HOUR // 2),
        "expires": st.just(HOUR // 2),
        "overflow": st.just("reject-publish"),
    },
)
wrong_definitions = st.sampled_from(
    ({"max-length": "text"}, {"max-length": -1}, {"unknown": 1}, {"overflow": "other"}, {"message-ttl": -1}, {})
)
applied = st.sampled_from(("queues", "classic_queues", "quorum_queues", "exchanges", "all"))
policy_paths = st.sampled_from([f"/api/policies/%2F/{{}}{name}" for name in ("p0", "p1")])
operator_paths = st.sampled_from([f"/api/operator-policies/%2F/{{}}{name}" for name in ("p0", "p1")])


def puts_policies(paths: st.SearchStrategy[str], **body: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """No two have one priority: in RabbitMQ the place of a name in a table of hashes decides between them."""
    return paths.flatmap(
        lambda path: asks(
            "PUT", st.just(path), priority=st.sampled_from((0, 2) if path.endswith("0") else (1, 3)), **body
        )
    )


governing = st.one_of(
    puts_policies(
        policy_paths,
        pattern=st.sampled_from((*QUEUES, "x0")),
        definition=definitions | wrong_definitions,
        **{"apply-to": applied},
    ),
    puts_policies(operator_paths, pattern=queues, definition=operators, **{"apply-to": st.just("queues")}),
    asks("DELETE", st.one_of(policy_paths, operator_paths)),
    asks("GET", st.one_of(policy_paths, operator_paths)),
    asks("GET", queue_paths),
    asks("GET", exchange_paths),
)
MAKERS |= {
    "enter": enter,
    "start": lambda queue, tag, fields: lambda side: side.consume(queue, tag, **side.named(fields)),
    "reopen": lambda: lambda side: side.reopen(),
    "die": lambda: lambda side: side.die(),
    "http": http,
}
Ports = tuple[int, int]  # of AMQP and of HTTP; 0 where there is no HTTP
Program = list[tuple[int, tuple[object, ...]]]  # of each step, which connection makes it, and what
_programs = itertools.count(1)


class Different(AssertionError):
    """The two brokers answered otherwise, or stand elsewhere afterwards."""


def compare(ports: Sequence[Ports], program: Program, tell: Callable[[str], object] = note, lag: float = LAG) -> None:
    """Run a program at both brokers, each step at one and then at the other, and tell of each. Raises Different."""
    prefix = f"{os.getpid()}-{next(_programs)}"
    shown = repr(program)
    is_quorum = "'x-queue-type': 'quorum'" in shown
    declared = [each[2] for _, each in program if each[:2] == ("call", Queue.Declare)]
    keeps = not any(each.get("exclusive") for each in declared)  # else a queue ends with its connection
    back: set[str] = set()  # queues in which messages may wait that came back
    held = False  # such messages may be unsettled
    retries, is_short = "x-delayed-retry-min" in shown, is_short_lived(program)
    has_levels = any("'priority': " in repr(step) for _, step in program if "policies/" not in repr(step))
    watches = any(step[0] not in ("http", "enter") for _, step in program)  # else all is in another virtual host
    brokers = [[Side(amqp, prefix, mode, web, counts_consumers=not is_quorum) for mode in MODES] for amqp, web in ports]
    try:
        for who, (kind, *details) in program:
            if kind in ("http", "enter") and not ports[0][1]:
                continue
            step = MAKERS[str(kind)](*details)  # type: ignore[operator]
            holds = any(side.unsettled for side in brokers[0])
            one, other = (sides[who].do(step) for sides in brokers)
            deadline = time.monotonic() + lag  # RabbitMQ shows some of a queue only after a while
            while one != other and details[:1] == ["GET"] and time.monotonic() < deadline:
                time.sleep(0.01)
                one, other = (sides[who].do(step) for sides in brokers)
            gives_back = _gives_back(kind, details) or "closed" in repr(one)
            if is_quorum and gives_back and (back or held or (has_levels and holds)):
                break  # which is behind which is meant to differ from now on
            commits = is_short and details == [Tx.Commit, {}]
            if SHORT in repr(details) or commits or (retries and gives_back):  # or one may be quicker than the time
                time.sleep(0.1)
            tell(f"{who} {kind} {details}: {one}")
            publishes = kind == "publish" or details == [Tx.Commit, {}]
            if one == ("connection closed", 541, "INTERNAL_ERROR", (0, 0)) and publishes and is_quorum:
                break  # a channel of RabbitMQ that consumed from a quorum queue takes a later one for the same
            if is_short:  # one counts what expired behind the head, the other what is left when that is gone
                one, other = _without(one, "message_count"), _without(other, "message_count")
            if one != other and details == [Tx.Commit, {}] and _ends_otherwise(repr(one), repr(other), shown):
                break
            if one != other:
                raise Different(f"{who} {kind} {details}:\n  RabbitMQ {one}\n  the server {other}")
            if "RESOURCE_ERROR" in repr(one):  # of the commit RabbitMQ has done a part, the server nothing
                break
            if not watches or details[:1] == ["GET"]:
                continue
            states = agree(*brokers, lag)
            if states[0] != states[1] and gives_back and "max-length" in shown and "'start'" in shown:
                break  # several at once for a waiting consumer
            if details == [Tx.Commit, {}] and has_levels and _in_any_order(*states):
                break  # the same, by priority
            if states[0] != states[1]:
                raise Different(f"after {who} {kind} {details}:\n  RabbitMQ {states[0]}\n  the server {states[1]}")
            waiting = {queue for queue, counts in states[0][0].items() if isinstance(counts, tuple) and counts[0]}
            back = waiting if gives_back else back & waiting
            held = any(side.holds_what_came_back for side in brokers[0])
    except BaseException:
        keeps = False
        raise
    finally:
        for sides in brokers:
            for side in reversed(sides):
                side.leave(is_last=side is sides[0], keeps=keeps)
            if ports[0][1]:
                sides[0].clean([path for path in MADE if path.partition("{}")[0] in shown])


def is_short_lived(program: Program) -> bool:
    """Whether messages of a program live for so short that a broker may be late for one."""
    return repr(SHORT) in repr(program)


def _ends_otherwise(one: str, other: str, shown: str) -> bool:
    """Whether a commit ends otherwise at RabbitMQ in one of the ways that are told."""
    if "partial tx" in other:  # several at once for a waiting consumer, of which it refuses only what is left
        return "partial tx" not in one and "reject-publish" in shown and "'start'" in shown
    if "RESOURCE_ERROR" in other:  # a quorum queue is gone that the channel used
        return "CommitOk" in one and "'quorum'" in shown
    return "partial tx" in one and "DELETE" in shown.upper()  # a queue's name was taken again


def _in_any_order(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two states that differ are the same but for the order of deliveries."""
    ones, others = (
        (counts, [{tag: sorted(map(repr, got)) for tag, got in side.items()} for side in sides])
        for counts, sides in (one, other)
    )
    return one != other and ones == others


def _gives_back(kind: object, details: Sequence[object]) -> bool:
    """Whether a step may give messages back to their queues."""
    if kind == "settle":
        return details[0] is not Basic.Ack
    return kind in ("recover", "reopen", "die") or details[:1] in (["POST"], [Tx.Commit])


def settings_for(examples: int, *, derandomize: bool = True) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=derandomize,
        print_blob=False,
        phases=[Phase.generate],  # a smaller program is not worth the minutes: the notes tell every step
        suppress_health_check=list(HealthCheck),
    )


# A user, a virtual host, what the one may do in the other, and connections that try.
hosts = st.sampled_from(("v0", "v0", "v0", "/", "nowhere"))
patterns = st.sampled_from((".*", ".*", "^$", "q0$", "x0$", "amq"))
tunings = st.fixed_dictionaries(
    {},
    optional={
        "frame_max": st.sampled_from((4096, 8191, 8192, 131072, 131073)),
        "channel_max": st.sampled_from((1, 2047, 2048)),
    },
)
doings = st.one_of(
    st.tuples(st.just(Queue.Declare), st.fixed_dictionaries({"queue": queues, "durable": st.just(True)})),
    st.tuples(
        st.just(Queue.Declare),
        st.fixed_dictionaries(
            {
                "queue": queues,
                "durable": st.just(True),
                "arguments": st.sampled_from(
                    ({"x-dead-letter-exchange": "x0"}, {"x-queue-type": "quorum"}, {"x-queue-type": "classic"})
                ),
            }
        ),
    ),
    st.tuples(st.just(Queue.Declare), st.fixed_dictionaries({"queue": queues, "passive": st.just(True)})),
    st.tuples(st.just(Exchange.Declare), st.fixed_dictionaries({"exchange": exchanges, "exchange_type": kinds})),
    st.tuples(
        st.just(Queue.Bind), st.fixed_dictionaries({"queue": queues, "exchange": exchanges, "routing_key": keys})
    ),
    st.tuples(
        st.just(Basic.Publish),
        st.fixed_dictionaries({"exchange": st.sampled_from(("x0", "amq.topic")), "routing_key": keys}),
    ),
    st.tuples(st.just(Queue.Purge), st.fixed_dictionaries({"queue": queues})),
    st.tuples(st.just(Queue.Delete), st.fixed_dictionaries({"queue": queues})),
)
_HOST, _USER = "/api/vhosts/{}v0", "/api/users/{}u0"
_ALLOWED, _TOPICS = "/api/permissions/{}v0/{}u0", "/api/topic-permissions/{}v0/{}u0"
_HOST_LIMITS = st.sampled_from([f"/api/vhost-limits/{{}}v0/{name}" for name in ("max-queues", "max-connections")])
_USER_LIMITS = st.sampled_from([f"/api/user-limits/{{}}u0/{name}" for name in ("max-channels", "max-connections")])
_amounts = st.sampled_from((-1, 0, 1, 2, "text"))
administration = st.one_of(
    asks("PUT", st.just(_HOST), default_queue_type=st.sampled_from(("classic", "quorum", "bad")), description=keys),
    asks("PUT", st.just(_HOST)),
    asks("GET", st.sampled_from((_HOST, _USER, _ALLOWED, _TOPICS))),
    asks("GET", st.sampled_from((f"{_HOST}/permissions", f"{_HOST}/topic-permissions", f"{_USER}/permissions"))),
    asks("GET", st.sampled_from(("/api/vhost-limits/{}v0", "/api/user-limits/{}u0", "/api/queues/{}v0/{}q0"))),
    asks("DELETE", st.sampled_from((_HOST, _USER, _ALLOWED, _TOPICS))),
    asks("PUT", st.just(_USER), password=st.sampled_from(("p", "q")), tags=st.sampled_from(("", "management", "a, b"))),
    asks("PUT", st.just(_ALLOWED), configure=patterns, write=patterns, read=patterns),
    asks("PUT", st.just(_ALLOWED), configure=patterns, write=patterns),
    asks("PUT", st.just(_TOPICS), exchange=st.just("amq.topic"), write=patterns, read=patterns),
    asks("PUT", _HOST_LIMITS, value=_amounts),
    # RabbitMQ counts a channel that it has closed for a while: 9 are not reached.
    asks("PUT", _USER_LIMITS, value=st.sampled_from((-1, 0, 9, "text"))),
    asks("DELETE", st.one_of(_HOST_LIMITS, _USER_LIMITS)),
    asks("PUT", st.just("/api/global-parameters/{}g0"), value=st.sampled_from((1, "a", {"a": [1]}))),
    asks("GET", st.just("/api/global-parameters/{}g0")),
    asks("DELETE", st.just("/api/global-parameters/{}g0")),
)
entering = st.tuples(
    st.just("enter"),
    st.sampled_from(("u0", "u0", "guest", "nobody")),
    st.sampled_from(("p", "p", "q")),
    hosts,
    st.one_of(st.just({}), st.just({}), tunings),
    st.lists(doings, max_size=4),
)
beginnings = st.tuples(
    asks("PUT", st.just(_HOST), default_queue_type=st.sampled_from(("classic", "quorum"))),
    asks("PUT", st.just(_USER), password=st.just("p"), tags=st.just("")),
    asks("PUT", st.just(_ALLOWED), configure=patterns, write=patterns, read=patterns),
)

# What requests make that has to be deleted after a program.
MADE = (
    *(f"/api/{kind}/%2F/{{}}{name}" for kind in ("policies", "operator-policies") for name in ("p0", "p1")),
    *("/api/users/{}u0", "/api/vhosts/{}v0", "/api/global-parameters/{}g0"),
)
steps = st.sampled_from((messages, messages, messages, lives, lives, topology, requests, governing)).flatmap(
    lambda kind: kind
)
who = st.sampled_from((0, 0, 0, 1, 1, 2))

# A program declares before it does anything else, or it would meet little but 404.
declarations = st.tuples(
    *[calls(Queue.Declare, queue=st.just(queue), durable=flags, arguments=few) for queue in QUEUES],
    *[calls(Exchange.Declare, exchange=st.just(exchange), exchange_type=kinds) for exchange in EXCHANGES],
)
quorum_arguments = st.fixed_dictionaries(
    {"x-queue-type": st.just("quorum")},
    optional={
        "x-max-length": st.sampled_from((1, 3)),
        "x-overflow": st.sampled_from(("drop-head", "reject-publish")),
        "x-dead-letter-exchange": st.sampled_from(("x0", "nope")),
        "x-message-ttl": st.just(HOUR),
        "x-single-active-consumer": st.booleans(),
        "x-delivery-limit": st.sampled_from((-1, 0, 1, 3)),
        "x-delayed-retry-type": st.sampled_from(("disabled", "all", "failed", "returned")),
        "x-delayed-retry-min": st.just(50),
    },
)
quorum_declarations = st.tuples(
    *[
        calls(Queue.Declare, queue=st.just(queue), durable=st.just(True), arguments=quorum_arguments)
        for queue in QUEUES[:2]
    ],
    *[calls(Exchange.Declare, exchange=st.just(exchange), exchange_type=kinds) for exchange in EXCHANGES],
)


def programs(length: int, *, fewest: int | None = None, is_classic: bool = False) -> st.SearchStrategy[Program]:
    """Programs of so many steps beside the declarations, or down to the `fewest`, half as many.

    Those that are `is_classic` declare classic queues: quorum queues and administration are compared with 4.3 alone.
    """
    fewest = length // 2 if fewest is None else fewest
    made = st.lists(st.tuples(who, steps), min_size=fewest, max_size=length)
    entered = st.lists(st.tuples(st.just(0), administration | entering), min_size=fewest, max_size=length)
    classic = st.tuples(declarations, made)
    others = st.tuples(quorum_declarations, made), st.tuples(beginnings, entered)
    # `one_of` would take the four for one.
    whole = classic if is_classic else st.sampled_from([classic] * 4 + list(others)).flatmap(lambda kind: kind)
    return whole.map(lambda parts: _comparable([*[(0, each) for each in parts[0]], *parts[1]]))


def _comparable(program: Program) -> Program:
    """Without priorities where a quorum queue may be full, and without policies with limits where a queue has
    priorities: which message goes is meant to differ. Without short lives
    where a queue has priorities: RabbitMQ may not look at what comes to the head by its own; and in quorum queues,
    which have a head of each priority, and apart from what came back. Without refusals by quorum queues, which depend
    on the channel: tests of `compat` have them. Without a key in BCC that the message has elsewhere, where there are
    dead letters: RabbitMQ takes the first of the two out of their record."""
    shown = repr(program)
    is_quorum = "'quorum'" in shown
    if is_quorum:  # RabbitMQ counts the bytes of headers in their limits
        program = [(number, _without(step, "max-length-bytes")) for number, step in program]
        program = [(number, _replaced(step, "reject-publish", "drop-head")) for number, step in program]
    if is_quorum and "'x-single-active-consumer': True" in shown:  # one that is cancelled is active until it settles
        program = [each for each in program if each[1][0] != "consume" and Basic.Cancel not in each[1]]
    if is_quorum and "max-length" in repr(program):  # RabbitMQ's queue dies where what waits for a retry is too much
        for key in ("priority", "x-delayed-retry-type", "x-delayed-retry-min"):
            program = [(number, step if "policies/" in repr(step) else _without(step, key)) for number, step in program]
    if "x-max-priority" in shown:
        for key in ("max-length", "max-length-bytes"):
            program = [(number, _without(step, key)) for number, step in program]
    if "x-max-priority" in shown or is_quorum:
        program = [(number, _replaced(step, SHORT, str(HOUR))) for number, step in program]
    if "dead-letter-exchange" in shown:
        program = [(number, _with_keys_once(step)) for number, step in program]
    return program


def _with_keys_once(step: Any) -> Any:
    if step[0] != "publish" or not step[2].get("headers"):
        return step
    headers = step[2]["headers"]
    others = (step[2]["key"], *headers.get("CC", ()))
    kept = [key for key in headers.get("BCC", ()) if key not in others]
    return (*step[:2], {**step[2], "headers": {**headers, **({"BCC": kept} if "BCC" in headers else {})}})


def _without(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {name: _without(each, key) for name, each in value.items() if name != key}
    if isinstance(value, (tuple, list)):
        return type(value)(_without(each, key) for each in value)
    return value


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(each, old, new) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_replaced(each, old, new) for each in value)
    return new if value == old else value
