"""The jobs that wait in one lane, in the order of their submits.

Promise     A job leaves from wherever it stands, at the same cost however many wait, and its place is free then.
State       The sub-queue holds a ticket for each job that waits: it bounds the lane and gives it its turns. The
            workers' lock guards `_jobs`: the jobs whose tickets stand for any of them, in their order. The thread that
            removes a job from a ticket has it.
            A ticket brings its own job until a cancel comes. The cancel enters the jobs of all tickets into `_jobs`;
            from then on each of these tickets is worth one of these jobs, the first one for a worker that takes it.
            So a job that leaves from the middle takes the ticket at the head along.
            Invariants: tickets without a job of their own stand before those with one. There are no more jobs in
            `_jobs` than tickets without one, those that a worker has taken and not used included.
Lock order  worker lock -> the locks of the multi-queue.
Membership  1. A worker takes the last ticket; 2. its job is cancelled; 3. the worker finds no job, and takes on.
Hazards     A job and a ticket leave in one step of the engine, so that step is a method of its sub-queue. Of a worker
            that takes a ticket and a cancel that enters its job at the same time one has the job; the other finds
            the ticket empty, and the worker then asks for the first job.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, TypeAlias

from ._executor_job import Job
from ._sub_queue import SubQueue

# The right of a worker to run one job of a lane, and that job, until it is entered, taken or called off.
Ticket: TypeAlias = list[Job[Any]]


class WaitingLine:
    """The jobs that wait in the lane of `subqueue`."""

    __slots__ = ("_jobs", "subqueue")

    def __init__(self, subqueue: SubQueue[Ticket]) -> None:
        self.subqueue = subqueue
        self._jobs: OrderedDict[Job[Any], None] = OrderedDict()  # a dict looks for its first one past those that left

    def first_locked(self) -> Job[Any] | None:
        """Take a job out for a worker that has taken a ticket without one; None when the last one was cancelled."""
        return self._jobs.popitem(last=False)[0] if self._jobs else None

    def leave_locked(self, job: Job[Any], left: list[Job[Any]]) -> None:
        """Take `job` out if it waits, append it to `left`, and give its place free."""
        self.subqueue._leave_line(self._jobs, job, left)

    def jobs_locked(self) -> list[Job[Any]]:
        """The jobs that wait."""
        self.subqueue._enter_line(self._jobs)
        return list(self._jobs)

    def check_invariants_locked(self) -> None:
        """Raise AssertionError when jobs and tickets contradict each other. For tests, with nothing under way."""
        entered = [not ticket for ticket in self.subqueue]
        assert entered == sorted(entered, reverse=True), "tickets with a job of their own are the last"
        assert len(self._jobs) <= entered.count(True) + self.subqueue.in_flight, "every job that waits has a ticket"
        assert all(job.counted for job in self._jobs), "every job that waits is counted"
