"""Messages that are put, or pulled, in one hold of their queue's lock."""

from __future__ import annotations

import random

import pytest

from multiqueue.broker import BrokerQueue, Credit, Entry, Message, QueueConsumer, QueueSettings, StandardEntryList
from multiqueue.testing import FakeClock


class _Twin:
    """A queue with two consumers, one of which settles on delivery; what they have, in order."""

    def __init__(self, *, in_rows: bool) -> None:
        self.in_rows = in_rows
        self.clock = FakeClock()
        self.queue = BrokerQueue("q", clock=self.clock)
        self.credit = Credit(5)
        self.held: list[Entry] = []
        self.given: list[tuple[str, object, bool]] = []
        self.consumers = [
            self.queue.add_consumer(lambda _: None, tag="acks", credit=self.credit),
            self.queue.add_consumer(lambda _: None, tag="automatic", auto_accept=True),
        ]
        for each in self.consumers:
            self.queue.set_notify_work_desired(each, True)

    def pull(self, consumer: QueueConsumer, most: int) -> None:
        entries: list[Entry] = []
        if self.in_rows:
            entries = self.queue.deliver_messages(consumer, most, most)
        else:
            left = most
            while left > 0 and (entry := self.queue.deliver_single_message(consumer)) is not None:
                entries.append(entry)
                left -= entry.size
        self.given += [(consumer.tag, entry.message.body, entry.redelivered) for entry in entries]
        if not consumer.auto_accept:
            self.held += entries

    def step(self, chance: random.Random) -> object:
        """Do something by chance; what can be seen then."""
        acking, automatic = self.consumers
        number = chance.randrange(3000)
        match number % 6:
            case 0 | 1:
                messages = [Message(b"%d" % (number + more)) for more in range(number % 7)]
                if messages and self.in_rows:
                    self.queue.put_all(messages)
                else:
                    for each in messages:
                        self.queue.put(each)
            case 2:
                self.queue.put(Message(b"late %d" % number, expiration=number % 5, delay=number % 3))
                self.clock.advance(1)
                self.queue.housekeeping()
            case 3:
                self.pull(acking, number % 30)
            case 4:
                self.pull(automatic, number % 30)
            case 5 if self.held:
                entry = self.held.pop(number % len(self.held))
                (self.queue.accept if number % 2 else self.queue.release)(entry, acking)
                if self.credit.settled(1, entry.size):
                    self.queue.credit_changed(acking)
        self.queue.check_invariants()
        return self.given, self.queue.statistics(), acking.state, automatic.state, [each.history for each in self.held]


@pytest.mark.parametrize("seed", range(5))
def test_a_pull_of_many_is_as_many_pulls(seed: int) -> None:
    """And a put of many as many puts: what consumers are given, figures, states and histories are the same."""
    rows, singles = _Twin(in_rows=True), _Twin(in_rows=False)
    chances = random.Random(seed), random.Random(seed)
    for _ in range(300):
        assert rows.step(chances[0]) == singles.step(chances[1])


def test_what_is_appended_together_stands_as_if_one_by_one() -> None:
    """Over the ends of chunks; each entry's number is its position."""
    log = StandardEntryList(QueueSettings())
    queue = BrokerQueue("q")
    entries = [Entry(queue, Message(b""), 0) for _ in range(600)]
    log.append_all(entries[:300])
    log.append_all([])
    log.append_all(entries[300:])
    log.check_invariants()
    assert [entry.position for entry in entries] == list(range(600))
    assert list(log) == entries
