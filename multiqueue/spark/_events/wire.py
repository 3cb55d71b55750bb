"""The wire format between a task and the driver: one message, with headers and a body of JSON.

Promise     `read` gives back what `written` was given, or raises `Refused`. Nothing that arrives is unpickled or run:
            JSON is all that is read, and only after the token was the right one.
State       None, no I/O.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, cast

JSON: Final = "application/json"

Kind = Literal["values", "progress", "end", "over"]
_KINDS: Final = ("values", "progress", "end", "over")


class Refused(Exception):
    """A message that none of our tasks wrote."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One message of a task: some of its values, how far it is, or that it is done.

    `first` is the sequence number of the first value, `count` how many there are; of an "end" `first` is how many
    values the task gave in all. `sender` names the one run of the task that wrote it. "over" is the driver's own: the
    job ended.
    """

    kind: Kind
    partition: int = -1
    sender: str = ""
    attempt: int = 0
    first: int = 0
    count: int = 0
    done: int | None = None
    total: int | None = None
    body: bytes = b""

    def values(self) -> list[Any]:
        """The values that the task sent.

        Raises:
            Refused: the body is something else.
        """
        try:
            found = json.loads(self.body)
        except ValueError as error:
            raise Refused(f"a body that is not JSON: {error}") from None
        if type(found) is not list or len(found) != self.count:
            raise Refused(f"a body that is no list of {self.count} values")
        return found


_NUMBERS: Final = ("partition", "attempt", "first", "count")


def written(chunk: Chunk, token: str) -> dict[str, Any]:
    """The properties of the message whose body is the chunk's."""
    headers: dict[str, Any] = {
        "token": token,
        "kind": chunk.kind,
        "partition": chunk.partition,
        "sender": chunk.sender,
        "attempt": chunk.attempt,
        "first": chunk.first,
        "count": chunk.count,
    }
    if chunk.done is not None:
        headers["done"] = chunk.done
    if chunk.total is not None:
        headers["total"] = chunk.total
    return {"content_type": JSON, "headers": headers}


def read(properties: Mapping[str, Any], body: bytes, token: str) -> Chunk:
    """The chunk of a message.

    Raises:
        Refused: the token is another one, or the headers are not as `written` makes them.
    """
    headers = properties.get("headers", {})
    if not hmac.compare_digest(str(headers.get("token", "")).encode(), token.encode()):
        raise Refused("a wrong token")
    kind, sender = headers.get("kind"), headers.get("sender")
    if kind not in _KINDS or not isinstance(sender, str):
        raise Refused(f"a message of kind {kind!r}")
    numbers = {name: headers.get(name) for name in _NUMBERS}
    told = {name: headers.get(name) for name in ("done", "total")}
    if not all(_is_number(number) for number in numbers.values()):
        raise Refused(f"numbers that are none: {numbers}")
    if not all(number is None or _is_number(number) for number in told.values()):
        raise Refused(f"progress that is none: {told}")
    if (content_type := properties.get("content_type", JSON)) != JSON:
        raise Refused(f"a body of type {content_type!r}")
    return Chunk(cast(Kind, kind), sender=sender, body=body, **cast(Any, numbers | told))


def json_text(value: object) -> bytes:
    """One value as JSON.

    Raises:
        TypeError, ValueError: JSON has nothing for it.
    """
    return json.dumps(value, separators=(",", ":"), default=_no_json).encode()


def _no_json(value: object) -> NoReturn:
    kind = type(value).__name__
    found = [one for one in ("isoformat", "hex", "to_pylist") if hasattr(value, one)]
    raise TypeError(f"{kind} is not JSON serializable: send {f'value.{found[0]}()' if found else 'str(value)'}")


def _is_number(value: object) -> bool:
    return type(value) is int and -1 <= value < 1 << 63
