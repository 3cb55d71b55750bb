"""The threads behind the lanes: how they are started, serve, are replaced, and end.

Promise     A job whose put returned is run, cancelled, or refused with the reason that broke the workers; none is
            forgotten. As long as fewer than `max_workers` threads serve, every job that waits or runs has one.
            A worker that dies of an exception outside its job is reported and replaced.
State       `_lock` guards `_serving`, `_load`, `_lines`, `_closing`, `_broken`, `_shutdown`, the jobs that wait in
            each line, and every `Job.counted`, `Ending.begun` and `Contract`; `_starting` guards `_threads` and
            `_started`. The lanes are sub-queues of `queue`, which has its own locks.
Lock order  `_starting` -> `_lock` -> locks of the multi-queue. No user code runs under them. `_starting` is held while
            a thread starts, so that another one that sees it in `_threads` can join it. `_lock` is not: a new thread
            may collect garbage before its start is known, and the end of a Keeper takes `_lock`.
Waiting     Idle workers wait in `queue.take()`; a put, a resume, a `task_done` or the shutdown of the multi-queue
            wakes them. `join` waits for threads. Submitters wait in `put`, outside the worker lock.
Membership  Counting comes before the put: a put that succeeds finds a worker started, and a worker leaves only
            when the multi-queue is shut down and drained, which no successful put can follow.
            1. submit counts and starts a worker; 2. shutdown; 3. put -> the multi-queue refuses it, the count is
            undone. 4. submit that counted before the shutdown is still starting; 5. `join` waits for `_starting`, then
            for the thread.
            The workers do not refer to their executor or lanes. When the last of those is gone its `Keeper` ends
            the workers: what waits is still run, as in the standard library. At interpreter exit the same.
            A submit that is interrupted has submitted the job or has not, and in the latter case leaves no count
            behind: no thread counts without a record of it (`Job.counted`, `Contract.holds`) that a handler reads.
            A forked child has none of the threads: there the workers are broken, and say so.
Hazards     Those of `_plain_head`. No call ends the body of a `with`, as in `return f()`: an exception right after it
            would find the lock held. The locks are `Guard`s, for CPython 3.14 delivers one before the block too.
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
from typing import Any

from ..errors import Full, ShutDown
from . import _sync
from ._executor_job import Job, JobWatcher
from ._fork import Alive
from ._lane_waiting import Ticket, WaitingLine
from ._multi_queue import LinkedBlockingMultiQueue
from ._selection import SubQueueSelection
from ._sub_queue import SubQueue, take

try:
    from concurrent.futures.thread import BrokenThreadPool
except RuntimeError:  # it has a hook of its own for the exit of the interpreter, which has come already
    from concurrent.futures import BrokenExecutor as BrokenThreadPool  # type: ignore[assignment]

LOGGER = logging.getLogger("concurrent.futures")  # where programs look for what befalls a thread pool's workers


class Workers:
    """Up to `max_workers` threads that serve the sub-queues of one multi-queue.

    With `jobs_per_worker` a thread goes home after so many jobs and another one takes its place. A `selection` decides
    which lane's job is next.
    """

    def __init__(
        self,
        max_workers: int,
        name: str,
        initializer: Callable[..., object] | None = None,
        initargs: Sequence[Any] = (),
        jobs_per_worker: int | None = None,
        selection: SubQueueSelection[Ticket] | None = None,
    ) -> None:
        self.queue: LinkedBlockingMultiQueue[Ticket] = LinkedBlockingMultiQueue(selection=selection)
        self.max_workers = max_workers
        self.name = name
        self._initializer = initializer
        self._initargs = initargs
        self._jobs_per_worker = jobs_per_worker
        self._starting = _sync.Guard()
        self._lock = _sync.Guard()
        self._threads: set[threading.Thread] = set()  # started; those that have ended are forgotten when another starts
        self._serving = 0  # threads that will take another job
        self._started = 0  # ever; numbers the names
        # Invariant: _load == jobs put or about to be put whose future has not ended; each is `counted` once.
        self._load = 0
        self._lines: dict[SubQueue[Ticket], WaitingLine] = {}  # of the lanes that are not done
        # Lanes that were closed, or that pass with their last job, and are not done.
        self._closing: dict[SubQueue[Ticket], Ending] = {}
        self._broken: str | None = None
        self._shutdown = False  # whether it admits no more jobs, for whichever reason
        self.on_retired: Callable[[SubQueue[Ticket]], object] | None = None
        self.watcher: JobWatcher | None = None  # read once for each job, without a lock
        _all_workers.add(self)
        if _exiting:
            self._shutdown = True

    # What an executor and its lanes ask for

    def add_subqueue(
        self,
        key: Hashable,
        priority: int,
        capacity: int | None,
        max_in_flight: int | None,
        weight: int,
        is_passing: bool = False,
    ) -> SubQueue[Ticket]:
        """A sub-queue that the workers serve; one that `is_passing` until it has no job any more.

        Raises:
            ValueError: the key exists, or a value is less than 1.
            RuntimeError: as `put`.
        """
        if self._shutdown:
            raise self._refusal()
        try:
            subqueue = self.queue.add_subqueue(key, priority, capacity, max_in_flight=max_in_flight, weight=weight)
        except ShutDown:
            raise self._refusal() from None
        with self._lock:
            self._lines[subqueue] = WaitingLine(subqueue)
            if is_passing:
                self._closing[subqueue] = Ending(is_passing)
        return subqueue

    def drop_subqueue(self, key: Hashable) -> None:
        """Take back what an `add_subqueue` of this key has left that did not come to its end, if anything."""
        try:
            subqueue = self.queue.remove_subqueue(key)
        except KeyError:
            return
        with self._lock:
            self._lines.pop(subqueue, None)
            self._closing.pop(subqueue, None)

    def put(self, subqueue: SubQueue[Ticket], job: Job[Any], block: bool, timeout: float | None) -> None:
        """Put `job` into a lane and see that somebody will serve it.

        Raises:
            Full: the lane stayed full.
            RuntimeError: the workers or the lane were shut down; `BrokenThreadPool` if an initializer failed.
        """
        ticket = [job]
        try:
            with self._lock:
                if self._shutdown:
                    raise self._refusal()
                job.counted = True
                self._load += 1
                short = self.max_workers > self._serving < self._load
            if short:
                self._start_worker()
            job.workers, job.subqueue = self, subqueue
            job.future.job = job
            subqueue.put(ticket, block, timeout)
        except (Full, ShutDown) as error:
            self._forget(job)
            if isinstance(error, Full):
                raise
            raise self._refusal() from None
        except BaseException:  # an interrupt: the ticket may be in the lane already
            try:
                self._call_off(ticket, job)
            except BaseException:  # interrupted again
                self._call_off(ticket, job)
                raise
            raise

    def _call_off(self, ticket: Ticket, job: Job[Any]) -> None:
        """After an interrupted submit: the job does not wait, unless a worker has it. May be repeated."""
        if job.future.job is not None and job.withdraw():
            return
        with self._lock:
            try:
                del ticket[0]  # it was never put, or a worker has it and will find nothing on it
            except IndexError:
                return
            job.future.job = None
            if job.counted:
                job.counted = False
                self._load -= 1

    def pause(self, subqueue: SubQueue[Ticket], reason: Hashable) -> None:
        """Disable a sub-queue for `reason`, unless it or the workers were shut down: then there are no more pauses.

        1. This disables, then asks for shutdown; 2. shutdown says so, then enables: one of them sees the other.
        """
        subqueue.disable(reason)
        if self._shutdown or subqueue.is_shutdown:
            subqueue.enable(reason)

    def _end_pauses(self, subqueue: SubQueue[Ticket]) -> None:
        for reason in subqueue._reasons:
            subqueue.enable(reason)

    def clear(self, subqueue: SubQueue[Ticket]) -> int:
        """Cancel the jobs that wait in one lane now; how many."""
        return [job.future.cancel_waiting() for job in self._waiting(subqueue)].count(True)

    def _waiting(self, subqueue: SubQueue[Ticket]) -> list[Job[Any]]:
        with self._lock:
            line = self._lines.get(subqueue)
            jobs = [] if line is None else line.jobs_locked()
        return jobs

    def _subqueues(self) -> list[SubQueue[Ticket]]:
        with self._lock:
            subqueues = list(self._lines)
        return subqueues

    # The end

    def close(self, subqueue: SubQueue[Ticket], ending: Ending) -> None:
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
        """Wait until all threads have ended, the replacements started meanwhile too."""
        while threads := self._alive():
            for thread in threads:
                thread.join()

    def threads(self) -> frozenset[threading.Thread]:
        """The threads started and not known to have ended."""
        with self._starting:
            threads = frozenset(self._threads)
        return threads

    def _alive(self) -> list[threading.Thread]:
        return [thread for thread in self.threads() if thread.is_alive()]

    # Starting

    def _start_worker(self) -> None:
        """Start one more worker if one is wanted. Raises what `Thread.start` raises."""
        contract = Contract()
        try:
            with self._starting:
                with self._lock:
                    if not self.max_workers > self._serving < self._load:
                        return
                    contract.holds = True
                    self._serving += 1
                name = f"{self.name}_{self._started}"
                thread = threading.Thread(target=_serve, args=(self, contract), name=name, daemon=False)
                self._threads = {thread, *self._alive()}
                thread.start()
                self._started += 1
        except BaseException:
            try:
                self._end(contract, unless_begun=True)
            except BaseException:  # interrupted again
                self._end(contract, unless_begun=True)
                raise
            raise

    def begin(self, contract: Contract) -> bool:
        """This thread serves from now on. False if an interrupt has struck while it was started: then it never does."""
        with self._lock:
            contract.begun = True
            return contract.holds

    def _end(self, contract: Contract, unless_begun: bool = False) -> None:
        with self._lock:
            if contract.holds and not (unless_begun and contract.begun):
                contract.holds = False
                self._serving -= 1

    def _discount(self, job: Job[Any]) -> None:
        with self._lock:
            if job.counted:
                job.counted = False
                self._load -= 1

    def _forget(self, job: Job[Any]) -> None:
        """The job was not submitted."""
        job.future.job = None
        self._discount(job)

    def withdraw(self, subqueue: SubQueue[Ticket], job: Job[Any], left: list[Job[Any]] | None = None) -> bool:
        """Take `job` out of its lane; `left` has it then, also when an interrupt ends this."""
        if left is None:
            left = []
        try:
            with self._lock:
                line = self._lines.get(subqueue)
                if line is not None:
                    line.leave_locked(job, left)
            if left:
                self._withdrawn(subqueue, job)
        except BaseException:
            if left:
                self._withdrawn(subqueue, job)
            raise
        return bool(left)

    def _withdrawn(self, subqueue: SubQueue[Ticket], job: Job[Any]) -> None:
        """A job has left its lane without being run. May be repeated."""
        self._discount(job)
        subqueue._wake_putter()
        if subqueue in self._closing:
            self._retire_if_done(subqueue)

    def _retire_if_done(self, subqueue: SubQueue[Ticket]) -> None:
        """Let go of a lane that was closed and is done. Every thread that ends a job of it calls this; one does it.

        One that passes accepts jobs still, so it leaves in one step with the look whether it has any.
        """
        left = subqueue.statistics()
        if left.size or left.in_flight:
            return
        ending = self._closing.get(subqueue)
        if ending is not None and ending.is_passing and not self.queue._remove_unused(subqueue):
            return
        with self._lock:
            ending = self._closing.pop(subqueue, None)
            if ending is None:
                return
            ending.begun = True
            self._lines.pop(subqueue, None)
        if not ending.is_passing:
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
            subqueue, ticket = take[self.queue, True, None]
            job = None
            try:
                try:
                    job = ticket[0]
                    del ticket[0]
                except IndexError:  # it brings no job of its own
                    job = self._first(subqueue)
                    if job is None:  # it was cancelled meanwhile
                        continue
                if (watcher := self.watcher) is not None:
                    watcher.began(subqueue.key, job)
                job.run()
            except BaseException as error:
                if job is not None:
                    job.refuse(error)  # no thread waits for ever because of our mistake
                raise
            finally:
                subqueue.task_done()  # only now is the job's place among the running ones free
                if job is not None:
                    self._discount(job)
                if subqueue in self._closing:
                    self._retire_if_done(subqueue)
                del subqueue, job  # an idle worker keeps no job alive
            if share is not None:
                share -= 1

    def _first(self, subqueue: SubQueue[Ticket]) -> Job[Any] | None:
        with self._lock:
            job = self._lines[subqueue].first_locked()
        return job

    def initialize(self) -> bool:
        """Run the initializer in this thread; if it fails, break the workers and refuse all that waits."""
        if self._initializer is None:
            return True
        try:
            self._initializer(*self._initargs)
        except BaseException:
            LOGGER.critical("Exception in initializer:", exc_info=True)
            self._break("A thread initializer failed, the thread pool is not usable anymore")
            return False
        return True

    def leave(self, contract: Contract, replace: bool) -> None:
        """This thread serves no more. With `replace`, another one does if there is something to do."""
        self._end(contract)
        if replace:
            try:
                self._start_worker()
            except Exception:
                LOGGER.critical("no thread could be started in place of %s", _my_name(), exc_info=True)

    def _break(self, reason: str) -> None:
        with self._lock:
            self._broken = reason
            self._shutdown = True
        self.shutdown()
        for subqueue in self._subqueues():
            for job in self._waiting(subqueue):
                if job.withdraw():
                    job.refuse(BrokenThreadPool(reason))

    def after_fork_in_child(self) -> None:
        """The threads stayed in the parent, and so did the jobs."""
        self._starting = _sync.Guard()
        self._lock = _sync.Guard()
        self._threads = set()
        self._shutdown = True
        self._broken = (
            f"executor {self.name!r} was made before this process was forked and has no threads here; "
            "make a new one in the child"
        )


class Ending:
    """How a lane that was closed comes to its end: once, however often and by however many it is closed."""

    __slots__ = ("begun", "gone", "is_passing")

    def __init__(self, is_passing: bool = False) -> None:
        self.is_passing: bool = is_passing  # it was not closed, and ends when it has no job any more
        # Guarded by the workers' lock; once it is True the lane is no longer, and never again, in `_closing`.
        self.begun: bool = False
        self.gone: threading.Event = threading.Event()


class Contract:
    """Between the workers and one thread: it `holds` from the thread's start on, and as long `_serving` counts it."""

    __slots__ = ("begun", "holds")

    def __init__(self) -> None:
        self.begun: bool = False  # by the thread; both are guarded by the workers' lock
        self.holds: bool = False


class Keeper:
    """Ends the workers when the executor and all its lanes, which hold this, are gone."""

    def __init__(self, workers: Workers) -> None:
        weakref.finalize(self, workers.shutdown)


def _serve(workers: Workers, contract: Contract) -> None:
    """A worker's life. `workers` is all it holds: neither executor nor lane."""
    if not workers.begin(contract):
        return
    replace = False
    try:
        if workers.initialize():
            replace = True
            workers.serve()
    except ShutDown:
        replace = False  # drained: nothing can come any more
    except BaseException:
        LOGGER.critical("worker %s died and is replaced", _my_name(), exc_info=True)
    finally:
        workers.leave(contract, replace)


def _my_name() -> str:
    return threading.current_thread().name


_all_workers: Alive[Workers] = Alive()
_exiting = False  # set once, before all are counted: those made later admit nothing


def _finish_at_exit() -> None:
    """Run what is queued and join all workers, before the interpreter waits for threads that would not end."""
    global _exiting
    _exiting = True
    every = list(_all_workers)
    for workers in every:
        workers.shutdown()
    for workers in every:
        workers.join()


def _forget_threads_in_child() -> None:
    for workers in _all_workers:
        workers.after_fork_in_child()


# Private, and the only hook that runs before the interpreter joins non-daemon threads; `concurrent.futures` uses
# it too. docs/decisions/0201-exit-hook.md has the alternatives.
try:
    threading._register_atexit(_finish_at_exit)  # type: ignore[attr-defined]
except RuntimeError:  # the interpreter is past that point already, and this thread outlives it
    _exiting = True
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads_in_child)
