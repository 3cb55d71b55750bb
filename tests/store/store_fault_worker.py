"""A process that publishes and acknowledges until something ends it, and tells over a pipe what it was promised.

    python store_fault_worker.py DIRECTORY DURABILITY SEED MESSAGES

A line per promise on standard output, written before the next step: `put ID BODY`, `deleted ID`, `floor ID`,
`end ERROR`. What was submitted without a promise yet is told as `doubt ID BODY` and `undoubt ID`.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys

from multiqueue.store import Delete, DropQueue, Put, SqliteStore, StoreError


def body_of(number: int) -> bytes:
    """A body of a size and content that follow from its number."""
    return hashlib.sha256(b"%d" % number).digest() * (number % 60)


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def work(store: SqliteStore, seed: int, messages: int) -> None:
    """Publish and delete by chance; some are left for long, and now and then nothing is."""
    random_ = random.Random(seed)
    here = [header.id for header in store.page(1, 0, 1_000_000)]
    left: list[int] = []  # so that files of bodies become sparse
    number = seed * 1_000_000
    passing: list[int] = []
    while messages > 0:
        if random_.random() < 0.5:
            _pass_by(store, passing, number, random_)
        if random_.random() < 0.2:
            _drop(store, number + 100)
        if here and random_.random() < 0.1:
            left.append(here.pop(0))
        if random_.random() < 0.1:
            if random_.random() < 0.1:
                here, left = left + here, []
            _delete(store, here, len(here))  # drained: the next ids must still be new
        comes_at_once = random_.random() < 0.5  # so that a batch is written while the one before is synced
        if comes_at_once:
            store._commits.hold()
        for _ in range(random_.randrange(1, 6)):
            number += 1
            messages -= 1
            here += _publish(store, number, random_, may_wait=not comes_at_once)
        if comes_at_once:
            store._commits.release()
        _delete(store, here, random_.randrange(0, len(here) + 1))


def _publish(store: SqliteStore, number: int, random_: random.Random, *, may_wait: bool) -> list[int]:
    """A message, or one several times, with one body."""
    body = body_of(number)
    given = [store.allocate() for _ in range(random_.choice((1, 1, 1, 5)))]
    for one in given:
        tell("doubt", one, number)
    commit = store.submit([Put(1, b"%d" % number, body, id=one) for one in given])

    def committed(error: BaseException | None = None) -> None:
        for one in () if error else given:
            tell("put", one, number)

    if may_wait and random_.random() < 0.5:
        commit.wait()
        committed()
    else:
        commit.add_done_callback(committed)
    return given


def _pass_by(store: SqliteStore, passing: list[int], number: int, random_: random.Random) -> None:
    """Transient messages come to another queue and go: nothing is promised of them, and nothing waits for a sync."""
    messages = [Put(2, b"%d" % number, body_of(number + each), transient=True) for each in range(4)]
    store.submit(messages).wait()
    passing += [message.id for message in messages]
    if random_.random() < 0.5:
        store.submit([Delete(passing)]).wait()
        passing.clear()


def _drop(store: SqliteStore, queue: int) -> None:
    """A queue has messages and is dropped: what removes them commits between the others, and nobody waits for it."""
    store.submit([Put(queue, b"", body_of(queue + each)) for each in range(4)])
    store.submit([DropQueue(queue)])


def _delete(store: SqliteStore, here: list[int], count: int) -> None:
    gone, here[:] = here[:count], here[count:]
    if not gone:
        return
    for one in gone:
        tell("undoubt", one)
    store.submit([Delete(gone)]).wait()
    for one in gone:
        tell("deleted", one)


def main(directory: str, durability: str, seed: str, messages: str) -> None:
    try:
        # Half of the bodies go into files of 256 KiB or 8 KiB, so that both ways, and files that come, are written
        # anew and go, are in every run. A log of 2 KiB is copied, and so synced, before each commit; beside one of
        # 1 MiB the next file begins while the one before is synced.
        vars(sys.modules["multiqueue.store._group_commit"]).update(_AHEAD_BYTES=500, _BATCHES_BEFORE_REST=2)
        log_bytes, file_bytes = ((1 << 16, 1 << 18), (1 << 11, 1 << 13), (1 << 16, 1 << 18), (1 << 20, 1 << 13))[
            int(seed) % 4
        ]
        vars(sys.modules["multiqueue.store._sqlite"])["_LOGS_OF_BODIES"] = file_bytes / log_bytes
        with SqliteStore(
            directory, durability=durability, reserve_bytes=0, log_bytes=log_bytes, large_commit_bytes=500
        ) as store:
            tell("floor", store.redeliver_floor)
            work(store, int(seed), int(messages))
    except StoreError as error:
        tell("end", type(error).__name__, error)


if __name__ == "__main__":
    main(*sys.argv[1:])
