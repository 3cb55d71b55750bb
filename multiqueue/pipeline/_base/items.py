"""The units of work: a lane, the files of one item, and what a job may know about it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .place import Place, scheme_of

STEP = "step://"
"""Before the name of a part in the path of what a step works on."""
MESSAGE = "message://"
"""Before the key of a message: its id, or a digest of its body."""

ERROR = "error"
"""A record that is not as configured is an error of its file."""
SET_ASIDE = "set aside"
"""It is written beside the output, and the others are read."""
ALLOW = "allow"
"""It is read as Spark reads it, with NULL for what was not understood."""

KEEP = "keep"
"""Files that are done stay where they are."""
MOVE = "move"

INOTIFY = "inotify"
"""Instead of a queue: Linux tells of files that come into local directories."""

INFER = "infer"
"""Instead of a lane's columns: they are inferred once and remembered."""
ADD = "add"
"""A new column is one of the lane's from then on."""
RESCUE = "rescue"
"""Its values are in the rescued column."""
IGNORE = "ignore"
"""It is not read."""


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A file as a scan met it. `path` is relative to the base directory when it lies below it, and an object's URL.

    Of a message `path` is `message://KEY`. A step's item has one that is no file either: `path` is `step://PART`,
    `size_bytes` the number of items it reads, and `mtime_ns` a digest of which those are. So changes are found in the
    same way for both.
    """

    path: str
    size_bytes: int
    mtime_ns: int

    @property
    def is_file(self) -> bool:
        """False for a message, or what a step reads."""
        return not self.path.startswith((STEP, MESSAGE))  # no path that was normalized has two slashes


@dataclass(frozen=True, slots=True)
class Payload:
    """A message as it came."""

    id: str
    """Its `message_id`, empty if it had none."""
    routing_key: str
    headers: Mapping[str, str]
    """Their values as text."""
    body: bytes


@dataclass(frozen=True, slots=True)
class PathColumn:
    """A column whose values are in the names of directories, as `dt=2026-01-01`."""

    name: str
    type: str
    """As Spark's DDL has it."""
    test: Callable[[Any], bool] | None = None
    """Whether the lane reads what has this value; None for all."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of a run: its input and its place in the schedule."""

    name: str
    root: Path | Place
    globs: tuple[str, ...]
    """Relative to `root`, or absolute."""
    source: str | None = None
    """The URL of the broker queue whose messages are its input, instead of files."""
    events: str | None = None
    """What tells of its files: the URL of a queue, or `INOTIFY`."""
    listing_s: float = 3600.0
    """With `events`: the seconds from one listing to the next."""
    prefetch: int = 100
    """How many messages of the queue may be under way."""
    section: str = ""
    """The name in the configuration, by which steps come after it."""
    exclude: tuple[str, ...] = ()
    format: str = "text"
    options: Mapping[str, str] = field(default_factory=dict)
    io: str = "auto"
    """Which way its files are read: `spark`, `python`, or what the cluster can."""
    schema: str | None = None
    """The columns, as DDL, or `INFER`."""
    schema_hints: str | None = None
    """With `INFER`: the types of some columns, as DDL."""
    on_new_columns: str | None = None
    """The treatment of unknown columns: `ADD`, `RESCUE`, `SET_ASIDE` or `IGNORE`; None where columns are not
    known, or have to be those of `schema`."""
    rescued_column: str | None = None
    """The column with what did not fit into the others."""
    path_columns: tuple[PathColumn, ...] = ()
    """The columns that the paths of its files have."""
    expect: str | None = None
    """The columns that the files must have, as DDL."""
    corrupt: str = ALLOW
    """The treatment of records that are not as configured: `ERROR`, `SET_ASIDE` or `ALLOW`."""
    allow_empty: bool = False
    """It may have no files, and the places in its globs need not exist."""
    batch: int = 1
    """The most files of an item."""
    batch_bytes: int | None = None
    """The most bytes of an item of several files."""
    target_s: float | None = None
    """How long a job of it is to take: its items are joined and divided for that (`batch = "auto"`); None for items as
    the scan has made them."""
    most_bytes: int | None = None
    """With `target_s`: the most bytes of an item of several files."""
    max_files_per_s: float | None = None
    max_bytes_per_s: float | None = None
    batch_s: float = 0.0
    """While following: how long files wait for others to fill a batch."""
    after: str = KEEP
    """The treatment of files that are done: `KEEP`, `MOVE` or `delete`."""
    forget_after_s: float | None = None
    """How long the state knows files after their item was done; None for ever."""
    forgets_for_good: bool = False
    """A file that may have been forgotten is taken for a new one, and not refused."""
    after_delay_s: float = 0.0
    after_place: Place | None = None
    """Where they are moved to."""
    priority: int = 0
    capacity: int = 16
    weight: int = 1
    max_in_flight: int | None = None
    pool: str | None = None
    timeout_s: float | None = None
    """How long a job of it may run."""


@dataclass(frozen=True, slots=True)
class Step:
    """A job over what others have put out. Its items wait and run in a lane of its name."""

    name: str
    after: tuple[str, ...]
    """Sections of lanes, and other steps."""
    each_lane: bool = False
    """An item per lane, instead of one."""
    allow_failed: bool = False
    schemas: Mapping[str, str] = field(default_factory=dict)
    """The columns of what is read, as DDL, by the name in `after`."""
    expect: str | None = None
    priority: int = 0
    max_in_flight: int | None = None
    pool: str | None = None
    timeout_s: float | None = None
    """How long a job of it may run."""

    def as_lane(self, base: Path) -> Lane:
        """How its items are scheduled."""
        return Lane(
            self.name,
            base,
            (),
            priority=self.priority,
            max_in_flight=self.max_in_flight,
            pool=self.pool,
            timeout_s=self.timeout_s,
        )


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
    messages: tuple[Payload, ...] = ()
    """The content of an item of a queue lane."""
    number: str | None = None
    """That of the commit to a table that was made, or was about to be made, for its last attempt."""
    redone: bool = False
    """It was done before, and its rows stay until an attempt replaces them."""

    @property
    def places(self) -> tuple[Place, ...]:
        """The files, absolute; none for an item of a step."""
        return tuple(self.place(seen) for seen in self.files if seen.is_file)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The local files, absolute."""
        return tuple(place.path for place in self.places if place.is_local)

    @property
    def urls(self) -> tuple[str, ...]:
        """The files as URLs: `file:///PATH`, `s3://BUCKET/KEY`."""
        return tuple(f"file://{place}" if place.is_local else place.text for place in self.places)

    def place(self, seen: FileSeen) -> Place:
        """Where one of its files is."""
        return place_seen(seen.path, self.base)

    def shown(self, place: Place) -> str:
        """One of its files, for people: as the scan named it."""
        below = place.is_local and place.path.is_relative_to(self.base)
        return repr(str(place.path.relative_to(self.base)) if below else place.text)

    @property
    def part(self) -> str | None:
        """For an item of a step: the lane that it is about, `""` for all; None for other items."""
        path = self.files[0].path
        return path.removeprefix(STEP) if path.startswith(STEP) else None

    @property
    def name(self) -> str:
        """The first file's path, and how many others there are."""
        more = len(self.files) - 1
        return shown(self.files[0].path) + (f" (+{more})" if more else "")

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files together."""
        return sum(seen.size_bytes for seen in self.files)


def place_seen(path: str, base: Path) -> Place:
    """The place of a `FileSeen`'s path."""
    # A path is normal as it was seen, so pathlib would say the same at ten times the cost.
    return Place(path if scheme_of(path) else os.path.join(base, path))


def shown(path: str) -> str:
    """The path of a `FileSeen` for people: of a step's, the lane that it is about."""
    return (path.removeprefix(STEP) or "all lanes") if path.startswith(STEP) else path


def item_id(lane: str, paths: Sequence[str]) -> str:
    """A name for these files of this lane that is the same in every run.

    It starts with a letter, so that no reader of the output takes the partition column for a number.
    Eighty bits: with a million items, two share an id with a probability of one in 10^12.
    """
    text = "\0".join((lane, *paths))
    return "i" + hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
