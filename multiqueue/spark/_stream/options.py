"""The options of `format("multiqueue")`, read and checked before anything is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from .._dispatch.pools import is_url
from .errors import BadOption, StreamingError

T = TypeVar("T")

MEBIBYTE = 1 << 20
MOST_PREFETCH = 65535  # what AMQP can say
LONGEST_NAME = 200  # bytes; a queue's name has 255 with what we put before it


SOURCE = (
    "url",
    "queue",
    "spool",
    "sourceId",
    "bodies",
    "malformed",
    "maxMessagesPerBatch",
    "maxBytesPerBatch",
    "partitions",
    "prefetch",
    "failOnDataLoss",
    "reconnectSeconds",
)
SINK = ("url", "exchange", "routingKey", "sinkId", "mandatory", "persistent", "publishSeconds")
SPARKS = ("checkpointlocation", "path", "queryname")  # Spark hands these to a sink too


@dataclass(frozen=True, slots=True)
class QueueOption:
    """A broker queue to read, and when: lower numbers first, equal ones in turns."""

    name: str
    priority: int


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a source. Sizes are bytes, times seconds."""

    url: str
    queues: tuple[QueueOption, ...]
    spool: Path | None
    source_id: str | None
    name: str
    has_json_bodies: bool
    allows_malformed: bool
    max_messages: int
    max_bytes: int
    partitions: int
    prefetch: int
    allows_loss: bool
    reconnect: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Raises `BadOption` with the first thing that does not fit."""
        read = _Reader(options, SOURCE)
        source_id = read("sourceId", _name, None)
        return cls(
            url=read("url", _url),
            queues=read("queue", _queues),
            spool=read("spool", _directory, None),
            source_id=source_id,
            name=source_id or "multiqueue source",
            has_json_bodies=read("bodies", _one_of("raw", "json"), "raw") == "json",
            allows_malformed=read("malformed", _one_of("fail", "null"), "fail") == "null",
            max_messages=read("maxMessagesPerBatch", _count(), 10_000),
            max_bytes=read("maxBytesPerBatch", _count(), 64 * MEBIBYTE),
            partitions=read("partitions", _count(), 1),
            prefetch=read("prefetch", _count(MOST_PREFETCH), 1000),
            allows_loss=not read("failOnDataLoss", _switch, True),
            reconnect=read("reconnectSeconds", _seconds, 60.0),
        )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a sink. Times are seconds."""

    url: str
    exchange: str
    routing_key: str | None
    sink_id: str | None
    is_mandatory: bool
    is_persistent: bool
    patience: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Raises `BadOption` with the first thing that does not fit."""
        read = _Reader(options, SINK)
        return cls(
            url=read("url", _url),
            exchange=read("exchange", str, ""),
            routing_key=read("routingKey", str, None),
            sink_id=read("sinkId", _text, None),
            is_mandatory=read("mandatory", _switch, True),
            is_persistent=read("persistent", _switch, True),
            patience=read("publishSeconds", _seconds, 60.0),
        )


_REQUIRED = object()


class _Reader:
    """Reads options by name, in any case, after a look for unknown ones."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        unknown = self._given.keys() - {name.lower() for name in known} - set(SPARKS)
        if unknown:
            raise BadOption(f"there is no option {', '.join(sorted(unknown))}; there are {', '.join(known)}")

    def __call__(self, name: str, parse: Callable[[str], T], default: object = _REQUIRED) -> T:
        text = self._given.get(name.lower())
        if text is None:
            if default is _REQUIRED:
                raise BadOption(f'the option {name} is missing; give it by .option("{name}", ...)')
            return default  # type: ignore[return-value]
        try:
            return parse(text)
        except ValueError as error:
            shown = "..." if name == "url" else repr(text)
            raise BadOption(f"option {name}={shown}: {error}") from None


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _name(text: str) -> str:
    if len(_text(text).encode()) > LONGEST_NAME:
        raise ValueError(f"it has more than {LONGEST_NAME} bytes, and a queue is named after it")
    return text


def _url(text: str) -> str:
    load_client().parse_address(text)  # its errors are ValueErrors too, and never show a password
    return text


def load_client() -> ModuleType:
    """`multiqueue.client`, which a session that only dispatches does not need.

    Raises:
        StreamingError: pamqp is not installed where this runs.
    """
    try:
        from ... import client
    except ImportError as error:
        raise StreamingError(
            f"the source and the sink need blocking-multiqueue[amqp] on every machine: {error}"
        ) from None
    return client


def _queues(text: str) -> tuple[QueueOption, ...]:
    queues = [_queue(part.strip()) for part in text.split(",") if part.strip()]
    if not queues:
        raise ValueError("it names no queue; one is orders, two with priorities are orders:0,returns:1")
    names = [queue.name for queue in queues]
    if len(set(names)) < len(names):
        raise ValueError("a queue is named twice")
    return tuple(queues)


def _queue(text: str) -> QueueOption:
    name, colon, priority = text.rpartition(":")
    if colon and name and priority.lstrip("-").isdigit():
        return QueueOption(name, int(priority))
    return QueueOption(text, 0)


def local_path(text: str) -> Path | None:
    """The path that a text or `file:` URL means, literally as in Spark: `%20` is no space. None for another scheme.

    Raises:
        ValueError: the URL is of another machine.
    """
    if text[:5].lower() == "file:":
        host, slash, path = text[7:].partition("/") if text[5:7] == "//" else ("", "", text[5:])
        if host not in ("", "localhost"):
            raise ValueError(f"{text} names the host {host!r}; a directory on this machine is file:///PATH")
        return Path(slash + path)
    return None if is_url(text) else Path(text)


def _directory(text: str) -> Path:
    path = local_path(text)
    if path is None:
        scheme = text.partition(":")[0]
        raise ValueError(
            f"{scheme}: is not mounted; name a directory that the driver and all executors see under one path, "
            "or leave it out and give a sourceId: a broker of ours keeps the messages itself"
        )
    if not path.is_absolute():
        raise ValueError("the path must be absolute, for it is used by several processes")
    return path


def _count(most: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if text.strip().isdecimal() and 1 <= (number := int(text)) <= (number if most is None else most):
            return number
        raise ValueError(f"it must be a whole number from 1 {'up' if most is None else f'to {most}'}")

    return parse


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError("it must be seconds, 0 or more")
    return number


def _switch(text: str) -> bool:
    return _one_of("true", "false")(text.lower()) == "true"


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"it must be {' or '.join(words)}")
        return text.lower()

    return parse
