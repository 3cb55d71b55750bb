"""Errors on a wire, each with the reply code and text an AMQP 0-9-1 peer knows.

The type says how far the damage reaches: a `ChannelFault` ends its channel, a `ConnectionFault` the connection. Names
and texts are RabbitMQ's, so that a client written against it reads the texts it expects.
"""

from __future__ import annotations

from typing import Final, Literal

from ...errors import MultiQueueError

# Reply codes by name, as the specification has them; 311 as RabbitMQ writes it.
REPLY_NAMES: Final[dict[int, str]] = {
    200: "OK",
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}


def shortened(text: str) -> str:
    """As much of a text as a short string holds."""
    return text.encode()[:255].decode(errors="ignore")


def reason(code: int, text: str, method: bytes) -> dict[str, int | str]:
    """The fields of a close that is about this method, its class and number first."""
    class_id, method_id = int.from_bytes(method[:2]), int.from_bytes(method[2:4])
    return {"reply_code": code, "reply_text": shortened(text), "class_id": class_id, "method_id": method_id}


class AmqpError(MultiQueueError):
    """The root of the protocol's errors. The peer gets `reply_code` and `reply_text`."""

    closes: Literal["channel", "connection"] = "connection"

    def __init__(self, reply_code: int, detail: str) -> None:
        self.reply_code = reply_code
        self.detail = detail
        super().__init__(self.reply_text)

    @property
    def reply_text(self) -> str:
        """`NOT_FOUND - no queue 'x' in vhost '/'`."""
        return f"{REPLY_NAMES.get(self.reply_code, 'INTERNAL_ERROR')} - {self.detail}"


class ChannelFault(AmqpError):
    """The peer asked for something that is refused. Its channel is closed, the others go on."""

    closes: Literal["channel", "connection"] = "channel"


class ConnectionFault(AmqpError):
    """The peer broke the protocol, or may not go on. The connection is closed."""


class FrameError(ConnectionFault):
    """Bytes that are no frame: a wrong end, a wrong type, too large. `frames` were whole before it."""

    def __init__(self, detail: str, frames: list[tuple[int, int, bytes]] | None = None) -> None:
        super().__init__(501, detail)
        self.frames: list[tuple[int, int, bytes]] = frames or []


class MalformedFrame(ConnectionFault):
    """A frame whose payload does not decode."""

    def __init__(self, detail: str) -> None:
        super().__init__(501, detail)


class ServerError(MultiQueueError):
    """The server cannot serve: a port in use, a certificate that cannot be read."""

    exit_status = 2


class FixedUser(MultiQueueError):
    """A user that was given when the server was started cannot be changed while it runs."""


class ConfigError(MultiQueueError):
    """The configuration does not fit; one sentence per line, each with file and key. Nothing was started."""

    exit_status = 2
