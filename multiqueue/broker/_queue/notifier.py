"""Which consumer is notified of an entry, which may take it, which gets the baton.

Promise     No lost wake-up: while an entry is available and an interested consumer could take it, some consumer is
            NOTIFIED; and a NOTIFIED one either takes an entry or passes the baton. "Which consumer is notified" in
            docs/design/broker-queue.md has the proof.
State       Guarded by the queue's lock, which the caller holds but for `_offer` and `willing`: these ask selectors,
            under no lock. A method appends to `after` what its caller does once the lock is free.
Source      Broker-J, AbstractQueue; "Consumer-Queue Interactions".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from .._base.ports import After
from .._base.settings import QueueSettings
from .._base.waits import HeldLock
from .callbacks import Callbacks
from .consumer import Interest, QueueConsumer, QueueConsumerManager, Reader, SharedGroups, make_groups
from .entry import Entry, EntryState
from .figures import Figures
from .ports import EntrySource


class Notifier:
    """The consumers of one broker queue, and the calls that tell them of work."""

    source: EntrySource  # set with that of the `Life`

    def __init__(self, settings: QueueSettings, figures: Figures, callbacks: Callbacks, lock: HeldLock) -> None:
        self._active_limit = settings.active_consumer_limit
        self._gives_way = settings.single_active_consumer and settings.counts_failures
        # Invariant: none becomes active while there is one that has given way, and still has entries.
        self._leaving: QueueConsumer | None = None
        self._figures = figures
        self._callbacks = callbacks
        self._lock = lock
        self.groups: SharedGroups | None = make_groups(settings.groups)
        self.consumers: QueueConsumerManager = QueueConsumerManager()

    # -- consumers

    def add(self, consumer: QueueConsumer, after: After) -> None:
        """Take a consumer into the lists. Raises as `EntrySource.reader_joined`.

        The single active one of a quorum queue gives way to one of a higher priority, as soon as it has no entries.
        """
        self.source.reader_joined(consumer)
        consumer.active = not consumer.acquires or self._may_activate()
        self.consumers.add(consumer)
        rivals = self.consumers if self._gives_way and consumer.acquires else ()
        active = next((each for each in rivals if each.active and each.acquires), None)
        if active is not None and consumer.priority > active.priority:
            active.active, self._leaving = False, active
            self.lose_interest(active, after)
            self._relieve(after)

    def remove(self, consumer: QueueConsumer, after: After) -> bool:
        """Take it out of the lists and let the others have its messages; False when it was not there."""
        if not self.consumers.remove(consumer):
            return False
        self.source.reader_left(consumer)
        if self.groups is not None:
            self.groups.consumer_removed(consumer)
        if self._leaving is consumer:
            self._leaving = None
        if self._active_limit is not None:  # or each that goes looks at all
            self._activate(after)
        self.pass_baton(after)
        return True

    def update_interest(self, consumer: QueueConsumer, after: After) -> None:
        """Move a consumer to where its desire, activity and credit say it belongs."""
        if consumer.is_closed:
            return
        if not consumer.wants_work:
            self.lose_interest(consumer, after)
            return
        self.source.demand_changed(consumer, willing=True)
        if self.consumers.move(consumer, Interest.WANT):
            if not consumer.acquires:
                after.append(consumer.notify_work)
            elif self.source.next_for(consumer, after) is not None:
                self.notify(consumer, after)

    def lose_interest(self, consumer: QueueConsumer, after: After) -> None:
        self.source.demand_changed(consumer, willing=False)
        if self.consumers.move(consumer, Interest.UNWANT) and consumer.acquires:
            self.pass_baton(after)

    def retire(self, consumer: QueueConsumer, after: After) -> None:
        """It kept a message for too long and gets nothing further: as an active one it gives way."""
        consumer.desired, consumer.is_late = False, True
        if self._active_limit is not None and consumer.active and consumer.acquires and not consumer.is_closed:
            consumer.active, self._leaving = False, consumer
        self.update_interest(consumer, after)

    def _may_activate(self) -> bool:
        """Whether one more may be active; browsers are, beside the limit."""
        limit = self._active_limit
        return limit is None or (
            self._leaving is None and sum(each.active and each.acquires for each in self.consumers) < limit
        )

    def _activate(self, after: After) -> None:
        """The first of those that wait is active from now on, if one may be."""
        waiting = next((each for each in self.consumers if not (each.active or each.is_late)), None)
        if waiting is not None and self._may_activate():
            waiting.active = True
            self.update_interest(waiting, after)

    def _relieve(self, after: After) -> None:
        """One that has given way may have no entries any more."""
        if self._figures.ready == self._figures.depth:
            self._leaving = None
            self._activate(after)

    # -- who may have an entry

    def suits(self, entry: Entry, reader: Reader) -> bool:
        """True when refusals, `no_local` and groups let this reader have the entry; its selector is not asked."""
        if entry.refused_by is not None and reader.number in entry.refused_by:
            return False
        if reader.no_local and entry.message.publisher is reader.connection:
            return False
        if self.groups is None or not reader.acquires:
            return True
        return self.groups.accepts(entry.group, reader.owner)

    def willing(self, entry: Entry) -> list[QueueConsumer]:
        """The consumers with credit that want this entry now. Under no lock."""
        with self._lock:
            candidates = [each for each in self.consumers.willing() if self.suits(entry, each)]
        return [each for each in candidates if self._callbacks.matches(each.selector, entry.message)]

    def higher_priority(self, consumer: QueueConsumer) -> Sequence[QueueConsumer]:
        if self.consumers.levels[0].priority <= consumer.priority or not consumer.acquires:
            return ()
        return self.consumers.willing(consumer.priority)

    # -- telling them

    def choose(self, entry: Entry, after: After) -> None:
        """Notify the first interested consumer that can take a new entry, and every browser.

        Where consumers with selectors stand before it, none is notified now: it is offered to them, in order and with
        the first one that has no selector, once the lock is free.
        """
        if self.consumers.non_acquiring:
            self.tell_browsers(after)
        if not self.source.has_all:  # a load has matched what the consumer can have, and tells those that chose
            for consumer in self.consumers.interested():
                if consumer.selector is None and self.source.next_for(consumer, after) is not None:
                    self.notify(consumer, after)
                    break
            return
        is_plain = entry.refused_by is None and self.groups is None
        for lists in self.consumers.levels if is_plain else ():  # mostly the first will do
            if lists.interested:
                first = next(iter(lists.interested))
                if first.selector is None and not first.no_local:
                    self.notify(first, after)
                    return
                break
        with_selector: list[QueueConsumer] = []
        for consumer in self.consumers.interested():
            if not (is_plain and not consumer.no_local) and not self.suits(entry, consumer):
                continue
            if consumer.selector is None and not with_selector:
                self.notify(consumer, after)
                break
            with_selector.append(consumer)
            if consumer.selector is None:
                break
        if with_selector:
            after.append(partial(self._offer, entry, with_selector))

    def _offer(self, entry: Entry, candidates: Iterable[QueueConsumer]) -> None:
        """Notify the first candidate whose selector matches. Under no lock.

        The candidates are a snapshot, so the walk ends. A consumer that became interested after it was taken has
        looked at the queue since, and the entry was there by then.
        """
        matches, act = self._callbacks.matches, self._callbacks.act
        try:
            for consumer in candidates:
                if not matches(consumer.selector, entry.message):
                    continue
                after: After = []
                with self._lock:
                    is_done = entry.state is not EntryState.AVAILABLE or self.notify(consumer, after)
                act(after)
                if not is_done:
                    continue
                return
        except BaseException:
            # Say, KeyboardInterrupt in a selector. The message is on the queue, so a consumer must be told.
            with self._callbacks.deciding() as after:
                self.pass_baton(after)
            raise

    def tell_browsers(self, after: After) -> None:
        """Notify every browser of an arrival."""
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
        if self._leaving is not None:
            self._relieve(after)
        for _ in range(min(count, self._figures.ready - self._figures.held)):
            for consumer in self.consumers.interested():
                if self.source.next_for(consumer, after) is not None:
                    self.notify(consumer, after)
                    break
            else:
                return

    # -- a pull ends

    def found_nothing(self, consumer: QueueConsumer, after: After) -> None:
        """A pull ends without an entry: the baton goes on."""
        consumer.at_end = True
        if consumer.acquires:
            self.consumers.move(consumer, Interest.UNNOTIFY)
            self.pass_baton(after)

    def end_if_empty(self, consumer: QueueConsumer) -> None:
        """After a pull that brought something: end as the next one would, if nothing is left for anybody."""
        if self._figures.ready == self._figures.held and consumer.acquires:
            consumer.at_end = True
            self.consumers.move(consumer, Interest.UNNOTIFY)

    def leave_to(self, other: QueueConsumer, consumer: QueueConsumer, entry: Entry, after: After) -> None:
        """A pull ends before an entry that another consumer goes first for. That one is NOTIFIED, or is now."""
        self.consumers.move(consumer, Interest.UNNOTIFY)  # the baton would only wake others that it stops as well
        if other.selector is not None:
            self.source.look_again(other, (entry,))  # it may have refused the entry before it changed its mind
        self.notify(other, after)

    def check_invariants(self) -> None:
        self.consumers.check_invariants()
        for consumer in self.consumers:
            assert consumer.is_willing <= consumer.wants_work or consumer.credit is not None
            if consumer.credit is not None:
                consumer.credit.check_invariants()
