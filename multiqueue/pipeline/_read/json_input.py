"""JSON files, looked at before Spark reads them: a record that it would pass over in silence is an error of the file.

Promise     A file of one document (`json`) is not empty and, as far as its first 64 KiB tell, has nothing after the
            document: Spark would not read that, and a file of JSON lines would be its first line. Nor has a line of
            `jsonl`, as far as those 64 KiB tell, anything after its document: of documents that follow each other
            without a line break Spark reads the first. A comma there is taken, as Spark does: it loses nothing.
            Columns that are expected are in every file of an item, not only in one of them.
Cost        The start of each file; of its lines only those are parsed here in which a bracket is followed by what can
            begin another document. Only where the first record does not have what is expected, Spark counts what the
            files have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .._base.errors import JobError
from .._base.items import ALLOW
from .._base.place import Place
from .reading import FILE, Reading, place_in, quoted, unreadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_LOOK_BYTES = 64 << 10

# What Spark would pass over, cut to what a sentence can show.
_SHOWN = 80

# A bracket and what only ends of strings, keys and brackets can follow: in a document such things are in strings.
_MAY_GO_ON = re.compile(r"[}\]]\s*(?:[^\s,}\]]|,\s*\{)")


def check_documents(reading: Reading) -> None:
    """Return if each file of one document is one.

    Raises:
        JobError: one is empty, or has more than a document.
    """
    if reading.lane.corrupt == ALLOW:
        return
    for path, text in _starts(reading):
        if text is None:
            continue
        if not reading.is_true("multiLine"):
            _check_lines(reading, path, text)
            continue
        if not text.strip():
            raise JobError(
                f'{reading.item.shown(path)} is empty, and a JSON document was expected; corrupt = "allow" takes it'
            )
        if rest := _first(text)[1].strip():
            raise JobError(
                f"{reading.item.shown(path)} has more than one document, and {rest[:_SHOWN]!r} would not be read; "
                'format = "jsonl" reads a document a line'
            )


def _check_lines(reading: Reading, path: Place, text: str) -> None:
    """Return if no line of the text has anything behind its document."""
    separator = re.escape(reading.option("lineSep")) or r"\r\n?|\n"
    for number, line in enumerate(re.split(separator, text), 1):
        if _MAY_GO_ON.search(line) and (rest := _first(line)[1].strip(", \t\r")):
            raise JobError(
                f"line {number} of {reading.item.shown(path)} goes on after its document, and {rest[:_SHOWN]!r} would "
                "not be read; a document a line is expected"
            )


def check_expected(reading: Reading, frame: DataFrame, expected: Sequence[str]) -> None:
    """Return if every file has the columns that are expected, which the frame has; of one file it is asked no further.

    Raises:
        JobError: one has no record with such a column.
    """
    if len(reading.item.places) == 1 and reading.schema is None:
        return
    doubtful = [path for path, text in _starts(reading) if not _has(text, expected)]
    if not doubtful:
        return
    files = reading.with_files(frame)
    there = (f"CAST({quoted(name)} IS NOT NULL AS INT) AS c{place}" for place, name in enumerate(expected))
    rows = files.selectExpr(FILE, *there).groupBy(FILE).max(*(f"c{place}" for place in range(len(expected)))).collect()
    found = {place_in(row[0]): row[1:] for row in rows}
    for path in doubtful:
        values = found.get(path, (0,) * len(expected))
        if missing := [name for name, value in zip(expected, values, strict=True) if not value]:
            raise JobError(
                f"{reading.item.shown(path)} has no record with {', '.join(map(repr, missing))}, "
                f"which lanes.{reading.lane.section}.expect names"
            )


def _has(text: str | None, expected: Sequence[str]) -> bool:
    """Whether the first record of a file that starts so has all of this."""
    record = None if text is None else _first(text)[0]
    if isinstance(record, list) and record:
        record = record[0]
    return isinstance(record, dict) and {name.lower() for name in expected} <= {name.lower() for name in record}


def _starts(reading: Reading) -> Iterator[tuple[Place, str | None]]:
    """Each file with its start; None where only Spark can read it. Raises JobError: one cannot be read."""
    places = reading.item.places
    for path, start in zip(places, reading.storage.starts_of(places, _LOOK_BYTES), strict=True):
        if isinstance(start, OSError):
            raise unreadable(reading.item, path, start) from start
        yield path, _text(reading, start)


def _text(reading: Reading, start: bytes | None) -> str | None:
    if start is None:
        return None
    encoding = reading.option("encoding") or reading.option("charset") or json.detect_encoding(start)
    try:
        return start.decode(encoding, "ignore").removeprefix("\ufeff")  # the last character may be cut
    except LookupError:  # Java's name of an encoding
        return None


def _first(text: str) -> tuple[Any, str]:
    """The first document and what is behind it; None and nothing where that cannot be told."""
    try:
        document, end = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):  # longer than the look, or not strict: Spark decides
        return None, ""
    return document, text.lstrip()[end:]
