"""Which of the values that tasks sent are handed out: each once, however often its task ran.

Promise     Of each partition every sequence number is handed out once, in order. What counts is the partition and the
            number: a stage that is run again starts its attempts at 0, and an executor that was killed can leave a
            Python worker behind that goes on sending. A number that is missing raises; nothing is passed over.
            commit="row"   a value is handed out when it comes, unless its number was: all runs of a partition must give
                           the same values in the same order. One that ends with fewer than were handed out raises.
            commit="task"  values wait until their run has ended; the first run of a partition to end wins, and of all
                           others nothing is handed out.
State       One thread's. In commit="task" what waits is in temporary files, in memory up to 1 MiB for each run.
Membership  A partition is finished by the first "end". Its later events are counted as duplicates.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import IO, Any, Literal, NamedTuple, Protocol

from .._backend.errors import TaskEventsError
from .wire import Chunk

SPOOL_IN_MEMORY = 1 << 20  # bytes of a run that are kept in memory; what is more goes to a file
_FRAME = struct.Struct(">IQ")  # how many values, how many bytes


class TaskEvent(NamedTuple):
    """A value that a task sent: which partition's, and its number in it from 0."""

    partition: int
    sequence: int
    value: Any


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far a partition's task is, in the words of its last message: `done` of `total`, as the task counts.

    `attempt` is Spark's number of the run that said so; it may start at 0 again. `values` were handed out.
    """

    partition: int
    attempt: int
    done: int | None
    total: int | None
    values: int
    is_finished: bool


class EventLedger(Protocol):
    """The common part of both ways to commit."""

    duplicates: int
    handed_out: int

    def take(self, chunk: Chunk) -> Iterator[TaskEvent]:
        """The values that a message lets be handed out. To be iterated to its end before the next `take`."""

    def given(self, partition: int) -> int | None:
        """How many values a partition gave; None while it is not finished."""

    def close(self) -> None:
        """Drop what was not handed out."""


def ledger_for(commit: Literal["task", "row"]) -> EventLedger:
    return RowLedger() if commit == "row" else TaskLedger()


class RowLedger:
    """commit="row"."""

    def __init__(self) -> None:
        self.duplicates = 0
        self.handed_out = 0
        self._next: dict[int, int] = {}  # by partition: the number of the next value to hand out
        self._finished: set[int] = set()

    def take(self, chunk: Chunk) -> Iterator[TaskEvent]:
        following = self._next.setdefault(chunk.partition, 0)
        if chunk.kind == "values":
            known = chunk.count if chunk.partition in self._finished else following - chunk.first
            if known < 0:
                raise _gap(chunk, following)
            self.duplicates += min(known, chunk.count)
            if known < chunk.count:
                self._next[chunk.partition] = chunk.first + chunk.count
                self.handed_out += chunk.count - known
                yield from _events(chunk, known)
        elif chunk.kind == "end" and chunk.partition not in self._finished:
            if chunk.first > following:
                raise _gap(chunk, following)
            if chunk.first < following:
                raise TaskEventsError(
                    f"partition {chunk.partition} gave {following} values in one run and {chunk.first} in another; "
                    'commit="row" needs tasks that give the same values each time: use commit="task"'
                )
            self._finished.add(chunk.partition)

    def given(self, partition: int) -> int | None:
        return self._next[partition] if partition in self._finished else None

    def close(self) -> None:
        """Nothing waits here."""


@dataclass(slots=True)
class _Run:
    """The values that one run of a task has sent up to now."""

    count: int = 0
    file: IO[bytes] = field(default_factory=lambda: tempfile.SpooledTemporaryFile(SPOOL_IN_MEMORY))  # noqa: SIM115

    def add(self, chunk: Chunk) -> None:
        self.file.write(_FRAME.pack(chunk.count, len(chunk.body)))
        self.file.write(chunk.body)
        self.count += chunk.count

    def chunks(self, like: Chunk) -> Iterator[Chunk]:
        self.file.seek(0)
        first = 0
        while header := self.file.read(_FRAME.size):
            count, size = _FRAME.unpack(header)
            yield replace(like, first=first, count=count, body=self.file.read(size))
            first += count


class TaskLedger:
    """commit="task"."""

    def __init__(self) -> None:
        self.duplicates = 0
        self.handed_out = 0
        self._runs: dict[int, dict[str, _Run]] = {}  # by partition and sender; none of a finished partition
        self._given: dict[int, int] = {}  # by partition that is finished

    def take(self, chunk: Chunk) -> Iterator[TaskEvent]:
        if chunk.partition in self._given:
            self.duplicates += chunk.count
            return
        runs = self._runs.setdefault(chunk.partition, {})
        run = runs.get(chunk.sender)
        if run is None:
            run = runs[chunk.sender] = _Run()
        if chunk.kind in ("values", "end") and chunk.first != run.count:
            raise _gap(chunk, run.count)
        if chunk.kind == "values":
            run.add(chunk)
        elif chunk.kind == "end":
            yield from self._commit(chunk, run)

    def _commit(self, chunk: Chunk, winner: _Run) -> Iterator[TaskEvent]:
        runs = self._runs.pop(chunk.partition)
        self._given[chunk.partition] = winner.count
        for run in runs.values():
            if run is not winner:
                self.duplicates += run.count
                run.file.close()
        with winner.file:
            for each in winner.chunks(chunk):
                self.handed_out += each.count
                yield from _events(each, 0)

    def given(self, partition: int) -> int | None:
        return self._given.get(partition)

    def close(self) -> None:
        for runs in self._runs.values():
            for run in runs.values():
                run.file.close()
        self._runs.clear()


def _events(chunk: Chunk, known: int) -> Iterator[TaskEvent]:
    for sequence, value in enumerate(chunk.values()[known:], chunk.first + known):
        yield TaskEvent(chunk.partition, sequence, value)


def _gap(chunk: Chunk, following: int) -> TaskEventsError:
    return TaskEventsError(
        f"values {following} to {chunk.first - 1} of partition {chunk.partition} were lost on the way: the broker "
        "dropped messages of the queue; look for a policy or an operator that purges or expires them, and run it again"
    )
