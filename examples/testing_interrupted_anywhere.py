"""Press Ctrl-C at every point of a put, and see which queues stay locked: the standard library's, and ours.

python examples/testing_interrupted_anywhere.py
"""

from __future__ import annotations

import queue

from multiqueue import Queue
from multiqueue.testing import interruptions


def main() -> None:
    points = locked = 0
    for point in interruptions():
        theirs: queue.Queue[str] = queue.Queue()
        with point.raising(KeyboardInterrupt):
            theirs.put("x")
        points += point.reached
        if not theirs.mutex.acquire(blocking=False):
            locked += 1
            print(f"queue.Queue stays locked for ever after an interruption at {point.place}")
    print(f"queue.Queue: {locked} of {points} interruptions leave it locked")

    points = 0
    for point in interruptions():
        ours: Queue[str] = Queue()
        with point.raising(KeyboardInterrupt):
            ours.put("x")
        points += point.reached
        ours.check_invariants()
        ours.put("y")
        assert ours.get_many(2)[-1] == "y"
    print(f"multiqueue.Queue: 0 of {points}")


if __name__ == "__main__":
    main()
