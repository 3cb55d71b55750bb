"""`Queue` where a `queue.Queue` is expected: its class, its attributes, its subclasses."""

from __future__ import annotations

import asyncio
import copy
import pickle
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from executor_support import in_thread

import multiqueue
from multiqueue import LinkedBlockingMultiQueue, MultiQueueExecutor, Queue, ShutDown
from multiqueue.testing import PATIENCE, wait_until_blocked


def test_it_is_the_standard_librarys_queue() -> None:
    """`Queue` is a subclass of `queue.Queue`, and so are its own subclasses (core 10)."""

    class Named(Queue[int]):
        name = "orders"

    assert isinstance(Queue(), queue.Queue)
    assert issubclass(Queue, queue.Queue)
    assert isinstance(Named(), Queue)
    assert isinstance(Named(), queue.Queue)


def test_an_empty_one_is_true() -> None:
    """An empty `Queue` is true, as a `queue.Queue` is: `given or Queue()` keeps the one that was given."""
    given: Queue[int] = Queue()
    assert (given or Queue()) is given


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize(
    "make",
    [Queue, LinkedBlockingMultiQueue, lambda: LinkedBlockingMultiQueue().add_subqueue("a"), MultiQueueExecutor],
    ids=["Queue", "LinkedBlockingMultiQueue", "SubQueue", "MultiQueueExecutor"],
)
def test_it_is_neither_copied_nor_pickled(make: Callable[[], object], duplicate: Callable[[object], object]) -> None:
    """Copying and pickling are refused in a sentence: a copy would share elements, and not those who wait."""
    with pytest.raises(TypeError, match=f"cannot pickle or copy a {type(made := make()).__name__}: its locks"):
        duplicate(made)


# ---- attributes ---------------------------------------------------------------------------------------------


def test_the_recipe_that_empties_a_queue_works() -> None:
    """What programs write to empty a queue and end its joins leaves it empty, with room and nothing to wait for."""
    q: Queue[int] = Queue(2)
    q.put(1)
    q.put(2)
    with in_thread(q.join) as joined, in_thread(lambda: q.put(3)) as put:
        wait_until_blocked(joined.thread)
        wait_until_blocked(put.thread)
        with q.mutex:
            q.queue.clear()
            q.all_tasks_done.notify_all()
            q.unfinished_tasks = 0
            q.not_full.notify_all()
        put.result(PATIENCE)
        joined_early = joined.done()
        assert q.get(timeout=PATIENCE) == 3
        q.task_done()
        joined.result(PATIENCE)
    assert isinstance(joined_early, bool)  # the put may come before the join looks
    q.check_invariants()


def test_what_is_removed_by_hand_stays_unfinished() -> None:
    """Elements taken out of `queue` count as unfinished until `task_done()`, and those put into it do not count."""
    ours: Queue[int] = Queue()
    theirs: queue.Queue[int] = queue.Queue()
    for q in (ours, theirs):
        q.put(1)
        q.put(2)
        q.queue.clear()
        assert (q.qsize(), q.unfinished_tasks) == (0, 2)
        q.task_done()
        q.queue.append(3)
        assert (q.get(), q.unfinished_tasks) == (3, 1)
        q.task_done()
        q.join()
        with pytest.raises(ValueError, match="too many times"):
            q.task_done()
    ours.check_invariants()


EDITS: list[tuple[str, tuple[Any, ...]]] = [
    ("append", (9,)),
    ("appendleft", (9,)),
    ("extend", ([8, 9],)),
    ("extendleft", ([8, 9],)),
    ("insert", (1, 9)),
    ("pop", ()),
    ("popleft", ()),
    ("remove", (2,)),
    ("reverse", ()),
    ("rotate", (2,)),
    ("clear", ()),
    ("__setitem__", (0, 9)),
    ("__delitem__", (1,)),
]


@pytest.mark.parametrize("wrong", [None, 1.5, float("nan"), "2"])
def test_unfinished_tasks_is_a_whole_number(wrong: Any) -> None:
    """What is no int is refused when it is assigned, and changes nothing."""
    q: Queue[int] = Queue()
    q.put(1)
    with pytest.raises(TypeError, match=f"'unfinished_tasks' must be an int, not {wrong!r}"):
        q.unfinished_tasks = wrong
    assert q.unfinished_tasks == 1
    q.unfinished_tasks = 10**400
    q.task_done()


@pytest.mark.parametrize(("name", "args"), EDITS, ids=[name for name, _ in EDITS])
def test_what_can_be_done_to_the_deque_can_be_done_to_ours(name: str, args: tuple[Any, ...]) -> None:
    """Each change of `queue` does to the elements what the deque's own method does, and takes see it."""
    q: Queue[int] = Queue()
    q.put_many([1, 2, 3])
    model = deque([1, 2, 3])
    assert getattr(q.queue, name)(*args) == getattr(model, name)(*args)
    assert q.queue == model
    assert list(q.queue) == list(model)
    assert q.unfinished_tasks == 3
    q.check_invariants()
    assert [q.get_nowait() for _ in range(q.qsize())] == list(model)


def test_an_element_put_by_hand_wakes_a_taker() -> None:
    """A taker that waits gets what is appended to `queue`."""
    q: Queue[int] = Queue()
    with in_thread(q.get) as taken:
        wait_until_blocked(taken.thread)
        q.queue.append(7)
        assert taken.result(PATIENCE) == 7


def test_nothing_is_put_or_taken_while_the_mutex_is_held() -> None:
    """A thread that holds the mutex of an unbounded queue sees the same elements until it lets go."""
    q: Queue[int] = Queue()
    q.put(1)
    held = threading.Event()

    def put() -> None:
        held.set()
        q.put(2)

    with q.mutex:
        assert q.mutex.locked()
        putter = threading.Thread(target=put)
        taker = threading.Thread(target=q.get)
        putter.start()
        taker.start()
        assert held.wait(PATIENCE)
        wait_until_blocked(putter)
        wait_until_blocked(taker)
        assert list(q.queue) == [1]
    putter.join(PATIENCE)
    taker.join(PATIENCE)
    assert not q.mutex.locked()
    assert list(q.queue) == [2]
    q.check_invariants()


def test_a_join_with_a_timeout_can_be_written() -> None:
    """Waiting on `all_tasks_done` while `unfinished_tasks`, with a timeout, is a join with a timeout."""
    q: Queue[int] = Queue()
    q.put(1)

    def join(timeout: float | None) -> bool:
        with q.all_tasks_done:
            return q.all_tasks_done.wait_for(lambda: not q.unfinished_tasks, timeout)

    assert join(0.0) is False
    with in_thread(lambda: join(None)) as joined:
        wait_until_blocked(joined.thread)
        q.get()
        q.task_done()
        assert joined.result(PATIENCE) is True
    q.check_invariants()


@pytest.mark.parametrize("name", ["not_empty", "not_full", "all_tasks_done"])
def test_a_condition_wants_its_mutex(name: str) -> None:
    """Waiting and notifying without the mutex is refused, as by every condition."""
    condition = getattr(Queue(), name)
    with pytest.raises(RuntimeError, match=r"without holding its mutex|un-acquired lock"):
        condition.wait()
    with pytest.raises(RuntimeError, match=r"without holding its mutex|un-acquired lock"):
        condition.notify()


def test_waiting_on_a_condition_passes_the_wake_up_on() -> None:
    """A thread that waits on `not_empty` or `not_full` and then neither takes nor puts costs no other a wake-up."""
    q: Queue[int] = Queue(1)

    def watch(condition: threading.Condition) -> None:
        with condition:
            condition.wait()

    with in_thread(lambda: watch(q.not_empty)) as watcher, in_thread(q.get) as taken:
        wait_until_blocked(watcher.thread)
        wait_until_blocked(taken.thread)
        q.put(1)
        assert taken.result(PATIENCE) == 1
        q.put(2)  # for the watcher, if the taker was faster
        watcher.result(PATIENCE)
    with in_thread(lambda: watch(q.not_full)) as watcher, in_thread(lambda: q.put(3)) as put:
        wait_until_blocked(watcher.thread)
        wait_until_blocked(put.thread)
        q.get()
        put.result(PATIENCE)
        q.get()
        watcher.result(PATIENCE)
    q.check_invariants()


def test_the_elements_are_not_replaced_by_another_object() -> None:
    """Assigning to `queue` is refused in a sentence, for the queue would not know the new object."""
    with pytest.raises(AttributeError, match=r"use queue.clear\(\) and queue.extend\(\), or override _init"):
        Queue[int]().queue = deque()


# ---- subclasses ---------------------------------------------------------------------------------------------


class UniqueQueue(Queue[Any]):
    """The recipe of a queue without duplicates, as it is found in many programs."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if item not in self.queue:
            Queue.put(self, item, block, timeout)

    def _init(self, maxsize: int) -> None:
        self.queue = set()

    def _put(self, item: Any) -> None:
        self.queue.add(item)

    def _get(self) -> Any:
        return self.queue.pop()


def test_a_subclass_may_call_the_methods_of_the_class() -> None:
    """`Queue.put(self, item)` and `Queue.get(self)` in a subclass with hooks lead to its hooks, with room and time."""
    q = UniqueQueue(2)
    q.put("a")
    q.put("a")
    q.put("b")
    assert q.qsize() == q.unfinished_tasks == 2
    with pytest.raises(queue.Full):
        q.put("c", False)
    with pytest.raises(queue.Full):
        q.put("c", timeout=0.0)
    with in_thread(lambda: q.put("c")) as put:
        wait_until_blocked(put.thread)
        first = Queue.get(q)
        put.result(PATIENCE)
    assert {first, Queue.get(q), Queue.get(q, False)} == {"a", "b", "c"}
    with pytest.raises(queue.Empty):
        Queue.get(q, False)


def test_a_hook_that_raises_leaves_the_queue_usable() -> None:
    """What `_put` raises through `Queue.put(self, item)` reaches the caller, and the next put works."""

    class Picky(Queue[int]):
        def put(self, item: int, block: bool = True, timeout: float | None = None) -> None:
            Queue.put(self, item, block, timeout)

        def _put(self, item: int) -> None:
            if item < 0:
                raise ValueError(item)
            super()._put(item)

    q = Picky()
    with pytest.raises(ValueError, match="-1"):
        q.put(-1)
    q.put(1)
    assert q.get() == 1


def test_a_subclass_of_a_subclass_may_override_hooks() -> None:
    """Hooks are seen wherever they come from: a subclass's subclass, a mixin, a class of the standard library."""

    class Named(Queue[int]):
        def put(self, item: int, block: bool = True, timeout: float | None = None) -> None:
            super().put(item * 10, block, timeout)

    class Last:
        queue: Any

        def _get(self) -> Any:
            return self.queue.pop()

    class LastNamed(Last, Named):
        pass

    class Heap(queue.PriorityQueue[int], Queue[int]):
        pass

    plain, last, heap = Named(), LastNamed(), Heap()
    for q in (plain, last, heap):
        for number in (2, 3, 1):
            q.put(number)
    assert [plain.get() for _ in range(3)] == [20, 30, 10]
    assert [last.get() for _ in range(3)] == [10, 30, 20]
    assert [heap.get() for _ in range(3)] == [1, 2, 3]
    assert plain.peek() is None


@pytest.mark.parametrize(
    "name",
    [
        "peek",
        "get_many",
        "drain_to",
        "put_first",
        "put_many",
        "async_get",
        "async_put",
        "remove",
        "clear",
        "in_flight",
        "statistics",
        "check_invariants",
        "remaining_capacity",
    ],
)
def test_what_a_subclass_with_hooks_has_not_is_refused_in_a_sentence(name: str) -> None:
    """A method that would not ask the hooks says so, and which hooks there are (core 10)."""
    with pytest.raises(AttributeError, match=rf"UniqueQueue overrides _init, _put, _get and so .* not {name}\(\);"):
        getattr(UniqueQueue(), name)
    assert not hasattr(UniqueQueue(), name)


def test_every_public_name_of_a_subclass_with_hooks_works_or_is_refused() -> None:
    """No public name of `Queue` leads a subclass with hooks to the engine's own fields."""
    q = UniqueQueue()
    works = {"offer", "poll", "put", "put_nowait", "get", "get_nowait", "qsize", "empty", "full", "task_done", "join"}
    works |= {"maxsize", "unfinished_tasks", "mutex", "queue", "not_empty", "not_full", "all_tasks_done"}
    works |= {"shutdown", "is_shutdown"}
    names = {name for name in dir(Queue) if not name.startswith("_")}
    assert {name for name in names | works if hasattr(q, name)} == works
    assert q.offer(1)
    assert q.poll() == 1
    assert q.poll(default="none") == "none"
    with pytest.raises(TypeError, match="not iterable"):
        iter(q)
    assert len(q) == 0
    assert bool(q)


# ---- as other people's programs use it ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["LifoQueue", "PriorityQueue"])
def test_the_other_orders_are_queues_too(name: str) -> None:
    """`LifoQueue` and `PriorityQueue` are subclasses of `Queue` and of the standard library's class of their name."""
    ours, standard = getattr(multiqueue, name), getattr(queue, name)
    assert issubclass(ours, Queue)
    assert issubclass(ours, standard)
    q, there = ours(2), standard(2)
    for one in (q, there):
        one.put(1)
        one.put(2)
        with pytest.raises(queue.Full):
            one.put_nowait(3)
    assert [q.get(), q.get()] == [there.get(), there.get()]
    assert q.poll(default="none") == "none"
    assert repr(q) == f"<{name} size=0 maxsize=2>"


ORDERED = [multiqueue.LifoQueue, multiqueue.PriorityQueue, UniqueQueue]


@pytest.mark.parametrize("kind", ORDERED)
def test_a_queue_with_hooks_is_drained_after_its_shutdown(kind: Any) -> None:
    """After `shutdown()`, on each CPython, what is there is taken, nothing is put, and then a take ends."""
    q = kind()
    q.put(1)
    q.shutdown()
    assert q.is_shutdown
    with pytest.raises(ShutDown):
        q.put(2)
    with pytest.raises(ShutDown):
        q.put_nowait(2)
    with pytest.raises(ShutDown):
        q.offer(2)
    assert q.get() == 1
    for take in (q.get, q.get_nowait, lambda: q.get(timeout=PATIENCE)):
        with pytest.raises(ShutDown):
            take()
    assert q.poll(PATIENCE, default="end") == "end"
    q.task_done()
    q.join()


@pytest.mark.parametrize("kind", ORDERED)
@pytest.mark.parametrize("timeout", [None, PATIENCE])
def test_the_shutdown_of_a_queue_with_hooks_ends_each_wait(kind: Any, timeout: float | None) -> None:
    """A put that waits for room, a get that waits for an element, and a join if the elements are dropped, all end."""
    full, empty = kind(1), kind(1)
    full.put(1)
    with in_thread(lambda: full.put(2, True, timeout)) as put, in_thread(lambda: empty.get(True, timeout)) as get:
        with in_thread(full.join) as joined:
            wait_until_blocked(lambda: [len(c._waiters) for c in (full.not_full, empty.not_empty)] == [1, 1])
            wait_until_blocked(lambda: len(full.all_tasks_done._waiters) == 1)
            empty.shutdown()
            full.shutdown(immediate=True)
            assert joined.result(PATIENCE) is None
        for ended in (put, get):
            assert isinstance(ended.exception(PATIENCE), ShutDown)
    assert (full.qsize(), full.unfinished_tasks) == (0, 0)


def test_a_subclass_may_call_its_own_fields_and_methods_anything() -> None:
    """What a subclass names `_closed`, `_items`, `_capacity` or `_join` is its own, not the queue's."""

    class Named(Queue[int]):
        def __init__(self) -> None:
            self._closed, self._items, self._capacity = True, None, 9
            super().__init__(2)
            self._limit, self._finished, self._in_flight, self._name = None, -1, 7, 0

        def _join(self) -> None:
            raise AssertionError

    q = Named()
    assert q.put_many([1, 2], timeout=0) == 2
    assert q.full()
    assert not q.offer(3)
    for _ in range(2):
        q.get(timeout=PATIENCE)
        q.task_done()
    q.join()
    with pytest.raises(queue.Empty):
        q.get_nowait()


def test_a_subclass_with_hooks_may_keep_its_elements_under_any_name() -> None:
    """`_init` may set `_items`, and `_qsize` may count them."""

    class Ordered(Queue[int]):
        def _init(self, maxsize: int) -> None:
            self._items: dict[int, None] = {}

        def _qsize(self) -> int:
            return len(self._items)

        def _put(self, item: int) -> None:
            self._items[item] = None

        def _get(self) -> int:
            return self._items.popitem()[0]

    q = Ordered()
    q.put(1)
    q.put(1)
    assert (q.qsize(), q.get()) == (1, 1)


def test_a_wait_for_several_elements_lets_them_in() -> None:
    """A condition's wait gives the mutex up, also while there is already an element, and looks again at the next."""
    q: Queue[int] = Queue()
    q.put(0)

    def two() -> int:
        with q.not_empty:
            assert q.not_empty.wait_for(lambda: q._qsize() >= 2, PATIENCE)
            return q._qsize()

    with in_thread(two) as waiting:
        wait_until_blocked(waiting.thread)
        q.put(1)
        assert waiting.result(PATIENCE) == 2


def test_all_that_a_subclass_with_hooks_lists_can_be_had() -> None:
    """`dir()` of it names no attribute that is refused: a multiprocessing manager offers those it names."""
    q = UniqueQueue()
    assert [name for name in dir(q) if not hasattr(q, name)] == []
    plain: Queue[int] = Queue()
    before = dir(plain)
    assert plain.mutex is plain.mutex
    assert dir(plain) == before
    assert {"mutex", "queue", "not_full"} <= set(before)


def test_a_hook_that_is_assigned_later_is_called() -> None:
    """`q._put = f` on a queue in use: puts call `f`, which may call the one before; room and joins stay right."""
    q: Any = Queue(2)
    q.put(1)
    seen, before = [], q._put

    def put(item: int) -> None:
        seen.append(item)
        before(item)

    q._put = put
    q.put_nowait(2)
    with pytest.raises(queue.Full):
        q.put_nowait(3)
    with in_thread(lambda: q.put(4)) as waiting:
        wait_until_blocked(waiting.thread)
        assert q.get() == 1
        waiting.result(PATIENCE)
    assert [q.get(), q.get(), seen, q.unfinished_tasks] == [2, 4, [2, 4], 3]
    with in_thread(q.get) as taken:
        wait_until_blocked(taken.thread)
        q.put(5)
        assert taken.result(PATIENCE) == 5
    for _ in range(4):
        q.task_done()
    q.join()
    q.check_invariants()


def test_a_hook_that_is_assigned_is_seen_by_a_taker_that_waits_already() -> None:
    """A taker that waits when `_put` is replaced gets what is put through the new one."""
    q: Any = Queue()
    with in_thread(q.get) as taken:
        wait_until_blocked(taken.thread)
        before = q._put
        q._put = lambda item: before(-item)
        q.put(3)
        assert taken.result(PATIENCE) == -3


@pytest.mark.parametrize("base", [queue.Queue, Queue], ids=["standard", "ours"])
def test_put_nowait_calls_put_by_keyword(base: Any) -> None:
    """`put_nowait(item)` is `put(item, block=False)` to a `put` that a subclass or an instance has."""
    q, calls = base(), []
    q.put = lambda *args, **named: calls.append((args, named))
    q.put_nowait(1)
    assert calls == [((1,), {"block": False})]


@pytest.mark.parametrize("base", [queue.Queue, Queue], ids=["standard", "ours"])
def test_a_length_of_a_subclass_decides_its_truth(base: Any) -> None:
    """A subclass with a `__len__` is as true as that says, as of `queue.Queue`."""

    class Sized(base):  # type: ignore[misc]
        def __len__(self) -> int:
            return int(self.qsize())

    q = Sized()
    assert not q
    q.put(1)
    assert q


@pytest.mark.parametrize("maxsize", [2.5, 0.5, 1.0, -1.5, float("inf"), float("nan"), 2**64, True])
def test_a_maxsize_that_is_no_small_int_is_a_bound_as_there(maxsize: Any) -> None:
    """A fraction, an endless or a huge `maxsize` lets in as many as it does there, when given or assigned."""

    def room(one: Any) -> int:
        while not one.full() and one.qsize() < 5:
            one.put(0)
        return int(one.qsize())

    ours: Queue[int] = Queue()
    ours.maxsize = maxsize
    assert room(Queue(maxsize)) == room(ours) == room(queue.Queue(maxsize))


@pytest.mark.parametrize("maxsize", [None, "10", [10]])
def test_a_maxsize_that_is_no_number_is_named(maxsize: Any) -> None:
    """Where the standard library's fails at the first put, ours says at once what was wrong, and keeps its bound."""
    with pytest.raises(TypeError, match="'maxsize' must be a number, not"):
        Queue(maxsize)
    ours: Queue[int] = Queue(3)
    with pytest.raises(TypeError, match="'maxsize' must be a number, not"):
        ours.maxsize = maxsize
    assert ours.maxsize == 3


def test_a_put_that_is_patched_is_called_for_subclasses_with_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Queue.put` replaced by a test is what a subclass calls, with hooks or without, and so is `Queue.get`."""
    calls: list[str] = []
    put, get = Queue.put, Queue.get
    monkeypatch.setattr(Queue, "put", lambda *args: [calls.append("put"), put(*args)])
    monkeypatch.setattr(Queue, "get", lambda *args: [calls.append("get"), get(*args)][1])
    for q in (UniqueQueue(), Queue[int]()):
        q.put(1)
        assert q.get() == 1
    assert calls == ["put", "get", "put", "get"]


def test_the_class_has_not_what_only_an_instance_has() -> None:
    """`Queue.not_full` and the others are the instance's alone, and may be assigned there."""
    names = ("mutex", "not_empty", "not_full", "all_tasks_done", "queue")
    assert [name for name in names if hasattr(Queue, name)] == [name for name in names if hasattr(queue.Queue, name)]
    q: Queue[int] = Queue()
    q.mutex = threading.Lock()
    q.put(1)
    assert q.get() == 1


def test_the_elements_can_be_added_to_pickled_and_copied_deep() -> None:
    """`q.queue` gives a deque where a program adds to it, pickles it or copies it."""
    q: Queue[int] = Queue()
    q.put(1)
    assert q.queue + deque([2]) == deque([1, 2])
    assert pickle.loads(pickle.dumps(q.queue)) == copy.deepcopy(q.queue) == deque([1])


# ---- the executor, where a ThreadPoolExecutor is expected ---------------------------------------------------


def test_asyncio_takes_the_executor_for_its_default() -> None:
    """`loop.set_default_executor` accepts it, `to_thread` runs on it, and the loop's end shuts it down."""
    pool = MultiQueueExecutor(1, "ours")

    async def program() -> str:
        asyncio.get_running_loop().set_default_executor(pool)
        return await asyncio.to_thread(lambda: threading.current_thread().name)

    assert asyncio.run(program()).startswith("ours")
    with pytest.raises(RuntimeError, match="shut"):
        pool.submit(int)


def test_the_executor_says_how_many_workers_it_has_where_dask_looks() -> None:
    """`_max_workers` is that of a `ThreadPoolExecutor`: dask divides its work by it."""
    with MultiQueueExecutor(7) as pool:
        assert isinstance(pool, ThreadPoolExecutor)
        assert pool._max_workers == pool.max_workers == 7
