"""The files of a lane, one at a time: a million of them pass through without being held.

Promise     Each file that matches one of the lane's globs is yielded exactly once per scan, however many globs
            match it, and whatever is passed over is counted with an example, never silently dropped.
State       One open directory per level of the tree, and at most `_SLICE` names of each.
Order       Names are sorted in slices of `_SLICE`: directories with fewer entries come in order.
Symlinks    A named component follows them, `**` does not: a link to a parent would never end.
Assumes     Hadoop's rule for hidden files: readers of Spark ignore names that start with `_` or `.`, without an
            error, so such a file is passed over unless the format is `paths`.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path

from ._items import FileSeen, Lane

# 1,000 names of a directory are a few hundred kB: enough to sort nearly every real directory as a whole.
_SLICE = 1000

_MAGIC = re.compile(r"[*?\[]")

Parts = tuple[str, ...]


@dataclass(slots=True)
class PassedOver:
    """What a scan did not yield, by reason: how many, and one of them."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, path: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.examples.setdefault(reason, path)

    def sentences(self) -> list[str]:
        """`passed over 3 files: hidden from Spark ... (for example a/_b.csv)`, a sentence per reason."""
        return [
            f"passed over {count}: {reason}, for example {self.examples[reason]!r}"
            for reason, count in self.counts.items()
        ]


def scan(lane: Lane, base: Path, passed_over: PassedOver, avoid: Collection[Path] = frozenset()) -> Iterator[FileSeen]:
    """The lane's files, lazily. The directories in `avoid` (the output's) are not entered."""
    top, patterns = common_root([absolute(pattern, lane.root) for pattern in lane.globs])
    walk = _Walk(lane, str(base), passed_over, frozenset(map(str, avoid)))
    yield from walk.directory(top, _closure(patterns))


def fixed_root(pattern: str) -> tuple[Path, Parts]:
    """The directory part of an absolute glob that has no wildcard, and the components after it."""
    parts = Path(pattern).parts
    first = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), len(parts) - 1)
    return Path(*parts[:first]), parts[first:]


def directories(pattern: str, exclude: tuple[str, ...]) -> list[Path]:
    """The directories that match an absolute glob, sorted."""
    root, rest = fixed_root(pattern)
    found = [root]
    for part in rest:
        found = [
            Path(entry)
            for parent in found
            for entry in _listing(str(parent))
            if entry.is_dir() and _matches(entry.name, part) and not _excluded(entry.name, exclude)
        ]
    return sorted(found)


def common_root(patterns: list[str]) -> tuple[str, list[Parts]]:
    """One directory from which every glob can be walked, and each glob's components from there."""
    roots = [str(fixed_root(pattern)[0]) for pattern in patterns]
    top = os.path.commonpath(roots)
    depth = len(Path(top).parts)
    return top, [Path(pattern).parts[depth:] for pattern in patterns]


class _Walk:
    """A walk that carries, into each directory, what is left of every glob that can still match there."""

    def __init__(self, lane: Lane, base: str, passed_over: PassedOver, avoid: frozenset[str]) -> None:
        self._lane = lane
        self._base = base
        self._passed_over = passed_over
        self._avoid = avoid

    def directory(self, path: str, patterns: frozenset[Parts]) -> Iterator[FileSeen]:
        try:
            entries = os.scandir(path)
        except OSError as error:
            self._passed_over.add(f"directory not readable ({error.strerror})", path)
            return
        with entries:
            while names := sorted(islice(entries, _SLICE), key=lambda entry: entry.name):
                for entry in names:
                    yield from self._entry(entry, patterns)

    def _entry(self, entry: os.DirEntry[str], patterns: frozenset[Parts]) -> Iterator[FileSeen]:
        if _excluded(entry.name, self._lane.exclude):
            return
        matching = [rest for rest in patterns if _matches(entry.name, rest[0])]
        if not matching:
            return
        if entry.is_dir():
            below = self._below(entry, matching)
            if below and entry.path not in self._avoid:
                yield from self.directory(entry.path, below)
        elif any(len(rest) == 1 and rest[0] != "**" for rest in matching):
            seen = self._file(entry)
            if seen is not None:
                yield seen

    def _below(self, entry: os.DirEntry[str], matching: list[Parts]) -> frozenset[Parts]:
        linked = entry.is_symlink()
        left = [rest if rest[0] == "**" else rest[1:] for rest in matching if not (linked and rest[0] == "**")]
        return _closure([rest for rest in left if rest])

    def _file(self, entry: os.DirEntry[str]) -> FileSeen | None:
        path = os.path.relpath(entry.path, self._base) if self._is_below_base(entry.path) else entry.path
        if self._lane.format != "paths" and entry.name.startswith(("_", ".")):
            self._passed_over.add("Spark ignores names that start with '_' or '.'", path)
            return None
        try:
            path.encode()
            status = entry.stat()
        except UnicodeEncodeError:
            self._passed_over.add("the name is not UTF-8", os.fsencode(path).decode("utf-8", "backslashreplace"))
            return None
        except OSError as error:
            self._passed_over.add(f"file not readable ({error.strerror})", path)
            return None
        return FileSeen(path, status.st_size, status.st_mtime_ns)

    def _is_below_base(self, path: str) -> bool:
        return path.startswith(self._base + os.sep)


def _closure(patterns: list[Parts]) -> frozenset[Parts]:
    """The patterns, and what each is without its leading `**`: those may stand for no directory at all."""
    closed: set[Parts] = set()
    for rest in patterns:
        closed.add(rest)
        while rest[0] == "**" and len(rest) > 1:
            rest = rest[1:]
            closed.add(rest)
    return frozenset(closed)


def _matches(name: str, part: str) -> bool:
    """As in `glob`: a wildcard does not match a leading dot."""
    if name.startswith(".") and not part.startswith("."):
        return False
    return part == "**" or _compiled(part).match(name) is not None


@lru_cache(maxsize=1024)
def _compiled(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))


def _excluded(name: str, exclude: tuple[str, ...]) -> bool:
    return any(_compiled(part).match(name) is not None for part in exclude)


def _listing(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []


def absolute(pattern: str, root: Path) -> str:
    """The glob, made absolute: wildcards in the name of the root itself are taken literally."""
    if pattern.endswith("**"):
        pattern += "/*"
    return os.path.normpath(os.path.join(glob.escape(str(root)), pattern))
