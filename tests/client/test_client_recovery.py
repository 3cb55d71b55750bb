"""A connection that was lost comes back as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from amqp_parts_support import Publish
from client_contract_support import PEERS, Seen, ack, numbered, publish
from client_parts_support import Event, Publication, State
from client_proxy_support import Proxy
from client_server_support import Conversation, Listener, playing
from pamqp import commands

from multiqueue.amqp import NO_PROPERTIES, decode_method
from multiqueue.client import (
    Channel,
    ChannelClosed,
    Confirm,
    Connection,
    ConnectionClosed,
    ConnectionInterrupted,
    connect,
)
from multiqueue.testing import PATIENCE, wait_until_blocked


@pytest.fixture(params=PEERS[1:])
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    url = request.getfixturevalue({"server": "server_url", "rabbitmq": "rabbitmq_url"}[request.param])
    made = Proxy(url)
    yield made
    made.close()


@pytest.fixture
def opened(proxy: Proxy) -> Iterator[Callable[..., Connection]]:
    made: list[Connection] = []

    def open_one(**options: Any) -> Connection:
        made.append(connect(proxy.url, **{"recovery_interval": 0.01, **options}))
        return made[-1]

    yield open_one
    for connection in made:
        connection.close()


@pytest.fixture
def recovered() -> Seen:
    return Seen()


@pytest.fixture
def connection(opened: Callable[..., Connection], recovered: Seen) -> Connection:
    return opened(on_recovered=recovered)


def test_consumers_and_what_they_need_come_back(connection: Connection, proxy: Proxy, recovered: Seen) -> None:
    """C23: channel, quality of service, exchange, server-named exclusive queue with its new name, binding, consumer.

    (client 9)
    """
    channel = connection.channel()
    channel.exchange_declare("client-recovery", "topic", auto_delete=True)
    name = channel.queue_declare(exclusive=True).queue
    channel.queue_bind(name, "client-recovery", "a.*")
    channel.basic_qos(1)
    seen = Seen()
    channel.basic_consume(name, seen)
    publish(channel, name, b"before")
    (old,) = seen.wait_for(1)
    proxy.cut()
    recovered.wait_for(1)
    assert connection.statistics().recoveries == 1
    old.ack()  # C24: it came over a connection that is gone, and that is no error
    for body in (b"1", b"2"):
        channel.publish_confirmed(body, exchange="client-recovery", routing_key="a.b").result(PATIENCE)
    assert seen.bodies(2) == [b"before", b"1"]
    first = seen.all[1]
    assert first.delivery_tag > old.delivery_tag
    first.ack()
    assert seen.bodies(3)[2] == b"2"
    seen.all[2].ack()
    renamed = connection.topology.current_name(name)
    assert renamed != name
    assert channel.queue_purge(name) == 0  # the old name still leads to the queue
    connection.check_invariants()


def test_unsettled_messages_come_again(connection: Connection, proxy: Proxy, recovered: Seen) -> None:
    """C24: flagged, under higher tags; deliveries that waited in the client are not run for nothing."""
    channel = connection.channel()
    name = channel.queue_declare(durable=True).queue
    gate = threading.Event()
    seen = Seen(lambda message: gate.wait(PATIENCE))
    channel.basic_consume(name, seen)
    publish(channel, name, *numbered(3))
    wait_until_blocked(lambda: channel.statistics().queued == 2 and channel.statistics().running_for is not None)
    proxy.cut()
    recovered.wait_for(1)
    gate.set()
    messages = seen.wait_for(4)
    assert [message.body for message in messages] == [b"0", *numbered(3)]
    assert [message.redelivered for message in messages[1:]] == [True] * 3
    for message in messages:
        message.ack()
    channel.queue_delete(name)


def test_unconfirmed_messages_are_published_again(connection: Connection, proxy: Proxy) -> None:
    """Every future ends, every message is on the queue at least once, in spite of ten cuts (client 9)."""
    channel = connection.channel()
    name = channel.queue_declare(durable=True).queue
    got: set[bytes] = set()
    confirms = []
    for number in range(300):
        while True:
            try:
                confirms.append(channel.publish_confirmed(b"%d" % number, routing_key=name, delivery_mode=2))
                break
            except (ConnectionInterrupted, ConnectionClosed):
                assert connection.wait_until_open(PATIENCE)
        if number % 30 == 0:
            proxy.cut()
    for confirm in confirms:
        confirm.result(PATIENCE)
    assert connection.wait_until_open(PATIENCE)
    while (message := channel.basic_get(name, auto_ack=True)) is not None:
        got.add(message.body)
    assert got == set(numbered(300))
    channel.queue_delete(name)
    connection.check_invariants()


def test_a_connection_that_is_open_again_has_open_channels(
    connection: Connection, proxy: Proxy, recovered: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has waited for the connection may use its channels at once (client 9)."""
    channel, opened = connection.channel(), connection._opened
    seen: list[bool] = []

    def open_and_look(link: Any) -> bool:
        is_open = opened(link)
        seen.append(channel.is_open)
        return is_open

    monkeypatch.setattr(connection, "_opened", open_and_look)
    proxy.cut()
    recovered.wait_for(1)
    assert seen == [True]


def test_without_republishing_futures_raise(opened: Callable[..., Connection], proxy: Proxy) -> None:
    """C25: then what was not answered for is the application's to decide about."""
    connection = opened(republish=False)
    channel = connection.channel()
    name = channel.queue_declare(durable=True).queue
    channel.confirm_select()
    failures = []
    for _ in range(20):
        try:
            confirm = channel.publish_confirmed(b"x", routing_key=name)
            proxy.cut()
            failures.append(confirm.exception(PATIENCE))
        except ConnectionInterrupted:
            pass
        assert connection.wait_until_open(PATIENCE)
    assert all(failure is None or isinstance(failure, ConnectionInterrupted) for failure in failures)
    assert channel.statistics().unconfirmed == 0
    while True:
        try:
            channel.queue_delete(name)
            break
        except ConnectionInterrupted:  # its future was done before the last cut was noticed
            assert connection.wait_until_open(PATIENCE)


def test_without_republishing_a_message_that_was_lost_is_not_confirmed() -> None:
    """A wait for confirms says so, once, as of one that the server could not take."""
    listener = Listener()
    connection, server = listener.connect(recovery_interval=3600, republish=False)
    with playing(server.open_channel):
        channel = connection.channel()
    with playing(lambda: server.answer(commands.Confirm.Select, commands.Confirm.SelectOk)):
        channel.confirm_select()
    channel.publish(b"x", routing_key="q")
    server.socket.close()
    assert not channel.wait_for_confirms(PATIENCE)
    assert channel.wait_for_confirms(PATIENCE)
    connection.close()
    listener.close()


def test_during_the_outage_calls_and_publishes_raise(connection: Connection, proxy: Proxy, recovered: Seen) -> None:
    """C25: at once and with advice; afterwards the same objects work."""
    channel = connection.channel()
    proxy.is_open = False
    proxy.cut()
    wait_until_blocked(lambda: not connection.is_open)
    with pytest.raises(ConnectionInterrupted, match="try again"):
        channel.publish(b"x", routing_key="q")
    with pytest.raises(ConnectionInterrupted, match="try again"):
        connection.channel()
    assert not connection.wait_until_open(0.01)
    proxy.is_open = True
    recovered.wait_for(1)
    assert channel.queue_declare(exclusive=True).queue


def test_closing_ends_recovery(connection: Connection, proxy: Proxy) -> None:
    """C23: `close` wins over attempts that fail, and no thread connects afterwards."""
    proxy.is_open = False
    proxy.cut()
    wait_until_blocked(lambda: not connection.is_open)
    connection.close()
    assert connection.is_closed
    before = proxy.connections
    proxy.is_open = True
    assert proxy.connections == before


def test_what_cannot_be_restored_costs_nothing_else(
    connection: Connection, proxy: Proxy, recovered: Seen, caplog: pytest.LogCaptureFixture, request: Any
) -> None:
    """A queue that has become another one is logged; the next queue and its consumer are back."""
    channel = connection.channel()
    seen = Seen(ack)
    clash = f"client-clash-{id(connection)}"
    channel.queue_declare(clash, auto_delete=False)
    name = channel.queue_declare(exclusive=True).queue
    channel.basic_consume(name, seen)
    proxy.is_open = False
    proxy.cut()
    wait_until_blocked(lambda: not connection.is_open)
    target = "server_url" if "server" in request.node.name else "rabbitmq_url"
    with connect(request.getfixturevalue(target)) as other, other.channel() as elsewhere:
        elsewhere.queue_delete(clash)
        elsewhere.queue_declare(clash, durable=True, auto_delete=False)
    proxy.is_open = True
    recovered.wait_for(1)
    assert "could not restore Queue.Declare" in caplog.text
    publish(channel, connection.topology.current_name(name), b"x")
    assert seen.bodies(1) == [b"x"]
    channel.queue_delete(clash)


def test_an_inbox_lives_through_it(connection: Connection, proxy: Proxy, recovered: Seen) -> None:
    """A loop over a queue does not notice."""
    channel = connection.channel()
    name = channel.queue_declare(exclusive=True).queue
    with channel.consume(name) as inbox:
        publish(channel, name, b"1")
        inbox.get(PATIENCE).ack()
        proxy.cut()
        recovered.wait_for(1)
        publish(channel, connection.topology.current_name(name), b"2")
        assert inbox.get(PATIENCE).body == b"2"


@pytest.mark.parametrize("code", [320, 530])
def test_a_server_that_closes_is_asked_again_when_that_can_help(code: int) -> None:
    """C22: forced by an operator, yes; after a mistake of the application's, no."""
    listener = Listener()
    ended, recovered = Seen(), Seen()
    connection, server = listener.connect(
        recovery_interval=0.01, on_recovered=recovered, on_closed=lambda connection, error: ended(error)
    )
    server.send(0, commands.Connection.Close, reply_code=code, reply_text="SAID - so", class_id=0, method_id=0)
    if code == 320:
        again = listener.accept()
        again.handshake()
        recovered.wait_for(1)
        with playing(again.agree_to_close):
            connection.close()
    else:
        error = ended.wait_for(1)[0]
        assert (error.reply_code, error.reply_text) == (530, "SAID - so")
        assert connection.is_closed
        connection.close()
    listener.close()


def test_a_link_that_dies_before_the_first_call_is_replaced() -> None:
    """A call that begins on a link that has ended is not told: it must notice by itself, and recovery begin anew."""
    listener = Listener()
    recovered, attempts = Seen(), []
    connection, server = listener.connect(recovery_interval=0.01, on_recovered=recovered, call_timeout=PATIENCE * 3)
    with playing(server.open_channel):
        channel = connection.channel()
    adopt = connection._adopt

    def adopt_too_late(link: Any) -> bool:
        adopted = adopt(link)
        attempts.append(link)
        if len(attempts) == 1:
            link.end(ConnectionClosed("lost before anything was asked"))
            link.join(PATIENCE)
        return adopted

    connection._adopt = adopt_too_late  # type: ignore[method-assign]
    server.socket.close()
    listener.accept().handshake()
    again = listener.accept()
    again.handshake()
    again.open_channel()
    recovered.wait_for(1)
    assert channel.is_open
    with playing(again.agree_to_close):
        connection.close()
    listener.close()


def test_republished_messages_come_first_and_in_order() -> None:
    """Before anybody else may publish, numbered from one again, with the bodies they had when they were published.

    (client 9)
    """
    listener = Listener()
    recovered = Seen()
    connection, server = listener.connect(recovery_interval=0.01, on_recovered=recovered)
    with playing(server.open_channel):
        channel = connection.channel()
    with playing(lambda: server.answer(commands.Confirm.Select, commands.Confirm.SelectOk)):
        channel.confirm_select()
    body = bytearray(b"x")
    confirms = [channel.publish_confirmed(body, routing_key=key) for key in ("a", "b", "c")]
    body[:] = b"y"
    server.expect(Publish)
    server.send(1, commands.Basic.Ack, delivery_tag=1, multiple=False)
    confirms[0].result(PATIENCE)
    server.socket.close()
    again = listener.accept()
    again.handshake()
    again.open_channel()
    again.answer(commands.Confirm.Select, commands.Confirm.SelectOk)
    recovered.wait_for(1)
    channel.publish(b"z", routing_key="d")
    keys: list[bytes] = []
    bodies: list[bytes] = []
    while len(bodies) < 3:
        kind, _, payload = again.frame()
        if kind == 1:
            keys.append(payload.rsplit(b"\x01", 1)[1][:1])
        elif kind == 3:
            bodies.append(payload)
    assert (keys, bodies) == ([b"b", b"c", b"d"], [b"x", b"x", b"z"])
    again.send(1, commands.Basic.Ack, delivery_tag=2, multiple=True)
    for confirm in confirms:
        confirm.result(PATIENCE)
    with playing(again.agree_to_close):
        connection.close()
    listener.close()


def test_a_channel_that_was_being_opened_leaves_nothing_behind() -> None:
    """The connection is lost while a channel opens: its opener is told, its number is free, and `close` is prompt."""
    listener = Listener()
    connection, conversation = listener.connect(recovery_interval=0.01)

    def lose_it() -> None:
        conversation.expect(commands.Channel.Open)
        conversation.socket.close()
        again = listener.accept()
        again.handshake()
        again.open_channel()
        again.agree_to_close()

    with playing(lose_it):
        with pytest.raises(ConnectionInterrupted):
            connection.channel()
        assert connection.wait_until_open(PATIENCE)
        assert connection.statistics().channels == ()
        assert connection.channel().number == 1
        connection.close()
    assert connection.callbacks._lanes_left.is_set()
    listener.close()


class DeafLink:
    """A link that takes everything and answers nothing."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, number: int, frame: bytes) -> bool:
        self.sent.append((number, frame))
        return True


@pytest.fixture
def interrupted() -> Iterator[Channel]:
    """A channel whose connection was lost, and comes back no sooner than the test ends."""
    listener = Listener()
    connection, conversation = listener.connect(recovery_interval=3600)
    with playing(conversation.open_channel):
        channel = connection.channel()
    conversation.socket.close()
    wait_until_blocked(lambda: channel.state is State.INTERRUPTED)
    yield channel
    connection.close()
    listener.close()


def test_recovery_opens_no_channel_that_was_closed(interrupted: Channel) -> None:
    """Closed between two steps of a recovery, a channel asks nothing of the new link: no answer would find it."""
    link: Any = DeafLink()
    interrupted.close()
    with pytest.raises(ChannelClosed):
        interrupted.open_on(link)
    assert link.sent == []


def test_a_channel_that_is_closed_publishes_nothing_again(interrupted: Channel) -> None:
    """Nothing follows its close on the wire, which would cost the connection, and every future ends (client 9)."""
    link: Any = DeafLink()
    link.prepare = lambda *message: message
    link.wait_for_room = lambda timeout: interrupted.abort()
    link.publish = link.sent.append
    confirms = [Confirm(lambda callback, argument: None, nullcontext) for _ in range(2)]
    for confirm in confirms:
        interrupted.publishing.unconfirmed.add(Publication("", "q", False, NO_PROPERTIES, b"", confirm))
    interrupted.life.link = link
    interrupted.publishing.republish(link)
    ((number, frame),) = link.sent
    assert (number, type(decode_method(frame[7:-1]))) == (interrupted.number, commands.Channel.Close)
    interrupted.arrived(Event(interrupted.number, commands.Channel.CloseOk()))
    assert [type(confirm.exception(PATIENCE)) for confirm in confirms] == [ChannelClosed] * 2


def test_the_loss_of_an_old_link_may_come_late(interrupted: Channel) -> None:
    """A channel that is on a new link already hears nothing of the old one, and opens on none but its own."""
    old: Any = DeafLink()
    new: Any = DeafLink()
    opening = threading.Thread(target=interrupted.open_on, args=(new,))
    opening.start()
    wait_until_blocked(lambda: bool(new.sent))
    interrupted.interrupted(old, ConnectionInterrupted("late"), keep_unconfirmed=True)
    assert opening.is_alive()
    assert not interrupted.life.opened(old)
    interrupted.arrived(Event(interrupted.number, commands.Channel.OpenOk()))
    opening.join()
    assert interrupted.life.opened(new)
    interrupted.interrupted(new, ConnectionInterrupted("in time"), keep_unconfirmed=True)
    assert interrupted.state is State.INTERRUPTED


def test_recovery_begun_anew_leaves_no_channel_behind() -> None:
    """When the new link is lost in the middle, what recovery used for itself is gone, and its number is free."""
    listener = Listener()
    recovered = Seen()
    connection, first = listener.connect(recovery_interval=0.01, on_recovered=recovered)

    def declare(conversation: Conversation, name: str) -> None:
        conversation.answer(commands.Queue.Declare, commands.Queue.DeclareOk, queue=name)

    def play() -> None:
        first.open_channel()
        declare(first, "one")
        declare(first, "two")
        first.socket.close()
        second = listener.accept()
        second.handshake()
        second.open_channel()  # the user's
        second.open_channel()  # recovery's own
        declare(second, "one")
        second.socket.close()
        third = listener.accept()
        third.handshake()
        third.open_channel()
        third.open_channel()
        declare(third, "one")
        declare(third, "two")
        third.answer(commands.Channel.Close, commands.Channel.CloseOk)
        third.agree_to_close()

    with playing(play):
        channel = connection.channel()
        channel.queue_declare("one")
        channel.queue_declare("two")
        recovered.wait_for(1)
        assert [each.number for each in connection.statistics().channels] == [1]
        connection.close()
    assert connection.callbacks._lanes_left.is_set()
    listener.close()


def test_an_inbox_that_is_closed_during_recovery_has_no_consumer_after_it() -> None:
    """Recovery may be about to start it again: its messages would go to nobody. Closing waits, and cancels it then."""
    listener = Listener()
    connection, first = listener.connect(recovery_interval=0.01)
    with playing(first.open_channel):
        channel = connection.channel()
    with playing(lambda: (first.consume(), first.consume())):
        stays, goes = (channel.consume("q", consumer_tag=tag) for tag in ("stays", "goes"))
    first.socket.close()
    second = listener.accept()
    second.handshake()
    second.open_channel()
    assert second.expect(commands.Basic.Consume).consumer_tag == "stays"
    closing = threading.Thread(target=goes.close)
    closing.start()
    wait_until_blocked(closing)
    second.send(1, commands.Basic.ConsumeOk, consumer_tag="stays")
    assert second.consume() == "goes"
    assert second.answer(commands.Basic.Cancel, commands.Basic.CancelOk, consumer_tag="goes").consumer_tag == "goes"
    closing.join(PATIENCE)
    second.deliver(1, "stays", 1, b"x")
    assert stays.get(PATIENCE).body == b"x"
    with playing(second.agree_to_close):
        connection.close()
    listener.close()


def test_declarations_without_an_answer_cost_only_themselves() -> None:
    """Recovery waits for none of them, and the number of a channel is another one's once the server has closed it."""
    listener = Listener()
    recovered = Seen()
    connection, first = listener.connect(recovery_interval=0.01, close_timeout=PATIENCE * 3, on_recovered=recovered)
    patient = connection.settings

    def declare() -> None:
        first.open_channel()
        for name in ("one", "two"):
            first.answer(commands.Queue.Declare, commands.Queue.DeclareOk, queue=name)
        first.answer(commands.Channel.Close, commands.Channel.CloseOk)

    def play() -> None:
        first.socket.close()
        second = listener.accept()
        second.handshake()
        for number in (1, 2):
            second.expect(commands.Channel.Open, number)
            second.expect(commands.Channel.Close, number)
        second.open_channel()
        second.send(1, commands.Channel.CloseOk)
        second.open_channel()
        second.agree_to_close()

    with playing(declare), connection.channel() as channel:
        channel.queue_declare("one")
        channel.queue_declare("two")
    connection.settings = replace(patient, call_timeout=0.05)
    with playing(play):
        recovered.wait_for(1)
        connection.settings = patient
        assert connection.channel().number == 3
        wait_until_blocked(lambda: len(connection.statistics().channels) == 2)
        assert connection.channel().number == 1
        connection.close()
    listener.close()
