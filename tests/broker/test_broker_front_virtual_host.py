"""Declaring, deleting, binding and publishing, under RabbitMQ's rules and in RabbitMQ's words."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from broker_front_support import bodies
from broker_parts_support import Housekeeping, Topology

from multiqueue.broker import (
    AccessRefused,
    Broker,
    BrokerClosed,
    BrokerError,
    Message,
    MessageRefused,
    NoConsumers,
    NotFound,
    Overflow,
    PreconditionFailed,
    QueueSettings,
    ResourceLocked,
    SelectorError,
    Unroutable,
    VirtualHost,
    deaths_of,
)
from multiqueue.testing import FakeClock

LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be"
    " originally declared on another connection or the exclusive property value does not match that of the"
    " original declaration."
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def host(clock: FakeClock) -> VirtualHost:
    return VirtualHost(clock=clock, wall_clock=lambda: 1_767_268_800.0)


def refused(text: str, error: type[BrokerError] = PreconditionFailed) -> Any:
    return pytest.raises(error, match=f"^{re.escape(text)}$")


def test_declaring_a_queue_again_as_it_is_gives_the_same_queue(host: VirtualHost) -> None:
    """An equal declaration, and a passive one, give the queue that is there."""
    arguments = {"x-max-length": 5}
    queue = host.declare_queue("q", durable=True, arguments=arguments)
    assert host.declare_queue("q", durable=True, arguments=arguments) is queue
    assert host.declare_queue("q", passive=True) is queue
    assert host.queue("q") is queue
    assert host.queues() == [queue]


@pytest.mark.parametrize(
    ("again", "text"),
    [
        ({"durable": True}, "inequivalent arg 'durable' for {}: received 'true' but current is 'false'"),
        ({"auto_delete": True}, "inequivalent arg 'auto_delete' for {}: received 'true' but current is 'false'"),
        (
            {"arguments": {"x-max-length": 6}},
            "inequivalent arg 'x-max-length' for {}: received '6' but current is '5'",
        ),
        (
            {"arguments": {}},
            "inequivalent arg 'x-max-length' for {}: received none but current is the value '5' of type 'signedint'",
        ),
    ],
)
def test_declaring_a_queue_again_otherwise_is_refused(host: VirtualHost, again: dict[str, Any], text: str) -> None:
    """The refusal names what differs, what was received and what the queue has; the queue stays as it is."""
    queue = host.declare_queue("q", arguments={"x-max-length": 5})
    with refused("PRECONDITION_FAILED - " + text.format("queue 'q' in vhost '/'")):
        host.declare_queue("q", **{"arguments": {"x-max-length": 5}, **again})
    assert host.queue("q") is queue


def test_settings_say_all_about_a_queue_or_nothing(host: VirtualHost) -> None:
    """Settings and arguments beside each other could contradict; different settings are told apart by name."""
    host.declare_queue("q", settings=QueueSettings(max_length=5))
    with pytest.raises(ValueError, match="settings replace flags and arguments; leave those out"):
        host.declare_queue("q", durable=True, settings=QueueSettings())
    text = "inequivalent arg 'max_length' for queue 'q' in vhost '/': received '6' but current is '5'"
    with refused(f"PRECONDITION_FAILED - {text}"):
        host.declare_queue("q", settings=QueueSettings(max_length=6))


def test_a_queue_without_a_name_gets_one_that_nobody_has(host: VirtualHost) -> None:
    """Server-named queues are called amq.gen- and 22 random characters, as RabbitMQ's are."""
    names = {host.declare_queue().name for _ in range(20)}
    assert len(names) == 20
    assert all(re.fullmatch(r"amq\.gen-[\w-]{22}", name) for name in names)
    assert host.declare_queue(names.pop(), passive=True) in host.queues()


def test_reserved_and_overlong_names_are_refused(host: VirtualHost) -> None:
    """Names beginning with amq. are the broker's; a name that no frame can carry is refused."""
    with refused("ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'", AccessRefused):
        host.declare_queue("amq.mine")
    with refused("ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'", AccessRefused):
        host.declare_exchange("amq.mine")
    with refused("ACCESS_REFUSED - exchange name 'amq.topic' contains reserved prefix 'amq.*'", AccessRefused):
        host.delete_exchange("amq.topic")
    with refused(f"PRECONDITION_FAILED - queue name: '{'ü' * 40}'... has 256 bytes; 255 are the most"):
        host.declare_queue("ü" * 128)
    assert host.declare_exchange("amq.topic", "topic", durable=True).type == "topic"


def test_what_is_not_there_is_named_in_the_refusal(host: VirtualHost) -> None:
    """Looking for, binding and publishing to what does not exist say which name was not found."""
    host.declare_queue("q")
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("queue 'x'", lambda: host.declare_queue("x", passive=True)),
        ("queue 'x'", lambda: host.queue("x")),
        ("queue 'x'", lambda: host.bind_queue("x", "amq.direct")),
        ("exchange 'x'", lambda: host.declare_exchange("x", passive=True)),
        ("exchange 'x'", lambda: host.bind_queue("q", "x")),
        ("exchange 'x'", lambda: host.bind_exchange("x", "amq.direct")),
        ("exchange 'x'", lambda: host.publish(Message(exchange="x"))),
    ]
    for what, attempt in attempts:
        with refused(f"NOT_FOUND - no {what} in vhost '/'", NotFound):
            attempt()


def test_deleting_and_unbinding_what_is_not_there_is_no_error(host: VirtualHost) -> None:
    """Nothing is deleted, and the answer says so; a second deletion is one of these."""
    host.declare_queue("q")
    assert host.delete_queue("x") == 0
    assert not host.delete_exchange("x")
    assert not host.unbind_queue("q", "amq.direct", "key")
    assert not host.unbind_queue("x", "amq.direct")
    assert not host.unbind_exchange("x", "amq.direct")
    host.delete_queue("q")
    assert host.delete_queue("q") == 0


def test_a_queue_in_use_or_with_messages_is_deleted_only_when_asked(host: VirtualHost) -> None:
    """`if_unused` and `if_empty` refuse in RabbitMQ's words; a deletion tells how many messages went."""
    queue = host.declare_queue("q")
    consumer = queue.add_consumer(lambda consumer: None)
    with refused("PRECONDITION_FAILED - queue 'q' in vhost '/' in use"):
        host.delete_queue("q", if_unused=True)
    queue.remove_consumer(consumer)
    host.publish(Message(routing_key="q"))
    with refused("PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"):
        host.delete_queue("q", if_empty=True)
    assert host.delete_queue("q", if_unused=True) == 1
    assert host.queues() == []
    assert len(host.bindings()) == 0


def test_an_exchange_in_use_is_deleted_only_when_asked(host: VirtualHost) -> None:
    """`if_unused` means without bindings; the bindings go with the exchange."""
    host.declare_exchange("x")
    host.declare_queue("q")
    host.bind_queue("q", "x", "key")
    with refused("PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"):
        host.delete_exchange("x", if_unused=True)
    assert host.delete_exchange("x")
    assert [binding.source.name for binding in host.bindings()] == [""]
    host.check_invariants()


@pytest.mark.parametrize(
    ("again", "name", "values"),
    [
        ({"type": "topic"}, "type", "received 'topic' but current is 'direct'"),
        ({"durable": True}, "durable", "received 'true' but current is 'false'"),
        ({"auto_delete": True}, "auto_delete", "received 'true' but current is 'false'"),
        ({"internal": True}, "internal", "received 'true' but current is 'false'"),
        (
            {"arguments": {"alternate-exchange": "a"}},
            "alternate-exchange",
            "received the value 'a' of type 'longstr' but current is none",
        ),
    ],
)
def test_declaring_an_exchange_again_otherwise_is_refused(
    host: VirtualHost, again: dict[str, Any], name: str, values: str
) -> None:
    """As for queues; an equal declaration and a passive one give the exchange that is there."""
    exchange = host.declare_exchange("x")
    assert host.declare_exchange("x") is exchange
    assert host.declare_exchange("x", passive=True) is exchange
    with refused(f"PRECONDITION_FAILED - inequivalent arg '{name}' for exchange 'x' in vhost '/': {values}"):
        host.declare_exchange("x", **again)


def test_an_unknown_type_of_exchange_is_refused_with_the_known_ones(host: VirtualHost) -> None:
    """The refusal says what would have been accepted, and nothing is declared."""
    with pytest.raises(PreconditionFailed, match=r"unknown exchange type 'x-hash'; .* direct, fanout, topic"):
        host.declare_exchange("x", "x-hash")
    with pytest.raises(NotFound):
        host.declare_exchange("x", passive=True)


def test_the_default_exchange_is_nobodys_to_change(host: VirtualHost) -> None:
    """It is not declared, deleted, bound or unbound; it leads to every queue by name."""
    host.declare_queue("q")
    attempts: list[Callable[[], object]] = [
        lambda: host.declare_exchange("", passive=True),
        lambda: host.delete_exchange(""),
        lambda: host.bind_queue("q", "", "other"),
        lambda: host.unbind_queue("q", "", "q"),
        lambda: host.bind_exchange("", "amq.direct"),
        lambda: host.bind_exchange("amq.direct", ""),
        lambda: host.unbind_exchange("amq.direct", ""),
    ]
    for attempt in attempts:
        with refused("ACCESS_REFUSED - operation not permitted on the default exchange", AccessRefused):
            attempt()
    assert host.publish(Message(routing_key="q")).queues == 1


def test_an_exclusive_queue_belongs_to_its_owner_and_goes_with_it(host: VirtualHost) -> None:
    """Others cannot look at, declare, bind, unbind or delete it, but can publish to it."""
    me, you = object(), object()
    mine = host.declare_queue("mine", exclusive=True, owner=me)
    host.declare_queue("shared")
    host.bind_queue("mine", "amq.direct", owner=me)
    assert not host.unbind_queue("mine", "amq.direct", "of nobody's", owner=you)
    attempts: list[Callable[[], object]] = [
        lambda: host.declare_queue("mine", exclusive=True, owner=you),
        lambda: host.declare_queue("mine", owner=me),
        lambda: host.declare_queue("mine", passive=True, owner=you),
        lambda: host.bind_queue("mine", "amq.direct", owner=you),
        lambda: host.unbind_queue("mine", "amq.direct", owner=you),
        lambda: host.delete_queue("mine", owner=you),
    ]
    for attempt in attempts:
        with refused(LOCKED, ResourceLocked):
            attempt()
    assert host.declare_queue("mine", exclusive=True, owner=me) is mine
    assert host.publish(Message(routing_key="mine")).queues == 1
    host.release_owner(you)
    assert host.queue("mine", owner=me) is mine
    host.release_owner(me)
    assert [queue.name for queue in host.queues()] == ["shared"]


def test_an_exclusive_queue_without_an_owner_is_the_processs_own(host: VirtualHost) -> None:
    """A caller without an owner has it; a connection, which comes with one, does not."""
    mine = host.declare_queue("mine", exclusive=True)
    assert host.queue("mine") is mine
    with refused(LOCKED, ResourceLocked):
        host.queue("mine", owner=object())


def test_a_queue_that_deletes_itself_leaves_no_binding_and_its_name_is_free(
    host: VirtualHost, clock: FakeClock
) -> None:
    """An auto-delete queue goes with its last consumer, an expiring one when unused for its time."""
    fleeting = host.declare_queue("fleeting", auto_delete=True)
    host.bind_queue("fleeting", "amq.fanout")
    fleeting.remove_consumer(fleeting.add_consumer(lambda consumer: None))
    expiring = host.declare_queue("expiring", arguments={"x-expires": 5000})
    clock.advance(4)
    host.declare_queue("expiring", passive=True)
    clock.advance(4)
    expiring.housekeeping()
    assert host.queue("expiring") is expiring
    clock.advance(1)
    expiring.housekeeping()
    assert host.queues() == []
    assert host.bindings() == []
    assert host.declare_queue("fleeting") is not fleeting


def test_a_declaration_that_meets_a_dying_queue_replaces_it(host: VirtualHost) -> None:
    """A queue that is deleted but not yet forgotten is not handed out, and its end does not hit its successor."""
    dying = host.declare_queue("q")
    forget = dying._on_deleted
    assert forget is not None
    dying._on_deleted = None
    dying.delete()
    with refused("NOT_FOUND - no queue 'q' in vhost '/'", NotFound):
        host.queue("q")
    assert host.publish(Message(routing_key="q")).queues == 0
    successor = host.declare_queue("q")
    assert successor is not dying
    forget(dying)
    assert host.queue("q") is successor
    assert host.publish(Message(routing_key="q")).queues == 1


def test_bindings_may_ask_for_headers_and_for_a_selector(host: VirtualHost) -> None:
    """A selector narrows a binding of any exchange; on a headers exchange both must agree."""
    host.declare_queue("large")
    host.bind_queue("large", "amq.topic", "orders.#", {"x-filter-jms-selector": "amount > 10"})
    host.declare_queue("both")
    selective = {"x-match": "all-with-x", "kind": "order", "x-filter-jms-selector": "amount > 10"}
    host.bind_queue("both", "amq.headers", "", selective)
    for amount, expected in ((5, 0), (50, 1)):
        for exchange in ("amq.topic", "amq.headers"):
            message = Message(exchange=exchange, routing_key="orders.eu", headers={"amount": amount, "kind": "order"})
            assert host.publish(message).queues == expected
    with pytest.raises(SelectorError, match="character 9"):
        host.bind_queue("large", "amq.topic", "#", {"x-filter-jms-selector": "amount > "})
    assert host.unbind_queue("both", "amq.headers", "", selective)
    host.check_invariants()


def test_a_mandatory_message_that_reaches_no_queue_is_returned_with_the_error(host: VirtualHost) -> None:
    """Without `mandatory` it is dropped and counted; with it, the error holds the message."""
    message = Message(b"lost", exchange="amq.direct", routing_key="key")
    assert host.publish(message).queues == 0
    with pytest.raises(Unroutable, match=r"NO_ROUTE - exchange 'amq.direct' in vhost '/' leads") as raised:
        host.publish(message, mandatory=True)
    assert raised.value.message is message
    assert host.statistics().exchanges["amq.direct"].unroutable == 2


def test_an_immediate_message_is_returned_unless_somebody_wants_it_now(host: VirtualHost) -> None:
    """It is not left on a queue without a reader; a willing consumer gets it."""
    queue = host.declare_queue("q")
    message = Message(b"now", routing_key="q")
    with pytest.raises(NoConsumers, match="NO_CONSUMERS") as raised:
        host.publish(message, immediate=True)
    assert raised.value.message is message
    assert len(queue) == 0
    consumer = queue.add_consumer(lambda consumer: None)
    queue.set_notify_work_desired(consumer, True)
    assert host.publish(message, immediate=True).queues == 1


def test_a_refused_message_names_the_queues_and_the_others_have_it(host: VirtualHost) -> None:
    """A full queue with reject-publish refuses; the publisher learns which one, and has the message."""
    host.declare_queue("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    roomy = host.declare_queue("roomy")
    for name in ("full", "roomy"):
        host.bind_queue(name, "amq.fanout")
    host.publish(Message(exchange="amq.fanout"))
    message = Message(b"too much", exchange="amq.fanout")
    with pytest.raises(MessageRefused, match="at their limit in vhost '/': 'full'; consume") as raised:
        host.publish(message)
    assert (raised.value.message, raised.value.queues) == (message, ("full",))
    assert len(roomy) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda host: host.declare_queue("q", durable=True),
        lambda host: host.declare_queue("new", arguments={"x-max-length": -1}),
        lambda host: host.declare_queue("amq.new"),
        lambda host: host.declare_queue("q", owner="a stranger", exclusive=True),
        lambda host: host.declare_exchange("x", "topic"),
        lambda host: host.declare_exchange("new", "unknown"),
        lambda host: host.delete_queue("q", if_empty=True),
        lambda host: host.delete_queue("q", if_unused=True),
        lambda host: host.delete_exchange("x", if_unused=True),
        lambda host: host.delete_exchange("amq.direct"),
        lambda host: host.bind_queue("q", "missing"),
        lambda host: host.bind_queue("missing", "x"),
        lambda host: host.bind_queue("q", "x", "other", {"x-filter-jms-selector": "no selector ="}),
        lambda host: host.bind_exchange("x", "missing"),
        lambda host: host.unbind_queue("q", "", "q"),
        lambda host: host.publish(Message(b"new", exchange="missing")),
        lambda host: host.publish(Message(b"new", exchange="x", routing_key="nowhere"), mandatory=True),
    ],
)
def test_a_call_that_raises_has_changed_nothing(host: VirtualHost, call: Callable[[VirtualHost], object]) -> None:
    """Exchanges, queues, bindings and messages are as they were before a call that was refused (broker-front 4)."""
    host.declare_exchange("x")
    queue = host.declare_queue("q")
    host.bind_queue("q", "x", "key")
    host.publish(Message(b"there", exchange="x", routing_key="key"))
    queue.add_consumer(lambda consumer: None)

    def state() -> object:
        bindings = [(one.source.name, one.destination.name, one.routing_key, one.arguments) for one in host.bindings()]
        exchanges = [(one.name, one.type) for one in host.exchanges()]
        return bindings, exchanges, host.queues(), bodies(queue), len(queue.consumers())

    before = state()
    with pytest.raises(BrokerError):
        call(host)
    assert state() == before
    host.check_invariants()


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("expiration", "60000", "is '60000', a str; it is a number of seconds"),
        ("delay", b"1", "is b'1', a bytes; it is a number of seconds"),
        ("expiration", float("nan"), "is nan; it is a number of seconds"),
        ("priority", 1.5, "is 1.5, a float; it is a whole number"),
        ("headers", None, "is None; leave it out"),
        ("headers", 5, "is 5; leave it out"),
        ("routing_key", None, "is None, a NoneType; it is a string"),
        ("exchange", b"logs", "is b'logs', a bytes; it is a string"),
    ],
)
def test_a_property_that_no_queue_could_use_is_refused_first(field: str, value: object, problem: str) -> None:
    """No message is made of it, so none can be on some of its queues when another one stumbles."""
    with pytest.raises((TypeError, ValueError), match=f"{field} {problem}"):
        Message(b"", **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("publish", [VirtualHost.publish, VirtualHost.publish_nowait])
@pytest.mark.parametrize("published", [b"a body", "text", None])
def test_what_is_no_message_is_refused_with_an_example(
    host: VirtualHost, publish: Callable[..., object], published: object
) -> None:
    """A body alone is refused, and the error shows the message to make of it."""
    with pytest.raises(TypeError, match=r"a Message is published, such as Message\(b'\.\.\.', routing_key="):
        publish(host, published)


@pytest.mark.parametrize("declare", [VirtualHost.declare_queue, VirtualHost.declare_exchange])
def test_a_name_is_a_string(host: VirtualHost, declare: Callable[..., object]) -> None:
    """A number as the name of a queue or an exchange is refused, and nothing is declared."""
    with pytest.raises(TypeError, match=r"5.*a string"):
        declare(host, 5)


def test_what_a_prompt_shows_says_what_it_is() -> None:
    """A broker, a virtual host and a message in hand are shown with their names and what they have."""
    with Broker() as broker:
        broker.declare_queue("teas")
        broker.publish(Message(b"mint", routing_key="teas"))
        received = broker.get("teas")
        assert "b'mint'" in repr(received)
        assert "from queue 'teas'" in repr(received)
        assert repr(broker) == "<Broker vhosts=['/']>"
        assert repr(broker.virtual_host()) == "<VirtualHost '/' queues=1>"
    assert repr(broker) == "<Broker vhosts=['/'] closed>"


def _publish_until_refused(host: VirtualHost, queue: str) -> None:
    for _ in range(100):
        host.publish(Message(bytes(500), routing_key=queue))


def test_who_goes_on_without_memory_is_told_so() -> None:
    """A queue without limits of its own, which cannot page, refuses for want of memory; the error says what helps."""
    host = VirtualHost(memory_limit=20_000)
    queue = host.declare_queue("sorted", arguments={"qpid.queue_sort_key": "k"})
    with pytest.raises(MessageRefused, match="short of memory in vhost '/': 'sorted'; wait_for_room before") as raised:
        _publish_until_refused(host, "sorted")
    assert raised.value.queues == ("sorted",)
    assert queue.is_short_of_memory
    queue.purge()
    assert host.publish(Message(b"", routing_key="sorted")) == (1, (), None)
    host.close()


@pytest.mark.parametrize(("limit", "problem"), [("256 MiB", "is '256 MiB', a str; it is a whole number"), (0, "of 0")])
def test_a_memory_limit_that_is_none(limit: object, problem: str) -> None:
    """It is refused, when the host is made and when it is assigned, with what would be right."""
    with pytest.raises((TypeError, ValueError), match=problem):
        VirtualHost(memory_limit=limit)  # type: ignore[arg-type]
    host = VirtualHost()
    with pytest.raises((TypeError, ValueError), match=problem):
        host.memory_limit = limit  # type: ignore[assignment]
    assert host.memory_limit == 256 << 20
    host.close()


def test_flow_control_tells_the_publisher_which_queues_to_wait_for(host: VirtualHost) -> None:
    """The message that goes over the limit is on the queue; its publisher is asked to wait for room."""
    queue = host.declare_queue("q", settings=QueueSettings(max_length=1, overflow=Overflow.FLOW_CONTROL))
    assert host.publish(Message(routing_key="q"))[:2] == (1, ())
    assert host.publish(Message(routing_key="q"))[:2] == (1, (queue,))
    assert len(queue) == 2


def test_a_dead_letter_goes_to_its_exchange_with_a_record(host: VirtualHost, clock: FakeClock) -> None:
    """An expired message arrives at the dead-letter exchange with the key and the record it should have."""
    dead = host.declare_queue("dead")
    host.declare_exchange("dlx", "direct", internal=True)
    host.bind_queue("dead", "dlx", "late")
    arguments = {
        "x-message-ttl": 1000,
        "x-dead-letter-exchange": "dlx",
        "x-dead-letter-routing-key": "late",
    }
    queue = host.declare_queue("q", arguments=arguments)
    host.publish(Message(b"milk", routing_key="q"))
    clock.advance(1)
    queue.housekeeping()
    (letter,) = dead.browse()
    assert (letter.body, letter.routing_key, letter.exchange) == (b"milk", "late", "dlx")
    (death,) = deaths_of(letter)
    assert (death["queue"], death["reason"], str(death["time"])) == (
        "q",
        "expired",
        "2026-01-01 12:00:00+00:00",
    )
    statistics = host.statistics()
    assert (statistics.dead_letters_routed, statistics.dead_letters_lost) == (1, 0)
    assert (len(queue), statistics.depth) == (0, 1)


def test_a_dead_letter_that_leads_nowhere_is_counted_as_lost(host: VirtualHost, clock: FakeClock) -> None:
    """The dead-letter exchange need not exist, and a queue without one drops its dead (broker-front 5)."""
    host.declare_queue("a", arguments={"x-message-ttl": 0, "x-dead-letter-exchange": "nowhere"})
    host.declare_queue("b", arguments={"x-message-ttl": 0})
    for name in "ab":
        host.publish(Message(routing_key=name))
        host.queue(name).housekeeping()
        assert len(host.queue(name)) == 0
    assert host.statistics().dead_letters_lost == 1


def test_dead_letters_do_not_go_round_for_ever(host: VirtualHost) -> None:
    """Two queues that push their oldest message onto each other keep one each; the rest is dropped, not looped.

    (broker-front 5)
    """
    for name, other in (("a", "b"), ("b", "a")):
        arguments = {
            "x-max-length": 1,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": other,
        }
        host.declare_queue(name, arguments=arguments)
    for number in range(3):
        host.publish(Message(b"%d" % number, routing_key="a"))
    assert bodies(host.queue("a")) == [b"2"]
    assert bodies(host.queue("b")) == [b"1"]
    assert host.statistics().dead_letters_lost == 1
    host.check_invariants()


def test_a_chain_of_a_thousand_dead_letter_queues_needs_no_deep_stack(host: VirtualHost) -> None:
    """Each full queue pushes a message on to the next: a loop, not a recursion, and nothing is lost."""
    count = 1000
    for number in range(count):
        arguments = {
            "x-max-length": 1,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"q{number + 1}",
        }
        host.declare_queue(f"q{number}", arguments=arguments)
        host.publish(Message(routing_key=f"q{number}"))
    end = host.declare_queue(f"q{count}")
    host.publish(Message(b"push", routing_key="q0"))
    assert len(end) == 1
    assert host.statistics().depth == count + 1


def test_closing_cancels_consumers_and_refuses_everything_further(host: VirtualHost) -> None:
    """Consumers are told, queues are gone, and every later call says that the virtual host is closed."""
    cancelled: list[str] = []
    queue = host.declare_queue("q")
    queue.add_consumer(lambda consumer: None, tag="c", on_cancelled=lambda consumer: cancelled.append(consumer.tag))
    transaction = host.transaction()
    transaction.publish(Message(routing_key="q"))
    host.close()
    host.close()
    assert cancelled == ["c"]
    attempts: list[Callable[[], object]] = [
        lambda: host.publish(Message(routing_key="q")),
        lambda: host.declare_queue("q"),
        lambda: host.declare_exchange("x"),
        lambda: host.delete_queue("q"),
        lambda: host.delete_exchange("x"),
        lambda: host.bind_queue("q", "amq.direct"),
        lambda: host.unbind_queue("q", "amq.direct"),
        lambda: host.queue("q"),
        lambda: host.get("q"),
        lambda: host.subscribe("q"),
        lambda: host.consume("q", print),
        lambda: transaction.publish(Message(routing_key="q")),
        transaction.commit,
    ]
    for attempt in attempts:
        with refused("CONNECTION_FORCED - vhost '/' is closed", BrokerClosed):
            attempt()


def test_a_queue_that_is_declared_while_the_host_closes_does_not_outlive_it(
    host: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The declaration finds the host open. 2. The host closes. 3. The queue is registered: it goes at once."""
    add_queue = host._topology.add_queue

    def close_first(*args: Any) -> Any:
        host.close()
        return add_queue(*args)

    monkeypatch.setattr(host._topology, "add_queue", close_first)
    with pytest.raises(BrokerClosed):
        host.declare_queue("late")
    assert host.queues() == []


def test_the_end_of_an_argument_may_call_the_host(host: VirtualHost) -> None:
    """What was declared is let go of under no lock, so an object among the arguments may do as it likes at its end."""
    seen: list[int] = []

    class Nosy(str):
        def __del__(self) -> None:
            seen.append(len(host.queues()))

    queue = host.declare_queue("q", arguments={"x-mine": Nosy()})
    host.declare_exchange("x", "fanout", auto_delete=True, arguments={"x-mine": Nosy()})
    host.bind_queue("q", "x")
    queue.delete()
    assert seen == [0, 0]


def test_many_threads_that_declare_the_same_things_get_the_same_things(host: VirtualHost) -> None:
    """The first caller makes it, all others get that one, and there is one binding."""
    barrier = threading.Barrier(8)
    found: list[object] = []

    def declare() -> None:
        barrier.wait()
        exchange, queue = host.declare_exchange("x", "topic"), host.declare_queue("q")
        host.bind_queue("q", "x", "a.*")
        found.append((exchange, queue))

    threads = [threading.Thread(target=declare, name=f"declares-{n}") for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert len(host.bindings()) == 2
    host.check_invariants()


def test_a_queue_that_expires_before_it_has_its_name_does_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping knows it from its making on."""
    clock, add = FakeClock(), Topology.add_queue
    keeper = Housekeeping(clock=clock.monotonic)

    def late(topology: Topology, *declared: Any) -> object:
        clock.advance(1)
        keeper.run_once()
        return add(topology, *declared)

    monkeypatch.setattr(Topology, "add_queue", late)
    host = VirtualHost(clock=clock.monotonic, housekeeping=keeper)
    host.declare_queue("q", arguments={"x-expires": 1})
    assert not host.has_queue("q")
    host.check_invariants()
    host.close()
