"""A channel of the server: its frames, its methods, its end.

Promise     What was delivered and not acked goes back to its place, flagged, when the channel ends for any reason.
            No part of an end depends on another: see `ending`.
Layers      `channel_base` has the state, `publishing` and `delivering` the two directions;
            `declaring` and `consuming` register the methods that are called by `HANDLERS`.
Effects     Frames go to `connection.send`; the connection writes them when its turn ends.
Membership  `end` is the one way out. 1. Consumers want nothing further, so that nothing comes back to a channel that
            ends.  2. What is unacked goes back, in order of delivery.  3. Consumers leave their queues: the next single
            active or exclusive consumer finds everything at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .._wire.errors import ConnectionFault
from .._wire.fields import shortened
from .._wire.hot import ACK, NACK, REJECT, decode_hot
from .._wire.methods import commands, decode_method, method_name
from .channel_base import Held as Held
from .delivering import ChannelDelivering
from .delivering import Settle as Settle
from .ending import Step, end_each
from .machine import CHANNEL_CLOSE, CHANNEL_CLOSE_OK, CHANNEL_OPEN, ChannelState
from .publishing import ChannelPublishing

if TYPE_CHECKING:
    from ...broker import Run
    from .consumer import ServerConsumer


class ServerChannel(ChannelPublishing, ChannelDelivering):
    """One channel. Made by the connection when the client opens it."""

    # -- frames

    def receive(self, kind: int, payload: bytes) -> None:
        """A frame has come.

        Raises:
            AmqpError, BrokerError: it cannot be done; the connection knows what that costs.
        """
        effect = self.machine.receive(kind, payload)
        if effect is None:
            return
        if not isinstance(effect, bytes):
            self._publish(effect)
            return
        hot = _HOT.get(effect[:4])
        if hot is not None:
            hot(self, decode_hot(effect))
        elif self._last_run is not None and not self._last_run.is_done:
            self._after_commits(self._last_run, effect)
        else:
            self._call(effect)

    def _call(self, payload: bytes) -> None:
        method = payload[:4]
        if method in _OWN:
            decode_method(payload)  # nothing in it is of use, but it has to be one
        if method == CHANNEL_OPEN:
            self.reply(commands.Channel.OpenOk)
        elif method == CHANNEL_CLOSE:
            self.connection.do_in_pieces(self.end(), self, method, self._ended_by_client)
        elif method == CHANNEL_CLOSE_OK:
            self.connection.forget_channel(self)
        else:
            handler = HANDLERS.get(method)
            if handler is None:
                raise ConnectionFault(503, f"{method_name(method)} is nothing that a client calls on a channel")
            handler(self, decode_method(payload))

    def _after_commits(self, last: Run, payload: bytes) -> None:
        """A method comes after publishes whose commit is under way: it has to see them, so it waits for them.

        Commits end in the order of publishing, so the last one is enough to wait for.
        """
        connection = self.connection
        self._last_run = None
        connection.set_aside(self, payload)
        last.add_done_callback(lambda _: connection.io.post(connection.go_on, self))

    def resume(self, payload: bytes) -> None:
        """A method that was set aside is called now. Raises as `receive`."""
        if self.machine.state is not ChannelState.CLOSING:
            self._call(payload)

    def fault(self, code: int, text: str, method: bytes) -> None:
        """Close the channel for a fault of the client's, and say so when it has ended."""
        ending = self.end()
        self.machine.close()
        close = partial(
            self.reply,
            commands.Channel.Close,
            reply_code=code,
            reply_text=shortened(text),
            class_id=int.from_bytes(method[:2]),
            method_id=int.from_bytes(method[2:4]),
        )
        self.connection.do_in_pieces(ending, self, method, close)

    # -- the end

    def end(self) -> Iterator[None]:
        """Deliver nothing further; what is returned ends the channel, a piece at each step. Twice is harmless.

        Publishes that are done are confirmed before it.
        """
        confirms, self.confirms = self.confirms, None  # a commit that ends later has nobody to tell
        self._last_run = None  # and nothing to hold up
        consumers, self.consumers = self.consumers, {}
        self.reply_consumer = None
        self.connection.confirming.pop(self, None)
        steps: list[Step] = []
        if confirms is not None and confirms.is_waiting:
            steps.append(("confirm its publishes", lambda: self.connection.send(confirms.frames(self.number))))
        steps += [(f"stop deliveries to {each!r}", partial(each.want, False)) for each in consumers.values()]
        end_each(self, steps)
        return self._end_in_pieces(list(consumers.values()))

    def _end_in_pieces(self, consumers: list[ServerConsumer]) -> Iterator[None]:
        """Forget what is not committed, give back what is unacked, then make room for other consumers."""
        if self.transaction is not None:
            yield from self.transaction.roll_back()
        yield from self.give_back()
        end_each(self, [(f"stop {each!r}", each.stop) for each in consumers])

    def _ended_by_client(self) -> None:
        self.connection.forget_channel(self)
        self.reply(commands.Channel.CloseOk)


_Handler = Callable[[ServerChannel, Any], None]
_OWN: Final = frozenset({CHANNEL_OPEN, CHANNEL_CLOSE, CHANNEL_CLOSE_OK})

_HOT: Final[dict[bytes, _Handler]] = {
    ACK: ServerChannel._on_ack,
    NACK: ServerChannel._on_nack,
    REJECT: ServerChannel._on_reject,
}
# The other methods a client may call on a channel, by class and number; filled by the modules that know them.
HANDLERS: Final[dict[bytes, _Handler]] = {}


def handles(method: Any) -> Callable[[_Handler], _Handler]:
    """Register a function for a method of `pamqp.commands`."""

    def register(handler: _Handler) -> _Handler:
        HANDLERS[method.index.to_bytes(4)] = handler
        return handler

    return register
