"""The suite `broker`: what a message costs on a broker queue, and on what that cost does not depend.

Publish, deliver and accept of 1 KiB in process, below exchanges and above nothing. `queue.Queue` is shown for
scale: it keeps no order of returns, knows no settlement, no credit, no selectors. Where a workload asks whether
the cost depends on something (depth, idle consumers, idle queues), its baseline is the broker queue without it.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from multiqueue.broker import BrokerQueue, ConsumerTarget, Credit, Message, QueueKind, QueueSettings

from ._crew import Crew
from ._model import CPU_RATE, Attempt, Figures, Goal, ItemsLost, Rival, Suite, Workload

MESSAGES = 20_000  # a tenth of a second for the broker queue
DEPTH = 100_000
IDLE_CONSUMERS = 99
IDLE_QUEUES = 9_999
ONE_IN = 1_000
RELEASED_ONE_IN = 20  # 5 %
PREFETCH = 100
RUN = 50

_MESSAGE = Message(b"x" * 1024)
_UNWANTED = Message(b"x" * 1024, headers={"wanted": False})
_WANTED = Message(b"x" * 1024, headers={"wanted": True})
_LEVELS = [Message(b"x" * 1024, priority=level) for level in range(10)]

Body = Callable[[], object]


@dataclass
class _Race:
    """Bodies that run together, and what must be true afterwards."""

    n: int
    bodies: list[Body]
    is_done: Callable[[], bool]
    on_close: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._crew = Crew(self.bodies)

    def run(self) -> Figures:
        return self._crew.race().rates(self.n)

    def check(self) -> None:
        if not self.is_done():
            raise ItemsLost(f"not every one of {self.n} messages was delivered and settled")

    def close(self) -> None:
        self._crew.abandon()
        for action in self.on_close:
            action()


def _through_queue_queue(n: int, workers: int = 0) -> Attempt:
    """Put and get, by one thread (`workers=0`) or by as many producers and consumers."""
    standard: queue.Queue[Message] = queue.Queue()

    def alone() -> None:
        for _ in range(n):
            standard.put(_MESSAGE)
            standard.get()

    def produce() -> None:
        for _ in range(n // workers):
            standard.put(_MESSAGE)

    def consume() -> None:
        for _ in range(n // workers):
            standard.get()

    bodies: list[Body] = [produce, consume] * workers or [alone]
    return _Race(n, bodies, standard.empty)


def _one_thread(
    n: int,
    *,
    kind: QueueKind = QueueKind.STANDARD,
    depth: int = 0,
    idle_consumers: int = 0,
    release_one_in: int = 0,
) -> Attempt:
    """One thread puts, pulls and accepts, on a queue with or without something else about it."""
    broker_queue = BrokerQueue("bench", settings=QueueSettings(kind=kind))
    consumer = broker_queue.add_consumer(lambda consumer: None)
    broker_queue.set_notify_work_desired(consumer, True)
    for _ in range(idle_consumers):
        broker_queue.add_consumer(lambda consumer: None)
    for _ in range(depth):
        broker_queue.put(_MESSAGE)
    messages = _LEVELS if kind is QueueKind.PRIORITY else [_MESSAGE] * 10

    def body() -> None:
        put, pull = broker_queue.put, broker_queue.deliver_single_message
        accept, release = broker_queue.accept, broker_queue.release
        until_release = release_one_in
        for _ in range(n // 10):
            for message in messages:
                put(message)
                entry = pull(consumer)
                assert entry is not None
                until_release -= 1
                if until_release == 0:
                    until_release = release_one_in
                    release(entry, consumer)
                    entry = pull(consumer)
                    assert entry is not None
                accept(entry, consumer)

    return _Race(n, [body], lambda: len(broker_queue) == depth)


def _selective(n: int, *, one_in: int) -> Attempt:
    """A consumer whose selector matches one message in so many; a second one takes the others."""
    broker_queue = BrokerQueue("bench")
    picky = broker_queue.add_consumer(
        lambda consumer: None, selector=lambda message: bool(message.headers["wanted"]), priority=1
    )
    rest = broker_queue.add_consumer(lambda consumer: None)
    for consumer in (picky, rest):
        broker_queue.set_notify_work_desired(consumer, True)

    def body() -> None:
        for number in range(n):
            is_wanted = number % one_in == 0
            broker_queue.put(_WANTED if is_wanted else _UNWANTED)
            consumer = picky if is_wanted else rest
            entry = broker_queue.deliver_single_message(consumer)
            assert entry is not None
            broker_queue.accept(entry, consumer)

    return _Race(n, [body], lambda: len(broker_queue) == 0)


def _targets(n: int, workers: int) -> Attempt:
    """As many producers and consumer targets, each with a prefetch of 100, blocking."""
    broker_queue = BrokerQueue("bench")
    targets = [ConsumerTarget(credit=Credit(PREFETCH)) for _ in range(workers)]
    for target in targets:
        target.consume(broker_queue)
    remaining = iter(range(n))  # next() of a range iterator is one atomic step

    def produce() -> None:
        for _ in range(n // workers):
            broker_queue.put(_MESSAGE)

    def consume(target: ConsumerTarget) -> None:
        for _ in remaining:
            target.accept(target.get())

    bodies: list[Body] = [partial(consume, target) for target in targets]
    bodies += [produce] * workers
    return _Race(n, bodies, lambda: len(broker_queue) == 0, [target.close for target in targets])


def _in_runs(n: int, workers: int) -> Attempt:
    """As `_targets`, with runs of 50 that are put, taken and accepted together."""
    broker_queue = BrokerQueue("bench")
    targets = [ConsumerTarget(credit=Credit(PREFETCH)) for _ in range(workers)]
    for target in targets:
        target.consume(broker_queue)

    def produce() -> None:
        for begin in range(0, n // workers, RUN):
            broker_queue.put_many([_MESSAGE] * min(RUN, n // workers - begin))

    def consume(target: ConsumerTarget) -> None:
        left = n // workers
        while left:
            deliveries = target.get_many(min(RUN, left))
            target.accept(*deliveries)
            left -= len(deliveries)
        target.close()  # the others are told of what it would have had

    bodies: list[Body] = [partial(consume, target) for target in targets]
    bodies += [produce] * workers
    return _Race(n, bodies, lambda: len(broker_queue) == 0)


def _one_active_queue(n: int, *, idle_queues: int) -> Attempt:
    """A target that consumes from many queues, of which one has messages."""
    active = BrokerQueue("active")
    target = ConsumerTarget(credit=Credit(PREFETCH))
    for number in range(idle_queues):
        target.consume(BrokerQueue(f"idle {number}"))
    target.consume(active)

    def body() -> None:
        for _ in range(n):
            active.put(_MESSAGE)
            target.accept(target.get())

    return _Race(n, [body], lambda: len(active) == 0, [target.close])


def _rival(name: str, open_attempt: Callable[[int], Attempt], *, yardstick: bool = False, share: float = 1.0) -> Rival:
    return Rival(name, open_attempt, role="yardstick" if yardstick else "ours", share=share)


_QUEUE_QUEUE = "queue.Queue"
_PLAIN = "broker queue"


def _independent(
    name: str, title: str, rival: str, plain: Callable[[int], Attempt], other: Callable[[int], Attempt]
) -> Workload:
    """A workload that asks whether something costs anything: within 1.2 times of the queue without it."""
    return Workload(
        name,
        title,
        MESSAGES,
        (_rival(_PLAIN, plain), _rival(rival, other)),
        _PLAIN,
        n_unit="messages",
        goals=(Goal(CPU_RATE.name, 1 / 1.2, rival, _PLAIN),),
        divisor=40,
    )


def _compared(
    name: str, title: str, rivals: tuple[Rival, ...], *, threads: str = "1", goal: float | None = None
) -> Workload:
    goals = () if goal is None else (Goal(CPU_RATE.name, goal, _PLAIN, rivals[0].name),)
    return Workload(
        name, title, MESSAGES, rivals, rivals[0].name, n_unit="messages", threads=threads, goals=goals, divisor=40
    )


SUITE = Suite(
    "broker",
    (
        _compared(
            "one-thread",
            "publish, deliver and accept by one thread",
            (_rival(_QUEUE_QUEUE, _through_queue_queue, yardstick=True), _rival(_PLAIN, _one_thread)),
            goal=0.25,
        ),
        *(
            _compared(
                f"{workers}p{workers}c",
                f"{workers} producer(s), {workers} blocking consumer target(s), prefetch {PREFETCH}",
                (
                    _rival(_QUEUE_QUEUE, partial(_through_queue_queue, workers=workers), yardstick=True),
                    _rival(_PLAIN, partial(_targets, workers=workers)),
                ),
                threads=str(2 * workers),
                goal=0.1,  # 0.03 with a convoy
            )
            for workers in (1, 4)
        ),
        *(
            _compared(
                f"{workers}p{workers}c-runs",
                f"the same in runs of {RUN}: `put_many`, `get_many`, `accept`; queue.Queue one by one",
                (
                    _rival(_QUEUE_QUEUE, partial(_through_queue_queue, workers=workers), yardstick=True),
                    _rival(_PLAIN, partial(_in_runs, workers=workers)),
                ),
                threads=str(2 * workers),
                goal=0.5,
            )
            for workers in (1, 4)
        ),
        _independent(
            "depth",
            f"a queue that holds {DEPTH} messages",
            "deep",
            _one_thread,
            partial(_one_thread, depth=DEPTH),
        ),
        _independent(
            "idle-consumers",
            f"{IDLE_CONSUMERS + 1} consumers, of which one is interested",
            "100 consumers",
            _one_thread,
            partial(_one_thread, idle_consumers=IDLE_CONSUMERS),
        ),
        _independent(
            "idle-queues",
            f"a target with {IDLE_QUEUES + 1} queues, of which one is active",
            "10,000 queues",
            partial(_one_active_queue, idle_queues=0),
            partial(_one_active_queue, idle_queues=IDLE_QUEUES),
        ),
        _compared(
            "priority",
            "a priority queue of 10 levels",
            (_rival(_PLAIN, _one_thread), _rival("10 levels", partial(_one_thread, kind=QueueKind.PRIORITY))),
        ),
        _compared(
            "selector",
            f"a consumer whose selector matches 1 in {ONE_IN}, beside one without",
            (_rival(_PLAIN, _one_thread), _rival("with a selector", partial(_selective, one_in=ONE_IN))),
        ),
        _compared(
            "release",
            "5 % of the deliveries are given back once",
            (
                _rival(_PLAIN, _one_thread),
                _rival("5 % released", partial(_one_thread, release_one_in=RELEASED_ONE_IN)),
            ),
        ),
    ),
    does_not_show=(
        "exchanges, the wire and the disk: messages are put on a queue directly, in one process",
        "more than one core's worth of work: with the GIL, threads take turns",
    ),
)
