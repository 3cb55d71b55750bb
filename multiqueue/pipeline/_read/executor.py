"""Files read by Python, in tasks on the executors: bytes by fsspec, lines by Python, Parquet by pyarrow.

Promise     Only bytes become lines, whole texts or Parquet columns here; what a line says is parsed by Spark, which
            reads the same with either way.
Ships       By value: the executors need pyarrow, and fsspec with the store's library for places in stores, and nothing
            of this package. So this module imports the standard library alone, and `small_objects`, which goes with it,
            and what that imports.
Seams       A task may have a piece of a file, from one byte to another: of lines those that begin in it, of Parquet
            the row groups that do. Where lines begin is told by `seam`, which gives the piece before and the piece
            behind the same answer: each line is in one piece, whole.
Memory      Some MB of a file, or `_AHEAD` small files that are fetched while the first of them is read.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import IO, Any

from .._base.small_objects import SmallObjects

_PIECE_BYTES = 4 << 20
_BATCH_LINES = 20_000
_BATCH_BYTES = 16 << 20

# Enough for the end of nearly every line that a seam cuts.
_SEAM_BYTES = 64 << 10

# Small files are fetched whole, so many at a time: a store takes tens of milliseconds to answer.
_AHEAD = 8
_SMALL_BYTES = 4 << 20

# Characters that Spark's readers take for blank.
_BLANK = "".join(map(chr, range(33)))


class Unreadable(ValueError):
    """A file is not as it is to be read; the message is a sentence, and names it."""


@dataclass(frozen=True)
class File:
    """A file that a task reads."""

    store: str | None
    """The name of its file system; None for a local file."""
    path: str
    """As its file system knows it."""
    shown: str
    """As Spark's own readers name it."""
    size_bytes: int
    """Of the piece, if it is one."""
    modified_s: float = 0.0
    start: int = 0
    end: int | None = None
    """The piece that the task reads; None is the end of the file."""

    @property
    def is_piece(self) -> bool:
        return self.start > 0 or self.end is not None


@dataclass(frozen=True)
class Reading:
    """How files are read, for every task alike."""

    kind: str
    """`lines`, `documents`, `rows` (of Parquet) or `contents`."""
    stores: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict, repr=False)
    """fsspec's protocol and arguments by the name of the store."""
    encoding: str | None = "utf-8"
    """None: as the first bytes of each file tell, which is how JSON is read."""
    separator: str = ""
    """Of lines; empty for `\\n`, `\\r` and `\\r\\n`."""
    skips_blank: bool = False
    has_header: bool = False
    comment: str = ""
    columns: tuple[str, ...] = ()
    """Of Parquet files, in the order in which they are wanted."""
    arrow_schema: bytes = b""
    """Of Parquet files, as they are wanted."""
    file_column: str = ""
    """The column that has the file of each row: one of `columns`, or beside the texts; empty for none."""


def reader(groups: Sequence[Sequence[File]], reading: Reading) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """For `mapInArrow` over a frame of one number a row: yields the batches of that group's files."""

    def read(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _batches_of(groups[number], reading)

    return read


def _batches_of(files: Sequence[File], reading: Reading) -> Iterator[Any]:
    if reading.kind == "contents":
        yield from _contents(files, reading)
    elif reading.kind == "rows":
        for file, stream in _opened(files, reading):
            yield from _rows(file, stream, reading)
    else:
        yield from _texts(files, reading)


def _texts(files: Sequence[File], reading: Reading) -> Iterator[Any]:
    """Batches of texts, and of the file of each where `file_column` asks for it."""
    import pyarrow  # type: ignore[import-untyped]

    texts: list[str] = []
    names: list[Any] = []
    held = 0

    def batch() -> Any:
        columns = {"value": pyarrow.array(texts, pyarrow.string())}
        if reading.file_column:
            columns[reading.file_column] = pyarrow.concat_arrays(names)
        texts.clear()
        names.clear()
        return pyarrow.RecordBatch.from_pydict(columns)

    for file, stream in _opened(files, reading):
        for some in _texts_of(file, stream, reading):
            texts += some
            names.append(_repeated(file.shown, len(some)) if reading.file_column else None)
            held += sum(map(len, some))
            if len(texts) >= _BATCH_LINES or held >= _BATCH_BYTES:
                yield batch()
                held = 0
    if texts:
        yield batch()


def _texts_of(file: File, stream: IO[bytes], reading: Reading) -> Iterator[list[str]]:
    if file.is_piece:
        yield from _lines_of_piece(stream, file.start, file.end, reading)
        return
    blocks = _blocks(_unpacked(file, stream))
    try:
        yield from _lines(blocks, reading, is_start=True) if reading.kind == "lines" else _documents(blocks, reading)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Unreadable(f"{file.shown} cannot be unpacked: {error}") from error


def lines_of_piece(stream: IO[bytes], start: int, end: int | None, reading: Reading) -> Iterator[str]:
    """The lines of a file that begin between two bytes of it, as `lines_of` gives them."""
    return chain.from_iterable(_lines_of_piece(stream, start, end, reading))


def _lines_of_piece(stream: IO[bytes], start: int, end: int | None, reading: Reading) -> Iterator[list[str]]:
    if reading.encoding is None:
        stream.seek(0)
        encoding = _json_encoding(stream.read(4))
        if encoding.startswith("utf-8"):
            reading = replace(reading, encoding="utf-8")
        else:  # its lines cannot be found in the middle: the first piece is the file
            reading = replace(reading, encoding=encoding)
            start, end = (0, None) if start == 0 else (start, start)
    ends = reading.separator.encode(reading.encoding or "utf-8")
    return _lines(_piece(stream, start, end, ends), reading, is_start=start == 0)


def _piece(stream: IO[bytes], start: int, end: int | None, separator: bytes) -> Iterator[bytes]:
    """The bytes of the lines that begin between the two."""
    at = _before(start, separator) + len(seam(stream, start, separator))
    if end is not None and at >= end:
        return
    stream.seek(at)
    if end is None:
        yield from _blocks(stream)
        return
    last = _before(end, separator)
    while at < last and (block := stream.read(min(_PIECE_BYTES, last - at))):
        at += len(block)
        yield block
    yield seam(stream, end, separator)[at - last :]


def seam(stream: IO[bytes], place: int, separator: bytes) -> bytes:
    """The bytes from `_before` a place up to the first line that begins there or behind, or to the end of the file.

    An empty separator is `\\n`, `\\r` and `\\r\\n`. The stream stands anywhere.
    """
    pattern = re.compile(re.escape(separator) or b"\r\n|\n|\r")
    stream.seek(_before(place, separator))
    found = bytearray()
    while place > 0 and (more := stream.read(_SEAM_BYTES)):
        looked = max(len(found) - len(separator or b"\r"), 0)
        found += more
        match = pattern.search(found, looked)
        # Behind a "\r" that nothing follows yet there may be a "\n".
        if match is not None and (match.end() < len(found) or found[-1:] != b"\r"):
            return bytes(found[: match.end()])
    return bytes(found)


def _before(place: int, separator: bytes) -> int:
    """Where a separator begins that ends at this place."""
    return max(place - (len(separator) or 1), 0)


def lines_of(stream: IO[bytes], reading: Reading) -> Iterator[str]:
    """The lines of a file, its header and blank ones left out where that is asked for."""
    return chain.from_iterable(_lines(_blocks(stream), reading, is_start=True))


def _lines(blocks: Iterator[bytes], reading: Reading, *, is_start: bool) -> Iterator[list[str]]:
    has_header, comment = reading.has_header and is_start, reading.comment
    for lines in _split(_decoded(blocks, reading, is_start=is_start), reading.separator):
        if reading.skips_blank:  # nearly every line begins behind the blank characters
            lines = [line for line in lines if line >= "!" or line.strip(_BLANK)]
            lines = [line for line in lines if not line.startswith(comment)] if comment else lines
        if has_header and lines:
            has_header = False
            del lines[0]
        yield lines


def _documents(blocks: Iterator[bytes], reading: Reading) -> Iterator[list[str]]:
    text = "".join(_decoded(blocks, reading, is_start=True))
    if text or not reading.skips_blank:
        yield [text]


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(_PIECE_BYTES):
        yield block


def _decoded(blocks: Iterator[bytes], reading: Reading, *, is_start: bool) -> Iterator[str]:
    """The text of these bytes in pieces; of the start of a file without the mark of its byte order."""
    block = next(blocks, b"")
    decoder = codecs.getincrementaldecoder(reading.encoding or _json_encoding(block))("replace")
    is_first = is_start
    while block:
        text = decoder.decode(block)
        yield text.removeprefix("\ufeff") if is_first else text
        is_first = is_first and not text
        block = next(blocks, b"")
    yield decoder.decode(b"", True)


def _json_encoding(start: bytes) -> str:
    import json

    return json.detect_encoding(start)


def _split(pieces: Iterable[str], separator: str) -> Iterator[list[str]]:
    """The lines of a text that comes in pieces. One that ends in a separator has no empty line behind it."""
    rest = ""
    for piece in pieces:
        text = rest + piece
        if separator:
            *lines, rest = text.split(separator)
        else:
            held = "\r" if text.endswith("\r") else ""  # its "\n" may come with the next piece
            text = text.removesuffix("\r")
            *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            rest += held
        yield lines
    if rest:
        yield [rest if separator else rest.removesuffix("\r")]


def _contents(files: Sequence[File], reading: Reading) -> Iterator[Any]:
    import pyarrow

    for file, stream in _opened(files, reading):
        content = stream.read()
        if not content:
            continue  # Spark's own reader has no row for a file without bytes
        when = datetime.fromtimestamp(file.modified_s, UTC)
        yield pyarrow.RecordBatch.from_arrays(
            [
                pyarrow.array([file.shown], pyarrow.string()),
                pyarrow.array([when], pyarrow.timestamp("us", "UTC")),
                pyarrow.array([len(content)], pyarrow.int64()),
                pyarrow.array([content], pyarrow.binary()),
            ],
            ["path", "modificationTime", "length", "content"],
        )


def _rows(file: File, stream: IO[bytes], reading: Reading) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    wanted = pyarrow.ipc.read_schema(pyarrow.py_buffer(reading.arrow_schema))
    with parquet.ParquetFile(stream, coerce_int96_timestamp_unit="us") as opened:
        there = {name.lower(): name for name in opened.schema_arrow.names}
        names = [there.get(name.lower()) for name in reading.columns]  # a table's column may be younger than its file
        groups = [place for place in range(opened.num_row_groups) if _begins_in(file, opened.metadata.row_group(place))]
        columns = [name for name in names if name]
        for batch in opened.iter_batches(batch_size=_BATCH_LINES, row_groups=groups, columns=columns):
            cast = [
                _as(batch.column(name), one.type, f"{file.shown}: the column {name!r}")
                if name
                else pyarrow.nulls(batch.num_rows, one.type)
                for name, one in zip(names, wanted, strict=True)
            ]
            if reading.file_column:
                cast[reading.columns.index(reading.file_column)] = _repeated(file.shown, batch.num_rows)
            yield pyarrow.RecordBatch.from_arrays(cast, schema=wanted)


def _repeated(text: str, count: int) -> Any:
    import pyarrow

    return pyarrow.repeat(pyarrow.scalar(text, pyarrow.string()), count)


def _begins_in(file: File, group: Any) -> bool:
    """Whether the first byte of a row group is in the piece."""
    first = group.column(0)
    at = min(filter(None, (first.dictionary_page_offset, first.data_page_offset)), default=0)
    return bool(file.start <= at and (file.end is None or at < file.end))


def _as(values: Any, wanted: Any, name: str) -> Any:
    """The Arrow array with the type that is wanted, where Spark's reader of Parquet gives the same values.

    Raises:
        Unreadable: it has another type, or a value that the wanted type has not.
    """
    import pyarrow

    of = pyarrow.types
    if values.type.equals(wanted):
        return values
    while isinstance(values.type, pyarrow.BaseExtensionType):
        values = values.storage
    if of.is_dictionary(values.type):
        values = values.dictionary_decode()
    found = values.type
    if of.is_struct(found) and of.is_struct(wanted):
        there = {one.name.lower(): place for place, one in enumerate(found)}
        parts = [
            _as(values.field(there[one.name.lower()]), one.type, f"{name}.{one.name}")
            if one.name.lower() in there
            else pyarrow.nulls(len(values), one.type)
            for one in wanted
        ]
        return pyarrow.StructArray.from_arrays(parts, fields=list(wanted), mask=values.is_null())
    if of.is_map(found) and of.is_map(wanted):
        values = _from_start(values)
        keys, items = _as(values.keys, wanted.key_type, name), _as(values.items, wanted.item_type, name)
        return pyarrow.MapArray.from_arrays(values.offsets, keys, items, wanted, mask=values.is_null())
    if of.is_list(wanted) and (of.is_large_list(found) or of.is_fixed_size_list(found) or of.is_list_view(found)):
        values = values.cast(pyarrow.list_(found.value_type))
        found = values.type
    if of.is_list(found) and of.is_list(wanted):
        values = _from_start(values)
        elements = _as(values.values, wanted.value_type, f"{name}[]")
        return pyarrow.ListArray.from_arrays(values.offsets, elements, wanted, mask=values.is_null())
    if not _is_read_as(found, wanted):
        raise Unreadable(f"{name} is {found}, and is not read as {wanted}")
    try:
        return values.cast(wanted, safe=not of.is_string(wanted))  # Spark does not look whether bytes are UTF-8
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise Unreadable(f"{name} is {found}, and is not read as {wanted}: {error}") from error


def _from_start(values: Any) -> Any:
    """The same lists or maps; not a slice, whose offsets begin elsewhere."""
    import pyarrow

    return values.take(pyarrow.array(range(len(values)), pyarrow.int64())) if values.offset else values


def _is_read_as(found: Any, wanted: Any) -> bool:
    """Whether Spark reads a simple type of Parquet as this one, and each value as it is."""
    import pyarrow

    of = pyarrow.types
    if of.is_signed_integer(found):
        is_long = of.is_int64(found)
        if of.is_decimal(wanted):
            return bool(wanted.precision - wanted.scale >= (20 if is_long else 10))
        is_number = of.is_signed_integer(wanted) or of.is_float64(wanted)
        return bool(of.is_int64(wanted) or (is_number and not is_long))
    if of.is_unsigned_integer(found):
        if found.bit_width == 64:
            return bool(wanted.equals(pyarrow.decimal128(20, 0)))
        return bool(of.is_signed_integer(wanted) and wanted.bit_width > found.bit_width)
    if of.is_decimal(found) and of.is_decimal(wanted):
        more = wanted.precision - wanted.scale - (found.precision - found.scale)
        return bool(wanted.scale >= found.scale and more >= 0)
    if of.is_timestamp(found):
        return bool(of.is_int64(wanted) if found.unit == "ns" else of.is_timestamp(wanted))
    is_bytes = of.is_binary(found) or of.is_large_binary(found) or of.is_binary_view(found)
    is_text = of.is_string(found) or of.is_large_string(found) or of.is_string_view(found)
    if is_bytes or is_text:
        return bool(of.is_binary(wanted) or of.is_string(wanted))
    if of.is_date(found):
        return bool(of.is_date32(wanted) or (of.is_timestamp(wanted) and wanted.tz is None))
    return bool(
        of.is_null(found)
        or (of.is_float32(found) and of.is_floating(wanted))
        or (of.is_float64(found) and of.is_float64(wanted))
        or (of.is_fixed_size_binary(found) and of.is_binary(wanted))
        or (of.is_duration(found) and of.is_int64(wanted))
    )


def _opened(files: Sequence[File], reading: Reading) -> Iterator[tuple[File, IO[bytes]]]:
    """The files in order, each open while it is at hand; small objects of stores are fetched ahead."""
    systems: dict[str, SmallObjects] = {}
    for file in files:
        if file.store is not None and file.store not in systems:
            systems[file.store] = SmallObjects(_system(*reading.stores[file.store]))
    ahead: deque[Future[bytes] | None] = deque()
    with ThreadPoolExecutor(_AHEAD) as pool:

        def fetch(file: File) -> Future[bytes] | None:
            if file.store is None or file.is_piece or file.size_bytes > _SMALL_BYTES:
                return None
            if not file.size_bytes:
                return pool.submit(bytes)  # it has no first byte to ask for
            return pool.submit(systems[file.store].start_of, file.path, file.size_bytes)

        try:
            for place, file in enumerate(files):
                for next_file in files[place + len(ahead) : place + _AHEAD]:
                    ahead.append(fetch(next_file))
                future = ahead.popleft()
                if future is not None:
                    content = future.result()
                    if len(content) != file.size_bytes:  # a store has cut its answer off, or there is another version
                        raise OSError(f"{file.shown}: {len(content)} of {file.size_bytes} bytes came")
                    yield file, io.BytesIO(content)
                elif file.store is None:
                    with open(file.path, "rb") as local:
                        yield file, local
                else:
                    # s3fs would read 50 MB ahead, which lie behind a piece.
                    block = _PIECE_BYTES if file.is_piece else None
                    with systems[file.store].fs.open(file.path, "rb", block, cache_type="readahead") as stream:
                        yield file, stream
        finally:
            for future in ahead:
                if future is not None:
                    future.cancel()


def _system(protocol: str, arguments: Mapping[str, Any]) -> Any:
    import fsspec

    return fsspec.filesystem(protocol, **arguments, skip_instance_cache=True, use_listings_cache=False)


def _unpacked(file: File, stream: IO[bytes]) -> IO[bytes]:
    ending = os.path.splitext(file.path)[1]
    if ending == ".gz":
        return gzip.GzipFile(fileobj=stream)  # type: ignore[return-value]
    if ending == ".bz2":
        return bz2.BZ2File(stream)
    return stream
