"""Calling what is not ours, under no lock: selectors and callbacks, and a pull in which selectors are asked.

Promise     No put goes unseen by such a pull: its consumer stays NOTIFIED until the hold in which it finds nothing.
State       None: what a pull looks at is the queue's, under the queue's lock.
Failures    An exception goes to `on_error` and stops no other callback; one that is no `Exception` goes through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from .._base.message import Message
from .._base.ports import After
from .._base.waits import HeldLock
from .consumer import Predicate, QueueConsumer
from .entry import Entry
from .state import QueueState

_LARGEST_BATCH: Final = 64  # entries a selector is asked about between two holds; some 20 us of lock


@dataclass(eq=False, repr=False, slots=True)
class Callbacks:
    """The callbacks of one broker queue, and its lock. `on_error(action, error)` is told what failed."""

    _on_error: Callable[[str, Exception], object]
    _lock: HeldLock

    def act(self, after: After) -> None:
        """Do what was decided under the lock, now that it is free."""
        actions = iter(after)
        try:
            for action in actions:
                try:  # as `guard`, without a call for each message
                    action()
                except Exception as error:  # noqa: BLE001  # goes to the handler; the next callback still runs
                    self._on_error("callback", error)
        finally:
            for action in actions:  # those that follow one that was interrupted: somebody waits for them
                self.guard("callback", action)

    @contextmanager
    def deciding(self) -> Iterator[After]:
        """A block under the lock; what it appends to the list is done when the lock is free. Not for each message."""
        after: After = []
        with self._lock:
            yield after
        self.act(after)

    def guard(self, what: str, action: Callable[[], object]) -> bool:
        """False when it failed."""
        try:
            action()
        except Exception as error:  # noqa: BLE001  # goes to the handler; the next callback still runs
            self._on_error(what, error)
            return False
        return True

    def matches(self, selector: Predicate | None, message: Message) -> bool:
        """Ask a selector; none wants everything, and one that raises has refused."""
        try:
            return selector is None or bool(selector(message))
        except Exception as error:  # noqa: BLE001  # goes to the handler; a selector that fails refuses
            self._on_error("selector", error)
            return False


@dataclass(eq=False, repr=False, slots=True)
class FilteredPull:
    """The pull of one queue for a consumer that has a selector, or one of higher priority has."""

    _state: QueueState
    _callbacks: Callbacks

    def pull(self, consumer: QueueConsumer) -> list[Entry]:
        """The next entry that the selector wants, now the consumer's own; empty when there is none.

        1. Hold the lock, and look at a batch of entries: one, then twice as many each time, up to 64.  2. Ask the
        consumer's selector, and those of consumers of higher priority.  3. Hold the lock, move the consumer past what
        was refused, and take the match if nothing has changed that forbids it; else begin again.
        """
        size, matches = 1, self._callbacks.matches
        while True:
            after: After = []
            with self._state.lock:
                source = self._state.source
                batch = self._next_locked(consumer, size, after)
                higher = self._state.higher_priority(consumer) if batch else ()
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
            with self._state.lock:
                if self._state.source is source:  # else the queue pages since, and finds the match again
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
        source = self._state.source
        while len(batch) < most and (entry := source.next_for(consumer, after)) is not None:
            batch.append(entry)
            if not source.asks_selectors:
                return batch
            source.pass_over(consumer, entry)
        for entry in batch:
            consumer.revisit(entry)
        if not batch:
            self._state.found_nothing(consumer, after)
        return batch

    def _take_locked(
        self, consumer: QueueConsumer, entry: Entry, asked: Mapping[QueueConsumer, bool], after: After
    ) -> list[Entry] | None:
        """Take the match, unless one of those `asked` wants it first; empty when it has to wait, None to look again."""
        state = self._state
        if not consumer.is_willing:
            return []
        if not state.can_have(entry, consumer, after):
            return None
        for other in state.higher_priority(consumer):
            if other not in asked:
                return None
            if asked[other] and state.suits(entry, other):
                state.leave_to(other, consumer, entry, after)
                return []
        taken = state.give(consumer, [entry], after, is_past=True)
        consumer.pass_revisits(taken)
        return taken
