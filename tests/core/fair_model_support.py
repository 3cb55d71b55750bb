"""What a fair queue promises to one thread, said with a list for each key and the model of the ring."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from ring_model_support import ModelRing, ModelTurn


@dataclass(eq=False)
class Tenant:
    """A key: what waits, each with its cost, and its settings."""

    key: Hashable
    outer: Tenant | None
    turn: ModelTurn
    ring: ModelRing
    items: list[tuple[Any, float]] = field(default_factory=list)
    limit: int | None = None
    usual: int | None = None
    flying: int = 0
    paused: set[Hashable] = field(default_factory=set)
    inner: set[Hashable] = field(default_factory=set)

    def has(self) -> bool:
        return bool(self.items) or self.ring.best() is not None

    def is_ready(self) -> bool:
        return self.has() and not self.paused and (self.limit is None or self.flying < self.limit)

    def is_idle(self) -> bool:
        is_usual = self.turn.weight == 1 and self.limit == self.usual and not self.paused
        return not self.items and not self.inner and is_usual and self.flying == 0


class FairModel:
    """Tenants by key; each is in the ring of the one that it is nested in if it is ready."""

    def __init__(self, limit: int | None, capacity: int | None) -> None:
        self.ring, self.limit, self.capacity = ModelRing(), limit, capacity
        self.tenants: dict[Hashable, Tenant] = {}
        self.turns: dict[Hashable, ModelTurn] = {}  # of those that have gone, which may be ahead of their line
        self.is_uneven = False
        self.unfinished = 0
        self.is_shutdown = False

    def tenant(self, key: Any, is_outer: bool = False) -> Tenant:
        if key not in self.tenants:
            nested = isinstance(key, tuple)
            outer = self.tenant(key[0] if len(key) == 2 else key[:-1], True) if nested else None
            turn = ModelTurn(outer.ring if outer else self.ring, 1.0, 0)
            before = self.turns.pop(key, None)
            if before is not None and before.ring is turn.ring:
                turn = before
            usual = None if is_outer else self.limit
            tenant = Tenant(key, outer, turn, ModelRing(), limit=usual, usual=usual)
            if outer:
                outer.inner.add(key)
            self.tenants[key] = tenant
        return self.tenants[key]

    def settle(self, tenant: Tenant | None) -> None:
        """Have it, and those it is nested in, where they belong; those that are idle go."""
        each = tenant
        while each is not None:
            if each.is_ready():
                each.turn.ring.put_in(each.turn, True)
            else:
                each.turn.ring.take_out(each.turn)
            if not each.has():
                each.turn.round = 0
            if each.turn.ring.best() is None:
                self.turns = {key: turn for key, turn in self.turns.items() if turn.ring is not each.turn.ring}
            each = each.outer
        while tenant is not None and tenant.is_idle():
            self.tenants.pop(tenant.key, None)
            if self.is_uneven and tenant.turn.ring.best() is not None:
                self.turns[tenant.key] = tenant.turn
            if tenant.outer:
                tenant.outer.inner.discard(tenant.key)
            tenant = tenant.outer

    def is_full(self, key: Hashable) -> bool:
        return self.capacity is not None and key in self.tenants and len(self.tenants[key].items) >= self.capacity

    def put(self, key: Hashable, item: Any, cost: float) -> None:
        tenant = self.tenant(key)
        self.is_uneven = self.is_uneven or cost != 1
        tenant.items.append((item, cost))
        self.unfinished += 1
        self.settle(tenant)

    def take(self) -> tuple[Hashable, Any] | None:
        turn = self.ring.best()
        if turn is None:
            return None
        tenant = next(each for each in self.tenants.values() if each.turn is turn)
        while not tenant.items:
            turn = tenant.ring.best()
            tenant = next(each for each in self.tenants.values() if each.turn is turn)
        item, cost = tenant.items.pop(0)
        each: Tenant | None = tenant
        while each is not None:
            each.flying += each.limit is not None
            each.turn.ring.charge(each.turn, cost)
            each = each.outer
        self.settle(tenant)
        return tenant.key, item

    def done(self, key: Any) -> bool:
        if self.unfinished <= 0:
            return False
        self.unfinished -= 1
        while key not in self.tenants and isinstance(key, tuple):
            key = key[0] if len(key) == 2 else key[:-1]
        tenant = each = self.tenants.get(key)
        while each is not None:
            each.flying = max(0, each.flying - 1)
            each = each.outer
        self.settle(tenant)
        return True

    def limit_to(self, key: Hashable, limit: int | None) -> None:
        tenant = self.tenant(key)
        if tenant.limit is None or limit is None:
            tenant.flying = 0
        tenant.limit = limit
        self.settle(tenant)

    def size(self) -> int:
        return sum(len(tenant.items) for tenant in self.tenants.values())

    def check_bound(self) -> None:
        for ring in (self.ring, *[tenant.ring for tenant in self.tenants.values()]):
            for level in ring.levels.values():
                level.check_bound(0.0)
