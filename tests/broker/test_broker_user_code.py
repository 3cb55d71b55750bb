"""Where the user's code runs in the broker, and where the broker waits for it: under no lock, at every place."""

from __future__ import annotations

import inspect
import itertools
import logging
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any, ClassVar

import pytest
from held_locks_support import Gate, HeldLocks, UserCode, others_go_on, watching

import multiqueue.broker
from multiqueue.broker import (
    Alert,
    AlertThresholds,
    Broker,
    BrokerClosed,
    BrokerQueue,
    ConsumerTarget,
    Message,
    MessageGroups,
    Overflow,
    QueueKind,
    QueueSettings,
    Received,
    StandardEntryList,
    VirtualHost,
    register_queue_kind,
    unregister_queue_kind,
    without_waiting,
)
from multiqueue.errors import ShutDown
from multiqueue.store import MemoryStore, StoreFailed
from multiqueue.testing import PATIENCE, FakeClock

_numbers = itertools.count()


class Scene:
    """A broker with a queue `q`, and the user's code."""

    def __init__(self, path: Path, held: HeldLocks) -> None:
        self.path = path
        self.code = UserCode(held, self.use)
        self.clock = FakeClock(1000.0)
        self.broker = self.open()
        self.queue = self.broker.declare_queue("q")

    def open(self, **options: Any) -> Broker:
        self.broker = Broker(clock=self.clock, housekeeping_interval=0.005, **options)
        return self.broker

    def reopen(self, **options: Any) -> Broker:
        """The same, with a store."""
        self.broker.close()
        return self.open(data=self.path / "data", durability="relaxed", **options)

    def declare(self, name: str, **settings: Any) -> BrokerQueue:
        return self.broker.declare_queue(name, settings=QueueSettings(**settings))

    def put(self, body: object = b"", to: str = "q", **properties: Any) -> None:
        self.broker.publish(Message(body, routing_key=to, **properties))

    def use(self) -> None:
        """What each of the broker's locks guards. Waits for no commit, as that may be the user's code's to end."""
        name = f"used {next(_numbers)}"
        with suppress(BrokerClosed), without_waiting():
            host = self.broker.add_virtual_host(name)
            self.broker.delete_virtual_host(name, timeout=0)
            assert host.is_closed
            for each in self.broker.virtual_hosts():
                queue = each.declare_queue(name, exclusive=True)
                each.publish(Message(b"used", routing_key=name))
                received = each.get(name)
                assert received is not None
                received.accept()
                each.subscribe(name).close()
                for known in each.queues():
                    known.statistics()
                    known.consumers()
                (each.subscriptions(), each.bindings(), each.statistics(), each.past(), each.memory_statistics())
                queue.delete()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with watching("multiqueue.broker", "multiqueue.store") as held:
        made = Scene(tmp_path, held)
        try:
            yield made
        finally:
            made.broker.close(5.0)


# -- the entry points


def consume_callback(scene: Scene) -> None:
    done: Queue[object] = Queue()

    def callback(received: Received) -> None:
        scene.code()
        received.accept()
        done.put(received)

    scene.broker.consume("q", callback)
    scene.put()
    done.get(timeout=PATIENCE)


def consume_on_error(scene: Scene) -> None:
    done: Queue[object] = Queue()

    def on_error(received: Received, error: Exception) -> None:
        done.put(scene.code())

    scene.broker.consume("q", lambda received: 1 / 0, on_error=on_error)
    scene.put()
    done.get(timeout=PATIENCE)


def on_alert(scene: Scene) -> None:
    scene.broker.close()
    scene.open(on_alert=scene.code)
    scene.declare("watched", alerts=AlertThresholds(depth=1, repeat_gap=1e9))
    scene.put(to="watched")


def a_queue_of_ones_own(scene: Scene) -> None:
    """`dead_letter`, `on_deleted`, `on_alert`, `on_error`."""
    settings = QueueSettings(
        max_length=1, overflow=Overflow.REJECT_DEAD_LETTER, alerts=AlertThresholds(depth=1, repeat_gap=1e9)
    )
    calls = {"dead_letter": scene.code, "on_deleted": scene.code, "on_alert": scene.code, "on_error": scene.code}
    queue = BrokerQueue("own", settings=settings, **calls)
    queue.add_consumer(lambda consumer: 1 / 0, on_cancelled=scene.code)
    queue.set_notify_work_desired(queue.consumers()[0], True)
    queue.put(Message())
    queue.put(Message())
    queue.delete()
    assert scene.code.calls == 5


def when_room(scene: Scene) -> None:
    queue = scene.declare("full", max_length=1, overflow=Overflow.FLOW_CONTROL)
    scene.put(to="full")
    scene.put(to="full")
    assert queue.when_room(scene.code)
    queue.purge()


def when_room_of_a_host_that_is_deleted(scene: Scene) -> None:
    host = scene.broker.add_virtual_host("x")
    full = QueueSettings(max_length=1, overflow=Overflow.FLOW_CONTROL)
    queue = host.declare_queue("full", settings=full)
    for _ in range(2):
        host.publish(Message(routing_key="full"))
    assert queue.when_room(lambda: scene.broker.add_virtual_host("from the callback") and scene.code())
    scene.broker.delete_virtual_host("x", timeout=1)


def when_caught_up(scene: Scene) -> None:
    """The limit of what is on its way to a store is gone at once here, as a purge ends it."""
    scene.queue.life.limit.fall_behind()
    assert scene.queue.when_caught_up(scene.code)
    scene.queue.delete()


def consumer_callbacks(scene: Scene) -> None:
    consumer = scene.queue.add_consumer(scene.code, on_cancelled=scene.code)
    scene.queue.set_notify_work_desired(consumer, True)
    scene.put()
    scene.queue.delete()
    assert scene.code.calls == 2


def late_consumer(scene: Scene) -> None:
    queue = BrokerQueue("own", settings=QueueSettings(consumer_timeout=0.0))
    consumer = queue.add_consumer(lambda consumer: None, on_timed_out=scene.code)
    queue.set_notify_work_desired(consumer, True)
    queue.put(Message())
    assert queue.deliver_single_message(consumer) is not None
    queue.housekeeping()


def target_callbacks(scene: Scene) -> None:
    target = ConsumerTarget("t", on_ready=scene.code)
    target.consume(scene.queue, on_cancelled=scene.code)
    scene.put()
    assert target.pull() is not None
    scene.queue.delete()
    assert scene.code.calls >= 2


def selector_of_a_consumer(scene: Scene) -> None:
    """Asked by a put, by a pull, and by a pull of a consumer of lower priority."""
    scene.put()
    subscription = scene.broker.subscribe("q", selector=scene.code, priority=1)
    low = scene.broker.subscribe("q")
    scene.put()
    for _ in range(2):
        subscription.get(PATIENCE).accept()
    scene.put()
    assert low.target.pull() is None


def selector_of_administration(scene: Scene) -> None:
    other, levels = scene.declare("other"), scene.declare("levels", kind=QueueKind.PRIORITY, max_priority=9)
    scene.put(to="levels")
    for _ in range(4):
        scene.put()
    assert len(scene.queue.browse(scene.code)) == 4
    assert scene.queue.copy_messages(other, scene.code, limit=1) == 1
    assert scene.queue.move_messages(other, scene.code, limit=1) == 1
    assert scene.queue.delete_messages(scene.code, limit=1) == 1
    assert levels.change_priority(5, scene.code) == 1
    assert scene.code.calls >= 8


def stop_of_a_purge(scene: Scene) -> None:
    scene.put()
    scene.queue.purge(scene.code)


class Nosy(StandardEntryList):
    """A kind whose factory and `key_of` are user code. Its other methods run under the lock of their queue."""

    code: ClassVar[Callable[[], object]]

    def __init__(self, settings: QueueSettings) -> None:
        super().__init__(settings)
        Nosy.code()

    def key_of(self, message: Message) -> None:
        Nosy.code()


@pytest.fixture
def nosy(scene: Scene) -> Iterator[None]:
    Nosy.code = scene.code
    register_queue_kind("nosy", Nosy)
    yield
    unregister_queue_kind("nosy")


def kind_when_declared(scene: Scene) -> None:
    scene.declare("of a kind", kind="nosy")
    scene.put(to="of a kind")


def store_with_a_kind(scene: Scene) -> Broker:
    """A broker with a store of `x` in its directory, which is not opened yet and names the kind."""
    first = scene.reopen()
    host = first.add_virtual_host("x")
    host.declare_queue("of a kind", settings=QueueSettings(kind="nosy", durable=True))
    first.close()
    (scene.path / "data" / "x").rename(scene.path / "x")
    broker = scene.reopen()
    (scene.path / "x").rename(scene.path / "data" / "x")
    return broker


def kind_when_opened(scene: Scene) -> None:
    broker = store_with_a_kind(scene)
    scene.code.calls = 0
    broker.add_virtual_host("x")


def header_values(scene: Scene) -> None:
    """Compared by a headers exchange, read as a key by three kinds of queue, seen by an SQL selector."""
    value = scene.code.value()
    scene.broker.bind_queue("q", "amq.headers", arguments={"x-match": "all", "a": "text"})
    scene.declare("sorted", kind=QueueKind.SORTED, sort_key="a")
    scene.declare("latest", kind=QueueKind.LAST_VALUE, lvq_key="a")
    scene.declare("grouped", group_key="a", groups=MessageGroups.SHARED)
    scene.broker.subscribe("q", selector="a = 'text'")
    for name in ("q", "sorted", "latest", "grouped"):
        scene.put(to=name, headers={"a": value})
        scene.put(to=name, headers={scene.code.text("a"): value})
    scene.put(headers={"a": scene.code.text("text")}, exchange="amq.headers")


def names_and_keys(scene: Scene) -> None:
    """Strings of a class of the user's, wherever a name, a key or an argument is given."""
    text = scene.code.text
    broker = scene.broker
    for kind in ("direct", "topic", "fanout", "headers"):
        exchange = text(f"x {kind}")
        broker.declare_exchange(exchange, kind)
        for _ in range(2):
            broker.bind_queue(text("q"), exchange, text("a.b"), {text("a"): text("b")})
        broker.publish(Message(routing_key=text("a.b"), exchange=exchange))
        assert broker.unbind_queue(text("q"), exchange, text("a.b"), {text("a"): text("b")})
        broker.delete_exchange(exchange)
    broker.declare_queue(text("named"), arguments={text("x-mine"): text("mine")})
    broker.declare_queue(text("named"), arguments={text("x-mine"): text("mine")})
    broker.get(text("named"))
    broker.delete_queue(text("named"))
    broker.add_virtual_host(text("x")).declare_queue("q")
    broker.virtual_host(text("x"))
    broker.delete_virtual_host(text("x"))


def ends_of_bodies(scene: Scene) -> None:
    """A message ends when it is accepted, purged, expires, is evicted, superseded, or goes with its queue or host."""
    broker, mortal = scene.broker, scene.code.mortal
    scene.put(mortal())
    received = broker.get("q", auto_accept=True)
    del received
    scene.put(mortal())
    received = broker.get("q")
    assert received is not None
    received.accept()
    del received
    scene.put(mortal())
    scene.queue.purge()
    scene.put(mortal(), expiration=1.0)
    scene.clock.advance(2.0)
    scene.queue.housekeeping()
    scene.declare("ring", max_length=1, overflow=Overflow.RING)
    scene.declare("latest", kind=QueueKind.LAST_VALUE, lvq_key="a")
    for name in ("ring", "latest"):
        for _ in range(2):
            scene.put(mortal(), to=name, headers={"a": 1})
    assert scene.code.calls == 6
    scene.put(mortal())
    scene.queue.delete()
    host = broker.add_virtual_host("x")
    host.declare_queue("q")
    host.publish(Message(mortal(), routing_key="q"))
    broker.delete_virtual_host("x")
    del host
    broker.publish(Message(mortal(), routing_key="nowhere"))
    assert scene.code.calls >= 7


def ends_of_arguments(scene: Scene) -> None:
    code = scene.code

    class Mortal(str):
        __slots__ = ()

        def __del__(self) -> None:
            code()

    scene.broker.declare_queue("argued", arguments={"x-mine": Mortal("a")}).delete()
    scene.broker.declare_exchange("argued", auto_delete=True, arguments={"x-mine": Mortal("b")})
    scene.broker.bind_queue("q", "argued", arguments={"x-mine": Mortal("c")})
    scene.queue.delete()
    assert code.calls == 3


def after_commits(scene: Scene) -> None:
    """`Published`, `Submission`, `PutOff`, and a publisher's `tell`."""
    broker = scene.reopen()
    broker.declare_queue("kept", durable=True)
    message = Message(b"", routing_key="kept", persistent=True)
    done: Queue[object] = Queue()

    def told(*args: object) -> None:
        done.put(scene.code())

    broker.virtual_host().publish_nowait(message).add_done_callback(told)
    done.get(timeout=PATIENCE)
    publisher = broker.virtual_host().publisher(told)
    publisher.publish(message, tag=1)
    publisher.hand_in()
    done.get(timeout=PATIENCE)
    assert not publisher.is_held_back(told), "this thread may wait"
    memory = broker.virtual_host()._memory
    memory.begin_writing(1 << 30, may_wait=False)
    assert memory.hold_back(told)
    memory.end_writing(1 << 30)
    done.get(timeout=PATIENCE)
    with without_waiting() as put_off:
        broker.declare_queue("kept too", durable=True)
    put_off.add_done_callback(told)
    done.get(timeout=PATIENCE)


def store_failure(scene: Scene) -> None:
    host = VirtualHost("x", store=MemoryStore(), on_store_failure=scene.code)
    assert host._journal is not None
    host._journal.note(StoreFailed("as a test"))
    host.close()


def handlers_of_the_log(scene: Scene) -> None:
    """A callback that failed, an alert, a queue that cannot be deleted: what the room logs."""

    class Handler(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            return scene.code()

    log, handler = logging.getLogger("multiqueue.broker"), Handler()
    log.addHandler(handler)
    try:
        scene.declare("watched", alerts=AlertThresholds(depth=1, repeat_gap=1e9))
        scene.put(to="watched")
        done: Queue[object] = Queue()
        scene.broker.consume("q", lambda received: done.put(1 / 0))
        consumer = scene.queue.add_consumer(lambda consumer: 1 / 0)
        scene.queue.set_notify_work_desired(consumer, True)
        scene.put()
    finally:
        log.removeHandler(handler)


# What the user gives to this room, by the place where it is given.
ENTRY_POINTS: dict[str, Callable[[Scene], None]] = {
    "Broker.__init__ on_alert, VirtualHost.__init__ on_alert": on_alert,
    "Broker.consume callback, VirtualHost.consume callback": consume_callback,
    "Broker.consume on_error, VirtualHost.consume on_error": consume_on_error,
    "BrokerQueue.__init__ dead_letter, BrokerQueue.__init__ on_deleted, BrokerQueue.__init__ on_alert,"
    " BrokerQueue.__init__ on_error": a_queue_of_ones_own,
    "BrokerQueue.when_room callback": when_room,
    "BrokerQueue.when_room callback, of a virtual host that is deleted": when_room_of_a_host_that_is_deleted,
    "BrokerQueue.when_caught_up callback": when_caught_up,
    "BrokerQueue.add_consumer on_work, BrokerQueue.add_consumer on_cancelled": consumer_callbacks,
    "BrokerQueue.add_consumer on_timed_out": late_consumer,
    "ConsumerTarget.__init__ on_ready, ConsumerTarget.consume on_cancelled": target_callbacks,
    "BrokerQueue.add_consumer selector, compile_selector selector": selector_of_a_consumer,
    "BrokerQueue.browse selector, BrokerQueue.copy_messages selector, BrokerQueue.move_messages selector,"
    " BrokerQueue.delete_messages selector, BrokerQueue.change_priority selector": selector_of_administration,
    "BrokerQueue.purge stop": stop_of_a_purge,
    "register_queue_kind make": kind_when_declared,
    "register_queue_kind make, when a store is opened": kind_when_opened,
    "Published.add_done_callback callback, Submission.add_done_callback callback, PutOff.add_done_callback callback,"
    " VirtualHost.publisher tell, Publisher.is_held_back go_on": after_commits,
    "VirtualHost.__init__ on_store_failure": store_failure,
    "values of headers": header_values,
    "names, keys and arguments": names_and_keys,
    "ends of bodies": ends_of_bodies,
    "ends of arguments": ends_of_arguments,
    "handlers of the log": handlers_of_the_log,
}

# Asked under locks, and so plain functions, as the header of `_queue/queue.py` says.
CLOCKS = ("clock", "wall_clock")

# What one part of this room gives to another.
INTERNAL = {
    "BrokerQueue.__init__ pager_of",
    "BrokerQueue.attend ask",
    "BrokerQueue.in_slices do_some_locked",
    "BrokerQueue.in_visits do_some_locked",
    "PullSubscription.__init__ on_closed",
    "Subscription.__init__ on_closed",
    "Publisher.__init__ _tell",
    "Submission.__init__ tell",
    "Submission.take_turn join",
    "Submission.take_turn otherwise",
    "Submission.then action",
    "Submission.then otherwise",
    "QueueConsumer.__init__ on_work",
    "QueueConsumer.__init__ on_cancelled",
    "QueueConsumer.__init__ on_timed_out",
    "QueueConsumer.__init__ selector",
}


@pytest.mark.usefixtures("nosy")
@pytest.mark.parametrize("point", ENTRY_POINTS)
def test_user_code_runs_under_no_lock(scene: Scene, point: str) -> None:
    """Wherever the user's code runs, its thread holds no lock of the room, and another thread can use everything that
    the locks guard (broker-front 8)."""
    ENTRY_POINTS[point](scene)
    scene.code.check()


def test_every_place_where_code_is_given_is_walked() -> None:
    """Each parameter of this room's door that takes code is in the list above, or is a clock, or is the room's own."""
    walked = {each.strip() for point in ENTRY_POINTS for each in point.split(",")}
    given = set(places_that_take_code())
    assert sorted(given - walked - INTERNAL) == []
    assert sorted(INTERNAL - given) == []


def places_that_take_code() -> Iterator[str]:
    words = ("Callable", "Predicate", "MessageCallback", "DeadLetterCallback", "Handler", "Tell", "MakeEntryList")
    for name in multiqueue.broker.__all__:
        thing = getattr(multiqueue.broker, name)
        functions = {name: thing}
        if inspect.isclass(thing):
            functions = {
                f"{name}.{each}": function
                for of in reversed(thing.__mro__)
                if of.__module__.startswith("multiqueue.")
                for each, function in vars(of).items()
                if each == "__init__" or not each.startswith("_")
            }
        for place, function in functions.items():
            if inspect.isfunction(function):
                for parameter in inspect.signature(function).parameters.values():
                    takes_code = any(word in str(parameter.annotation) for word in words)
                    if takes_code and parameter.name not in CLOCKS:
                        yield f"{place} {parameter.name}"


# -- the waits


def of_x(scene: Scene) -> tuple[VirtualHost, Gate]:
    """A virtual host `x`, a callback of which is running."""
    host, gate = scene.broker.add_virtual_host("x"), Gate()
    host.declare_queue("q")
    host.consume("q", gate)
    host.publish(Message(routing_key="q"))
    assert gate.entered.wait(PATIENCE)
    return host, gate


def delete_virtual_host(scene: Scene) -> tuple[Gate, Callable[[], object]]:
    _, gate = of_x(scene)
    return gate, lambda: scene.broker.delete_virtual_host("x")


def close_virtual_host(scene: Scene) -> tuple[Gate, Callable[[], object]]:
    host, gate = of_x(scene)
    return gate, host.close


def close_subscription(scene: Scene) -> tuple[Gate, Callable[[], object]]:
    host, gate = of_x(scene)
    return gate, host.subscriptions()[0].close


def close_broker(scene: Scene) -> tuple[Gate, Callable[[], object]]:
    _, gate = of_x(scene)
    return gate, scene.broker.close


def wait_for_room(scene: Scene) -> tuple[Gate, Callable[[], object]]:
    """The callback behind the gate is the one that makes room."""
    queue, gate = scene.declare("full", max_length=1, overflow=Overflow.FLOW_CONTROL), Gate()
    scene.put(to="full")
    scene.put(to="full")
    scene.broker.consume("q", lambda received: gate() and queue.purge())
    scene.put()
    return gate, queue.wait_for_room


def add_virtual_host(scene: Scene) -> tuple[Gate, Callable[[], object]]:
    """Another thread opens it already, and the factory behind the gate is of a kind that its store names."""
    broker = store_with_a_kind(scene)
    Nosy.code = gate = Gate()
    threading.Thread(target=broker.add_virtual_host, args=("x",), name="opens x").start()

    def add() -> None:
        assert [each.name for each in broker.add_virtual_host("x").queues()] == ["of a kind"]

    return gate, add


WAITS = [delete_virtual_host, close_virtual_host, close_subscription, close_broker, wait_for_room, add_virtual_host]


@pytest.mark.usefixtures("nosy")
@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
def test_no_lock_is_held_while_we_wait_for_user_code(
    scene: Scene, wait: Callable[[Scene], tuple[Gate, Callable[[], object]]]
) -> None:
    """While a thread waits for a callback to end, every other thread uses the broker as before: it adds and deletes
    virtual hosts, publishes and consumes (broker-front 8)."""
    gate, begin = wait(scene)
    others_go_on(gate, begin, scene.code)


def test_closing_waits_no_longer_for_an_alert_than_for_a_callback(scene: Scene) -> None:
    """Housekeeping tells of the age of a message, and its listener does not return: the broker closes in its time."""
    scene.broker.close()
    gate = Gate()
    broker = scene.open(on_alert=gate)
    scene.declare("watched", alerts=AlertThresholds(age=1.0))
    scene.put(to="watched")
    scene.clock.advance(2.0)
    assert gate.entered.wait(PATIENCE)
    closing = threading.Thread(target=broker.close, args=(0.05,), daemon=True)
    closing.start()
    closing.join(PATIENCE)
    is_over = not closing.is_alive()
    gate.open.set()
    closing.join(PATIENCE)
    assert is_over


def test_a_name_that_is_being_deleted_is_refused_at_once(scene: Scene) -> None:
    """A callback of a virtual host adds others while that host is deleted, and is told that its name is not free."""
    _, gate = of_x(scene)

    def add() -> None:
        with pytest.raises(multiqueue.broker.NotAllowed, match="vhost 'x' is being deleted; add it again"):
            scene.broker.add_virtual_host("x")
        with pytest.raises(multiqueue.broker.NotAllowed, match="vhost 'x' not found"):
            scene.broker.delete_virtual_host("x")

    scene.code.then(add)
    others_go_on(gate, lambda: scene.broker.delete_virtual_host("x"), scene.code)
    scene.broker.add_virtual_host("x")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, CancelledError])
def test_a_callback_that_would_end_its_thread(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """`sys.exit` in a callback is logged; its subscription and the others of that thread go on."""
    seen: Queue[object] = Queue()

    def call_back(received: Received) -> None:
        received.accept()
        if received.body == "last":
            raise error
        seen.put(received.body)

    with Broker(threads=1) as broker:
        for name in ("q", "other"):
            broker.declare_queue(name)
            broker.consume(name, call_back, prefetch=1)
        for name, body in [("q", "last"), ("q", 1), ("other", 2)]:
            broker.publish(Message(body, routing_key=name))
        assert {seen.get(timeout=PATIENCE), seen.get(timeout=PATIENCE)} == {1, 2}
    assert error.__name__ in caplog.text


def test_two_callbacks_that_would_end_the_callers_thread() -> None:
    """The first exit goes through to the caller, whose thread it is, and the second; what follows both still runs."""
    seen: list[str] = []

    def leave() -> None:
        seen.append("leave")
        sys.exit()

    with Broker() as broker:
        queue = broker.declare_queue("q")
        with pytest.raises(SystemExit):
            queue.callbacks.act([leave, leave, lambda: seen.append("last")])
    assert seen == ["leave", "leave", "last"]


def test_an_alert_that_would_end_the_housekeeping() -> None:
    """`sys.exit` in `on_alert` is logged; messages still expire, and their dead letters come."""
    clock, alerted = FakeClock(1000.0), Queue[str]()

    def leave(alert: Alert) -> None:
        alerted.put("old")
        raise SystemExit

    with Broker(on_alert=leave, clock=clock, housekeeping_interval=0.005) as broker:
        broker.declare_queue("dead")
        short = {"x-message-ttl": 60_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        broker.declare_queue("short", arguments=short)
        broker.declare_queue("old", settings=QueueSettings(alerts=AlertThresholds(age=1.0, repeat_gap=3600.0)))
        for name in ("old", "short"):
            broker.publish(Message(name, routing_key=name))
        clock.advance(2.0)
        assert alerted.get(timeout=PATIENCE) == "old"
        clock.advance(60.0)
        with broker.subscribe("dead") as subscription:
            received = subscription.get(timeout=PATIENCE)
            assert received.body == "short"
            received.accept()


def test_a_selector_that_would_end_a_loader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`sys.exit` in a selector that is asked about messages on the disk cancels its consumer; others are served."""
    with Broker(data=tmp_path, memory_limit=1 << 20) as broker:
        broker.declare_queue("q", durable=True)
        for number in range(80):
            broker.publish(Message(b"%d" % number + bytes(20_000), routing_key="q"))

        def leave(message: Message) -> bool:
            raise SystemExit

        for _ in range(3):  # there are two loaders
            with broker.subscribe("q", selector=leave) as subscription, pytest.raises(ShutDown):
                subscription.get(timeout=PATIENCE)
        with broker.subscribe("q", auto_accept=True) as subscription:
            assert len([subscription.get(timeout=PATIENCE) for _ in range(80)]) == 80
    assert "a load for" in caplog.text
