"""What `join` of the multi-queue sees of takes that are under way, in every order."""

from __future__ import annotations

from schedules_support import of_two_threads

from multiqueue import LinkedBlockingMultiQueue
from multiqueue.testing import Run


@of_two_threads
def test_join_returns_when_all_is_done(run: Run) -> None:
    """`join` waits for the put before it, and returns when its element was taken and is done."""
    multi_queue: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
    lane = multi_queue.add_subqueue("lane")
    lane.put("a")
    done: list[str] = []

    def work() -> None:
        item = multi_queue.get()
        done.append(item)
        lane.task_done()

    def join() -> list[str]:
        multi_queue.join()
        return list(done)

    run.spawn(work)
    joiner = run.spawn(join)
    run.join()
    assert joiner.result == ["a"]
