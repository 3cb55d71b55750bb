"""The spool: messages on disk, numbered, so that a batch can be read again as it was.

Promise     1. What `append` was given is on the disk when it returns, under consecutive numbers that never change and
               are never used again. If it raises, or the machine stops, all of it is there or nothing.
            2. Every range of numbers from `first` to `end` reads the same each time, here and in any process that sees
               the directory.
            3. A damaged or missing part is an error of its own and never shorter data.
            4. After a failed write nothing further is accepted: what is on the disk is not known. Open it again.
State       A directory: `spool.json` names the spool; `FIRST-COUNT-BYTES.chunk` holds COUNT messages from number FIRST
            on, BYTES of bodies; `*.tmp` is what a stopped append left, ignored. A chunk is written, synced and renamed,
            then its directory is synced: a chunk that has its name is whole. A name that a killed process could not
            sync any more is synced by the next `open`. The last chunk is never removed: its name says which number
            comes next.
Lock        `spool.lock`, locked by the one process that appends (`flock`); the system unlocks it when that dies.
            Readers need no lock, for chunks do not change. Not for several threads.
Waiting     `open` waits for the process before us to die, `patience` seconds at most.
Source      Spring XD and Spark's own write-ahead log acknowledge after storing; so do we.
"""

from __future__ import annotations

import json
import os
import struct
import time
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ._spool_files import Files
from ._streaming_errors import DataLoss, SpoolInUse, SpoolNotShared, StreamingError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAGIC = b"mqspool1"
_HEADER = struct.Struct(f">{len(MAGIC)}sIQ")  # magic, CRC-32 and length of the payload
_IDENTITY, _LOCK, _SUFFIX = "spool.json", "spool.lock", ".chunk"
LOCK_POLL = 0.05  # seconds; a lock of another process tells nobody when it is free


@dataclass(frozen=True, slots=True)
class Chunk:
    """One file: `count` messages from number `first` on, with bodies of `size_bytes` together."""

    first: int
    count: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def name(self) -> str:
        return f"{self.first:020d}-{self.count}-{self.size_bytes}{_SUFFIX}"

    @classmethod
    def named(cls, name: str) -> Chunk:
        return cls(*map(int, name.removesuffix(_SUFFIX).split("-")))


@dataclass(frozen=True, slots=True)
class Slice:
    """`count` messages of a chunk, after the first `skip`. What a task is given: small, and good in any process."""

    directory: str
    spool: str
    chunk: Chunk
    skip: int
    count: int

    def payload(self) -> bytes:
        """The whole chunk's payload.

        Raises:
            SpoolNotShared: this process does not see the spool.
            DataLoss: the chunk is gone or damaged.
        """
        path = Path(self.directory, self.chunk.name)
        try:
            return _checked(path, path.read_bytes())
        except FileNotFoundError:
            pass
        seen = _identity(Path(self.directory))
        if seen != self.spool:
            what = "there is no spool" if seen is None else f"there is spool {seen}"
            raise SpoolNotShared(
                f"spool {self.spool} is not at {self.directory} on {os.uname().nodename}: {what}; "
                "the option spool must name a directory on a file system that the driver and all executors mount there"
            )
        raise DataLoss(f"{path} is gone from spool {self.spool}; it was removed by hand, or by a later batch's commit")


class Spool:
    """The side that appends. Made by `Spool.open`; one per directory at a time, in all processes."""

    def __init__(self, directory: Path, identity: str, lock: IO[str], files: Files) -> None:
        self.directory = directory
        self.id = identity
        self._lock = lock
        self._files = files
        # Invariant: in rising order, not overlapping. Holes only where data was lost.
        self._chunks = sorted((Chunk.named(path.name) for path in directory.glob(f"*{_SUFFIX}")), key=_first)
        # Invariant: not below the last chunk's end.
        self._end = self._chunks[-1].end if self._chunks else 0
        self._failure: BaseException | None = None

    @classmethod
    def open(cls, directory: Path, *, files: Files | None = None, patience: float = 30.0) -> Spool:
        """The spool in a directory, made if need be. Blocks until nobody else has it, `patience` seconds at most.

        Raises:
            SpoolInUse: somebody else has it, or there can be no locks here.
            OSError: the directory cannot be made, read or written.
        """
        files = files or Files()
        _make_directory(files, directory)
        lock = (directory / _LOCK).open("a+")
        try:
            _acquire(lock, directory, patience)
            identity = _identity(directory)
            if identity is None:
                identity = uuid.uuid4().hex
                _write_whole(files, directory / _IDENTITY, json.dumps({"spool": identity}).encode())
            files.sync_directory(directory)
            return cls(directory, identity, lock, files)
        except BaseException:
            lock.close()
            raise

    @property
    def first(self) -> int:
        """The number of the oldest message that is held; `end` when there is none."""
        return self._chunks[0].first if self._chunks else self._end

    @property
    def end(self) -> int:
        """The number that the next message gets."""
        return self._end

    def append(self, payload: bytes, count: int, size_bytes: int) -> None:
        """Have `count` messages on the disk, from number `end` on; `payload` is all of them. Blocks on the disk.

        Raises:
            OSError: the disk refused it; it may be there or not, and the spool takes nothing further.
            StreamingError: that was so before.
        """
        if self._failure is not None:
            raise StreamingError(f"spool {self.directory} failed before: {self._failure}; start the query again")
        chunk = Chunk(self._end, count, size_bytes)
        data = _HEADER.pack(MAGIC, zlib.crc32(payload), len(payload)) + payload
        try:
            _write_whole(self._files, self.directory / chunk.name, data)
        except BaseException as error:
            self._failure = error
            raise
        self._chunks.append(chunk)
        self._end = chunk.end

    def held(self, start: int) -> tuple[int, int]:
        """How many messages there are from number `start` on, and the bytes of their bodies, whole chunks for those."""
        later = [chunk for chunk in self._chunks if chunk.end > start]
        return sum(chunk.end - max(chunk.first, start) for chunk in later), sum(chunk.size_bytes for chunk in later)

    def position(self, start: int, messages: int | None, size_bytes: int | None) -> int:
        """Where a batch from number `start` on ends, of at most so many messages and bytes; None: no bound.

        Bytes are counted by chunks, and the first chunk is taken whatever its size.
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

    def slices(self, start: int, end: int, *, lossy: bool = False) -> list[Slice]:
        """Where the messages from number `start` up to, and without, `end` are.

        Raises:
            DataLoss: some of them are not there. With `lossy` those that are there are returned instead.
        """
        found = []
        for chunk in self._chunks:
            begin, stop = max(chunk.first, start), min(chunk.end, end)
            if begin < stop:
                found.append(Slice(str(self.directory), self.id, chunk, begin - chunk.first, stop - begin))
        missing = end - start - sum(each.count for each in found)
        if missing > 0 and not lossy:
            raise DataLoss(
                f"{missing} of the {end - start} messages from {start} on are not in spool {self.id} in "
                f"{self.directory}, which holds {self.first} to {self._end}; restore the directory, or give the query "
                "a new checkpoint, or go on without them by failOnDataLoss=false"
            )
        return found

    def trim(self, below: int) -> None:
        """Forget the messages before number `below`, in whole chunks. What a crash leaves of it does no harm."""
        before = len(self._chunks)
        while len(self._chunks) > 1 and self._chunks[0].end <= below:
            self._files.remove(self.directory / self._chunks[0].name)
            del self._chunks[0]
        if len(self._chunks) < before:
            self._files.sync_directory(self.directory)

    def skip_to(self, number: int) -> None:
        """Give the next message this number, if it is above `end`."""
        self._end = max(self._end, number)

    def close(self) -> None:
        """Let others have it. Closing twice is harmless."""
        self._lock.close()

    def check_invariants(self) -> None:
        """Raise AssertionError when directory and memory contradict each other. For tests."""
        names = sorted(path.name for path in self.directory.glob(f"*{_SUFFIX}"))
        assert names == [chunk.name for chunk in self._chunks], names
        assert all(a.end <= b.first for a, b in zip(self._chunks, self._chunks[1:], strict=False)), names
        assert not self._chunks or self._end >= self._chunks[-1].end


def _make_directory(files: Files, directory: Path) -> None:
    """A directory and its parents, with names that stay."""
    if not directory.is_dir():
        _make_directory(files, directory.parent)
        directory.mkdir(exist_ok=True)
        files.sync_directory(directory.parent)


def _write_whole(files: Files, path: Path, data: bytes) -> None:
    """A file of this name that is whole and on the disk when the call returns, or does not exist."""
    temporary = path.with_name(path.name + ".tmp")
    files.write(temporary, data)
    files.rename(temporary, path)
    files.sync_directory(path.parent)


def _checked(path: Path, data: bytes) -> bytes:
    payload = data[_HEADER.size :]
    if len(data) >= _HEADER.size:
        magic, checksum, length = _HEADER.unpack_from(data)
        if magic == MAGIC and length == len(payload) and checksum == zlib.crc32(payload):
            return payload
    raise DataLoss(f"{path} is damaged: {len(data)} bytes whose checksum is not theirs; restore it from a copy")


def _identity(directory: Path) -> str | None:
    try:
        return str(json.loads((directory / _IDENTITY).read_text())["spool"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StreamingError(f"{directory / _IDENTITY} is not a spool's: {error}; choose another directory") from None


def _acquire(lock: IO[str], directory: Path, patience: float) -> None:
    if fcntl is None:
        raise SpoolInUse(f"{directory}: this system has no flock, so two queries could not be kept apart")
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            break
        if time.monotonic() >= deadline:
            lock.seek(0)
            raise SpoolInUse(
                f"spool {directory} has been in use by {lock.read().strip() or 'another process'} for {patience:g} s; "
                "stop that query, or give each readStream a spool of its own"
            )
        time.sleep(LOCK_POLL)
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {os.uname().nodename}\n")
    lock.flush()


def _first(chunk: Chunk) -> int:
    return chunk.first
