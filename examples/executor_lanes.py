"""Give each customer a lane: the backlog of a big one does not delay a small one.

python examples/executor_lanes.py
"""

from __future__ import annotations

import threading

from multiqueue import MultiQueueExecutor


def main() -> None:
    served: list[str] = []
    everything_is_submitted = threading.Event()
    with MultiQueueExecutor(max_workers=1) as executor:
        executor.submit(everything_is_submitted.wait)  # the only worker is busy while the jobs come in
        big, small = executor.lane("big"), executor.lane("small")
        for number in range(5):
            big.submit(served.append, f"big {number}")
        for number in range(2):
            small.submit(served.append, f"small {number}")
        executor.lane("urgent", priority=-1).submit(served.append, "urgent")
        everything_is_submitted.set()
    print(", ".join(served))


if __name__ == "__main__":
    main()
