"""How rivals are run, and what becomes of one that fails."""

from __future__ import annotations

import gc

import pytest
from bench_parts_support import (
    BEST_RIVAL,
    Figures,
    Goal,
    ItemsLost,
    Rival,
    Stuck,
    cells,
    run_suite,
    run_workload,
)
from bench_support import scripted_rival, suite_of, workload_of


def test_each_round_starts_with_the_next_rival() -> None:
    """Three rivals run A B C, B C A, C A B, so that none always meets the caches of the same other."""
    log: list[str] = []
    run_workload(workload_of(*(scripted_rival(name, [1.0] * 3, log) for name in "ABC")), rounds=3)
    assert [line[-1] for line in log if line.startswith("run")] == list("ABCBCACAB")


def test_an_attempt_is_run_then_checked_then_closed() -> None:
    """The check comes after the figures are taken and the closing after everything."""
    log: list[str] = []
    run_workload(workload_of(scripted_rival("A", [1.0], log)), rounds=1)
    assert log == ["run A", "check A", "close A"]


def test_an_attempt_that_fails_is_closed() -> None:
    """What `open` started ends even if items were lost."""
    log: list[str] = []
    run_workload(workload_of(scripted_rival("A", [1.0], log, ItemsLost("one"))), rounds=1)
    assert log[-1] == "close A"


def test_parts_run_in_turn_forth_and_back() -> None:
    """Rivals of a workload with parts are there together: each follows the other as often as it comes before it."""
    log: list[str] = []
    rivals = [scripted_rival(name, [value] * 2, log) for name, value in (("A", 1.0), ("B", 2.0))]
    result = run_workload(workload_of(*rivals, parts=4), rounds=2)
    runs = ["".join(line[-1] for line in half if line.startswith("run")) for half in (log[:12], log[12:])]
    assert runs == ["ABBAABBA", "BAABBAAB"]
    assert log[8:12] == ["check A", "check B", "close B", "close A"]
    assert [rival.samples["rate"] for rival in result.rivals] == [(1.0,) * 8, (2.0,) * 8]


def test_a_rival_that_fails_in_a_part_leaves_the_others_theirs() -> None:
    """It is closed, has no figures, and is there no more."""

    class Breaks:
        def run(self) -> Figures:
            raise RuntimeError("broken")

        def check(self) -> None:
            raise AssertionError("nothing to check")

        def close(self) -> None:
            log.append("close bad")

    log: list[str] = []
    good = scripted_rival("good", [1.0] * 2, log)
    result = run_workload(workload_of(good, Rival("bad", lambda n: Breaks()), parts=3), rounds=2)
    assert (log.count("run good"), log.count("check good"), log.count("close bad")) == (6, 2, 1)
    assert [failed.problem for failed in result.failures] == ["raised RuntimeError: broken"]


def test_medians_and_ratios_come_from_all_rounds() -> None:
    """Ours at 20, 40 and 30 beside 10 each is a median of 30 and a ratio of 3."""
    baseline, ours = scripted_rival("base", [10.0] * 3), scripted_rival("ours", [20.0, 40.0, 30.0])
    result = run_workload(workload_of(baseline, ours), rounds=3)
    metric = result.workload.metrics[0]
    mine = result.named("ours")
    assert mine is not None
    ratio = result.ratio(mine, metric)
    assert ratio is not None
    assert (mine.summary(metric).median, ratio.median) == (30.0, 3.0)


@pytest.mark.parametrize("error", [Stuck("7 threads never came"), RuntimeError("broken")])
def test_a_rival_that_fails_once_has_no_figure_and_is_not_run_again(error: Exception) -> None:
    """Good rounds before a failure prove nothing; the others go on, and the report says what happened."""
    log: list[str] = []
    bad, good = scripted_rival("bad", [1.0] * 3, log, error), scripted_rival("good", [1.0] * 3, log)
    result = run_workload(workload_of(good, bad), rounds=3)
    assert [failed.rival.name for failed in result.failures] == ["bad"]
    assert str(error) in result.failures[0].problem
    assert (log.count("run bad"), log.count("run good")) == (1, 3)
    assert result.named("bad") is None


def test_what_a_rival_loses_is_a_cell_and_what_ours_loses_a_failure() -> None:
    """A rival that lost items is told in the table, without a figure; the run fails for ours alone."""
    lossy = ItemsLost("3 events of 5 came")
    rivals = scripted_rival("base", [1.0]), scripted_rival("rival", [1.0], fault=lossy)
    result = run_workload(workload_of(*rivals, scripted_rival("ours", [1.0], fault=lossy, role="ours")), rounds=1)
    assert [one.status for one in result.rivals] == ["measured", "lost", "failed"]
    assert [failed.rival.name for failed in result.failures] == ["ours"]
    assert cells(result, result.rivals[1], full=False)[0] == "lost"
    assert "3 events of 5 came" in result.rivals[1].problem


def test_a_rival_that_is_not_installed_is_named_and_fails_nothing() -> None:
    """Absence is reported, never silent, and is no failure."""
    absent = scripted_rival("absent", [], requires="no_such_module.inside")
    result = run_workload(workload_of(scripted_rival("base", [1.0]), absent), rounds=1)
    assert (result.rivals[1].status, result.failures) == ("missing", ())
    assert "no_such_module.inside is not installed" in result.rivals[1].problem


def test_the_garbage_collector_rests_while_an_attempt_runs() -> None:
    """A collection belongs to the whole heap and must not land in one rival's time."""
    seen: list[bool] = []

    class Looks:
        def run(self) -> Figures:
            seen.append(gc.isenabled())
            return {"rate": 1.0}

        def check(self) -> None:
            seen.append(gc.isenabled())

        def close(self) -> None: ...

    run_workload(workload_of(Rival("looks", lambda n: Looks())), rounds=1)
    assert seen == [False, True]


def test_a_goal_is_held_against_the_best_rival_that_does_the_same_job() -> None:
    """A yardstick may be faster than everything: it is shown, and it is not what a goal means."""
    suite = suite_of(
        scripted_rival("base", [10.0]),
        scripted_rival("better", [20.0]),
        scripted_rival("yardstick", [900.0], role="yardstick"),
        scripted_rival("ours", [30.0], role="ours"),
        goals=(Goal("rate", 1.5, "ours", BEST_RIVAL), Goal("rate", 3.1, "ours", "base")),
    )
    best, base = run_suite(suite, rounds=1, command="").workloads[0].goals()
    assert (best.against, best.is_reached) == ("better", True)
    assert (base.against, base.is_reached) == ("base", False)


def test_a_goal_of_a_rival_without_figures_is_not_reached() -> None:
    """Nothing measured is nothing promised."""
    suite = suite_of(
        scripted_rival("base", [10.0]),
        scripted_rival("ours", [99.0], fault=ItemsLost("some"), role="ours"),
        goals=(Goal("rate", 1.0, "ours", "base"),),
    )
    (goal,) = run_suite(suite, rounds=1, command="").workloads[0].goals()
    assert (goal.ratio, goal.is_reached) == (None, False)


def test_a_workload_names_only_rivals_it_has() -> None:
    """A goal that no rival answers to is refused when the suite is written, not when it ends."""
    with pytest.raises(ValueError, match="goal for rivals it does not have"):
        workload_of(scripted_rival("base", []), goals=(Goal("rate", 2.0, "ours", "base"),))
    with pytest.raises(ValueError, match="names a rival twice"):
        workload_of(scripted_rival("base", []), scripted_rival("base", []))


def test_work_is_dealt_in_equal_parts_however_little_there_is() -> None:
    """n is a multiple of the divisor for every rival and at every scale, and never nothing."""
    slow = scripted_rival("slow", [], share=0.25)
    workload = workload_of(slow, divisor=8)
    assert (workload.n_for(slow), workload.scaled(0.5).n, workload.scaled(0.001).n) == (24, 48, 8)


def test_no_rounds_are_refused() -> None:
    """Zero rounds would be a report of nothing."""
    with pytest.raises(ValueError, match="rounds must be at least 1, not 0"):
        run_suite(suite_of(scripted_rival("base", [])), rounds=0, command="")
