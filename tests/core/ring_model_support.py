"""What a ring promises, said with two lists a level; and the account of what each pair of tails was served."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations


@dataclass(eq=False)
class ModelTurn:
    """A tail: its settings, and where it stands."""

    ring: ModelRing
    weight: float
    priority: int
    inner: ModelRing | None = None
    held: bool = False
    served: float = 0.0  # on the scale of the level's line
    total: float = 0.0  # all that it was charged, by cost / weight
    round: int = 0

    @property
    def level(self) -> ModelLevel:
        return self.ring.levels.setdefault(self.priority, ModelLevel())

    @property
    def is_in(self) -> bool:
        return self in self.level.now or self in self.level.later


@dataclass(eq=False)
class ModelLevel:
    """Those who have their turn in this round still, and those who come in the next."""

    now: list[ModelTurn] = field(default_factory=list)
    later: list[ModelTurn] = field(default_factory=list)
    line: float = 0.0
    over: float = 0.0
    round: int = 0
    greatest: float = 0.0  # step that was charged in turn, or what a tail was served in advance
    # For each pair of those who are in: their totals when the later one joined, what it was served in advance included;
    # and whether one of them was resumed in its place then.
    accounts: dict[frozenset[ModelTurn], tuple[dict[ModelTurn, float], bool]] = field(default_factory=dict)

    def begin_round_if_due(self, least: float) -> None:
        if not self.now and self.later:
            self.line += max(self.over, least)
            self.over = 0.0
            self.round += 1
            self.now, self.later = self.later, []

    def open_accounts(self, turn: ModelTurn, is_resumed: bool) -> None:
        advance = 0.0 if is_resumed else turn.served - self.line
        for other in (*self.now, *self.later):
            if other is not turn:
                start = {turn: turn.total - advance, other: other.total}
                self.accounts[frozenset((turn, other))] = (start, is_resumed)

    def close_accounts(self, turn: ModelTurn) -> None:
        self.accounts = {pair: account for pair, account in self.accounts.items() if turn not in pair}

    def check_bound(self, least: float) -> None:
        """Promise 2 of `_ring.h`."""
        most = max(self.greatest, least)
        for one, other in combinations((*self.now, *self.later), 2):
            account = self.accounts.get(frozenset((one, other)))
            if account is not None:
                start, has_resumed = account
                ahead = abs((one.total - start[one]) - (other.total - start[other]))
                assert ahead <= (3 if has_resumed else 2) * most * (1 + 1e-9) + 1e-9


@dataclass(eq=False)
class ModelRing:
    """Levels by priority."""

    outer: ModelTurn | None = None
    least: float = 0.0
    levels: dict[int, ModelLevel] = field(default_factory=dict)

    def best(self) -> ModelTurn | None:
        return next((level.now[0] for _, level in sorted(self.levels.items()) if level.now), None)

    def due(self) -> ModelTurn | None:
        turn = self.best()
        while turn is not None and turn.inner is not None:
            turn = turn.inner.best()
        return turn

    def put_in(self, turn: ModelTurn, is_resumed: bool) -> None:
        level = turn.level
        if turn.is_in or (turn.inner is not None and turn.inner.best() is None):
            return
        was_empty = self.best() is None
        if is_resumed and level.now and turn.round == level.round and turn.served <= level.line:
            level.now.insert(1, turn)
            level.open_accounts(turn, True)
        else:
            turn.served = max(turn.served, level.line)
            level.over = max(level.over, turn.served - level.line)
            level.greatest = max(level.greatest, turn.served - level.line)
            turn.round = level.round + 1
            level.later.append(turn)
            level.open_accounts(turn, False)
            level.begin_round_if_due(self.least)
        if was_empty and self.outer is not None and not self.outer.held:
            self.outer.ring.put_in(self.outer, is_resumed)

    def take_out(self, turn: ModelTurn) -> None:
        level = turn.level
        if not turn.is_in:
            return
        level.close_accounts(turn)
        (level.now if turn in level.now else level.later).remove(turn)
        level.begin_round_if_due(self.least)
        if self.best() is None and self.outer is not None:
            self.outer.ring.take_out(self.outer)

    def charge(self, turn: ModelTurn, cost: float) -> None:
        level = turn.level
        step = cost / turn.weight
        is_its_turn = bool(level.now) and level.now[0] is turn
        turn.served += step
        turn.total += step
        over = turn.served - level.line
        if is_its_turn:
            level.greatest = max(level.greatest, step)
        elif turn.is_in:
            level.greatest = max(level.greatest, over)
            level.close_accounts(turn)
        if over >= 0:
            if turn.is_in:
                level.over = max(level.over, over)
            if turn.round == level.round:
                turn.round += 1
                if turn in level.now:
                    level.now.remove(turn)
                    level.later.append(turn)
                    level.begin_round_if_due(self.least)
        if self.outer is not None:
            self.outer.ring.charge(self.outer, cost)
