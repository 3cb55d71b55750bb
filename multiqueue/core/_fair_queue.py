"""`FairQueue`: a queue whose keys take turns; the same over both engines.

Promise     Those of the engine. Each key has a tail, which comes with its first element and goes with its last.
State       The engine's: `_fair.h` and `_plain_fair.py` say where tails come from and go. Key and cost functions run on
            the putter's thread, before the put; `__hash__` and `__eq__` of a key on the thread that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from ._engines import chosen as _engine
from ._multi_queue import Takes
from ._settings import check_number, check_optional
from ._sub_queue import refusal, set_gate, take, take_async, wait_in_line
from ._taken import FairTaken

T = TypeVar("T")

_NOT_SAID = object()


class FairQueue(Takes[T]):
    """A `queue.Queue` in which keys take turns: 100,000 elements of one do not stand before one of another.

    Each element has a key, such as a tenant. Within a key elements are first in, first out; keys that have elements
    are served in turns. A key costs nothing before its first element and after its last. Every method may be called
    from any thread.

    A key that is a tuple is nested: with `("acme", "reports")` and `("acme", "mail")`, `"acme"` takes turns with
    others, and within its turns `"reports"` with `"mail"`. Weights, limits and pauses of `"acme"` are those of all
    that is nested in it.
    """

    __slots__ = ("_cost", "_is_limited", "_key", "_maxsize")

    def __init__(
        self,
        key: Callable[[T], Hashable] | None = None,
        *,
        weights: Mapping[Any, float] | None = None,
        max_in_flight: int | None = None,
        capacity: int | None = None,
        cost: Callable[[T], float] | None = None,
    ) -> None:
        """`key(item)` is the key of an element for which `put` names none; without it that is None.

        `weights` are the shares of keys beside others, 1 for those it does not name. `capacity` bounds what one key
        may have waiting. A key that has `max_in_flight` elements taken, and not yet `task_done(key)`, is passed over.
        `cost(item)`, a number above 0, is what a turn is charged for an element; 1 without it.

        Raises:
            TypeError, ValueError: a setting is not of these.
        """
        for name, function in (("key", key), ("cost", cost)):
            if function is not None and not callable(function):
                raise TypeError(f"{name!r} must be a function of an element, not {function!r}")
        if weights is not None and not isinstance(weights, Mapping):
            raise TypeError(f"'weights' must be a mapping of keys to numbers, not {weights!r}")
        limit = check_optional("capacity", capacity)
        most = check_optional("max_in_flight", max_in_flight)
        _engine.set_fair(self, limit, most)
        self._key = key
        self._cost = cost
        self._maxsize = limit or 0
        self._is_limited = most is not None
        set_gate(self)
        for each, weight in (weights or {}).items():
            self.set_weight(each, weight)

    # ---- putting ----------------------------------------------------------------------------------------------

    def put(
        self,
        item: T,
        block: bool = True,
        timeout: float | None = None,
        *,
        key: Hashable = None,
        cost: float | None = None,
    ) -> None:
        """Put `item` at the tail of its key, waiting while that one is full.

        `key` and `cost` are those that the functions of the queue say, unless they are given here. Waits until there
        is room, the queue is shut down, or `timeout` seconds are over; with `block=False` not at all.

        Raises:
            Full: there was no room for this key in time. The exception's `item` is the element.
            ShutDown: `shutdown()` was called, before or while waiting. The exception's `item` is the element.
            ValueError: `timeout` is negative, or the cost is not above 0.
            TypeError: the key cannot be hashed.
            What the functions, and `__hash__` and `__eq__` of keys, raise: nothing was put.
        """
        full = self._put(item, key, cost, block, timeout)
        if full is not None:
            raise refusal(full, 0, item, timeout if block else None)

    def put_nowait(self, item: T, *, key: Hashable = None, cost: float | None = None) -> None:
        """`put(item, block=False)`."""
        self.put(item, False, key=key, cost=cost)

    def offer(self, item: T, timeout: float | None = 0.0, *, key: Hashable = None, cost: float | None = None) -> bool:
        """Put `item` and return True, or return False when there was no room for its key within `timeout` seconds.

        Raises:
            As `put`, but not `Full`.
        """
        return self._put(item, key, cost, True, timeout) is None

    async def async_put(self, item: T, *, key: Hashable = None, cost: float | None = None) -> None:
        """`put` for a coroutine, from any event loop; one that is cancelled while it waits has put nothing."""
        while (full := self._put(item, key, cost, False, None)) is not None:
            await wait_in_line(full, True)

    def _put(self, item: T, key: Hashable, cost: float | None, block: bool, timeout: float | None) -> Any:
        """None when it was put, else the tail that is full."""
        if key is None and self._key is not None:
            key = self._key(item)
        if cost is None:
            cost = 1.0 if self._cost is None else self._cost(item)
        return _engine.put_keyed(self, key, item, cost, block, timeout)

    # ---- taking: get, get_many, poll and their kind are those of `Takes` --------------------------------------

    def take(self, block: bool = True, timeout: float | None = None) -> FairTaken[T]:
        """`get`, with the key of the element, for `task_done(key)`."""
        return take[self, block, timeout]  # type: ignore[no-any-return]

    async def async_take(self) -> FairTaken[T]:
        """`take()` for a coroutine, from any event loop; one that is cancelled has taken nothing."""
        return await take_async(self)  # type: ignore[no-any-return]

    def peek(self, default: Any = None) -> Any:
        """The element that would be taken now, or `default`. It stays, and so does the order of service."""
        return _engine.peek(self, default)

    def task_done(self, key: Hashable = _NOT_SAID) -> None:
        """Say that an element that was taken is dealt with. Any thread.

        Where keys have a limit in flight, `key` says whose element it was: `take()` tells.

        Raises:
            ValueError: called more often than there were elements; or a key has a limit, and none is named.
        """
        if key is not _NOT_SAID:
            is_done = _engine.done(self, key)
        elif self._is_limited:
            raise ValueError("this queue has limits in flight: say whose element is done, as task_done(key)")
        else:
            is_done = _engine.done(self)
        if not is_done:
            raise ValueError("task_done() called too many times")

    # ---- keys -------------------------------------------------------------------------------------------------

    def set_weight(self, key: Hashable, weight: float) -> None:
        """Give `key` this share beside others, a number above 0, from its next element on. 1 is what each key has.

        Raises:
            ValueError: `weight` is not above 0.
            ShutDown: the queue is shut down, and the key has nothing in it.
        """
        self._set(key, "weight", check_number("weight", weight))

    def set_max_in_flight(self, key: Hashable, max_in_flight: int | None) -> None:
        """Pass `key` over while it has so many elements in flight, counted from now on; None: any number.

        Raises:
            ValueError: `max_in_flight` is less than 1.
            ShutDown: as `set_weight`.
        """
        most = check_optional("max_in_flight", max_in_flight)
        self._set(key, "max_in_flight", most)
        self._is_limited = self._is_limited or most is not None

    def pause(self, key: Hashable, reason: Hashable = None) -> None:
        """Take nothing of `key` while `reason` stands; puts are accepted up to the capacity.

        The same reason twice is one reason. Shutdown does not end it.
        """
        self._replace_reasons(key, lambda before: before | {reason})

    def resume(self, key: Hashable, reason: Hashable = None) -> None:
        """Withdraw `reason`; the key is served again when no reason is left, in this round if it has a turn left."""
        self._replace_reasons(key, lambda before: before - {reason})

    def _replace_reasons(self, key: Hashable, change: Callable[[frozenset[Hashable]], frozenset[Hashable]]) -> None:
        while True:  # the sets are made without a lock held: hashing and comparing may run code of the user
            tail = _engine.keyed(self, key)
            before = None if tail is None else _engine.reasons(tail)
            if self._set(key, "reasons", change(before or frozenset()), before):
                return

    def _set(self, key: Hashable, name: str, value: Any, before: frozenset[Hashable] | None = None) -> bool:
        is_done = _engine.set_keyed(self, key, name, value, before)
        if is_done is None:
            raise refusal(self, 1, key, None)
        return is_done

    # ---- the whole --------------------------------------------------------------------------------------------

    def qsize(self, key: Hashable = _NOT_SAID) -> int:
        """How many elements wait, those of paused keys too; or how many of one key, without those nested in it."""
        if key is _NOT_SAID:
            return super().qsize()
        tail = _engine.keyed(self, key)
        return 0 if tail is None else tail.qsize()

    def empty(self) -> bool:
        """Did nothing wait, at this moment?"""
        return super().qsize() == 0

    def full(self, key: Hashable = None) -> bool:
        """Was there no room for `key`, at this moment?"""
        return 0 < self._maxsize <= self.qsize(key)

    @property
    def maxsize(self) -> int:
        """The capacity of each key as `queue.Queue` has it: 0 means unbounded."""
        return self._maxsize

    def waiting(self) -> dict[Hashable, int]:
        """How many elements of each key wait, for keys that have any. Consistent for each key, not across them."""
        sizes = [(_engine.key_of(tail), tail.qsize()) for tail in _engine.tails(self)]
        return {key: size for key, size in sizes if size}

    def shutdown(self, immediate: bool = False) -> None:
        """Refuse puts; takes go on until nothing is left.

        Putters that wait raise `ShutDown`; so do takers once nothing is left, of paused keys neither. With
        `immediate` all elements are discarded, so that takers raise at once. Again has no effect.
        """
        _engine.close_all(self, immediate)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} keys={len(self.waiting())} size={self.qsize()}>"
