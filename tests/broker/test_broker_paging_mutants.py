"""The test of the test: paging is broken in one way after the other, and the oracle must notice each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from broker_parts_support import Account, Load, Loads, Paging, Slot, TargetList
from paging_model_support import random_history

Mutation = Callable[[pytest.MonkeyPatch], None]


def _replace(name: str, make: Callable[[Any], Any]) -> Mutation:
    """A mutation that puts a function made from the original one in its place."""
    kind = Loads if hasattr(Loads, name) else Paging
    return lambda patch: patch.setattr(kind, name, make(getattr(kind, name)))


def _uncharged_entries(original: Any) -> Any:
    def charge(self: Paging, account: Account, amount: int) -> None:
        original(self, account, 0 if account is Account.ENTRIES else amount)

    return charge


def _unreserved_loads(original: Any) -> Any:
    def take(self: Loads, load: Load, amount: int, *, first: bool = False) -> bool:
        taken: bool = original(self, load, amount, first=first)
        if taken:
            self._paging.charge(Account.LOADING, -amount)
        return taken

    return take


def _settles_without_freeing(original: Any) -> Any:
    def leave_account(self: Paging, slot: Slot) -> None:
        if slot.account is not Account.DISPATCHED:
            original(self, slot)

    return leave_account


def _returns_to_one_list(original: Any) -> Any:
    def give_back(self: Paging, target: TargetList, slot: Slot) -> None:
        if target is slot.area.lists[0]:
            original(self, target, slot)

    return give_back


def _mark_not_lowered(self: Paging, target: TargetList, position: int) -> None:
    target.direct += 1
    target.direct_bytes += target.area.slots[position].cost


def _best_candidate_only(self: Loads) -> Load | None:
    target = min(self._paging.wanting, key=lambda each: each.direct_bytes, default=None)
    return self.load_for(target) if target is not None else None


def _page_ends_at_last_match(original: Any) -> Any:
    def take_page(self: Loads, target: TargetList, span: Any, found: Any) -> None:
        found = list(found)
        span.through = found[-1].position if found else span.after
        original(self, target, span, found)

    return take_page


def _page_after_cut(original: Any) -> Any:
    def take_page(self: Loads, target: TargetList, span: Any, found: Any) -> None:
        span.after = target.scans[span.level]
        original(self, target, span, [each for each in found if each.position > span.after])

    return take_page


def _joins_at_the_end(original: Any) -> Any:
    def join(self: Paging, area: Any, label: str, **options: Any) -> TargetList:
        target: TargetList = original(self, area, label, **options)
        target.scans = dict(area.last)
        return target

    return join


def _appends_to_open_tail(original: Any) -> Any:
    def arrive(self: Paging, area: Any, position: int, *args: Any, **options: Any) -> None:
        for target in area.lists:
            if target.selector is None:
                target.scans[position >> 48] = area.last[position >> 48]
        original(self, area, position, *args, **options)

    return arrive


def _keeps_lists_of_taken(original: Any) -> Any:
    def unlink(self: Paging, target: TargetList, position: int) -> bool:
        slot = target.area.slots.get(position)
        if slot is not None and slot.in_flight and target is not target.area.lists[0]:
            return False
        return bool(original(self, target, position))

    return unlink


def _cuts_without_reopening(self: Paging, target: TargetList, position: int) -> None:
    self.want(target)


def _evicts_the_next(original: Any) -> Any:
    def evict(self: Paging, account: Account) -> bool:
        for target in self.lists if account is Account.PENDING else ():
            slot = target.area.slots[target.entries.first] if target.direct else None
            if slot is not None and slot.payload is not None and slot.is_backed:
                self.let_go(slot)
                return True
        return bool(original(self, account))

    return evict


def _keeps_the_head(original: Any) -> Any:
    return lambda self, account: account is not Account.HEAD and original(self, account)


def _grows_without_end(self: Paging, target: TargetList) -> bool:
    return True


def _forgets_the_dying(original: Any) -> Any:
    def settle(self: Paging, area: Any, position: int) -> None:
        original(self, area, position)
        self.deleting.clear()

    return settle


def _forgets_looks(self: Paging, number: int) -> None:
    self.deleting.pop(number, None)


def _refills_over_gaps(original: Any) -> Any:
    def take(self: Loads, load: Load, span: Any, found: Any) -> None:
        original(self, load, span, [each for each in found if each.payload is not None])

    return take


MUTATIONS: dict[str, Mutation] = {
    "entries cost nothing": _replace("charge", _uncharged_entries),
    "loads reserve nothing": _replace("_take", _unreserved_loads),
    "what a load brings is not checked again": _replace("is_ready", lambda original: lambda *args: True),
    "settling frees nothing": _replace("_leave_account", _settles_without_freeing),
    "a returned message goes to one list only": _replace("_give_back", _returns_to_one_list),
    "a returned message without a body is direct": _replace("_lower_mark", lambda original: _mark_not_lowered),
    "the loader stops at the first list it cannot serve": _replace("next_load", lambda original: _best_candidate_only),
    "a page in which nothing matches brings the scan no further": _replace("_take_page", _page_ends_at_last_match),
    "a page is taken although the list was cut": _replace("_take_page", _page_after_cut),
    "a consumer sees only what comes after it": _replace("join", _joins_at_the_end),
    "an arrival is appended to an open tail": _replace("arrive", _appends_to_open_tail),
    "a message that was taken stays in other lists": _replace("unlink", _keeps_lists_of_taken),
    "a cut does not open the tail": _replace("_reopen", lambda original: _cuts_without_reopening),
    "what is needed next is evicted": _replace("_evict", _evicts_the_next),
    "entries have no share of their own": _replace("may_grow", lambda original: _grows_without_end),
    "what is settled is found again before its delete": _replace("settle", _forgets_the_dying),
    "what is deleted during a load is found by it": _replace("deleted", lambda original: _forgets_looks),
    "the high-water mark is not lowered for others": _replace("_share_out", lambda original: lambda self: None),
    "nobody gives for a consumer that has nothing": _replace("_shed", lambda original: lambda self: False),
    "the head cache keeps what it has": _replace("_evict", _keeps_the_head),
    "the head cache is refilled over what was not read": _replace("_take_head", _refills_over_gaps),
    "the head cache has gaps": _replace("_uncover", lambda original: lambda self, slot: None),
}


def _windows_after_cut(original: Any) -> Any:
    def take(self: Loads, target: TargetList, windows: Any, load: Load, found: Any) -> bool:
        for span in load.spans:
            span.after = target.scans[span.level]
        taken: bool = original(self, target, windows, load, found)
        return taken

    return take


def _asks_for_nothing(self: Paging, target: TargetList, level: int, after: int = -1) -> Slot | None:
    position = target.entries.at_or_after(max(level << 48, after + 1))
    return target.area.slots[position] if position >> 48 == level else None


def _never_gives_way(original: Any) -> Any:
    def insert(self: Paging, target: TargetList, windows: Any, slot: Slot, payload: object) -> bool:
        before = target.direct_bytes
        target.direct_bytes = 0
        try:
            taken: bool = original(self, target, windows, slot, payload)
        finally:
            target.direct_bytes += before
        return taken

    return insert


KEYED_MUTATIONS: dict[str, Mutation] = {
    "what was read of a level is taken although it was cut": _replace("_take_windows", _windows_after_cut),
    "a level whose turn it is asks for nothing": _replace("first_of", lambda original: _asks_for_nothing),
    "no level gives way for another": _replace("insert_by_key", _never_gives_way),
    "a cut opens no level": _replace("note", lambda original: lambda self, target, windows, level: None),
}

FINDERS = [0, 531, 325, 209, 159, 48, 30, 13]
"""The histories that notice the rarest mutations, tried first: the search for them takes most of the time. Where the
house has changed and they notice nothing, another one does."""


def _finds(patch: pytest.MonkeyPatch, mutation: Mutation, histories: int, *, is_keyed: bool = False) -> bool:
    mutation(patch)
    try:
        for seed in dict.fromkeys([*FINDERS, *range(histories)]):
            levels = (1, 3, 6, 12)[seed % 4] if is_keyed else 3 if seed % 4 == 3 else 1
            random_history(seed, levels=levels, is_keyed=is_keyed)
    except Exception:  # noqa: BLE001  # whatever breaks has been noticed
        return True
    return False


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("name", KEYED_MUTATIONS)
def test_the_oracle_notices_what_is_wrong_by_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where levels take turns."""
    assert _finds(monkeypatch, KEYED_MUTATIONS[name], histories=300, is_keyed=True), f"nothing noticed that {name}"


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_oracle_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The histories that the machine passes break as soon as paging is wrong in this way."""
    assert _finds(monkeypatch, MUTATIONS[name], histories=1000), f"nothing noticed that {name}"
