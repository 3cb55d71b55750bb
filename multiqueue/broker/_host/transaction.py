"""A transaction: publishes and settlements that are done together at commit, or not at all.

Promise     Before `commit` nothing of it is visible; "Transactions" in docs/design/broker-front.md has its steps.
Stored      What durable queues have to do with it is one commit of the store, all or nothing, and is made before
            anything else is done. When the store refuses it, the transaction is unchanged.
Limits      Routing is done when a message is published, with the bindings of that moment. A queue at its limit
            does not undo a commit; refusals are reported afterwards. Queues change one after the other.
State       One thread at a time uses a transaction; it has no lock. To settle the same messages elsewhere while
            `commit` runs is a mistake that may be found when half is done.
Source      AMQP 0-9-1, class tx.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from .._base.errors import MessageRefused, NotFound, Unroutable
from .._base.message import DeadLetterReason, Message
from .._delivery.received import Disposition, Received, Settler
from .._durable.submission import Outcomes, Submission
from .._queue.entry import Entry, IllegalStep
from .._queue.life import dying
from .._queue.queue import BrokerQueue
from .dead_letters import DeadLetterRouting
from .host_state import HostState
from .publishing import Publishing


@dataclass(eq=False, repr=False)
class Transaction:
    """The publishes and settlements of one client between two commits; made by `VirtualHost.transaction`.

    As a context manager it commits at the end of the block, and rolls back when an exception leaves it.
    """

    _host_state: HostState
    _publishing: Publishing
    _dead_letters: DeadLetterRouting
    _published: list[tuple[Message, list[BrokerQueue], bool]] = field(default_factory=list)  # and whether mandatory
    # By holder and method. Invariant: a delivery's entry is a key of one of the values at most.
    _settled: dict[tuple[Settler, Disposition], dict[Entry, Received]] = field(default_factory=dict)

    def publish(self, message: Message, *, mandatory: bool = False) -> int:
        """Route the message now, publish it at commit; returns to how many queues.

        Raises:
            NotFound, AccessRefused: as `VirtualHost.publish`.
            Unroutable: `mandatory`, and no queue is bound for it. The rest of the transaction stands. Where its queues
                are gone by the commit, `commit` raises it.
        """
        message = self._publishing.coming(message)
        queues = self._publishing.route(message)
        if mandatory and not queues:
            raise self._publishing.unroutable(message)
        self.publish_on(queues, message, mandatory=mandatory)
        return len(queues)

    def publish_on(self, queues: list[BrokerQueue], message: Message, *, mandatory: bool = False) -> None:
        """Publish at commit on these queues, to which `VirtualHost.route` led: for callers that route otherwise.

        No queue is fine here, also where it is `mandatory`: then `commit` says so.

        Raises:
            MessageTooLarge: it would take more than a quarter of the memory limit. It is not in the transaction.
        """
        self._publishing.check_size(queues, message)
        self._published.append((message, queues, mandatory))

    def accept(self, *received: Received) -> None:
        """Accept these messages at commit.

        Raises:
            ValueError: one of them is settled in this transaction already; then none is added.
        """
        self._settle("accept", received)

    def release(self, *received: Received) -> None:
        """Give these messages back to their queues at commit. Raises as `accept`."""
        self._settle("release", received)

    def reject(self, *received: Received) -> None:
        """Dead-letter these messages at commit. Raises as `accept`."""
        self._settle("reject", received)

    def discard(self, *received: Received) -> None:
        """As `reject`, and no failure. Raises as `accept`."""
        self._settle("discard", received)

    def commit(self) -> None:
        """Commit everything, and begin again. Waits for the store if durable queues are involved.

        Raises:
            BrokerClosed: the virtual host was closed. Nothing was done.
            IllegalStep: a delivery was settled elsewhere. Nothing was done; the transaction is as it was.
            TypeError: a message that the store of a durable queue cannot keep. Nothing was done.
            StoreFull: the store has no room. Nothing was done; the transaction is as it was.
            StoreFailed: the store failed. It is not known whether it has the whole transaction or nothing of it.
            MessageRefused: everything was done, but queues at their limit refused a message.
            Unroutable: everything was done, but no queue has a mandatory message. Several of these two come as an
                ExceptionGroup, in the order of publishing.
        """
        self._host_state.check()
        outcomes: list[tuple[Message, Outcomes, bool]] = []
        journal = self._host_state.journal
        with ExitStack() as unlocking:
            self._make_sure_of_deliveries(unlocking)
            if journal is not None:
                submission = Submission(journal)
                stored = self._fill(submission, outcomes)
                commit = submission.submit()
                if commit is not None and journal.may_wait:
                    commit.wait()
                for entry in stored:
                    entry.is_settled_elsewhere = True
            unlocking.pop_all()  # they are settled below
        try:
            dying.hold()
            for message, queues, mandatory in self._published if journal is None else ():
                outcomes.append((message, [(queue, queue.put(message)) for queue in queues], mandatory))
        finally:
            dying.let_go()
        settled, self._published, self._settled = self._settled, [], {}
        refusals: list[MessageRefused | Unroutable] = []
        for message, reached, mandatory in outcomes:
            try:
                self._publishing.account_for(message, 0, reached, mandatory)
            except (MessageRefused, Unroutable) as refusal:
                refusals.append(refusal)
        for (holder, how), deliveries in settled.items():
            getattr(holder, how)(*deliveries.values())
        if len(refusals) > 1:
            raise ExceptionGroup("committed, but not every message is on its queues", refusals)
        if refusals:
            raise refusals[0]

    def find_again(self) -> None:
        """Have messages of queues that are deleted go to those of the same names. Raises NotFound: there is none."""
        for at, (message, queues, mandatory) in enumerate(self._published):
            if any(queue.is_deleted for queue in queues):
                self._published[at] = message, [self._namesake(queue) for queue in queues], mandatory

    def _namesake(self, queue: BrokerQueue) -> BrokerQueue:
        found = self._publishing.topology.find_queue(queue.name)
        if found is None:
            raise NotFound(f"no {queue.label}")
        return found.queue

    def rollback(self) -> None:
        """Discard everything, and begin again."""
        self._published, self._settled = [], {}

    def forget_some(self, most: int) -> bool:
        """`rollback` of what may be much: forget up to `most` publishes, and settlements of a kind; is more left?"""
        del self._published[-most:]
        for key, deliveries in list(self._settled.items()):
            for _ in range(min(most, len(deliveries))):
                deliveries.popitem()
            if not deliveries:
                del self._settled[key]
        return bool(self._published or self._settled)

    @property
    def publishes(self) -> int:
        """How many publishes wait for the commit. Any thread may ask."""
        return len(self._published)

    def __len__(self) -> int:
        """How many publishes and settlements wait for the commit."""
        return len(self._published) + sum(map(len, self._settled.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, type: type[BaseException] | None, *others: object) -> None:
        if type is None:
            self.commit()
        else:
            self.rollback()

    def _settle(self, how: Disposition, received: tuple[Received, ...]) -> None:
        for entries in self._settled.values():
            for each in received:
                if each.entry in entries:
                    raise ValueError(f"{each.entry!r} is settled in this transaction already")
        for each in received:
            self._settled.setdefault((each.holder, how), {})[each.entry] = each

    def _fill(self, submission: Submission, outcomes: list[tuple[Message, Outcomes, bool]]) -> list[Entry]:
        """Everything goes into one submission; returns the entries that it deletes."""
        stored: list[Entry] = []
        try:
            for message, queues, mandatory in self._published:
                reached: Outcomes = []
                outcomes.append((message, reached, mandatory))
                for queue in queues:
                    if queue.is_stored:
                        reached.append((queue, submission.put(queue, message)))
                    else:
                        submission.then(partial(_put, queue, message, reached))
            for (_, how), deliveries in self._settled.items():
                if how == "release":
                    continue
                for entry in deliveries:
                    if not (entry.is_stored and entry.queue.is_stored):
                        continue  # it need not be kept: it is settled when the rest is committed
                    if how != "accept":
                        letter = entry.letter(failed=how == "reject")
                        self._dead_letters.send_on(entry.queue, letter, DeadLetterReason.REJECTED, submission)
                    submission.delete(entry.number)
                    stored.append(entry)
        except BaseException:
            submission.withdraw()
            raise
        return stored

    def _make_sure_of_deliveries(self, unlocking: ExitStack) -> None:
        """Lock every entry, so that none can be taken away before it is settled, and have it unlocked should that end.

        A message whose queue is deleted may have left its holder with the queue. Then nothing is left to settle.
        """
        for deliveries in self._settled.values():
            for entry, delivery in list(deliveries.items()):
                queue = entry.queue
                try:
                    is_locked = queue.lock(entry, delivery.consumer) > 0
                except IllegalStep:
                    if not queue.is_deleted:
                        raise
                    is_locked = False
                    self._host_state.check()  # or it would come back although it was committed
                if is_locked:
                    unlocking.callback(_unlock, delivery)
                elif queue.is_deleted:
                    del deliveries[entry]


def _unlock(delivery: Received) -> None:
    with suppress(IllegalStep):  # it was settled elsewhere meanwhile; what is being raised matters more
        delivery.entry.queue.unlock(delivery.entry, delivery.consumer)


def _put(queue: BrokerQueue, message: Message, reached: Outcomes) -> None:
    reached.append((queue, queue.put(message)))
