"""The oracle: what must be true of a broker queue whenever its lock is free. For tests; it walks everything."""

from __future__ import annotations

from .entry_source import Doubt
from .state import QueueState


def check_invariants(state: QueueState) -> list[Doubt]:
    """Lists, states and counts agree with a recount; no consumer overlooks an entry, or waits beside one untold.

    Where a selector decides, the question is returned. Says nothing about consumers that are being pulled, nor,
    while any is, about who was notified.
    """
    state.source.check_structure()
    counters, consumers = state.counters, list(state.consumers)
    state.consumers.check_invariants()
    assert counters.highest_depth >= counters.depth
    assert counters.highest_ready >= counters.ready
    for consumer in consumers:
        assert consumer.is_willing <= consumer.wants_work or consumer.credit is not None
        if consumer.credit is not None:
            consumer.credit.check_invariants()
    return state.source.check_liveness(consumers)
