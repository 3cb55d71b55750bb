"""The backlog is published and drained by a process of its own, and what gets lost is found out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_parts_support import SUITE, ItemsLost, _store_backlog, run_workload


def test_the_backlog_has_a_figure_for_every_metric() -> None:
    """`bench store` publishes and drains the backlog, and has rates, steadiness and the most memory of it."""
    (workload,) = SUITE.only(["backlog"]).workloads
    result = run_workload(replace(workload, n=1000), rounds=1)
    assert [(failed.rival.name, failed.problem) for failed in result.failures] == []
    (ours,) = result.rivals
    assert {metric.name for metric in workload.metrics} == set(ours.samples)
    assert all(value > 0 for values in ours.samples.values() for value in values)


def test_a_backlog_that_comes_out_of_order_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in which a message is lost has no figures."""
    attempt = _store_backlog._Backlog(20)
    short = "import json; print(json.dumps({'publish': 1, 'lost': 2}))"
    monkeypatch.setattr(attempt, "_command", [*attempt._command[:1], "-c", short])
    assert attempt.run() == {"publish": 1}
    with pytest.raises(ItemsLost, match="2 messages"):
        attempt.check()
