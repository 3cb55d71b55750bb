"""Chunks: runs of numbered messages, and which of them a batch needs. No file and no socket.

Promise     Numbers rise, and none is in two chunks. A hole is where data was lost: told, not skipped in silence.
Sealed      A payload travels with its length and its checksum, so that damage is an error and never other data.
Who runs    One thread.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import DataLoss

MAGIC = b"mqspool1"
_HEADER = struct.Struct(f">{len(MAGIC)}sIQ")  # magic, CRC-32 and length of the payload


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` messages from number `first` on, with bodies of `size_bytes` together."""

    first: int
    count: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` messages of a chunk, after the first `skip`."""

    chunk: Chunk
    skip: int
    count: int


class ChunkList:
    """The chunks that are held, oldest first, and the number that the next message gets."""

    def __init__(self, chunks: Iterable[Chunk] = ()) -> None:
        # Invariant: in rising order, not overlapping. Holes only where data was lost.
        self._chunks = sorted(chunks, key=_first)
        # Invariant: not below the last chunk's end.
        self._end = self._chunks[-1].end if self._chunks else 0

    @property
    def first(self) -> int:
        """The number of the oldest message that is held; `end` when there is none."""
        return self._chunks[0].first if self._chunks else self._end

    @property
    def end(self) -> int:
        """The number that the next message gets."""
        return self._end

    def __len__(self) -> int:
        return len(self._chunks)

    def all(self) -> list[Chunk]:
        """Every chunk, oldest first."""
        return list(self._chunks)

    def add(self, chunk: Chunk) -> None:
        """A chunk is held, from number `end` on."""
        assert chunk.first >= self._end
        self._chunks.append(chunk)
        self._end = chunk.end

    def reach(self, number: int) -> None:
        """Give the next message this number, if it is above `end`."""
        self._end = max(self._end, number)

    def dispensable(self, below: int) -> Chunk | None:
        """The oldest chunk, if all of it is before number `below`. Not the last one: it says which number is next."""
        if len(self._chunks) > 1 and self._chunks[0].end <= below:
            return self._chunks[0]
        return None

    def drop_first(self) -> None:
        """The oldest chunk is held no longer."""
        del self._chunks[0]

    def held(self, start: int) -> tuple[int, int]:
        """How many messages there are from number `start` on, and the bytes of their bodies, whole chunks for those."""
        later = [chunk for chunk in self._chunks if chunk.end > start]
        return sum(chunk.end - max(chunk.first, start) for chunk in later), sum(chunk.size_bytes for chunk in later)

    def position(self, start: int, messages: int | None, size_bytes: int | None) -> int:
        """Where a batch from number `start` on ends, of at most so many messages and bytes; None: no bound.

        Bytes are counted by chunks, and the first chunk is taken at any size.
        """
        end, bytes_left = start, size_bytes
        for chunk in self._chunks:
            if chunk.end <= start:
                continue
            if bytes_left is not None:
                if end > start and chunk.size_bytes > bytes_left:
                    break
                bytes_left -= chunk.size_bytes
            end = chunk.end
            if messages is not None and end - start >= messages:
                return start + messages
        return end

    def pieces(self, start: int, end: int, where: str, *, lossy: bool = False) -> list[Piece]:
        """The pieces of chunks with the messages from number `start` to before `end`; `where` says whose list it is.

        Raises:
            DataLoss: some of them are not there. With `lossy` those that are there are returned instead.
        """
        found = []
        for chunk in self._chunks:
            begin, stop = max(chunk.first, start), min(chunk.end, end)
            if begin < stop:
                found.append(Piece(chunk, begin - chunk.first, stop - begin))
        missing = end - start - sum(piece.count for piece in found)
        if missing > 0 and not lossy:
            raise DataLoss(
                f"{missing} of the {end - start} messages from {start} on are not in {where}, which holds {self.first} "
                f"to {self._end}; restore it, or give the query a new checkpoint, or go on without them by "
                "failOnDataLoss=false"
            )
        return found

    def check_invariants(self) -> None:
        """Raise AssertionError when the list contradicts itself. For tests."""
        assert all(a.end <= b.first for a, b in zip(self._chunks, self._chunks[1:], strict=False)), self._chunks
        assert not self._chunks or self._end >= self._chunks[-1].end


def seal(payload: bytes) -> bytes:
    """A payload that `unseal` recognizes."""
    return _HEADER.pack(MAGIC, zlib.crc32(payload), len(payload)) + payload


def unseal(what: object, data: bytes) -> bytes:
    """The payload of sealed data; `what` is its name in the error.

    Raises:
        DataLoss: it is not what was sealed.
    """
    payload = data[_HEADER.size :]
    if len(data) >= _HEADER.size:
        magic, checksum, length = _HEADER.unpack_from(data)
        if magic == MAGIC and length == len(payload) and checksum == zlib.crc32(payload):
            return payload
    raise DataLoss(f"{what} is damaged: {len(data)} bytes whose checksum is not theirs; restore it from a copy")


def _first(chunk: Chunk) -> int:
    return chunk.first
