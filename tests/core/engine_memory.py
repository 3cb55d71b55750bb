"""Each allocation of each operation fails in turn: what the operation took is not lost, and the next one works.

`_testcapi.set_nomemory(n, n + 1)` has the n-th allocation from now fail. An operation that raises MemoryError has taken
nothing, or the elements are with its caller; either way none is lost, and the invariants hold.
"""

from __future__ import annotations

import _testcapi
import sys
from typing import Any

from engine_operations import OPERATIONS, House

MOST = 400  # allocations of one operation
SAFE = {"get", "get in time", "take", "poll", "get many", "get of one"}
SAFE |= {"put", "put first", "offer", "settings", "reasons", "ring"}
SAFE |= {"fair put", "fair get", "fair take", "fair get many", "runs arrive", "runs take", "runs end"}


def main() -> int:
    for name, operation in OPERATIONS.items():
        if name not in SAFE:  # the others run much Python, whose own failures are not the engine's
            continue
        failures = 0
        for number in range(MOST):
            house = House()
            before = house.elements()
            result: Any = None
            failed = False
            _testcapi.set_nomemory(number, number + 1)
            try:
                result = operation(house)
            except MemoryError:
                failed = True
            finally:
                _testcapi.remove_mem_hooks()
            if failed:
                failures += 1
                after = house.elements()
                assert [item for item in after if item in before] == before, (name, number, before, after)
            house.check_invariants()
            house.a.put_first("again")
            del result
        print(f"{name:16} failed {failures} times, nothing lost", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
