"""Medians, spread, and ratios of rounds. Pure arithmetic.

A ratio is taken round by round and then its median: within a round all rivals met the same noise, so most of
it cancels, which it does not in a ratio of two medians.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple


class Summary(NamedTuple):
    """The median of some samples, and the quartiles around it as the spread."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The distance between the quartiles as a share of the median; 0 when the median is 0."""
        return (self.high - self.low) / self.median if self.median else 0.0


def summarize(samples: Sequence[float]) -> Summary:
    """The median and quartiles of at least one sample."""
    if not samples:
        raise ValueError("no samples to summarize")
    if len(samples) == 1:
        return Summary(samples[0], samples[0], samples[0])
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Summary(median, low, high)


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of the samples do not exceed; 0.5 is a median."""
    if not samples:
        raise ValueError("no samples to take a percentile of")
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def paired_ratio(
    samples: Sequence[float], baseline: Sequence[float], better: Literal["more", "less"] = "more"
) -> Summary | None:
    """How many times as good as the baseline, round by round: above 1 is better, whatever the metric.

    `None` where some round has a zero to divide by, or the two were not measured in the same rounds.
    """
    if len(samples) != len(baseline) or not samples:
        return None
    above, below = (samples, baseline) if better == "more" else (baseline, samples)
    if not all(below):
        return None
    return summarize([one / other for one, other in zip(above, below, strict=True)])
