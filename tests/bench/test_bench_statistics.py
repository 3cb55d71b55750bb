"""The arithmetic under every figure."""

from __future__ import annotations

import pytest
from bench_parts_support import Summary, paired_ratio, percentile, summarize


def test_a_summary_is_the_median_and_the_quartiles() -> None:
    """Five samples have the middle one as median and the second and fourth as quartiles."""
    assert summarize([5.0, 1.0, 4.0, 2.0, 3.0]) == Summary(3.0, 2.0, 4.0)


def test_the_median_of_an_even_number_lies_between_the_middle_two() -> None:
    """No sample is preferred when there is no middle one."""
    assert summarize([1.0, 2.0, 3.0, 10.0]).median == 2.5


def test_one_sample_is_its_own_summary() -> None:
    """`--rounds 1` gives a figure without spread, not an error."""
    summary = summarize([7.0])
    assert (summary, summary.spread) == (Summary(7.0, 7.0, 7.0), 0.0)


def test_the_spread_is_a_share_of_the_median() -> None:
    """Quartiles 9 and 11 around 10 are a spread of a fifth; around 0 there is none to tell."""
    assert Summary(10.0, 9.0, 11.0).spread == pytest.approx(0.2)
    assert Summary(0.0, 0.0, 1.0).spread == 0.0


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_a_percentile_is_the_sample_that_the_share_does_not_exceed(share: float, expected: int) -> None:
    """Of 1 to 100, half do not exceed 50 and 99 of a hundred do not exceed 99."""
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_nothing_measured_has_no_figure() -> None:
    """An empty list of samples is a mistake of the caller, told as such."""
    with pytest.raises(ValueError, match="no samples"):
        summarize([])
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


def test_a_ratio_is_taken_in_each_round_before_the_median() -> None:
    """A machine that was three times slower in the second round changes no ratio."""
    assert paired_ratio([20.0, 6.0, 22.0], [10.0, 3.0, 10.0]) == Summary(2.0, 2.0, 2.2)


def test_a_ratio_has_the_interval_of_its_median() -> None:
    """Of nine rounds the median lies between the second and the eighth ratio: outside in 20 of 512 cases. Of five all
    ratios are the interval, of twenty those but the first and last five."""
    for n, outside in ((1, 0), (5, 0), (6, 0), (9, 1), (20, 5), (180, 76)):
        ratio = paired_ratio([float(each) for each in range(n, 0, -1)], [1.0] * n)
        assert ratio == Summary((n + 1) / 2, outside + 1, n - outside), n


def test_a_ratio_above_one_is_better_where_less_is_better_too() -> None:
    """Half the latency is a ratio of two."""
    assert paired_ratio([5.0, 5.0, 5.0], [10.0, 10.0, 10.0], "less") == Summary(2.0, 2.0, 2.0)


def test_a_ratio_needs_the_same_rounds_and_no_zero_below() -> None:
    """Where there is nothing to compare there is no ratio, and no exception either."""
    assert paired_ratio([1.0], [1.0, 2.0]) is None
    assert paired_ratio([], []) is None
    assert paired_ratio([1.0, 1.0], [1.0, 0.0]) is None
    assert paired_ratio([1.0, 0.0], [1.0, 1.0], "less") is None
