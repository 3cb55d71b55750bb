"""Real threads, as many switches as the interpreter makes: what the small cases cannot show by exploration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from multiqueue import Detached, Empty, Full, LinkedBlockingMultiQueue, Queue, SubQueue
from multiqueue.testing import Threads, stress

Item = tuple[str, int]  # the producer's name, and a number that grows
Check = Callable[[], None]

END = ("end", -1)

few_and_many = pytest.mark.parametrize(
    "rounds", [pytest.param(10, id="some rounds"), pytest.param(400, id="many rounds", marks=pytest.mark.slow)]
)


def consume(take: Callable[[], Item], seen: list[Item]) -> None:
    """Take until the end comes."""
    while (item := take()) != END:
        seen.append(item)


def assert_once_and_in_order(seen: list[list[Item]], producers: dict[str, int]) -> None:
    """Every element came once; what one consumer saw of one producer came in the order of the puts."""
    everything = sorted(item for items in seen for item in items)
    assert everything == sorted((name, n) for name, count in producers.items() for n in range(count))
    for items in seen:
        last: dict[str, int] = defaultdict(lambda: -1)
        for name, number in items:
            assert number > last[name], f"{name} {number} after {last[name]}"
            last[name] = number


@few_and_many
def test_every_element_is_taken_once_and_in_order(rounds: int) -> None:
    """Three producers on their own bounded sub-queues and two consumers: exactly once, in order, none left (core 1)."""

    def scenario(threads: Threads, random: Random) -> Check:
        multi_queue: LinkedBlockingMultiQueue[Item] = LinkedBlockingMultiQueue()
        counts = {name: random.randrange(50, 300) for name in ("a", "b", "c")}
        lanes = [multi_queue.add_subqueue(name, random.randrange(2), random.choice([None, 1, 2, 7])) for name in counts]
        ends = multi_queue.add_subqueue("ends", priority=9)
        seen: list[list[Item]] = [[], []]

        def produce(lane: SubQueue[Item], count: int) -> None:
            for number in range(count):
                lane.put((str(lane.key), number))

        takers = [threads.start(consume, multi_queue.get, items) for items in seen]
        producers = [threads.start(produce, lane, counts[str(lane.key)]) for lane in lanes]
        for producer in producers:
            producer.join()
        ends.put_many([END] * len(takers))

        def check() -> None:
            assert_once_and_in_order(seen, counts)
            multi_queue.check_invariants()

        return check

    stress(scenario, rounds=rounds, seed="exactly once")


@few_and_many
def test_many_producers_of_one_lane_keep_their_own_orders(rounds: int) -> None:
    """Producers that share a bounded sub-queue, by single puts and in batches, each keep their own order."""

    def scenario(threads: Threads, random: Random) -> Check:
        multi_queue: LinkedBlockingMultiQueue[Item] = LinkedBlockingMultiQueue()
        lane = multi_queue.add_subqueue("lane", capacity=random.choice([1, 3, 50]))
        seen: list[list[Item]] = [[], []]

        def put_one_by_one() -> None:
            for number in range(200):
                lane.put(("single", number))

        def put_in_batches() -> None:
            for start in range(0, 200, 10):
                lane.put_many([("batch", number) for number in range(start, start + 10)])

        def take_batches() -> None:
            while True:
                for item in multi_queue.get_many(7):
                    if item == END:
                        return
                    seen[1].append(item)

        producers = [threads.start(put_one_by_one), threads.start(put_in_batches)]
        taker = threads.start(consume, multi_queue.get, seen[0])
        for producer in producers:
            producer.join()
        lane.put(END)
        taker.join()
        threads.start(take_batches)
        lane.put(END)

        def check() -> None:
            assert_once_and_in_order(seen, {"single": 200, "batch": 200})
            multi_queue.check_invariants()

        return check

    stress(scenario, rounds=rounds, seed="one lane")


@few_and_many
def test_the_capacity_is_never_exceeded(rounds: int) -> None:
    """However many putters wait, no thread ever sees more elements than the capacity."""

    def scenario(threads: Threads, random: Random) -> Check:
        capacity = random.randrange(1, 5)
        queue: Queue[int] = Queue(capacity)
        sizes: list[int] = []

        def produce() -> None:
            for number in range(150):
                queue.put(number)
                sizes.append(queue.qsize())

        def take() -> None:
            for _ in range(150):
                queue.get()

        threads.start_together(produce, produce, produce, take, take, take)

        def check() -> None:
            assert max(sizes) <= capacity
            assert queue.qsize() == 0
            queue.check_invariants()

        return check

    stress(scenario, rounds=rounds, seed="capacity")


@few_and_many
def test_the_limit_in_flight_is_never_exceeded(rounds: int) -> None:
    """Four workers on sub-queues with a limit never work on more elements of one than its limit."""

    def scenario(threads: Threads, random: Random) -> Check:
        multi_queue: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
        limits = {"one": 1, "two": 2}
        lanes = [multi_queue.add_subqueue(key, max_in_flight=limit) for key, limit in limits.items()]
        ends = multi_queue.add_subqueue("ends", priority=9)
        working: dict[object, list[None]] = {key: [] for key in limits}
        most: list[tuple[object, int]] = []

        def work() -> None:
            while True:
                subqueue, item = multi_queue.take()
                if item < 0:
                    return
                working[subqueue.key].append(None)
                most.append((subqueue.key, len(working[subqueue.key])))
                working[subqueue.key].pop()
                subqueue.task_done()

        for lane in lanes:
            lane.put_many(range(600))
        threads.start_together(work, work, work, work)
        for lane in lanes:
            lane.join()
        ends.put_many([-1] * 4)

        def check() -> None:
            assert len(most) == 1_200
            for key, limit in limits.items():
                assert max(count for of, count in most if of == key) <= limit
            multi_queue.check_invariants()

        return check

    stress(scenario, rounds=rounds, seed="in flight")


@few_and_many
def test_a_prolific_producer_does_not_starve_an_occasional_one(rounds: int) -> None:
    """While one lane is never empty, an element of another is taken within two takes of its put."""

    def scenario(threads: Threads, random: Random) -> Check:
        multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
        prolific = multi_queue.add_subqueue("prolific", capacity=100)
        occasional = multi_queue.add_subqueue("occasional")
        between: list[int] = []

        def flood() -> None:
            for _ in range(20_000):
                try:
                    prolific.put("p")
                except Detached:
                    return

        def put_and_take() -> None:
            for _ in range(500):
                occasional.put("o")
                taken = 1
                while multi_queue.get() != "o":
                    taken += 1
                between.append(taken)
            multi_queue.remove_subqueue("prolific")

        threads.start_together(flood, put_and_take)

        def check() -> None:
            assert len(between) == 500
            assert max(between) <= 2
            multi_queue.check_invariants()

        return check

    stress(scenario, rounds=rounds, seed="fairness")


@few_and_many
def test_lanes_come_and_go_while_elements_pass(rounds: int) -> None:
    """Sub-queues are added, disabled, cleared and removed under load: each element is taken, kept or refused."""

    def scenario(threads: Threads, random: Random) -> Check:
        multi_queue: LinkedBlockingMultiQueue[Item] = LinkedBlockingMultiQueue()
        accepted: list[Item] = []
        kept: list[Item] = []
        seen: list[Item] = []
        choices = [random.randrange(3) for _ in range(60)]

        def produce(lane: SubQueue[Item], name: str) -> None:
            for number in range(40):
                try:
                    lane.put((name, number), timeout=30.0)
                except Detached:
                    return
                accepted.append((name, number))

        def change() -> None:
            for number, choice in enumerate(choices):
                name = f"lane {number}"
                lane = multi_queue.add_subqueue(name, choice, capacity=3)
                producer = threads.start(produce, lane, name)
                if choice == 0:
                    lane.disable("now and then")
                    lane.enable("now and then")
                    producer.join()
                elif choice == 1:
                    lane.capacity = None
                    lane.priority = 0
                kept.extend(multi_queue.remove_subqueue(name))
                producer.join()

        taker = threads.start(consume, multi_queue.get, seen)
        threads.start(change).join()
        multi_queue.add_subqueue("ends").put(END)
        taker.join()

        def check() -> None:
            assert sorted(seen + kept) == sorted(accepted)
            multi_queue.check_invariants()

        return check

    stress(scenario, rounds=rounds, seed="lanes come and go")


@few_and_many
def test_timeouts_under_load_lose_nothing(rounds: int) -> None:
    """Putters and takers that give up all the time, and some that do not: what was accepted is taken."""

    def scenario(threads: Threads, random: Random) -> Check:
        multi_queue: LinkedBlockingMultiQueue[Item] = LinkedBlockingMultiQueue()
        lane = multi_queue.add_subqueue("lane", capacity=2)
        pauses = [random.choice([0.0, 1e-6, 1e-4, 1e-3]) for _ in range(150)]
        accepted: list[Item] = []
        refused: list[Item] = []
        seen: list[list[Item]] = [[], [], []]

        def put(name: str) -> None:
            for number, pause in enumerate(pauses):
                try:
                    lane.put((name, number), timeout=pause)
                except Full as error:
                    refused.append(vars(error)["item"])
                else:
                    accepted.append((name, number))

        def take(items: list[Item]) -> None:
            for pause in pauses:
                try:
                    items.append(multi_queue.get(timeout=pause))
                except Empty:
                    pass

        threads.start(consume, multi_queue.get, seen[0])
        hasty: list[Any] = [threads.start(put, "a"), threads.start(put, "b")]
        hasty += [threads.start(take, items) for items in seen[1:]]
        for thread in hasty:
            thread.join()
        lane.put(END)

        def check() -> None:
            assert sorted(item for items in seen for item in items) == sorted(accepted)
            assert len(set(accepted + refused)) == len(accepted) + len(refused) == 2 * len(pauses)
            multi_queue.check_invariants()

        return check

    stress(scenario, rounds=rounds, seed="timeouts")
