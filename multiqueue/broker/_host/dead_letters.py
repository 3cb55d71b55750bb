"""Where a virtual host's dead letters go, with which record of how they got there.

Record      RabbitMQ's `x-death` header: one table per queue and reason, the latest first, with `count`, `reason`,
            `queue`, `exchange`, `routing-keys`, `time`, and `original-expiration` when the message had an expiration;
            it loses that, or it would die again where it goes. `x-first-death-*` and `x-last-death-*` name the ends of
            the story. "Dead letters" in docs/design/broker-front.md has the keys that it goes to.
Promise     A dead letter goes on until it is lost or would go round for ever; what became of each is counted. Of a
            durable queue it goes on in the commit that deletes it there.
Who runs    The thread that caused it, under no lock.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from multiqueue.store import StoreFailed

from .._base.errors import BrokerClosed, NotFound
from .._base.message import DeadLetterReason, Message, WireForm
from .._durable.submission import Submission
from .._queue.entry import EntryQueue
from .._queue.queue import BrokerQueue
from .._routing.compat import Compat
from .._routing.topology import Topology
from .host_state import HostState

DEATHS = "x-death"
CC = "CC"

_log = logging.getLogger("multiqueue.broker")


def deaths_of(message: Message) -> list[Mapping[str, object]]:
    """The dead-letter record of a message, the latest first; empty if it has none."""
    recorded = message.headers.get(DEATHS)
    if not isinstance(recorded, list | tuple):
        return []
    return [death for death in recorded if isinstance(death, Mapping)]


def dead_letter(
    message: Message,
    *,
    queue: str,
    reason: DeadLetterReason,
    exchange: str,
    routing_key: str | None,
    now: datetime,
    goes_on: bool = False,
) -> Message:
    """The message as it goes on from `queue` to `exchange`; without `routing_key` it keeps its own keys. `goes_on`: the
    next queue goes on counting its failures."""
    headers = _with_death(message, queue, reason.value, now)
    wire = message.wire
    if routing_key is not None:
        headers.pop(CC, None)
        if wire is not None and wire.bcc:
            wire = WireForm(wire.block)
    return dataclasses.replace(
        message,
        exchange=exchange,
        routing_key=message.routing_key if routing_key is None else routing_key,
        headers=headers,
        expiration=None,
        delay=None,
        wire=wire,
        failures=message.failures if goes_on else 0,
    )


def keys_in(message: Message, header: str) -> list[str]:
    """The routing keys that a header names; a value that is no text is left out."""
    keys = message.headers.get(header, ())
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list | tuple) else []


def is_cycle(message: Message, queue: str) -> bool:
    """True when putting it on `queue` would send it round for ever: it died there, and was not rejected since.

    A rejection is somebody's decision, so a circle with one in it, as retries are built from, may go on.
    """
    for death in deaths_of(message):
        if death.get("reason") == DeadLetterReason.REJECTED.value:
            return False
        if death.get("queue") == queue:
            return True
    return False


def _with_death(message: Message, queue: str, reason: str, now: datetime) -> dict[str, object]:
    earlier = deaths_of(message)
    same = [death for death in earlier if (death.get("queue"), death.get("reason")) == (queue, reason)]
    others = [death for death in earlier if death not in same]
    death: dict[str, object] = {
        "count": 1 + sum(count for each in same if isinstance(count := each.get("count"), int)),
        "reason": reason,
        "queue": queue,
        "time": now,
        "exchange": message.exchange,
        "routing-keys": [message.routing_key, *keys_in(message, CC)],
    }
    if message.expiration is not None:
        death["original-expiration"] = str(round(message.expiration * 1000))
    ends = {"queue": queue, "reason": reason, "exchange": message.exchange}
    first = {f"x-first-death-{name}": value for name, value in ends.items()}
    last = {f"x-last-death-{name}": value for name, value in ends.items()}
    return {**first, **message.headers, **last, DEATHS: [death, *others]}


@dataclass(eq=False)
class DeadLetterRouting:
    """Sends the dead letters of one virtual host on."""

    _topology: Topology
    _host_state: HostState
    _wall_clock: Callable[[], float]
    _compat: Compat

    def send(self, queue: BrokerQueue, message: Message, reason: DeadLetterReason) -> None:
        """Send a dead letter on. Called by the queue it left, on any thread, under no lock."""
        if self._host_state.journal is None:
            self.send_on(queue, message, reason, None)
        else:
            submission = Submission(self._host_state.journal, is_owed=True)
            with suppress(BrokerClosed, StoreFailed):  # no store has it: it ends with the virtual host
                self.send_on(queue, message, reason, submission)
                submission.submit_if_open()

    def send_on(
        self, queue: EntryQueue, message: Message, reason: DeadLetterReason, submission: Submission | None
    ) -> None:
        """Send a dead letter where its queue says: with a submission, when that is committed."""
        settings = queue.effective_settings
        if settings.dead_letter_exchange is None or (self._host_state.is_closed and submission is None):
            return
        letter = dead_letter(
            message,
            queue=queue.name,
            reason=reason,
            exchange=settings.dead_letter_exchange,
            routing_key=settings.dead_letter_routing_key,
            now=datetime.fromtimestamp(self._wall_clock(), UTC),
            goes_on=self._compat.says("a dead letter goes on counting its failures"),
        )
        letter = self._topology.delayed(letter)
        try:
            bcc = () if letter.wire is None else letter.wire.bcc
            targets = self._topology.route(letter, [*keys_in(letter, CC), *bcc], internal=True)
        except NotFound:
            targets = []  # as in RabbitMQ, the exchange need not exist; the letter is counted as lost
        reached = 0
        for target in targets:
            if reason is not DeadLetterReason.REJECTED and is_cycle(letter, target.name):
                continue
            if submission is None:
                reached += target.put(letter).accepted
            elif target.is_stored and letter.persistent:
                try:
                    reached += submission.put(target, letter).accepted
                except TypeError as error:  # the store cannot keep what was in memory so far
                    _log.error("a dead letter for %s is lost: %s", target.label, error, extra={"queue": target.name})
            else:
                submission.then(partial(_put_while_open, target, letter))
                reached += not target.is_deleted
        self._host_state.past.dead_letter(is_lost=not reached)


def _put_while_open(queue: BrokerQueue, letter: Message) -> None:
    with suppress(BrokerClosed, StoreFailed):  # no store is to have it: it ends with the virtual host
        queue.put(letter)
