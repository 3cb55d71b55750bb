"""What is worked on: a lane, the files of one item, and what a job may know about it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A file as a scan met it. `path` is relative to the base directory when it lies below it."""

    path: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of a run: what it reads and how it is scheduled."""

    name: str
    root: Path
    globs: tuple[str, ...]
    """Relative to `root`, or absolute."""
    exclude: tuple[str, ...] = ()
    format: str = "text"
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None
    batch: int = 1
    priority: int = 0
    capacity: int = 16
    weight: int = 1
    max_in_flight: int | None = None
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One unit of work: the files that one Spark job reads and whose output appears as a whole.

    A job written in Python gets it as its third argument.
    """

    id: str
    """The same in every run; the output is `data/lane=LANE/item=ID`."""
    lane: str
    files: tuple[FileSeen, ...]
    base: Path
    """The directory that relative paths start from."""
    attempt: int = 0
    """1 for the first attempt; grows for ever, also after the item was put back."""
    tries: int = 0
    """Attempts that failed since the item was found, changed or put back."""
    seq: int = 0
    """Its number in the ledger."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, absolute."""
        return tuple(self.base / seen.path for seen in self.files)

    @property
    def name(self) -> str:
        """The first file's path, and how many others there are."""
        more = len(self.files) - 1
        return self.files[0].path + (f" (+{more})" if more else "")

    @property
    def size_bytes(self) -> int:
        return sum(seen.size_bytes for seen in self.files)


def item_id(lane: str, paths: Sequence[str]) -> str:
    """A name for these files of this lane that is the same in every run.

    It starts with a letter, so that no reader of the output takes the partition column for a number.
    Eighty bits: with a million items, two share an id with a probability of one in 10^12.
    """
    text = "\0".join((lane, *paths))
    return "i" + hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
