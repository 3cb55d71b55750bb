"""The settings of a sub-queue, checked as they are given. The same for both engines. No state."""

from __future__ import annotations

import sys
from math import isfinite
from operator import index

SMALLEST, LARGEST = 1e-100, 1e100  # of costs and weights: no quotient of two, and no sum of those, is 0 or infinite


def check_priority(priority: int) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(f"'priority' must be an int, not {priority!r}")
    number = int(priority)  # of a subclass too: the core compares these with its locks held
    if not -sys.maxsize - 1 <= number <= sys.maxsize:
        raise ValueError(f"'priority' must fit 64 bits, not {number}")
    return number


def check_number(name: str, value: float, can_be_0: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name!r} must be a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = LARGEST * 2 if value > 0 else -1.0
    if not (isfinite(number) and (number > 0 or (can_be_0 and number == 0))):
        raise ValueError(f"{name!r} must be a number {'of at least' if can_be_0 else 'above'} 0, not {value!r}")
    if number > LARGEST or 0 < number < SMALLEST:
        raise ValueError(
            f"{name!r} must be between {SMALLEST:g} and {LARGEST:g}, not {number:g}: "
            "its quotients or sums would be 0 or infinite"
        )
    return number


def check_count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name!r} must be an int, not {value!r}")
    if value < 1:
        raise ValueError(f"{name!r} must be at least 1, not {value}")
    return min(int(value), sys.maxsize)


def check_optional(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    try:
        count = check_count(name, value)
    except ValueError:
        raise ValueError(f"{name!r} must be at least 1, or None for no limit, not {value}") from None
    return count if count < sys.maxsize else None


def check_unfinished(count: int) -> int:
    try:
        number = index(count)
    except TypeError:
        raise TypeError(f"'unfinished_tasks' must be an int, not {count!r}") from None
    return max(-sys.maxsize, min(number, sys.maxsize))


def capacity_of(maxsize: float) -> int | None:
    """The capacity of a queue with this `maxsize`, which `queue.Queue` compares with a size: it takes 2.5 and `inf`."""
    try:
        is_bounded = 0 < maxsize < sys.maxsize
    except TypeError:
        raise TypeError(f"'maxsize' must be a number, not {maxsize!r}") from None
    if not is_bounded:
        return None
    whole = int(maxsize)
    return whole if whole == maxsize else whole + 1


def check_max_items(max_items: int, least: int) -> int:
    try:
        number = index(max_items)
    except TypeError:
        raise TypeError(f"'max_items' must be an int, not {max_items!r}") from None
    if number < least:
        raise ValueError(f"'max_items' must be at least {least}{'' if least else ' or None'}, not {max_items!r}")
    return number
