"""What a disk may have after a power loss, made from a recording of what a process wrote.

A write is on the disk for certain when its file was synced after it. Until then any of its sectors of 512 bytes may
be there or not, whatever came before or after: dropped, torn, reordered. So may a change of a file's length. A name
that was made, changed or removed is certain when its directory was synced. A sync that failed is the last that the
disk heard of what it was to sync: as on Linux, the next one does not try it again, though a reader of the file finds it
there.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SECTOR = 512
_HEAD = struct.Struct("=cHQI")


class Event(NamedTuple):
    """One thing that the process did: see faulty_disk.c."""

    kind: str
    name: str
    offset: int
    data: bytes


def read_recording(file: Path, directory: Path) -> list[Event]:
    """The events, with names relative to the directory; SQLite's shared memory and our lock left out."""
    data = file.read_bytes()
    events, place = [], 0
    while place < len(data):
        kind, path_length, offset, length = _HEAD.unpack_from(data, place)
        place += _HEAD.size
        path = data[place : place + path_length].decode()
        place += path_length
        has_data = kind in b"wmn"
        content = data[place : place + length] if has_data else b""
        place += len(content)
        name = "" if kind == b"m" else str(Path(path).relative_to(directory))
        if not name.endswith(("-shm", "lock", "reserve")):
            events.append(Event(kind.decode(), name, offset, content))
    return events


@dataclass
class _File:
    """A file: what is certain, and what was done since."""

    certain: bytearray = field(default_factory=bytearray)
    pending: list[Event] = field(default_factory=list)
    is_named: bool = False  # it has a name on the disk for certain
    earlier: list[str] = field(default_factory=list)  # names that it may still have instead of its last

    def after_loss(self, chance: random.Random, keep: float) -> bytes:
        """What may be there: each pending sector with the probability `keep`."""
        content = bytearray(self.certain)
        for event in self.pending:
            if event.kind == "t":
                if chance.random() < keep:
                    _set_length(content, event.offset)
                continue
            for start in range(0, len(event.data), SECTOR):
                if chance.random() < keep:
                    _overwrite(content, event.offset + start, event.data[start : start + SECTOR])
        return bytes(content)

    def fail(self, chance: random.Random) -> None:
        """A sync failed: of what is pending some is there, and the rest will never be."""
        self.certain = bytearray(self.after_loss(chance, 0.5))
        self.pending = []

    def sync(self) -> None:
        for event in self.pending:
            if event.kind == "t":
                _set_length(self.certain, event.offset)
            else:
                _overwrite(self.certain, event.offset, event.data)
        self.pending = []


def _set_length(content: bytearray, length: int) -> None:
    del content[length:]
    content.extend(bytes(length - len(content)))


def _overwrite(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class Disk:
    """The files of one directory, as they are and as they may be after a loss."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._files: dict[str, _File] = {}
        self._removed: dict[str, _File] = {}  # their names may still be there

    def do(self, event: Event) -> None:
        """What the process did."""
        match event.kind:
            case "c":
                self._files[event.name] = _File()
            case "w" | "t":
                self._files.setdefault(event.name, _File()).pending.append(event)
            case "u":
                file = self._files.pop(event.name, None)
                if file is not None and file.is_named:
                    self._removed[event.name] = file
            case "n":
                self._rename(event.name, Path(event.data.decode()).name)
            case "f":
                if event.name in self._files:
                    self._files[event.name].fail(self._chance)
            case "s" if event.name == ".":
                self._removed = {}
                for file in self._files.values():
                    file.is_named = True
                    file.earlier = []
            case "s":
                if event.name in self._files:
                    self._files[event.name].sync()

    def _rename(self, old: str, new: str) -> None:
        file = self._files.pop(old)
        file.earlier.append(old)
        self._files[new] = file

    def after_loss(self, keep: float) -> dict[str, bytes]:
        """One of the states that the disk may be in: each pending sector is there with the probability `keep`."""
        state, chance = {}, self._chance
        for name, file in self._removed.items():
            if chance.random() < 0.5:
                state[chance.choice([name, *file.earlier])] = file.after_loss(chance, keep)
        for name, file in self._files.items():
            if file.is_named or chance.random() < 0.5:
                state[chance.choice([name, *file.earlier])] = file.after_loss(chance, keep)
        return state


def losses(events: list[Event], seed: int, count: int) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Power is lost at `count` moments of the recording: the number of events before it, and a state of the disk."""
    chance = random.Random(seed)
    moments = sorted(chance.choices(range(1, len(events) + 1), k=count))
    disk, done = Disk(chance), 0
    for moment in moments:
        while done < moment:
            disk.do(events[done])
            done += 1
        yield moment, disk.after_loss(chance.choice((0.0, 0.1, 0.5, 0.9, 1.0)))
