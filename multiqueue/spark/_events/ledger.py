"""Which of the values that tasks sent are handed out: each once, however often its task ran.

What counts is the partition and the number of a value: a stage that is run again starts its attempts at 0, and an
executor that was killed can leave a Python worker behind that goes on sending. A number that is missing raises.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Literal, NamedTuple

from .._backend.errors import TaskEventsError
from .sender import Chunk

SPOOL_IN_MEMORY = 1 << 20  # bytes of a run that are kept in memory; what is more goes to a file

Commit = Literal["task", "row"]


class TaskEvent(NamedTuple):
    """A value that a task sent: which partition's, and its number in it from 0."""

    partition: int
    sequence: int
    value: Any


@dataclass(slots=True)
class _Sent:
    """How many values came, and with commit="task" the bodies of their messages, a line each."""

    count: int = 0
    bodies: IO[bytes] = field(default_factory=lambda: tempfile.SpooledTemporaryFile(SPOOL_IN_MEMORY))  # noqa: SIM115


class Ledger:
    """One thread's. With commit="row" all runs of a partition count as one, as they must give the same values."""

    def __init__(self, commit: Commit) -> None:
        self.duplicates: int = 0
        self.handed_out: int = 0
        self.finished: set[int] = set()  # by the first end
        self._by_row = commit == "row"
        self._sent: dict[int, dict[str, _Sent]] = {}  # by partition and run; none of a finished partition

    def take(self, chunk: Chunk) -> Iterator[TaskEvent]:
        """The values that a message lets be handed out. To be iterated to its end before the next `take`."""
        if chunk.partition in self.finished:
            self.duplicates += chunk.count
            return
        runs = self._sent.setdefault(chunk.partition, {})
        run = "" if self._by_row else chunk.run
        sent = runs.get(run) or runs.setdefault(run, _Sent())
        if chunk.first > sent.count:
            raise TaskEventsError(
                f"values {sent.count} to {chunk.first - 1} of partition {chunk.partition} were lost on the way: the "
                "broker dropped messages of the queue; look for a policy or an operator that purges or expires them, "
                "and run it again"
            )
        known = min(sent.count - chunk.first, chunk.count)
        self.duplicates += known
        sent.count += chunk.count - known
        if self._by_row:
            yield from self._events(chunk.partition, chunk.first + known, json.loads(chunk.body)[known:])
        else:
            sent.bodies.write(chunk.body + b"\n")
        if not chunk.is_end:
            return
        if (count := chunk.first + chunk.count) < sent.count:
            raise TaskEventsError(
                f"partition {chunk.partition} gave {sent.count} values in one run and {count} in another; "
                'commit="row" needs tasks that give the same values each time: use commit="task"'
            )
        self.finished.add(chunk.partition)
        self.duplicates += sum(each.count for each in runs.values() if each is not sent)
        first = 0
        sent.bodies.seek(0)
        for body in sent.bodies:
            values = json.loads(body)
            yield from self._events(chunk.partition, first, values)
            first += len(values)
        self._drop(chunk.partition)

    def close(self) -> None:
        """Drop values that were not handed out."""
        for partition in list(self._sent):
            self._drop(partition)

    def _events(self, partition: int, first: int, values: list[Any]) -> Iterator[TaskEvent]:
        self.handed_out += len(values)
        for sequence, value in enumerate(values, first):
            yield TaskEvent(partition, sequence, value)

    def _drop(self, partition: int) -> None:
        for sent in self._sent.pop(partition).values():
            sent.bodies.close()
