"""Server-sent events: some looks, answered again whenever a sample brings something new.

Promise     A stream sends what the same GET requests would answer to its user at that moment, and a look again only
            when its answer has changed. A user that is removed, or whose password or tags change, gets no further
            events. Streams that look at the same thing as the same user share one answer for each sample.
State       The event loop alone touches `_streams`. `_cache` belongs to one sample; handlers fill it on the pool's
            threads, and `_lock`, a leaf, guards which sample it is.
Waiting     A stream waits for the next sample, in turns of `_TURN`, and for its client to take the sent bytes: nothing
            is kept for a client that reads slowly, it misses samples. `close` ends every stream within a turn.
Bounds      `_STREAMS` streams at once, `_STREAMS_OF_ONE` of one user, `_LOOKS` looks in each, of
            `_LARGEST_ANSWER` bytes each. A stream keeps the hashes of its last answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from ..._locks import Lock
from ...amqp import Access, User
from .._base.errors import Refused, bad_request
from .._base.pieces import as_json, json_pieces
from .._door.access import Caller
from .._figures.sampler import INTERVAL, Sampler
from .._figures.samples import Pair
from .asking import Answer, Ask, Table

_STREAMS: Final = 128
_STREAMS_OF_ONE: Final = 16  # of one user
_LOOKS: Final = 8
_LONGEST_LOOK: Final = 2000  # characters
_LARGEST_ANSWER: Final = 512 * 1024  # bytes of one look
_PIECE: Final = 64 * 1024  # bytes that are written at once
_TURN: Final = INTERVAL / 4  # seconds: a change is shown within two samples' distance

OnThread = Callable[..., Any]  # awaits a function's result from a thread of the pool


@dataclass(frozen=True, slots=True)
class Look:
    """One GET request of a stream: its path, and the query."""

    path: str
    query: tuple[tuple[str, str], ...]


def looks_of(texts: Sequence[str]) -> list[Look]:
    """The looks that a request for a stream names.

    Raises:
        Refused: none, too many, or one that is no path.
    """
    if not 1 <= len(texts) <= _LOOKS:
        raise bad_request(f"{len(texts)} looks; a stream has from 1 to {_LOOKS}: /api/events?look=%2Fapi%2Foverview")
    for text in texts:
        if len(text) > _LONGEST_LOOK or not text.startswith("/api/"):
            raise bad_request(f"look {text[:80]!r} is not a path of the API")
    parts = [text.partition("?") for text in texts]
    return [Look(path, tuple(dict(parse_qsl(query)).items())) for path, _, query in parts]


class Events:
    """The streams of one server. `table` has the looks that a stream may repeat: none that changes something."""

    def __init__(self, table: Table, access: Access, sampler: Sampler) -> None:
        self._table = table
        self._access = access
        self._sampler = sampler
        self._streams: Counter[str] = Counter()  # by user
        self._closed = False
        self._lock = Lock()
        self._cache: tuple[Pair | None, dict[tuple[int, Look], tuple[User, str]]] = (None, {})

    def open(self, caller: Caller, looks: list[Look], on_thread: OnThread) -> AsyncIterator[bytes]:
        """The stream's bytes; it ends with the server, or when its user may look no more.

        Raises:
            Refused: there are too many streams.
        """
        name = caller.user.name
        if self._streams[name] >= _STREAMS_OF_ONE:
            raise Refused(503, "too_many_streams", f"user '{name}' has {_STREAMS_OF_ONE} streams already; close one")
        if self._streams.total() >= _STREAMS:
            raise Refused(503, "too_many_streams", f"{_STREAMS} pages are open already; close one")
        return self._stream(caller.user, looks, on_thread)

    def close(self) -> None:
        """End all streams. Any thread may call."""
        self._closed = True

    async def _stream(self, user: User, looks: list[Look], on_thread: OnThread) -> AsyncIterator[bytes]:
        self._streams[user.name] += 1
        try:
            sent: list[int] = []  # the hashes of the answers
            pair: Pair | None = None
            while True:
                if self._closed:
                    break
                newest = self._sampler.fresh() or await on_thread(self._sampler.look)
                if newest is pair:
                    await asyncio.sleep(_TURN)
                    continue
                pair, now = newest, self._access.user(user.name)
                if now is None or (now.password_hash, now.tags) != (user.password_hash, user.tags):
                    yield b"event: end\ndata: {}\n\n"
                    return
                answers = await on_thread(self._answers, pair, now, looks)
                told = _told(pair, answers, sent)
                sent = list(map(hash, answers))
                del answers
                for begin in range(0, len(told), _PIECE):
                    yield told[begin : begin + _PIECE]
        finally:
            self._streams[user.name] -= 1
            self._streams += Counter()  # users without a stream go

    # -- on the pool's threads

    def _answers(self, pair: Pair, user: User, looks: list[Look]) -> list[str]:
        with self._lock:
            if self._cache[0] is not pair:
                self._cache = pair, {}
            cache = self._cache[1]
        found: list[str] = []
        for look in looks:
            known = cache.get((id(user), look))
            if known is None:  # two threads may make the same answer; the later one stays
                known = cache[id(user), look] = user, self._answer(user, look)
            found.append(known[1])
        return found

    def _answer(self, user: User, look: Look) -> str:
        try:
            route, parts = self._table.find("GET", look.path)
            found = route.handler(Ask(Caller(user), parts, dict(look.query)))
            content = found.content if isinstance(found, Answer) else found
        except Refused as refused:
            content = {"status": refused.status, "error": refused.error, "reason": refused.reason}
        return _text_of(content)


def _text_of(content: Any) -> str:
    pieces: list[bytes] = []
    left = _LARGEST_ANSWER
    for piece in json_pieces(content):
        left -= len(piece)
        if left < 0:
            why = f"an answer of a stream has up to {_LARGEST_ANSWER} bytes; ask for a page, or for some columns"
            return as_json({"status": 413, "error": "too_large", "reason": why}).decode()
        pieces.append(piece)
    return b"".join(pieces).decode()


def _told(pair: Pair, answers: list[str], sent: list[int]) -> bytes:
    """The answers that have changed, by the number of their look, and when the sample was taken."""
    changed = [
        f"event: {number}\ndata: {answer}\n\n"
        for number, answer in enumerate(answers)
        if number >= len(sent) or hash(answer) != sent[number]
    ]
    return f'{"".join(changed)}event: tick\ndata: {{"at":{pair.latest.wall:.3f}}}\n\n'.encode()
