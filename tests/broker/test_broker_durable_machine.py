"""A virtual host with a store against lists: publishes, settlements, moves, restarts and crashes in any order."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from broker_durable_support import InMemory, Keeper, OnDisk
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from hypothesis_support import examples

from multiqueue.broker import Message, MessageRefused, Received
from multiqueue.store import MemoryStore, StoreFull

QUEUES = ("plain", "letters", "dead", "small", "levels", "memory")
STORED = QUEUES[:-1]
LEVELS = 3
SMALL = 2

names = st.sampled_from(QUEUES)
picks = st.integers(0, 1_000_000)


@dataclass(eq=False)
class Copy:
    """A message on a queue, as the lists have it."""

    body: bytes
    persistent: bool
    priority: int
    deliveries: int = 0
    stored_deliveries: int = 0
    in_doubt: bool = False
    held: Received | None = None


@dataclass
class Lists:
    """What every queue should have, in service order."""

    queues: dict[str, list[Copy]] = field(default_factory=lambda: {name: [] for name in QUEUES})

    def add(self, name: str, copy: Copy) -> None:
        queue = self.queues[name]
        place = len(queue)
        if name == "levels":
            place = sum(other.priority >= copy.priority for other in queue)
        queue.insert(place, copy)

    def ready(self, name: str) -> list[Copy]:
        return [copy for copy in self.queues[name] if copy.held is None]

    def has_room(self, name: str, already: int = 0) -> bool:
        return name != "small" or len(self.ready(name)) + already < SMALL

    def held(self) -> list[tuple[str, Copy]]:
        return [(name, copy) for name in QUEUES for copy in self.queues[name] if copy.held is not None]

    def is_stored(self, name: str, copy: Copy) -> bool:
        return name in STORED and copy.persistent

    def restart(self, *, crashed: bool) -> None:
        for name in QUEUES:
            kept = [copy for copy in self.queues[name] if self.is_stored(name, copy)]
            for copy in kept:
                copy.held = None
                if crashed:
                    copy.deliveries = copy.stored_deliveries
                    copy.in_doubt = True
                else:
                    copy.stored_deliveries = copy.deliveries
            self.queues[name] = kept


class DurableMachine(RuleBasedStateMachine):
    """Every rule ends with everything committed, so that the lists know what a crash leaves."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp()) if self.kind == "sqlite" else None
        self.keeper: Keeper = InMemory() if self.directory is None else OnDisk(self.directory)
        self.lists = Lists()
        self.numbers = 0
        self._declare()

    def _declare(self) -> None:
        host = self.keeper.host
        to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        arguments: dict[str, dict[str, Any]] = {
            "letters": to_dead,
            "small": {"x-max-length": SMALL, "x-overflow": "reject-publish"},
            "levels": {"x-max-priority": LEVELS - 1},
        }
        for name in QUEUES:
            host.declare_queue(name, durable=name in STORED, arguments=arguments.get(name))
        host.declare_exchange("all", "fanout", durable=True)
        for name in ("plain", "letters", "small", "memory"):
            host.bind_queue(name, "all")

    def new(self, persistent: bool, priority: int = 0, **address: str) -> tuple[Message, Copy]:
        self.numbers += 1
        body = b"%d" % self.numbers
        message = Message(body, persistent=persistent, priority=priority, **address)  # type: ignore[arg-type]
        return message, Copy(body, persistent, priority)

    def settled(self) -> None:
        """A dead letter may cause further commits."""
        for _ in range(2):
            self.keeper.host.wait_for_commits()

    # Publishing

    @rule(name=names, persistent=st.booleans(), priority=st.integers(0, LEVELS - 1))
    def publish(self, name: str, persistent: bool, priority: int) -> None:
        message, copy = self.new(persistent, priority, routing_key=name)
        if self.lists.has_room(name):
            self.keeper.host.publish(message)
            self.lists.add(name, copy)
        else:
            with pytest.raises(MessageRefused):
                self.keeper.host.publish(message)

    @rule(flags=st.lists(st.booleans(), min_size=1, max_size=6))
    def publish_many(self, flags: list[bool]) -> None:
        """Persistent and transient messages mixed, none of them waited for: their order stays."""
        for persistent in flags:
            message, copy = self.new(persistent, routing_key="plain")
            self.keeper.host.publish_nowait(message)
            self.lists.add("plain", copy)

    @rule(persistent=st.booleans())
    def publish_to_several(self, persistent: bool) -> None:
        message, copy = self.new(persistent, exchange="all")
        has_room = self.lists.has_room("small")
        if has_room:
            self.keeper.host.publish(message)
        else:
            with pytest.raises(MessageRefused, match="'small'"):
                self.keeper.host.publish(message)
        for name in ("plain", "letters", "memory", *(["small"] if has_room else [])):
            self.lists.add(name, Copy(copy.body, persistent, 0))

    @precondition(lambda self: self.kind == "memory")
    @rule()
    def publish_to_a_full_store(self) -> None:
        self.settled()
        store = self.keeper.store
        assert isinstance(store, MemoryStore)
        store.fail_at(1, StoreFull("no room"))
        message, copy = self.new(True, exchange="all")
        with pytest.raises(StoreFull):
            self.keeper.host.publish(message)
        self.lists.add("memory", copy)

    # Receiving and settling

    @rule(name=names)
    def get(self, name: str) -> None:
        received = self.keeper.host.get(name)
        ready = self.lists.ready(name)
        if received is None:
            assert ready == []
            return
        first = ready[0]
        first.deliveries += 1
        assert received.body == first.body
        assert received.delivery_count == first.deliveries
        assert received.redelivered == (first.deliveries > 1 or first.in_doubt)
        first.held = received

    @rule(pick=picks, wait=st.booleans())
    def accept(self, pick: int, wait: bool) -> None:
        if held := self.lists.held():
            name, copy = held[pick % len(held)]
            assert copy.held is not None
            copy.held.accept(wait=wait)
            self.lists.queues[name].remove(copy)

    @rule(pick=picks)
    def release(self, pick: int) -> None:
        if held := self.lists.held():
            _, copy = held[pick % len(held)]
            assert copy.held is not None
            copy.held.release()
            copy.held = None

    @rule(pick=picks, wait=st.booleans())
    def reject(self, pick: int, wait: bool) -> None:
        if held := self.lists.held():
            name, copy = held[pick % len(held)]
            assert copy.held is not None
            copy.held.reject(wait=wait)
            self._rejected(name, copy)

    def _rejected(self, name: str, copy: Copy) -> None:
        self.lists.queues[name].remove(copy)
        if name == "letters":
            self.settled()
            failed_before = True  # so it is flagged, as at RabbitMQ 4.3
            self.lists.add("dead", Copy(copy.body, copy.persistent, copy.priority, in_doubt=failed_before))

    # Several at once

    @rule(
        publishes=st.lists(st.tuples(names, st.booleans()), max_size=3),
        settlements=st.lists(st.tuples(picks, st.sampled_from(["accept", "release", "reject"])), max_size=3),
        is_full=st.booleans(),
        rolls_back=st.booleans(),
    )
    def transact(
        self,
        publishes: list[tuple[str, bool]],
        settlements: list[tuple[int, str]],
        is_full: bool,
        rolls_back: bool,
    ) -> None:
        self.settled()
        host, transaction = self.keeper.host, self.keeper.host.transaction()
        published = []
        for name, persistent in publishes:
            message, copy = self.new(persistent, routing_key=name)
            transaction.publish(message)
            published.append((name, copy))
        settled: list[tuple[str, Copy, str]] = []
        for pick, how in settlements:
            held = [each for each in self.lists.held() if all(each[1] is not copy for _, copy, _ in settled)]
            if held:
                name, copy = held[pick % len(held)]
                getattr(transaction, how)(copy.held)
                settled.append((name, copy, how))
        needs_store = any(name in STORED and self.lists.has_room(name) for name, copy in published)
        needs_store |= any(self.lists.is_stored(name, copy) and how != "release" for name, copy, how in settled)
        if rolls_back:
            transaction.rollback()
            return
        if is_full and needs_store and self.kind == "memory":
            assert isinstance(host.store, MemoryStore)
            host.store.fail_at(1, StoreFull("no room"))
            with pytest.raises(StoreFull):
                transaction.commit()
        try:
            transaction.commit()
            refused = False
        except* MessageRefused:
            refused = True
        self._committed(published, settled, refused)

    def _committed(
        self, published: list[tuple[str, Copy]], settled: list[tuple[str, Copy, str]], refused: bool
    ) -> None:
        admitted: set[Copy] = set()
        for name, copy in published:
            if self.lists.has_room(name):
                admitted.add(copy)
                self.lists.add(name, copy)
        assert refused == (len(admitted) < len(published))
        for name, copy, how in settled:
            if how == "release":
                copy.held = None
            elif how == "reject":
                self._rejected(name, copy)
            else:
                self.lists.queues[name].remove(copy)

    # Management

    @rule(source=names, to=names, limit=st.none() | st.integers(0, 3))
    def move(self, source: str, to: str, limit: int | None) -> None:
        if source == to:
            return
        self.settled()
        host = self.keeper.host
        count = host.queue(source).move_messages(host.queue(to), limit=limit)
        moved = 0
        for copy in self.lists.ready(source):
            if (limit is None or moved < limit) and self.lists.has_room(to):
                self.lists.queues[source].remove(copy)
                self.lists.add(to, Copy(copy.body, copy.persistent, copy.priority))
                moved += 1
        assert count == moved

    @rule(name=names)
    def purge(self, name: str) -> None:
        self.settled()
        ready = self.lists.ready(name)
        assert self.keeper.host.queue(name).purge() == len(ready)
        for copy in ready:
            self.lists.queues[name].remove(copy)

    @rule(pick=picks, priority=st.integers(0, LEVELS - 1))
    def change_priority(self, pick: int, priority: int) -> None:
        self.settled()
        if ready := self.lists.ready("levels"):
            body = ready[pick % len(ready)].body  # of several copies, when they were moved here
            changing = [copy for copy in ready if copy.body == body and copy.priority != priority]
            queue = self.keeper.host.queue("levels")
            assert queue.change_priority(priority, lambda message: message.body == body) == len(changing)
            for copy in changing:
                self.lists.queues["levels"].remove(copy)
                copy.priority = priority
                copy.stored_deliveries = copy.deliveries
                self.lists.add("levels", copy)

    @rule()
    def delete_and_declare_again(self) -> None:
        if any(copy.held for copy in self.lists.queues["dead"]):
            return
        self.settled()
        self.keeper.host.delete_queue("dead")
        self.lists.queues["dead"].clear()
        self._declare()

    # Lives

    @rule()
    def restart(self) -> None:
        self.settled()
        self.keeper.restart()
        self.lists.restart(crashed=False)
        self._declare()

    @rule()
    def crash(self) -> None:
        self.settled()
        self.keeper.crash()
        self.lists.restart(crashed=True)
        self._declare()

    @invariant()
    def agrees(self) -> None:
        self.settled()
        host = self.keeper.host
        for name in QUEUES:
            assert [message.body for message in host.queue(name).browse()] == [
                copy.body for copy in self.lists.ready(name)
            ], name
            assert len(host.queue(name)) == len(self.lists.queues[name])
        stored = sum(self.lists.is_stored(name, copy) for name in QUEUES for copy in self.lists.queues[name])
        assert sum(level.messages for level in self.keeper.store.levels()) == stored
        host.check_invariants()

    def teardown(self) -> None:
        self.keeper.close()
        if self.directory is not None:
            shutil.rmtree(self.directory)


class DiskMachine(DurableMachine):
    kind = "sqlite"


def run(machine: type[DurableMachine], count: int, steps: int) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples(count), stateful_step_count=steps, deadline=None)
    )


def test_a_virtual_host_over_memory_agrees_with_lists() -> None:
    """After every step, clean and dirty restarts among them, every queue has what the lists have, and the store too."""
    run(DurableMachine, 60, 30)


@pytest.mark.slow(selected=True)
def test_a_virtual_host_over_sqlite_agrees_with_lists() -> None:
    """The same on a disk."""
    run(DiskMachine, 12, 30)


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "count"), [(DurableMachine, 1000), (DiskMachine, 150)])
def test_virtual_hosts_agree_with_lists_for_longer(machine: type[DurableMachine], count: int) -> None:
    """More and longer histories; fewer on a disk, where one takes 0.7 s: each step waits for its commits."""
    run(machine, count, 60)


def test_a_transient_message_of_a_durable_queue_changes_its_priority() -> None:
    """It is there at its new level, also where the queue pages: it joins in its turn, as any other put."""
    machine = DurableMachine()
    machine.crash()
    machine.publish(name="levels", persistent=False, priority=0)
    machine.change_priority(pick=0, priority=1)
    machine.agrees()
    machine.teardown()


def test_a_transient_message_of_a_durable_queue_keeps_its_deliveries() -> None:
    """It has its past at its new level too, as one that is stored."""
    machine = DurableMachine()
    machine.publish(name="levels", persistent=False, priority=0)
    machine.get("levels")
    machine.release(pick=0)
    machine.change_priority(pick=0, priority=1)
    machine.get("levels")
    machine.teardown()
