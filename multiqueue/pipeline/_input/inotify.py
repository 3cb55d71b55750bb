"""Files that come into local directories, as Linux tells it: `events = "inotify"`.

Promise     A file that is written, linked or moved into a directory below the roots is reported, also in directories
            that come later, and where a root is removed, or another directory takes its place. When the system has
            dropped events, or more came at once than is held, `has_lost` says so, and a listing finds them.
Why ours    Four calls of the C library and a struct; a package would bring threads of its own and hide the overflow.
Threads     The runner's.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import struct
import sys
from collections import deque
from collections.abc import Iterable

from .._base.errors import Unprepared
from .._base.place import Place
from .broker_queue import Settle

_CLOSE_WRITE, _MOVED_TO, _CREATE, _OVERFLOW, _IGNORED = 0x8, 0x80, 0x100, 0x4000, 0x8000
_ONLY_DIRECTORIES, _IS_DIRECTORY = 0x01000000, 0x40000000
_HEAD = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_READ_BYTES = 64 << 10
_MOST_HELD = 10_000


class Watches:
    """The directories that are watched. Close it by the stack it was made for."""

    def __init__(self, lane: str, roots: Iterable[Place], avoid: Iterable[Place], stack: contextlib.ExitStack) -> None:
        """Raises Unprepared where a root is not there, or the system watches no more directories."""
        if sys.platform != "linux":
            raise Unprepared(f'lane {lane!r}: events = "inotify" is of Linux; leave it out: files are listed then')
        self._lane = lane
        self._avoid = {place.text for place in avoid}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise self._refused("inotify")
        stack.callback(os.close, self._fd)
        self._directories: dict[int, str] = {}
        self._found: deque[str] = deque()
        self.has_lost = False
        """Events were dropped; whoever lists the lanes sets it back."""
        self.is_drained = False
        self._roots: dict[str, tuple[int, int] | None] = {}
        for root in roots:
            if not os.path.isdir(root.text):
                raise Unprepared(
                    f"lane {lane!r}: {root.text!r} does not exist, and inotify watches existing directories; create it"
                )
            self._roots[root.text] = _identity(root.text)
            self._watch(root.text, tells=False)

    @property
    def has_more(self) -> bool:
        return bool(self._found or select.select([self._fd], [], [], 0)[0])

    def events(self, room: int) -> list[tuple[Place, Settle]]:
        """Files that have come, at most so many."""
        for root, known in self._roots.items():
            if (now := _identity(root)) != known:
                self._roots[root] = now
                self._watch(root, tells=True)  # one that is gone has nothing
        while len(self._found) < room:
            try:
                events = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                break
            start = 0
            while start < len(events):
                watch, mask, _, length = _HEAD.unpack_from(events, start)
                name = events[start + _HEAD.size : start + _HEAD.size + length].rstrip(b"\0")
                self._note(watch, mask, os.fsdecode(name))
                start += _HEAD.size + length
        return [(Place(self._found.popleft()), lambda accept: None) for _ in range(min(room, len(self._found)))]

    def _note(self, watch: int, mask: int, name: str) -> None:
        if mask & _OVERFLOW:
            self.has_lost = True
            for root in self._roots:  # for directories that were not told
                self._watch(root, tells=False)
        elif mask & _IGNORED:  # the directory is gone
            self._directories.pop(watch, None)
        elif watch in self._directories and name:
            path = os.path.join(self._directories[watch], name)
            if mask & _IS_DIRECTORY:
                if path not in self._avoid:
                    self._watch(path, tells=True)
            else:
                self._tell(path)

    def _watch(self, top: str, *, tells: bool) -> None:
        """Watch the directory and those below it; tell of the files that are there already."""
        for directory, names, files in os.walk(top):
            names[:] = [name for name in names if os.path.join(directory, name) not in self._avoid]
            watch = self._libc.inotify_add_watch(
                self._fd, os.fsencode(directory), _CLOSE_WRITE | _MOVED_TO | _CREATE | _ONLY_DIRECTORIES
            )
            if watch >= 0:
                self._directories[watch] = directory
            elif ctypes.get_errno() not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                raise self._refused(directory)
            for name in files if tells else ():  # after the watch: what comes in between is told twice
                self._tell(os.path.join(directory, name))

    def _tell(self, path: str) -> None:
        if len(self._found) < _MOST_HELD:
            self._found.append(path)
        else:
            self.has_lost = True

    def _refused(self, what: str) -> Unprepared:
        code = ctypes.get_errno()
        more = "; raise fs.inotify.max_user_watches" if code == errno.ENOSPC else ""
        more = "; raise fs.inotify.max_user_instances" if code == errno.EMFILE else more
        return Unprepared(f"lane {self._lane!r}: cannot watch {what!r}: {os.strerror(code)}{more}")


def _identity(directory: str) -> tuple[int, int] | None:
    """What the name stands for now; None where there is nothing."""
    try:
        status = os.stat(directory)
    except OSError:
        return None
    return status.st_dev, status.st_ino
