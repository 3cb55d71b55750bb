"""Rounds of each operation on a debug build of CPython: no reference and no block more at the end than before."""

from __future__ import annotations

import gc
import sys
from itertools import pairwise

from engine_operations import OPERATIONS, House

ROUNDS = 200
SLACK = 20  # references that caches of the interpreter take and give


def total() -> int:
    """The references that exist, once garbage is collected."""
    for _ in range(3):
        gc.collect()
    return sys.gettotalrefcount()  # type: ignore[attr-defined,no-any-return]


def main() -> int:
    leaks = 0
    for name, operation in OPERATIONS.items():
        counts, blocks = [], []
        for _ in range(3):
            for _ in range(ROUNDS):
                operation(House())
            counts.append(total())
            blocks.append(sys.getallocatedblocks())
        # What leaks, leaks in each round; a free list grows in some.
        grown = min(after - before for before, after in pairwise(counts))
        more = min(after - before for before, after in pairwise(blocks))
        wrong = grown > SLACK or more > ROUNDS // 2
        leaks += wrong
        print(
            f"{name:16} references {grown:+6d} blocks {more:+6d} in {ROUNDS} rounds{'  LEAK' if wrong else ''}",
            flush=True,
        )
    return 1 if leaks else 0


if __name__ == "__main__":
    sys.exit(main())
