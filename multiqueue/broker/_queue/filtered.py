"""A pull in which selectors are asked, without the lock.

Promise     No put goes unseen by such a pull: its consumer stays NOTIFIED until the hold in which it finds nothing.
State       None: what a pull looks at is the queue's, under the queue's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .._base.ports import After
from .callbacks import Callbacks
from .consumer import QueueConsumer
from .entry import Entry
from .life import Life

_LARGEST_BATCH: Final = 64  # entries a selector is asked about between two holds; some 20 us of lock


@dataclass(eq=False, repr=False, slots=True)
class FilteredPull:
    """The pull of one queue for a consumer that has a selector, or one of higher priority has."""

    _life: Life
    _callbacks: Callbacks

    def pull(self, consumer: QueueConsumer) -> list[Entry]:
        """The next entry that the selector wants, now the consumer's own, or empty.

        1. Hold the lock, and look at a batch of entries: one, then twice as many each time, up to 64.  2. Ask the
        consumer's selector, and those of consumers of higher priority.  3. Hold the lock, move the consumer past the
        refused entries, and take the match if nothing has changed that forbids it; else begin again.
        """
        size, matches = 1, self._callbacks.matches
        while True:
            after: After = []
            with self._life.lock:
                source = self._life.source
                batch = self._next_locked(consumer, size, after)
                higher = self._life.notifier.higher_priority(consumer) if batch else ()
            self._callbacks.act(after)
            if not batch:
                return []
            refused: list[Entry] = []
            matched: Entry | None = None
            for entry in batch:
                if matches(consumer.selector, entry.message):
                    matched = entry
                    break
                refused.append(entry)
            asked = {other: matches(other.selector, matched.message) for other in higher} if matched is not None else {}
            size = min(2 * size, _LARGEST_BATCH)
            after = []
            taken: list[Entry] | None = None
            with self._life.lock:
                if self._life.source is source:  # else the queue pages since, and finds the match again
                    source.turn_down(consumer, refused)
                    if matched is not None:
                        taken = self._take_locked(consumer, matched, asked, after)
            self._callbacks.act(after)
            if taken is not None:
                return taken

    def _next_locked(self, consumer: QueueConsumer, most: int, after: After) -> list[Entry]:
        """Up to `most` entries to ask the selector about, which the consumer revisits unless it turns them down.

        Finding nothing ends the pull. Where entries were matched before, it is one, and the consumer stays before it.
        """
        batch: list[Entry] = []
        if not consumer.is_willing:
            return batch
        source = self._life.source
        while len(batch) < most and (entry := source.next_for(consumer, after)) is not None:
            batch.append(entry)
            if not source.has_all:
                return batch
            source.pass_over(consumer, entry)
        source.look_again(consumer, batch)
        if not batch:
            self._life.notifier.found_nothing(consumer, after)
        return batch

    def _take_locked(
        self, consumer: QueueConsumer, entry: Entry, asked: Mapping[QueueConsumer, bool], after: After
    ) -> list[Entry] | None:
        """Take the match, unless one of those `asked` wants it first; empty when it has to wait, None to look again."""
        notifier = self._life.notifier
        if not consumer.is_willing:
            return []
        if not self._life.can_have(entry, consumer, after):
            return None
        for other in notifier.higher_priority(consumer):
            if other not in asked:
                return None
            if asked[other] and notifier.suits(entry, other):
                notifier.leave_to(other, consumer, entry, after)
                return []
        taken = self._life.give(consumer, [entry], after, is_past=True)
        self._life.source.turn_down(consumer, taken)
        return taken
