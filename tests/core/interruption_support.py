"""The table of interruptions: every operation, in every state, struck at every point; what may be wrong afterwards.

Everything is decided and happens in one thread. A waiter that is parked in a line has no thread that sleeps on it: a
look at the lines tells whether it was woken. A call that waits does so on a `FakeWaiter`, which has another thread do
what ends the wait, to its end, and then lets go. So a strike comes before, in or after every step of a wait, and
nothing sleeps.

Run as a program it prints the table: `python tests/core/interruption_support.py [STATE ...]`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any

from core_parts_support import AsyncWaiter, Line, _sync

from multiqueue import Detached, Empty, Full, LinkedBlockingMultiQueue, Queue, ShutDown
from multiqueue.testing import Point, interruptions

CORE = "multiqueue.core"


class House:
    """A multi-queue with the sub-queues `a` and `b`, or a `Queue` as `a`; and who is parked there."""

    def __init__(self, alone: bool = False, one_object: bool = True, **settings: Any) -> None:
        self.elements = iter([True] * 99 if one_object else [f"element {n}" for n in range(99)])
        self.m: Any = None
        if alone:
            self.a: Any = Queue(settings.get("capacity") or 0)
            self.subs = [self.a]
        else:
            self.m = LinkedBlockingMultiQueue()
            self.a = self.m.add_subqueue("a", **settings)
            self.b: Any = self.m.add_subqueue("b")
            self.subs = [self.a, self.b]
        self.line: Line = self.a._engine_head.takers
        self.a_fifo: Any = self.a._engine_fifo
        self.target: list[Any] = []
        self.parked: list[Any] = []

    def new(self) -> Any:
        return next(self.elements)

    def fill(self, a: int, b: int = 0) -> House:
        for sub, count in zip(self.subs, (a, b), strict=False):
            for _ in range(count):
                sub.put(self.new())
        return self

    def park(self, *lines: Line, coroutine: bool = False) -> House:
        """Somebody waits in each of `lines`."""
        for line in lines:
            waiter: Any = FakeLoop().waiter() if coroutine else Lock()
            if not coroutine:
                waiter.acquire()
            line.append(waiter)
            self.parked.append(waiter)
        return self

    def contents(self) -> tuple[Any, ...]:
        """Everything that a program can find out, but for the order of turns."""
        keys = () if self.m is None else (frozenset(self.m._subqueues), self.m.is_shutdown)
        return (*keys, tuple(self.target), *map(_contents, self.subs))

    def faults(self) -> Iterator[str]:
        """What must not be between operations. Looks only: an operation could mend what it looks at."""
        head, m = self.a._engine_head, self.m
        if head.lock._is_owned() or (m is not None and m._registry_lock._is_owned()):
            yield "a lock is held"
        lines = [head.takers]
        for fifo in (sub._engine_fifo for sub in self.subs):
            lines += [fifo.takers, fifo.putters, fifo.joiners]
            if fifo.takers and (fifo.items or fifo.closed):
                yield "a taker of one sub-queue sleeps on"
            if fifo.putters and (len(fifo.items) < fifo.limit or fifo.closed):
                yield "a putter sleeps on"
            if fifo.joiners and fifo.unfinished() <= 0:
                yield "a joiner sleeps on"
        if m is not None and head.takers:
            left = [sub for sub in m._subqueues.values() if sub._engine_fifo.items]
            if any(sub._engine_fifo.is_ready() for sub in left) or (m.is_shutdown and not left):
                yield "a taker sleeps on"
        waiting = [waiter for line in lines for waiter in line]
        if any(waiter not in self.parked for waiter in waiting):
            yield "no thread waits on a waiter that is in line"
        if any(waiter not in waiting and not is_woken(waiter) for waiter in self.parked):
            yield "a waiter that was taken out of its line is not woken"
        try:
            for queue in (*self.subs, *([] if m is None else [m])):
                queue.check_invariants()
        except AssertionError as error:
            yield f"an invariant does not hold: {error}"


def is_woken(waiter: Any) -> bool:
    if isinstance(waiter, AsyncWaiter):
        return waiter.woken.done()
    return not waiter.locked()


def _contents(sub: Any) -> tuple[Any, ...]:
    fifo = sub._engine_fifo
    *figures, _, _, enabled, attached, closed, priority, weight, limit, in_flight = fifo.figures_locked()
    return (tuple(fifo.items), *figures, fifo.limit, enabled, attached, closed, priority, weight, limit, in_flight)


class FakeWaiter:
    """A raw lock on which a call sleeps. Sleeping is `meanwhile`, in another thread; without it the time is up."""

    def __init__(self, meanwhile: Callable[[], object] | None) -> None:
        self._meanwhile = meanwhile
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._held and self._meanwhile is not None:
            thread = Thread(target=self._meanwhile)
            thread.start()
            thread.join()
        if self._held and (timeout == -1 or self._meanwhile is not None):
            raise AssertionError("sleeps for ever")
        woken = not self._held
        self._held = True
        return woken

    def release(self) -> None:
        self._held = False

    def locked(self) -> bool:
        return self._held


class FakeLoop:
    """An event loop for one coroutine."""

    def waiter(self) -> AsyncWaiter:
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            return AsyncWaiter()
        finally:
            asyncio._set_running_loop(None)

    def create_future(self) -> Any:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: object = None) -> None:
        pass

    def call_soon_threadsafe(self, callback: Any, *args: Any) -> None:
        callback(*args)

    def run(self, coroutine: Coroutine[Any, Any, Any], meanwhile: Callable[[], object]) -> Any:
        """What the coroutine returns. When it waits, `meanwhile` runs in another thread, or it is cancelled."""
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            waits = coroutine.send(None)
            while True:
                thread = Thread(target=meanwhile)
                thread.start()
                thread.join()
                waits = coroutine.send(None) if waits.done() else coroutine.throw(asyncio.CancelledError)
        except StopIteration as stop:
            return stop.value
        finally:
            coroutine.close()
            asyncio._set_running_loop(None)


# ---- states -----------------------------------------------------------------------------------------------------


def _all_lines(coroutine: bool = False) -> House:
    house = House(capacity=2, max_in_flight=1).fill(2)
    house.a.get()
    house.a.put(house.new())
    lines = (house.line, house.a_fifo.putters, house.a_fifo.joiners, house.a_fifo.joiners)
    return house.park(*(lines[:2] if coroutine else lines), coroutine=coroutine)


def _takers(alone: bool = False, coroutine: bool = False) -> House:
    house = House(alone)
    return house.park(*([] if alone else [house.line]), house.a_fifo.takers, coroutine=coroutine)


def _joiners(alone: bool = False) -> House:
    house = House(alone, False).fill(1)
    house.a.get()
    return house.park(house.a_fifo.joiners, *([] if alone else [house.a_fifo.joiners]))


def _joiners_and_an_element(alone: bool = False) -> House:
    house = House(alone).fill(1)
    return house.park(house.a_fifo.joiners, *([] if alone else [house.a_fifo.joiners]))


def _full(alone: bool = False) -> House:
    house = House(alone, capacity=2).fill(2)
    return house.park(house.a_fifo.putters)


def _disabled() -> House:
    house = House(capacity=1).fill(1)
    house.a.disable()
    return house.park(house.line, house.a_fifo.putters)


def _disabled_and_shut_down() -> House:
    """The multi-queue's taker waits for the end, which the last element keeps from coming."""
    house = House().fill(1)
    house.a.disable()
    house.m.shutdown()
    return house.park(house.line)


def _removed() -> House:
    house = House(capacity=3).fill(2)
    house.m.remove_subqueue("a")
    return house.park(house.a_fifo.joiners, house.line)


STATES: dict[str, Callable[[], House]] = {
    "empty": lambda: House(),
    "empty, limit": lambda: House(max_in_flight=2, one_object=False),
    "bounded, full": lambda: House(capacity=2, one_object=False).fill(2),
    "distinct": lambda: House(one_object=False).fill(3, 1),
    "one object": lambda: House().fill(3, 1),
    "weight 2": lambda: House(weight=2).fill(3, 1),
    "limit in flight": lambda: House(max_in_flight=2).fill(3, 1),
    "two groups": lambda: House(priority=1, one_object=False).fill(2, 1),
    "all lines": _all_lines,
    "coroutines": lambda: _all_lines(coroutine=True),
    "takers": _takers,
    "coroutines take": lambda: _takers(coroutine=True),
    "joiners": _joiners,
    "joiners, element": _joiners_and_an_element,
    "full": _full,
    "disabled": _disabled,
    "disabled, shut down": _disabled_and_shut_down,
    "removed": _removed,
    "Queue": lambda: House(alone=True).fill(3),
    "Queue: empty": lambda: House(alone=True),
    "Queue: full": lambda: _full(alone=True),
    "Queue: takers": lambda: _takers(alone=True),
    "Queue: joiners": lambda: _joiners(alone=True),
    "Queue: joiners, el.": lambda: _joiners_and_an_element(alone=True),
}


# ---- operations -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """One call. `steps` are calls that do a part of it: a struck one may have done that much."""

    call: Callable[[House], object]
    takes: bool = False  # what it does goes with what it returns: if it raises, nothing has been done
    steps: tuple[Callable[[House], object], ...] = ()
    meanwhile: Callable[[House], object] | None = None  # what ends its wait; other than that it waits for no time
    wanted: Callable[[House], bool] = field(default=lambda house: True)  # in which states


def _assign(name: str, value: object) -> Callable[[House], object]:
    return lambda house: setattr(house.a, name, value)


def _drain(queue: str, target: Callable[[House], Any] = lambda house: house.target) -> Operation:
    def draining(most: int | None) -> Callable[[House], object]:
        return lambda house: getattr(house, queue).drain_to(target(house), most)

    return Operation(draining(None), steps=tuple(map(draining, range(5))))


def _refusing(house: House) -> Callable[[Any], None]:
    def accept(element: Any) -> None:
        if len(house.target) == 1:
            raise ValueError("the target has enough")
        house.target.append(element)

    return accept


def _coroutine(call: Callable[[House], Coroutine[Any, Any, Any]]) -> Callable[[House], object]:
    return lambda house: FakeLoop().run(call(house), lambda: None)


def _another_taker_comes(house: House) -> None:
    house.park(house.line)
    house.b.put(house.new())


def _another_own_taker_comes(house: House) -> None:
    house.park(house.a_fifo.takers)
    house.a.put(house.new())


def _another_putter_comes(house: House) -> None:
    house.park(house.a_fifo.putters)
    house.a.get()


def _all_is_done(house: House) -> None:
    for sub in house.subs:
        sub.clear()
        while sub.in_flight > 0:
            sub.task_done()


def _awaited(call: Callable[[House], Coroutine[Any, Any, Any]], meanwhile: Callable[[House], object]) -> Any:
    return lambda house: FakeLoop().run(call(house), lambda: meanwhile(house))


def _waits(house: House) -> bool:
    """Would a take from the multi-queue wait, and be the first that a put wakes?"""
    return not (any(len(sub) for sub in house.subs) or house.line or house.a_fifo.takers)


def _waits_alone(house: House) -> bool:
    """The same for a take from `a`."""
    return not (len(house.a) or house.a_fifo.takers or house.line)


def _waits_for_room(house: House) -> bool:
    """The same for a put to `a`."""
    return bool(house.a.full()) and not house.a_fifo.putters and not house.a.is_shutdown


HEAD: dict[str, Operation] = {
    "get": Operation(lambda h: h.m.get(False), takes=True),
    "get(timeout)": Operation(lambda h: h.m.get(timeout=0), takes=True),
    "get_nowait": Operation(lambda h: h.m.get_nowait(), takes=True),
    "get, waiting": Operation(lambda h: h.m.get(), True, (lambda h: h.b.put(h.new()),), _another_taker_comes, _waits),
    "take": Operation(lambda h: h.m.take(False), takes=True),
    "poll": Operation(lambda h: h.m.poll(), takes=True),
    "peek": Operation(lambda h: h.m.peek()),
    "get_many": Operation(lambda h: h.m.get_many(3, False), takes=True),
    "drain_to": _drain("m"),
    "drain_to(a function)": _drain("m", lambda h: lambda element: h.target.append(element)),
    "drain_to, refused": Operation(
        lambda h: h.m.drain_to(_refusing(h)),
        steps=(lambda h: h.m.drain_to(h.target, 0), lambda h: h.m.drain_to(h.target, 1)),
    ),
    "async_get": Operation(_coroutine(lambda h: h.m.async_get()), takes=True),
    "async_take": Operation(_coroutine(lambda h: h.m.async_take()), takes=True),
    "async_get, waiting": Operation(
        _awaited(lambda h: h.m.async_get(), _another_taker_comes),
        True,
        (lambda h: h.b.put(h.new()),),
        None,
        _waits,
    ),
    "qsize": Operation(lambda h: h.m.qsize()),
    "empty": Operation(lambda h: h.m.empty()),
    "statistics": Operation(lambda h: h.m.statistics()),
    "join": Operation(lambda h: h.m.join(), meanwhile=_all_is_done),
    "shutdown": Operation(lambda h: h.m.shutdown()),
    "shutdown(immediate)": Operation(lambda h: h.m.shutdown(immediate=True)),
    "add_subqueue": Operation(lambda h: h.m.add_subqueue("new"), takes=True),
    "get_or_add_subqueue": Operation(lambda h: h.m.get_or_add_subqueue("new").put_many([])),
    "remove_subqueue": Operation(lambda h: h.m.remove_subqueue("a"), takes=True),
    "remove_subqueue(b)": Operation(lambda h: h.m.remove_subqueue("b"), takes=True),
    "get_subqueue": Operation(lambda h: h.m.get_subqueue("a")),
    "subqueues": Operation(lambda h: list(h.m.subqueues)),
}


SUB: dict[str, Operation] = {
    "put": Operation(lambda h: h.a.put(h.new(), False)),
    "put(timeout)": Operation(lambda h: h.a.put(h.new(), timeout=0)),
    "put, waiting": Operation(
        lambda h: h.a.put(h.new()),
        steps=(lambda h: h.a.get(),),
        meanwhile=_another_putter_comes,
        wanted=_waits_for_room,
    ),
    "put_nowait": Operation(lambda h: h.a.put_nowait(h.new())),
    "offer": Operation(lambda h: h.a.offer(h.new())),
    "put_many": Operation(lambda h: h.a.put_many([h.new(), h.new()], timeout=0), steps=(lambda h: h.a.offer(h.new()),)),
    "put_first": Operation(lambda h: h.a.put_first(h.new())),
    "async_put": Operation(_coroutine(lambda h: h.a.async_put(h.new()))),
    "async_put, waiting": Operation(
        _awaited(lambda h: h.a.async_put(h.new()), _another_putter_comes),
        steps=(lambda h: h.a.get(),),
        wanted=_waits_for_room,
    ),
    "own get": Operation(lambda h: h.a.get(False), takes=True),
    "own get(timeout)": Operation(lambda h: h.a.get(timeout=0), takes=True),
    "own get, waiting": Operation(
        lambda h: h.a.get(), True, (lambda h: h.a.put(h.new()),), _another_own_taker_comes, _waits_alone
    ),
    "own get_nowait": Operation(lambda h: h.a.get_nowait(), takes=True),
    "own poll": Operation(lambda h: h.a.poll(), takes=True),
    "own peek": Operation(lambda h: h.a.peek()),
    "own get_many": Operation(lambda h: h.a.get_many(2, False), takes=True),
    "own drain_to": _drain("a"),
    "own async_get": Operation(_coroutine(lambda h: h.a.async_get()), takes=True),
    "own async_get, waiting": Operation(
        _awaited(lambda h: h.a.async_get(), _another_own_taker_comes),
        True,
        (lambda h: h.a.put(h.new()),),
        None,
        _waits_alone,
    ),
    "own qsize": Operation(lambda h: h.a.qsize()),
    "own empty": Operation(lambda h: h.a.empty()),
    "full": Operation(lambda h: h.a.full()),
    "remaining_capacity": Operation(lambda h: h.a.remaining_capacity()),
    "iter": Operation(lambda h: list(h.a)),
    "in": Operation(lambda h: "none" in h.a),
    "remove": Operation(lambda h: h.a.remove(h.new())),
    "remove the last": Operation(lambda h: h.a.remove([*h.a, 0][-2 if len(h.a) else -1])),
    "clear": Operation(lambda h: h.a.clear()),
    "task_done": Operation(lambda h: h.a.task_done()),
    "own join": Operation(lambda h: h.a.join(), meanwhile=_all_is_done),
    "own statistics": Operation(lambda h: h.a.statistics()),
    "own shutdown": Operation(lambda h: h.a.shutdown()),
    "own shutdown(immediate)": Operation(lambda h: h.a.shutdown(immediate=True), steps=(lambda h: h.a.shutdown(),)),
    "is_shutdown": Operation(lambda h: h.a.is_shutdown),
    "in_flight": Operation(lambda h: h.a.in_flight),
}

SETTINGS: dict[str, Operation] = {
    "enable": Operation(lambda h: h.a.enable()),
    "disable": Operation(lambda h: h.a.disable("reason")),
    "enabled": Operation(lambda h: h.a.enabled),
    "capacity=9": Operation(_assign("capacity", 9)),
    "capacity=None": Operation(_assign("capacity", None)),
    "max_in_flight=9": Operation(_assign("max_in_flight", 9)),
    "max_in_flight=None": Operation(_assign("max_in_flight", None)),
    "weight=3": Operation(_assign("weight", 3)),
    "priority=7": Operation(_assign("priority", 7)),
}

ALONE: dict[str, Operation] = {
    "maxsize=9": Operation(_assign("maxsize", 9)),
    "unfinished_tasks": Operation(lambda h: h.a.unfinished_tasks),
}

REFUSALS = (Empty, Full, ShutDown, Detached, KeyError, ValueError, asyncio.CancelledError)


def operations(state: str) -> dict[str, Operation]:
    """Those that are there in a state."""
    house = STATES[state]()
    there = SUB | ALONE if house.m is None else HEAD | SUB | SETTINGS
    return {name: operation for name, operation in there.items() if operation.wanted(house)}


# ---- striking ---------------------------------------------------------------------------------------------------


@contextmanager
def waits_faked(house: House, operation: Operation) -> Iterator[None]:
    """Have every call that parks sleep on a `FakeWaiter`."""
    meanwhile = operation.meanwhile
    real = _sync.allocate_lock
    ends = None if meanwhile is None else lambda: meanwhile(house)
    _sync.allocate_lock = lambda: FakeWaiter(ends)  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        _sync.allocate_lock = real


def done(state: str, operation: Operation, call: Callable[[House], object]) -> tuple[Any, ...]:
    """What there is after `call` came to its end."""
    house = STATES[state]()
    with waits_faked(house, operation):
        try:
            call(house)
        except REFUSALS:
            pass
    return house.contents()


def struck(state: str, operation: Operation, point: Point, allowed: set[tuple[Any, ...]]) -> list[str]:
    """What is wrong after `operation` was struck at `point`."""
    house = STATES[state]()
    returned = False
    with waits_faked(house, operation), point.raising(KeyboardInterrupt):
        try:
            operation.call(house)
        except REFUSALS:
            pass
        except AssertionError as error:
            return [str(error)]
        returned = True
    faults = [*house.faults()]
    if point.reached:
        if returned:
            faults.append("the exception was swallowed")
        if house.contents() not in allowed:
            faults.append(f"neither done nor not done: {house.contents()}")
    return faults


@dataclass
class Cell:
    """An operation in a state: how many strikes, and which of them left something wrong."""

    strikes: int = 0
    faults: list[str] = field(default_factory=list)


def strike(state: str, name: str) -> Cell:
    """Strike one operation in one state at every point."""
    operation = operations(state)[name]
    allowed = {STATES[state]().contents(), *(done(state, operation, step) for step in operation.steps)}
    if not operation.takes:
        allowed.add(done(state, operation, operation.call))
    cell = Cell()
    for point in interruptions(CORE):
        faults = struck(state, operation, point, allowed)
        cell.strikes += point.reached
        cell.faults += [f"{name} in state {state!r}, {point}: {fault}" for fault in faults]
    return cell


def main(arguments: list[str]) -> int:
    states = [state for state in STATES if state in arguments] or list(STATES)
    bad = total = 0
    print(f"{'state':20} {'operations':>10} {'strikes':>8} {'bad':>5}   Python {sys.version.split()[0]}")
    for state in states:
        cells = {name: strike(state, name) for name in operations(state)}
        strikes, faults = sum(c.strikes for c in cells.values()), [f for c in cells.values() for f in c.faults]
        print(f"{state:20} {len(cells):>10} {strikes:>8} {len(faults):>5}", flush=True)
        for fault in faults[:12]:
            print("   ", fault[:300])
        bad, total = bad + len(faults), total + strikes
    print(f"{'all':20} {'':>10} {total:>8} {bad:>5}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
