"""Kinds of queue by name: the contract of an entry list, registration, what is refused, and what a restart does."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from multiqueue.broker import (
    Broker,
    EntryList,
    Message,
    Overflow,
    PreconditionFailed,
    PriorityEntryList,
    QueueKind,
    QueueSettings,
    SortedEntryList,
    UnknownQueueKind,
    known_queue_kinds,
    register_queue_kind,
    unregister_queue_kind,
)
from multiqueue.testing.contracts import EntryListContract

EXAMPLE = Path(__file__).parents[2] / "examples" / "broker_own_queue_kind.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_queue_kind", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Register = Callable[[str, Any], None]


@pytest.fixture
def register() -> Iterator[Register]:
    """`register_queue_kind`, undone after the test."""
    done: list[str] = []

    def add(name: str, make: Any) -> None:
        register_queue_kind(name, make)
        done.append(name)

    yield add
    for name in done:
        if name in known_queue_kinds():
            unregister_queue_kind(name)


class TestStandard(EntryListContract):
    kind = QueueKind.STANDARD


class TestPriority(EntryListContract):
    kind = QueueKind.PRIORITY


class TestSorted(EntryListContract):
    kind = QueueKind.SORTED
    settings = {"sort_key": "key"}  # noqa: RUF012  # read only


class TestLastValue(EntryListContract):
    kind = QueueKind.LAST_VALUE
    settings = {"lvq_key": "key"}  # noqa: RUF012  # read only


class TestFair(EntryListContract):
    kind = QueueKind.FAIR


class TestFairWithLevels(EntryListContract):
    kind = QueueKind.FAIR
    options = {"key": "header:tenant", "cost": "header:cost"}  # noqa: RUF012  # read only
    settings = {"max_priority": 9}  # noqa: RUF012  # read only


class TestShortestJobFirst(EntryListContract):
    kind = "shortest-job-first"

    @pytest.fixture(autouse=True)
    def _registered(self, register: Register) -> None:
        register(self.kind, example().ShortestJobFirst)

    def message(self, number: int) -> Message:
        return Message(str(number).encode(), headers={"seconds": number * 7 % 5})


class TestNewestFirst(EntryListContract):
    kind = "newest-first"

    @pytest.fixture(autouse=True)
    def _registered(self, register: Register) -> None:
        register(self.kind, example().NewestFirst)


class Forgetful(SortedEntryList):
    """A kind with a mistake: it gives a position twice."""

    def add(self, entry: Any) -> None:
        self._arrivals = 0
        super().add(entry)


def test_the_contract_notices_a_list_that_is_wrong(register: Register) -> None:
    """A position that is given twice, a list that goes backwards, one that forgets: each fails a test of it."""
    register("forgetful", Forgetful)
    contract = EntryListContract()
    contract.kind = "forgetful"
    contract.message = lambda number: Message(str(number))  # type: ignore[method-assign]
    failed = 0
    for name in dir(contract):
        if name.startswith("test_"):
            try:
                getattr(contract, name)()
            except (AssertionError, LookupError):
                failed += 1
    assert failed >= 4


@pytest.mark.parametrize(
    ("name", "make", "error", "said"),
    [
        ("Bad Name", list, ValueError, "'Bad Name' is not a name for a queue kind: small letters, digits"),
        ("", list, ValueError, "'' is not a name"),
        ("priority", list, ValueError, "queue kind 'priority' is taken"),
        ("mine", 5, TypeError, "queue kind 'mine' needs a callable that makes its lists, not 5"),
    ],
)
def test_what_cannot_be_registered(name: str, make: Any, error: type[Exception], said: str) -> None:
    """A name that is none or is taken, a factory that cannot be called: refused with a sentence, and not registered."""
    before = known_queue_kinds()
    with pytest.raises(error, match=said):
        register_queue_kind(name, make)
    assert known_queue_kinds() == before


def test_a_kind_is_registered_once(register: Register) -> None:
    """A second one of the name is refused until the first is unregistered; unregistering twice is an error."""
    register("mine", SortedEntryList)
    with pytest.raises(ValueError, match="queue kind 'mine' is taken; choose another name, or unregister it first"):
        register_queue_kind("mine", SortedEntryList)
    unregister_queue_kind("mine")
    with pytest.raises(KeyError, match="'mine' is not registered"):
        unregister_queue_kind("mine")


def test_a_kind_that_nobody_registered() -> None:
    """By settings and by argument the name is told, with those that are known; nothing is declared."""
    with Broker() as broker:
        with pytest.raises(
            UnknownQueueKind, match=r"queue 'q' .* is of the kind 'other', which is not registered"
        ) as told:
            broker.declare_queue("q", settings=QueueSettings(kind="other"))
        assert told.value.kind == "other"
        with pytest.raises(
            PreconditionFailed, match=r"arg 'x-queue-kind' .*'other' is not registered; known are standard"
        ):
            broker.declare_queue("q", arguments={"x-queue-kind": "other"})
        assert broker.virtual_host().queues() == []


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda settings: [], "has made a list for queue 'q' .*, which lacks start, key_of, add, get, after"),
        (lambda settings: settings.kind_options["seed"], "makes no list for queue 'q' .*: 'NoneType' object is not"),
        (lambda: None, "makes no list for queue 'q' .* takes 0 positional arguments"),
    ],
)
def test_a_factory_that_makes_no_list(make: Any, said: str, register: Register) -> None:
    """What it has made, or what went wrong in it, is told; nothing is declared."""
    register("bad", make)
    with Broker() as broker:
        with pytest.raises(PreconditionFailed, match=f"queue kind 'bad' {said}"):
            broker.declare_queue("q", settings=QueueSettings(kind="bad"))
        assert broker.virtual_host().queues() == []


def test_options_are_the_kinds_own(register: Register) -> None:
    """They reach the factory from settings and arguments; a queue of ours refuses them; redeclaring compares them."""
    seen: list[Any] = []

    def make(settings: QueueSettings) -> EntryList:
        seen.append(settings.kind_options)
        return SortedEntryList(settings)

    register("seeded", make)
    with Broker() as broker:
        broker.declare_queue("a", settings=QueueSettings(kind="seeded", kind_options={"seed": 3}))
        arguments = {"x-queue-kind": "seeded", "x-queue-kind-options": {"seed": 4}}
        queue = broker.declare_queue("b", arguments=arguments)
        assert seen == [{"seed": 3}, {"seed": 4}]
        assert broker.declare_queue("b", arguments=arguments) is queue
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-queue-kind-options'"):
            broker.declare_queue("b", arguments={**arguments, "x-queue-kind-options": {"seed": 5}})
        with pytest.raises(
            PreconditionFailed, match="kind_options are for fair queues and for kinds that are registered, not for a st"
        ):
            broker.declare_queue("c", arguments={"x-queue-kind-options": {"seed": 5}})
        with pytest.raises(PreconditionFailed, match="max_priority belongs to a priority queue, not to a seeded one"):
            broker.declare_queue("c", arguments={**arguments, "x-max-priority": 3})
        assert broker.declare_queue("d", arguments={"x-queue-kind": "priority"}).settings.kind is QueueKind.PRIORITY


def test_a_queue_of_ones_own_has_all_that_queues_have(register: Register) -> None:
    """A ring takes what the kind would serve last, a release goes to its place, and the order holds throughout."""
    register("shortest", example().ShortestJobFirst)
    with Broker() as broker:
        settings = QueueSettings(kind="shortest", max_length=3, overflow=Overflow.RING)
        queue = broker.declare_queue("q", settings=settings)
        for seconds in (5, 1, 9, 3):
            queue.put(Message(seconds, headers={"seconds": seconds}))
        assert [message.body for message in queue.browse()] == [1, 3, 5]  # the longest went
        first = broker.get("q")
        assert first is not None
        queue.put(Message(0, headers={"seconds": 0}))
        first.release()
        assert [message.body for message in queue.browse()] == [0, 1, 3]
        queue.check_invariants()


def test_a_kind_of_ones_own_may_be_a_priority_list(register: Register) -> None:
    """A program's kind that makes a `PriorityEntryList` has AMQP's ten levels, as a priority queue has."""
    register("mine", PriorityEntryList)
    with Broker() as broker:
        broker.declare_queue("q", settings=QueueSettings(kind="mine"))
        for priority in (2, 9, 4, 7):
            broker.publish(Message(bytes([priority]), routing_key="q", priority=priority))
        got = [broker.get("q", auto_accept=True) for _ in range(4)]
    assert [each and each.body for each in got] == [bytes([priority]) for priority in (9, 7, 4, 2)]


def test_a_restart_without_the_kind_loses_nothing(tmp_path: Path, register: Register) -> None:
    """Opening says which kind is missing and for which queue, and changes nothing; once it is registered, everything is
    there: messages, order, options."""
    kind = example().ShortestJobFirst
    register("shortest", kind)
    settings = QueueSettings(kind="shortest", kind_options={"unit": "s"}, durable=True)
    with Broker(data=tmp_path) as broker:
        broker.declare_queue("jobs", settings=settings)
        broker.declare_queue("other", durable=True)
        for seconds in (5, 1, 3):
            body = str(seconds).encode()
            broker.publish(Message(body, routing_key="jobs", headers={"seconds": seconds}, persistent=True))
        broker.publish(Message(b"o", routing_key="other", persistent=True))
    unregister_queue_kind("shortest")
    for _ in range(2):
        with pytest.raises(
            UnknownQueueKind, match=r"queue 'jobs' in vhost '/' is of the kind 'shortest', which is not"
        ):
            Broker(data=tmp_path)
    register_queue_kind("shortest", kind)
    with Broker(data=tmp_path) as broker:
        assert broker.queue("jobs").settings == settings
        assert [message.body for message in broker.queue("jobs").browse()] == [b"1", b"3", b"5"]
        assert len(broker.queue("other")) == 1
