"""Where a virtual host's dead letters go.

Promise     A dead letter goes on until it is lost or would go round for ever; what became of each is counted. Of a
            durable queue it goes on in the commit that deletes it there.
State       `_lock`, a leaf, guards the two counters.
Who runs    The thread that caused it, under no lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from .._base.errors import NotFound
from .._base.message import Message
from .._base.outcome import DeadLetterReason
from .._durable.batch import Submission
from .._queue.entry import EntryQueue
from .._queue.queue import BrokerQueue
from .._routing.dead_letter import dead_letter, further_keys, is_cycle
from .._routing.topology import Topology
from .life import Life

_log = logging.getLogger("multiqueue.broker")


@dataclass(eq=False)
class DeadLetterRouting:
    """Sends the dead letters of one virtual host on."""

    _topology: Topology
    _life: Life
    _wall_clock: Callable[[], float]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _routed: int = 0
    _lost: int = 0

    def counts(self) -> tuple[int, int]:
        """How many dead letters a queue has, and how many no queue."""
        with self._lock:
            return self._routed, self._lost

    def send(self, queue: BrokerQueue, message: Message, reason: DeadLetterReason) -> None:
        """Send a dead letter on. Called by the queue it left, on any thread, under no lock."""
        if self._life.journal is None:
            self.send_on(queue, message, reason, None)
        else:
            submission = Submission(self._life.journal, is_owed=True)
            self.send_on(queue, message, reason, submission)
            submission.submit_if_open()

    def send_on(
        self, queue: EntryQueue, message: Message, reason: DeadLetterReason, submission: Submission | None
    ) -> None:
        """Send a dead letter where its queue says: with a submission, when that is committed."""
        settings = queue.settings
        if settings.dead_letter_exchange is None or (self._life.is_closed and submission is None):
            return
        letter = dead_letter(
            message,
            queue=queue.name,
            reason=reason,
            exchange=settings.dead_letter_exchange,
            routing_key=settings.dead_letter_routing_key,
            now=datetime.fromtimestamp(self._wall_clock(), UTC),
        )
        try:
            targets = self._topology.route(letter, further_keys(letter), internal=True)
        except NotFound:
            targets = []  # as in RabbitMQ, the exchange need not exist; the letter is counted as lost
        reached = 0
        for target in targets:
            if reason is not DeadLetterReason.REJECTED and is_cycle(letter, target.name):
                continue
            if submission is None:
                reached += target.put(letter).accepted
            elif target.is_stored and letter.persistent:
                reached += self._put_letter(submission, target, letter)
            else:
                submission.then(partial(target.put, letter))
                reached += not target.is_deleted
        with self._lock:
            if reached:
                self._routed += 1
            else:
                self._lost += 1

    def _put_letter(self, submission: Submission, target: BrokerQueue, letter: Message) -> bool:
        """False when the target has no room for it, or its store cannot keep what was in memory so far."""
        try:
            return submission.put(target, letter).accepted
        except TypeError as error:
            _log.error("a dead letter for %s is lost: %s", target.label, error, extra={"queue": target.name})
            return False
