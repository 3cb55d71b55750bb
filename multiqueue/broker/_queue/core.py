"""What a broker queue decides: who is notified of an entry, who may take it, who gets the baton.

Promise     No lost wake-up: while an entry is available and an interested consumer could take it, some consumer is
            NOTIFIED; and a NOTIFIED one either takes an entry or passes the baton.
State       Guarded by the queue's lock, as `_queue/stock` says. Nothing here calls anybody: wake-ups go to `after`.
Waiting     A put chooses one interested consumer. A consumer that becomes interested looks for itself. A release, a
            freed group and the end of a hold pass the baton; so do a pull that found nothing, a consumer that lost
            its credit or its interest, and a removal. A scan that found nothing and the move from NOTIFIED to
            INTERESTED are one hold, so there is no moment between them in which a put could go unseen.
Membership  Removal frees the consumer's standard groups, promotes one that waited to be active, passes the baton.
            Deletion drops what is ready; what consumers have is theirs to settle, and goes when they do.
Priorities  A consumer does not take what one of higher priority wants and has credit for. Whoever has no credit, or
            too little for the entry that is next, is not interested until it has more, and stands in nobody's way.
Source      Broker-J, AbstractQueue; "Consumer-Queue Interactions".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from .._base.outcome import DeadLetterReason
from .._base.settings import QueueKind, QueueSettings
from .._delivery.housekeeping import AT_ONCE
from .consumer import ConsumerState, Interest, QueueConsumer
from .consumer_lists import QueueConsumerManager
from .entry import Entry
from .stock import After, QueueStock

if TYPE_CHECKING:
    from multiqueue.store import Level

    from .base import QueueBase
    from .cursor import Reader
    from .entry import Position


_SLICES_A_VISIT: Final = 128  # some 70 ms, in which other queues are not visited
_NAP: Final = 0.0002  # seconds, between two of them
_SLICE: Final = 256  # entries whose time has come in one hold of the lock: some hundred microseconds


class Pull(Enum):
    """What became of a pull that asked selectors."""

    TAKEN = 1
    NOTHING = 2
    AGAIN = 3


class Clearing:
    """What stood on a deleted queue, and goes piece by piece: a million messages would hold up everybody at once."""

    is_deleted = False

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._position: Position | None = core.entries.start

    def attend(self, ask: object) -> None:
        """For `Housekeeping`: this asks for nothing between two visits."""

    def housekeeping(self) -> float | None:
        """Let go of some of it; None when that was the rest."""
        for _ in range(_SLICES_A_VISIT):
            if self.go_on():
                return None
            time.sleep(_NAP)  # so that others need not ask for the interpreter's lock, and wait 5 ms for it
        return AT_ONCE

    def go_on(self) -> bool:
        """Let go of a slice; True when that was the rest."""
        if self._position is not None:
            with self._core.queue.locked():
                self._position, gone = self._core.clear_some(self._position, _SLICE)
            gone.clear()  # the messages end here, and their memory is free: under no lock
        return self._position is None


class QueueCore(QueueStock):
    """One broker queue under its lock: its entries and its consumers."""

    def __init__(self, queue: QueueBase, settings: QueueSettings, clock: Callable[[], float]) -> None:
        super().__init__(queue, settings, clock)
        self.is_keyed = settings.kind is not QueueKind.STANDARD
        self.consumers = QueueConsumerManager()
        self.last_used = clock()
        self._consumer_numbers = 0

    # -- notifying

    def choose(self, entry: Entry, after: After) -> list[QueueConsumer]:
        """Notify the first interested consumer that can take a new entry, and every browser.

        Where consumers with selectors stand before it, they are returned, in order and with the first one
        that has no selector, and nobody is notified: their selectors must be asked without the lock.
        """
        self.tell_browsers(after)
        choosy: list[QueueConsumer] = []
        for consumer in self.consumers.interested():
            if not self.suits(entry, consumer):
                continue
            if consumer.selector is not None:
                choosy.append(consumer)
            elif choosy:
                choosy.append(consumer)
                break
            else:
                self.notify(consumer, after)
                break
        return choosy

    def tell_browsers(self, after: After) -> None:
        """Something has arrived; browsers are told of everything."""
        for browser in self.consumers.non_acquiring:
            after.append(browser.notify_work)

    def notify(self, consumer: QueueConsumer, after: After) -> bool:
        """INTERESTED to NOTIFIED, with the call that goes with it; False when it was not INTERESTED."""
        if not self.consumers.move(consumer, Interest.NOTIFY):
            return False
        after.append(consumer.notify_work)
        return True

    def pass_baton(self, after: After, count: int = 1) -> None:
        """Notify up to `count` interested consumers that have something to look at."""
        for _ in range(min(count, self.available)):
            for consumer in self.consumers.interested():
                if self.next_for(consumer, after) is not None:
                    self.notify(consumer, after)
                    break
            else:
                return

    # -- pulling

    def rivals(self, consumer: QueueConsumer) -> Sequence[QueueConsumer]:
        """The consumers of higher priority that want work."""
        if self.consumers.levels[0].priority <= consumer.priority or not consumer.acquires:
            return ()
        return self.consumers.willing_above(consumer.priority)

    def pull(self, consumer: QueueConsumer, rivals: Iterable[QueueConsumer], after: After) -> Entry | None:
        """The whole pull of a willing consumer, where no selector has to be asked."""
        entry = self.next_for(consumer, after)
        if entry is None:
            self._found_nothing(consumer, after)
            return None
        for rival in rivals:
            if self.suits(entry, rival):
                self._found_rival(consumer, rival, entry, after)
                return None
        self.pass_over(consumer, entry)
        if self._take(consumer, entry, after):
            return entry
        consumer.revisit(entry)
        return None

    def examine(self, consumer: QueueConsumer, count: int, after: After) -> list[Entry]:
        """Up to `count` entries to ask the selector about; the consumer is past them all.

        What it does not refuse must go back by `Reader.revisit`. Finding nothing ends the pull.
        """
        batch: list[Entry] = []
        if not consumer.is_willing:
            return batch
        while len(batch) < count:
            entry = self.next_for(consumer, after)
            if entry is None:
                break
            self.pass_over(consumer, entry)
            batch.append(entry)
        if not batch:
            self._found_nothing(consumer, after)
        return batch

    def recover(self, levels: Iterable[Level]) -> bool:
        """Take in what a store has by its figures alone; False where the entries themselves are needed."""
        return False

    def begin_get(self) -> None:
        """A get without a consumer begins."""

    def end_get(self, *, found: bool) -> bool:
        """It has what is in memory; True when there may be more that is not."""
        return False

    def turn_down(self, reader: Reader, entries: Sequence[Entry]) -> None:
        """The selector has refused what `examine` gave; the reader is past it already."""

    def pull_matched(
        self,
        consumer: QueueConsumer,
        entry: Entry,
        asked: Sequence[QueueConsumer],
        claimants: Sequence[QueueConsumer],
        after: After,
    ) -> Pull:
        """Take an entry the consumer's selector chose, unless somebody or something has come between.

        `asked` are the rivals whose selectors were asked, `claimants` those of them that want the entry.
        """
        if not consumer.is_willing:
            consumer.revisit(entry)
            return Pull.NOTHING
        if not self.can_have(entry, consumer, after):
            return Pull.AGAIN
        for rival in self.rivals(consumer):
            if rival in claimants and self.suits(entry, rival):
                consumer.revisit(entry)
                self._found_rival(consumer, rival, entry, after)
                return Pull.NOTHING
            if rival not in asked:
                consumer.revisit(entry)
                return Pull.AGAIN
        if self._take(consumer, entry, after):
            return Pull.TAKEN
        consumer.revisit(entry)
        return Pull.NOTHING

    # -- consumers

    def next_consumer_number(self) -> int:
        """A number no other consumer of this queue has or had."""
        self._consumer_numbers += 1
        return self._consumer_numbers

    def add_consumer(self, consumer: QueueConsumer) -> None:
        """Put it into the lists; it wants nothing yet."""
        if consumer.acquires:
            consumer.returns_seen = self.returns.end
        else:
            consumer.returns_seen = self.late_arrivals.end
            self.browsers.append(consumer)
        limit = self.settings.active_consumer_limit
        consumer.active = limit is None or self._active_consumers() < limit
        self.consumers.add(consumer)

    def remove_consumer(self, consumer: QueueConsumer, after: After) -> bool:
        """Take it out of the lists and let the others have what it would have had."""
        if not self.consumers.remove(consumer):
            return False
        self.last_used = self.clock()
        if self.settings.expires is not None:
            self.queue.visit_by(self.last_used + self.settings.expires)
        if not consumer.acquires:
            self.browsers.remove(consumer)
        if self.groups is not None and self.groups.consumer_removed(consumer):
            self.returns.restart_all()
        self._promote(after)
        self.pass_baton(after)
        return True

    def update_interest(self, consumer: QueueConsumer, after: After) -> None:
        """Move a consumer to where its desire, activity and credit say it belongs."""
        if consumer.is_closed:
            return
        if not consumer.wants_work:
            self._lose_interest(consumer, after)
        elif self.consumers.move(consumer, Interest.WANT):
            if not consumer.acquires:
                after.append(consumer.notify_work)
            elif self.next_for(consumer, after) is not None:
                self.notify(consumer, after)

    # -- the queue

    def keep_time(self, now: float, after: After) -> bool:
        """Expire what is past its time and end the holds that are over, some of them; True when there may be more."""
        if self.deleted:
            return False
        self.expire(now, _SLICE, after)
        ended = self.end_holds(now, _SLICE)
        if ended:
            self.tell_browsers(after)
            self.pass_baton(after, ended)
        return min(self.expiries.first, self.holds.first) <= now

    def next_visit(self) -> float:
        expires = self.settings.expires
        if expires is None or len(self.consumers):
            return super().next_visit()
        return min(super().next_visit(), self.last_used + expires)

    def delete(self, reason: DeadLetterReason | None, after: After) -> int:
        """Remove the consumers, drop what is ready; returns how much that was. Without a reason that takes no time."""
        self.deleted, self.reason_of_deletion = True, reason
        for consumer in list(self.consumers):
            self.consumers.remove(consumer)
            after.append(consumer.cancelled)
        self.browsers.clear()
        self.return_loan()
        count = self.ready
        if reason is None:  # nobody is to have any of it: it is let go of when the lock is free
            self.depth -= self.ready
            self.depth_bytes -= self.ready_bytes
            self.ready = self.ready_bytes = self.held = 0
            after.append(partial(self.queue.clear, Clearing(self)))
        else:
            for entry in [entry for entry in self.entries if entry.is_ready]:
                self.drop(entry, reason, after)
        self.end_throttling(after)
        return count

    # -- details

    def _take(self, consumer: QueueConsumer, entry: Entry, after: After) -> bool:
        """Give an entry to a willing consumer that can have it; False when its credit is too small for it."""
        consumer.at_end = False
        credit = consumer.credit
        # A window bounds what is unsettled; what is settled on delivery never is.
        needs_credit = credit is not None and not (consumer.auto_accept and credit.is_window)
        if credit is not None and needs_credit and not credit.take(entry.size):
            self._lose_interest(consumer, after)
            return False
        if consumer.acquires:
            if consumer.auto_accept:
                self.consume(entry, consumer, after)
            else:
                self.acquire(entry, consumer, after, locked=consumer.lock_deliveries)
        if credit is not None and not credit.is_open:
            self._lose_interest(consumer, after)
            return True
        if consumer.state is ConsumerState.INTERESTED:
            self.consumers.move(consumer, Interest.NOTIFY)
        return True

    def _found_nothing(self, consumer: QueueConsumer, after: After) -> None:
        consumer.at_end = True
        if consumer.acquires:
            self.consumers.move(consumer, Interest.UNNOTIFY)
            self.pass_baton(after)

    def _found_rival(self, consumer: QueueConsumer, rival: QueueConsumer, entry: Entry, after: After) -> None:
        # The rival is NOTIFIED, or is now. Passing the baton on would only wake others that it stops as well.
        self.consumers.move(consumer, Interest.UNNOTIFY)
        if rival.selector is not None:
            rival.revisit(entry)  # it may have refused the entry before it changed its mind
        self.notify(rival, after)

    def _lose_interest(self, consumer: QueueConsumer, after: After) -> None:
        if self.consumers.move(consumer, Interest.UNWANT) and consumer.acquires:
            self.pass_baton(after)

    def _active_consumers(self) -> int:
        return sum(consumer.active for consumer in self.consumers)

    def _promote(self, after: After) -> None:
        limit = self.settings.active_consumer_limit
        if limit is None or self._active_consumers() >= limit:
            return
        for consumer in self.consumers:
            if not consumer.active:
                consumer.active = True
                self.update_interest(consumer, after)
                return
