"""Messages from a wire: decoded when looked at, unchanged when not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from amqp_parts_support import (
    WireMessage,
    body_of,
    digest,
    encode_short_string,
    names_of,
    remembered,
    rewritten,
)
from amqp_parts_support import message as _message
from amqp_strategies_support import properties
from hypothesis import given

from multiqueue import amqp
from multiqueue.amqp import digest_of, properties_of, wire_message
from multiqueue.broker import Message

NAMES = encode_short_string("e") + encode_short_string("k")


def message(**wanted: Any) -> WireMessage:
    """A message with these properties."""
    block = amqp.encode_properties(wanted)
    return wire_message(b"body", "e", "k", NAMES, block, digest(block), "me")


@given(properties)
def test_every_field_reads_as_a_messages(wanted: dict[str, Any]) -> None:
    """A message from a wire has the fields of one that was made in the process, and keeps its bytes."""
    wanted = {**wanted, "expiration": "1500"}
    found = message(**wanted)
    assert (found.body, found.exchange, found.routing_key, found.publisher) == (b"body", "e", "k", "me")
    assert (found.expiration, found.delay, found.size) == (1.5, None, 4)
    assert found.persistent == (wanted.get("delivery_mode") == 2)
    for name in ("content_type", "correlation_id", "priority", "timestamp", "type", "user_id", "app_id", "reply_to"):
        assert getattr(found, name) == wanted.get(name), name
    assert dict(found.headers) == wanted.get("headers", {})
    assert properties_of(found) == amqp.encode_properties(wanted)
    assert names_of(found) == NAMES


@given(properties)
def test_a_changed_copy_is_encoded_anew(wanted: dict[str, Any]) -> None:
    """A dead letter, say: what was changed is changed on the wire, and everything else as it was."""
    wanted = {**wanted, "expiration": "1500"}
    copy = dataclasses.replace(message(**wanted), routing_key="other", expiration=None, headers={"n": 1})
    assert names_of(copy) == encode_short_string("e") + encode_short_string("other")
    del wanted["expiration"]
    assert amqp.decode_properties(properties_of(copy)) == {**wanted, "headers": {"n": 1}}


def test_a_message_of_the_process_goes_over_the_wire() -> None:
    """Text is encoded, bytes-like bodies are bytes, an object stays."""
    assert body_of(Message("é")) == "é".encode()
    assert body_of(Message(memoryview(b"ab"))) == b"ab"
    with pytest.raises(ValueError, match="a body of type object cannot leave its process"):
        body_of(Message(object()))
    with pytest.raises(ValueError, match="no field type holds a object"):
        properties_of(Message(headers={"x": object()}))


def test_attributes_that_are_none() -> None:
    """A name that is no field of a message raises as usual."""
    with pytest.raises(AttributeError, match="colour"):
        message().colour  # noqa: B018


@pytest.mark.parametrize("text", ["soon", "-1", "1.5", "", "9" * 30, "٣"])
def test_an_expiration_is_a_number_of_milliseconds(text: str) -> None:
    """Anything else is refused, with what it was."""
    with pytest.raises(amqp.ChannelFault, match="invalid expiration"):
        message(expiration=text)


def test_what_needs_a_second_look() -> None:
    """Only user-id, reply-to, CC and BCC are worth one."""
    for wanted, special in (
        ({"headers": {"a": 1}}, False),
        ({"headers": {"CC": ["a"]}}, True),
        ({"headers": {"BCC": ["a"]}}, True),
        ({"user_id": "me"}, True),
        ({"reply_to": "q"}, True),
        ({"expiration": "5", "priority": 1}, False),
    ):
        assert digest(amqp.encode_properties(wanted)).special is special, wanted


def test_digests_are_remembered_and_bounded() -> None:
    """The same block is looked at once, on all connections; many different ones leave no more than the last few."""
    block = amqp.encode_properties({"content_type": "text/plain"})
    assert digest_of(block) is digest_of(bytes(bytearray(block)))
    most = remembered.cache_info().maxsize
    assert most is not None
    assert most > 10_000  # the tenants of a busy queue, say
    for number in range(most + 1000):
        digest_of(amqp.encode_properties({"message_id": str(number)}))
    assert remembered.cache_info().currsize == most
    large = amqp.encode_properties({"headers": {"a": "x" * 1000}})
    assert digest_of(large).template.headers == {"a": "x" * 1000}
    assert digest_of(large) is not digest_of(large)


def test_changed_blocks() -> None:
    """A header is taken out, a reply-to is replaced; nothing else changes."""
    block = amqp.encode_properties({"headers": {"BCC": ["a"], "n": 1}, "priority": 3})
    assert amqp.decode_properties(_message.without_header(block, "BCC")) == {"headers": {"n": 1}, "priority": 3}
    alone = amqp.encode_properties({"headers": {"BCC": ["a"]}})
    assert amqp.decode_properties(_message.without_header(alone, "BCC")) == {"headers": {}}  # as at RabbitMQ
    assert amqp.decode_properties(rewritten(block, reply_to="q"))["reply_to"] == "q"
