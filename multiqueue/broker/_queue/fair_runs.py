"""Runs of a fair queue's entries, which arrive, are taken and go together: what each message of a run costs.

Promise     `Runs`, in C, does what `PlainRuns` does, statement by statement, and copies `usual` for a usual tenant's
            first message, where `PlainRuns` asks `comes`.
State       That of `Tenants`, which has it: guarded by the queue's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

WAITING, HELD, TAKEN, ASIDE, GONE = range(5)  # where an entry is; WAITING is 0, as it is asked most
SHORT: Final = 64  # slots of a list: to drop the first moves half a KiB


class PlainRuns:
    """What happens to entries of the class `entry` on lanes of the class `lane`.

    In C a new tenant is a copy of `usual`, with the same in its `slots` and in the same ring. It is put into `by_name`,
    and `known` is called with it. `comes` makes those whose names are in `own` or `changed`, and all if `own` is None.
    """

    def __init__(
        self,
        entry: type[Any],
        lane: type[Any],
        usual: Any,
        slots: tuple[str, ...],
        by_name: dict[str, Any],
        known: Callable[[Any], object],
        own: Mapping[str, object] | None,
        changed: Mapping[str, object],
    ) -> None:
        self._by_name: dict[Any, Any] = by_name
        self._due = usual.ring.due

    def arrive(self, entries: Sequence[Any], comes: Callable[[Any], Any]) -> None:
        """They have their positions. For one that names no known tenant `comes` says the lane."""
        by_name = self._by_name
        for entry in entries:
            lane = by_name.get(entry.key)  # a key that is a name is of level 0, as all keys of its queue are
            if lane is None:
                lane = comes(entry)
            entry.lane = lane
            arrived = lane.arrived
            if arrived:
                lane.waiting_bytes += entry.size
                if type(arrived) is tuple:
                    lane.arrived = [*arrived, entry]
                else:
                    arrived.append(entry)
                continue
            if lane.returned:
                lane.waiting_bytes += entry.size
            else:  # nothing of it waits
                lane.waiting_bytes = entry.size
                lane.busy_since = entry.arrived_at
                if not lane.is_blocked:
                    lane.join()
            lane.arrived = (entry,)

    def take(
        self,
        run: list[Any],
        most: int,
        most_bytes: int,
        half_minute: float,
        takes: Callable[[Any], object],
        limits: Callable[[Any], object] | None,
    ) -> int:
        """As `Tenants.take_turns`. Unusual entries go by `takes`; `limits` looks at the lanes of the others."""
        due, taken = self._due, TAKEN
        for _ in range(most - len(run)):
            lane = due() if most_bytes > 0 else None
            if lane is None:
                break
            arrived, is_odd = lane.arrived, lane.returned or lane.holes
            entry = lane.first if is_odd else arrived[0]
            if entry.expires_at is not None or entry.refused_by is not None:
                break
            size = entry.size
            if is_odd or entry.cost != 1.0:
                takes(entry)
            else:  # as that, without a call for each message
                if type(arrived) is tuple:  # its only one
                    arrived = lane.arrived = ()
                    lane.waiting_bytes = 0
                else:
                    if not lane.served % SHORT:
                        lane.become_long()
                        arrived = lane.arrived
                    del arrived[0]
                    lane.waiting_bytes -= size
                lane.in_flight += 1
                entry.where = taken
                entry.cost = -1.0
                # Equal ones are one object, mostly: of 10,000 lanes each look at another one's value is a cache miss.
                if lane.half_minute is not half_minute and lane.half_minute != half_minute:
                    lane.enter_half_minute(half_minute)
                lane.charge()
                lane.served += 1
                if not arrived:
                    lane.leave()
                if limits is not None:
                    limits(lane)
            run.append(entry)
            most_bytes -= size
        return most_bytes

    def end(self, entries: Sequence[Any], moves: Callable[[Any], object]) -> None:
        """They are gone for good: those that are not TAKEN by `moves`."""
        for entry in entries:
            if entry.where != TAKEN:
                moves(entry)
                continue
            entry.lane.in_flight -= 1  # as `move`, without a call for each message


if TYPE_CHECKING or os.environ.get("MULTIQUEUE_PURE", "") not in ("", "0"):
    Runs = PlainRuns
else:
    try:
        from ._fair_runs import Runs
    except ImportError:
        Runs = PlainRuns
