"""An answer's content as text, in pieces: neither the whole text nor a large part of it is ever in memory.

Promise     A piece has some `_PIECE` bytes; only what does not divide (one object of a list) makes a larger one.
            A body of megabytes is written slice by slice: while one is, no other thread runs.
Shape       An object is divided into its values, a list into its elements. An element is written at once, unless it is
            a `Parted`. A list may be an iterator, whose elements are made one after the other.
"""

from __future__ import annotations

import base64
import json
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

_PIECE: Final = 64 * 1024  # bytes; some 0.3 ms of the interpreter's lock
_SLICE: Final = 48 * 1024  # bytes of a body; a multiple of three, for Base64
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
_decoder: Final = getincrementaldecoder("utf-8")


class Parted(dict[str, Any]):
    """An object among the elements of a list that is divided into its values."""


class Payload:
    """A message's body as a JSON string: as it is, where it is UTF-8 and that is asked for, or in Base64."""

    def __init__(self, raw: bytes, *, may_be_text: bool) -> None:
        self._raw = raw
        self.encoding: str = "base64"
        if may_be_text:
            try:
                raw.decode()
                self.encoding = "string"
            except UnicodeDecodeError:
                pass

    def texts(self) -> Iterator[str]:
        """The string in slices, without its quotes."""
        decode = _decoder().decode
        for begin in range(0, len(self._raw), _SLICE):
            part = self._raw[begin : begin + _SLICE]
            yield _encode(decode(part))[1:-1] if self.encoding == "string" else base64.b64encode(part).decode()


def gathered(texts: Iterable[bytes]) -> Iterator[bytes]:
    """The same in pieces of a size."""
    found: list[bytes] = []
    size = 0
    for text in texts:
        found.append(text)
        size += len(text)
        if size >= _PIECE:
            yield b"".join(found)
            found, size = [], 0
    if found:
        yield b"".join(found)


def json_pieces(content: Any) -> Iterator[bytes]:
    """The content as JSON."""
    return gathered(map(str.encode, _texts(content, 0)))


def as_json(content: Any) -> bytes:
    """The content as JSON, of an answer that is small."""
    return b"".join(json_pieces(content))


def _texts(content: Any, depth: int) -> Iterator[str]:
    if isinstance(content, Payload):
        yield '"'
        yield from content.texts()
        yield '"'
    elif isinstance(content, Mapping) and (depth == 0 or isinstance(content, Parted)):
        before = "{"
        for key, value in content.items():
            yield f"{before}{_encode(str(key))}:"
            yield from _texts(value, depth + 1)
            before = ","
        yield "}" if content else "{}"
    elif isinstance(content, list | Iterator) and depth <= 1:
        before = "["
        for each in content:
            yield before
            yield from _texts(each, depth + 1)
            before = ","
        yield "]" if before == "," else "[]"
    else:
        yield _encode(content)
