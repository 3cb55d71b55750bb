"""`SubQueue`: one of the many tails of a multi-queue, with its settings and its switch."""

from __future__ import annotations

from collections.abc import Hashable, MutableMapping
from typing import Any, TypeVar

from ..errors import Detached, ShutDown
from ._fifo import Fifo
from ._put_side import Head
from ._settings import check_count, check_optional, check_priority

T = TypeVar("T")


class SubQueue(Fifo[T]):
    """One of a multi-queue's sub-queues. Made by `LinkedBlockingMultiQueue.add_subqueue`, not directly.

    Every method and every assignment may be used from any thread at any time.
    """

    __slots__ = ("_key",)

    def __init__(
        self,
        take_side: Head[T],
        key: Hashable,
        priority: int,
        capacity: int | None,
        max_in_flight: int | None,
        weight: int,
    ) -> None:
        super().__init__(take_side, capacity)
        self._key = key
        self._priority = priority
        self._max_in_flight = max_in_flight
        self._weight = weight
        self._attached = True
        self._settle_locked()

    # ---- settings -------------------------------------------------------------------------------------------

    @property
    def key(self) -> Hashable:
        """The key that it was registered under."""
        return self._key

    @property
    def priority(self) -> int:
        """The group it is served in: lower numbers first. Assigned, it goes to the end of the new group's round."""
        return self._priority

    @priority.setter
    def priority(self, priority: int) -> None:
        self._take_side._locked(self, self._assign_locked, "_priority", check_priority(priority))

    @property
    def capacity(self) -> int | None:
        """How many elements it accepts; None means any number.

        Assigned, elements that are here stay, also when they are more than the new capacity; putters that now have
        room go on.
        """
        return self._capacity

    @capacity.setter
    def capacity(self, capacity: int | None) -> None:
        self._with_both_locks(self._set_limit_locked, check_optional("capacity", capacity))

    @property
    def weight(self) -> int:
        """How many elements it gives when it is its turn. Can be assigned."""
        return self._weight

    @weight.setter
    def weight(self, weight: int) -> None:
        self._take_side._locked(self, self._assign_locked, "_weight", check_count("weight", weight))

    @property
    def max_in_flight(self) -> int | None:
        """How many elements may be in flight before the multi-queue passes it over; None means any number.

        Can be assigned; one that is at its new limit is passed over from then on.
        """
        return self._max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, max_in_flight: int | None) -> None:
        checked = check_optional("max_in_flight", max_in_flight)
        self._take_side._locked(self, self._assign_locked, "_max_in_flight", checked)

    def _assign_locked(self, name: str, value: object) -> None:
        """Set a field on which readiness depends."""
        self._plain = False
        setattr(self, name, value)
        self._take_side._stale.append(self)
        self._settle_locked()

    # ---- the switch -----------------------------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        """Does the multi-queue take from it? False while any reason to disable it stands."""
        return not self._reasons

    def enable(self, reason: Hashable = None) -> None:
        """Withdraw `reason`. When no other one stands, the multi-queue takes from it again, last in the round.

        Without effect if `reason` does not stand; only the reason that was given to `disable` withdraws it.
        """
        self._change_reasons(frozenset.difference, reason)

    def disable(self, reason: Hashable = None) -> None:
        """Have the multi-queue pass it over while `reason` stands.

        No take from the multi-queue that begins after this returns takes from it. Puts are accepted up to its
        capacity, and its own `get` goes on. Again with the same reason has no effect.
        """
        self._change_reasons(frozenset.union, reason)

    def _change_reasons(self, change: object, reason: Hashable) -> None:
        """Replace the set of reasons; made outside the lock, for hashing and comparing may run code of the user."""
        while True:
            before = self._reasons
            after = before | {reason} if change is frozenset.union else before - {reason}
            if self._take_side._locked(self, self._replace_reasons_locked, before, after):
                return

    def _replace_reasons_locked(self, before: frozenset[Hashable], after: frozenset[Hashable]) -> bool:
        if self._reasons is not before:
            return False
        self._assign_locked("_reasons", after)
        return True

    # ---- for `_lane_waiting`: tickets, each with a job of its own or worth any of `jobs` ------------------------

    def _enter_line(self: SubQueue[list[Any]], jobs: MutableMapping[Any, None]) -> None:
        """Enter the jobs of all tickets into `jobs`. Each is entered once: this costs nothing in the long run."""
        self._with_both_locks(self._enter_both_locked, jobs)

    def _leave_line(self: SubQueue[list[Any]], jobs: MutableMapping[Any, None], job: Any, left: list[Any]) -> None:
        """Move `job` from `jobs` to `left` if it is there, and one ticket out with it."""
        self._with_both_locks(self._leave_both_locked, jobs, job, left)

    def _leave_both_locked(
        self: SubQueue[list[Any]], jobs: MutableMapping[Any, None], job: Any, left: list[Any]
    ) -> None:
        tickets = self._items
        self._take_side._stale.append(self)
        self._enter_both_locked(jobs)
        if job in jobs:
            del jobs[job]
            left += [job]
            if tickets:
                del tickets[0]
                self._discarded += 1

    def _enter_both_locked(self: SubQueue[list[Any]], jobs: MutableMapping[Any, None]) -> None:
        tickets = self._items
        end = len(tickets)  # a put appends while they are read, and so they are read by their index
        begin = end
        while begin and tickets[begin - 1]:
            begin -= 1
        for index in range(begin, end):
            ticket = tickets[index]
            if ticket:
                job = ticket[0]
                del ticket[0]
                jobs[job] = None

    # ---- removal --------------------------------------------------------------------------------------------

    def _detach_locked(self) -> None:
        """From here on nothing of the multi-queue is used but its lock, and the multi-queue knows it no more."""
        self._plain = False
        if self._closed is None:
            self._close_locked(Detached)
        self._assign_locked("_attached", False)
        self._wake_joiners_locked()

    def _attach_locked(self, closed: type[ShutDown] | None) -> None:
        """Undo `_detach_locked`, unless the multi-queue is `closed` now."""
        if self._closed is Detached:
            self._closed = closed
        self._set_limit_locked(self._capacity)
        self._assign_locked("_attached", True)

    def _detach_unused_locked(self) -> bool:
        """Detach it unless it has elements already; did it?"""
        self._detach_locked()
        if self._items:
            self._attach_locked(None)
        return not self._attached

    def _closed_error(self) -> ShutDown:
        if not self._attached:
            return Detached(f"{self._called} was removed from its multi-queue")
        return super()._closed_error()

    def _name(self) -> str:
        return f"sub-queue {self._key!r}"

    def __repr__(self) -> str:
        states = "" if self._attached else " detached"
        states += "" if self.enabled else " disabled"
        return f"<SubQueue {self._key!r} priority={self._priority} size={len(self)} capacity={self._capacity}{states}>"
