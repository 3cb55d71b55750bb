"""What the multi-queue promises to one thread, said with lists."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class ModelLane:
    """A sub-queue: its settings and a list."""

    key: int
    priority: int
    capacity: int | None
    max_in_flight: int | None
    weight: int
    items: list[int] = field(default_factory=list)
    reasons: set[Hashable] = field(default_factory=set)
    in_flight: int = 0
    turn: int = 0
    closed: bool = False
    attached: bool = True

    def room(self) -> int | None:
        return None if self.capacity is None else max(0, self.capacity - len(self.items))

    def is_ready(self) -> bool:
        free = self.max_in_flight is None or self.in_flight < self.max_in_flight
        return bool(self.items) and self.attached and not self.reasons and free

    def unfinished(self) -> int:
        return len(self.items) + self.in_flight


class Model:
    """A multi-queue: its lanes, and for each priority the ready ones in the order of their turns."""

    def __init__(self) -> None:
        self.lanes: dict[int, ModelLane] = {}
        self.is_shutdown = False
        self._round: list[ModelLane] = []  # ready ones, those who joined first in front

    def settle(self, lane: ModelLane, *, to_the_end: bool = False) -> None:
        """After any change: the lane leaves the round, or joins it at its end, or keeps its place."""
        if lane in self._round and (to_the_end or not lane.is_ready()):
            self._round.remove(lane)
            lane.turn = 0
        if lane.is_ready() and lane not in self._round:
            self._round.append(lane)

    def ready(self) -> list[ModelLane]:
        """The ready lanes, next one first: by priority, then by turn."""
        return sorted(self._round, key=lambda lane: lane.priority)

    def take(self) -> tuple[ModelLane, int] | None:
        """The next element in service order, and where it comes from."""
        if not self.ready():
            return None
        lane = self.ready()[0]
        item = lane.items.pop(0)
        lane.in_flight += 1
        lane.turn += 1
        self.settle(lane, to_the_end=lane.turn >= lane.weight)
        return lane, item

    def take_from(self, lane: ModelLane) -> int | None:
        """The lane's first element, whose turn it is or not."""
        if not lane.items:
            return None
        item = lane.items.pop(0)
        lane.in_flight += 1
        self.settle(lane)
        return item

    def size(self) -> int:
        return sum(len(lane.items) for lane in self._round)

    def is_finished(self) -> bool:
        return self.is_shutdown and not any(lane.items for lane in self.lanes.values())

    def remove(self, key: int) -> ModelLane:
        lane = self.lanes.pop(key)
        lane.attached, lane.closed = False, True
        self.settle(lane)
        return lane

    def settings(self, lane: ModelLane) -> dict[str, Any]:
        return {name: getattr(lane, name) for name in ("priority", "capacity", "max_in_flight", "weight")}
