"""A whole virtual host against an oracle of lists: every copy of every message is where it should be."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_front_support import bodies
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis_support import examples

from multiqueue.broker import Message, MessageRefused, Received, VirtualHost
from multiqueue.testing import FakeClock

TTL = 10.0
TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
TO_WORK = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
QUEUES: dict[str, dict[str, object]] = {
    "work": {"x-max-length": 3, "x-qpid-maximum-delivery-count": 2, **TO_DEAD},
    "timed": {"x-message-ttl": int(TTL * 1000), **TO_WORK},
    "limited": {"x-max-length": 2, "x-overflow": "reject-publish"},
    "ranked": {"x-max-priority": 2},
    "dead": {},
}
PATTERNS = ["a.*", "#.b", "a.b", "#"]


@dataclass(eq=False)
class Copy:
    """One message on one queue."""

    body: int
    priority: int
    expires_at: float | None = None
    failed: bool = False  # a queue that it is a dead letter of delivered it in vain
    deliveries: int = 0
    received: Received | None = None


@dataclass
class Oracle:
    """What the queues should hold, by the rules as they are told."""

    now: float = 0.0
    queues: dict[str, list[Copy]] = field(default_factory=lambda: {name: [] for name in QUEUES})

    def ready(self, queue: str) -> list[Copy]:
        """The ready messages, in the order of service."""
        free = [copy for copy in self.queues[queue] if copy.received is None]
        return sorted(free, key=lambda copy: -copy.priority) if queue == "ranked" else free

    def refuses(self, queue: str) -> bool:
        return queue == "limited" and len(self.ready(queue)) >= 2

    def put(self, queues: list[str], body: int, priority: int, failed: bool = False) -> None:
        """On all of them, before what it pushes out of one goes on."""
        for queue in queues:
            expires_at = self.now + TTL if queue == "timed" else None
            self.queues[queue].append(Copy(body, min(priority, 2), expires_at, failed))
        for queue in queues:
            self.push_out(queue)

    def push_out(self, queue: str) -> None:
        while queue == "work" and len(self.ready("work")) > 3:
            self.die("work", self.ready("work")[0])

    def die(self, queue: str, copy: Copy, failed: bool = False) -> None:
        self.queues[queue].remove(copy)
        onwards = {"work": "dead", "timed": "work"}.get(queue)
        if onwards is not None:
            self.put([onwards], copy.body, copy.priority, copy.failed or failed)

    def release(self, queue: str, copy: Copy) -> None:
        copy.received = None
        expired = copy.expires_at is not None and copy.expires_at <= self.now
        if expired or (queue == "work" and copy.deliveries >= 2):
            self.die(queue, copy)
        self.push_out(queue)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for copy in self.ready("timed"):
            if copy.expires_at is not None and copy.expires_at <= self.now:
                self.die("timed", copy)


class HostMachine(RuleBasedStateMachine):
    """Publishing, getting, subscribing, settling, binding and time passing, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.host = VirtualHost(clock=self.clock)
        for name, arguments in QUEUES.items():
            self.host.declare_queue(name, arguments=arguments)
        self.subscription = self.host.subscribe(["work", "ranked"], prefetch=2)
        self.oracle = Oracle()
        self.bound: set[tuple[str, str]] = set()
        self.number = 0

    def teardown(self) -> None:
        self.host.close()

    @property
    def held(self) -> list[tuple[str, Copy]]:
        return [(name, copy) for name, all in self.oracle.queues.items() for copy in all if copy.received is not None]

    @rule(key=st.sampled_from(["a.b", "a", "b", "a.x"]), priority=st.integers(0, 3))
    def publish_to_the_topic(self, key: str, priority: int) -> None:
        queues = {queue for queue, pattern in self.bound if self.matches(pattern, key)}
        self.publish("amq.topic", key, priority, queues)

    @rule(queue=st.sampled_from(list(QUEUES)), priority=st.integers(0, 3))
    def publish_to_a_queue(self, queue: str, priority: int) -> None:
        self.publish("", queue, priority, {queue})

    def publish(self, exchange: str, key: str, priority: int, queues: set[str]) -> None:
        self.number += 1
        message = Message(self.number, exchange=exchange, routing_key=key, priority=priority)
        # In which order the queues get it is for the host to say.
        in_order = [queue.name for queue in self.host.route(message)]
        assert sorted(in_order) == sorted(queues)
        refusing = {queue for queue in queues if self.oracle.refuses(queue)}
        refused: set[str] = set()
        try:
            assert self.host.publish(message).queues == len(queues)
        except MessageRefused as refusal:
            refused.update(refusal.queues)
        assert refused == refusing
        self.oracle.put([queue for queue in in_order if queue not in refusing], self.number, priority)

    @staticmethod
    def matches(pattern: str, key: str) -> bool:
        words = key.split(".")
        return {
            "a.*": len(words) == 2 and words[0] == "a",
            "#.b": words[-1] == "b",
            "a.b": key == "a.b",
            "#": True,
        }[pattern]

    @rule(queue=st.sampled_from(list(QUEUES)), pattern=st.sampled_from(PATTERNS))
    def bind(self, queue: str, pattern: str) -> None:
        self.host.bind_queue(queue, "amq.topic", pattern)
        self.bound.add((queue, pattern))

    @rule(queue=st.sampled_from(list(QUEUES)), pattern=st.sampled_from(PATTERNS))
    def unbind(self, queue: str, pattern: str) -> None:
        assert self.host.unbind_queue(queue, "amq.topic", pattern) is ((queue, pattern) in self.bound)
        self.bound.discard((queue, pattern))

    @rule(queue=st.sampled_from(list(QUEUES)))
    def get(self, queue: str) -> None:
        received = self.host.get(queue)
        if received is None:
            assert self.oracle.ready(queue) == []
        else:
            self.take(received)

    @rule()
    def pull(self) -> None:
        """Nothing is stuck: a subscriber with credit is given a message as long as there is one."""
        delivery = self.subscription.target.pull()
        if delivery is not None:
            self.take(delivery)
        elif len(self.subscription.unsettled()) < 2:
            assert self.oracle.ready("work") == self.oracle.ready("ranked") == []

    def take(self, received: Received) -> None:
        first = self.oracle.ready(received.queue)[0]
        assert received.body == first.body
        first.received = received
        first.deliveries += 1
        assert received.delivery_count == first.deliveries
        assert received.redelivered is (first.failed or first.deliveries > 1)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["accept", "release", "reject"]), in_transaction=st.booleans())
    def settle(self, data: st.DataObject, how: str, in_transaction: bool) -> None:
        queue, copy = data.draw(st.sampled_from(self.held))
        assert copy.received is not None
        if in_transaction:
            with self.host.transaction() as transaction:
                getattr(transaction, how)(copy.received)
        else:
            getattr(copy.received, how)()
        if how == "accept":
            self.oracle.queues[queue].remove(copy)
        elif how == "release":
            self.oracle.release(queue, copy)
            self.host.queue(queue).housekeeping()  # whose thread a late message's return has woken
        else:
            copy.received = None
            self.oracle.die(queue, copy, failed=True)

    @rule(seconds=st.sampled_from([1.0, 4.0, TTL]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for queue in self.host.queues():
            queue.housekeeping()
        self.oracle.advance(seconds)

    @rule(queue=st.sampled_from(list(QUEUES)))
    def purge(self, queue: str) -> None:
        assert self.host.queue(queue).purge() == len(self.oracle.ready(queue))
        self.oracle.queues[queue] = [copy for copy in self.oracle.queues[queue] if copy.received is not None]

    @invariant()
    def every_copy_is_where_it_should_be(self) -> None:
        for name, copies in self.oracle.queues.items():
            assert bodies(self.host.queue(name)) == [copy.body for copy in self.oracle.ready(name)]
            assert len(self.host.queue(name)) == len(copies)
        assert self.host.statistics().depth == sum(map(len, self.oracle.queues.values()))
        assert self.host.statistics().dead_letters_lost == 0
        self.host.check_invariants()


HostMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestHostMachine = HostMachine.TestCase
