"""The way of a message into the queues of a virtual host.

Promise     A message is put once on every queue that its exchange and routing key lead to. A call that raises has
            changed nothing; after `MessageRefused` and `StoreFull` other queues may have the message, as they say.
Who runs    Only `publish` of a persistent message blocks. Conditions of bindings read header values
            on the publisher's thread, under no lock.
Membership  A message routed to a queue that is deleted before it is put there counts as not routed there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from multiqueue.store import Commit

from .._base.errors import MessageRefused, NoConsumers, Unroutable
from .._base.message import Message
from .._base.outcome import PutOutcome
from .._durable.batch import Submission
from .._durable.journal import Journal, follow
from .._paging.memory import MemoryManager
from .._queue.queue import BrokerQueue
from .._routing.topology import Topology
from .life import Life


class Published(NamedTuple):
    """How many queues have the message, and which of them ask the producer to wait for room.

    `commit` is on its way while durable queues wait for their store; None where there is nothing to wait for.
    """

    queues: int
    throttled: tuple[BrokerQueue, ...] = ()
    commit: Commit | None = None

    @property
    def is_confirmed(self) -> bool:
        """True when every queue has what it was promised, or never will; `wait` says which."""
        return self.commit is None or self.commit.is_done

    def wait(self, timeout: float | None = None) -> bool:
        """Block until durable queues have the message; False when `timeout` seconds passed first.

        Raises:
            StoreFull: there was no room; no durable queue has it.
            StoreFailed, StoreClosed: it is not known to be stored, and the store is at its end.
        """
        return self.commit is None or self.commit.wait(timeout)

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """Have `callback(None)`, or `callback(error)` of `wait`, called once: now if it is known, else on the store's
        thread, in the order in which messages were published. It must not block: other commits wait for it. What it
        raises is logged.
        """
        if self.commit is None:
            callback(None)
        else:
            self.commit.add_done_callback(lambda error: follow(lambda: callback(error)))


# What most publishes come to, made once: a tenth of their cost.
_ON_ONE_QUEUE = Published(1)
_ENQUEUED = PutOutcome.ENQUEUED


class Publishing:
    """Puts messages on the queues of one virtual host. Any thread may call anything."""

    def __init__(self, topology: Topology, memory: MemoryManager, life: Life) -> None:
        self._name = topology.virtual_host
        self._topology = topology
        self.memory = memory
        self._life = life
        self._journal = life.journal

    def publish(self, message: Message, mandatory: bool, immediate: bool, wait: bool) -> Published:
        """As `Verbs.publish`; without `wait`, as `Verbs.publish_nowait`."""
        if self._life.is_closed or self._journal is not None:
            self._life.check()
        return self.put_on(self._topology.route(message), message, mandatory=mandatory, immediate=immediate, wait=wait)

    def route(self, message: Message, further_keys: Sequence[str] = ()) -> list[BrokerQueue]:
        self._life.check()
        return self._topology.route(message, further_keys)

    def sole_queue(self, messages: Sequence[Message]) -> BrokerQueue | None:
        """The one queue of these messages of one address, None if each must be looked at. `have_gone` counts them."""
        self._life.check()
        largest = self.memory.largest_body
        persistent = messages[0].persistent
        for message in messages:
            body = message.body
            if message.persistent is not persistent or type(body) is not bytes or len(body) > largest:
                return None
            if message.expiration is not None or message.delay is not None:
                return None
        return self._topology.sole_queue(messages[0])

    def have_gone(self, messages: Sequence[Message]) -> None:
        """They are where `sole_queue` said."""
        self._topology.count_received(messages[0].exchange, len(messages))

    def put_on(
        self,
        queues: list[BrokerQueue],
        message: Message,
        *,
        mandatory: bool = False,
        immediate: bool = False,
        wait: bool = False,
    ) -> Published:
        """The second half of `publish`, on the queues to which the first one led."""
        body = message.body
        if type(body) is not bytes or len(body) > self.memory.largest_body:  # `size`, written out: 2 % of a publish
            self.check_size(queues, message)
        if self._journal is not None and message.persistent:
            return self._put_persistent(self._journal, queues, message, mandatory, immediate, wait)
        accepted = 0
        otherwise: list[tuple[BrokerQueue, PutOutcome]] = []
        for queue in queues:
            outcome = queue.put(message, immediate=immediate)
            if outcome is _ENQUEUED:
                accepted += 1
            else:
                otherwise.append((queue, outcome))
        if otherwise or (mandatory and not accepted):
            return self.account_for(message, accepted, otherwise, mandatory)
        return _ON_ONE_QUEUE if accepted == 1 else Published(accepted)

    def _put_persistent(
        self,
        journal: Journal,
        queues: list[BrokerQueue],
        message: Message,
        mandatory: bool,
        immediate: bool,
        wait: bool,
    ) -> Published:
        """Durable queues get it in one commit; the others when that is under way."""
        submission = Submission(journal)
        outcomes = submission.put_on([queue for queue in queues if queue.is_stored], message, immediate=immediate)
        commit = submission.submit()
        for queue in queues:
            if not queue.is_stored:
                outcomes.append((queue, queue.put(message, immediate=immediate)))
        if commit is not None and wait and journal.may_wait:
            commit.wait()
        if outcomes and all(outcome is _ENQUEUED for _, outcome in outcomes):
            return Published(len(outcomes), (), commit)
        return self.account_for(message, 0, outcomes, mandatory, commit)

    def check_size(self, queues: list[BrokerQueue], message: Message) -> None:
        """Return when a message for these queues can be kept. Raises MessageTooLarge: it cannot."""
        if queues:
            self.memory.check_size(message.size, queues[0].label)

    def account_for(
        self,
        message: Message,
        accepted: int,
        otherwise: list[tuple[BrokerQueue, PutOutcome]],
        mandatory: bool,
        commit: Commit | None = None,
    ) -> Published:
        """The outcome of a put: `accepted` queues have it, and those that `otherwise` says. Raises as `publish`."""
        throttled = tuple(queue for queue, outcome in otherwise if outcome is PutOutcome.THROTTLED)
        refused = [queue for queue, outcome in otherwise if outcome is PutOutcome.REJECTED]
        accepted += sum(outcome.accepted for _, outcome in otherwise)
        if refused:
            names = tuple(queue.name for queue in refused)
            raise MessageRefused(self._why_refused(refused), message=message, queues=names)
        if not accepted and any(outcome is PutOutcome.NO_CONSUMER for _, outcome in otherwise):
            raise NoConsumers(f"no consumer wants the message now in vhost '{self._name}'", message=message)
        if not accepted and mandatory:
            raise self.unroutable(message)
        return Published(accepted, throttled, commit)

    def unroutable(self, message: Message) -> Unroutable:
        """The error of a mandatory message that reaches no queue."""
        return Unroutable(
            f"exchange '{message.exchange}' in vhost '{self._name}' leads"
            f" routing key '{message.routing_key}' to no queue",
            message=message,
        )

    def _why_refused(self, queues: list[BrokerQueue]) -> str:
        full = ", ".join(f"'{queue.name}'" for queue in queues if not queue.is_short_of_memory)
        short = ", ".join(f"'{queue.name}'" for queue in queues if queue.is_short_of_memory)
        reasons = []
        if full:
            reasons.append(f"at their limit in vhost '{self._name}': {full}; consume from them or raise the limit")
        if short:
            reasons.append(
                f"short of memory in vhost '{self._name}': {short}; wait_for_room before publishing more, consume what"
                " cannot page, or raise memory_limit"
            )
        return "; ".join(reasons)


def remaining(deadline: float | None) -> float | None:
    """Seconds until a deadline, None for none."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
