"""A virtual host that is closed in the middle of a call: what a store has is neither lost nor said to be gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from broker_durable_support import bodies, persistent
from broker_parts_support import HostState

from multiqueue.broker import BrokerClosed, BrokerQueue, Credit, Message, VirtualHost
from multiqueue.store import MemoryStore
from multiqueue.testing import Threads

LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


class Closing:
    """A virtual host with a durable queue of two messages, that is closed up to the end of its store."""

    def __init__(self, threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = MemoryStore()
        self.host = VirtualHost(store=self.store)
        self.host.declare_queue("dead", durable=True)
        self.host.declare_queue("q", durable=True, arguments=LETTERS)
        self.host.declare_exchange("e", "fanout", durable=True)
        self.host.bind_queue("q", "e")
        for body in (b"1", b"2"):
            self.host.publish(persistent(body))
        self.goes_on = threading.Event()
        self._threads, self._patch = threads, monkeypatch

    def begin(self) -> None:
        """Close it, but for its store."""
        is_at_store, close = threading.Event(), self.store.close

        def held() -> None:
            is_at_store.set()
            self.goes_on.wait()
            close()

        self._patch.setattr(self.store, "close", held)
        self._threads.start(self.host.close)
        is_at_store.wait()

    def overtake(self) -> None:
        """Have it closed so far as soon as the next call has found it open."""
        check = HostState.check

        def overtaken(state: HostState) -> None:
            check(state)
            self._patch.setattr(HostState, "check", check)
            self.begin()

        self._patch.setattr(HostState, "check", overtaken)

    def open_again(self) -> VirtualHost:
        self.goes_on.set()
        self.host.close()
        self.host = VirtualHost(store=self.store.reopened(crashed=False))
        return self.host


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Closing]:
    with Threads() as threads:
        closing = Closing(threads, monkeypatch)
        try:
            yield closing
        finally:
            closing.goes_on.set()
            closing.host.close()


def nobody(*told: object) -> None:
    """A callback of what no test here waits for."""


OVERTAKEN: dict[str, Callable[[VirtualHost], object]] = {
    "declare": lambda host: host.declare_queue("q", durable=True, arguments=LETTERS),
    "declare passively": lambda host: host.declare_queue("q", passive=True),
    "delete": lambda host: host.delete_queue("q"),
    "bind": lambda host: host.bind_queue("q", "e"),
    "publish": lambda host: host.publish(persistent(b"3")),
    "publish without waiting": lambda host: host.publish_nowait(persistent(b"3")),
    "publish in a run": lambda host: host.publisher(nobody).publish(persistent(b"3")),
    "publish a transient message": lambda host: host.publish(Message(b"3", routing_key="q")),
    "get": lambda host: host.get("q"),
    "subscribe": lambda host: host.subscribe("q"),
}


@pytest.mark.parametrize("call", OVERTAKEN.values(), ids=OVERTAKEN)
def test_a_call_that_a_close_overtakes_is_told_so(closing: Closing, call: Callable[[VirtualHost], object]) -> None:
    """It is not told that its queue is gone, or empty, or has taken the message; and the queue is kept."""
    closing.overtake()
    with pytest.raises(BrokerClosed):
        call(closing.host)
    host = closing.open_again()
    assert bodies(host) == [b"1", b"2"]
    assert len(host.bindings()) == 3


@pytest.mark.parametrize("delete", [lambda host: host.delete_exchange("e"), lambda host: host.unbind_queue("q", "e")])
def test_what_is_deleted_after_its_store_has_ended_is_not_said_to_be_gone(
    closing: Closing, delete: Callable[[VirtualHost], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was not told, so it comes back."""
    check = HostState.check

    def overtaken(state: HostState) -> None:
        check(state)
        monkeypatch.setattr(HostState, "check", check)
        closing.host.close()

    monkeypatch.setattr(HostState, "check", overtaken)
    with pytest.raises(BrokerClosed):
        delete(closing.host)
    assert len(closing.open_again().bindings()) == 3


LOOKS: dict[str, Callable[[BrokerQueue], object]] = {
    "purge": BrokerQueue.purge,
    "browse": BrokerQueue.browse,
    "delete": BrokerQueue.delete_messages,
    "move": lambda queue: queue.move_messages(BrokerQueue("other")),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_queue_that_is_closed_is_not_empty(closing: Closing, look: Callable[[BrokerQueue], object]) -> None:
    """It is counted as it was, and who looks at its messages is told that it is closed."""
    queue = closing.host.queue("q")
    closing.begin()
    with pytest.raises(BrokerClosed):
        look(queue)
    assert len(queue) == queue.statistics().available == 2
    assert bodies(closing.open_again()) == [b"1", b"2"]


def test_a_dead_letter_for_a_queue_that_is_closed_stays(
    closing: Closing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its queue closes a moment later, and has it again when it is opened."""
    queue, close = closing.host.queue("q"), BrokerQueue.close
    consumer = queue.add_consumer(nobody, credit=Credit(1))
    queue.set_notify_work_desired(consumer, True)
    entry = queue.deliver_single_message(consumer)
    assert entry is not None

    def late(each: BrokerQueue) -> None:
        if each is queue:
            assert closing.host.has_queue("dead")
            queue.reject(entry, consumer)
        close(each)

    monkeypatch.setattr(BrokerQueue, "close", late)
    assert bodies(closing.open_again()) == [b"1", b"2"]
    assert caplog.text == ""


def test_a_transaction_that_a_close_overtakes_is_not_said_to_be_committed(closing: Closing) -> None:
    """The message that it settles has gone back to its queue, and comes again."""
    received = closing.host.get("q")
    assert received is not None
    transaction = closing.host.transaction()
    transaction.accept(received)
    closing.overtake()
    with pytest.raises(BrokerClosed):
        transaction.commit()
    assert bodies(closing.open_again()) == [b"1", b"2"]


def test_a_subscription_that_begins_while_all_are_ended_is_ended_too(
    closing: Closing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a store fails its virtual host ends its subscriptions; one that is not among them yet ends by itself."""
    host, add = closing.host, type(closing.host.parts.receiving).add

    def late(receiving: object, subscription: object) -> None:
        host.close()
        add(receiving, subscription)  # type: ignore[arg-type]

    monkeypatch.setattr(type(closing.host.parts.receiving), "add", late)
    with pytest.raises(BrokerClosed):
        host.subscribe([])
    assert host.subscriptions() == []


def test_an_accept_whose_message_the_close_gave_back_is_not_said_to_be_stored(closing: Closing) -> None:
    """The message comes again."""
    received = closing.host.get("q")
    assert received is not None
    closing.begin()
    with pytest.raises(BrokerClosed):
        received.accept(wait=True)
    assert bodies(closing.open_again()) == [b"1", b"2"]
