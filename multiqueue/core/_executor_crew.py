"""The threads behind the lanes: who is hired, who serves, who is replaced, and how all of them go home.

Promise     A job whose put returned is run, cancelled, or refused with the reason that broke the crew; none is
            forgotten. As long as fewer than `max_workers` threads serve, every job that waits or runs has one.
            A worker that dies of an exception outside its job is reported and replaced.
State       `_lock` guards `_serving`, `_load`, `_closing`, `_broken`, `_shutdown` and every `Job.counted` and
            `Ending.begun`; `_hiring` guards `_threads` and `_hired`. The jobs wait in `queue`, which has its own locks.
Lock order  `_hiring` -> `_lock` -> locks of the multi-queue. No user code runs under them. `_hiring` is held while a
            thread starts, so that whoever sees it in `_threads` can join it. `_lock` is not: a new thread may
            collect garbage before its start is known, and the end of a Keeper takes `_lock`.
Waiting     Idle workers wait in `queue.take()`; a put, a resume, a `task_done` or the shutdown of the multi-queue
            wakes them. `join` waits for threads. Submitters wait in `put`, outside the crew lock.
Membership  Counting comes before the put: a put that succeeds finds a worker hired, and a worker leaves only
            when the multi-queue is shut down and drained, which no successful put can follow.
            1. submit counts and hires; 2. shutdown; 3. put -> the multi-queue refuses it, the count is undone.
            4. submit that counted before the shutdown is still hiring; 5. `join` waits for `_hiring`, then for
            the thread.
            A crew does not refer to its executor or lanes. When the last of those is gone its `Keeper` ends
            the crew: what waits is still run, as in the standard library. At interpreter exit the same.
            A forked child has none of the threads: there the crew is broken, and says so.
Assumes     `_lock` is re-entrant because the garbage collector may end a Keeper in a thread that holds it.
            `threading._register_atexit` runs before non-daemon threads are joined (tests pin it).
Source      `concurrent.futures.thread`, for all that its users rely on.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures.thread import BrokenThreadPool
from typing import Any

from ..errors import Full, ShutDown
from . import _sync
from ._executor_job import Job
from ._multi_queue import LinkedBlockingMultiQueue
from ._sub_queue import SubQueue

LOGGER = logging.getLogger("multiqueue.executor")


class Crew:
    """Up to `max_workers` threads that serve the sub-queues of one multi-queue.

    With `jobs_per_worker` a thread goes home after so many jobs and another one takes its place.
    """

    def __init__(
        self,
        max_workers: int,
        name: str,
        initializer: Callable[..., object] | None = None,
        initargs: Sequence[Any] = (),
        jobs_per_worker: int | None = None,
    ) -> None:
        self.queue: LinkedBlockingMultiQueue[Job[Any]] = LinkedBlockingMultiQueue()
        self.max_workers = max_workers
        self.name = name
        self._initializer = initializer
        self._initargs = initargs
        self._jobs_per_worker = jobs_per_worker
        self._hiring = _sync.RLock()
        self._lock = _sync.RLock()
        self._threads: set[threading.Thread] = set()  # started; those that have ended are forgotten when hiring
        self._serving = 0  # threads that will take another job
        self._hired = 0  # ever; numbers the names
        # Invariant: _load == jobs put or about to be put whose future has not ended; each is `counted` once.
        self._load = 0
        self._closing: dict[SubQueue[Job[Any]], Ending] = {}  # lanes that were closed and are not done
        self._broken: str | None = None
        self._shutdown = False
        self.on_retired: Callable[[SubQueue[Job[Any]]], object] | None = None
        with _crews_lock:
            _crews.add(self)

    # What an executor and its lanes ask for

    def add_subqueue(
        self, key: Hashable, priority: int, capacity: int | None, max_in_flight: int | None, weight: int
    ) -> SubQueue[Job[Any]]:
        """A sub-queue that the workers serve.

        Raises:
            ValueError: the key exists, or a value is less than 1.
            RuntimeError: as `put`.
        """
        with self._lock:
            self._check_open_locked()
        try:
            return self.queue.add_subqueue(key, priority, capacity, max_in_flight=max_in_flight, weight=weight)
        except ShutDown:
            raise self._refusal() from None

    def put(self, subqueue: SubQueue[Job[Any]], job: Job[Any], block: bool, timeout: float | None) -> None:
        """Put `job` into a lane and see that somebody will serve it.

        Raises:
            Full: the lane stayed full.
            RuntimeError: the crew or the lane was shut down; `BrokenThreadPool` if an initializer failed.
        """
        self._admit(job)
        job.future.withdraw = lambda: self._withdraw(subqueue, job)
        try:
            subqueue.put(job, block, timeout)
        except Full:
            self._forget(job)
            raise
        except ShutDown:
            self._forget(job)
            raise self._refusal() from None
        except BaseException:  # an interrupt: the job may be in the lane already
            subqueue.remove(job)
            self._forget(job)
            raise

    def pause(self, subqueue: SubQueue[Job[Any]], reason: Hashable) -> None:
        """Disable a sub-queue for `reason`, unless it or the crew was shut down: then there are no more pauses.

        1. This disables, then asks for shutdown; 2. shutdown says so, then enables: one of them sees the other.
        """
        subqueue.disable(reason)
        if self._shutdown or subqueue.is_shutdown:
            subqueue.enable(reason)

    def _end_pauses(self, subqueue: SubQueue[Job[Any]]) -> None:
        for reason in subqueue._reasons:
            subqueue.enable(reason)

    def clear(self, subqueue: SubQueue[Job[Any]]) -> int:
        """Cancel the jobs that wait in one lane now; how many."""
        return self._empty(subqueue, lambda job: job.future.cancel_taken())

    def _empty(self, subqueue: SubQueue[Job[Any]], end: Callable[[Job[Any]], object]) -> int:
        """Take what waits now out of a lane, one by one, and `end` it; how many."""
        waiting = len(subqueue)
        for count in range(waiting):
            job = subqueue.poll()
            if job is None:  # the workers were faster
                return count
            try:
                end(job)
            finally:
                self._done_with(subqueue, job)
        return waiting

    def _subqueues(self) -> list[SubQueue[Job[Any]]]:
        subqueues = map(self.queue.subqueues.get, self.queue.subqueues)
        return [subqueue for subqueue in subqueues if subqueue is not None]

    # The end

    def close(self, subqueue: SubQueue[Job[Any]], ending: Ending) -> None:
        """Accept no more jobs in one lane. `ending.gone` is set when all its jobs are done and its key is free."""
        subqueue.shutdown()
        self._end_pauses(subqueue)
        with self._lock:
            if not ending.begun:
                self._closing[subqueue] = ending
        self._retire_if_done(subqueue)

    def shutdown(self) -> None:
        """Accept no more jobs and lift all pauses, so that what waits is run. Does not block."""
        with self._lock:
            self._shutdown = True
        self.queue.shutdown()
        for subqueue in self._subqueues():
            self._end_pauses(subqueue)

    def cancel_waiting(self) -> int:
        """Cancel every job that waits in a lane; how many."""
        return sum(self.clear(subqueue) for subqueue in self._subqueues())

    def join(self) -> None:
        """Wait until all threads have ended, the replacements hired meanwhile too."""
        while threads := self._alive():
            for thread in threads:
                thread.join()

    def threads(self) -> frozenset[threading.Thread]:
        """The threads hired and not known to have ended."""
        with self._hiring:
            return frozenset(self._threads)

    def _alive(self) -> list[threading.Thread]:
        return [thread for thread in self.threads() if thread.is_alive()]

    # Hiring

    def _admit(self, job: Job[Any]) -> None:
        with self._lock:
            self._check_open_locked()
            job.counted = True
            self._load += 1
            short = self._is_short_locked()
        if short:
            try:
                self._hire()
            except BaseException:  # the system refuses a thread: nothing was submitted
                self._forget(job)
                raise

    def _check_open_locked(self) -> None:
        if self._shutdown or self._broken is not None or _exiting:
            raise self._refusal()

    def _is_short_locked(self) -> bool:
        return self._serving < min(self.max_workers, self._load)

    def _hire(self) -> None:
        """Start one more worker if one is wanted. Raises what `Thread.start` raises."""
        with self._hiring:
            with self._lock:
                if not self._is_short_locked():
                    return
                self._serving += 1
            try:
                name = f"{self.name}_{self._hired}"
                thread = threading.Thread(target=_serve, args=(self,), name=name, daemon=False)
                thread.start()
            except BaseException:
                with self._lock:
                    self._serving -= 1
                raise
            self._hired += 1
            self._threads = {other for other in self._threads if other.is_alive()}
            self._threads.add(thread)

    def _discount(self, job: Job[Any]) -> None:
        with self._lock:
            if job.counted:
                job.counted = False
                self._load -= 1

    def _forget(self, job: Job[Any]) -> None:
        """The job was not submitted."""
        job.future.withdraw = None
        self._discount(job)

    def _withdraw(self, subqueue: SubQueue[Job[Any]], job: Job[Any]) -> bool:
        if not subqueue.remove(job):
            return False
        self._discount(job)
        self._retire_if_done(subqueue)
        return True

    def _done_with(self, subqueue: SubQueue[Job[Any]], job: Job[Any]) -> None:
        """After the end of a job that was taken: only now is its place among the running ones free."""
        subqueue.task_done()
        self._discount(job)
        self._retire_if_done(subqueue)

    def _retire_if_done(self, subqueue: SubQueue[Job[Any]]) -> None:
        """Let go of a lane that was closed and is done. Whoever ends a job of it comes by here; one does it."""
        if subqueue not in self._closing:
            return
        left = subqueue.statistics()
        if left.size or left.in_flight:
            return
        with self._lock:
            ending = self._closing.pop(subqueue, None)
            if ending is None:
                return
            ending.begun = True
        self.queue.remove_subqueue(subqueue.key)
        if self.on_retired is not None:
            self.on_retired(subqueue)
        ending.gone.set()

    def _refusal(self) -> RuntimeError:
        if self._broken is not None:
            return BrokenThreadPool(self._broken)
        if _exiting:
            return RuntimeError("cannot schedule new futures after interpreter shutdown")
        return RuntimeError("cannot schedule new futures after shutdown")

    # What a worker does

    def serve(self) -> None:
        """Take and run jobs until the multi-queue is drained or this thread has run its share."""
        share = self._jobs_per_worker
        while share is None or share > 0:
            taken = self.queue.take()
            try:
                taken.item.run()
            except BaseException as error:
                taken.item.refuse(error)  # nobody waits for ever because of our mistake
                raise
            finally:
                self._done_with(taken.subqueue, taken.item)
                del taken  # an idle worker keeps no job alive
            if share is not None:
                share -= 1

    def initialize(self) -> bool:
        """Run the initializer in this thread; if it fails, break the crew and refuse all that waits."""
        if self._initializer is None:
            return True
        try:
            self._initializer(*self._initargs)
        except BaseException:
            LOGGER.critical("Exception in initializer:", exc_info=True)
            self._break("A thread initializer failed, the thread pool is not usable anymore")
            return False
        return True

    def leave(self, replace: bool) -> None:
        """This thread serves no more. With `replace`, another one does if there is something to do."""
        with self._lock:
            self._serving -= 1
        if replace:
            try:
                self._hire()
            except Exception:
                LOGGER.critical("no thread could be started in place of %s", _my_name(), exc_info=True)

    def _break(self, reason: str) -> None:
        with self._lock:
            self._broken = reason
        self.shutdown()
        for subqueue in self._subqueues():
            self._empty(subqueue, lambda job: job.refuse(BrokenThreadPool(reason)))

    def after_fork_in_child(self) -> None:
        """The threads stayed in the parent, and so did the jobs."""
        self._hiring = _sync.RLock()
        self._lock = _sync.RLock()
        self._threads = set()
        self._broken = (
            f"executor {self.name!r} was made before this process was forked and has no threads here; "
            "make a new one in the child"
        )


class Ending:
    """How a lane that was closed comes to its end: once, however often and by however many it is closed."""

    __slots__ = ("begun", "gone")

    def __init__(self) -> None:
        self.begun = False  # guarded by the crew's lock; the lane is then no longer, and never again, in `_closing`
        self.gone = threading.Event()


class Keeper:
    """Ends a crew when the executor and all its lanes, which hold this, are gone."""

    def __init__(self, crew: Crew) -> None:
        weakref.finalize(self, crew.shutdown)


def _serve(crew: Crew) -> None:
    """A worker's life. `crew` is all it holds: neither executor nor lane."""
    replace = False
    try:
        if crew.initialize():
            replace = True
            crew.serve()
    except ShutDown:
        replace = False  # drained: nothing can come any more
    except BaseException:
        LOGGER.critical("worker %s died and is replaced", _my_name(), exc_info=True)
    finally:
        crew.leave(replace)


def _my_name() -> str:
    return threading.current_thread().name


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()  # guarded by _crews_lock
_crews_lock = _sync.RLock()
_exiting = False  # set once, before the crews are counted: one made later admits nothing


def _finish_at_exit() -> None:
    """Run what is queued and join all workers, before the interpreter waits for threads that would not end."""
    global _exiting
    _exiting = True
    with _crews_lock:
        crews = list(_crews)
    for crew in crews:
        crew.shutdown()
    for crew in crews:
        crew.join()


def _forget_threads_in_child() -> None:
    global _crews_lock
    _crews_lock = _sync.RLock()
    for crew in list(_crews):
        crew.after_fork_in_child()


# Private, and the only hook that runs before the interpreter joins non-daemon threads; `concurrent.futures` uses
# it too. docs/decisions/0201-exit-hook.md has the alternatives.
threading._register_atexit(_finish_at_exit)  # type: ignore[attr-defined]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads_in_child)
