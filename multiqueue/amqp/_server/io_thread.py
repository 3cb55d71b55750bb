"""An I/O thread: an event loop for many connections, and the turns of their consumers.

Posted callbacks run on the thread, in order. Of long work one piece is done between two looks at the sockets, however
many connections have some. Work that is added to a connection's `Piecework` is done to its end, in order, also when the
connection ends meanwhile. The first piece is done by `add`, if nothing is before it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from ...broker import serve_many
from .._session.consumer import Turns


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop: uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


# Bytes of one read: then the others have their turn, the consumers of what was read first. More where frames are long,
# so that they are few as well: where they have more on average than the first figure, as of messages of 3, 48 and 320
# KiB. With longer reads of smaller ones, a client with little to say would wait too long beside.
_READ: Final = 64 * 1024
LARGE_FRAMES: Final = 1024
_LONG_READS: Final = ((LARGE_FRAMES, 1 << 20), (16 * 1024, 2 << 20), (64 * 1024, 4 << 20))


class IoThread:
    """A named thread that runs an event loop until `stop`."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        # Bytes come here from one socket after the other, and are taken out before the next is read.
        self.read_buffer: memoryview = memoryview(bytearray(_LONG_READS[-1][1]))
        self._buffers = [(beyond, self.read_buffer[:size]) for beyond, size in ((-1, _READ), *_LONG_READS)][::-1]
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.turns: Turns = Turns(self._schedule)
        # Invariant: if it is not empty, `_do_first_piece` is scheduled or running. This thread's.
        self._pieces: deque[Callable[[], object]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def buffer_for(self, frame_bytes: int) -> memoryview:
        """Where the next read goes, of a peer whose frames have so many bytes on average."""
        return next(buffer for beyond, buffer in self._buffers if frame_bytes > beyond)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        self.post(self.loop.stop)
        self._thread.join(timeout)

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Run `callback(*args)` on this thread, soon. Any thread; without effect once the loop is closed."""
        try:
            self.loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            pass  # the loop is closed, and its connections with it

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold on to a task until it is done, as its loop does not. On this thread."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def do_piece(self, piece: Callable[[], object]) -> None:
        """Do a piece of something long, soon. On this thread, which does one piece between two looks at its sockets."""
        self._pieces.append(piece)
        if len(self._pieces) == 1:
            self.loop.call_soon(self._do_first_piece)

    def _do_first_piece(self) -> None:
        try:
            self._pieces[0]()
        finally:
            self._pieces.popleft()
            if self._pieces:
                self.loop.call_soon(self._do_first_piece)

    def _schedule(self, callback: Callable[[], None]) -> None:
        if self._thread.ident == threading.get_ident():
            self.loop.call_soon(callback)
        else:
            self.post(callback)

    def _run(self) -> None:
        serve_many()
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self._end_tasks())
            self.loop.close()

    async def _end_tasks(self) -> None:
        """Long work that has begun is done to its end, handshakes that are under way are broken off."""
        while self._pieces:
            await asyncio.sleep(0)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports that were closed just now let go of their sockets


Done = Callable[[BaseException | None], object]
"""A callback after a work: it gets the exception that the work has raised."""


class Piecework:
    """The works of one connection. A work is an iterator, and a piece is a step of it."""

    def __init__(self, do_piece: Callable[[Callable[[], object]], object], flush: Callable[[], object]) -> None:
        self._do_piece = do_piece  # as the I/O thread's
        self._flush = flush  # ends a turn of the connection
        self._line: deque[tuple[Iterator[object], Done]] = deque()

    @property
    def is_under_way(self) -> bool:
        return bool(self._line)

    def add(self, work: Iterator[object], done: Done) -> None:
        """Do a work after those that are under way, then call `done`."""
        self._line.append((work, done))
        if len(self._line) == 1:
            self._go_on()

    def _go_on(self) -> None:
        while self._line:
            work, done = self._line[0]
            failure: BaseException | None = None
            try:
                for _ in work:
                    self._do_piece(self._take_turn)
                    return
            except BaseException as error:  # noqa: BLE001  # `done` gets it
                failure = error
            self._line.popleft()  # first: `done` may add another, which begins at once
            done(failure)

    def _take_turn(self) -> None:
        self._go_on()
        self._flush()
