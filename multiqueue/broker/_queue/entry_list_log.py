"""The entry log: entries in arrival order, addressed by number, removed anywhere in constant time.

Promise     Numbers rise strictly and are never reused. `append_all`, `discard_all` and `get` cost the same for any
            length; `after` skips what was removed a chunk at a time.
State       Guarded by the lock of the queue.
Memory      8 bytes per slot. A chunk goes with its last living entry, so one survivor pins 2 KiB at most.
Source      Broker-J's OrderedQueueEntryList for the promise. It links nodes and scavenges the dead ones,
            which CPython pays dearly for; chunks need no scavenger.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from .entry import Entry

_CHUNK_BITS: Final = 8
_CHUNK: Final = 1 << _CHUNK_BITS  # 256 slots, 2 KiB
_SLOT_MASK: Final = _CHUNK - 1


class _Chunk:
    """Up to 256 consecutive slots. Invariant: live counts the slots that are not None."""

    __slots__ = ("live", "slots")

    def __init__(self) -> None:
        self.slots: list[Entry | None] = []
        self.live = 0


class EntryLog:
    """Entries with numbers from `first` upwards, which are their positions."""

    __slots__ = ("_chunks", "_numbers", "_size", "_tail", "next_number")

    def __init__(self, first: int = 0) -> None:
        # Invariant: _numbers is sorted, holds the keys of _chunks, and ends with the one of _tail.
        self._tail = _Chunk()
        self._chunks: dict[int, _Chunk] = {first >> _CHUNK_BITS: self._tail}
        self._numbers: list[int] = [first >> _CHUNK_BITS]
        self._size = 0
        self.next_number: int = first

    def __len__(self) -> int:
        return self._size

    def append_all(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            number = self.next_number
            tail = self._tail
            if len(tail.slots) == _CHUNK:
                tail = self._new_tail(number >> _CHUNK_BITS)
            tail.slots.append(entry)
            tail.live += 1
            self._size += 1
            self.next_number = number + 1
            entry.position = number

    def discard_all(self, entries: Iterable[Entry]) -> None:
        chunks = self._chunks
        for entry in entries:
            number = entry.position
            chunk = chunks[number >> _CHUNK_BITS]
            assert chunk.slots[number & _SLOT_MASK] is not None
            chunk.slots[number & _SLOT_MASK] = None
            chunk.live -= 1
            self._size -= 1
            if not chunk.live and chunk is not self._tail:
                self._drop(number >> _CHUNK_BITS)

    def get(self, number: int) -> Entry | None:
        """The entry with this number, None when it was removed or never there."""
        chunk = self._chunks.get(number >> _CHUNK_BITS)
        slot = number & _SLOT_MASK
        return chunk.slots[slot] if chunk is not None and slot < len(chunk.slots) else None

    def after(self, number: int) -> Entry | None:
        """The first entry with a higher number; -1 asks for the first of all."""
        number += 1
        if number >= self.next_number:
            return None
        chunk_number = number >> _CHUNK_BITS
        chunk = self._chunks.get(chunk_number)
        if chunk is not None:
            entry = chunk.slots[number & _SLOT_MASK]
            if entry is not None:
                return entry
        return self._search(chunk_number, number & _SLOT_MASK)

    def following(self, number: int, most: int) -> list[Entry]:
        """Entries with the next higher numbers, `most` numbers on at most. A chunk's end cuts them short."""
        chunk, slot = self._chunks[number >> _CHUNK_BITS], (number & _SLOT_MASK) + 1
        return [entry for entry in chunk.slots[slot : slot + most] if entry is not None]

    def __iter__(self) -> Iterator[Entry]:
        """The entries in order of number; the log must not change while this runs."""
        for number in self._numbers:
            for entry in self._chunks[number].slots:
                if entry is not None:
                    yield entry

    def check_invariants(self) -> None:
        assert self._numbers == sorted(self._chunks), "chunk numbers out of step"
        assert self._chunks[self._numbers[-1]] is self._tail
        for chunk in self._chunks.values():
            assert chunk.live == sum(entry is not None for entry in chunk.slots)
            assert chunk.live or chunk is self._tail, "an empty chunk was kept"
        assert self._size == sum(chunk.live for chunk in self._chunks.values())

    def _search(self, chunk_number: int, slot: int) -> Entry | None:
        index = bisect_left(self._numbers, chunk_number)
        for number in self._numbers[index : index + 2]:
            start = slot if number == chunk_number else 0
            slots = self._chunks[number].slots
            for position in range(start, len(slots)):
                entry = slots[position]
                if entry is not None:
                    return entry
        return None

    def _new_tail(self, chunk_number: int) -> _Chunk:
        full, full_number = self._tail, self._numbers[-1]
        self._tail = self._chunks[chunk_number] = _Chunk()
        self._numbers.append(chunk_number)
        if not full.live:
            self._drop(full_number)
        return self._tail

    def _drop(self, chunk_number: int) -> None:
        del self._chunks[chunk_number]
        del self._numbers[bisect_left(self._numbers, chunk_number)]
