"""How many examples a property is tried on: all in the long runs, a quarter else."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

ALL = 100  # Hypothesis' own default


def set_examples(is_short: bool) -> None:
    """Set the number of properties that name none, and the share that `examples` gives. No time is a failure."""
    settings.register_profile(
        "unhurried",
        deadline=None,
        max_examples=ALL // 4 if is_short else ALL,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("unhurried")


def examples(count: int) -> int:
    """The number for a property that names one."""
    return -(-count * settings.default.max_examples // ALL)
