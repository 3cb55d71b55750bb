"""The suite `broker`: what a message costs on a broker queue, and on what that cost does not depend.

Publish, deliver and accept of 1 KiB in process, below exchanges and above nothing. `queue.Queue` is shown for
scale: it keeps no order of returns, knows no settlement, no credit, no selectors. Where a workload asks whether
the cost depends on something (depth, idle consumers, idle queues), its baseline is the broker queue without it.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from functools import partial

from multiqueue.broker import BrokerQueue, ConsumerTarget, Credit, Message, QueueKind, QueueSettings

from .._words import counted
from ._harness import Race, expect
from ._model import CPU_RATE, Attempt, Goal, Rival, Suite, Workload

MESSAGES = 20_000  # a tenth of a second for the broker queue
DEPTH = 100_000
IDLE_CONSUMERS = 99
IDLE_QUEUES = 9_999
ONE_IN = 1_000
RELEASED_ONE_IN = 20  # 5 %
PREFETCH = 100
RUN = 50
TENANTS = (1, 100, 10_000)

_MESSAGE = Message(b"x" * 1024)
_UNWANTED = Message(b"x" * 1024, headers={"wanted": False})
_WANTED = Message(b"x" * 1024, headers={"wanted": True})
_LEVELS = [Message(b"x" * 1024, priority=level) for level in range(10)]

Body = Callable[[], object]


def _race(n: int, bodies: list[Body], left: Callable[[], int], expected: int = 0, *on_close: Body) -> Race:
    return Race(n, bodies, lambda: expect(left(), expected, "messages are left on the queue"), on_close)


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
    return _race(n, bodies, standard.qsize)


def _one_thread(
    n: int, *, kind: QueueKind = QueueKind.STANDARD, depth: int = 0, idle_consumers: int = 0, release_one_in: int = 0
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

    return _race(n, [body], broker_queue.__len__, depth)


def _tenants(n: int, *, kind: QueueKind, tenants: int) -> Attempt:
    """One thread puts, pulls and accepts messages of so many tenants, each of which has one waiting."""
    broker_queue = BrokerQueue("bench", settings=QueueSettings(kind=kind))
    consumer = broker_queue.add_consumer(lambda consumer: None)
    broker_queue.set_notify_work_desired(consumer, True)
    messages = [Message(b"x" * 1024, headers={"tenant": f"tenant {number}"}) for number in range(tenants)]
    for message in messages:
        broker_queue.put(message)

    def body() -> None:
        put, pull, accept = broker_queue.put, broker_queue.deliver_single_message, broker_queue.accept
        for number in range(n):
            put(messages[number % tenants])
            entry = pull(consumer)
            assert entry is not None
            accept(entry, consumer)

    return _race(n, [body], broker_queue.__len__, tenants)


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

    return _race(n, [body], broker_queue.__len__)


def _targets(n: int, workers: int, in_runs: bool = False) -> Attempt:
    """As many producers and blocking consumer targets with a prefetch of 100; one by one, or in runs of 50."""
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

    def produce_runs() -> None:
        for begin in range(0, n // workers, RUN):
            broker_queue.put_many([_MESSAGE] * min(RUN, n // workers - begin))

    def consume_runs(target: ConsumerTarget) -> None:
        left = n // workers
        while left:
            deliveries = target.get_many(min(RUN, left))
            target.accept(*deliveries)
            left -= len(deliveries)
        target.close()  # the others are notified of what it would have had

    bodies: list[Body] = [partial(consume_runs if in_runs else consume, target) for target in targets]
    bodies += [produce_runs if in_runs else produce] * workers
    return _race(n, bodies, broker_queue.__len__, 0, *(target.close for target in targets))


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

    return _race(n, [body], active.__len__, 0, target.close)


_QUEUE_QUEUE = "queue.Queue"
_PLAIN = "broker queue"


def _workload(
    name: str,
    title: str,
    rivals: dict[str, Callable[[int], Attempt]],
    *,
    threads: int = 1,
    goal: float | None = None,
    independent: bool = False,
) -> Workload:
    """The first rival is the baseline. One that is to be `independent` of something is within 1.2 times without it."""
    baseline, other = rivals
    if independent:
        goal = 1 / 1.2
    return Workload(
        name,
        title,
        MESSAGES,
        tuple(Rival(each, make, role="yardstick" if each == _QUEUE_QUEUE else "ours") for each, make in rivals.items()),
        n_unit="messages",
        threads=str(threads),
        goals=() if goal is None else (Goal(CPU_RATE.name, goal, other, baseline),),
        divisor=40,
    )


def _crowd(workers: int, in_runs: bool) -> Workload:
    """Producers and consumers beside each other."""
    title = f"{workers} producer(s), {workers} blocking consumer target(s), prefetch {PREFETCH}"
    runs = f"the same in runs of {RUN}: `put_many`, `get_many`, `accept`; queue.Queue one by one"
    return _workload(
        f"{workers}p{workers}c{'-runs' * in_runs}",
        runs if in_runs else title,
        {
            _QUEUE_QUEUE: partial(_through_queue_queue, workers=workers),
            _PLAIN: partial(_targets, workers=workers, in_runs=in_runs),
        },
        threads=2 * workers,
        goal=0.5 if in_runs else 0.1,  # 0.03 with a convoy
    )


SUITE = Suite(
    "broker",
    (
        _workload(
            "one-thread",
            "publish, deliver and accept by one thread",
            {_QUEUE_QUEUE: _through_queue_queue, _PLAIN: _one_thread},
            goal=0.25,
        ),
        *(_crowd(workers, in_runs) for in_runs in (False, True) for workers in (1, 4)),
        _workload(
            "depth",
            f"a queue that holds {DEPTH} messages",
            {_PLAIN: _one_thread, "deep": partial(_one_thread, depth=DEPTH)},
            independent=True,
        ),
        _workload(
            "idle-consumers",
            f"{IDLE_CONSUMERS + 1} consumers, of which one is interested",
            {_PLAIN: _one_thread, "100 consumers": partial(_one_thread, idle_consumers=IDLE_CONSUMERS)},
            independent=True,
        ),
        _workload(
            "idle-queues",
            f"a target with {IDLE_QUEUES + 1} queues, of which one is active",
            {
                _PLAIN: partial(_one_active_queue, idle_queues=0),
                "10,000 queues": partial(_one_active_queue, idle_queues=IDLE_QUEUES),
            },
            independent=True,
        ),
        _workload(
            "priority",
            "a priority queue of 10 levels",
            {_PLAIN: _one_thread, "10 levels": partial(_one_thread, kind=QueueKind.PRIORITY)},
        ),
        *(
            _workload(
                f"fair-{tenants}",
                f"a fair queue of {counted(tenants, 'tenant')}, each of which has a message waiting",
                {
                    _PLAIN: partial(_tenants, kind=QueueKind.STANDARD, tenants=tenants),
                    "fair": partial(_tenants, kind=QueueKind.FAIR, tenants=tenants),
                },
            )
            for tenants in TENANTS
        ),
        _workload(
            "selector",
            f"a consumer whose selector matches 1 in {ONE_IN}, beside one without",
            {_PLAIN: _one_thread, "with a selector": partial(_selective, one_in=ONE_IN)},
        ),
        _workload(
            "release",
            "5 % of the deliveries are given back once",
            {_PLAIN: _one_thread, "5 % released": partial(_one_thread, release_one_in=RELEASED_ONE_IN)},
        ),
    ),
    does_not_show=(
        "exchanges, the wire and the disk: messages are put on a queue directly, in one process",
        "more than one core's worth of work: with the GIL, threads take turns",
    ),
)
