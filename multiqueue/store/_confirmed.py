"""How far the log was confirmed: the mark that tells a damaged log, which SQLite takes for a shorter one.

SQLite reads a write-ahead log up to the first frame whose check sum is wrong, and forgets what follows: after a crash
that is the commit which was being written. A byte that changes in the middle looks the same to it, and every later
commit would be gone in silence.

Promise     After each commit, before it is reported, the mark says how many pages of which log are committed.
            A store whose log has fewer when it is opened is damaged, and the error says how many commits it lost. The
            mark accuses no sound log: it is written after the log's sync and cleared before the log is cut off, and a
            log that SQLite began anew has other salts. A log that is not there at all may have been copied into the
            file by another program, as SQLite's own shell does: the store is opened, and a warning says so.
State       The file `confirmed`: one record with a check sum, mapped into memory and never synced. After a power loss
            it may be an older one, which claims less. Where commits are not synced either, a record claims nothing
            after the machine has started anew.
            `LogIndex` maps the header of SQLite's index of the log, the file `-shm`.
Source      SQLite's "WAL-mode File Format": the headers of the log, of a frame and of the index.
"""

from __future__ import annotations

import logging
import mmap
import os
import sqlite3
import struct
import zlib
from pathlib import Path
from typing import Final

from ._errors import StoreDamaged
from ._schema import PAGE_BYTES

_log = logging.getLogger("multiqueue.store")

MARK_NAME: Final = "confirmed"
_RECORD: Final = struct.Struct("=I8s8s")  # committed pages of the log, its salts, and _EVER or the start of the machine
_SUM: Final = struct.Struct("=I")
_EVER: Final = bytes(8)
_INDEX_BYTES: Final = 136
_LOG_HEADER: Final = struct.Struct(">I12x8s2I")  # the magic number, salts, check sums
FRAME_HEADER: Final = struct.Struct(">2I16x")  # the page's number; in the last one of a commit, pages of the file
_LITTLE_ENDIAN_SUMS: Final = 0x377F0682
_REMEDY: Final = f"; to use what is left as it is, remove the file {MARK_NAME!r} beside it"


class LogIndex:
    """What SQLite knows of a store's log. Made when SQLite has read the log; closed after all connections."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(f"{file}-shm", os.O_RDONLY | os.O_CLOEXEC)
        # Mapped, for it is looked at with every commit, and a read would let go of the interpreter's lock.
        self._memory = mmap.mmap(self._descriptor, _INDEX_BYTES, access=mmap.ACCESS_READ)

    def pages(self) -> tuple[int, int]:
        """How many pages the log has, and how many of them are in the file as well."""
        (length,) = struct.unpack_from("=I", self._memory, 16)
        (copied,) = struct.unpack_from("=I", self._memory, 96)
        return length, copied

    def salts(self) -> bytes:
        """They tell a log from the one before it."""
        return self._memory[32:40]

    def close(self) -> None:
        """Closing a file lets go of all locks that the process has on it, SQLite's too."""
        self._memory.close()
        os.close(self._descriptor)


class Mark:
    """The mark of the store in a directory, for the one thread that commits."""

    def __init__(self, directory: Path, log: LogIndex, *, syncs: bool) -> None:
        """`syncs`: whether a commit is on the disk when it is noted, as all that the log has now is."""
        self._file = directory / MARK_NAME
        self._since = _EVER if syncs else _start_of_machine()
        record = self._record(log.pages()[0], log.salts())
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size != len(record):
                os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, record, 0)  # not only made longer: a mapped page needs its block
            os.fsync(descriptor)  # once, so that `was_synced` is right after a power loss
            self._memory = mmap.mmap(descriptor, len(record))
        finally:
            os.close(descriptor)

    def note(self, log: LogIndex) -> None:
        """All that the log has is committed."""
        self._memory[:] = self._record(log.pages()[0], log.salts())

    def clear(self) -> None:
        """Claim nothing: the log is about to be cut off."""
        self._memory[:] = self._record(0, bytes(8))

    def close(self) -> None:
        self._memory.close()

    def _record(self, pages: int, salts: bytes) -> bytes:
        record = _RECORD.pack(pages, salts, self._since)
        return record + _SUM.pack(zlib.crc32(record))


def checked_log(connection: sqlite3.Connection, file: Path) -> LogIndex | None:
    """Have SQLite read the log; its index, None while the store has no log. No process may have written since the
    crash.

    Raises:
        StoreDamaged: the log lacks commits that were confirmed.
    """
    log = read_log(connection, file)
    gone = missing_log(file)
    if gone:
        _log.warning("%s", gone)
    damage = "" if gone else damage_of_log(file, log)
    if damage:
        if log is not None:
            log.close()
        raise StoreDamaged(f"{damage}; `multiqueue store dump` saves the readable part")
    return log


def read_log(connection: sqlite3.Connection, file: Path) -> LogIndex | None:
    """As `checked_log`, of a damaged store too."""
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return LogIndex(file) if os.path.exists(f"{file}-shm") else None


def missing_log(file: Path) -> str:
    """That there is no log, though the mark says it has commits; empty where there is one, or need be none."""
    pages, _ = _claim(file.parent)
    wal = Path(f"{file}-wal")
    if not pages or (wal.exists() and wal.stat().st_size):
        return ""
    return (
        f"the log {str(wal)!r} is gone: another program has copied its {pages} pages into {str(file)!r}, or somebody"
        " has removed it, and the commits in it are lost"
    )


def damage_of_log(file: Path, log: LogIndex | None) -> str:
    """What the log has lost of what the mark says was committed, as a sentence; empty where nothing is missing."""
    pages, salts = _claim(file.parent)
    if not pages or missing_log(file):
        return missing_log(file)
    wal = Path(f"{file}-wal")
    with wal.open("rb") as opened:
        header = opened.read(_LOG_HEADER.size)
        if _is_sound(header) and _LOG_HEADER.unpack(header)[1] != salts:
            return ""  # a later log: what the mark speaks of is in the file
        found = log.pages()[0] if log is not None and log.salts() == salts else 0
        if found >= pages:
            return ""
        commits = 0
        for frame in range(found, pages):
            opened.seek(frame_offset(frame))
            head = opened.read(FRAME_HEADER.size)
            commits += len(head) == FRAME_HEADER.size and FRAME_HEADER.unpack(head)[1] > 0
    return (
        f"the log {str(wal)!r} is damaged behind page {found} of {pages}, and about {max(1, commits)} commits that"
        f" were confirmed are lost with what follows{_REMEDY}"
    )


def confirmed_pages(file: Path, log: LogIndex) -> int:
    """How many pages of this log were committed, as far as is known."""
    pages, salts = _claim(file.parent)
    return pages if salts == log.salts() else 0


def was_synced(directory: Path) -> bool:
    """Whether commits were synced by the last one who had the store open."""
    return _record(directory)[2] == _EVER


def frame_offset(number: int) -> int:
    """Where the header of a log's frame is, the first one being 0."""
    return _LOG_HEADER.size + number * (FRAME_HEADER.size + PAGE_BYTES)


def _claim(directory: Path) -> tuple[int, bytes]:
    """How many pages of which log were committed; 0 where there is no claim."""
    pages, salts, since = _record(directory)
    return (pages, salts) if since in (_EVER, _start_of_machine()) else (0, b"")


def _record(directory: Path) -> tuple[int, bytes, bytes]:
    try:
        content = (directory / MARK_NAME).read_bytes()
    except FileNotFoundError:
        content = b""
    record, sum_ = content[: _RECORD.size], content[_RECORD.size :]
    if len(record) < _RECORD.size or sum_ != _SUM.pack(zlib.crc32(record)):
        return 0, b"", _EVER
    pages, salts, since = _RECORD.unpack(record)
    return pages, salts, since


def _is_sound(header: bytes) -> bool:
    """Whether the check sums of a log's header are right."""
    if len(header) < _LOG_HEADER.size:
        return False
    magic, _, *sums = _LOG_HEADER.unpack(header)
    words = struct.unpack("<6I" if magic == _LITTLE_ENDIAN_SUMS else ">6I", header[:24])
    first = second = 0
    for left, right in zip(words[::2], words[1::2], strict=True):
        first = (first + left + second) & 0xFFFFFFFF
        second = (second + right + first) & 0xFFFFFFFF
    return sums == [first, second]


def _start_of_machine() -> bytes:
    """Eight bytes that no other start of this machine has; random ones where the system does not tell."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").replace("-", ""))[:8]
    except (OSError, ValueError):
        return os.urandom(8)
