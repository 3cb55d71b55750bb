"""The messages that a session has delivered, until they are settled.

Promise     A message that was delivered and not acked stands in `unacked` under its delivery tag, in order of delivery.
            Those of one consumer are settled in one step of their queue; very many are settled piece by piece
            (`Effects.do_in_pieces`), in order, and nothing of the client is done in between.
State       One thread uses it; any thread may read the counters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile
from typing import Final

from ...broker import DeliveryCounting, Entry, EntryQueue, IllegalStep
from .._wire.errors import ChannelFault
from .._wire.fields import Long
from .._wire.frames import Content
from .._wire.message import content_of, with_headers
from .consumer import ChannelWindow, Held, SessionConsumer
from .effects import PIECE, Output, end_each
from .transaction import SessionTransaction, Settle

_log = logging.getLogger("multiqueue.amqp")
_held: Final[Callable[[tuple[Entry, object, SessionConsumer]], Held]] = partial(tuple.__new__, Held)  # half the time
# How many messages are settled in a piece. Of those that go back some may go to dead letters, which costs 70 us each.
_SIZES: Final[dict[Settle, int]] = {
    "accept": PIECE,
    "release": PIECE // 4,
    "fail": PIECE // 4,
    "discard": PIECE // 16,
    "reject": PIECE // 16,
}


@dataclass(eq=False, repr=False)
class Deliveries:
    """The deliveries of one session, and their settlement."""

    _number: int
    _out: Output
    _consumers: Mapping[str, SessionConsumer]
    window: ChannelWindow = field(default_factory=ChannelWindow)
    unacked: dict[int, Held] = field(default_factory=dict)  # by delivery tag, rising
    # Counters. What was acked follows from them: what was delivered, is not unacked and did not go back.
    last_tag: int = 0  # of all deliveries
    without_ack: int = 0
    got: int = 0
    got_without_ack: int = 0
    got_empty: int = 0
    redelivered: int = 0
    _went_back: int = 0  # to their queue, or were rejected

    def deliver(self, consumer: SessionConsumer, entries: Sequence[Entry]) -> None:
        unacked, mine = self.unacked, consumer.consumer
        acks, owner = consumer.window is not None, mine if mine.acquires else None
        has_counts = consumer.queue.settings.type == "quorum"
        going: list[Entry] = []
        redelivered: list[bool] = []
        contents: list[Content] = []
        try:
            for entry in entries:
                try:
                    content = counted_content(entry) if has_counts else content_of(entry.message)
                except (ValueError, TypeError) as error:
                    self._cannot_deliver(consumer, entry, owner, error)
                    continue
                contents.append(content)
                going.append(entry)
                redelivered.append(entry.delivery_count > 1 or entry.maybe_delivered)  # as `entry.redelivered`
            if not contents:
                return
            first = self.last_tag + 1
            self.last_tag += len(contents)
            if acks:
                held = [_held((entry, owner, consumer)) for entry in going]
                unacked.update(zip(range(first, first + len(held)), held, strict=True))
            else:
                self.without_ack += len(contents)
            self.redelivered += sum(redelivered)
            self._out.deliver_all(self._number, consumer, first, redelivered, contents)
        except BaseException:  # a fault of ours ends the session, which gives back what has a tag; the others go now
            tagged = {held.entry for held in unacked.values()}
            left = [Held(entry, owner, consumer) for entry in entries if acks and entry not in tagged]
            self._give_back_each(dict(enumerate(left)))
            raise

    def _cannot_deliver(self, consumer: SessionConsumer, entry: Entry, owner: object, error: Exception) -> None:
        text, extra = "message of %s cannot go over a wire, and is rejected: %s", {"queue": entry.queue.name}
        _log.error(text, entry.queue.label, error, extra=extra)
        if consumer.window is not None:
            if owner is not None:
                entry.queue.reject(entry, owner)
            consumer.settled(1)

    def next_tag(self, held: Held | None, *, redelivered: bool = False) -> int:
        self.last_tag = tag = self.last_tag + 1
        self.redelivered += redelivered
        if held is not None:
            self.unacked[tag] = held
            self.got += 1
        else:
            self.got_without_ack += 1
        return tag

    def oldest(self) -> tuple[int, str] | None:
        """The delivery tag of the first message that is unacked, and its queue; None for none. Any thread may ask."""
        while True:
            try:
                return next(((tag, held.entry.queue.name) for tag, held in self.unacked.items()), None)
            except RuntimeError:
                pass  # the session's thread has just changed it

    def acked(self, unacked: int) -> int:
        """How many messages the client is done with, when so many are unacked."""
        return self.last_tag - self.without_ack - self.got_without_ack - self._went_back - unacked

    def settle_each(self, tags: Sequence[int], how: Settle, transaction: SessionTransaction | None) -> None:
        """Settle single messages. Raises ChannelFault: nothing unacked has one; those before are settled."""
        taken: dict[int, Held] = {}
        try:
            for tag in tags:
                if (held := self.unacked.pop(tag, None)) is None:
                    raise _unknown_tag(tag)
                taken[tag] = held
        finally:
            self._settle(taken, how, transaction)

    def settle_all(self, tag: int, how: Settle, transaction: SessionTransaction | None) -> Iterator[None]:
        """Settle everything up to a tag, 0 being everything, a piece at each step. Raises ChannelFault: nothing unacked
        has this tag."""
        if tag and tag not in self.unacked:
            raise _unknown_tag(tag)
        return self._take_out(tag or self.last_tag, how, lambda taken: self._settle(taken, how, transaction))

    def _take_out(self, last: int, how: Settle, then: Callable[[dict[int, Held]], None]) -> Iterator[None]:
        """Take out what is unacked up to a tag, a piece of the size of `how` at each step, and do `then` with it."""
        unacked, size = self.unacked, _SIZES[how]
        while taken := {each: unacked[each] for each in islice(takewhile(last.__ge__, unacked), size)}:
            for each in taken:
                del unacked[each]
            then(taken)
            if len(taken) < size:
                return
            yield

    def _settle(self, taken: dict[int, Held], how: Settle, transaction: SessionTransaction | None) -> None:
        if transaction is not None:
            transaction.settle(taken, how)
            return
        stopped: SessionConsumer | None = None
        for (queue, owner, consumer), entries in _by_owner(taken).items():
            if how != "accept":
                self._went_back += len(entries)
            try:
                if owner is not None:
                    getattr(queue, how)(entries, owner)
            except IllegalStep:
                if not queue.is_deleted:
                    raise
            if consumer is not None and consumer.settled(len(entries)):
                stopped = consumer
        if stopped is not None:
            self.look_again(stopped)

    def look_again(self, but: SessionConsumer | None = None) -> None:
        """The channel's window may have opened: its other consumers look again."""
        if self.window.limit is None and but is not None:
            return
        for consumer in self._consumers.values():
            if consumer is not but:
                consumer.queue.credit_changed(consumer.consumer)

    def opening(self, settled: dict[int, Held]) -> Iterator[None]:
        """A commit has settled these: windows open, a piece at each step."""
        while settled:
            for _ in range(min(PIECE, len(settled))):
                _, held = settled.popitem()
                if held.consumer is not None and held.consumer.settled(1):
                    self.look_again(held.consumer)
            if settled:
                yield

    def restoring(self, settled: dict[int, Held]) -> Iterator[None]:
        """After a rollback: these are unacked again, in order of delivery, a piece at each step."""
        if not settled:
            return
        unacked, self.unacked = self.unacked, {}
        tags = sorted((*settled, *unacked))
        for begin in range(0, len(tags), PIECE):
            if begin:
                yield
            for tag in tags[begin : begin + PIECE]:
                self.unacked[tag] = settled.pop(tag) if tag in settled else unacked.pop(tag)

    def give_back(self) -> Iterator[None]:
        """Everything unacked goes back, as the session ends, a piece at each step. A message that cannot go back keeps
        no other from it; those that the session has no more are left alone."""
        return self._take_out(self.last_tag, "fail", self._give_back_each)

    def _give_back_each(self, taken: dict[int, Held]) -> None:
        for (queue, owner, _), entries in _by_owner(taken).items():
            self._went_back += len(entries)
            try:
                if owner is not None:
                    queue.fail(entries, owner)
            except Exception as error:  # noqa: BLE001  # each alone then, which says which
                if not queue.is_deleted:
                    text = "%r ends: %s; its messages of %s go back one by one"
                    _log.warning(text, self, error, queue.label, extra={"queue": queue.name})
                left = [entry for entry in entries if entry.owner is owner]
                end_each(self, [(f"give back {entry!r}", partial(queue.fail, [entry], owner)) for entry in left])

    def __repr__(self) -> str:
        return f"<channel {self._number} of {self._out!r}>"


def counted_content(entry: Entry, *, is_got: bool = False) -> Content:
    """A message of a queue that counts deliveries, with the counts of the past ones in its headers."""
    content, counts = content_of(entry.message), counts_of(entry, is_got=is_got)
    return (content[0], with_headers(content[1], counts), content[2]) if counts else content


def counts_of(entry: Entry, *, is_got: bool = True) -> dict[str, object]:
    """The headers that a queue adds which counts deliveries, of past ones. In 3.10 a get tells of none, too."""
    counting, past = entry.queue.settings.delivery_counting, entry.delivery_count - 1
    if counting is DeliveryCounting.RETURNS:
        return {"x-delivery-count": Long(past)} if past or is_got else {}
    past = past or entry.failures  # of the queue that it is a dead letter of
    if counting is not DeliveryCounting.FAILURES or not past:
        return {}
    failures = {"x-delivery-count": Long(entry.failures)} if entry.failures else {}
    return {"x-acquired-count": Long(past), **failures}


def _by_owner(taken: Mapping[int, Held]) -> dict[tuple[EntryQueue, object, SessionConsumer | None], list[Entry]]:
    groups: dict[tuple[EntryQueue, object, SessionConsumer | None], list[Entry]] = {}
    for entry, owner, consumer in taken.values():
        groups.setdefault((entry.queue, owner, consumer), []).append(entry)
    return groups


def _unknown_tag(tag: int) -> ChannelFault:
    return ChannelFault(406, f"unknown delivery tag {tag}")
