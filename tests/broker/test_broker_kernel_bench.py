"""The broker's benchmark runs, and notices when a message is lost."""

from __future__ import annotations

import pytest
from bench_parts_support import Rival, Workload, _broker

ATTEMPTS = [(workload, rival) for workload in _broker.SUITE.workloads for rival in workload.rivals]


@pytest.mark.parametrize(("workload", "rival"), ATTEMPTS, ids=[f"{w.name}, {r.name}" for w, r in ATTEMPTS])
def test_every_attempt_delivers_and_settles_its_messages(workload: Workload, rival: Rival) -> None:
    """A few messages through each contestant of each workload: figures come out, nothing is left."""
    attempt = rival.open(workload.divisor)
    try:
        figures = attempt.run()
        attempt.check()
    finally:
        attempt.close()
    assert all(figures[metric.name] > 0 for metric in workload.metrics)
