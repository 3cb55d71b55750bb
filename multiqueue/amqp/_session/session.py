"""A session: one AMQP channel over a virtual host. Frames or methods go in, answers and deliveries to `Output`.

State       Everything of a session belongs to one thread, which is that of its connection. Other threads
            post to it (a commit, a deleted queue). No socket and no thread is its own.
Parts       `publishing` and `deliveries` are the two directions; `calls` registers the methods in `HANDLERS`.
Membership  `end` is the one way out; docs/design/amqp.md has its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ...broker import BrokerQueue, without_waiting
from .._wire.errors import ChannelFault, ConnectionFault, reason
from .._wire.frames import ACK, NACK, REJECT, Ack, Content, Reject, Settlement, decode_hot
from .._wire.methods import commands, decode_method, method_name
from .consumer import SessionConsumer
from .deliveries import Deliveries
from .effects import Client, Effects, Output, Step, end_each, fail
from .figures import ChannelFigures
from .machine import CHANNEL_CLOSE, ChannelMachine, ChannelState
from .publishing import Publishing
from .transaction import SessionTransaction, Settle


class Session:
    """One channel of a client's, from channel.open to its close."""

    def __init__(self, number: int, client: Client, out: Output, effects: Effects) -> None:
        self.number = number
        self.client = client
        self.out = out
        self.effects = effects
        self.machine: ChannelMachine = ChannelMachine(client.max_message_bytes)
        self.consumers: dict[str, SessionConsumer] = {}
        self.deliveries: Deliveries = Deliveries(number, out, self.consumers)
        self.publishing: Publishing = Publishing(number, client, out, effects)
        self.transaction: SessionTransaction | None = None
        self.prefetch: int | None = None  # of consumers that start from now on
        self.last_queue = ""  # what an empty queue name means
        # Consumers that were cancelled while an answer waits for a commit; None while none waits. The client hears of
        # them after the answer, as at RabbitMQ: a delete-ok comes before the cancels that the deletion causes.
        self.late_cancels: list[SessionConsumer] | None = None
        self._publish = self.publishing.publish

    def receive(self, kind: int, payload: bytes) -> None:
        """Take a frame. Raises AmqpError, BrokerError: it cannot be done; `effects.fail` knows what that costs."""
        effect = self.machine.receive(kind, payload)
        if effect is None:
            return
        if not isinstance(effect, bytes):
            self._publish(effect, self.transaction)
            return
        if effect[:4] in SETTLING:
            self.settle(decode_hot(effect))  # type: ignore[arg-type] # one of the three
            return
        last = self.publishing.last_run
        if last is not None and not last.is_done:
            # A method comes after publishes whose commit is under way: it has to see them, so it waits for them.
            # Commits end in the order of publishing, so the last one is enough to wait for.
            self.publishing.last_run = None
            self.effects.postpone(lambda _: self.call(effect), self, effect[:4], last)
        else:
            self.call(effect)

    def receive_content(self, content: Content) -> None:
        if self.machine.takes(len(content[2])):
            self._publish(content, self.transaction)

    def receive_contents(self, contents: Sequence[Content]) -> int:
        """Whole publishes have come in a row; how many of them are done. Raises as `receive`: those before it are."""
        alone = len(contents) == 1 or self.transaction is not None
        if alone or max([len(body) for _, _, body in contents]) > self.client.max_message_bytes:
            self.receive_content(contents[0])
            return 1
        return self.publishing.publish_all(contents) if self.machine.takes(0) else len(contents)

    def settle(self, settled: Settlement) -> None:
        if not self.machine.takes(0):
            return
        how: Settle = "accept" if isinstance(settled, Ack) else "release" if settled.requeue else "discard"
        if isinstance(settled, Reject):  # a failure, which is counted, and a nack not: as RabbitMQ 4.3
            how = "fail" if settled.requeue else "reject"
        if not isinstance(settled, Reject) and settled.multiple:
            work = self.deliveries.settle_all(settled.delivery_tag, how, self.transaction)
            self.effects.do_in_pieces(work, self, ACK if isinstance(settled, Ack) else NACK)
        else:
            self.deliveries.settle_each((settled.delivery_tag,), how, self.transaction)

    def call(self, payload: bytes) -> None:
        """A method is called, now or when it was postponed. Raises as `receive`."""
        method = payload[:4]
        if self.machine.state is ChannelState.CLOSING and method != CHANNEL_CLOSE:
            return  # it was postponed until now
        handler = HANDLERS.get(method)
        if handler is None:
            raise ConnectionFault(503, f"{method_name(method)} is not a method that a client calls on a channel")
        handler(self, decode_method(payload))

    def reply(self, method: Any, **fields: Any) -> None:
        self.out.reply(self.number, method, **fields)

    @property
    def is_open(self) -> bool:
        return self.machine.state is ChannelState.OPEN

    def cancelled(self, consumer: SessionConsumer) -> None:
        if self.consumers.get(consumer.tag) is not consumer:
            return
        if self.late_cancels is not None:
            self.late_cancels.append(consumer)
            return
        del self.consumers[consumer.tag]
        if self.client.hears_of_cancels:
            self.reply(commands.Basic.Cancel, consumer_tag=consumer.tag, nowait=True)
            self.effects.flush()

    @property
    def endings(self) -> tuple[Callable[[SessionConsumer], None], Callable[[SessionConsumer, float], None]]:
        """What a consumer does that its queue cancels, and one that is too late."""
        return self.cancelled, self.end_late

    def end_late(self, consumer: SessionConsumer, timeout: float) -> None:
        """A consumer kept a message for too long, and its queue has it back. A client that cannot hear of a cancel
        loses its channel."""
        if self.consumers.get(consumer.tag) is not consumer:
            return
        if self.client.hears_of_cancels:
            consumer.stop(self.client.host)
            self.cancelled(consumer)
        else:
            self._close_late(timeout)

    def timed_out(self, timeout: float) -> None:
        """The same for a message that came by a get. Any thread, under no lock."""
        self.effects.post(self._close_late, timeout)

    def _close_late(self, timeout: float) -> None:
        if self.is_open:
            advice = "This timeout value can be configured, see consumers doc guide to learn more"
            used = f"Timeout value used: {round(timeout * 1000)} ms"
            text = f"delivery acknowledgement on channel {self.number} timed out. {used}. {advice}"
            fail(self.effects, self, ChannelFault(406, text), bytes(4))
            self.effects.flush()

    def figures(self) -> ChannelFigures:
        publishing, deliveries, transaction = self.publishing, self.deliveries, self.transaction
        confirms = publishing.confirms
        unacked = len(deliveries.unacked)
        uncommitted, acks_uncommitted = (0, 0) if transaction is None else transaction.sizes()
        return ChannelFigures(
            number=self.number,
            confirm=confirms is not None,
            transactional=self.transaction is not None,
            prefetch=self.prefetch or 0,
            global_prefetch=self.deliveries.window.limit or 0,
            unacked=unacked,
            unconfirmed=0 if confirms is None else confirms.unconfirmed,
            uncommitted=uncommitted,
            acks_uncommitted=acks_uncommitted,
            oldest_unacked=deliveries.oldest(),  # before what was delivered: its tag is not above that
            consumers=tuple(each.figures() for each in list(self.consumers.values())),
            published=publishing.published,
            with_confirms=publishing.with_confirms,
            confirmed=publishing.confirmed_count,
            returned=publishing.returned,
            delivered=deliveries.last_tag,
            delivered_no_ack=deliveries.without_ack,
            got=deliveries.got,
            got_no_ack=deliveries.got_without_ack,
            got_empty=deliveries.got_empty,
            redelivered=deliveries.redelivered,
            acked=max(0, deliveries.acked(unacked) - acks_uncommitted),
        )

    def fault(self, code: int, text: str, method: bytes) -> None:
        """Close the channel for a fault of the client's, and say so when it has ended."""
        ending = self.end()
        self.machine.close()
        close = partial(self.reply, commands.Channel.Close, **reason(code, text, method))
        self.effects.do_in_pieces(ending, self, method, close)

    def end(self) -> Iterator[None]:
        """Deliver nothing further; the iterator ends the session, a piece at each step. A second call does nothing.
        Publishes that are done are confirmed before it."""
        consumers = list(self.consumers.values())
        self.consumers.clear()
        self.publishing.reply_address = None
        steps: list[Step] = [("confirm its publishes", self.publishing.end)]
        steps += [(f"stop deliveries to {each!r}", partial(each.want, False)) for each in consumers]
        end_each(self, steps)
        return self._end_in_pieces(consumers)

    def _end_in_pieces(self, consumers: list[SessionConsumer]) -> Iterator[None]:
        """Forget what is not committed, give back what is unacked, then make room for other consumers."""
        yield from self.rolling_back()
        yield from self.deliveries.give_back()
        end_each(self, [(f"stop {each!r}", partial(each.stop, self.client.host)) for each in consumers])

    def rolling_back(self) -> Iterator[None]:
        """Forget what a transaction has, a piece at each step. The messages it has settled are unacked again."""
        if self.transaction is not None:
            yield from self.transaction.forgetting()
            yield from self.deliveries.restoring(self.transaction.take_settled())

    def __repr__(self) -> str:
        return f"<channel {self.number} of {self.effects!r}>"


Handler = Callable[[Session, Any], Mapping[str, Any] | None]
SETTLING: Final = frozenset({ACK, NACK, REJECT})
# The other methods a client may call on a channel, by class and number; `calls` fills it.
HANDLERS: Final[dict[bytes, Handler]] = {}


def handles(*methods: Any) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for method in methods:
            HANDLERS[method.index.to_bytes(4)] = handler
        return handler

    return register


def answers(*methods: Any) -> Callable[[Handler], Handler]:
    """As `handles`; a method is answered, unless by `nowait`, with the fields that the function returns."""

    def register(handler: Handler) -> Handler:
        def answered(session: Session, called: Any) -> None:
            with without_waiting() as put_off:
                fields = handler(session, called)

            def answer(error: BaseException | None) -> None:
                cancels, session.late_cancels = session.late_cancels, None
                if not session.is_open:
                    return
                if error is not None:
                    raise error
                if not getattr(called, "nowait", False):
                    group, _, name = called.valid_responses[0].partition(".")
                    session.reply(getattr(getattr(commands, group), name), **(fields or {}))
                for consumer in cancels or ():
                    session.cancelled(consumer)

            if put_off.commit is None:
                answer(None)
            else:
                session.late_cancels = []
                session.effects.postpone(answer, session, called.index.to_bytes(4), put_off)

        return handles(*methods)(answered)

    return register


def want(sessions: Mapping[int, Session], desired: bool) -> None:
    """Have all consumers of a connection be interested in work, or not."""
    for session in list(sessions.values()):
        for consumer in list(session.consumers.values()):
            consumer.want(desired)


def to_wait_for(sessions: Mapping[int, Session], queues: Iterable[BrokerQueue]) -> list[BrokerQueue]:
    """The queues whose room a connection's publishes wait for: none that it consumes, as its acks may make room."""
    consumed = {consumer.queue for session in sessions.values() for consumer in session.consumers.values()}
    return [queue for queue in queues if queue not in consumed]
