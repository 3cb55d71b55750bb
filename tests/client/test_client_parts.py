"""The parts that have no threads or sockets of their own, and the work pool on a controlled executor."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from amqp_parts_support import deliver_prefix, encode_deliver, encode_short_string
from client_parts_support import (
    TABLE,
    Assembler,
    Declaration,
    DeliveryTags,
    Happening,
    IllegalHappening,
    Outbox,
    Pool,
    Publication,
    ReceiveBuffer,
    RecordedTopology,
    State,
    Unconfirmed,
    after,
    settings_for,
)
from pamqp import commands

from multiqueue.amqp import NO_PROPERTIES, AmqpError, digest_of, encode_method, encode_properties, wire_message
from multiqueue.broker import Broker
from multiqueue.client import BadAddress, Confirm, connect, parse_address
from multiqueue.errors import Empty
from multiqueue.testing import PATIENCE, interruptions, wait_until_blocked

# ---- addresses


@pytest.mark.parametrize(
    ("url", "shown", "vhost", "password"),
    [
        ("amqp://", "amqp://guest@localhost:5672/%2F", "/", "guest"),
        ("amqp://host", "amqp://guest@host:5672/%2F", "/", "guest"),
        ("amqps://host/", "amqps://guest@host:5671/%2F", "/", "guest"),
        ("amqp://u:p%40w@h1:1,h2,[::1]:3/a%2Fb", "amqp://u@h1:1,h2:5672,[::1]:3/a/b", "a/b", "p@w"),
        ("amqp://u@h/%2F?heartbeat=5&name=x", "amqp://u@h:5672/%2F", "/", ""),
    ],
)
def test_an_address_is_read(url: str, shown: str, vhost: str, password: str) -> None:
    """Hosts, ports, login and virtual host, with RabbitMQ's defaults; shown without the password."""
    address = parse_address(url)
    assert (str(address), address.vhost, address.password) == (shown, vhost, password)
    assert password not in repr(address) or password in ("guest", "")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://host", "not the address of a broker"),
        ("amqp://host:99999", "a port from 1 to 65535"),
        ("amqp://host:x", "is not a host with a port"),
        ("amqp://user:secret@host?timeout=3", "asks for timeout; known are heartbeat"),
        ("secret", "not the address of a broker"),
        ([], "no address to connect to"),
        (["amqp://a", "amqp://u:p@b"], "in more than its host"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused(url: Any, complaint: str) -> None:
    """With what is wrong and what would be right, and never with the password."""
    with pytest.raises(BadAddress, match=complaint) as caught:
        parse_address(url)
    assert "secret@" not in str(caught.value)


def test_without_pamqp_the_extra_is_named() -> None:
    """Instead of a module that the user has never heard of."""
    program = "import sys; sys.modules['pamqp'] = None; import multiqueue.client"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "ImportError: multiqueue.client needs pamqp: pip install 'blocking-multiqueue[amqp]'" in done.stderr


@pytest.mark.parametrize("target", [None, 5672, [None], b"amqp://host"])
def test_what_is_no_address_at_all_is_told(target: Any) -> None:
    """Such as the environment variable that is not set."""
    with pytest.raises(TypeError, match=r"is no address such as 'amqp://localhost', and no broker of this process"):
        connect(target)


def test_options_come_from_defaults_address_and_call() -> None:
    """In this order, the last one wins; a value out of range and an unknown name are refused."""
    address = parse_address("amqp://host?heartbeat=5&frame_max=8192")
    settings = settings_for(address, {"heartbeat": 7.0})
    assert (settings.heartbeat, settings.frame_max, settings.recover) == (7.0, 8192, True)
    with pytest.raises(BadAddress, match="frame_max is 1; it must be at least 4096"):
        settings_for(None, {"frame_max": 1})
    with pytest.raises(BadAddress, match="heartbeat=soon in the address is not a number"):
        settings_for(parse_address("amqp://host?heartbeat=soon"), {})
    with pytest.raises(TypeError, match="NoneType"):
        settings_for(None, {"call_timeout": None})
    with pytest.raises(TypeError, match="no option hartbeat; it has name, heartbeat"):
        settings_for(None, {"hartbeat": 1})


# ---- states


def test_the_table_of_states_is_whole() -> None:
    """Every state can be closed and can end; nothing leaves CLOSED; OPEN is reached from two states alone."""
    for state in State:
        assert after(state, Happening.ENDED) is State.CLOSED
        assert after(state, Happening.CLOSE) in (State.CLOSING, State.CLOSED)
    assert set(TABLE[State.CLOSED].values()) == {State.CLOSED}
    assert [state for state in State if TABLE[state].get(Happening.OPENED)] == [State.OPENING, State.INTERRUPTED]
    with pytest.raises(IllegalHappening, match="opened while closed"):
        after(State.CLOSED, Happening.OPENED)


# ---- bytes to events


def _bytes_of_a_conversation() -> bytes:
    names = encode_short_string("x") + encode_short_string("key")
    pieces = [encode_method(0, commands.Connection.Blocked, reason="r")]
    for tag, body in enumerate([b"", b"abc", b"x" * 10_000], 1):
        properties = encode_properties({"message_id": str(tag)})
        pieces.append(encode_deliver(3, deliver_prefix("t"), tag, False, (names, properties, body), 4096))
    pieces.append(encode_method(3, commands.Queue.PurgeOk, message_count=5))
    return b"".join(pieces)


@pytest.mark.parametrize("step", [1, 7, 4096, 100_000])
def test_events_do_not_depend_on_how_bytes_were_cut(step: int) -> None:
    """The same five events, whole, from any pieces."""
    data, assembler = _bytes_of_a_conversation(), Assembler(4096)
    events = [event for at in range(0, len(data), step) for event in assembler.feed(data[at : at + step])]
    assert [event.number for event in events] == [0, 3, 3, 3, 3]
    assert [len(event.body) for event in events] == [0, 0, 3, 10_000, 0]
    assert [event.method.delivery_tag for event in events[1:4]] == [1, 2, 3]
    assert events[4].method.message_count == 5


def test_frames_out_of_place_are_refused() -> None:
    """A method in the middle of a content, a body that is too long."""
    data = _bytes_of_a_conversation()
    whole = Assembler(4096)
    start = data.index(b"\x01\x00\x03")
    whole.feed(data[:start])
    with pytest.raises(AmqpError, match="in the middle of a content"):
        whole.feed(data[start : start + 40].split(b"\xce")[0] + b"\xce" + encode_method(3, commands.Queue.PurgeOk) * 2)


# ---- confirms


def _message(number: int) -> Publication:
    return Publication("", str(number), False, NO_PROPERTIES, b"", None)


def test_each_of_the_unconfirmed_is_settled_once() -> None:
    """One number, or all up to one; an answer without a publish settles none."""
    unconfirmed = Unconfirmed()
    assert [unconfirmed.add(_message(number)) for number in range(1, 7)] == [1, 2, 3, 4, 5, 6]
    assert unconfirmed.settle(2, False) == [_message(2)]
    assert unconfirmed.settle(2, False) == []
    assert unconfirmed.settle(4, True) == [_message(1), _message(3), _message(4)]
    assert unconfirmed.settle(99, False) == []
    assert unconfirmed.renew() == [_message(5), _message(6)]
    assert unconfirmed.add(_message(7)) == 1
    unconfirmed.check_invariants()


# ---- delivery tags


def test_a_delivery_tag_is_settled_once() -> None:
    """One alone, or with `multiple` all up to it, or all there are; what was settled, or never came, is refused."""
    tags = DeliveryTags()
    assert [tags.deliver(number, is_unsettled=number != 2) for number in range(1, 7)] == [1, 2, 3, 4, 5, 6]
    assert (tags.settle(3, multiple=False), len(tags)) == (3, 4)
    for tag, multiple in ((3, False), (2, False), (7, False), (7, True), (0, False)):
        with pytest.raises(KeyError):
            tags.settle(tag, multiple)
    assert (tags.settle(4, multiple=True), 1 in tags, 4 in tags, 5 in tags) == (4, False, False, True)
    with pytest.raises(KeyError):
        tags.settle(4, multiple=True)
    assert (tags.settle(0, multiple=True), len(tags)) == (0, 0)
    tags.check_invariants()


def test_a_delivery_tag_means_the_same_after_a_recovery() -> None:
    """Tags go on from the highest, the wire's begin with 1 again; settling one of before does nothing (client 9)."""
    tags = DeliveryTags()
    assert [tags.deliver(1, True), tags.deliver(2, True)] == [1, 2]
    tags.renew()
    assert [tags.deliver(1, True), tags.deliver(2, True)] == [3, 4]
    assert [tags.is_stale(tag) for tag in (1, 2, 3, 4)] == [True, True, False, False]
    assert (tags.settle(2, multiple=False), tags.settle(1, multiple=True), len(tags)) == (None, None, 2)
    assert (tags.settle(4, multiple=True), len(tags)) == (2, 0)
    tags.check_invariants()


def test_a_confirm_cannot_be_cancelled_and_calls_back_elsewhere() -> None:
    """Its callbacks go to the pool, not to the thread that brings the answer."""
    dispatched: list[tuple[Any, Any]] = []
    buffer = ReceiveBuffer(1)
    confirm = Confirm(lambda callback, argument: dispatched.append((callback, argument)), buffer.answer_wanted)
    confirm.add_done_callback(print)
    assert not confirm.cancel()
    confirm.set_result(None)
    assert dispatched == [(print, confirm)]


# ---- the receive buffer and the outbox


def test_the_reader_goes_on_at_half_and_for_who_waits() -> None:
    """Stopped at the limit, free at half; free at once while an answer is wanted, or when the link is over."""
    buffer = ReceiveBuffer(100)
    buffer.hold(60)
    buffer.wait_until_free(lambda: False)
    buffer.hold(40)
    reader = threading.Thread(target=buffer.wait_until_free, args=(lambda: False,))
    reader.start()
    wait_until_blocked(reader)
    buffer.release(49)
    assert buffer.is_stopped
    buffer.release(1)
    reader.join(PATIENCE)
    assert buffer.held_bytes == 50
    buffer.hold(50)
    with buffer.answer_wanted():
        buffer.wait_until_free(lambda: False)
        assert not buffer.is_stopped or buffer.held_bytes == 100
    over = threading.Event()
    reader = threading.Thread(target=buffer.wait_until_free, args=(over.is_set,))
    reader.start()
    wait_until_blocked(reader)
    over.set()
    buffer.nudge()
    reader.join(PATIENCE)
    buffer.check_invariants()


def test_the_outbox_gives_all_at_once_and_wakes_publishers() -> None:
    """The writer takes everything in order; who waited for room has it then."""
    outbox: Outbox[bytes] = Outbox(2)
    assert outbox.append(b"a", 1)
    assert outbox.append(b"b", 1)
    assert outbox.is_full
    assert not outbox.wait_for_room(0.0)
    publisher = threading.Thread(target=outbox.wait_for_room)
    publisher.start()
    wait_until_blocked(publisher)
    assert outbox.take() == [b"a", b"b"]
    publisher.join(PATIENCE)
    writer: list[list[bytes]] = []
    thread = threading.Thread(target=lambda: writer.append(outbox.take()))
    thread.start()
    wait_until_blocked(thread)
    outbox.close()
    thread.join(PATIENCE)
    assert writer == [[]]
    assert not outbox.append(b"c", 1)


# ---- what was declared


def _declare(topology: RecordedTopology, queue: str, name: str = "", **fields: Any) -> None:
    known = {"passive": False, "durable": False, "exclusive": False, "auto_delete": False, "arguments": {}}
    topology.record(commands.Queue.Declare, known | {"queue": queue} | fields, name or queue)


def test_topology_is_replayed_in_an_order_that_works() -> None:
    """Exchanges, queues, bindings; what was deleted is not, nor bindings of what was deleted."""
    topology = RecordedTopology()
    _declare(topology, "q1")
    _declare(topology, "q2")
    for exchange in ("x1", "x2"):
        topology.record(commands.Exchange.Declare, {"exchange": exchange, "exchange_type": "topic"})
    for queue in ("q1", "q2"):
        for exchange in ("x1", "x2"):
            binding: dict[str, Any] = {"queue": queue, "exchange": exchange, "routing_key": "k", "arguments": {}}
            topology.record(commands.Queue.Bind, binding)
    topology.record(commands.Queue.Unbind, {"queue": "q1", "exchange": "x2", "routing_key": "k", "arguments": {}})
    topology.record(commands.Queue.Delete, {"queue": "q2", "if_unused": False, "if_empty": False})
    replayed: list[str] = []

    def declare(declaration: Declaration) -> str:
        replayed.append(str(declaration))
        return ""

    assert topology.replay(declare) == []
    assert replayed == [
        "Exchange.Declare(exchange='x1', exchange_type='topic')",
        "Exchange.Declare(exchange='x2', exchange_type='topic')",
        "Queue.Declare(queue='q1')",
        "Queue.Bind(queue='q1', exchange='x1', routing_key='k')",
    ]


def test_a_queue_that_the_server_named_is_renamed_everywhere() -> None:
    """In bindings and for calls with an old name, over several recoveries; a refusal costs only itself."""
    topology = RecordedTopology()
    _declare(topology, "", "amq.gen-1", exclusive=True)
    _declare(topology, "broken")
    topology.record(commands.Queue.Bind, {"queue": "amq.gen-1", "exchange": "x", "routing_key": "", "arguments": {}})
    names = iter(["amq.gen-2", "amq.gen-3"])
    bound: list[str] = []

    def declare(declaration: Declaration) -> str:
        if declaration.method is commands.Queue.Bind:
            bound.append(declaration.fields["queue"])
            return ""
        if declaration.fields["queue"] == "broken":
            raise LookupError
        return next(names)

    for _ in range(2):
        ((failed, error),) = topology.replay(declare)
        assert (failed.fields["queue"], type(error)) == ("broken", LookupError)
    assert bound == ["amq.gen-2", "amq.gen-3"]
    assert topology.current_name("amq.gen-1") == "amq.gen-3"


def test_a_refused_queue_costs_the_next_one_nothing() -> None:
    """Of two queues that the server named, one cannot be declared again: the other's bindings are its own still."""
    topology = RecordedTopology()
    for name in ("amq.gen-1", "amq.gen-2"):
        _declare(topology, "", name, exclusive=True)
        topology.record(commands.Queue.Bind, {"queue": name, "exchange": "x", "routing_key": name, "arguments": {}})
    answers: Iterator[str | None] = iter([None, "amq.gen-3"])
    bound: list[tuple[str, str]] = []

    def declare(declaration: Declaration) -> str:
        if declaration.method is commands.Queue.Bind:
            bound.append((declaration.fields["queue"], declaration.fields["routing_key"]))
            return ""
        name = next(answers)
        if name is None:
            raise LookupError
        return name

    assert len(topology.replay(declare)) == 1
    assert bound == [("amq.gen-1", "amq.gen-1"), ("amq.gen-3", "amq.gen-2")]


# ---- messages between client and broker


def test_properties_cross_a_broker_in_the_bytes_they_came_in() -> None:
    """Over the direct link a message brings the properties that a wire brought, a dead letter every one it keeps."""
    headers = b"\x01l" + b"l" + (7).to_bytes(8) + b"\x01s" + b"S\0\0\0\1\xff"
    block = b"\x20\x04" + len(headers).to_bytes(4) + headers + b"\x01c"  # headers and cluster-id, no delivery mode
    with Broker() as broker, connect(broker) as connection, connection.channel() as channel:
        channel.queue_declare("here", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "there"})
        channel.queue_declare("there")
        names = encode_short_string("") + encode_short_string("here")
        broker.publish(wire_message(b"m", "", "here", names, block, digest_of(block), None))
        came = channel.basic_get("here")
        assert came is not None
        assert came._block == block
        came.reject()
        channel.basic_get("here")  # the reject is done
        dead = channel.basic_get("there")
        assert dead is not None
        assert headers in dead._block
        assert dead._block.endswith(b"\x01c")


# ---- numbers of channels


def test_a_channel_whose_opening_is_interrupted_leaves_its_number_to_none_too_soon() -> None:
    """Wherever that was: those that are opened after it have numbers of their own, and the server takes them."""
    with Broker() as broker:
        for point in interruptions("multiqueue.client._connection", "multiqueue.client._channel.lifecycle"):
            connection = connect(broker, close_timeout=0.1)
            with point.raising():
                connection.channel()
            channels = [connection.channel() for _ in range(3)]
            for channel in channels:
                channel.basic_qos(1)
            assert len({channel.number for channel in channels}) == 3, point
            connection.close()


# ---- the work pool, on an executor whose threads are the test


class ByHand(Executor):
    """Runs nothing by itself."""

    def __init__(self) -> None:
        self.submitted: list[Callable[[], None]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted.append(partial(fn, *args, **kwargs))
        return Future()

    def run_next(self) -> None:
        self.submitted.pop(0)()


def test_one_announcement_starts_one_run_that_does_all() -> None:
    """However many jobs a lane has; when nothing is left nothing is submitted."""
    executor, done = ByHand(), list[Any]()
    pool = Pool(executor, 4, linger=0.0)
    lane = pool.add_lane("a")
    for number in range(35):
        pool.put(lane, done.append, number)
    assert len(executor.submitted) <= 4
    while executor.submitted:
        executor.run_next()
    assert done == list(range(35))
    pool.put(lane, done.append, "more")
    assert len(executor.submitted) == 1
    executor.run_next()
    assert done[-1] == "more"
    assert not executor.submitted
    pool.runner.check_invariants()


def test_a_busy_lane_costs_others_no_thread() -> None:
    """While a job runs, another lane's job starts another run, its own lane's next job none."""
    executor, order = ByHand(), list[Any]()
    pool = Pool(executor, 2, linger=0.0)
    first, second = pool.add_lane(1), pool.add_lane(2)

    def busy(_: object) -> None:
        pool.put(first, order.append, "next of first")
        assert not executor.submitted
        pool.put(second, order.append, "of second")
        assert len(executor.submitted) == 1
        executor.run_next()
        assert order == ["of second"]

    pool.put(first, busy, None)
    executor.run_next()
    assert order == ["of second", "next of first"]
    pool.runner.check_invariants()


def test_no_more_runs_than_asked_for() -> None:
    """With `parallel=1` the second lane waits for the first one's run."""
    executor, order = ByHand(), list[Any]()
    pool = Pool(executor, 1, linger=0.0)
    lanes = [pool.add_lane(number) for number in range(3)]
    for lane in lanes:
        pool.put(lane, order.append, lane.key)
    assert len(executor.submitted) == 1
    executor.run_next()
    assert order == [0, 1, 2]


def test_a_job_that_comes_as_a_run_leaves_is_done() -> None:
    """1. A run finds nothing.  2. A job is put; no further run may be started.  3. The run looks again."""
    executor, done = ByHand(), list[Any]()
    pool = Pool(executor, 1, linger=0.0)
    lane = pool.add_lane("a")
    take, moments = pool.work.take, iter(["between"])

    def take_late(block: bool, timeout: float | None) -> Any:
        try:
            return take(block, timeout)
        except Empty:
            if next(moments, None) == "between":
                pool.put(lane, done.append, "late")
            raise

    pool.put(lane, done.append, 1)
    pool.put(lane, done.append, 2)
    pool.runner._work = SimpleNamespace(take=take_late, empty=pool.work.empty)  # type: ignore[assignment]
    executor.run_next()
    assert done == [1, 2, "late"]
    assert not executor.submitted


def test_lanes_take_turns() -> None:
    """After a job of one lane the next lane has its turn."""
    executor, order = ByHand(), list[Any]()
    pool = Pool(executor, 1, linger=0.0)
    lanes = [pool.add_lane(number) for number in range(2)]
    for lane in lanes:
        for _ in range(8):
            pool.put(lane, order.append, lane.key)
    executor.run_next()
    assert order == [0, 1] * 8


def test_one_run_lingers_and_is_woken_by_the_next_job() -> None:
    """On a pool of ours: no second submission while it waits; a second lane still gets a run of its own."""
    submitted: list[threading.Thread] = []

    class Threads(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            submitted.append(threading.Thread(target=fn, args=args))
            submitted[-1].start()
            return Future()

    pool = Pool(Threads(), 2, linger=60.0)
    lanes, both, done = [pool.add_lane(number) for number in range(2)], threading.Barrier(2), threading.Semaphore(0)
    for _ in range(3):
        pool.put(lanes[0], lambda _: done.release(), None)
        assert done.acquire(timeout=PATIENCE)
        wait_until_blocked(submitted[0])
        assert len(submitted) == 1

    def meet(_: object) -> None:
        both.wait(PATIENCE)
        done.release()

    for lane in lanes:
        pool.put(lane, meet, None)
    for _ in lanes:
        assert done.acquire(timeout=PATIENCE)
    pool.work.shutdown()
    for thread in submitted:
        thread.join(PATIENCE)
    assert len(submitted) == 2
    pool.runner.check_invariants()


def test_a_job_that_raises_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """SystemExit of a callback neither: the jobs behind it run, and it is logged."""
    executor, done = ByHand(), list[Any]()
    pool = Pool(executor, 1, linger=0.0)
    lane = pool.add_lane("a")

    def leave(_: object) -> None:
        raise SystemExit

    pool.put(lane, leave, None)
    pool.put(lane, done.append, 1)
    executor.run_next()
    assert done == [1]
    assert "SystemExit" in caplog.text


def test_an_executor_that_was_shut_down_is_told() -> None:
    """Nothing hangs in silence: `on_broken` is called."""

    class Gone(ByHand):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            raise RuntimeError("cannot schedule new futures after shutdown")

    broken: list[Exception] = []
    pool = Pool(Gone(), 1, broken.append, linger=0.0)
    pool.put(pool.add_lane("a"), print, None)
    assert "after shutdown" in str(broken[0])
    pool.runner.check_invariants()


def test_a_run_whose_executor_is_shut_down_meanwhile_does_what_is_left() -> None:
    """Jobs that are there still run: the thread that has one goes on with those for which it can start no other."""

    class ForOne(ByHand):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            if self.submitted:
                raise RuntimeError("cannot schedule new futures after shutdown")
            return super().submit(fn, *args, **kwargs)

        def run_next(self) -> None:
            self.submitted[0]()

    executor, done, broken = ForOne(), list[Any](), list[Exception]()
    pool = Pool(executor, 2, broken.append, linger=0.0)
    for number in range(3):
        pool.put(pool.add_lane(number), done.append, number)
    executor.run_next()
    assert done == [0, 1, 2]
    assert broken
    pool.runner.check_invariants()
