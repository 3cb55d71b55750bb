"""The consumers of sessions, each between a broker queue and the deliveries of a client: their prefetch, and whose
turn it is.

Promise     A consumer with work is served on its session's thread until it has none. While several of one queue have
            work, each gets one message in turn; one that is alone at its queue, runs. A client that consumes its own
            publishes gets them before their confirms: these wait for the turn.
State       `on_work` and `on_cancelled` are called by the queue, on any thread; all else of a consumer runs on its
            session's. A publisher's thread that looks at `is_open` of a window meanwhile may see the value of before;
            the session then tells the queue, which looks again under its own lock. `Turns._lock` guards the set of
            ready consumers and `_scheduled`. It is a leaf: nothing is called under it. `awaits_turn` of a sender is set
            before its consumer becomes ready, and cleared by a turn that had one of its consumers.
Waiting     The notification that finds no turn scheduled schedules one. A turn takes the whole set out, and clears the
            flag with it, before it pulls: a consumer notified meanwhile schedules the next.
Source      "Consumer-Queue Interactions": the publisher's thread notifies, the consumer's thread pulls.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from sys import maxsize
from typing import Any, Final, NamedTuple, Protocol

from ..._locks import Lock
from ...broker import BrokerQueue, Credit, Entry, QueueConsumer, VirtualHost
from .._wire.frames import deliver_prefix
from .figures import ConsumerFigures
from .routing import close_reply_queue


@dataclass(eq=False, slots=True)
class ChannelWindow:
    """The limit over all consumers of a channel (`basic.qos` with global); None is none."""

    limit: int | None = None
    taken: int = 0


class Window(Credit):
    """One consumer's limit, within its channel's; None is none."""

    __slots__ = ("_channel", "limit", "taken")

    def __init__(self, limit: int | None, channel: ChannelWindow) -> None:
        super().__init__()
        self.limit: int | None = limit
        self._channel = channel
        self.taken: int = 0

    @property
    def is_open(self) -> bool:
        limit, channel = self.limit, self._channel
        return (limit is None or self.taken < limit) and (channel.limit is None or channel.taken < channel.limit)

    @property
    def of_any_size(self) -> int:
        limit, channel = self.limit, self._channel
        left = maxsize if limit is None else limit - self.taken
        return left if channel.limit is None else min(left, channel.limit - channel.taken)

    def take_run(self, sizes: Sequence[int]) -> int:
        limit, channel = self.limit, self._channel
        count = len(sizes)
        if limit is not None:
            count = min(count, limit - self.taken)
        if channel.limit is not None:
            count = min(count, channel.limit - channel.taken)
        count = max(count, 0)
        self.taken += count
        channel.taken += count
        return count

    def settled(self, messages: int, size_bytes: int) -> bool:
        """Give back; True when the consumer was at its limit or its channel's, so that somebody must look again."""
        was_open = self.is_open
        self.taken -= messages
        self._channel.taken -= messages
        return not was_open

    def check_invariants(self) -> None:
        """Raise AssertionError when more was given back than taken."""
        assert 0 <= self.taken <= self._channel.taken, f"{self.taken} of {self._channel.taken}"


_TURN: Final = 256  # deliveries before sockets are read again; some 3 ms
_RUN: Final = 32  # of them in one pull, where no other consumer of its queue waits: the lock is held for some 50 us
_RUN_BYTES: Final = 32 * 1024  # of messages in one pull: a slow reader is noticed before the next


class Sender(Protocol):
    """The way of deliveries to a client. Any thread may call `post` and `notify`, and set `awaits_turn`, the session's
    thread the others."""

    awaits_turn: bool
    """A consumer may have work: what is confirmed waits until it had its turn."""

    def flush(self) -> None: ...

    def took_turn(self) -> None:
        """Its consumers had their turn: tell the client everything."""

    def failed(self, error: BaseException) -> None: ...

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Run this on the session's thread, soon."""

    def notify(self, consumer: SessionConsumer) -> None:
        """A consumer may have work."""


@dataclass(eq=False, repr=False, slots=True)
class SessionConsumer:
    """One `basic.consume`."""

    tag: str
    queue: BrokerQueue
    sender: Sender
    _deliver: Callable[[SessionConsumer, Sequence[Entry]], None]
    _cancelled: Callable[[SessionConsumer], None]
    _timed_out: Callable[[SessionConsumer, float], None]
    window: Window | None  # None: it does not ack, and there is nothing to count
    is_reply: bool = False  # of direct reply-to: its queue is its own, and goes with it
    prefix: bytes = field(init=False)
    pull: Callable[[QueueConsumer, int, int], list[Entry]] = field(init=False)
    consumer: QueueConsumer = field(init=False)  # set once the queue has it; until then the queue calls nothing

    def __post_init__(self) -> None:
        self.prefix = deliver_prefix(self.tag)
        self.pull = self.queue.deliver_messages

    def deliver(self, most: int) -> int:
        """Pull up to `most` messages and deliver them; returns how many."""
        entries = self.pull(self.consumer, most, _RUN_BYTES)
        if entries:
            self._deliver(self, entries)
        return len(entries)

    def on_work(self, consumer: QueueConsumer) -> None:
        """The queue may have something. Any thread, under no lock."""
        self.sender.awaits_turn = True
        self.sender.notify(self)

    def on_cancelled(self, consumer: QueueConsumer) -> None:
        """The queue was deleted. Any thread, under no lock."""
        self.sender.post(self._cancelled, self)

    def on_timed_out(self, timeout: float) -> None:
        """It kept a message for too long. Any thread, under no lock."""
        self.sender.post(self._timed_out, self, timeout)

    def want(self, desired: bool) -> None:
        self.queue.set_notify_work_desired(self.consumer, desired)

    def settled(self, count: int) -> bool:
        """Acks came in; True when the window of the channel may have been what stopped others too."""
        if self.window is None or not self.window.settled(count, 0):
            return False
        if not self.consumer.is_closed:
            self.queue.credit_changed(self.consumer)
        return True

    def stop(self, host: VirtualHost) -> None:
        try:
            self.queue.remove_consumer(self.consumer)
        finally:
            if self.is_reply:
                close_reply_queue(host, self.queue)

    def figures(self) -> ConsumerFigures:
        window, mine = self.window, self.consumer
        return ConsumerFigures(
            tag=self.tag,
            queue=self.queue.name,
            ack_required=window is not None,
            exclusive=mine.exclusive,
            prefetch=0 if window is None else window.limit or 0,
            priority=mine.priority,
            active=mine.active,
            unacked=0 if window is None else window.taken,
            timeout=self.queue.timeout_of(mine),
        )

    def __repr__(self) -> str:
        return f"<consumer {self.tag!r} of {self.sender!r}>"


class Held(NamedTuple):
    """A message in a client's hands: its entry, its owner by the queue's books (None: browsed), its consumer if any."""

    entry: Entry
    owner: object
    consumer: SessionConsumer | None


class Turns:
    """The ready consumers of one thread. `schedule` has a turn taken on it, soon; any thread calls it."""

    def __init__(self, schedule: Callable[[Callable[[], None]], object]) -> None:
        self._schedule = schedule
        self._lock = Lock()
        # Invariant: if it is not empty, a turn is scheduled or running.
        self._ready: dict[SessionConsumer, None] = {}
        self._scheduled = False

    def notify(self, consumer: SessionConsumer) -> None:
        """A consumer may have work. Any thread, under no lock of a queue."""
        with self._lock:
            self._ready[consumer] = None
            if self._scheduled:
                return
            self._scheduled = True
        self._schedule(self._take)

    def _take(self) -> None:
        with self._lock:
            ring = deque(self._ready)
            self._ready.clear()
            self._scheduled = False
        rivals = Counter([consumer.queue for consumer in ring])
        served = dict.fromkeys([consumer.sender for consumer in ring])
        left = _TURN
        while ring and left:
            consumer = ring.popleft()
            queue = consumer.queue
            try:
                delivered = consumer.deliver(1 if rivals[queue] > 1 else min(left, _RUN))
            except BaseException as error:  # noqa: BLE001  # a fault of ours costs one connection, not the thread
                consumer.sender.failed(error)
                delivered = 0
            left -= delivered
            if delivered and not consumer.consumer.at_end:
                ring.append(consumer)
            else:  # it is told when there is more
                rivals[queue] -= 1
        for sender in served:
            sender.took_turn()
        for consumer in ring:
            self.notify(consumer)
