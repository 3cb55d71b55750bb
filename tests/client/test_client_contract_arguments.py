"""Arguments that no server could do anything with: refused where they are given, over every peer in the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from multiqueue.client import Channel

Use = Callable[[Channel], object]
UNTYPED: Any = 5

REFUSED: dict[str, tuple[Use, type[Exception], str]] = {
    "a text for a body": (
        lambda channel: channel.publish("tea"),  # type: ignore[arg-type]
        TypeError,
        "a message's body is bytes, not str: 'tea'; encode it",
    ),
    "no body": (lambda channel: channel.publish(UNTYPED), TypeError, "a message's body is bytes, not int"),
    "an expiration that is no text": (
        lambda channel: channel.publish(b"", expiration=UNTYPED),
        TypeError,
        "property expiration is 5, a int; a string is needed",
    ),
    "a priority that is too high": (
        lambda channel: channel.publish_confirmed(b"", priority=256),
        ValueError,
        "property priority: 256 does not fit in an octet: from 0 to 255",
    ),
    "headers that are none": (
        lambda channel: channel.publish(b"", headers=UNTYPED),
        TypeError,
        "property headers is 5, a int; a mapping is needed",
    ),
    "a header that no type holds": (
        lambda channel: channel.publish(b"", headers={"n": 2**64}),
        ValueError,
        "property headers: a whole number of 66 bits; 64 are the most",
    ),
    "a prefetch below none": (
        lambda channel: channel.basic_qos(-1),
        ValueError,
        "prefetch_count is -1; it is from 0 to 65535",
    ),
    "a queue without a name": (
        lambda channel: channel.basic_get(UNTYPED),
        TypeError,
        "queue is 5, a int; a string is needed",
    ),
    "None for a queue, which is no name": (
        lambda channel: channel.queue_delete(None),  # type: ignore[arg-type]
        TypeError,
        "queue is None, a NoneType; a string is needed",
    ),
    "None for a routing key": (
        lambda channel: channel.queue_bind("q", "amq.direct", None),  # type: ignore[arg-type]
        TypeError,
        "routing_key is None, a NoneType; a string is needed",
    ),
    "a name that is too long": (
        lambda channel: channel.queue_declare("q" * 256),
        ValueError,
        "has 256 bytes; 255 are the most",
    ),
    "an argument that no type holds": (
        lambda channel: channel.exchange_declare("x", arguments={"a": object()}),
        ValueError,
        "no field type holds a object",
    ),
    "a callback that is none": (
        lambda channel: channel.basic_consume("q", UNTYPED),
        TypeError,
        "callback is 5, which cannot be called",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_argument_that_does_not_fit_is_refused_here(channel: Channel, what: str) -> None:
    """It raises with its name and what is needed; nothing is sent, and the channel goes on."""
    use, error, text = REFUSED[what]
    with pytest.raises(error) as caught:
        use(channel)
    assert text in str(caught.value)
    assert channel.queue_declare(exclusive=True).message_count == 0
    assert channel.wait_for_confirms(30)
