"""Process endless input in bounded memory: `map` reads at most `buffersize` items ahead.

python examples/executor_backpressure.py
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from multiqueue import MultiQueueExecutor

read = 0


def endless_input() -> Iterator[int]:
    global read
    while True:
        read += 1
        yield read - 1


def main() -> None:
    with MultiQueueExecutor(max_workers=4) as executor:
        squares = executor.lane("squares").map(lambda n: n * n, endless_input(), buffersize=10)
        print(list(islice(squares, 5)))
        squares.close()  # cancels what has not started
    print(f"{read} of infinitely many inputs were read for 5 results")


if __name__ == "__main__":
    main()
