"""The settings of a sub-queue, checked as they are given. The same for both engines. No state."""

from __future__ import annotations


def check_priority(priority: int) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(f"'priority' must be an int, not {priority!r}")
    return int(priority)  # of a subclass too: the core compares these with its locks held


def check_count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name!r} must be an int, not {value!r}")
    if value < 1:
        raise ValueError(f"{name!r} must be at least 1, not {value}")
    return int(value)


def check_optional(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    try:
        return check_count(name, value)
    except ValueError:
        raise ValueError(f"{name!r} must be at least 1, or None for no limit, not {value}") from None
