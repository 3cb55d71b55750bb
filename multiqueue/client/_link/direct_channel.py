"""The broker's side of a channel without a wire: what a server would do with each method.

Promise     What a client sees is what it would see over a wire: tags from 1, prefetch, unsettled messages back in their
            places when the channel ends, confirms after the message is where it was to be kept, refusals by code.
Who runs    The link's thread alone, so there is no lock. Methods that answer return the answer; a refusal is raised.
Source      The specification of AMQP 0-9-1, with RabbitMQ's extensions.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pamqp import commands

from ...amqp import (
    REPLY_PREFIX,
    REPLY_TO,
    Ack,
    ChannelFault,
    Deliver,
    Digests,
    GetOk,
    Nack,
    Return,
    encode_short_string,
    end_each,
    properties_of,
    reply_queues,
    routed,
    wire_message,
    with_reply_address,
)
from .direct_declaring import DECLARATIONS, Fields, answer
from .direct_host import HeldMessage, Refused, body_of, broker_room
from .link import Event

if TYPE_CHECKING:
    from .direct_link import DirectLink

_log = logging.getLogger("multiqueue.client")
Step = Callable[[], object]


@dataclass(eq=False, slots=True)
class Served:
    """A consumer, as the broker sees it."""

    tag: str
    subscription: Any
    queue: Any
    auto_ack: bool
    prefetch: int  # of its own; 0 is none
    is_cancelled: bool = False


class DirectChannel:
    """One channel, from channel.open to its close."""

    def __init__(self, link: DirectLink, number: int) -> None:
        self._link = link
        self._host = link.host
        self._replies = reply_queues(link.host)
        self._number = number
        self._digests = Digests()
        self._next_tag = 1
        self._next_publish: int | None = None  # in confirm mode
        self._transaction: Any = None
        self._settled_in_transaction: dict[int, HeldMessage] = {}
        self._prefetch = 0
        self._prefetch_of_all = 0
        # Invariant: in rising order of tags; every value is unsettled at the broker.
        self._unsettled: dict[int, HeldMessage] = {}
        self._consumers: dict[str, Served] = {}
        self._subscriptions: list[Any] = []
        self._waiting: deque[tuple[Served, HeldMessage]] = deque()  # for room in the prefetch of all
        self._reply: Served | None = None  # the consumer of direct answers
        self._last_published: Any = None  # the last that had to be committed
        self._behind: list[Step] | None = None  # a call that waits for commits, and all that came after it
        self._is_closed = False

    def sets_aside(self, step: Step, *, is_call: bool) -> bool:
        """Has a step to come later: a call behind publishes whose commit is under way, or any step behind a call?

        A call has to see what was published before it. Commits end in the order of publishing.
        """
        if self._behind is not None:
            self._behind.append(step)
            return True
        last = self._last_published
        if not is_call or last is None:
            return False
        self._last_published = None
        if last.is_confirmed:
            return False
        self._behind = [step]
        last.add_done_callback(lambda _: self._link.later(self._go_on))
        return True

    def _go_on(self) -> None:
        """The commits have ended. A step that has to wait again has those after it behind itself."""
        behind, self._behind = self._behind or [], None
        for step in behind:
            step()

    def handle(self, method: type[Any], fields: Fields) -> Any:
        """The answer to a method, or None."""
        declaration = DECLARATIONS.get(method)
        if declaration is not None:
            return declaration(self._link, fields)
        handler = self._HANDLERS.get(method)
        if handler is None:
            raise Refused(540, f"NOT_IMPLEMENTED - {method.name}", "connection")
        return handler(self, fields)

    # ---- publishing ---------------------------------------------------------------------------------------------

    def publish(self, exchange: str, routing_key: str, mandatory: bool, properties: bytes, body: bytes) -> None:
        """Publish, return or refuse one message."""
        number = self._next_publish
        if number is not None:
            self._next_publish = number + 1
        room, digests = broker_room(self._host), self._digests
        names = encode_short_string(exchange) + encode_short_string(routing_key)
        try:
            known = digests.of(properties)
            message = wire_message(body, exchange, routing_key, names, properties, known, self._link)
            if known.special or (not exchange and routing_key.startswith(REPLY_PREFIX)):
                address = None if self._reply is None else self._reply.queue.name
                queues, message = routed(self._host, with_reply_address(message, address, digests), digests)
            else:
                queues = self._host.route(message)
            if self._transaction is not None:
                self._transaction.publish_on(queues, message, mandatory=mandatory)
                return
            published = self._host.put_on(queues, message, mandatory=mandatory)
        except ChannelFault as error:
            raise Refused(error.reply_code, error.reply_text) from None
        except room.Unroutable as error:
            self._return(error)
            self.confirm(number, None)
        except room.MessageRefused as error:
            self.confirm(number, error)
        else:
            self._link.throttle(published)
            if published.commit is not None:
                self._last_published = published
            if number is not None:
                published.add_done_callback(lambda error: self._link.later(self.confirm, number, error))

    def _return(self, unroutable: Any) -> None:
        """Give a message back to its publisher."""
        message = unroutable.message
        method = Return(unroutable.reply_code, unroutable.reply_name, message.exchange, message.routing_key)
        self._emit(method, properties_of(message), body_of(message))

    def confirm(self, number: int | None, error: BaseException | None) -> None:
        """Answer for a message, if the channel confirms and is still there: its number may be another's by now."""
        if number is not None and not self._is_closed:
            self._emit(Ack(number, False) if error is None else Nack(number, False, False))

    def _confirm_select(self, fields: Fields) -> Any:
        if self._transaction is not None:
            raise Refused(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode")
        self._next_publish = self._next_publish or 1
        return answer(commands.Confirm.SelectOk)

    # ---- consuming ----------------------------------------------------------------------------------------------

    def _qos(self, fields: Fields) -> Any:
        if fields["global_"]:
            self._prefetch_of_all = fields["prefetch_count"]
            for served in self._consumers.values():
                if not served.auto_ack:
                    served.subscription.target.set_window(self._window(served.prefetch))
            self._serve_waiting()
        else:
            self._prefetch = fields["prefetch_count"]
        return answer(commands.Basic.QosOk)

    def _consume(self, fields: Fields) -> Any:
        tag, auto_ack = fields["consumer_tag"], fields["no_ack"]
        if tag in self._consumers:
            raise Refused(530, f"NOT_ALLOWED - attempt to reuse consumer tag '{tag}'", "connection")
        queue = self._reply_queue(auto_ack) if fields["queue"] == REPLY_TO else self._queue(fields["queue"])
        served = Served(tag, None, queue, auto_ack, self._prefetch)
        arguments = broker_room(self._host).consumer_arguments(f"consumer '{tag}'", fields["arguments"])
        prefetch = None if auto_ack else self._window(self._prefetch)
        subscription = served.subscription = self._host.consume(
            [], lambda received: self._link.arrived_from(self, served, received), name=tag, prefetch=prefetch
        )
        self._subscriptions.append(subscription)
        try:
            subscription.target.consume(
                queue,
                on_cancelled=lambda consumer: self._link.later(self._queue_is_gone, served),
                selector=arguments.selector,
                priority=arguments.priority,
                auto_accept=auto_ack,
                exclusive=fields["exclusive"],
                no_local=fields["no_local"],
                connection=self._link,
            )
        except BaseException:
            subscription.close(0)
            raise
        self._consumers[tag] = served
        if fields["queue"] == REPLY_TO:
            self._reply = served
        return answer(commands.Basic.ConsumeOk, consumer_tag=tag)

    def _window(self, prefetch: int) -> int | None:
        """How many a consumer takes from its queue: no more than all of the channel's may have together."""
        limits = [limit for limit in (prefetch, self._prefetch_of_all) if limit]
        return min(limits, default=None)

    def _reply_queue(self, auto_ack: bool) -> Any:
        """A queue of the channel's own, for direct answers."""
        if not auto_ack:
            raise Refused(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge")
        if self._reply is not None:
            raise Refused(406, "PRECONDITION_FAILED - reply consumer already set")
        return self._replies.open(self._host.name)

    def _end_replies(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            self._replies.close(reply.queue)

    def deliver(self, served: Served, received: HeldMessage) -> None:
        """A message for a consumer."""
        if served.is_cancelled:
            if not served.auto_ack:
                _release(received)
        elif not served.auto_ack and self._has_its_prefetch():
            self._waiting.append((served, received))
        else:
            self._deliver_now(served, received)

    def _deliver_now(self, served: Served, received: HeldMessage) -> None:
        message = received.message
        tag = self._new_tag(None if served.auto_ack else received)
        method = Deliver(served.tag, tag, received.redelivered, message.exchange, message.routing_key)
        self._emit(method, properties_of(message), body_of(message))

    def _new_tag(self, received: HeldMessage | None) -> int:
        tag = self._next_tag
        self._next_tag += 1
        if received is not None:
            self._unsettled[tag] = received
        return tag

    def _serve_waiting(self) -> None:
        while self._waiting and not self._has_its_prefetch():
            self._deliver_now(*self._waiting.popleft())

    def _has_its_prefetch(self) -> bool:
        """Does the channel have as many as all its consumers may have? What waits for a commit counts."""
        return 0 < self._prefetch_of_all <= len(self._unsettled) + len(self._settled_in_transaction)

    def _cancel(self, fields: Fields) -> Any:
        """The consumer ends; what it has stays unsettled until the channel ends."""
        served = self._consumers.pop(fields["consumer_tag"], None)
        if served is not None:
            served.is_cancelled = True
            for consumer in served.subscription.target.consumers():
                served.subscription.target.cancel(consumer)
            for received in [received for waits, received in self._waiting if waits is served]:
                _release(received)
            self._waiting = deque(each for each in self._waiting if each[0] is not served)
            if served is self._reply:
                self._end_replies()
        return answer(commands.Basic.CancelOk, consumer_tag=fields["consumer_tag"])

    def _queue_is_gone(self, served: Served) -> None:
        if self._consumers.pop(served.tag, None) is not None:
            served.is_cancelled = True
            self._emit(answer(commands.Basic.Cancel, consumer_tag=served.tag, nowait=True))

    def _queue(self, name: str) -> Any:
        return self._host.queue(name, owner=self._link)

    def _get(self, fields: Fields) -> Any:
        received = self._host.get(fields["queue"], auto_accept=fields["no_ack"], owner=self._link)
        if received is None:
            return answer(commands.Basic.GetEmpty)
        message = received.message
        tag = self._new_tag(None if fields["no_ack"] else received)
        left = self._queue(fields["queue"]).statistics().available
        method = GetOk(tag, received.redelivered, message.exchange, message.routing_key, left)
        self._emit(method, properties_of(message), body_of(message))
        return None

    # ---- settling -----------------------------------------------------------------------------------------------

    def settle(self, verb: str, tag: int, multiple: bool, requeue: bool) -> None:
        """ack, nack or reject."""
        if tag not in self._unsettled and not (multiple and tag == 0):
            raise Refused(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
        tags = [each for each in self._unsettled if tag == 0 or each <= tag] if multiple else [tag]
        action = "accept" if verb == "ack" else "release" if requeue else "reject"
        for each in tags:
            self._settle_one(each, action)
        self._serve_waiting()

    def _settle_one(self, tag: int, action: str) -> None:
        received = self._unsettled.pop(tag)
        if self._transaction is not None:
            self._settled_in_transaction[tag] = received
            getattr(self._transaction, action)(received)
            return
        try:
            getattr(received, action)()
        except ValueError:
            pass  # it went with its queue

    def _recover(self, fields: Fields) -> Any:
        unsettled, self._unsettled = self._unsettled, {}
        for received in unsettled.values():
            _release(received)
        self._serve_waiting()
        return answer(commands.Basic.RecoverOk)

    # ---- transactions -------------------------------------------------------------------------------------------

    def _tx_select(self, fields: Fields) -> Any:
        if self._next_publish is not None:
            raise Refused(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode")
        self._transaction = self._transaction or self._host.transaction()
        return answer(commands.Tx.SelectOk)

    def _tx_commit(self, fields: Fields) -> Any:
        is_complete = True
        room = broker_room(self._host)
        try:
            self._in_transaction().commit()
        except* room.Unroutable as group:
            for each in group.exceptions:
                self._return(each)
        except* room.MessageRefused:
            is_complete = False
        self._settled_in_transaction.clear()
        if not is_complete:
            raise Refused(406, "PRECONDITION_FAILED - partial tx completion")
        self._serve_waiting()
        return answer(commands.Tx.CommitOk)

    def _tx_rollback(self, fields: Fields) -> Any:
        self._in_transaction().rollback()
        self._unsettled = dict(sorted({**self._settled_in_transaction, **self._unsettled}.items()))
        self._settled_in_transaction.clear()
        return answer(commands.Tx.RollbackOk)

    def _in_transaction(self) -> Any:
        if self._transaction is None:
            raise Refused(406, "PRECONDITION_FAILED - channel is not transactional")
        return self._transaction

    # ---- the end ------------------------------------------------------------------------------------------------

    def suspend(self, is_suspended: bool) -> None:
        """Have the broker deliver nothing, or go on."""
        for served in self._consumers.values():
            if is_suspended:
                served.subscription.suspend()
            else:
                served.subscription.resume()

    def close(self) -> None:
        """Consumers end, and what is unsettled goes back to its place."""
        self._is_closed = True
        self._behind = None
        steps: list[tuple[str, Step]] = []
        if self._transaction is not None:
            steps.append(("roll back its transaction", lambda: self._tx_rollback({})))
        for served in self._consumers.values():
            served.is_cancelled = True
        steps.append(("end its reply consumer", self._end_replies))
        steps += [(f"end {each!r}", partial(each.close, 0)) for each in self._subscriptions]
        end_each(self, steps, _log)
        # Those that were got; those of subscriptions have gone back already.
        end_each(self, [(f"give back {each!r}", partial(_release, each)) for each in self._unsettled.values()], _log)
        self._consumers.clear()
        self._unsettled.clear()
        self._waiting.clear()

    def _emit(self, method: Any, properties: bytes = b"", body: bytes = b"") -> None:
        self._link.emit(Event(self._number, method, properties, body))

    _HANDLERS: ClassVar[dict[type[Any], Callable[[DirectChannel, Fields], Any]]] = {
        commands.Basic.Qos: _qos,
        commands.Basic.Consume: _consume,
        commands.Basic.Cancel: _cancel,
        commands.Basic.Get: _get,
        commands.Basic.Recover: _recover,
        commands.Confirm.Select: _confirm_select,
        commands.Tx.Select: _tx_select,
        commands.Tx.Commit: _tx_commit,
        commands.Tx.Rollback: _tx_rollback,
    }


def _release(received: HeldMessage) -> None:
    try:
        received.release()
    except ValueError:
        pass  # its subscription or its queue has taken it back
