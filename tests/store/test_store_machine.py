"""Any history of submissions and restarts, beside a dictionary."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis_support import examples
from store_support import Kept, levels_of, open_store, reopen

from multiqueue.store import (
    Define,
    Definition,
    Delete,
    Delivered,
    DropQueue,
    MemoryStore,
    MessageStore,
    Operation,
    Put,
    Undefine,
)

QUEUES = st.integers(1, 3)
LEVELS = st.integers(0, 1)


class StoreMachine(RuleBasedStateMachine):
    """The model knows what was submitted; whatever is read must be what the model has."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.top = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.openings = 0
        self.model: dict[int, Kept] = {}
        self.definitions: dict[tuple[str, str], str] = {}
        self.numbers = {queue: queue for queue in (1, 2, 3)}  # a dropped queue's place is taken by another number
        self.next_number = 4
        self.highest = 0
        self.gone: set[int] = set()
        self.floor = 0
        self.gathered: list[Operation] = []
        self.store: MessageStore

    @initialize()
    def open(self) -> None:
        self.directory().mkdir()
        self.store = open_store(self.kind, self.directory())

    def directory(self) -> Path:
        return self.top / str(self.openings)

    @rule(
        queue=QUEUES,
        level=LEVELS,
        body=st.binary(max_size=20),
        expires_at=st.none() | st.integers(0, 100).map(float),
        held_until_ms=st.none() | st.integers(0, 5),
        transient=st.booleans(),
        allocated=st.booleans(),
        shared=st.booleans(),
    )
    def add(
        self,
        queue: int,
        level: int,
        body: bytes,
        expires_at: float | None,
        held_until_ms: int | None,
        transient: bool,
        allocated: bool,
        shared: bool,
    ) -> None:
        """A message joins what is to be submitted, with an id and a body of its own, or not."""
        if shared and self.gathered and isinstance(self.gathered[-1], Put):
            body = self.gathered[-1].body
        message = Put(
            self.numbers[queue],
            body[:3],
            body,
            level=level,
            expires_at=expires_at,
            held_until_ms=held_until_ms,
            transient=transient,
            id=self.store.allocate() if allocated else 0,
        )
        self.gathered.append(message)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.model)), min_size=1, max_size=5))
        self.gathered.append(Delete(ids))

    @precondition(lambda self: self.model)
    @rule(data=st.data(), deliveries=st.integers(0, 5))
    def deliver(self, data: st.DataObject, deliveries: int) -> None:
        self.gathered.append(Delivered(data.draw(st.sampled_from(sorted(self.model))), deliveries))

    @rule(key=st.sampled_from("ab"), document=st.sampled_from("xyz"))
    def define(self, key: str, document: str) -> None:
        self.gathered.append(Define("kind", key, document))

    @rule(key=st.sampled_from("ab"))
    def undefine(self, key: str) -> None:
        self.gathered.append(Undefine("kind", key))

    @rule(queue=QUEUES)
    def drop(self, queue: int) -> None:
        self.gathered.append(DropQueue(self.numbers[queue]))
        self.numbers[queue] = self.next_number
        self.next_number += 1

    @rule(waits=st.booleans())
    def submit(self, waits: bool) -> None:
        """What has gathered is submitted, and the model does the same."""
        commit = self.store.submit(self.gathered)
        before = set(self.model)
        for operation in self.gathered:
            self.apply(operation)
        self.gone |= before - self.model.keys()
        self.gathered = []
        if waits:
            assert commit.wait(60)

    def apply(self, operation: Operation) -> None:
        match operation:
            case Put():
                assert operation.id > 0
                assert operation.id not in self.model
                self.highest = max(self.highest, operation.id)
                self.model[operation.id] = Kept.of(operation)
            case Delete(ids):
                for one in ids:
                    self.model.pop(one, None)
            case Delivered(one, deliveries):
                if one in self.model:
                    self.model[one].deliveries = deliveries
            case Define(kind, key, document):
                self.definitions[kind, key] = document
            case Undefine(kind, key):
                self.definitions.pop((kind, key), None)
            case DropQueue(queue):
                self.model = {one: kept for one, kept in self.model.items() if kept.queue != queue}

    @precondition(lambda self: self.kind != "scratch")
    @rule()
    def restart(self) -> None:
        """A clean restart keeps all but what is transient."""
        self.store = reopen(self.store, self.directory())
        self.after_restart()

    @precondition(lambda self: self.kind != "scratch")
    @rule()
    def crash(self) -> None:
        """So does a crash; and what there was may have been delivered before."""
        self.store.submit([]).wait()
        old = self.store
        if isinstance(old, MemoryStore):
            self.store = old.reopened(crashed=True)
        else:
            self.openings += 1
            shutil.copytree(self.top / str(self.openings - 1), self.directory(), ignore=shutil.ignore_patterns("*-shm"))
            self.store = open_store(self.kind, self.directory())
        old.close()
        self.floor = self.store.redeliver_floor
        assert self.floor > self.highest
        self.after_restart()

    def after_restart(self) -> None:
        self.gathered = []
        self.model = {one: kept for one, kept in self.model.items() if not kept.transient}
        self.check_all()

    @invariant()
    def check_all(self) -> None:
        """Everything that can be read is what the model has."""
        if not hasattr(self, "store"):
            return
        self.store.submit([]).wait(60)
        assert self.store.levels() == levels_of(self.model)
        for queue in self.numbers.values():
            for level in (0, 1):
                self.check_queue(queue, level)
            self.check_held(queue)
        assert self.store.read([*self.gone, *self.model]) == {one: kept.body for one, kept in self.model.items()}
        due = [kept.expires_at for kept in self.model.values() if kept.expires_at is not None and kept.expires_at <= 50]
        assert len(self.store.expired(50, 1000)) == len(due)
        assert self.store.redeliver_floor == self.floor
        assert self.store.definitions() == [
            Definition(kind, key, document) for (kind, key), document in self.definitions.items()
        ]

    def check_queue(self, queue: int, level: int) -> None:
        expected = [
            (one, len(kept.body), kept.expires_at, kept.deliveries, kept.properties, kept.held_until_ms)
            for one, kept in sorted(self.model.items())
            if (kept.queue, kept.level) == (queue, level)
        ]
        assert [tuple(header) for header in self.store.page(queue, 0, 1000, level=level)] == expected
        for after in (one for one, *_ in expected[:2]):
            assert [header.id for header in self.store.page(queue, after, 2, level=level)] == [
                one for one, *_ in expected if one > after
            ][:2]

        free = [header[0] for header in expected if header[-1] is None or header[-1] < 3]
        page = self.store.page(queue, 0, max(len(free), 1), level=level, held_before_ms=3)
        assert [header.id for header in page] == free

    def check_held(self, queue: int) -> None:
        moments = sorted(
            (kept.held_until_ms, kept.level, one)
            for one, kept in self.model.items()
            if kept.queue == queue and kept.held_until_ms is not None
        )
        for index in range(0, len(moments), 2):
            after = (-1, 0, 0) if index == 0 else moments[index - 1]
            found = self.store.held(queue, after, 2)
            assert [(each.held_until_ms, level, each.id) for level, each in found] == moments[index : index + 2]
        left = {each.level: each.messages for each in self.store.held_after(queue, 2)}
        assert left == Counter(level for until_ms, level, _ in moments if until_ms > 2)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.top)


@pytest.mark.parametrize(("kind", "count"), [("memory", 50), ("sync", 8), ("files", 15), ("scratch", 25)])
def test_any_history(kind: str, count: int) -> None:
    """After any history a store has what a dictionary has: in memory, on disk with restarts and crashes, as scratch."""
    case = cast(type[StoreMachine], type("Machine", (StoreMachine,), {"kind": kind})).TestCase
    case.settings = settings(
        max_examples=examples(count), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    case().runTest()
