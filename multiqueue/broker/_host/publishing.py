"""The way of a message into the queues of a virtual host, one by one and in runs.

Promise     A message is put once on every queue that its exchange and routing key lead to. A call that raises has
            changed nothing; after `MessageRefused` and `StoreFull` other queues may have the message, as they say.
            A `Publisher` keeps this for each message as if it came alone, and the order of its messages on a queue:
            what differs is that the store is given them in runs.
State       A publisher, and the run that it fills, are one thread's; a run that was handed in is the store's thread's.
Who runs    Only `publish` of a persistent message blocks. Conditions of bindings read header values
            on the publisher's thread, under no lock.
Waiting     A publisher calls `hand_in` before it does anything that has to come after, and before it waits: no other
            call commits it. `hand_in`, and a publish that fills a run, wait as `publish_nowait` does, while too many
            bytes wait for their commit; on an I/O thread `is_held_back` says when its connection may go on.
Membership  A message routed to a queue that is deleted before it is put there counts as not routed there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from multiqueue.store import Commit

from .._base.errors import MessageRefused, NoConsumers, Unroutable
from .._base.message import MESSAGE_BYTES, Message, PutOutcome, anew
from .._base.waits import may_take_long
from .._durable.journal import Journal, follow
from .._durable.submission import Outcomes, Submission, Tell
from .._paging.memory import MemoryManager
from .._queue.life import dying
from .._queue.queue import BrokerQueue
from .._routing.topology import Topology
from .host_state import HostState

_LONGEST: Final = 64  # messages of a run: some 500 us for the store's thread, while the next run is filled
_LARGEST: Final = 128 * 1024  # bytes of a run in memory, its last message apart
_SHARE: Final = 1 / 16  # of the memory limit: as much at most
_ENQUEUED: Final = PutOutcome.ENQUEUED


class Published(NamedTuple):
    """How many queues have the message, and which of them ask the producer to wait for room.

    `commit` is on its way while durable queues wait for their store; None where there is nothing to wait for.
    """

    queues: int
    throttled: tuple[BrokerQueue, ...] = ()
    commit: Commit | None = None

    @property
    def is_confirmed(self) -> bool:
        """True when every durable queue has the message, or never will; `wait` says which."""
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
        thread, in the order in which messages were published. It must not block: other commits wait for it. Its errors
        are logged.
        """
        if self.commit is None:
            callback(None)
        else:
            self.commit.add_done_callback(lambda error: follow(lambda: callback(error)))


# What most publishes come to, made once: a tenth of their cost.
_ON_ONE_QUEUE = Published(1)


def _check_message(message: object) -> None:
    if not isinstance(message, Message):
        raise TypeError(f"a Message is published, such as Message(b'...', routing_key='orders'), not {message!r}")


class Publishing:
    """Puts messages on the queues of one virtual host. Any thread may call anything."""

    def __init__(self, topology: Topology, memory: MemoryManager, host_state: HostState) -> None:
        self._name = topology.virtual_host
        self.topology = topology
        self.memory = memory
        self._host_state = host_state
        self.journal: Journal | None = host_state.journal

    def publish(self, message: Message, mandatory: bool, immediate: bool, wait: bool) -> Published:
        """As `Verbs.publish`; without `wait`, as `Verbs.publish_nowait`."""
        _check_message(message)
        if self._host_state.is_closed or self.journal is not None:
            self._host_state.check()
        if message.failures or "x-delay" in message.headers:
            message = self.coming(message)
        return self.put_on(self.topology.route(message), message, mandatory=mandatory, immediate=immediate, wait=wait)

    def coming(self, message: Message) -> Message:
        """A message as it is published: with its delay; a dead letter that somebody publishes again is new."""
        return self.topology.delayed(anew(message))

    def route(self, message: Message, further_keys: Sequence[str] = ()) -> list[BrokerQueue]:
        _check_message(message)
        self._host_state.check()
        return self.topology.route(message, further_keys)

    def sole_queue(
        self, messages: Sequence[Message], bodies: Sequence[Any], *, alike: bool = False
    ) -> BrokerQueue | None:
        """The one queue of these messages of one address, None if each must be looked at. The caller counts them."""
        self._host_state.check()
        if set(map(type, bodies)) != {bytes} or max(map(len, bodies)) > self.memory.largest_body:
            return None
        persistent = messages[0].persistent
        for message in messages[: 1 if alike else len(messages)]:
            if message.persistent is not persistent or message.expiration is not None or message.delay is not None:
                return None
        return self.topology.sole_queue(messages[0])

    def put_on(
        self, queues: list[BrokerQueue], message: Message, mandatory: bool, immediate: bool = False, wait: bool = False
    ) -> Published:
        """The second half of `publish`, on the queues to which the first one led."""
        body = message.body
        if type(body) is not bytes or len(body) > self.memory.largest_body:  # `size`, written out: 2 % of a publish
            self.check_size(queues, message)
        accepted, commit = 0, None
        outcomes: Outcomes = []
        if self.journal is not None and message.persistent:
            # Durable queues get it in one commit; the others when that is under way.
            submission = Submission(self.journal)
            outcomes = submission.put_on(queues, message, immediate=immediate)
            commit = submission.submit() if outcomes else None
            queues = [queue for queue in queues if not queue.is_stored] if len(outcomes) < len(queues) else []
        try:
            if len(queues) > 1:
                dying.hold()
            for queue in queues:
                outcome = queue.put(message, immediate=immediate)
                if outcome is _ENQUEUED:
                    accepted += 1
                else:
                    outcomes.append((queue, outcome))
        finally:
            if len(queues) > 1:
                dying.let_go()
        if commit is not None and wait and self.journal is not None and self.journal.may_wait:
            commit.wait()
        if outcomes or (mandatory and not accepted):
            return self.account_for(message, accepted, outcomes, mandatory, commit)
        return _ON_ONE_QUEUE if accepted == 1 else Published(accepted)

    def check_size(self, queues: list[BrokerQueue], message: Message) -> None:
        """Return when a message for these queues can be kept. Raises MessageTooLarge: it cannot."""
        if queues:
            self.memory.check_size(message.size, queues[0].label)

    def account_for(
        self, message: Message, accepted: int, outcomes: Outcomes, mandatory: bool, commit: Commit | None = None
    ) -> Published:
        """The result of a put: `accepted` queues have it, and those that `outcomes` says. Raises as `publish`."""
        throttled: list[BrokerQueue] = []
        refused: list[BrokerQueue] = []
        for queue, outcome in outcomes:
            if outcome is PutOutcome.REJECTED:
                refused.append(queue)
            elif outcome is PutOutcome.THROTTLED:
                throttled.append(queue)
            accepted += outcome is _ENQUEUED
        if refused:
            names = tuple(queue.name for queue in refused)
            raise MessageRefused(self._why_refused(refused), message=message, queues=names)
        accepted += len(throttled)
        if not accepted and any(outcome is PutOutcome.NO_CONSUMER for _, outcome in outcomes):
            raise NoConsumers(f"no consumer wants the message now in vhost '{self._name}'", message=message)
        if not accepted and mandatory:
            raise self.unroutable(message)
        return Published(accepted, tuple(throttled), commit)

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


class Sent(NamedTuple):
    """The immediate outcome of a message: queues that ask its publisher to wait for room, and the run that has it.

    Without a `run` it is where it should be. With one, it gets the message's tag when the store has committed or
    refused it.
    """

    throttled: tuple[BrokerQueue, ...] = ()
    run: Submission | None = None


_SENT: Final = Sent()


def _put_on_transient(queues: Sequence[BrokerQueue], message: Message) -> Outcomes:
    # A function: from 3.12 on a list made within a `try` is a loop that an interrupt leaves without the handler.
    return [(queue, queue.put(message)) for queue in queues if not queue.is_stored]


@dataclass(eq=False, repr=False)
class Publisher:
    """Publishes to a virtual host without waiting for commits; made by `VirtualHost.publisher`."""

    _publishing: Publishing
    _tell: Tell
    # Invariant: None, or not handed in; with the bytes that it still takes, and what a message that joins it comes to.
    _run: Submission | None = None
    _room: float = 0
    _sent: Sent = _SENT

    def publish(self, message: Message, *, mandatory: bool = False, tag: object = None) -> Sent:
        """As `VirtualHost.publish_nowait`, but for the moment in which the store is given the message.

        `tag` is what `tell` is called with, on the store's thread, if a run has the message; None: with nothing.
        """
        message = self._publishing.coming(message)
        return self.put_on(self._publishing.route(message), message, mandatory=mandatory, tag=tag)

    def put_on(
        self, queues: list[BrokerQueue], message: Message, *, mandatory: bool = False, tag: object = None
    ) -> Sent:
        """The second half of `publish`, on the queues to which the first one led."""
        publishing = self._publishing
        if publishing.journal is None or not message.persistent:
            self.hand_in()  # nothing overtakes what was published before
            throttled = publishing.put_on(queues, message, mandatory=mandatory).throttled
            return Sent(throttled) if throttled else _SENT
        body = message.body
        size = len(body) if type(body) is bytes else message.size
        if size > publishing.memory.largest_body:
            publishing.check_size(queues, message)
        run = self._run
        if run is None:
            run = self._begin()
        sent, outcomes = self._sent, run.put_on(queues, message)
        try:
            if len(outcomes) < len(queues):
                outcomes += _put_on_transient(queues, message)
            throttled = ()
            if len(outcomes) != 1 or outcomes[0][1] is not _ENQUEUED:
                throttled = publishing.account_for(message, 0, outcomes, mandatory).throttled
        except MessageRefused:
            self._end_part(run, None, size)  # others have it; its publisher is told already
            raise
        except BaseException:
            run.withdraw_part()
            raise
        if not self._end_part(run, tag, size):
            sent = _SENT
        return sent._replace(throttled=throttled) if throttled else sent

    def publish_all(self, messages: Sequence[Message], tags: Sequence[object], *, alike: bool = False) -> Sent | None:
        """`publish` messages of one exchange and routing key together; None, and nothing was done: publish each.

        `tags` are one for each message, or none. With `alike` the messages differ in their bodies alone.
        """
        publishing = self._publishing
        bodies: list[Any] = [message.body for message in messages]
        queue = publishing.sole_queue(messages, bodies, alike=alike)
        if queue is None:
            return None
        if publishing.journal is None or not messages[0].persistent:
            self.hand_in()  # nothing overtakes what was published before
            outcome = queue.put_all(messages)
            sent = None if outcome is None else _SENT if outcome is _ENQUEUED else Sent((queue,))
        else:
            run = self._run
            if run is None:
                run = self._begin()
            sent = self._sent
            if not queue.is_stored or not run.put_all(queue, messages, tags or [None] * len(messages), alike=alike):
                return None
            self._take(run, sum(map(len, bodies)) + MESSAGE_BYTES * len(messages))
        if sent is not None:
            publishing.topology.count_received(messages[0].exchange, len(messages))
        return sent

    def hand_in(self) -> None:
        """Hand all pending messages to the store.

        Raises:
            StoreFailed, StoreClosed: it accepts nothing any more.
        """
        run = self._run
        if run is not None and run.length:
            self._run = None
            run.hand_in()

    def is_held_back(self, go_on: Callable[[], object]) -> bool:
        """Whether this publisher, which does not wait by itself, may go on only when `go_on` is called.

        An I/O thread does not wait: the connection that publishes is held back when too much waits for its commit.
        The store's thread calls `go_on`, which must not block.
        """
        return not may_take_long() and self._publishing.memory.hold_back(go_on)

    def _begin(self) -> Submission:
        publishing = self._publishing
        assert publishing.journal is not None
        run = self._run = Submission(publishing.journal, tell=self._tell)
        self._room = min(_LARGEST, publishing.memory.paging.limit * _SHARE)
        self._sent = Sent((), run)
        return run

    def _end_part(self, run: Submission, tag: object, size: int) -> bool:
        """What was put since the last part is one; False when there is nothing to store of it."""
        parts = run.length
        run.end_part(tag)
        if run.length == parts:
            return False
        self._take(run, size + MESSAGE_BYTES)
        return True

    def _take(self, run: Submission, size: int) -> None:
        self._room -= size
        if self._room <= 0 or run.length >= _LONGEST:
            self.hand_in()
