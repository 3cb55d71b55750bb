"""Backlogs: messages between a queue and Spark, with numbers, to be read however often. Here: in a spool.

A queue gives a message once, Spark wants a batch again. What stands between is a spool on a disk, with any broker, or a
lease at a broker of ours (`_lease_backlog.py`). To the source they are the same.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol

from pyspark.sql.datasource import InputPartition

from .chunks import ChunkList
from .columns import to_payload
from .options import SourceOptions
from .queue_reader import QueueReader, Supply
from .spool import Slice, Spool


class SourcePartition(InputPartition, ABC):
    """The input of one task."""

    @abstractmethod
    def payloads(self, options: SourceOptions) -> Iterator[tuple[bytes, int, int]]:
        """Each chunk's payload, and which of its messages: how many after how many. In an executor; may block.

        Raises:
            StreamingError: they cannot be had; the types say why.
        """


class Backlog(Protocol):
    """The backlog as the source's one thread uses it. Every method may block for an attempt to connect."""

    kind: str
    """The name of the identity in an offset."""

    @property
    def id(self) -> str:
        """Tells these numbers from all others."""

    @property
    def where(self) -> str:
        """The holder of the messages, in words."""

    @property
    def chunks(self) -> ChunkList:
        """The messages that have numbers and were not trimmed, as far as is known."""

    @property
    def is_away(self) -> bool:
        """Is the broker away, as far as the last attempt tells?"""

    def ready(self) -> int | None:
        """How many messages wait in the queues, or here without a number; None while the broker is away."""

    def fetch(self, messages: int, size_bytes: float, timeout: float) -> int | None:
        """Take up to so many messages off the queues, for good and under the next numbers; waits for the first alone.

        Returns the bytes of their bodies; None when none came.
        """

    def trim(self, below: int) -> None:
        """Spark will not ask again for messages before this number. The last chunk stays all the same."""

    def partition(self, start: int, end: int, *, lossy: bool) -> SourcePartition:
        """The pieces for a task that reads from number `start` to before `end`. Raises as `ChunkList.pieces`."""

    def close(self) -> None:
        """Let others have it, and give back messages without a number."""


class SpoolPartition(SourcePartition):
    """Slices of a spool's chunks."""

    def __init__(self, slices: list[Slice]) -> None:
        super().__init__(None)
        self.slices = slices

    def payloads(self, options: SourceOptions) -> Iterator[tuple[bytes, int, int]]:
        for each in self.slices:
            yield each.payload(), each.piece.skip, each.piece.count


class Spooled:
    """Messages are written to the spool, then acknowledged.

    Raises:
        SpoolInUse: another process has the spool.
    """

    kind = "spool"

    def __init__(self, options: SourceOptions) -> None:
        assert options.spool is not None
        self._spool = Spool.open(options.spool)
        self._supply = Supply(options, QueueReader)

    @property
    def id(self) -> str:
        return self._spool.id

    @property
    def where(self) -> str:
        return f"spool {self._spool.id} in {self._spool.directory}"

    @property
    def chunks(self) -> ChunkList:
        return self._spool.chunks

    @property
    def is_away(self) -> bool:
        return self._supply.is_away

    def ready(self) -> int | None:
        return self._supply.ready()

    def fetch(self, messages: int, size_bytes: float, timeout: float) -> int | None:
        taken = self._supply.take(messages, size_bytes, timeout)
        if not taken:
            return None
        kept_bytes = sum(len(message.body) for _, message in taken)
        self._spool.append(to_payload(taken, self.chunks.end, time.time()), len(taken), kept_bytes)
        self._supply.ack(taken)
        return kept_bytes

    def trim(self, below: int) -> None:
        self._spool.trim(below)

    def partition(self, start: int, end: int, *, lossy: bool) -> SourcePartition:
        return SpoolPartition(self._spool.slices(start, end, lossy=lossy))

    def close(self) -> None:
        self._supply.close()
        self._spool.close()
