"""Large bodies: files beside the SQLite file, written once and appended to only.

SQLite writes a body twice, into its log and then into its file, and copies it some four times on the way. A commit
that brings many bytes in large bodies appends these to a file of bodies instead, and their rows have the places in that
file. That costs the commit a second sync, at the same time as the first, so a commit of fewer bytes leaves them to
SQLite (docs/decisions/0709-large-bodies-in-files.md).

Promise     A body is on the disk before anybody is told of the commit that names its place, and before a checkpoint.
            Only the two newest files may lack bytes after a power loss, for the second begins while the first is being
            synced; and a new one its name, which is synced behind its first bytes. `_recovery.py` then undoes the
            commits that name them. A file is removed when the commit that deleted its last row is on the disk, so no
            row names a file that a crash has taken away. All this holds for what must last: after a power loss the row
            of a transient message, which no one asks for then, may name bytes that are not there. A transaction that is
            undone leaves bytes that no row names: they are cut off, or the next one writes over them.
Relaxed     No commit syncs. A file is synced when it is ended, beside the next one, and before a checkpoint; the log,
            before a file goes.
Spares      A long file that is emptied gets the name `spare-N`, and its next turn as a file of bodies: to write over
            bytes that are there costs a quarter of what new ones cost, for file system and page cache have them. Eight
            are kept while bodies come, none where there is a quota, and none at a full disk. Closing and opening
            remove them.
Cache       Synced bytes of a new file leave the page cache, unless bodies were read since the file was begun: a program
            that reads none has them in memory, and pages that the cache had just now are cheaper to write than others.
            A spare's pages stay, to be written over.
Sharing     Messages that were put one behind the other with the same object for their body, as a fanout's are, share
            one record. Their rows name one place, and their `check` says how far behind the record's id their own is,
            plus 1 (`owner_of`); that of a row alone is 0.
State       Files `bodies-N`, N rising; each is written by one opening only. A record is the message's id, the length
            and the check sum of its body, and the body. A place is N in the upper bits, the offset in the lower 40.
            `Bodies` belongs to the writer thread, but for `disk_bytes` and `dead_bytes`, which others read; the thread
            of `_beside` has the descriptor from `_begin_sync` to `end_sync`, while the next transaction may append.
            `_live` has the bytes of each file that committed rows name. `_new_end` and `_changes` belong to the
            transaction in progress. The file that is written has no descriptor any more once it is long enough, but
            for its last sync (`_ended`), and `_emptied` files go when what emptied them is on the disk (`safe`).
Reading     Any thread opens the file that it reads (`read_bodies`). A file that is gone, perhaps since it was opened,
            was emptied after the row was read: the reader asks for the row again, and only a row that still names the
            file is damage.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path

from ._crc import crc32
from ._protocol import Durability
from ._schema import FILE_NAME
from ._sync_beside import SyncBeside, sync_data

TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)  # files; no fault of the disk, and over when others close theirs
# Of large bodies in a commit: from here on to write them once is worth a second sync beside the first; at `relaxed`,
# where that costs none, it takes less CPU from here on (docs/decisions/0712-both-files-of-a-commit-at-once.md).
LARGE_COMMIT_BYTES = 256 << 10
LARGE_RELAXED_BYTES = 80 << 10
_LARGE_BYTES = 2 << 10  # a body that is smaller is no dearer as a row
_SHARED_BYTES = 256  # and one that several messages have, together so large; smaller ones are not worth a place
_OFFSET_BITS = 40
_OFFSETS = (1 << _OFFSET_BITS) - 1
_NUMBERS = 1 << (63 - _OFFSET_BITS)  # files have numbers below; a place is a signed number of 64 bits
_PREFIX = "bodies-"
_SPARE = "spare-"
_MOST_SPARES = 8
_NO_QUOTA = 1 << 62
_RECORD = struct.Struct(">QQI")  # id, bytes of the body, its check sum
_MOST_PARTS = 1000  # of one write: the kernel takes 1,024


# Of each file that rows name: how many bodies they name, how many rows lack a header, the bytes of the bodies, and the
# last end of one that must be there.
# A row a file: sqlite3 lets go of the interpreter's lock with each.
BODIES_IN_FILES = (
    f"SELECT place >> {_OFFSET_BITS}, count(*), sum(headless), total(size),"
    f" max((place & {_OFFSETS}) + size) FILTER (WHERE lasts)"
    " FROM (SELECT data AS place, count(*) - count(size) AS headless, max(size) AS size, max(transient = 0) AS lasts"
    " FROM body LEFT JOIN header USING (queue, level, id) WHERE typeof(data) = 'integer' GROUP BY data) GROUP BY 1"
)


class BodyDamaged(Exception):
    """A file of bodies has something else in a body's place; the message says what."""


class Bodies:
    """The files of bodies of one opened store, for the one thread that writes it."""

    def __init__(
        self,
        directory: Path,
        *,
        file_bytes: int,
        durability: Durability,
        large_commit_bytes: int,
        reads: Callable[[], int] = int,
    ) -> None:
        """`large_commit_bytes`: commits that bring so many bytes in large bodies write them here.
        A file that is longer than `file_bytes` is followed by the next one. `reads` counts those of bodies in files."""
        self._directory = directory
        self._file_bytes = file_bytes
        self._durability = durability
        self.large_commit_bytes = large_commit_bytes
        self.large_bytes = min(_LARGE_BYTES, large_commit_bytes)
        self.shared_bytes = min(_SHARED_BYTES, large_commit_bytes)
        self._sizes = dict(body_files(directory))
        self._live: dict[int, int] = {}
        self._number = 0  # the highest that was given; the file that is written, once there is a descriptor
        self._descriptor: int | None = None
        self._end = 0  # of what is committed in the file that is written
        self._new_end = 0  # and with the transaction in progress
        self._span = (0, 0)  # of it, what is being synced
        self._ended: int | None = None  # the descriptor of the file before, while that is being synced
        self._emptied: set[int] = set()  # files, by commits that may not be on the disk yet
        self._changes: list[tuple[int, int]] = []  # its pending (number, bytes): more live bytes, or fewer
        self._is_dirty = False
        self._is_named = True  # the file that is written is so on the disk; the next sync sees to it
        self._reads = reads
        self._reads_before: int | None = None  # the file that is written was begun; None: it was a spare
        # The descriptors of the log and of the directory, had before the process may have no more.
        self.log = self._names = -1
        self._beside = SyncBeside()
        self._spares: dict[int, int] = {}  # the sizes of files that are written anew when the next one begins
        self.last_append = time.monotonic()
        self.most_bytes = _NO_QUOTA  # of all files, where there is a quota
        self.lacks_room = False  # quota or disk had none for what was to be written last
        self.damaged: set[int] = set()  # files that cannot be written anew, for a body in them cannot be read
        self._postponed: set[int] = set()  # and those for whose bodies the disk has no room, until a file has gone
        self.syncs = 0
        self.disk_bytes = sum(self._sizes.values())
        self.dead_bytes = self.disk_bytes

    def begin(self, named: Iterable[tuple[int, int, int, float, int | None]]) -> None:
        """Take over what earlier openings left: the answer to `BODIES_IN_FILES`.

        Raises:
            BodyDamaged: a file is missing or cut off, or a row has no header. OSError: the log cannot be opened.
        """
        for number, bodies, headless, size, last in named:
            if headless:
                raise BodyDamaged(f"{headless} of the bodies in {_PREFIX}{number} have no header")
            end = 0 if last is None else last + _RECORD.size
            if self._sizes.get(number, 0) < end:
                raise BodyDamaged(
                    f"{_PREFIX}{number} has {self._sizes[number]} bytes, and {end} are named"
                    if number in self._sizes
                    else f"{_PREFIX}{number} is missing"
                )
            self._sizes.setdefault(number, 0)
            self._add(number, bodies * _RECORD.size + int(size))
        self._number = max(self._sizes, default=0)
        for number in self._sizes.keys() - self._live.keys():
            self._remove(number)
        for number, _ in _numbered(self._directory, _SPARE):
            with suppress(OSError):
                os.unlink(self._directory / f"{_SPARE}{number}")
        if self._durability is not Durability.MEMORY:
            self.log = os.open(self._directory / f"{FILE_NAME}-wal", os.O_RDWR | os.O_CLOEXEC)
            self._names = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def is_empty(self) -> bool:
        """True when no row names a place."""
        return not self._live and not self._changes

    @property
    def written(self) -> tuple[Path, int] | None:
        """The file that is written, and its descriptor."""
        return None if self._descriptor is None else (body_file(self._directory, self._number), self._descriptor)

    # A transaction

    def takes(self, size: int, in_rows: int) -> bool:
        """Whether large bodies of so many bytes, which as rows would take `in_rows`, are worth a file and can have one.

        Where the quota has no room for that, SQLite may still have free pages for them.
        """
        if in_rows < self.large_commit_bytes:
            return False
        self.lacks_room = self.disk_bytes + size > self.most_bytes
        return not self.lacks_room and self._has_file()

    def append(self, ids: Sequence[int], bodies: Sequence[bytes]) -> list[int]:
        """Write bodies, each with the id of its (first) message; their places. Only `sync` makes them certain.

        The caller has asked `takes` or `sparse`: there is a file to write to.

        Raises:
            OSError: undo; where the disk is full, that is said by `errno`.
        """
        assert self._descriptor is not None
        self.last_append = time.monotonic()
        sizes = list(map(len, bodies))
        start = self._new_end
        *offsets, end = accumulate([_RECORD.size + size for size in sizes], initial=start)
        heads = map(_RECORD.pack, ids, sizes, map(crc32, bodies, ids))
        self._is_dirty = True
        self._write([*chain.from_iterable(zip(heads, bodies, strict=True))], start)
        self._new_end = end
        self._changes.append((self._number, end - start))
        first = self._number << _OFFSET_BITS
        return [first | offset for offset in offsets]

    def release(self, gone: Iterable[tuple[int, int]]) -> None:
        """The last rows with these places, and sizes, are deleted by the transaction in progress."""
        self._changes += [(place >> _OFFSET_BITS, -_RECORD.size - size) for place, size in gone]

    def begin_sync(self) -> None:
        """Begin to sync the appended bytes, before the commit of rows that must last."""
        if self._is_dirty and self._durability is Durability.SYNC:
            self._begin_sync(self._end, self._new_end)
        self._is_dirty = False

    def _begin_sync(self, start: int, end: int) -> None:
        assert self._descriptor is not None
        self._beside.begin(self._descriptor, -1 if self._is_named else self._names)
        self._is_named = True
        self._span = (start, end)
        self._is_dirty = False
        self.syncs += 1

    def end_sync(self) -> None:
        """Wait until it is there, before anyone is told of the commit.

        Raises:
            OSError: the disk failed.
        """
        if self._beside.is_running:
            try:
                self._beside.end()
                self._leave_cache(*self._span)
            finally:
                self._close_ended()

    def committed(self) -> None:
        """The transaction is made, and perhaps not on the disk yet."""
        self._end = self._new_end
        changes, self._changes = self._changes, []
        for number, size in changes:
            self._add(number, size)
        self._emptied |= {number for number, size in changes if size < 0 and number not in self._live}

    def safe(self) -> None:
        """What was committed is on the disk: remove the files that it emptied."""
        if self._is_long:
            self._end_file(spares=True)
        while self._emptied:
            number = self._emptied.pop()
            if not self._is_written(number) and number in self._sizes and number not in self._live:
                self._settle_log()
                self._keep_or_remove(number)

    @property
    def _is_long(self) -> bool:
        """Whether another file is to follow; not before the end of a transaction that has appended."""
        return self._end >= self._file_bytes and self._end == self._new_end

    def undone(self) -> None:
        self._new_end = self._end
        self._changes = []

    def settle(self) -> None:
        """At `relaxed`, have on the disk what was appended, before a checkpoint makes the rows last that name it."""
        self.end_sync()
        if self._is_dirty and self._durability is Durability.RELAXED:
            self._begin_sync(0, self._end)
            self.end_sync()

    def _settle_log(self) -> None:
        """At `relaxed`, have the log on the disk, and what it names, before a file goes that earlier rows name."""
        if self._durability is Durability.RELAXED:
            self.settle()
            sync_data(self.log)
            self.syncs += 1

    def cut_off(self) -> None:
        """Give back the bytes of undone transactions, where it is certain that the log has none of them."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
                self._grow(self._end - self._sizes[self._number])

    # Compaction

    def sparse(self, *, is_hurried: bool) -> int | None:
        """The file that is worth writing anew: less than a quarter of it is live, or half where room is short.

        Where room is short, the file that is being written is ended if it is one of these.
        """
        most = 2 if is_hurried else 4
        if is_hurried and self._descriptor is not None and self._live.get(self._number, 0) * most < self._end:
            self.cut_off()
            self._end_file()
        for number, live in self._live.items():
            is_sparse = not self._is_written(number) and live * most < self._sizes[number]
            if is_sparse and number not in self.damaged | self._postponed:
                return number if self._has_file() else None
        return None

    def postpone(self) -> None:
        """Not even what the reserve left was enough to move bodies of the file that is sparse."""
        number = self.sparse(is_hurried=True)
        if number is not None:
            self._postponed.add(number)

    def close(self, *, was_clean: bool) -> None:
        """After a failure it is unknown which rows the log has: the next opening removes bytes that no row names."""
        self._beside.close()
        self.drop_spares()
        if was_clean:
            self.cut_off()
            self._end_file()
        elif self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._close_ended()
        for descriptor in {self.log, self._names} - {-1}:
            os.close(descriptor)
        self.log = self._names = -1

    def _has_file(self) -> bool:
        """Have a file to write to; False while the process has too many files open."""
        if self._is_long and self._number in self._live:
            if self._beside.is_running:
                self._leave_to_sync()
            else:
                self._end_file()
        if self._descriptor is None:
            try:
                self._begin_file()
            except OSError as error:
                if error.errno not in TOO_MANY_OPEN:
                    raise
                return False
        return True

    def _begin_file(self) -> None:
        """Go on in a new file; the next sync has its name on the disk, if it is no spare."""
        number = self._number
        while number == self._number or number in self._sizes:
            number = number + 1 if number + 1 < _NUMBERS else 1
        path = body_file(self._directory, number)
        for one in [*self._spares]:
            if not self._spare_file(one).exists():  # somebody removed it, and nothing is lost with it
                self._forget(self._spares.pop(one))
        spare = next(iter(self._spares), None)
        if spare is None:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        else:
            descriptor = os.open(self._spare_file(spare), os.O_RDWR | os.O_CLOEXEC)
        size = 0
        try:
            if spare is not None:
                os.rename(self._spare_file(spare), path)
                size = self._spares.pop(spare)
            self._is_named = spare is not None or self._durability is Durability.MEMORY
            if self._is_named and self._durability is not Durability.MEMORY:
                os.fsync(self._names)  # before a byte is written over: until now the old name may come back
        except BaseException:
            os.close(descriptor)
            with suppress(FileNotFoundError):
                os.unlink(path)
            self._forget(size)
            raise
        self._descriptor = descriptor
        self._reads_before = self._reads() if spare is None else None
        self._number = number
        self._sizes[number] = size
        self._end = self._new_end = 0

    def _end_file(self, *, spares: bool = False) -> None:
        """Write no more to the file that is written, outside of a transaction; if it is empty, it goes."""
        if self._descriptor is not None:
            self.end_sync()
            if self._is_dirty and self._durability is Durability.RELAXED and self._number in self._live:
                self._begin_sync(0, self._end)
                self._leave_to_sync()
                return
            self.settle()
            os.close(self._descriptor)
            self._descriptor = None
            self._end = self._new_end = 0
            self._is_dirty = False  # what was not synced until now need not last
            if self._number not in self._live:
                self._settle_log()
                (self._keep_or_remove if spares else self._remove)(self._number)

    def _leave_to_sync(self) -> None:
        """Begin another file: the one that is written is being synced, and closed after that."""
        self._ended, self._descriptor = self._descriptor, None
        self._end = self._new_end = 0

    def _close_ended(self) -> None:
        if self._ended is not None:
            os.close(self._ended)
            self._ended = None

    def _write(self, parts: list[bytes], offset: int) -> None:
        assert self._descriptor is not None
        start = offset
        for first in range(0, len(parts), _MOST_PARTS):
            some = parts[first : first + _MOST_PARTS]
            wanted = sum(map(len, some))
            written = os.pwritev(self._descriptor, some, start)
            while written < wanted:  # a write is cut short by a full disk, which the next one says, or at 2 GiB
                rest = memoryview(b"".join(some))[written:]
                written += os.pwrite(self._descriptor, rest, start + written)
            start += wanted
        self._grow(max(0, start - self._sizes[self._number]))

    def _grow(self, size: int) -> None:
        """The file that is written has become longer, or shorter."""
        self._sizes[self._number] += size
        self.disk_bytes += size
        self.dead_bytes += size  # until the commit

    def _leave_cache(self, start: int, end: int) -> None:
        descriptor = self._descriptor if self._ended is None else self._ended
        if sys.platform == "linux" and self._reads_before == self._reads() and descriptor is not None:
            start -= start % mmap.PAGESIZE  # the page that the commit before has begun
            with suppress(OSError):  # a file system may know no advice
                os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)

    def _is_written(self, number: int) -> bool:
        return number == self._number and self._descriptor is not None

    def _add(self, number: int, size: int) -> None:
        """So many bytes more of a file are live, or fewer."""
        left = self._live.get(number, 0) + size
        self.dead_bytes -= size
        if left:
            self._live[number] = left
        else:
            self._live.pop(number, None)

    def _keep_or_remove(self, number: int) -> None:
        """A file is empty: keep it as a spare, under another name, for who still reads it is to find it gone."""
        size = self._sizes[number]
        is_usual = self._file_bytes <= size < 2 * self._file_bytes
        if is_usual and len(self._spares) < _MOST_SPARES and self.most_bytes == _NO_QUOTA and not self.lacks_room:
            with suppress(OSError):
                os.rename(body_file(self._directory, number), self._spare_file(number))
                self._spares[number] = self._sizes.pop(number)
                self._postponed.clear()
                return
        self._remove(number)

    @property
    def has_spares(self) -> bool:
        return bool(self._spares)

    def drop_spares(self) -> None:
        """Give the disk back the spare files."""
        while self._spares:
            number, size = self._spares.popitem()
            with suppress(OSError):  # then the next opening does
                os.unlink(self._spare_file(number))
            self._forget(size)

    def _remove(self, number: int) -> None:
        with suppress(OSError):  # then the next opening does
            os.unlink(body_file(self._directory, number))
        self._postponed.clear()
        self._forget(self._sizes.pop(number))

    def _forget(self, size: int) -> None:
        self.disk_bytes -= size
        self.dead_bytes -= size

    def _spare_file(self, number: int) -> Path:
        return self._directory / f"{_SPARE}{number}"


def body_file(directory: Path, number: int) -> Path:
    return directory / f"{_PREFIX}{number}"


def body_files(directory: Path) -> Iterator[tuple[int, int]]:
    """The number and the size of each file of bodies."""
    return _numbered(directory, _PREFIX)


def newest_files(directory: Path) -> list[int]:
    """The numbers of the two files of bodies that were begun last, rising."""
    return sorted(number for number, _ in body_files(directory))[-2:]


def _numbered(directory: Path, prefix: str) -> Iterator[tuple[int, int]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            number = entry.name.removeprefix(prefix)
            if number != entry.name and number.isdecimal() and str(int(number)) == number and int(number) < _NUMBERS:
                with suppress(FileNotFoundError):
                    yield int(number), entry.stat().st_size


def places_of(number: int) -> tuple[int, int]:
    """The first place of a file and the first one behind it."""
    return number << _OFFSET_BITS, (number + 1) << _OFFSET_BITS


def owner_of(message_id: int, check: int) -> int:
    """The id in the record of a body, by what its row has for a check sum."""
    return message_id - check + 1 if check else message_id


def read_bodies(directory: Path, places: Mapping[int, int]) -> tuple[dict[int, bytes], list[int]]:
    """The bodies at these places, by the id in their record; and the ids of those whose file is gone.

    Raises:
        BodyDamaged: the place has other bytes. OSError: the file cannot be read.
    """
    found: dict[int, bytes] = {}
    gone: list[int] = []
    by_file: dict[int, list[tuple[int, int]]] = {}
    for message_id, place in places.items():
        by_file.setdefault(place >> _OFFSET_BITS, []).append((message_id, place & _OFFSETS))
    for number, wanted in by_file.items():
        try:
            descriptor = os.open(body_file(directory, number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            gone += [message_id for message_id, _ in wanted]
            continue
        try:
            for message_id, offset in wanted:
                try:
                    found[message_id] = _read(descriptor, number, message_id, offset)
                except BodyDamaged:
                    if body_file(directory, number).exists():
                        raise
                    gone.append(message_id)  # it was emptied, and is written anew
        finally:
            os.close(descriptor)
    return found, gone


def _read(descriptor: int, number: int, message_id: int, offset: int) -> bytes:
    head = os.pread(descriptor, _RECORD.size, offset)
    if len(head) == _RECORD.size:
        found_id, size, expected = _RECORD.unpack(head)
        if found_id == message_id and size <= os.fstat(descriptor).st_size - offset - _RECORD.size:
            body = os.pread(descriptor, size, offset + _RECORD.size)
            while 0 < len(body) < size:  # one read gives 2 GiB at most
                more = os.pread(descriptor, size - len(body), offset + _RECORD.size + len(body))
                if not more:
                    break  # somebody cuts the file off
                body += more
            if crc32(body, message_id & 0xFFFFFFFF) == expected:
                return body
    raise BodyDamaged(f"{_PREFIX}{number} does not have the body of message {message_id} at {offset}")
