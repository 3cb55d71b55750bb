"""The oracle: what must be true of a broker queue whenever its lock is free. For tests; it walks everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .consumer import ConsumerState
from .entry import EntryState

if TYPE_CHECKING:
    from .consumer import QueueConsumer
    from .core import QueueCore
    from .cursor import Reader
    from .entry import Entry, Position

# An entry, a consumer, and what is wrong should the consumer's selector match the entry.
Doubt = tuple["Entry", "QueueConsumer", str]


def check_structure(core: QueueCore) -> None:
    """Lists, states and counts agree with a recount."""
    core.entries.check_invariants()
    if core.is_paged:
        _check_counts(core)
        _check_consumers(core)
        return
    entries = list(core.entries)
    for entry in entries:
        entry.check_invariants()
        assert entry.state < EntryState.DEQUEUED, f"{entry!r} is gone but still listed"
    ready = [entry for entry in entries if entry.is_ready]
    assert core.depth == len(entries)
    assert core.depth_bytes == sum(entry.size for entry in entries)
    assert core.ready == len(ready)
    assert core.ready_bytes == sum(entry.size for entry in ready)
    assert core.held == sum(entry.state is EntryState.HELD for entry in entries)
    _check_consumers(core)


def _check_counts(core: QueueCore) -> None:
    """What can be said of a paged queue without reading its store: what is taken are objects."""
    taken = [entry for entry in core.entries if not entry.is_ready]
    assert core.depth - core.ready == len(taken), f"{core.depth - core.ready} counted as taken, {len(taken)} are"
    assert core.depth_bytes - core.ready_bytes == sum(entry.size for entry in taken)
    assert core.held == sum(entry.state is EntryState.HELD for entry in core.entries)
    for entry in core.entries:
        entry.check_invariants()


def _check_consumers(core: QueueCore) -> None:
    core.consumers.check_invariants()
    assert core.highest_depth >= core.depth
    assert core.highest_ready >= core.ready
    assert len(core.browsers) == sum(not consumer.acquires for consumer in core.consumers)
    for consumer in core.consumers:
        assert consumer.is_willing <= consumer.wants_work or consumer.credit is not None
        if consumer.credit is not None:
            consumer.credit.check_invariants()


def check_liveness(core: QueueCore) -> list[Doubt]:
    """Nobody overlooks an entry, and nobody waits beside one that it could have while no one is notified.

    Where a selector decides, the question is returned. Says nothing about consumers that are being pulled, nor,
    while any is, about who was notified.
    """
    if core.is_paged:
        _check_paged_liveness(core)
        return []
    available = [entry for entry in core.entries if entry.state is EntryState.AVAILABLE]
    consumers = [consumer for consumer in core.consumers if consumer.acquires and not consumer.pulling]
    doubts: list[Doubt] = []
    for consumer in consumers:
        for entry in _overlooked(core, consumer, available):
            claim = f"{consumer!r} at {consumer.cursor} has overlooked {entry!r}"
            assert consumer.selector is not None, claim
            doubts.append((entry, consumer, claim))
    if any(consumer.pulling or consumer.state is ConsumerState.NOTIFIED for consumer in core.consumers):
        return doubts
    for consumer in consumers:
        if consumer.state is ConsumerState.INTERESTED:
            for entry in available:
                if core.suits(entry, consumer):
                    claim = f"{consumer!r} waits beside {entry!r} and nobody is notified"
                    assert consumer.selector is not None, claim
                    doubts.append((entry, consumer, claim))
    return doubts


def _check_paged_liveness(core: QueueCore) -> None:
    if any(consumer.pulling or consumer.state is ConsumerState.NOTIFIED for consumer in core.consumers):
        return
    for consumer in core.consumers:
        if consumer.state is ConsumerState.INTERESTED:
            entry = core.next_for(consumer, [])
            # What a load has just brought: its loader waits for the lock that the caller holds.
            is_told = entry is None or core.memory.is_telling  # type: ignore[attr-defined]  # it is a paged core
            assert is_told, f"{consumer!r} waits beside {entry!r} and nobody is notified"


def _overlooked(core: QueueCore, reader: Reader, available: list[Entry]) -> list[Entry]:
    unmerged = core.returns.since(reader.returns_seen)
    if unmerged is None:
        return []  # it will start over
    known: set[Position] = {*reader.revisits, *unmerged}
    return [
        entry
        for entry in available
        if entry.position <= reader.cursor and entry.position not in known and core.suits(entry, reader)
    ]
