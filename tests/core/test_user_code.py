"""Where code of the user runs: never under a lock of the core or of the executor (core 9).

`ENTRIES` names every public entry point. Each is called with elements, keys, callbacks and jobs that look, whenever one
of their methods runs, which of the locks the thread that runs it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from core_parts_support import Contents, engine

from multiqueue import (
    Empty,
    FairQueue,
    Full,
    Lane,
    LinkedBlockingMultiQueue,
    MultiQueueExecutor,
    Queue,
    ShutDown,
    SubQueue,
)
from multiqueue.testing import PATIENCE

pytestmark = pytest.mark.skipif(
    engine == "c", reason="it looks at the locks of the engine in Python; a section of the one in C calls nothing"
)

# The one exception, in promise 9: keys are hashed and compared under the lock of the registry they are entered in.
OF_KEYS = {"key.__hash__", "key.__eq__"}
REGISTRIES = {"registry lock", "executor lock"}


class Watch:
    """Which locks were held when which code of the user ran."""

    def __init__(self) -> None:
        self.locks: dict[str, Any] = {}
        self.ran: set[str] = set()
        self.faults: list[str] = []

    def look(self, what: str) -> None:
        self.ran.add(what)
        held = {name for name, lock in self.locks.items() if lock._is_owned()}
        if held - (REGISTRIES if what in OF_KEYS else set()):
            self.faults.append(f"{what} under {', '.join(sorted(held))}")

    def callback(self, what: str) -> Callable[..., Any]:
        def called(*args: object) -> object:
            self.look(what)
            return args[0] if args else None

        return called


class Nosy:
    """An element or a key, equal by its number to others."""

    def __init__(self, watch: Watch, number: int, what: str = "element") -> None:
        self._watch, self._number, self._what = watch, number, what

    def __eq__(self, other: object) -> bool:
        self._watch.look(f"{self._what}.__eq__")
        return isinstance(other, Nosy) and self._number == other._number

    def __hash__(self) -> int:
        self._watch.look(f"{self._what}.__hash__")
        return 1  # all collide, and so are compared

    def __repr__(self) -> str:
        self._watch.look(f"{self._what}.__repr__")
        return f"<{self._number}>"

    def __bool__(self) -> bool:
        self._watch.look(f"{self._what}.__bool__")
        return False

    def __del__(self) -> None:
        self._watch.look(f"{self._what}.__del__")


class NosyInt(int):
    """A setting that looks when it is compared."""

    watch: Watch

    def __lt__(self, other: int) -> bool:
        self.watch.look("setting.__lt__")
        return int(self) < other

    def __ge__(self, other: int) -> bool:
        return not self < other

    def __eq__(self, other: object) -> bool:
        self.watch.look("setting.__eq__")
        return int(self) == other

    __gt__ = __le__ = __ge__  # type: ignore[assignment]
    __hash__ = int.__hash__


class Watcher:
    """A watcher of the executor's jobs."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def submitted(self, lane: object, job: object) -> None:
        self._watch.look("watcher.submitted")

    def began(self, lane: object, job: object) -> None:
        self._watch.look("watcher.began")


class Choosing:
    """A selection of the user's."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def select(self, ready: Any) -> Any:
        self._watch.look("selection.select")
        return ready[-1]

    def taken(self, subqueue: object) -> None:
        self._watch.look("selection.taken")


class House:
    """A multi-queue with two sub-queues of three elements and keys that look; a `Queue`; an executor with a lane."""

    def __init__(self, watch: Watch, selection: bool = False) -> None:
        self.watch = watch
        self.m: LinkedBlockingMultiQueue[Any] = LinkedBlockingMultiQueue(
            selection=Choosing(watch) if selection else None
        )
        self.a = self.m.add_subqueue(self.key(1), capacity=4)
        self.b = self.m.add_subqueue(self.key(2))
        self.q: Queue[Any] = Queue(4)
        for queue in (self.a, self.b, self.q):
            queue.put_many([self.new(n) for n in range(3)])
        self.f: FairQueue[Any] = FairQueue(capacity=4)
        for number in range(3):
            self.f.put(self.new(number), key=self.key(1))
            self.f.put(self.new(number), key=(self.key(2), self.key(3)))
        self.e = MultiQueueExecutor(1, initializer=watch.callback("initializer"))
        self.lane = self.e.lane(self.key(3), capacity=9)
        workers = self.e._workers
        watch.locks = {
            "registry lock": self.m._registry_lock,
            "the multi-queue's lock": self.m._engine_head.lock,
            "the Queue's lock": self.q._engine_head.lock,
            "the fair queue's lock": self.f._engine_head.lock,
            "executor lock": self.e._lock,
            "worker lock": workers._lock,
            "starting lock": workers._starting,
            "the lock of the workers' multi-queue": workers.queue._engine_head.lock,
        }

    def new(self, number: int) -> Nosy:
        return Nosy(self.watch, number)

    def key(self, number: int) -> Nosy:
        return Nosy(self.watch, number, "key")

    def setting(self, value: int) -> NosyInt:
        setting = NosyInt(value)
        setting.watch = self.watch
        return setting

    def job(self) -> tuple[Callable[..., Any], Nosy]:
        return self.watch.callback("job"), self.new(9)

    def refused(self, call: Callable[..., object], *args: object, **kwargs: object) -> None:
        with suppress(Empty, Full, ShutDown, KeyError, ValueError, RuntimeError, StopIteration):
            call(*args, **kwargs)

    def watched(self, submit: Callable[..., Any], *args: Any) -> None:
        """Submit with a watcher and a callback, to the end; and once more, cancelled."""
        self.e.watch(Watcher(self.watch))
        future = submit(*args)
        future.add_done_callback(self.watch.callback("done"))
        future.result(PATIENCE)
        self.lane.pause()
        waiting = self.lane.submit(*self.job())
        waiting.add_done_callback(self.watch.callback("cancelled"))
        assert waiting.cancel()
        self.lane.resume()

    def shut(self, queue: Any, immediate: bool) -> None:
        """Shut down, and do everything that is refused then."""
        queue.shutdown(immediate)
        for sub in (self.a, self.b) if queue is self.m else (queue,):
            for call in (sub.put, sub.put_first, sub.offer):
                self.refused(call, self.new(5))
            sub.clear()
            self.refused(sub.get)
            self.refused(sub.get_many, 2)
        self.refused(queue.get)


def both(call: Callable[[Any], object]) -> Callable[[House], object]:
    """The same of a sub-queue and of a `Queue`."""
    return lambda h: (call(h.a), call(h.q))


ENTRIES: dict[type, dict[str, Callable[[House], object]]] = {
    LinkedBlockingMultiQueue: {
        "add_subqueue": lambda h: (h.m.add_subqueue(h.key(7)), h.refused(h.m.add_subqueue, h.key(1))),
        "get_or_add_subqueue": lambda h: (h.m.get_or_add_subqueue(h.key(7)), h.m.get_or_add_subqueue(h.key(1))),
        "get_subqueue": lambda h: (h.m.get_subqueue(h.key(1)), h.refused(h.m.get_subqueue, h.key(8))),
        "remove_subqueue": lambda h: (
            h.m.remove_subqueue(h.key(1)).clear(),
            h.refused(h.a.get),
            h.refused(h.a.put, h.new(1)),
            h.refused(h.m.remove_subqueue, h.key(8)),
        ),
        "subqueues": lambda h: (h.key(1) in h.m.subqueues, list(h.m.subqueues), repr(h.m.subqueues)),
        "get": lambda h: h.m.get(),
        "get_nowait": lambda h: h.m.get_nowait(),
        "take": lambda h: h.m.take().item,
        "poll": lambda h: h.m.poll(),
        "peek": lambda h: h.m.peek(),
        "get_many": lambda h: h.m.get_many(4),
        "drain_to": lambda h: (h.m.drain_to(h.watch.callback("target"), 2), h.m.drain_to(set(), 2)),
        "async_get": lambda h: h.refused(h.m.async_get().send, None),
        "async_take": lambda h: h.refused(h.m.async_take().send, None),
        "qsize": lambda h: h.m.qsize(),
        "empty": lambda h: h.m.empty(),
        "join": lambda h: (h.a.clear(), h.b.clear(), h.m.join()),
        "is_shutdown": lambda h: h.m.is_shutdown,
        "shutdown": lambda h: (h.shut(h.m, False), h.refused(h.m.add_subqueue, h.key(9))),
        "shutdown immediate": lambda h: h.shut(h.m, True),
        "statistics": lambda h: repr(h.m.statistics()),
        "check_invariants": lambda h: h.m.check_invariants(),
        "__repr__": lambda h: (repr(h.m), h.m._repr_html_()),
    },
    SubQueue: {
        "put": both(lambda q: (q.put(q.peek()), q.offer(q.peek()), q.get())),
        "put_nowait": lambda h: (h.refused(h.a.put_nowait, h.new(1)), h.refused(h.a.put_nowait, h.new(2))),
        "offer": lambda h: (h.a.offer(h.new(1)), h.a.offer(h.new(2))),
        "put_many": lambda h: h.a.put_many([h.new(1), h.new(2)], timeout=0),
        "put_first": lambda h: h.a.put_first(h.new(1)),
        "async_put": lambda h: h.refused(h.a.async_put(h.new(1)).send, None),
        "get": both(lambda q: q.get()),
        "get_nowait": both(lambda q: q.get_nowait()),
        "poll": both(lambda q: q.poll()),
        "peek": both(lambda q: q.peek()),
        "get_many": both(lambda q: q.get_many(2)),
        "drain_to": lambda h: (h.a.drain_to(h.watch.callback("target")), h.q.drain_to(set())),
        "async_get": lambda h: h.refused(h.a.async_get().send, None),
        "qsize": both(lambda q: len(q)),
        "empty": both(lambda q: q.empty()),
        "full": both(lambda q: q.full()),
        "maxsize": both(lambda q: q.maxsize),
        "remaining_capacity": both(lambda q: q.remaining_capacity()),
        "__iter__": both(list),
        "__contains__": lambda h: (h.new(2) in h.a, h.new(7) in h.q),
        "remove": lambda h: (h.a.remove(h.new(2)), h.q.remove(h.new(1)), h.a.remove(h.new(7))),
        "clear": both(lambda q: q.clear()),
        "in_flight": both(lambda q: q.in_flight),
        "task_done": both(lambda q: (q.get(), q.task_done())),
        "join": both(lambda q: (q.clear(), q.join())),
        "is_shutdown": both(lambda q: q.is_shutdown),
        "shutdown": lambda h: (h.shut(h.a, False), h.shut(h.q, False)),
        "shutdown immediate": lambda h: (h.shut(h.a, True), h.shut(h.q, True)),
        "statistics": both(lambda q: repr(q.statistics())),
        "check_invariants": both(lambda q: q.check_invariants()),
        "__repr__": both(repr),
        "key": lambda h: h.a.key,
        "priority": lambda h: (setattr(h.a, "priority", h.setting(3)), h.m.get_many(9)),
        "capacity": lambda h: (setattr(h.a, "capacity", h.setting(9)), h.a.put(h.new(1))),
        "weight": lambda h: (setattr(h.a, "weight", h.setting(2)), h.m.get_many(9)),
        "max_in_flight": lambda h: (setattr(h.a, "max_in_flight", h.setting(2)), h.m.get_many(9)),
        "enabled": lambda h: h.a.enabled,
        "enable": lambda h: (h.a.disable(h.key(4)), h.a.disable(h.key(5)), h.a.enable(h.key(4)), h.a.enable(h.key(5))),
        "disable": lambda h: h.a.disable(h.key(4)),
    },
    FairQueue: {
        "put": lambda h: (h.f.put(h.new(1), key=h.key(1)), h.f.put(h.new(2), key=(h.key(8), h.key(9)))),
        "put_nowait": lambda h: [h.refused(h.f.put_nowait, h.new(n), key=h.key(1)) for n in range(5)],
        "offer": lambda h: [h.f.offer(h.new(n), key=h.key(1)) for n in range(5)],
        "async_put": lambda h: [h.refused(h.f.async_put(h.new(n), key=h.key(1)).send, None) for n in range(5)],
        "get": lambda h: [h.f.get() for _ in range(6)] and h.refused(h.f.get, timeout=0.0),
        "get_nowait": lambda h: h.f.get_nowait(),
        "take": lambda h: h.f.take().item,
        "poll": lambda h: h.f.poll(),
        "peek": lambda h: h.f.peek(),
        "get_many": lambda h: h.f.get_many(9),
        "async_get": lambda h: h.refused(h.f.async_get().send, None),
        "async_take": lambda h: h.refused(h.f.async_take().send, None),
        "task_done": lambda h: (h.f.get(), h.f.task_done(), h.f.task_done(h.key(1)), h.f.task_done((h.key(2), 3))),
        "join": lambda h: ([h.f.task_done() for _ in range(6)], h.f.join()),
        "set_weight": lambda h: h.f.set_weight(h.key(1), h.setting(2)),
        "set_max_in_flight": lambda h: (h.f.set_max_in_flight(h.key(1), h.setting(2)), h.f.get_many(9)),
        "pause": lambda h: (h.f.pause(h.key(1), h.key(4)), h.f.pause((h.key(2), 3), h.key(5)), h.f.get_many(9)),
        "resume": lambda h: (h.f.pause(h.key(1), h.key(4)), h.f.resume(h.key(1), h.key(4))),
        "qsize": lambda h: (h.f.qsize(), h.f.qsize(h.key(1))),
        "empty": lambda h: h.f.empty(),
        "full": lambda h: h.f.full(h.key(1)),
        "maxsize": lambda h: h.f.maxsize,
        "waiting": lambda h: h.f.waiting(),
        "is_shutdown": lambda h: h.f.is_shutdown,
        "shutdown": lambda h: (h.f.shutdown(), h.refused(h.f.put, h.new(1), key=h.key(1)), h.f.get_many(9)),
        "shutdown immediate": lambda h: (h.f.shutdown(True), h.refused(h.f.get)),
        "check_invariants": lambda h: h.f.check_invariants(),
        "__repr__": lambda h: repr(h.f),
    },
    Queue: {
        "unfinished_tasks": lambda h: setattr(h.q, "unfinished_tasks", 0),
        "mutex": lambda h: h.q.mutex.acquire() and h.q.mutex.release(),
        "queue": lambda h: repr(h.q.queue),
        "not_empty": lambda h: h.q.not_empty,
        "not_full": lambda h: h.q.not_full,
        "all_tasks_done": lambda h: h.q.all_tasks_done,
    },
    Contents: {
        "maxlen": lambda h: h.q.queue.maxlen,
        "copy": lambda h: h.q.queue.copy(),
        "append": lambda h: h.q.queue.append(h.new(5)),
        "appendleft": lambda h: h.q.queue.appendleft(h.new(5)),
        "clear": lambda h: h.q.queue.clear(),
        "extend": lambda h: h.q.queue.extend(h.new(n) for n in range(2)),
        "extendleft": lambda h: h.q.queue.extendleft([h.new(5)]),
        "insert": lambda h: h.q.queue.insert(1, h.new(5)),
        "pop": lambda h: h.q.queue.pop(),
        "popleft": lambda h: h.q.queue.popleft(),
        "remove": lambda h: (h.q.queue.remove(h.new(2)), h.refused(h.q.queue.remove, h.new(7))),
        "reverse": lambda h: h.q.queue.reverse(),
        "rotate": lambda h: h.q.queue.rotate(1),
        "index": lambda h: h.q.queue.index(h.new(2)),
        "count": lambda h: h.q.queue.count(h.new(2)),
        "__setitem__": lambda h: h.q.queue.__setitem__(1, h.new(5)),
        "__delitem__": lambda h: h.q.queue.__delitem__(1),
        "__eq__": lambda h: h.q.queue == h.q.queue.copy(),
        "__contains__": lambda h: h.new(2) in h.q.queue,
    },
    MultiQueueExecutor: {
        "lane": lambda h: (h.e.lane(h.key(3)), h.e.lane(h.key(6)), h.refused(h.e.lane, h.key(3), priority=5)),
        "keyed": lambda h: h.watched(h.e.keyed(h.key(7)).submit, *h.job()),
        "lanes": lambda h: list(h.e.lanes),
        "max_workers": lambda h: h.e.max_workers,
        "watch": lambda h: h.watched(h.e.submit, *h.job()),
        "unwatch": lambda h: (h.e.watch(Watcher(h.watch)), h.e.unwatch(Watcher(h.watch))),
        "submit": lambda h: h.watched(h.e.submit, *h.job()),
        "map": lambda h: list(h.e.map(h.watch.callback("job"), [h.new(1), h.new(2)])),
        "shutdown": lambda h: (h.e.shutdown(), h.refused(h.lane.submit, *h.job())),
        "shutdown cancelling": lambda h: (h.lane.pause(), h.lane.submit(*h.job()), h.e.shutdown(cancel_futures=True)),
        "__repr__": lambda h: (repr(h.e), h.e._repr_html_()),
    },
    Lane: {
        "key": lambda h: h.lane.key,
        "settings": lambda h: repr(h.lane.settings),
        "running": lambda h: h.lane.running,
        "qsize": lambda h: h.lane.qsize(),
        "submit": lambda h: h.watched(h.lane.submit, *h.job()),
        "submit_nowait": lambda h: (
            h.lane.pause(),
            [h.refused(h.lane.submit_nowait, *h.job()) for _ in range(11)],
            h.lane.clear(),
        ),
        "submit_within": lambda h: h.watched(h.lane.submit_within, PATIENCE, *h.job()),
        "map": lambda h: list(h.lane.map(h.watch.callback("job"), [h.new(1), h.new(2)])),
        "pause": lambda h: (h.lane.pause(h.key(4)), h.lane.pause(h.key(4)), h.lane.resume(h.key(4))),
        "resume": lambda h: h.lane.resume(h.key(4)),
        "paused": lambda h: h.lane.paused,
        "clear": lambda h: (h.lane.pause(), h.lane.submit(*h.job()), h.lane.clear()),
        "shutdown": lambda h: (h.lane.shutdown(), h.refused(h.lane.submit, *h.job()), h.e.lane(h.key(3))),
        "__repr__": lambda h: (repr(h.lane), h.lane._repr_html_()),
    },
}

ROWS = [(kind, name) for kind, entries in ENTRIES.items() for name in entries]


@pytest.mark.parametrize(("kind", "name"), ROWS, ids=[f"{kind.__name__}.{name}" for kind, name in ROWS])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_no_code_of_the_user_runs_under_a_lock(kind: type, name: str) -> None:
    """Elements, keys, callbacks and jobs are compared, hashed, shown, dropped and called without a lock (core 9)."""
    watch = Watch()
    house = House(watch)
    try:
        ENTRIES[kind][name](house)
    finally:
        house.e.shutdown()
    locks, watch.locks = watch.locks, {}
    assert not watch.faults
    assert not any(lock._is_owned() for lock in locks.values())


@pytest.mark.parametrize("name", ["get", "take", "poll", "peek", "get_many", "drain_to", "async_get"])
def test_a_selection_is_asked_without_a_lock(name: str) -> None:
    """A selection of the user's is asked, and told, without a lock."""
    watch = Watch()
    house = House(watch, selection=True)
    ENTRIES[LinkedBlockingMultiQueue][name](house)
    assert "selection.select" in watch.ran
    assert not watch.faults


@pytest.mark.parametrize("kind", ENTRIES)
def test_every_entry_point_is_in_the_list(kind: type) -> None:
    """Every public method and attribute of the core and the executor is in the list."""
    named = set(ENTRIES[kind]) | (set(ENTRIES[SubQueue]) if kind is Queue else set())
    standard = {"BROKEN", "prepare_context"}  # of `ThreadPoolExecutor` since CPython 3.14, for its own workers
    assert {name for name in dir(kind) if not name.startswith("_")} - standard <= named


def test_the_list_runs_code_of_the_user() -> None:
    """The entries together compare, hash, show and drop elements and keys, and call every kind of callback."""
    watch = Watch()
    for kind, name in ROWS:
        house = House(watch)
        ENTRIES[kind][name](house)
        house.e.shutdown()
        del house
    assert watch.ran >= {
        *(f"{what}.__{name}__" for what in ("element", "key") for name in ("eq", "hash", "repr", "del")),
        *("job", "done", "cancelled", "initializer", "target", "watcher.submitted", "watcher.began"),
    }  # fmt: skip
    assert "element.__bool__" not in watch.ran


def test_code_that_runs_under_a_lock_is_found() -> None:
    """Comparing and dropping elements while a lock is held is reported, by method and lock."""
    watch = Watch()
    house = House(watch)
    house.a._engine_head.locked(None, lambda: house.new(1) == house.new(2))
    house.e.shutdown()
    assert {"element.__eq__ under the multi-queue's lock", "element.__del__ under the multi-queue's lock"} <= {
        *watch.faults
    }
