"""Delivering and settling: who has what until it is acked.

Promise     A message that was delivered and not acked stands in `unacked` under its delivery tag, in order of delivery,
            and is settled once. Those of one consumer are settled in one step of their queue, but for very many: they
            are settled in order, piece by piece, and other connections have their turns in between (`piecework`).
            Nothing of this connection is read or delivered meanwhile.
"""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, cast

from ...broker import IllegalStep
from .._wire.errors import ChannelFault
from .._wire.hot import ACK, NACK, Ack, Nack, Reject, encode_deliver
from .._wire.message import body_of, names_of, properties_of
from .._wire.methods import commands
from .channel_base import ChannelBase, Held
from .ending import end_each
from .piecework import PIECE

if TYPE_CHECKING:
    from ...broker import Entry, EntryQueue
    from .channel import ServerChannel
    from .consumer import ServerConsumer

_log = logging.getLogger("multiqueue.amqp")

Settle = Callable[["EntryQueue", "list[Entry]", object], object]


class ChannelDelivering(ChannelBase):
    """The part of a channel that consumers and their acks use."""

    # -- delivering

    def deliver(self, consumer: ServerConsumer, entry: Entry) -> None:
        """Write a message's frames."""
        message = entry.message
        try:
            names, properties, body = names_of(message), properties_of(message), body_of(message)
        except ValueError as error:
            self._cannot_deliver(consumer, entry, error)
            return
        self._last_tag = tag = self._last_tag + 1
        if not consumer.no_ack:
            self.unacked[tag] = Held(entry, consumer.consumer, consumer)
        self.connection.send(
            encode_deliver(
                self.number,
                consumer.prefix,
                tag,
                entry.redelivered,
                names,
                properties,
                body,
                self.connection.frame_max,
            )
        )

    def _cannot_deliver(self, consumer: ServerConsumer, entry: Entry, error: ValueError) -> None:
        _log.error("message of %s cannot go over a wire, and is rejected: %s", entry.queue.label, error)
        if not consumer.no_ack:
            entry.queue.reject(entry, consumer.consumer)
            consumer.settled(1)

    def consumer_cancelled(self, consumer: ServerConsumer) -> None:
        """The queue of a consumer was deleted."""
        if self.consumers.get(consumer.tag) is not consumer:
            return
        del self.consumers[consumer.tag]
        if self.connection.can("consumer_cancel_notify"):
            self.reply(commands.Basic.Cancel, consumer_tag=consumer.tag, nowait=True)
            self.connection.flush()

    def unused_tag(self) -> str:
        """A consumer tag that the client did not choose."""
        return "amq.ctag-" + base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()

    # -- settling

    def _on_ack(self, ack: Ack) -> None:
        if ack.multiple:
            self._settle_all(ack.delivery_tag, accept, ACK)
            return
        if self.transaction is not None:
            self._settle(ack.delivery_tag, accept)
            return
        held = self.unacked.pop(ack.delivery_tag, None)
        if held is None:
            raise _unknown_tag(ack.delivery_tag)
        entry, owner, consumer = held
        try:
            entry.queue.accept(entry, owner)
        except IllegalStep:
            if not entry.queue.is_deleted:
                raise
        if consumer is not None and consumer.settled(1):
            self.look_again(consumer)

    def acknowledge(self, tags: Sequence[int]) -> None:
        """Acks of single messages that have come in a row: those of one consumer are settled in one step.

        Raises:
            ChannelFault: nothing unacked has one of the tags. Those before it are settled.
        """
        if self.transaction is not None:
            for tag in tags:
                self._settle(tag, accept)
            return
        taken: list[Held] = []
        try:
            for tag in tags:
                held = self.unacked.pop(tag, None)
                if held is None:
                    raise _unknown_tag(tag)
                taken.append(held)
        finally:
            self.settle(taken, accept)

    def _on_nack(self, nack: Nack) -> None:
        how = release if nack.requeue else reject
        if nack.multiple:
            self._settle_all(nack.delivery_tag, how, NACK)
        else:
            self._settle(nack.delivery_tag, how)

    def _on_reject(self, rejected: Reject) -> None:
        self._settle(rejected.delivery_tag, release if rejected.requeue else reject)

    def _settle(self, tag: int, how: Settle) -> None:
        held = self.unacked.pop(tag, None)
        if held is None:
            raise _unknown_tag(tag)
        self._settle_taken({tag: held}, how)

    def _settle_all(self, tag: int, how: Settle, method: bytes) -> None:
        """Settle everything up to a tag, 0 being everything."""
        if tag and tag not in self.unacked:
            raise _unknown_tag(tag)
        last = tag or self._last_tag
        if self._settle_some(last, how):
            self.connection.do_in_pieces(self._settling(last, how), cast("ServerChannel", self), method)

    def _settling(self, last: int, how: Settle) -> Iterator[None]:
        """Settle what is left up to a tag, a piece at each step but the first."""
        yield
        while self._settle_some(last, how):
            yield

    def _settle_some(self, last: int, how: Settle) -> bool:
        """Settle a piece of what is unacked up to a tag; True when there may be more."""
        taken = self._take_some(last)
        self._settle_taken(taken, how)
        return len(taken) == PIECE

    def _settle_taken(self, taken: dict[int, Held], how: Settle) -> None:
        if self.transaction is not None:
            self.transaction.settle(taken, how)
        else:
            self.settle(taken.values(), how)

    def _take_some(self, last: int) -> dict[int, Held]:
        """Take out a piece of what is unacked up to a tag."""
        unacked = self.unacked
        taken = {each: unacked[each] for each in islice(takewhile(last.__ge__, unacked), PIECE)}
        for each in taken:
            del unacked[each]
        return taken

    def settle(self, held: Iterable[Held], how: Settle) -> None:
        """Settle messages, those of one consumer in one step of the queue."""
        stopped: ServerConsumer | None = None
        for (queue, owner), group in _by_owner(held).items():
            try:
                how(queue, [each.entry for each in group], owner)
            except IllegalStep:
                if not queue.is_deleted:
                    raise
            consumer = group[0].consumer
            if consumer is not None and consumer.settled(len(group)):
                stopped = consumer
        if stopped is not None:
            self.look_again(stopped)

    def look_again(self, but: ServerConsumer | None = None) -> None:
        """The channel's window may have opened: its other consumers look again."""
        if self.window.limit is None and but is not None:
            return
        for consumer in self.consumers.values():
            if consumer is not but:
                consumer.queue.credit_changed(consumer.consumer)

    def recovering(self) -> Iterator[None]:
        """Everything unacked goes back, a piece at each step."""
        last = self._last_tag
        while taken := self._take_some(last):
            self.settle(taken.values(), release)
            if len(taken) < PIECE:
                return
            yield

    def give_back(self) -> Iterator[None]:
        """Everything unacked goes back, as the channel ends, a piece at each step.

        What cannot go back keeps nothing else from it, and what the channel does not have any more is left alone.
        """
        while taken := self._take_some(self._last_tag):
            self._give_back_each(taken.values())
            if len(taken) < PIECE:
                return
            yield

    def _give_back_each(self, held: Iterable[Held]) -> None:
        for (queue, owner), group in _by_owner(held).items():
            entries = [each.entry for each in group]
            try:
                release(queue, entries, owner)
            except Exception as error:  # noqa: BLE001  # each alone then, which says which
                if not queue.is_deleted:
                    _log.warning("%r ends: %s; its messages of %s go back one by one", self, error, queue.label)
                left = [entry for entry in entries if entry.owner is owner]
                end_each(self, [(f"give back {entry!r}", partial(release, queue, [entry], owner)) for entry in left])


def _by_owner(held: Iterable[Held]) -> dict[tuple[EntryQueue, object], list[Held]]:
    groups: dict[tuple[EntryQueue, object], list[Held]] = {}
    for each in held:
        groups.setdefault((each.entry.queue, each.owner), []).append(each)
    return groups


def accept(queue: EntryQueue, entries: list[Entry], owner: object) -> object:
    """Be done with messages."""
    return queue.accept(entries, owner)


def release(queue: EntryQueue, entries: list[Entry], owner: object) -> object:
    """Put messages back at their places."""
    return queue.release(entries, owner)


def reject(queue: EntryQueue, entries: list[Entry], owner: object) -> object:
    """Dead-letter messages."""
    return queue.reject(entries, owner)


def _unknown_tag(tag: int) -> ChannelFault:
    return ChannelFault(406, f"unknown delivery tag {tag}")
