"""Records that are not as the lane's configuration says: told by file, line and byte, or set aside.

Promise     With `corrupt = "error"` a file that has one is set aside with the file, the line, the record and its
            first byte in its error. With `corrupt = "set aside"` each is a line of JSON in
            `corrupt/lane=LANE/item=ID/records.json` of the output, which appears and is replaced with the item's rows;
            the other records are read. An item has at most `MOST` of them: with more, its format is rather wrong.
How         Spark keeps the parsed rows until the item is written, so that what is set aside and what is read come from
            one reading.
Threads     Those of running items.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._base.errors import JobError
from .._base.items import ERROR, SET_ASIDE
from .._base.place import Place
from .._config.refusal import is_packed
from .reading import CORRUPT, FILE, NOTHING, Reading, place_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


MOST = 10_000
"""Corrupt records of one item."""
RECORDS = "records.json"

_SHOWN = 200

# How Spark says that it met such a record; for the first, why is only in the stack below, and not on Connect.
_SIGNS = ("FAILED_READ_FILE", "MALFORMED_RECORD_IN_PARSING", "INVALID_JSON_RECORD_TYPE")


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A record that is not as configured."""

    path: Place
    line: int | None
    """From 1; None where the record is not a line of its own."""
    byte: int | None
    """Where the line begins in the file; None where that is packed."""
    text: str


@contextlib.contextmanager
def split(reading: Reading, frame: DataFrame) -> Iterator[tuple[DataFrame, list[Record]]]:
    """The rows without those that are corrupt, and the corrupt records; the rows are kept while inside.

    Raises:
        JobError: there are more than `MOST`.
    """
    frame = frame.persist()
    try:
        bad = frame.where(f"{CORRUPT} IS NOT NULL").select(FILE, CORRUPT).limit(MOST + 1).collect()
        if len(bad) > MOST:
            raise JobError(f"more than {MOST} records are corrupt: the format, its options or the schema are wrong")
        yield frame.where(f"{CORRUPT} IS NULL").drop(CORRUPT, FILE, NOTHING), _records(reading, bad)
    finally:
        frame.unpersist()


def write_records(reading: Reading, records: Sequence[Record], directory: Path) -> None:
    """Write the records into a new directory, a line of JSON each."""
    directory.mkdir()
    with open(directory / RECORDS, "w", encoding="utf-8") as stream:
        for record in records:
            values = {
                "file": str(record.path),
                "line": record.line,
                "byte": record.byte,
                "record": record.text,
                "attempt": reading.item.attempt,
            }
            stream.write(json.dumps(values, ensure_ascii=False) + "\n")


def count_records(directory: Path) -> int:
    """How many records were written into the directory; none if there is no such directory."""
    try:
        with open(directory / RECORDS, "rb") as stream:
            return sum(1 for _ in stream)
    except FileNotFoundError:
        return 0


def explained(reading: Reading, error: Exception, read: Any) -> Exception:
    """The error of a reading as one that says why a file cannot be read, or names the first corrupt record of it.

    `read` is called with a reading that sets such records aside.
    """
    text = str(error)
    if refused := re.search(r"\bUnreadable: (.+)$", text, re.MULTILINE):  # by Python, on an executor
        return JobError(refused[1])
    if reading.lane.corrupt != ERROR or not any(sign in text for sign in _SIGNS):
        return error
    named = [path for path in reading.item.places if path.name in text] or list(reading.item.places)
    files = tuple(seen for seen, path in zip(reading.item.files, reading.item.places, strict=True) if path in named)
    again = dataclasses.replace(
        reading,
        lane=dataclasses.replace(reading.lane, corrupt=SET_ASIDE),
        item=dataclasses.replace(reading.item, files=files),
    )
    try:
        bad = read(again).where(f"{CORRUPT} IS NOT NULL").limit(1).collect()  # every column, so that each is parsed
        records = _records(again, [(row[FILE], row[CORRUPT]) for row in bad])
    except Exception:  # noqa: BLE001 - what was met first is told
        return error
    if not records:  # alone it is as configured
        beside_others = len(reading.item.files) > 1 and "MALFORMED_RECORD_IN_PARSING" in text
        return (
            JobError(f"{reading.item.shown(named[0])} does not fit the columns of the others")
            if beside_others
            else error
        )
    return corrupt_record(reading, records[0])


def corrupt_record(reading: Reading, record: Record) -> JobError:
    """The error for a file with this record."""
    place = f"line {record.line} of " if record.line else ""
    byte = "" if record.byte is None else f"it begins at byte {record.byte:,}; "
    return JobError(
        f"{place}{reading.item.shown(record.path)} is not as configured: {record.text[:_SHOWN]!r}; "
        f'{byte}{_goes_on(reading, record)}corrupt = "set aside" keeps such records apart, "allow" reads them as NULL'
    )


def _goes_on(reading: Reading, record: Record) -> str:
    """The advice if the record is the first line of one whose quoted value has line breaks."""
    quote = reading.option("quote") or '"'
    if reading.lane.format != "csv" or record.text.count(quote) % 2 == 0 or reading.is_true("multiLine"):
        return ""
    return "its quote is not closed: with multiLine = true in options a value may go on in the next line; "


def _records(reading: Reading, rows: Sequence[Any]) -> list[Record]:
    """The records with their lines: each equal text is the next such line of its file."""
    by_file: dict[Place, dict[str, list[tuple[int, int]]]] = {}
    for file, text in rows:
        by_file.setdefault(place_in(file), {}).setdefault(text, [])
    for path, texts in by_file.items():
        _find_lines(reading, path, texts)
    records = []
    for file, text in rows:
        path = place_in(file)
        lines = by_file[path][text]
        line, byte = lines.pop(0) if lines else (None, None)
        records.append(Record(path, line, None if is_packed(path.name) else byte, text))
    return records


def _find_lines(reading: Reading, path: Place, texts: dict[str, list[tuple[int, int]]]) -> None:
    """Note for each text the lines of the file that are it: their numbers and first bytes."""
    encoding = reading.option("encoding") or reading.option("charset") or "utf-8"
    with contextlib.suppress(OSError, LookupError):
        for number, (byte, line) in enumerate(reading.storage.lines_of(path), 1):
            text = line.decode(encoding, "replace").removeprefix("\ufeff")
            if text in texts:
                texts[text].append((number, byte))
