"""Reading and writing what lies at a place: local files by the operating system, objects of stores by fsspec.

Promise     The same questions for both: size and version, the first bytes, the lines, a listing in pages. Each error of
            a store or its library comes as an `OSError` whose `strerror` is one sentence without a secret; a missing
            object is a `FileNotFoundError`, one that is not allowed a `PermissionError`. Credentials come from
            `[storage.NAME]` or, where that says nothing, from the environment, as the store's own library reads it.
            Nothing here prints them, and no error has them.
Version     `Status.mtime_ns`. Stores tell when an object was written in whole seconds: the nanoseconds below the second
            are a digest of its etag, so an object of equal size that was written within the same second is another.
Threads     Any. One file system per section and scheme, made under a lock; fsspec's are safe to share, and keep no
            listing here. Many objects are asked for by threads that end with the call.
Listing     By each store's own call for a page: fsspec has none, and its listings of gs and abfss tell nothing of keys
            with `//`. `ahead` has a thread ask for the first page of the next listing: of all listings together,
            `_PAGES_AHEAD` pages are on their way or wait.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import hashlib
import itertools
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar

from ..._extras import needs
from ..._locks import Lock
from .errors import Unprepared
from .place import Place
from .small_objects import SmallObjects, Start
from .stores import StorageSection

T = TypeVar("T")
S = TypeVar("S")

FileSystem = Any
"""fsspec's `AbstractFileSystem`."""

PACKED = (".deflate", ".snappy", ".lz4", ".zst")
"""Spark unpacks these too; here is no codec for them."""

UNPACKED = (".gz", ".bz2")
"""These are unpacked here too."""

# Requests that are under way at once: a store takes tens of milliseconds for each.
_AT_ONCE = 16

# Entries of a listing, at most, that are in memory together; S3 gives no more at a time.
_PAGE = 1000

# A page takes the CPU of so many requests for one object each.
_WORTH_A_PAGE = 20

IN_ORDER = ("s3", "gs")
"""The schemes of stores whose listings are in the order of their keys, and can begin behind any."""

# A page of a thousand entries takes half a megabyte.
_PAGES_AHEAD = 32

_PIECE_BYTES = 4 << 20

# Packed in blocks of Hadoop's own: not as the programs do that have given the endings their names.
_IN_BLOCKS = (".snappy", ".lz4")

_PROTOCOLS = {"s3": ("s3", "s3fs"), "gs": ("gs", "gcsfs"), "abfss": ("abfs", "adlfs"), "az": ("abfs", "adlfs")}
"""fsspec's name of the scheme, and the module behind it."""

# Where the libraries tell the version of an object, and when it was written.
_ETAGS = ("ETag", "etag", "generation", "md5Hash")
_TIMES = ("LastModified", "last_modified", "updated", "mtime")


@dataclass(frozen=True, slots=True)
class Status:
    """A file or object as it is now; the two together tell whether it has changed."""

    size_bytes: int
    mtime_ns: int
    """When it was written; of an object the part below the second is a digest of its etag."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a listing; it answers as an `os.DirEntry` does."""

    name: str
    """Empty for keys that go on with a second slash."""
    place: Place
    status: Status | None
    """None for a directory: what several keys begin with."""

    @property
    def path(self) -> str:
        return self.place.text

    @property
    def key(self) -> str:
        """By which a store's entries are in order: keys below a directory go on with a slash."""
        return self.name if self.status is not None else f"{self.name}/"

    def is_dir(self) -> bool:
        return self.status is None

    def is_symlink(self) -> bool:
        return False


class Storage:
    """The files at places, by the sections `[storage.NAME]` of a configuration."""

    def __init__(self, sections: Mapping[str, StorageSection] | None = None) -> None:
        # The section with the longest URL comes first: it is the one that is meant.
        self._sections = sorted((sections or {}).values(), key=lambda one: -len(one.place.parts))
        self._lock = Lock()
        self._made: dict[tuple[str, str], SmallObjects] = {}
        self._pages_ahead = 0
        # Its threads begin when they are needed, and end with this object.
        self._askers = ThreadPoolExecutor(_AT_ONCE, "multiqueue-listing")

    def section(self, place: Place) -> StorageSection | None:
        """The section whose URL the place lies below; None where the environment has all there is."""
        return next((one for one in self._sections if place.is_below(one.place)), None)

    def fsspec(self, place: Place) -> tuple[str, dict[str, Any], str]:
        """fsspec's protocol, the arguments of its file system, secrets among them, and its path for the place."""
        section = self.section(place)
        arguments = {} if section is None else section.fsspec_arguments()
        key = place.text.partition("://")[2]
        if place.scheme == "abfss":
            container, _, rest = key.partition("@")
            account, _, path = rest.partition("/")
            arguments.setdefault("account_name", account.partition(".")[0])
            key = f"{container}/{path}".rstrip("/")
        return _PROTOCOLS[place.scheme][0], arguments, key

    def filesystem(self, place: Place) -> tuple[FileSystem, str]:
        """fsspec's file system for a place in a store, and its path there.

        Raises:
            Unprepared: the package for such stores is not installed.
        """
        objects, key = self._objects(place)
        return objects.fs, key

    def _objects(self, place: Place) -> tuple[SmallObjects, str]:
        protocol, arguments, key = self.fsspec(place)
        section = self.section(place)
        name = ("" if section is None else section.url, place.parts[0])
        with self._lock:
            if name not in self._made:
                self._made[name] = SmallObjects(new_filesystem(place.scheme, protocol, arguments))
            return self._made[name], key

    # What is there

    def status(self, place: Place) -> Status:
        """Size and version of a file or object.

        Raises:
            OSError: it is not there, or cannot be asked for.
        """
        if place.is_local:
            found = os.stat(place.text)
            return Status(found.st_size, found.st_mtime_ns)
        with self._telling(place):
            fs, key = self.filesystem(place)
            info = fs.info(key)
            if info["type"] != "file":
                raise FileNotFoundError
            return _status(info)

    def statuses(self, places: Sequence[Place]) -> list[Status | OSError]:
        """Each as `status` gives it, or the error; objects are asked for at once, those of one page by a listing."""
        found: dict[Place, Status | OSError] = {}
        if not _are_local(places):
            found.update(self._listed(places))
        rest = [place for place in places if place not in found]
        found.update(zip(rest, self.each(self.status, rest, is_local=_are_local(rest)), strict=True))
        return [found[place] for place in places]

    def _listed(self, places: Sequence[Place]) -> dict[Place, Status]:
        """The objects of which one page of a listing has many, where a listing can begin in the middle."""
        found: dict[Place, Status] = {}
        by_parent: dict[Place, set[str]] = {}
        for place in places:
            if place.scheme in IN_ORDER:
                by_parent.setdefault(place.parent, set()).add(place.name)
        for parent, wanted in by_parent.items():
            names = sorted(wanted)
            while len(names) >= _WORTH_A_PAGE:
                with contextlib.suppress(OSError):  # it may be that only listings are not allowed
                    page = next(self.pages(parent, names[0][:-1]), [])
                    there = {one.name: one.status for one in page if one.status is not None and one.name in wanted}
                    found.update((parent / name, status) for name, status in there.items())
                    if len(there) >= _WORTH_A_PAGE:
                        names = [name for name in names if name > max(there)]
                        continue
                break
        return found

    def starts_of(
        self, places: Sequence[Place], most_bytes: int, versions: dict[Place, Status] | None = None
    ) -> list[bytes | OSError | None]:
        """Each as `start_of` gives it, or the error; objects are read at once.

        `versions` gets those that the bytes are of, where the answer that brought them tells it.
        """
        found: dict[Place, bytes | OSError | None] = {}
        for place, (start, headers) in self._asked(places, most_bytes):
            found[place] = start
            if versions is not None and (version := _version_told(headers)) is not None:
                versions[place] = version
        rest = [place for place in places if place not in found]
        starts = self.each(lambda place: self.start_of(place, most_bytes), rest, is_local=_are_local(rest))
        found.update(zip(rest, starts, strict=True))
        return [found[place] for place in places]

    def _asked(self, places: Sequence[Place], most_bytes: int) -> Iterator[tuple[Place, Start]]:
        """The starts of those objects that need no thread each."""
        by_store: dict[SmallObjects, list[tuple[Place, str]]] = {}
        for place in places:
            if place.scheme == "s3" and place.suffix not in UNPACKED and place.suffix not in PACKED:
                with contextlib.suppress(OSError):  # it is told when the object is asked for by itself
                    objects, key = self._objects(place)
                    by_store.setdefault(objects, []).append((place, key))
        for objects, asked in by_store.items():
            starts = objects.starts_of([key for _, key in asked], most_bytes, _AT_ONCE)
            yield from ((place, start) for (place, _), start in zip(asked, starts, strict=True) if start is not None)

    def each(self, ask: Callable[[S], T], things: Sequence[S], *, is_local: bool) -> list[T | OSError]:
        """The answer for each, or the error; stores are asked by several threads at once."""

        def answer(thing: S) -> T | OSError:
            try:
                return ask(thing)
            except OSError as error:
                return error

        if len(things) < 2 or is_local:
            return list(map(answer, things))
        with ThreadPoolExecutor(min(_AT_ONCE, len(things)), "multiqueue-storage") as pool:
            return list(pool.map(answer, things))

    def exists(self, place: Place) -> bool:
        """Whether there is a file, a directory or an object, or anything whose key goes on below it.

        Raises:
            OSError: it cannot be asked for.
        """
        if place.is_local:
            return os.path.lexists(place.text)
        with contextlib.suppress(FileNotFoundError):
            self.status(place)
            return True
        with contextlib.suppress(FileNotFoundError):
            return any(True for page in self.pages(place) for _ in page)
        return False

    def pages(self, place: Place, after: str = "") -> Iterator[list[Entry]]:
        """The entries of a directory, or of what keys begin with, in pages; of a store in the order of their `key`.

        In a store, only those whose `key` is behind `after`: those before are not listed, except in Azure's.

        Raises:
            OSError: it cannot be listed; FileNotFoundError where there is no such directory or bucket.
        """
        if place.is_local:
            with os.scandir(place.text) as entries:
                yield [
                    Entry(one.name, place / one.name, None if one.is_dir() else self.status(place / one.name))
                    for one in entries
                ]
            return
        with self._telling(place):
            fs, key = self.filesystem(place)
            bucket, _, prefix = key.partition("/")
            for page in _PAGES[place.scheme](fs, bucket, f"{prefix}/" if prefix else "", after):
                found = [entry for info in page if (entry := _entry(place, info)) is not None]
                yield sorted((one for one in found if one.key > after), key=lambda one: one.key)

    def ahead(self, place: Place) -> Future[Iterator[list[Entry]]] | None:
        """The pages of a place in a store, the first of which is being asked for; None where enough are.

        Give it back with `came`, whether its pages were read or not.
        """
        with self._lock:
            if place.is_local or self._pages_ahead >= _PAGES_AHEAD:
                return None
            self._pages_ahead += 1
        return self._askers.submit(lambda: _begun(self.pages(place)))

    def came(self, pages: Future[Iterator[list[Entry]]]) -> None:
        """Others may be asked for in place of these."""
        pages.cancel()
        with self._lock:
            self._pages_ahead -= 1

    # What it says

    @contextlib.contextmanager
    def open(self, place: Place) -> Iterator[IO[bytes]]:
        """The bytes of a file or object, from its start; seeking is allowed.

        Raises:
            OSError: it cannot be read, also while inside.
        """
        if place.is_local:
            with open(place.text, "rb") as stream:
                yield stream
            return
        with self._telling(place):
            fs, key = self.filesystem(place)
            with fs.open(key, "rb") as stream:
                yield stream

    def start_of(self, place: Place, most_bytes: int) -> bytes | None:
        """The first bytes of a file, unpacked as Spark does it, at most so many; None when that cannot be done here.

        Raises:
            OSError: it cannot be read, or is not packed as its name says.
        """
        if place.suffix in PACKED:
            return None
        if not place.is_local and place.suffix not in UNPACKED:  # one request, and no block read ahead
            with self._telling(place):
                objects, key = self._objects(place)
                try:
                    return objects.start_of(key, most_bytes)
                except Exception:  # an empty object has no first byte
                    if self.status(place).size_bytes:
                        raise
                    return b""
        with self._unpacked(place) as stream:
            return stream.read(most_bytes)

    def lines_of(self, place: Place) -> Iterator[tuple[int, bytes]]:
        """The lines of a file, without their ends, and where each begins in what is unpacked.

        None when it is packed in a way that is not known here.

        Raises:
            OSError: as `start_of`.
        """
        if place.suffix not in PACKED:
            at = 0
            with self._unpacked(place) as stream:
                for line in stream:
                    yield at, line.rstrip(b"\r\n")
                    at += len(line)

    def is_in_blocks(self, place: Place) -> bool:
        """Whether a `.snappy` or `.lz4` file is packed as Hadoop reads it; others always are.

        Of any other Hadoop takes some bytes for the length of a block, and memory for it: that can end the session.

        Raises:
            OSError: it cannot be read.
        """
        if place.suffix not in _IN_BLOCKS:
            return True
        with self.open(place) as raw:
            start = raw.read(8)  # the length of the block as it was, and of its first piece as it is packed
            return not any(start) or 0 < int.from_bytes(start[4:]) <= self.status(place).size_bytes - 8

    # Writing

    def put(self, place: Place, body: bytes) -> None:
        """Write a small object as a whole; a local one by a rename. An existing file is replaced.

        Raises:
            OSError: it cannot be written.
        """
        if not place.is_local:
            with self._telling(place):
                fs, key = self.filesystem(place)
                fs.pipe_file(key, body)
            return
        draft = place.path.with_name(f".{place.name}")
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(body)
        os.replace(draft, place.text)

    def remove(self, place: Place) -> None:
        """Remove a file or object; a missing one is no error.

        Raises:
            OSError: it cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError), self._telling(place):
            if place.is_local:
                os.remove(place.text)
            else:
                fs, key = self.filesystem(place)
                fs.rm_file(key)

    def move(self, source: Place, target: Place) -> Place:
        """Move a file or object there, or beside what is there by that name; where it is then.

        A file there with the same bytes is taken for this one, moved before a crash. Twice is as once.

        Raises:
            OSError: it cannot be copied, or not removed.
        """
        for candidate in _names(target, self.status(source).mtime_ns):
            if not self.exists(candidate):
                self._copy(source, candidate)
                self.remove(source)
                return candidate
            if self._are_equal(source, candidate):
                self.remove(source)
                return candidate
        raise AssertionError("there is always another name")

    def _are_equal(self, one: Place, other: Place) -> bool:
        """Whether two files have the same bytes."""
        if self.status(one).size_bytes != self.status(other).size_bytes:
            return False
        with self.open(one) as a, self.open(other) as b:
            while (piece := a.read(_PIECE_BYTES)) == b.read(_PIECE_BYTES):
                if not piece:
                    return True
        return False

    def _copy(self, source: Place, target: Place) -> None:
        """Have the bytes there as a whole, where nothing is; local ones on the disk."""
        if target.is_local:
            self._copy_here(source, target.path)
            return
        with self._telling(target):
            fs, key = self.filesystem(target)
            if not source.is_local and self.filesystem(source)[0] is fs:
                fs.cp_file(self.filesystem(source)[1], key)
                return
            with self.open(source) as stream, fs.open(key, "wb") as copy:
                shutil.copyfileobj(stream, copy, _PIECE_BYTES)

    def _copy_here(self, source: Place, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_local and not os.path.islink(source.text):
            try:
                os.link(source.text, target)
                return
            except FileExistsError:
                raise
            except OSError:  # on another disk, or there are no links
                pass
        draft = target.with_name(f".{target.name}.part")
        with self.open(source) as stream, open(draft, "wb") as copy:
            shutil.copyfileobj(stream, copy, _PIECE_BYTES)
            copy.flush()
            os.fsync(copy.fileno())
        if source.is_local:
            shutil.copystat(source.text, draft)
        os.rename(draft, target)

    @contextlib.contextmanager
    def _unpacked(self, place: Place) -> Iterator[IO[bytes] | gzip.GzipFile | bz2.BZ2File]:
        try:
            with self.open(place) as raw:
                if place.suffix == ".gz":
                    yield gzip.GzipFile(fileobj=raw)
                elif place.suffix == ".bz2":
                    yield bz2.BZ2File(raw)
                else:
                    yield raw
        except (EOFError, zlib.error) as error:  # cut off, or no such data
            raise OSError(None, str(error)) from error

    @contextlib.contextmanager
    def _telling(self, place: Place) -> Iterator[None]:
        """While inside, what a store's library raises becomes an `OSError` that names the place."""
        try:
            yield
        except (Unprepared, EOFError, zlib.error):
            raise
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place.text) from error
        except Exception as error:
            if place.is_local:
                raise
            section = self.section(place)
            said = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
            for secret in () if section is None else section.secrets():
                said = said.replace(secret, "***")
            kind = PermissionError if isinstance(error, PermissionError) else OSError
            raise kind(error.errno if isinstance(error, OSError) else errno.EIO, said, place.text) from None


def _begun(pages: Iterator[T]) -> Iterator[T]:
    """The same, whose first element is there."""
    first = list(itertools.islice(pages, 1))
    return itertools.chain(first, pages)


def _are_local(places: Sequence[Place]) -> bool:
    return all(place.is_local for place in places)


def _names(target: Place, mtime_ns: int) -> Iterator[Place]:
    """The name, then others with the moment at which the file was written, and numbers."""
    yield target
    stem, dot, endings = target.name.partition(".")
    when = datetime.fromtimestamp(mtime_ns // 10**9, UTC).strftime("%Y%m%dT%H%M%SZ")
    for number in itertools.count(1):
        yield target.parent / f"{stem}-{when}{f'-{number}' if number > 1 else ''}{dot}{endings}"


def new_filesystem(scheme: str, protocol: str, arguments: Mapping[str, Any]) -> FileSystem:
    """A new file system, which remembers no listing.

    Raises:
        Unprepared: the package for such stores is not installed.
    """
    try:
        import fsspec

        made = fsspec.filesystem(protocol, **arguments, skip_instance_cache=True, use_listings_cache=False)
    except ImportError as error:
        raise Unprepared(needs(f"a place in {scheme}://", _PROTOCOLS[scheme][1])) from error
    return made


def _s3_pages(fs: FileSystem, bucket: str, start: str, after: str) -> Pages:
    """A page of keys that start so, and of what several keys begin with up to a slash, at a time."""
    asked = {"Bucket": bucket, "Prefix": start, "Delimiter": "/", "MaxKeys": _PAGE}
    if after:
        asked["StartAfter"] = start + after
    with contextlib.suppress(AttributeError):  # of another version, which is slower then
        fs.connect()
        fs.session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_moment)
    while True:
        said = fs.call_s3("list_objects_v2", **asked)
        token = said.get("NextContinuationToken")
        if not {"Name", "IsTruncated"} & said.keys() or (token and token == asked.get("ContinuationToken")):
            raise OSError("the answer is no page of a listing, or the same page again")
        found = [_directory(one["Prefix"]) for one in said.get("CommonPrefixes", ())]
        yield found + [
            {**one, "name": one["Key"], "size": one["Size"], "type": "file"} for one in said.get("Contents", ())
        ]
        if not said.get("IsTruncated"):
            return
        asked["ContinuationToken"] = token


def _moment(said: Any) -> datetime:
    """A moment as S3 says it in a listing; others by botocore's parser, which takes longer than the rest of a page."""
    from botocore.utils import parse_timestamp  # type: ignore[import-untyped]

    if isinstance(said, str) and said.endswith("Z") and said[4:5] == "-":
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(said)
    moment: datetime = parse_timestamp(said)
    return moment


def _gs_pages(fs: FileSystem, bucket: str, start: str, after: str) -> Pages:
    asked = {
        "prefix": start,
        "delimiter": "/",
        "maxResults": _PAGE,
        **({"startOffset": start + after} if after else {}),
    }
    while True:
        said = fs.call("GET", "b/{}/o", bucket, json_out=True, **asked)
        found = [_directory(one) for one in said.get("prefixes", ())]
        yield found + [{**one, "type": "file"} for one in said.get("items", ())]
        if "nextPageToken" not in said:
            return
        asked["pageToken"] = said["nextPageToken"]


def _azure_pages(fs: FileSystem, bucket: str, start: str, after: str) -> Pages:
    from azure.core.exceptions import ResourceNotFoundError
    from fsspec.asyn import sync

    async def begin() -> Any:
        container = fs.service_client.get_container_client(bucket)
        return container.walk_blobs(
            name_starts_with=start, include=["metadata"], delimiter="/", results_per_page=_PAGE
        ).by_page()

    async def next_page() -> list[Any] | None:
        page = await anext(pages, None)
        return None if page is None else [one async for one in page]

    pages = sync(fs.loop, begin)
    while True:
        try:
            page = sync(fs.loop, next_page)
        except ResourceNotFoundError as error:
            raise FileNotFoundError from error
        if page is None:
            return
        yield [
            {**one, "type": "file"} if one.get("size") is not None else _directory(one["name"])
            for one in page
            if (one.get("metadata") or {}).get("hdi_isfolder") != "true"  # the mark of a directory
        ]


Pages = Iterator[list[dict[str, Any]]]
_PAGES: Mapping[str, Callable[[FileSystem, str, str, str], Pages]]
_PAGES = {"s3": _s3_pages, "gs": _gs_pages, "abfss": _azure_pages, "az": _azure_pages}


def _directory(name: str) -> dict[str, Any]:
    return {"name": name, "type": "directory"}


def _entry(parent: Place, info: Mapping[str, Any]) -> Entry | None:
    """An entry as fsspec tells it; None for the mark of a directory that some programs make."""
    path = info["name"]
    name = path.removesuffix("/").rpartition("/")[2]
    if info["type"] == "directory":
        return Entry(name, parent / name if name else Place(f"{parent}/"), None)
    return None if path.endswith("/") else Entry(name, parent / name, _status(info))


_moment_of_http = lru_cache(maxsize=1024)(parsedate_to_datetime)  # objects that come together share it


def _version_told(headers: Mapping[str, str]) -> Status | None:
    """The version of the object that an answer of S3 with these headers has the bytes of."""
    size = headers.get("content-range", "").rpartition("/")[2] or headers.get("content-length", "")
    try:
        when = _moment_of_http(headers["last-modified"])
        return _status({"size": size, "LastModified": when, "ETag": headers["etag"]})
    except (KeyError, ValueError):
        return None


def _status(info: Mapping[str, Any]) -> Status:
    when = next((info[key] for key in _TIMES if info.get(key)), None)
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    seconds = int(when.timestamp() if isinstance(when, datetime) else when or 0)
    etag = next((str(info[key]) for key in _ETAGS if info.get(key)), "").strip('"')
    below = int.from_bytes(hashlib.blake2b(etag.encode(), digest_size=8).digest()) % 10**9 if etag else 0
    return Status(int(info["size"]), seconds * 10**9 + below)
