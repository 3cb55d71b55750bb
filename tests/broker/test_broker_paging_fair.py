"""Fair queues that page: turns, and the order within each tenant, at any depth and in little memory."""

from __future__ import annotations

import os
import shutil
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest
from broker_parts_support import PagedEntries

from multiqueue.broker import Broker, Entry, Message, Overflow, Policy, QueueSettings, Received, StandardEntryList

MIB = 1 << 20
HANG = 60.0


@contextmanager
def opened(data: Path | None, limit: int = MIB, *, name: str = "q", **options: object) -> Iterator[Broker]:
    """A broker with a fair queue, durable where there is a directory."""
    settings = QueueSettings(kind="fair", durable=data is not None, **options)  # type: ignore[arg-type]
    with Broker(data=data, durability="relaxed", memory_limit=limit) as broker:
        broker.declare_queue(name, settings=settings)
        yield broker
        broker.virtual_host().check_invariants()


def put(broker: Broker, tenant: str, number: int, *, size: int = 1024, cost: float = 1, **options: object) -> None:
    body, headers = str(number).encode().ljust(size), {"tenant": tenant, "cost": cost}
    is_stored = broker.queue("q").settings.durable
    message = Message(body, routing_key="q", persistent=is_stored, headers=headers, **options)  # type: ignore[arg-type]
    broker.publish_nowait(message)


def tenant_of(received: Received) -> str:
    return str(received.message.headers["tenant"])


def is_paging(broker: Broker) -> bool:
    source: object = broker.queue("q").life.source
    return isinstance(source, PagedEntries)


@pytest.fixture(params=["durable", "transient"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "data" if request.param == "durable" else None


def test_tenants_take_turns_wherever_their_messages_are(data: Path | None) -> None:
    """What two tenants were served never differs by more than one, and each is served in the order of arrival, also
    what came back (bounded-memory 18)."""
    with opened(data) as broker:
        for number in range(60):
            for tenant in range(50):
                put(broker, f"t{tenant}", number)
        assert is_paging(broker)
        begun, done = Counter[str](), Counter[str]()
        with broker.subscribe("q", prefetch=1) as consumer:
            while done.total() < 3000:
                received = consumer.get(HANG)
                tenant = tenant_of(received)
                assert int(received.body) == done[tenant]
                begun[tenant] += received.delivery_count == 1
                assert max(begun.values()) - min(begun[f"t{each}"] for each in range(50)) <= 1
                if received.delivery_count == 1 and begun.total() % 7 == 3:
                    received.release()
                else:
                    done[tenant] += 1
                    received.accept()


def test_what_has_a_time_to_live_pages_with_the_rest(data: Path | None) -> None:
    """No message is lost when a queue of messages that may expire begins to page: each is there until its time."""
    with opened(data, MIB // 2) as broker:
        for number in range(200):
            for tenant in ("a", "b", "c"):
                put(broker, tenant, number, expiration=1000.0)
        assert is_paging(broker)
        served = Counter[str]()
        while (received := broker.get("q")) is not None:
            assert int(received.body) == served[tenant_of(received)]
            served[tenant_of(received)] += 1
            received.accept()
        assert served == {"a": 200, "b": 200, "c": 200}


def test_messages_that_came_in_runs_page_by_tenant(tmp_path: Path) -> None:
    """What a connection publishes without waiting goes to the store in runs, and is found there again."""
    with opened(tmp_path, MIB // 2) as broker:
        publisher = broker.virtual_host().publisher(lambda told: None)
        for number in range(20):
            headers = [{"tenant": f"t{tenant}"} for tenant in range(5)]
            body = str(number).encode().ljust(1024)
            run = [Message(body, routing_key="q", persistent=True, headers=each) for each in headers]
            assert publisher.publish_all(run, []) is not None
        publisher.hand_in()
        broker.wait_for_commits()
        for number in range(20, 200):
            for tenant in range(5):
                put(broker, f"t{tenant}", number)
        broker.wait_for_commits()
        assert is_paging(broker)
        assert drained(broker) == {f"t{tenant}": list(range(200)) for tenant in range(5)}


def test_what_is_settled_together_leaves_together(data: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue without levels takes the whole run out of its log in one call, also where a store keeps it."""
    runs: list[int] = []
    with opened(data) as broker:
        for number in range(20):
            put(broker, f"t{number % 3}", number)
        broker.wait_for_commits()
        discard_all = StandardEntryList.discard_all
        monkeypatch.setattr(
            StandardEntryList,
            "discard_all",
            lambda log, entries: (runs.append(len(entries)), discard_all(log, entries)),  # type: ignore[arg-type]
        )
        with broker.subscribe("q", prefetch=20) as consumer:
            consumer.accept(*consumer.get_many(20, HANG))
            assert runs == [20]


@pytest.mark.parametrize("is_paged", [False, True])
def test_what_comes_back_for_ever_keeps_nobody_waiting(data: Path | None, is_paged: bool) -> None:
    """A consumer returns one message each time it has it: the other tenants are served all the same, in their turns."""
    with opened(data, MIB // 2 if is_paged else 64 * MIB) as broker:
        for number in range(300):
            for tenant in ("a", "b", "c"):
                put(broker, tenant, number)
        broker.wait_for_commits()
        assert is_paging(broker) is is_paged
        with broker.subscribe("q", prefetch=1) as consumer:
            served = Counter[str]()
            for _ in range(80):
                received = consumer.get(HANG)
                served[tenant_of(received)] += 1
                if (tenant_of(received), int(received.body)) == ("a", 0):
                    received.release()
                else:
                    received.accept()
        assert served == {"a": 40, "b": 20, "c": 20}


def test_a_new_tenant_is_served_in_this_round(data: Path | None) -> None:
    """A message of another tenant than a flood's is the next but one, though the flood fills the memory."""
    with opened(data) as broker:
        for number in range(3000):
            put(broker, "flood", number)
        assert is_paging(broker)
        with broker.subscribe("q", prefetch=1) as consumer:
            consumer.get(HANG).accept()
            for late in range(20):
                put(broker, f"late{late}", 0)
                broker.wait_for_commits()
                tenants = []
                for _ in range(3):
                    received = consumer.get(HANG)
                    tenants.append(tenant_of(received))
                    received.accept()
                assert f"late{late}" in tenants


def test_weights_caps_and_pauses_count_on_the_disk(data: Path | None) -> None:
    """A tenant of weight 3 is served thrice as often, and one at its cap is passed over, and nothing is read for it."""
    options = {"weights": {"heavy": 3}, "tenants": {"capped": {"max_in_flight": 1}}}
    with opened(data, kind_options=options) as broker:
        for number in range(600):
            for tenant in ("heavy", "light", "capped"):
                put(broker, tenant, number)
        assert is_paging(broker)
        with broker.subscribe("q", prefetch=100) as consumer:
            held = [consumer.get(HANG) for _ in range(81)]
            count = Counter(map(tenant_of, held))
            assert count["capped"] == 1
            assert abs(count["heavy"] / 3 - count["light"]) <= 1 / 3 + 1
            for received in held:
                received.accept()


def test_tenants_are_changed_and_seen_while_the_queue_pages(data: Path | None) -> None:
    """A pause counts at once, and so does its end; figures count what is on the disk."""
    with opened(data) as broker:
        for number in range(600):
            for tenant in ("a", "b"):
                put(broker, tenant, number)
        broker.wait_for_commits()
        assert is_paging(broker)
        queue = broker.queue("q")
        assert [each.waiting for each in queue.tenants().largest] == [600, 600]
        queue.change_tenant("a", {"paused": True})
        with broker.subscribe("q", prefetch=1) as consumer:
            for paused in (True, False):
                queue.change_tenant("a", {"paused": paused})
                given = []
                for _ in range(20):
                    received = consumer.get(HANG)
                    given.append(tenant_of(received))
                    received.accept()
                assert ("a" in given[1:]) is not paused
        assert {each.name: each.waiting + each.in_flight for each in queue.tenants().largest}["b"] < 580


def waiting(broker: Broker) -> dict[str, int]:
    return {each.name: each.waiting for each in broker.queue("q").tenants().largest}


def drained(broker: Broker) -> dict[str, list[int]]:
    """What is on the queue, by tenant, in the order of its deliveries."""
    found = defaultdict[str, list[int]](list)
    with broker.subscribe("q", prefetch=1) as consumer:
        for _ in range(len(broker.queue("q"))):
            received = consumer.get(HANG)
            found[tenant_of(received)].append(int(received.body))
            received.accept()
    return found


@pytest.mark.parametrize("is_paged", [False, True])
@pytest.mark.parametrize("by", ["policy", "tenant", "declaration"])
def test_a_flood_drops_its_own(data: Path | None, is_paged: bool, by: str) -> None:
    """A ring, that of a policy too, and a tenant at a limit drop the oldest of the flood, wherever the messages are."""
    ring = {"overflow": Overflow.RING, "max_length": 700} if by == "declaration" else {}
    with opened(data, MIB // 2 if is_paged else 64 * MIB, **ring) as broker:
        for number in range(20):
            for tenant in range(10):
                put(broker, f"t{tenant}", number)
        for number in range(1000):
            put(broker, "flood", number)
        broker.wait_for_commits()
        assert is_paging(broker) is is_paged
        host = broker.virtual_host()
        if by == "policy":
            host.policies.set(Policy(name="p", pattern="q", definition={"max-length": 700}))
        elif by == "tenant":
            broker.queue("q").change_tenant("flood", {"max_length": 500})
        _until(lambda: len(broker.queue("q")) == 700)
        host.check_invariants()
        for number in range(1000, 1100):
            put(broker, "flood", number)
        broker.wait_for_commits()
        _until(lambda: len(broker.queue("q")) == 700)
        assert waiting(broker) == {"flood": 500, **{f"t{tenant}": 20 for tenant in range(10)}}
        assert drained(broker) == {
            "flood": list(range(600, 1100)),
            **{f"t{tenant}": list(range(20)) for tenant in range(10)},
        }


def test_what_consumers_had_counts_at_a_limit_after_a_restart(tmp_path: Path) -> None:
    """It is ready again, so the oldest of it goes, though nobody publishes."""
    with opened(tmp_path) as broker:
        for number in range(2000):
            put(broker, "a", number)
        broker.wait_for_commits()
        assert is_paging(broker)
        owner, queue = object(), broker.queue("q")
        held = [queue.get(owner) for _ in range(30)]
        assert None not in held
        queue.change_tenant("a", {"max_length": 1970})
    with opened(tmp_path) as broker:
        _until(lambda: waiting(broker) == {"a": 1970})
        assert drained(broker)["a"] == list(range(30, 2000))


def _until(is_so: Callable[[], bool]) -> None:
    end = monotonic() + HANG
    while not is_so() and monotonic() < end:
        sleep(0.001)
    assert is_so()


def test_a_selector_finds_what_is_deep(data: Path | None) -> None:
    """A consumer is given what its selector matches, and takes nobody's turn for the rest."""
    with opened(data) as broker:
        for number in range(400):
            for tenant in range(5):
                put(broker, f"t{tenant}", number, type="wanted" if number >= 395 else "other")
        assert is_paging(broker)
        with broker.subscribe("q", prefetch=1, selector="JMSType = 'wanted'") as consumer:
            found = []
            for _ in range(25):
                received = consumer.get(HANG)
                found.append((int(received.body), tenant_of(received)))
                received.accept()
        assert sorted(found) == [(number, f"t{tenant}") for number in range(395, 400) for tenant in range(5)]
        assert [sum(tenant == f"t{each}" for _, tenant in found[:5]) for each in range(5)] == [1] * 5


def test_gets_purges_and_looks_know_every_tenant(data: Path | None) -> None:
    """Gets take turns, a look sees everything, a purge leaves nothing, and the queue is in memory again."""
    with opened(data) as broker:
        for number in range(200):
            for tenant in range(10):
                put(broker, f"t{tenant}", number)
        broker.wait_for_commits()
        queue, owner = broker.queue("q"), object()
        first = [entry for _ in range(10) if (entry := queue.get(owner)) is not None]
        assert {str(entry.message.headers["tenant"]) for entry in first} == {f"t{each}" for each in range(10)}
        looked = Counter(str(message.headers["tenant"]) for message in queue.browse())
        assert looked == dict.fromkeys(looked, 199)
        assert queue.purge() == 1990
        assert sum(each.waiting for each in queue.tenants().largest) == 0
        queue.accept(first, owner)
        broker.wait_for_commits()
        put(broker, "t3", 7)
        with broker.subscribe("q", prefetch=1) as consumer:
            assert int(consumer.get(HANG).body) == 7


def test_a_queue_that_is_back_in_memory_has_nothing_of_what_was_read(data: Path | None) -> None:
    """What consumers had when it began to page, returned, and was read again from the disk has left nothing behind."""
    with opened(data) as broker:
        queue, owner = broker.queue("q"), object()
        for tenant in range(30):
            put(broker, f"t{tenant}", 0)
        held = [entry for _ in range(30) if (entry := queue.get(owner)) is not None]
        assert not is_paging(broker)
        for number in range(1, 40):
            for tenant in range(30):
                put(broker, f"t{tenant}", number, size=3000)
        broker.wait_for_commits()
        assert is_paging(broker)
        queue.release(held, owner)
        assert drained(broker) == {f"t{tenant}": list(range(40)) for tenant in range(30)}
        broker.wait_for_commits()
        queue.purge()
        _until(lambda: not is_paging(broker))


@pytest.mark.parametrize("is_crash", [False, True])
def test_turns_and_order_are_there_after_opening(tmp_path: Path, is_crash: bool) -> None:
    """Tenants are found by their messages in the store, after a crash as after a close."""
    data = tmp_path / "data"
    with opened(data) as broker:
        for number in range(40):
            for tenant in range(60):
                put(broker, f"t{tenant}", number)
        with broker.subscribe("q", prefetch=1) as consumer:
            for _ in range(90):
                consumer.get(HANG).accept()
        broker.wait_for_commits()
        if is_crash:
            shutil.copytree(data, tmp_path / "crashed")
    with opened(tmp_path / "crashed" if is_crash else data) as broker:
        served: Counter[str] = Counter()
        next_number: dict[str, int] = {}
        with broker.subscribe("q", prefetch=1) as consumer:
            for _ in range(1800):
                received = consumer.get(HANG)
                tenant, number = tenant_of(received), int(received.body)
                assert number == next_number.get(tenant, number)
                assert number <= 32
                next_number[tenant] = number + 1
                served[tenant] += 1
                received.accept()
                assert max(served.values()) - min(served[f"t{each}"] for each in range(60)) <= 1


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(each, marks=pytest.mark.slow) for each in range(2, 60))])
def test_each_tenant_is_in_order_after_anything(tmp_path: Path, seed: int) -> None:
    """Puts, gets, settlements, returns, purges, restarts: what is given is its tenant's first, all is given, and while
    two have messages they are served alike. A round is one message of the greatest cost / weight long, and each may be
    one ahead when both are first compared."""
    random = Random(seed)
    weights = {"t0": 3, "t1": 0.5} if seed % 3 else {}
    options = {"kind_options": {"weights": weights, "cost": "header:cost"}}
    costs = {f"t{each}": (1, 3, 0.5)[each % 3] for each in range(12)}
    greatest = 3 / min(weights.values(), default=1)
    begun: set[int] = set()
    leads: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0])  # how far the one was ahead of the other
    data, limit = (tmp_path / "data" if seed % 2 else None), MIB // 2
    ready: dict[str, list[int]] = defaultdict(list)
    count, number = 0, 0
    taken: list[tuple[Entry, str, int]] = []
    owner = object()
    with ExitStack() as stack:
        broker = stack.enter_context(opened(data, limit, **options))
        for _ in range(400):
            event, queue = random.random(), broker.queue("q")
            if event < 0.3:
                for _ in range(random.randrange(40)):
                    tenant = f"t{min(random.randrange(12), random.randrange(12))}"
                    put(broker, tenant, number, size=random.choice([10, 500, 3000, 40_000]), cost=costs[tenant])
                    ready[tenant].append(number)
                    number, count = number + 1, count + 1
                broker.wait_for_commits()
            elif event < 0.9:
                entry = queue.get(owner)
                assert (entry is None) == (count == 0)
                if entry is not None:
                    tenant, got = str(entry.message.headers["tenant"]), int(bytes(entry.message.body))
                    open_ones = {each for each, numbers in ready.items() if numbers}
                    step = 0 if got in begun else costs[tenant] / weights.get(tenant, 1)
                    begun ^= {got}  # what comes back is charged at every other delivery
                    for pair in set(leads).union((tenant, other) for other in open_ones - {tenant}):
                        if tenant in pair:
                            history = leads[pair]
                            history.append(history[-1] + (step if tenant == pair[0] else -step))
                            assert max(history) - min(history) <= 3 * greatest + 1e-9, (pair, history)
                    assert ready[tenant].pop(0) == got
                    if not ready[tenant]:
                        leads = defaultdict(lambda: [0.0], {each: leads[each] for each in leads if tenant not in each})
                    taken.append((entry, tenant, got))
                    count -= 1
            elif event < 0.985:
                random.shuffle(taken)
                for entry, tenant, got in taken[: random.randrange(8)]:
                    if random.random() < 0.5:
                        queue.accept((entry,), owner)
                    else:
                        queue.release((entry,), owner)
                        insort(ready[tenant], got)
                        count += 1
                    taken.remove((entry, tenant, got))
            elif event < 0.99:
                assert queue.purge() == count
                ready.clear()
                leads.clear()
                count = 0
            elif data is not None:
                for _, tenant, got in taken:
                    insort(ready[tenant], got)
                count, taken = count + len(taken), []
                leads.clear()
                stack.close()
                broker = stack.enter_context(opened(data, limit, **options))
            broker.virtual_host().check_invariants()
            assert len(broker.queue("q")) == count + len(taken)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell what is used")
def test_a_million_messages_of_ten_thousand_tenants(tmp_path: Path) -> None:
    """In 32 MiB a new tenant's message is served within one round, although all others lie on the disk."""
    tenants = 10_000
    with opened(tmp_path, 32 * MIB) as broker:
        for number in range(1_000_000):
            put(broker, f"t{number % tenants}", number // tenants)
        broker.wait_for_commits()
        put(broker, "new", 0)
        broker.wait_for_commits()
        before, served = _resident(), Counter[str]()
        with broker.subscribe("q", prefetch=1) as consumer:
            for _ in range(3 * tenants):
                received = consumer.get(HANG)
                tenant = tenant_of(received)
                assert int(received.body) == served[tenant]
                served[tenant] += 1
                received.accept()
                if len(served) <= tenants:
                    assert max(served.values()) <= 1 or "new" in served
        assert served["new"] == 1
        assert set(served.values()) <= {1, 2, 3}
        figures = broker.virtual_host().memory_statistics()
        assert figures.used - figures.loading - figures.writing <= figures.limit
        print(f"{before / MIB:.0f} MiB resident after publishing, {_resident() / MIB:.0f} after three rounds")
