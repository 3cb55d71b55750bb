"""What tasks and driver say to each other, and what is refused. Without Spark or a broker."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from spark_parts_support import Chunk, Refused, read, written

from multiqueue.amqp import decode_properties, encode_properties

TOKEN = "secret"
CHUNK = Chunk("values", 3, "run", 1, first=5, count=2, done=7, total=9, body=b'[1,{"a":null}]')


def test_a_message_comes_back_as_it_was_written() -> None:
    """All that a task writes is what the driver reads, through the wire's own tables."""
    properties = decode_properties(encode_properties(written(CHUNK, TOKEN)))
    assert read(properties, CHUNK.body, TOKEN) == CHUNK
    assert CHUNK.values() == [1, {"a": None}]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"token": "guessed"}, "a wrong token"),
        ({"token": None}, "a wrong token"),
        ({"kind": "surprise"}, "kind 'surprise'"),
        ({"kind": ["values"]}, "kind"),
        ({"sender": 5}, "kind 'values'"),
        ({"partition": "0"}, "numbers that are none"),
        ({"first": -7}, "numbers that are none"),
        ({"count": True}, "numbers that are none"),
        ({"done": "all"}, "progress that is none"),
    ],
)
def test_what_no_task_wrote_is_refused(changed: dict[str, Any], why: str) -> None:
    """A message with another token, or with headers that are not a task's, is refused with the reason."""
    properties = written(CHUNK, TOKEN)
    properties["headers"] |= changed
    with pytest.raises(Refused, match=why):
        read(properties, CHUNK.body, TOKEN)


def test_no_headers_are_refused() -> None:
    """A message without any headers is refused."""
    with pytest.raises(Refused, match="a wrong token"):
        read({}, b"[]", TOKEN)


def test_nothing_is_unpickled() -> None:
    """A body of another type than JSON is refused, and a pickle under its name is not loaded.

    (task-events 6)
    """
    body = pickle.dumps(pytest.fail)
    properties = written(CHUNK, TOKEN) | {"content_type": "application/python-pickle"}
    with pytest.raises(Refused, match="type 'application/python-pickle'"):
        read(properties, body, TOKEN)
    with pytest.raises(Refused):
        Chunk("values", count=1, body=body).values()


def test_a_body_with_another_number_of_values_is_refused() -> None:
    """The numbers of values are what a partition is counted by: a body with more or fewer is refused."""
    with pytest.raises(Refused, match="no list of 3 values"):
        Chunk("values", count=3, body=b"[1,2]").values()
