"""What is declared durable is there when the virtual host is opened again, and nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from broker_durable_support import Keeper, bodies, holding, keepers, persistent
from broker_parts_support import definition_of, frozen, here, queue_from

from multiqueue.broker import (
    AlertThresholds,
    Message,
    MessageGroups,
    NotFound,
    Overflow,
    PreconditionFailed,
    QueueKind,
    QueueSettings,
    VirtualHost,
    without_waiting,
)
from multiqueue.store import Define, Definition, MemoryStore, StoreDamaged, StoreFailed, StoreFull, Undefine
from multiqueue.testing import PATIENCE, wait_until_blocked

ARGUMENTS = {
    "text": "päd\0",
    "bytes": b"\x00\xff",
    "whole": -(2**63),
    "small": -5,
    "float": 0.1,
    "decimal": Decimal("1.10"),
    "time": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "yes": True,
    "nothing": None,
    "list": [1, "two", [b"3"]],
    "table": {"~b": "no bytes", "n": {"deep": Decimal(2)}},
    "~m": "a key like a mark",
}


@pytest.fixture(params=["memory", "sqlite"])
def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Keeper]:
    yield from keepers(tmp_path, request.param)


def shape(host: VirtualHost) -> object:
    """Everything that is declared, comparable across restarts."""
    exchanges = {
        each.name: (each.type, each.auto_delete, each.internal, each.alternate, dict(each.arguments))
        for each in host._topology.exchanges()
    }
    queues = {each.name: (each.queue.settings, dict(each.arguments)) for each in host._topology.queues()}
    bindings = {
        (each.source.name, each.destination.name, type(each.destination), each.routing_key, frozen(each.arguments))
        for each in host.bindings()
    }
    return exchanges, queues, bindings


def test_what_is_durable_comes_back(keeper: Keeper) -> None:
    """Exchanges, queues and bindings of every kind with all their arguments, cleanly closed or not."""
    host = keeper.host
    host.declare_exchange("logs", "topic", durable=True, internal=True, arguments={"alternate-exchange": "rest"})
    host.declare_exchange("rest", "fanout", durable=True, arguments=ARGUMENTS)
    host.declare_exchange("match", "headers", durable=True, auto_delete=True)
    host.declare_queue("q", durable=True, arguments={"x-message-ttl": 60_000, "x-max-priority": 5, **ARGUMENTS})
    host.declare_queue("auto", durable=True, auto_delete=True)
    host.bind_exchange("logs", "rest", "key")
    host.bind_queue("q", "logs", "a.*.#")
    host.bind_queue("q", "match", arguments={"x-match": "any", **ARGUMENTS})
    host.bind_queue("q", "match", arguments={"x-match": "all", "a": 1})
    host.bind_queue("q", "amq.topic", "t")
    host.bind_queue("auto", "logs", arguments={"x-filter-jms-selector": "amount > 5"})
    before = shape(host)
    assert shape(keeper.restart()) == before
    assert shape(keeper.crash()) == before
    host = keeper.host
    host._topology.check_invariants()
    host.publish(Message(b"routed", exchange="amq.topic", routing_key="t", persistent=True))
    host.publish(Message(b"matched", exchange="match", persistent=True, headers={"a": 1, "b": 2}))
    assert bodies(host) == [b"routed", b"matched"]


@pytest.mark.parametrize(
    "settings",
    [
        QueueSettings(durable=True, kind=QueueKind.SORTED, sort_key="when"),
        QueueSettings(durable=True, kind=QueueKind.LAST_VALUE, lvq_key="who"),
        QueueSettings(durable=True, kind=QueueKind.PRIORITY, priority_levels=3),
        QueueSettings(durable=True, groups=MessageGroups.SHARED, group_key="g", single_active_consumer=True),
        QueueSettings(
            durable=True,
            max_length=1,
            overflow=Overflow.FLOW_CONTROL,
            flow_resume_ratio=0.5,
            alerts=AlertThresholds(depth=3, age=1.5),
            dead_letter_exchange="",
            dead_letter_routing_key="dead",
            max_delivery_attempts=3,
        ),
    ],
)
def test_every_setting_of_a_queue_comes_back(settings: QueueSettings) -> None:
    """What was said by settings is as good as what was said by arguments."""
    keeper = next(keepers(Path(), "memory"))
    keeper.host.declare_queue("q", settings=settings)
    assert keeper.restart().queue("q").settings == settings
    keeper.host.declare_queue("q", settings=settings)  # the same again is no error
    keeper.close()


def test_what_is_somebodys_own_or_not_durable_is_gone(keeper: Keeper) -> None:
    """Exclusive queues, transient queues and exchanges, and every binding with such an end, go with the process."""
    host = keeper.host
    nothing = shape(host)
    host.declare_exchange("gone")
    host.declare_queue("transient")
    host.declare_queue("own", durable=True, exclusive=True)
    host.publish(persistent(b"a", key="own"))
    host.bind_queue("own", "amq.direct", "a")
    host.bind_queue("transient", "amq.direct", "b")
    assert not host.queue("own").is_stored
    assert keeper.store.definitions() == []
    assert keeper.store.statistics().messages == 0
    assert shape(keeper.restart()) == nothing


def test_half_durable_bindings_are_not_kept(keeper: Keeper) -> None:
    """A durable queue that is bound to a transient exchange comes back unbound."""
    host = keeper.host
    host.declare_exchange("gone")
    host.declare_queue("q", durable=True)
    host.bind_queue("q", "gone", "a")
    assert [binding.source.name for binding in keeper.restart().bindings()] == [""]


def test_what_was_deleted_stays_deleted(keeper: Keeper) -> None:
    """An end goes with its bindings, an auto-delete exchange with its last one, a queue with its messages."""
    host = keeper.host
    nothing = shape(host)
    host.declare_exchange("e", durable=True)
    host.declare_exchange("auto", durable=True, auto_delete=True)
    host.declare_queue("q", durable=True)
    host.declare_queue("r", durable=True)
    host.bind_queue("q", "e", "a", {"n": Decimal("1.0")})
    host.bind_queue("r", "auto", "b")
    host.bind_exchange("auto", "e", "c")
    host.publish(persistent(b"a"))
    assert host.unbind_queue("q", "e", "a", {"n": Decimal("1.00")})  # equal, if written otherwise
    assert host.unbind_queue("r", "auto", "b")
    assert host.delete_queue("q") == 1
    host.delete_queue("r")
    host.delete_exchange("e")
    assert keeper.store.definitions() == []
    assert shape(keeper.crash()) == nothing
    assert keeper.store.levels() == []


def test_a_queue_that_deletes_itself_is_deleted_in_the_store(keeper: Keeper) -> None:
    """With its last consumer an auto-delete queue goes, with its messages and its definition."""
    host = keeper.host
    host.declare_queue("q", durable=True, auto_delete=True)
    host.publish(persistent(b"a"))
    host.subscribe("q").close()
    host.wait_for_commits()
    assert keeper.store.definitions() == []
    assert keeper.store.levels() == []


def test_a_name_that_is_used_again_is_another_queue(keeper: Keeper) -> None:
    """Deleting and declaring again leaves nothing of the first queue, neither messages nor settings."""
    host = keeper.host
    host.declare_queue("q", durable=True)
    first = host.queue("q").store_number
    host.publish(persistent(b"old"))
    host.delete_queue("q")
    host.declare_queue("q", durable=True, arguments={"x-max-length": 10})
    host.publish(persistent(b"new"))
    host = keeper.restart()
    assert host.queue("q").store_number > first
    assert host.queue("q").settings.max_length == 10
    assert bodies(host) == [b"new"]


def test_a_second_declaration_waits_for_the_commit_too() -> None:
    """Two threads declare one queue: neither returns before the definition is committed, once (broker-durability 8)."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    returned: list[object] = []
    threads = [
        threading.Thread(target=lambda: returned.append(host.declare_queue("q", durable=True))) for _ in range(2)
    ]
    with holding(store):
        for thread in threads:
            thread.start()
        wait_until_blocked(lambda: store.statistics().pending_operations == 1)
        assert returned == []
    for thread in threads:
        thread.join(PATIENCE)
    assert returned[0] is returned[1] is host.queue("q")
    assert len(store.definitions()) == 1
    host.close()


class _TellingLock:
    """A lock that tells when a thread has to wait for it."""

    def __init__(self, contended: threading.Event) -> None:
        self._lock = threading.Lock()
        self._contended = contended

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._contended.set()
            self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()


def test_a_declaration_waits_for_one_that_is_on_its_way_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that another thread has made, and not handed to the store yet, is committed before `declare_queue`
    returns (broker-durability 8)."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    is_made, go_on = threading.Event(), threading.Event()
    topology: Any = host._topology
    topology._order = _TellingLock(go_on)
    submit = topology._journal.submit

    def late(*operations: Any) -> Any:
        is_made.set()
        assert go_on.wait(PATIENCE)
        return submit(*operations)

    monkeypatch.setattr(topology._journal, "submit", late)
    kept: list[int] = []

    def declare() -> None:
        host.declare_queue("q", durable=True)
        kept.append(len(store.definitions()))
        go_on.set()

    threads = [threading.Thread(target=declare) for _ in range(2)]
    threads[0].start()
    assert is_made.wait(PATIENCE)
    threads[1].start()
    for thread in threads:
        thread.join(PATIENCE)
    assert kept == [1, 1]
    host.close()


def test_a_declaration_that_the_store_refuses_is_undone() -> None:
    """A full store: the declaration raises, there is no such thing, and it can be tried again (broker-durability 8)."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    host.declare_queue("bound", durable=True)
    nothing = shape(host)
    attempts = (
        lambda: host.declare_queue("q", durable=True),
        lambda: host.declare_exchange("e", durable=True),
        lambda: host.bind_queue("bound", "amq.direct", "key"),
    )
    for attempt in attempts:
        host.wait_for_commits()  # of what undid the one before
        store.fail_at(1, StoreFull("no room"))
        with pytest.raises(StoreFull):
            attempt()
        assert shape(host) == nothing
    for attempt in attempts:
        attempt()
    host.wait_for_commits()
    assert len(store.definitions()) == 4
    host.close()


@pytest.mark.parametrize(
    "remove",
    [
        lambda host: host.delete_queue("q"),
        lambda host: host.delete_exchange("e"),
        lambda host: host.unbind_queue("q", "e", "key"),
    ],
)
@pytest.mark.parametrize("refusals", [1, 2])
def test_a_removal_that_the_store_refuses_is_owed(remove: Callable[[VirtualHost], object], refusals: int) -> None:
    """What was deleted is gone at once, and after the next opening too: housekeeping asks the store again
    (broker-durability 10)."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    host.declare_queue("q", durable=True)
    host.declare_exchange("e", durable=True)
    host.bind_queue("q", "e", "key")
    host.publish(persistent(b"kept", "key", exchange="e"))
    store.fail_at(1, StoreFull("no room"))
    remove(host)
    left = shape(host)
    for _ in range(refusals - 1):
        store.fail_at(1, StoreFull("no room"))
        host._journal.housekeeping()
        with pytest.raises(StoreFull, match="is tried again"):
            host.wait_for_commits()
    host._journal.housekeeping()
    host.close()
    store = store.reopened()
    host = VirtualHost(store=store)
    assert shape(host) == left
    host.wait_for_commits()
    assert sum(level.messages for level in store.levels()) == len(host.queues())
    host.close()


def test_a_removal_that_is_owed_spares_what_was_declared_anew() -> None:
    """The queue, the exchange and the binding of the same names stay; the messages of the queue before do not."""
    store = MemoryStore()
    host = VirtualHost(store=store)

    def declare() -> None:
        host.declare_queue("q", durable=True)
        host.declare_exchange("e", durable=True)
        host.bind_queue("q", "e", "key")
        host.publish(persistent(b"kept", "key", exchange="e"))

    declare()
    for remove in (host.delete_queue, host.delete_exchange):
        store.fail_at(1, StoreFull("no room"))
        remove("q" if remove == host.delete_queue else "e")
    declare()
    host._journal.housekeeping()
    host.wait_for_commits()
    left = shape(host)
    host.close()
    host = VirtualHost(store=store.reopened())
    assert shape(host) == left
    assert bodies(host) == [b"kept"]
    host.close()


def test_a_change_without_waiting_tells_of_its_commit() -> None:
    """The call returns before it. A refused change is undone by then, as what follows a commit and so may not wait;
    a call that met the change of another is told of no refusal (broker-durability 8)."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    told: list[object] = []
    may_wait: list[bool] = []
    ended = threading.Event()
    store.fail_at(1, StoreFull("no room"))
    with holding(store):
        with without_waiting() as own:
            queue = host.declare_queue("q", durable=True)
        with without_waiting() as met:
            assert host.declare_queue("q", durable=True) is queue
        queue.add_consumer(
            lambda consumer: None, on_cancelled=lambda consumer: may_wait.append(not here.follows_commit)
        )
        own.add_done_callback(lambda error: told.append((type(error), queue.is_deleted)))
        met.add_done_callback(told.append)
        met.add_done_callback(lambda _: ended.set())
        assert told == []
    assert ended.wait(PATIENCE)
    assert told == [(StoreFull, True), None]
    assert may_wait == [False]
    with without_waiting() as nothing:
        host.declare_queue("transient")
        host.declare_queue("transient")
    assert nothing.commit is None
    host.close()


def test_an_argument_that_cannot_be_stored_is_refused(keeper: Keeper) -> None:
    """The declaration names the queue and the value, and there is no such queue."""
    with pytest.raises(PreconditionFailed, match="queue 'q' in vhost '/': a set cannot be in a table"):
        keeper.host.declare_queue("q", durable=True, arguments={"odd": {1}})
    with pytest.raises(NotFound):
        keeper.host.queue("q")


def test_a_declaration_after_the_store_failed_raises() -> None:
    """Fail-stop holds for definitions as well, for callers that wait for one, and when the virtual host is closed."""
    store = MemoryStore()
    host = VirtualHost(store=store)
    store.fail_at(1, StoreFailed("the disk failed"))
    with pytest.raises(StoreFailed):
        host.declare_queue("q", durable=True)
    with pytest.raises(StoreFailed):
        host.declare_exchange("e")
    host.close()
    with pytest.raises(StoreFailed):
        host.declare_exchange("e")


def test_messages_without_a_queue_are_deleted_when_the_host_is_opened(keeper: Keeper) -> None:
    """What a crash left between a definition and its messages does not stay for ever."""
    host = keeper.host
    host.declare_queue("q", durable=True)
    host.publish(persistent(b"orphan"))
    host.publish(persistent(b"orphan"))
    [define] = [definition_of(declared) for declared in host._topology.queues()]
    host.declare_queue("r", durable=True)
    host.publish(persistent(b"stays", key="r"))
    keeper.store.submit([Undefine(define.kind, define.key)]).wait()
    host = keeper.crash()
    host.wait_for_commits()
    assert [level.messages for level in keeper.store.levels()] == [1]
    assert bodies(host, "r") == [b"stays"]


def test_a_definition_that_cannot_be_read_says_which() -> None:
    """A damaged document is an error that names it, not a missing queue."""
    store = MemoryStore()
    store.submit([Define("queue", "orders", "{")]).wait()
    with pytest.raises(StoreDamaged, match="definition of queue 'orders' is not JSON"):
        VirtualHost(store=store)
    with pytest.raises(StoreDamaged, match="not a JSON object"):
        queue_from(Definition("queue", "orders", "[]"))
    store.close()


@pytest.mark.parametrize(
    ("kind", "key", "document"),
    [
        ("queue", "x" * 256, {"number": 3, "settings": {"durable": True}, "arguments": {}}),
        ("queue", "q", {"number": 3, "settings": {"durable": "yes"}, "arguments": {}}),
        ("queue", "q", {"number": 3, "settings": {"unheard_of": 1}, "arguments": {}}),
        ("queue", "q", {"number": 3, "settings": {}, "arguments": {"a": "\ud800"}}),
        ("queue", "q", {"number": 3, "settings": {}}),
        ("exchange", "x" * 256, {"type": "direct", "auto_delete": False, "internal": False, "arguments": {}}),
        ("exchange", "x", {"type": "stone", "auto_delete": False, "internal": False, "arguments": {}}),
        ("binding", "b", ["amq.topic", "amq.fanout", False, "\ud800", {}]),
        ("binding", "b", ["amq.topic", "amq.fanout", False, 5, {}]),
        ("binding", "b", ["amq.topic", "amq.fanout"]),
    ],
)
def test_a_definition_that_nobody_declared_is_named(kind: str, key: str, document: object) -> None:
    """Of an edited dump: the store is not opened with what no list could show, and loses nothing."""
    store = MemoryStore()
    store.submit([Define(kind, key, json.dumps(document))]).wait()
    with pytest.raises(StoreDamaged, match=f"the definition of {kind} '{key}' is none that a declaration stores"):
        VirtualHost(store=store)
    store.close()


def test_a_setting_from_before_it_existed_has_its_usual_value() -> None:
    """A document names only what is unusual, so that older stores open under newer settings."""
    kept = queue_from(Definition("queue", "q", '{"number": 3, "settings": {"durable": true}, "arguments": {}}'))
    assert kept == ("q", 3, QueueSettings(durable=True), {}, {})


def test_concurrent_changes_leave_the_store_as_the_topology_is(keeper: Keeper) -> None:
    """Threads that declare, bind and delete the same names: what is stored in the end is what is there."""
    host = keeper.host
    host.declare_exchange("e", durable=True)

    def change(number: int) -> None:
        for turn in range(15):
            name = f"q{(number + turn) % 3}"
            host.declare_queue(name, durable=True)
            try:
                host.bind_queue(name, "e", name)
                host.publish(persistent(b"a", key=name))
            except NotFound:
                pass
            if turn % 2:
                host.delete_queue(name)

    threads = [threading.Thread(target=change, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    before: Any = shape(host)
    depths = {queue.name: len(queue) for queue in host.queues()}
    assert shape(keeper.crash()) == before
    assert {queue.name: len(queue) for queue in keeper.host.queues()} == depths
