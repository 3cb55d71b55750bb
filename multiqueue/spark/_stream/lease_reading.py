"""Reading leased chunks in an executor: straight from the broker, as often as it is asked for, without taking any.

Promise     The chunks that were asked for, in order, each once, as they were moved; or an error.
Waiting     For a chunk, `SLOW` seconds at most: the driver has seen it. A lost connection is made anew
            for `reconnectSeconds`, and goes on with the chunk that did not come.
Who runs    One thread per task. The broker sends as fast as the task reads; `SHARE_BYTES` wait here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...errors import Empty
from .chunks import Piece, unseal
from .errors import DataLoss, SourceUnavailable
from .lease import COUNT, FIRST, SLOW, chunk_of, queue_of
from .options import MEBIBYTE, SourceOptions, load_client

if TYPE_CHECKING:
    from ...client import Message

_log = logging.getLogger("multiqueue.spark")

SHARE_BYTES = 8 * MEBIBYTE  # of chunks that have come and were not read yet
RETRY = 0.5  # seconds between two attempts to connect
_GONE = 404


def payloads(options: SourceOptions, lease: str, pieces: list[Piece]) -> Iterator[tuple[bytes, int, int]]:
    """Each piece's chunk, with which of its messages are wanted: how many after how many.

    Raises:
        DataLoss: a chunk is not there, not what was moved, or another lease's.
        SourceUnavailable: the broker was away too long.
    """
    client = load_client()
    left = list(pieces)
    deadline = time.monotonic() + options.reconnect
    while left:
        try:
            for payload in _browse(options, lease, left):
                piece = left.pop(0)
                yield payload, piece.skip, piece.count
                deadline = time.monotonic() + options.reconnect
        except client.ClientError as error:
            if getattr(error, "reply_code", 0) == _GONE:
                raise DataLoss(f"{_name(options)} is gone: somebody has deleted it") from error
            if time.monotonic() >= deadline:
                raise SourceUnavailable(
                    f"{_name(options)} could not be read for {options.reconnect:g} s: {error}"
                ) from error
            _log.warning("reading %s again: %s", _name(options), error)
            time.sleep(RETRY)


def _browse(options: SourceOptions, lease: str, pieces: list[Piece]) -> Iterator[bytes]:
    """As far as one connection lasts. The caller may empty `pieces` while it iterates."""
    wanted = [piece.chunk for piece in pieces]
    selector = f"{COUNT} > 0 AND {FIRST} BETWEEN {wanted[0].first} AND {wanted[-1].first}"
    client = load_client()
    with (
        client.connect(options.url, name=options.name, recover=False, buffer_bytes=SHARE_BYTES) as connection,
        connection.channel() as channel,
        channel.consume(_name(options), auto_ack=True, arguments={"x-filter-jms-selector": selector}) as inbox,
    ):
        for chunk in wanted:
            try:
                message = inbox.get(SLOW)
                while (found := chunk_of(message))[1].first < chunk.first:
                    message = inbox.get(SLOW)  # the broker may show one twice, when memory becomes short
            except Empty:
                raise _missing(options, chunk.first, "nothing came") from None
            if found != (lease, chunk):
                raise _missing(options, chunk.first, f"message {found[1].first} of lease {found[0]} came")
            yield _payload(message)


def _payload(message: Message) -> bytes:
    return unseal(f"chunk {message.headers[FIRST]}", message.body)


def _missing(options: SourceOptions, first: int, instead: str) -> DataLoss:
    return DataLoss(
        f"the chunk of message {first} is not in {_name(options)}: {instead} within {SLOW:g} s. It was removed by "
        "hand, or by a later batch's commit"
    )


def _name(options: SourceOptions) -> str:
    assert options.source_id is not None
    return queue_of(options.source_id)
