"""Standard output, and how many of the written bytes its reader has taken.

Promise     `taken` counts bytes that may be forgotten here: those that went into a file or a terminal, and of a pipe
            those that its reader has read. The first thousand pieces are given to a waiting reader one at a time, so
            that one which ends soon (`head`) has read no further than it needed.
Assumes     A pipe's FIONREAD, asked at its writing end, is what stands in it, as on Linux. Where it is not, all that
            was written counts as taken.
"""

from __future__ import annotations

import array
import io
import os
import select
import stat
import sys
from time import monotonic, sleep
from typing import BinaryIO

try:
    import fcntl
    import termios
except ImportError:  # Windows: there is no asking
    fcntl = termios = None  # type: ignore[assignment]

_PATIENCE = 0.1  # seconds; a reader that waits for input has read long before
_ONE_BY_ONE = 1000  # pieces; to wait for the reader costs 0.1 ms each, which a long stream should not pay
_AT_THE_END = 1.0  # seconds; then what the pipe has accepted counts as read
_TRIES = 50  # to give the reader the CPU, before sleeping
_SLEEP = 0.0002  # seconds; as long as a reader needs for a small piece


def output_to(stream: BinaryIO) -> Output:
    try:
        is_pipe = fcntl is not None and stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except io.UnsupportedOperation:  # a stream of Python's own
        is_pipe = False
    return Pipe(stream) if is_pipe else Output(stream)


class Output:
    """A file, a terminal, or what else is written to and that is all."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.written = 0
        self.taken = 0

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self.written += len(data)

    def flush(self) -> None:
        self._stream.flush()
        self.taken = self.written

    def look(self) -> None:
        """Find out how many bytes the reader has taken. Raises BrokenPipeError: the reader of the pipe has ended."""

    def finish(self) -> None:
        self.flush()


class Pipe(Output):
    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self._number = stream.fileno()
        self._poll = select.poll()
        self._poll.register(self._number, 0)  # of its end alone: POLLERR
        self._count = array.array("i", [0])
        self._is_behind = False
        self._one_by_one = _ONE_BY_ONE

    def write(self, data: bytes) -> None:
        if self._one_by_one:
            self._one_by_one -= 1
            self._await_reader()
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._number, rest) :]
        except BrokenPipeError:
            self._unread()
            raise
        self.written += len(data)

    def flush(self) -> None:
        if self._one_by_one:
            self._await_reader()
        else:
            self._unread()

    def look(self) -> None:
        has_ended = self._poll.poll(0)
        self._unread()  # after that: nothing is read from now on if it has
        if has_ended:
            raise BrokenPipeError("the reader of the pipe has ended")

    def finish(self) -> None:
        self._wait_until_read(_AT_THE_END)
        self.look()
        self.taken = self.written

    def _await_reader(self) -> None:
        if not self._is_behind:
            self._is_behind = not self._wait_until_read(_PATIENCE)

    def _wait_until_read(self, seconds: float) -> bool:
        for _ in range(_TRIES):
            if not self._unread():
                return True
            sleep(0)
        deadline = monotonic() + seconds
        while self._unread():
            self.look()
            if monotonic() >= deadline:
                return False
            sleep(_SLEEP)
        return True

    def _unread(self) -> int:
        """How many bytes stand in the pipe; the others are taken."""
        fcntl.ioctl(self._number, termios.FIONREAD, self._count)
        unread = self._count[0]
        self.taken = max(self.taken, self.written - unread)
        if not unread:
            self._is_behind = False
        return unread


def forget_output() -> None:
    """The reader has ended: let the interpreter flush its buffer into nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
