"""An I/O thread: an event loop for many connections, and the turns of their consumers.

Promise     A consumer with work is served on its connection's thread until it has none: publishers never write to a
            socket of somebody else's. While several have work, each gets one message in turn; a single one, runs.
            Of long work one piece is done between two looks at the sockets, however many connections have some.
State       `_lock` guards the set of ready consumers and `_scheduled`. It is a leaf: nothing is called under it.
Waiting     The loop waits for sockets, timers and `post`. A queue's notification puts its consumer into the set; the
            one that finds no turn scheduled schedules one. A turn takes the whole set out, and clears the flag
            with it, before it pulls: what is notified meanwhile schedules the next. What a turn leaves at its
            limit goes back into the set.
Membership  A consumer that was cancelled is pulled once more at most, and its queue gives it nothing.
Source      "Consumer-Queue Interactions": the publisher's thread notifies, the I/O thread pulls.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

_TURN = 256  # deliveries before sockets are read again; some 3 ms
_RUN = 32  # of them in one pull, where nobody else waits: a pull holds its queue's lock for some 100 us then


class Sender(Protocol):
    """Where deliveries of a consumer go."""

    def flush(self) -> None: ...
    def failed(self, error: Exception) -> None: ...


class Puller(Protocol):
    """A consumer that can be served."""

    sender: Sender

    def deliver(self, most: int) -> int: ...


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop: uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class IoThread:
    """A named thread that runs an event loop until `stop`."""

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._lock = threading.Lock()
        # Invariant: if it is not empty, a turn is scheduled or running.
        self._ready: dict[Puller, None] = {}
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        # Invariant: if it is not empty, `_do_first_piece` is scheduled or running. This thread's.
        self._pieces: deque[Callable[[], object]] = deque()

    def start(self) -> None:
        """Begin to run."""
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        """End the loop and join the thread. Connections are closed by whoever made them, before."""
        self.post(self.loop.stop)
        self._thread.join(timeout)

    @property
    def is_current(self) -> bool:
        """True on this very thread."""
        return self._thread.ident == threading.get_ident()

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

    def notify(self, puller: Puller) -> None:
        """A consumer may have work. Any thread, under no lock of a queue."""
        with self._lock:
            self._ready[puller] = None
            if self._scheduled:
                return
            self._scheduled = True
        self._schedule()

    def _schedule(self) -> None:
        if self.is_current:
            self.loop.call_soon(self._turn)
        else:
            self.post(self._turn)

    def _turn(self) -> None:
        with self._lock:
            ring = deque(self._ready)
            self._ready.clear()
            self._scheduled = False
        served: dict[Sender, None] = {}
        left = _TURN
        while ring and left:
            puller = ring.popleft()
            delivered = self._serve(puller, 1 if ring else min(left, _RUN))
            if delivered:
                served[puller.sender] = None
                ring.append(puller)
                left -= delivered
        for sender in served:
            sender.flush()
        for puller in ring:
            self.notify(puller)

    @staticmethod
    def _serve(puller: Puller, most: int) -> int:
        try:
            return puller.deliver(most)
        except Exception as error:  # noqa: BLE001  # a fault of ours costs one connection, not the thread
            puller.sender.failed(error)
            return 0

    def _run(self) -> None:
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
