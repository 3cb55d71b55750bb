"""Publishing: from a whole content to the broker, and the answers to the publisher.

Promise     A publish is confirmed after the broker has answered for it, and never before its `basic.return`. One that
            needs no second look (no transaction, user-id, reply-to, CC or BCC) is neither decoded nor routed twice.
State       One thread uses it; any thread may read the counters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, cast

from ...broker import BrokerQueue, Message, MessageRefused, Published, Sent, Submission, Unroutable, VirtualHost
from .._wire.errors import AmqpError, ChannelFault, ConnectionFault
from .._wire.fields import encode_short_string
from .._wire.frames import Content, decode_hot
from .._wire.message import WireMessage, content_of, digest_of, wire_message, wire_messages
from .._wire.properties import decode_properties, encode_properties
from .confirms import Confirms
from .effects import Client, Effects, Output
from .routing import REPLY_PREFIX, routed, with_reply_address
from .transaction import SessionTransaction


def publish_alone(
    host: VirtualHost, user: str, exchange: str, routing_key: str, properties: Mapping[str, object], body: bytes
) -> Published:
    """One publish of a user who has no channel: what a channel would refuse is refused, and it goes the same ways.

    Whether the user may write to the exchange is the caller's to check.

    Raises:
        ValueError, TypeError: a name or property that no frame can carry.
        ChannelFault: a property that a channel refuses.
        BrokerError: as `VirtualHost.publish`.
    """
    names = encode_short_string(exchange) + encode_short_string(routing_key)
    block = encode_properties(properties)
    message = wire_message(body, exchange, routing_key, names, block, digest_of(block), None)
    queues, message = _looked_at(host, user, message, None)
    return host.put_on(queues, message)


def _looked_at(
    host: VirtualHost, user: str, message: WireMessage, reply_address: str | None
) -> tuple[list[BrokerQueue], WireMessage]:
    """The queues that a message goes to, and the message as it goes there: with its reply-to, without BCC. Raises
    ChannelFault: it says that it is another user's, or `reply_address` is needed, or its delivery mode is none. As
    `routed`."""
    if host.compat.says("a delivery mode is 1 or 2"):
        mode = decode_properties(message.properties).get("delivery_mode", 1)
        if mode not in (1, 2):
            raise ChannelFault(406, f"invalid delivery mode {mode}: 1 is transient, 2 persistent")
    if message.user_id is not None and message.user_id != user:
        raise ChannelFault(406, f"user_id property set to '{message.user_id}' but authenticated user was '{user}'")
    queues, message = routed(host, with_reply_address(message, reply_address))
    return queues, cast(WireMessage, host.delayed(message))


class Publishing:
    """The publishes of one session."""

    def __init__(self, number: int, client: Client, out: Output, effects: Effects) -> None:
        self._number = number
        self._client = client
        self._out = out
        self._effects = effects
        self.confirms: Confirms | None = None
        self.published: int = 0
        self.returned: int = 0
        self._confirmed_at_end = self._with_confirms_at_end = 0
        self.reply_address: str | None = None  # of the session's consumer of direct answers
        self.last_run: Submission | None = None  # the last one with a publish of this session
        self._must_wait = False  # a queue has asked for time since `publish_all` began
        # The publish of before: its payload, and what was found out about it. Most publishers repeat themselves.
        self._last_publish = b""
        self._address: tuple[str, str, bytes, bool, bool] = ("", "", b"", False, False)

    def publish(self, content: Content, transaction: SessionTransaction | None) -> None:
        method, properties, body = content
        exchange, routing_key, names, mandatory, is_reply = self._address_of(method)
        client = self._client
        known = digest_of(properties)
        message = wire_message(body, exchange, routing_key, names, properties, known, client.owner)
        if known.special or is_reply or transaction is not None:
            self._publish(message, mandatory, partial(self._put_specially, transaction))
        else:
            self._publish(message, mandatory, client.publisher.publish)

    def publish_all(self, contents: Sequence[Content]) -> int:
        """`publish`, outside a transaction, of messages that have come in a row: those with one address go together.
        Returns how many are published: not all of them where a queue asks for time. Those before one that raises
        are."""
        done = 0
        self._must_wait = False
        while done < len(contents) and not self._must_wait:
            run, alike = self._run_at(contents, done)
            if len(run) > 1:
                done += self._publish_run(run, alike)
            else:
                self.publish(contents[done], None)
                done += 1
        return done

    def _run_at(self, contents: Sequence[Content], begin: int) -> tuple[list[WireMessage], bool]:
        """The messages from `begin` on that have one address, and need no second look; and whether they differ in
        their bodies alone."""
        first = contents[begin][0]
        exchange, routing_key, names, _, is_reply = self._address_of(first)
        bodies: list[bytes] = []
        templates: list[WireMessage] = []
        last, template = b"", None
        for method, properties, body in islice(contents, begin, None):
            if (method is not first and method != first) or is_reply:
                break
            if template is None or (properties is not last and properties != last):
                try:
                    known = digest_of(properties)
                except AmqpError:
                    break  # raised again when it is published
                if known.special:
                    break
                last, template = properties, known.template
            bodies.append(body)
            templates.append(template)
        alike = bool(templates) and templates.count(templates[0]) == len(templates)
        return wire_messages(bodies, exchange, routing_key, names, templates, self._client.owner), alike

    def _publish_run(self, messages: list[WireMessage], alike: bool) -> int:
        self._effects.publishes()
        confirms = self.confirms
        numbers = range(confirms.published + 1, confirms.published + 1 + len(messages)) if confirms else range(0)
        sent = self._client.publisher.publish_all(messages, [(self, number) for number in numbers], alike=alike)
        if sent is not None:
            if confirms is not None:
                confirms.begin_all(len(messages))
            self._sent(sent, numbers)
            self.published += len(messages)
            return len(messages)
        mandatory = self._address[3]
        for done, message in enumerate(messages, 1):
            self._publish(message, mandatory, self._client.publisher.publish)
            if self._must_wait:
                return done
        return len(messages)

    def _publish(self, message: WireMessage, mandatory: bool, put: Callable[..., Sent]) -> None:
        self._effects.publishes()
        self.published += 1
        number = self.confirms.begin() if self.confirms is not None else 0
        try:
            sent = put(message, mandatory=mandatory, tag=(self, number) if number else None)
        except Unroutable as error:
            self.send_return(error.message)
            self.confirmed((number,))
        except MessageRefused:
            self.confirmed((number,), refused=True)
        else:
            self._sent(sent, (number,))

    def _address_of(self, method: bytes) -> tuple[str, str, bytes, bool, bool]:
        """Exchange, routing key, both as on the wire, mandatory, and whether it answers a direct reply-to."""
        if method == self._last_publish:
            return self._address
        publish: Any = decode_hot(method)
        if publish.immediate:
            raise ConnectionFault(540, "immediate=true")
        self._client.check("write", "exchange", publish.exchange)
        self._client.check_key("write", publish.exchange, publish.routing_key)
        is_reply = not publish.exchange and publish.routing_key.startswith(REPLY_PREFIX)
        self._address = publish.exchange, publish.routing_key, method[6:-1], publish.mandatory, is_reply
        self._last_publish = method
        return self._address

    def _put_specially(
        self, transaction: SessionTransaction | None, message: WireMessage, *, mandatory: bool, tag: object
    ) -> Sent:
        """Put a message in a transaction, to several keys, with a reply-to of ours, or as an answer to one."""
        client = self._client
        queues, message = _looked_at(client.host, client.user, message, self.reply_address)
        if transaction is not None:
            transaction.publish(message, queues, mandatory=mandatory)
            return Sent()
        if mandatory and not queues:
            raise Unroutable("", message=message)
        return client.publisher.put_on(queues, message, tag=tag)

    def _sent(self, sent: Sent, numbers: Sequence[int]) -> None:
        if sent.run is None:
            self.confirmed(numbers)
        else:
            self.last_run = sent.run
        if sent.throttled:
            self._must_wait = True
            self._effects.throttle(sent.throttled)

    def send_return(self, message: Message) -> None:
        self.returned += 1
        self._out.returned(self._number, 312, content_of(message))

    @property
    def confirmed_count(self) -> int:
        """How many publishes were confirmed. Any thread may ask."""
        confirms = self.confirms
        return self._confirmed_at_end if confirms is None else confirms.published - confirms.unconfirmed

    @property
    def with_confirms(self) -> int:
        """How many publishes came whose confirm the client waits for. Any thread may ask."""
        confirms = self.confirms
        return self._with_confirms_at_end if confirms is None else confirms.published

    def confirmed(self, numbers: Sequence[int], *, refused: bool = False) -> None:
        """Publishes are done; the client gets the confirm when the turn ends. Without confirms `numbers` mean
        nothing.
        """
        if self.confirms is not None:
            self.confirms.end(numbers, refused=refused)
            self._out.confirming[self.confirms] = None

    def end(self) -> None:
        """Confirm the publishes that are done. A commit that ends later is not reported any more."""
        self._confirmed_at_end, self._with_confirms_at_end = self.confirmed_count, self.with_confirms
        confirms, self.confirms = self.confirms, None
        self.last_run = None  # and nothing to hold up
        if confirms is not None:
            self._out.confirming.pop(confirms, None)
            self._out.confirm(confirms)
