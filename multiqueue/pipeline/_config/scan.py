"""The files of a lane, one at a time: a million of them pass through without being held.

The same walk goes through local directories and through the keys of stores, where `/` ends what is a directory's name.

Promise     Each file that matches one of the lane's globs is yielded exactly once per scan, however many globs
            match it, and each file that is passed over is counted, with an example of each kind. A directory that
            cannot be read differs from one that does not match: a directory or a file that refuses, a link to nothing,
            a name that is no text; and a glob's start that does not exist is reported.
State       One open directory per level of the tree, and at most `_SLICE` names of each; of a store, a page, and the
            first pages of some directories that come next, which threads ask for (`Storage.ahead`).
Order       Names are sorted in slices of `_SLICE`: directories with fewer entries come in order. In S3 and Google's
            store files come in the order of their keys, so a walk can go on behind any of them.
Symlinks    A named component follows them, `**` does not: a link to a parent would never end.
Assumes     Hadoop's rule for hidden files: readers of Spark ignore names that start with `_` or `.`, without an
            error, so such a file is passed over unless the format is `paths`.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
import re
import stat
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path

from .._base.items import FileSeen, Lane
from .._base.place import Place, joined, parts_of, scheme_of
from .._base.storage import IN_ORDER, Entry, Storage
from .path_columns import is_pruned

# 1,000 names of a directory are a few hundred kB: enough to sort nearly every real directory as a whole.
_SLICE = 1000

# Directories of a store that a lane's listing asks for before their turn.
_AHEAD = 16

_MAGIC = re.compile(r"[*?\[]")

Parts = tuple[str, ...]
Pages = Future[Iterator[list[Entry]]]


@dataclass(slots=True)
class PassedOver:
    """The paths that a scan did not yield, by reason: how many, and one of them."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    unread: str | None = None
    """Something that may be input and cannot be read: the first, and why."""
    missing: str | None = None
    """A place without wildcards that does not exist: the first."""
    matched: int = 0
    """Files that the scan has yielded."""

    def add(self, reason: str, path: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.examples.setdefault(reason, _shown(path))

    def refuse(self, reason: str, path: str) -> None:
        """Something cannot be read, for this reason."""
        self.add(reason, path)
        self.unread = self.unread or f"{_shown(path)!r}: {reason}"

    def include(self, other: PassedOver) -> None:
        """Count also what another scan has passed over."""
        for reason, count in other.counts.items():
            self.counts[reason] = self.counts.get(reason, 0) + count
            self.examples.setdefault(reason, other.examples[reason])

    def sentences(self) -> list[str]:
        """`passed over 3 files: hidden from Spark ... (for example a/_b.csv)`, a sentence per reason."""
        return [
            f"passed over {count}: {reason}, for example {self.examples[reason]!r}"
            for reason, count in self.counts.items()
        ]


_Entry = os.DirEntry[str] | Entry


def scan(
    lane: Lane,
    base: Path,
    passed_over: PassedOver,
    avoid: Collection[Path | Place] = frozenset(),
    storage: Storage | None = None,
    after: str = "",
) -> Iterator[FileSeen]:
    """The lane's files, lazily. The directories in `avoid` (the output's) are not entered.

    Of a store only those whose URL is behind `after`.
    """
    walk = _Walk(lane, str(base), passed_over, frozenset(map(str, avoid)), storage or Storage(), after)
    with contextlib.closing(walk):
        for top, patterns in roots([absolute(pattern, lane.root) for pattern in lane.globs]):
            if f"{top}/" < after and not after.startswith(f"{top}/") and scheme_of(top):
                continue
            for parts in patterns:
                walk.look_for(top, parts)
            if () in patterns:
                walk.name_directory(top)
                patterns = [parts for parts in patterns if parts]
            for seen in walk.directory(top, _closure(patterns), is_root=True) if patterns else ():
                passed_over.matched += 1
                yield seen


def is_in_order(lane: Lane) -> bool:
    """Whether a scan of the lane can go on behind any of its files: all come in the order of their keys.

    Not where columns of the path choose what is listed, nor beside local files. Azure's stores with directories and
    S3's directory buckets have an order of their own.
    """
    tops = [top for top, _ in roots([absolute(pattern, lane.root) for pattern in lane.globs])]
    return not any(column.test for column in lane.path_columns) and all(
        scheme_of(top) in IN_ORDER and not parts_of(top)[0].endswith("--x-s3") for top in tops
    )


def fixed_root(pattern: str) -> tuple[Place, Parts]:
    """The directory part of an absolute glob that has no wildcard, and the components after it."""
    parts = parts_of(pattern)
    first = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), len(parts) - 1)
    return Place(joined(parts[: max(first, 1)])), parts[max(first, 1) :]


def directories(pattern: str, exclude: tuple[str, ...], passed_over: PassedOver, storage: Storage) -> list[Place]:
    """The directories that match an absolute glob, sorted."""
    root, rest = fixed_root(pattern)
    found = [root]
    for depth, part in enumerate(rest):
        found = [
            Place(entry.path)
            for parent in found
            for names in _slices(parent.text, passed_over, storage, is_root=depth == 0)
            for entry in names
            if entry.name
            and _matches(entry.name, part)
            and not _excluded(entry.name, exclude)
            and _is_directory(entry, passed_over)
            and _is_text(entry.path, passed_over)
        ]
    return sorted(found, key=lambda place: place.parts)


def is_directory_of(place: Place, pattern: str, exclude: tuple[str, ...]) -> str | None:
    """The directory above this place that matches the glob, relative to where that starts; it need not be there."""
    root, rest = fixed_root(pattern)
    names = place.parts[len(root.parts) :]
    if not place.is_below(root) or len(names) <= len(rest):
        return None
    fits = all(_matches(name, part) and not _excluded(name, exclude) for name, part in zip(names, rest, strict=False))
    return "/".join(names[: len(rest)]) if fits else None


def fits(lane: Lane, place: Place, avoid: Collection[Place] = frozenset()) -> bool:
    """Whether a scan of the lane would yield a file at this place; the file need not be there."""
    if not place.name or (lane.format != "paths" and place.name.startswith(("_", "."))):
        return False
    for top, patterns in roots([absolute(pattern, lane.root) for pattern in lane.globs]):
        start = Place(top)
        if place.is_below(start) and place != start:
            return _leads_to(lane, start, place, _closure([parts for parts in patterns if parts]), avoid)
    return False


def _leads_to(lane: Lane, start: Place, place: Place, patterns: frozenset[Parts], avoid: Collection[Place]) -> bool:
    """Whether a walk from the start with these patterns comes to the place."""
    depth = len(start.parts)
    for name in place.parts[depth:]:
        if (_misread(name) and not place.is_local) or _excluded(name, lane.exclude):
            return False
        matching = [rest for rest in patterns if _matches(name, rest[0])]
        depth += 1
        if depth == len(place.parts):
            return any(len(rest) == 1 and rest[0] != "**" for rest in matching)
        left = [rest if rest[0] == "**" else rest[1:] for rest in matching]
        patterns = _closure([rest for rest in left if rest])
        if Place(joined(place.parts[:depth])) in avoid or is_pruned(lane.path_columns, name):
            return False
    return False


def roots(patterns: list[str]) -> list[tuple[str, list[Parts]]]:
    """The directories from which all globs can be walked, none below another, each with what is left of its globs."""
    starts = {pattern: fixed_root(pattern)[0].text for pattern in patterns}
    tops: list[str] = []
    for start in sorted(set(starts.values()), key=lambda start: f"{start}/"):
        if not any(start == top or start.startswith(top.rstrip(os.sep) + os.sep) for top in tops):
            tops.append(start)
    found: dict[str, list[Parts]] = {top: [] for top in tops}
    for pattern, start in starts.items():
        top = next(top for top in tops if start == top or start.startswith(top.rstrip(os.sep) + os.sep))
        found[top].append(parts_of(pattern)[len(parts_of(top)) :])
    return list(found.items())


class _Walk:
    """A walk that carries, into each directory, what is left of every glob that can still match there."""

    def __init__(
        self, lane: Lane, base: str, passed_over: PassedOver, avoid: frozenset[str], storage: Storage, after: str
    ) -> None:
        self._lane = lane
        self._base = base
        self._passed_over = passed_over
        self._avoid = avoid
        self._storage = storage
        self._after = after
        self._ahead: dict[str, Pages] = {}

    def look_for(self, top: str, parts: Parts) -> None:
        """Note the first part of a glob that has no wildcard and does not exist."""
        first = next((place for place, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
        place = Place(joined((*parts_of(top), *parts[:first])))
        if first and self._passed_over.missing is None and self._exists(Place(top)) and not self._exists(place):
            self._passed_over.missing = place.text

    def name_directory(self, path: str) -> None:
        """Note that a glob names a directory, and none of its files."""
        self._passed_over.add(f"a directory, and no file; its files are {path.rstrip('/')}/*", path)

    def _exists(self, place: Place) -> bool:
        """Whether it is there; what cannot be asked for is told by the walk."""
        try:
            return self._storage.exists(place)
        except OSError:
            return True

    def directory(self, path: str, patterns: frozenset[Parts], *, is_root: bool = False) -> Iterator[FileSeen]:
        # A slice is read before anything below it: what fails is this directory.
        ahead = self._ahead.pop(path, None)
        after = self._after_in(path)
        for names in _slices(path, self._passed_over, self._storage, is_root=is_root, ahead=ahead, after=after):
            entries = sorted(names, key=lambda entry: entry.key if isinstance(entry, Entry) else entry.name)
            coming = deque(one.path for one in entries if isinstance(one, Entry) and self._is_entered(one, patterns))
            for entry in entries:
                if coming:
                    self._ask_ahead(coming)
                yield from self._entry(entry, patterns)
                if coming and coming[0] == entry.path:
                    coming.popleft()

    def _after_in(self, path: str) -> str:
        """Behind which key in this directory of a store the walk goes on; in the directory of the last file, too."""
        if not self._after.startswith(f"{path}/"):
            return ""
        name, slash, _ = self._after[len(path) + 1 :].partition("/")
        return f"{name}." if slash else name  # "." is the character before "/"

    def _is_entered(self, entry: Entry, patterns: frozenset[Parts]) -> bool:
        matching = [rest for rest in patterns if _matches(entry.name, rest[0])] if entry.is_dir() and entry.name else []
        is_wanted = entry.path not in self._avoid and not _excluded(entry.name, self._lane.exclude)
        return is_wanted and bool(self._below(entry, matching))

    def _ask_ahead(self, coming: Iterable[str]) -> None:
        """Have threads ask for directories that come next, as many as may be asked for."""
        for path in islice(coming, _AHEAD):
            if path not in self._ahead and not self._after_in(path):
                pages = self._storage.ahead(Place(path))
                if pages is None:
                    return
                self._ahead[path] = pages

    def close(self) -> None:
        """Nothing more is listed."""
        for pages in self._ahead.values():
            self._storage.came(pages)

    def _entry(self, entry: _Entry, patterns: frozenset[Parts]) -> Iterator[FileSeen]:
        if _excluded(entry.name, self._lane.exclude) or (isinstance(entry, Entry) and self._is_behind(entry)):
            return
        matching = [rest for rest in patterns if _matches(entry.name, rest[0])]
        if not matching:
            return
        if isinstance(entry, Entry) and (why := _misread(entry.name)):
            self._passed_over.refuse(why, _url(entry))
            return
        if _is_directory(entry, self._passed_over):
            if any(len(rest) == 1 and not _MAGIC.search(rest[0]) for rest in matching):
                self.name_directory(entry.path)
            below = self._below(entry, matching)
            if below:
                yield from self.directory(entry.path, below)
        elif any(len(rest) == 1 and rest[0] != "**" for rest in matching):
            seen = self._file(entry)
            if seen is not None:
                yield seen

    def _is_behind(self, entry: Entry) -> bool:
        """Whether the walk went by it before."""
        return _url(entry) <= self._after and not self._after.startswith(f"{entry.path}/")

    def _below(self, entry: _Entry, matching: list[Parts]) -> frozenset[Parts]:
        """What is left of the globs in this directory; nothing where it is not to be entered."""
        if entry.path in self._avoid or is_pruned(self._lane.path_columns, entry.name):
            return frozenset()
        linked = entry.is_symlink()
        left = [rest if rest[0] == "**" else rest[1:] for rest in matching if not (linked and rest[0] == "**")]
        return _closure([rest for rest in left if rest])

    def _file(self, entry: _Entry) -> FileSeen | None:
        path = entry.path.removeprefix(self._base + os.sep)
        if self._lane.format != "paths" and entry.name.startswith(("_", ".")):
            self._passed_over.add("Spark ignores names that start with '_' or '.'", path)
            return None
        if isinstance(entry, Entry):
            return None if entry.status is None else FileSeen(path, entry.status.size_bytes, entry.status.mtime_ns)
        if not _is_text(path, self._passed_over):
            return None
        try:
            status = entry.stat()
        except FileNotFoundError:
            if entry.is_symlink():  # otherwise somebody has removed it in this moment
                self._passed_over.refuse("a link to nothing", path)
            return None
        except OSError as error:
            self._passed_over.refuse(f"file not readable ({error.strerror})", path)
            return None
        if not stat.S_ISREG(status.st_mode):
            self._passed_over.refuse("not a file but a pipe, a socket or a device", path)
            return None
        return FileSeen(path, status.st_size, status.st_mtime_ns)


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


def _url(entry: Entry) -> str:
    """By which a store's listing is in order."""
    return f"{entry.path}/" if entry.is_dir() else entry.path


def _misread(name: str) -> str:
    """Why keys of a store with this component are not read; empty where they are."""
    if "?versionId=" in name:
        return "keys with '?versionId=' are not read, for s3fs takes them for versions of other objects"
    return "" if name else "keys with '//' are not read, for Hadoop takes '//' for '/'"


def _excluded(name: str, exclude: tuple[str, ...]) -> bool:
    return any(_compiled(part).match(name) is not None for part in exclude)


def _slices(
    path: str,
    passed_over: PassedOver,
    storage: Storage,
    *,
    is_root: bool,
    ahead: Pages | None = None,
    after: str = "",
) -> Iterator[Sequence[_Entry]]:
    """The entries of a directory, a slice at a time; that it cannot be read is noted."""
    try:
        if scheme_of(path):
            yield from _pages(path, storage, is_root=is_root, ahead=ahead, after=after)
            return
        with os.scandir(path) as entries:
            while names := list(islice(entries, _SLICE)):
                yield names
    except FileNotFoundError:
        if is_root:  # otherwise somebody has removed it in this moment
            passed_over.add("the directory does not exist; make it, or correct the lane's files", path)
            passed_over.missing = passed_over.missing or path
    except OSError as error:
        passed_over.refuse(f"directory not readable ({error.strerror})", path)


def _pages(
    path: str, storage: Storage, *, is_root: bool, ahead: Pages | None, after: str
) -> Iterator[Sequence[_Entry]]:
    """The entries of what keys begin with, a page at a time.

    Raises:
        OSError: it cannot be listed; no key begins so, where a glob starts.
    """
    is_empty = not after
    try:
        pages = storage.pages(Place(path), after) if ahead is None else ahead.result()
    finally:
        if ahead is not None:
            storage.came(ahead)
    for page in pages:
        is_empty = is_empty and not page
        yield page
    if is_empty and is_root and len(parts_of(path)) > 1:
        raise FileNotFoundError


def _is_directory(entry: _Entry, passed_over: PassedOver) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # a link into what cannot be read
        passed_over.refuse(f"not readable ({error.strerror})", entry.path)
        return False


def _is_text(path: str, passed_over: PassedOver) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        passed_over.refuse("the name is not UTF-8", path)
        return False
    return True


def _shown(path: str) -> str:
    """The path, with what is not UTF-8 in it as `\\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def absolute(pattern: str, root: Path | Place) -> str:
    """The glob, made absolute: wildcards in the name of the root itself are taken literally."""
    if pattern.endswith("**"):
        pattern += "/*"
    if scheme_of(pattern):
        return pattern
    if scheme_of(str(root)) and not pattern.startswith("/"):
        return f"{glob.escape(str(root))}/{pattern}"
    return os.path.normpath(os.path.join(glob.escape(str(root)), pattern))
