"""Sorted positions, of which sorted queues, target lists and caches are made. The lock of a set's owner guards it.

Every call costs a bisection and a move within one bucket of at most 512, however many positions there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

_BUCKET: Final = 512  # positions; a full bucket is split, so an insertion moves at most 4 KiB

END: Final = 1 << 128  # behind every position

P = TypeVar("P", int, tuple[Any, ...])


class SortedSet(Generic[P]):
    """A sorted set of ints or of tuples."""

    __slots__ = ("_buckets", "_lasts", "_size")

    def __init__(self) -> None:
        # Invariants: no bucket is empty; _lasts[i] is _buckets[i][-1]; _size is the sum of their lengths.
        self._buckets: list[list[P]] = []
        self._lasts: list[P] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[P]:
        """All positions in order; the set must not change meanwhile."""
        for bucket in self._buckets:
            yield from bucket

    def __reversed__(self) -> Iterator[P]:
        for bucket in reversed(self._buckets):
            yield from reversed(bucket)

    def add(self, position: P) -> bool:
        """Put a position in; False when it was there."""
        if not self._buckets or position > self._lasts[-1]:
            self._size += 1
            if self._buckets and len(self._buckets[-1]) < _BUCKET:
                self._buckets[-1].append(position)
                self._lasts[-1] = position
            else:
                self._buckets.append([position])
                self._lasts.append(position)
            return True
        index = bisect_left(self._lasts, position)
        bucket = self._buckets[index]
        place = bisect_left(bucket, position)
        if bucket[place] == position:
            return False
        insort(bucket, position)
        self._size += 1
        if len(bucket) > _BUCKET:
            self._split(index)
        return True

    def discard(self, position: P) -> bool:
        """Take a position out; False when it was not there."""
        index = bisect_left(self._lasts, position)
        if index == len(self._lasts):
            return False
        bucket = self._buckets[index]
        place = bisect_left(bucket, position)
        if bucket[place] != position:
            return False
        del bucket[place]
        self._size -= 1
        if not bucket:
            del self._buckets[index], self._lasts[index]
        else:
            self._lasts[index] = bucket[-1]
        return True

    def after(self, position: P) -> P | None:
        """The lowest position above this one, or None."""
        index = bisect_right(self._lasts, position)
        if index == len(self._lasts):
            return None
        bucket = self._buckets[index]
        return bucket[bisect_right(bucket, position)]

    def _split(self, index: int) -> None:
        bucket = self._buckets[index]
        upper = bucket[_BUCKET // 2 :]
        del bucket[_BUCKET // 2 :]
        self._buckets.insert(index + 1, upper)
        self._lasts[index : index + 1] = [bucket[-1], upper[-1]]

    def check_invariants(self) -> None:
        assert all(self._buckets), "an empty bucket was kept"
        assert self._lasts == [bucket[-1] for bucket in self._buckets]
        everything = list(self)
        assert everything == sorted(set(everything)), "not ascending"
        assert self._size == len(everything)


class Positions(SortedSet[int]):
    """A sorted set of ints from 0 on, below `END`."""

    __slots__ = ()

    def __contains__(self, position: int) -> bool:
        return self.at_or_after(position) == position

    @property
    def first(self) -> int:
        """The lowest position, or `END`."""
        return self._buckets[0][0] if self._buckets else END

    @property
    def last(self) -> int:
        """The highest position, or -1."""
        return self._lasts[-1] if self._lasts else -1

    def at_or_after(self, position: int) -> int:
        """The lowest position that is not below this one, or `END`."""
        index = bisect_left(self._lasts, position)
        if index == len(self._lasts):
            return END
        bucket = self._buckets[index]
        return bucket[bisect_left(bucket, position)]

    def before(self, position: int) -> int:
        """The highest position below this one, or -1."""
        index = bisect_left(self._lasts, position)
        if index < len(self._lasts):
            bucket = self._buckets[index]
            place = bisect_left(bucket, position)
            if place:
                return bucket[place - 1]
        return self._lasts[index - 1] if index else -1

    def between(self, after: int, through: int, most: int = END) -> list[int]:
        """The positions above `after`, up to and with `through`; the first `most` of them."""
        found: list[int] = []
        for index in range(bisect_right(self._lasts, after), len(self._buckets)):
            bucket = self._buckets[index]
            if bucket[0] > through or len(found) >= most:
                break
            found += bucket[bisect_right(bucket, after) : bisect_right(bucket, through)]
        return found[:most]
