"""The spool: messages on disk, numbered, so that the same batch can be read again.

Promise     1. What `append` was given is on the disk when it returns, under consecutive numbers that never change and
               are never used again. If it raises, or the machine stops, all of it is there or nothing.
            2. Every range of numbers from `first` to `end` reads the same each time, here and in any process that sees
               the directory.
            3. A damaged or missing part is an error and never shorter data.
            4. After a failed write nothing further is accepted: the contents of the disk are unknown. Open it again.
State       A directory: `spool.json` names the spool; `FIRST-COUNT-BYTES.chunk` holds COUNT messages from number FIRST
            on, BYTES of bodies; `*.tmp` is what a stopped append left, ignored. A chunk is written, synced and renamed,
            then its directory is synced: a chunk that has its name is whole. A name that a killed process could not
            sync any more is synced by the next `open`. The last chunk is never removed: its name says which number
            comes next.
Lock        A `DirectoryLock`, with `spool.lock`, of the one process that appends; the system unlocks it when that dies.
            Readers need no lock, for chunks do not change. Not for several threads.
Waiting     `open` waits for the process before us to die, `patience` seconds at most.
Source      Spring XD and Spark's own write-ahead log acknowledge after storing; so do we.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from ..._directory_lock import DirectoryLock, Unlockable, holder_of
from .chunks import Chunk, ChunkList, Piece, seal, unseal
from .errors import DataLoss, SpoolInUse, SpoolNotShared, StreamingError
from .spool_files import Files

_IDENTITY, _LOCK, _SUFFIX = "spool.json", "spool.lock", ".chunk"
LOCK_POLL = 0.05  # seconds; a lock of another process does not tell when it is free


@dataclass(frozen=True, slots=True)
class Slice:
    """Where a piece of a chunk is. What a task is given: small, and good in any process."""

    directory: str
    spool: str
    piece: Piece

    def payload(self) -> bytes:
        """The whole chunk's payload.

        Raises:
            SpoolNotShared: this process does not see the spool.
            DataLoss: the chunk is gone or damaged.
        """
        path = Path(self.directory, file_name(self.piece.chunk))
        try:
            return unseal(path, path.read_bytes())
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

    def __init__(self, directory: Path, identity: str, lock: DirectoryLock, files: Files) -> None:
        self.directory = directory
        self.id = identity
        self._lock = lock
        self._files = files
        self.chunks = ChunkList(_named(path.name) for path in directory.glob(f"*{_SUFFIX}"))
        self._failure: BaseException | None = None

    @classmethod
    def open(cls, directory: Path, *, files: Files | None = None, patience: float = 30.0) -> Spool:
        """The spool in a directory, made if need be. Blocks while another process has it, `patience` seconds at most.

        Raises:
            SpoolInUse: somebody else has it, or there can be no locks here.
            OSError: the directory cannot be made, read or written.
        """
        files = files or Files()
        _make_directory(files, directory)
        lock = _acquire(directory, patience)
        try:
            identity = _identity(directory)
            if identity is None:
                identity = uuid.uuid4().hex
                _write_whole(files, directory / _IDENTITY, json.dumps({"spool": identity}).encode())
            files.sync_directory(directory)
            return cls(directory, identity, lock, files)
        except BaseException:
            lock.release()
            raise

    def append(self, payload: bytes, count: int, size_bytes: int) -> None:
        """Have `count` messages on the disk, under the next numbers; `payload` is all of them. Blocks on the disk.

        Raises:
            OSError: the disk refused it; it may be there or not, and the spool takes nothing further.
            StreamingError: that was so before.
        """
        if self._failure is not None:
            raise StreamingError(f"spool {self.directory} failed before: {self._failure}; start the query again")
        chunk = Chunk(self.chunks.end, count, size_bytes)
        try:
            _write_whole(self._files, self.directory / file_name(chunk), seal(payload))
        except BaseException as error:
            self._failure = error
            raise
        self.chunks.add(chunk)

    def slices(self, start: int, end: int, *, lossy: bool = False) -> list[Slice]:
        """Where the messages from number `start` up to, and without, `end` are. Raises as `ChunkList.pieces`."""
        where = f"spool {self.id} in {self.directory}"
        pieces = self.chunks.pieces(start, end, where, lossy=lossy)
        return [Slice(str(self.directory), self.id, piece) for piece in pieces]

    def trim(self, below: int) -> None:
        """Forget the messages before number `below`, in whole chunks. What a crash leaves of it does no harm."""
        before = len(self.chunks)
        while (chunk := self.chunks.dispensable(below)) is not None:
            self._files.remove(self.directory / file_name(chunk))
            self.chunks.drop_first()
        if len(self.chunks) < before:
            self._files.sync_directory(self.directory)

    def close(self) -> None:
        """Let others have it. Closing twice does nothing."""
        self._lock.release()

    def check_invariants(self) -> None:
        """Raise AssertionError when directory and memory contradict each other. For tests."""
        self.chunks.check_invariants()
        names = sorted(path.name for path in self.directory.glob(f"*{_SUFFIX}"))
        assert names == [file_name(chunk) for chunk in self.chunks.all()], names


def file_name(chunk: Chunk) -> str:
    """The name of a chunk's file."""
    return f"{chunk.first:020d}-{chunk.count}-{chunk.size_bytes}{_SUFFIX}"


def _named(name: str) -> Chunk:
    return Chunk(*map(int, name.removesuffix(_SUFFIX).split("-")))


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


def _identity(directory: Path) -> str | None:
    try:
        return str(json.loads((directory / _IDENTITY).read_text())["spool"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StreamingError(f"{directory / _IDENTITY} is not a spool's: {error}; choose another directory") from None


def _acquire(directory: Path, patience: float) -> DirectoryLock:
    deadline = time.monotonic() + patience
    holder = f"process {os.getpid()} on {os.uname().nodename}"
    while True:
        try:
            return DirectoryLock(directory, _LOCK, holder, on_network=True)
        except Unlockable as error:
            raise SpoolInUse(f"{directory}: {error}, so two queries could not be kept apart") from error
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise SpoolInUse(
                    f"spool {directory} has been in use by {holder_of(directory / _LOCK) or 'another process'} for "
                    f"{patience:g} s; stop that query, or give each readStream another spool"
                ) from None
        time.sleep(LOCK_POLL)
