"""CSV files with a header, read by the names of their columns.

Promise     A value is in the column that its own file's header gives it, beside files with other headers too. Files
            whose headers name the same columns in another order are read together; files whose columns differ, from
            each other or from those in `schema`, are an error that names the missing, expected and found columns.
How         Spark takes the first file's header for all (SPARK-23786). So the first line of each file is looked at here,
            as bytes: equal lines are equal headers. What a header says only Spark decides: it is asked once for each
            new one, and the answer is kept. Groups of files with one header are then read with columns in its order.
            Beyond that Spark compares each header with the columns it reads (`enforceSchema = false`): a file that is
            replaced in between is an error.
Threads     Those of running items, many at once. One of them asks Spark for a header, the others wait for its answer.
Left        `enforceSchema = true` in a lane's options is Spark's own way: columns count by position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..._locks import Lock
from .._base.errors import JobError
from .._base.items import ALLOW
from .._base.place import Place
from .._columns.schema import columns_of, other_names
from .reading import Reading, first_line, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


# Bytes of a header that is none, in a sentence.
_SHOWN = 40

# Lanes of this many headers are rather files without one: they need no memory.
_MOST_KNOWN = 1000


class Headers:
    """The columns that a session reads from headers of CSV files."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], StructType] = {}
        # Held while Spark is asked: a run's first items begin together, and all would ask for one header.
        self._asking = Lock()

    def read(self, reading: Reading) -> DataFrame:
        """The rows of the item's files, their columns as the first file or the lane's `schema` has them.

        Raises:
            JobError: a file has no header or other columns.
        """
        groups = self.groups(reading)
        if not groups:
            return reading.load(reading.item.places)
        wanted, first = self._wanted(reading, groups)
        for header, paths in groups:
            if wrong := other_names(wanted, header.names):
                whose = f"lanes.{reading.lane.section}.schema" if first is None else reading.item.shown(first)
                raise JobError(f"{reading.item.shown(paths[0])} has other columns than {whose}: {wrong}")
        frames = [self._frame(reading, header, paths) for header, paths in groups]
        types = columns_of(frames[0].schema)
        for frame, (_, paths) in zip(frames[1:], groups[1:], strict=True):
            if _lower(columns_of(frame.schema)) != _lower(types):  # inferred, and so not comparable
                assert first is not None
                raise JobError(
                    f"{reading.item.shown(paths[0])} has columns of other types than {reading.item.shown(first)}"
                )
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.unionByName(frame)
        return whole

    def _wanted(
        self, reading: Reading, groups: Sequence[tuple[StructType, list[Place]]]
    ) -> tuple[list[str], Place | None]:
        """The names that every file is to have, and the file that has set them; None for the lane's schema."""
        if reading.schema is None:
            header, paths = groups[0]
            return header.names, paths[0]
        return [name for name in reading.schema.names if name.lower() != reading.corrupt_column.lower()], None

    def _frame(self, reading: Reading, header: StructType, paths: list[Place]) -> DataFrame:
        """The rows of files with one header."""
        options = options_of(header)
        if reading.schema is None:
            return reading.load(paths, None if reading.is_true("inferSchema") else header, options)
        if list(map(str.lower, header.names)) == list(map(str.lower, reading.schema.names)):
            return reading.load(paths, None, options)
        fields = {field.name.lower(): field for field in reading.schema.fields}
        ordered = [fields.pop(name.lower()) for name in header.names]
        frame = reading.load(paths, type(reading.schema)([*ordered, *fields.values()]), options)
        names = [*reading.schema.names, *reading.own_columns]
        return frame.select(*map(quoted, names))

    def groups(self, reading: Reading) -> list[tuple[StructType, list[Place]]]:
        """The files by what their headers say, in order; without those that have none, where that is allowed."""
        by_line: dict[bytes | Place, list[Place]] = {}
        places = reading.item.places
        for path, start in zip(places, reading.starts(places), strict=True):
            line = first_line(reading, path, start)
            if line == b"":
                if reading.lane.corrupt != ALLOW:
                    raise JobError(
                        f'{reading.item.shown(path)} is empty, and a header was expected; corrupt = "allow" takes it'
                    )
                continue
            by_line.setdefault(path if line is None else line, []).append(path)
        groups: dict[tuple[str, ...], tuple[StructType, list[Place]]] = {}
        for key, paths in by_line.items():
            header = self._header(reading, key, paths[0])
            names = tuple(name.lower() for name in header.names)
            groups.setdefault(names, (header, []))[1].extend(paths)
        return list(groups.values())

    def _header(self, reading: Reading, line: bytes | Place, path: Place) -> StructType:
        """The columns that the file's header names, each a string."""
        if isinstance(line, Place):
            return reading.header(path)
        key = (reading.lane.section, line)
        with self._asking:
            header = self._known.get(key)
            if header is None:
                _check_encoding(reading, line, path)
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                header = self._known[key] = reading.header(path, line)
        return header


def _check_encoding(reading: Reading, line: bytes, path: Place) -> None:
    """Return if the header is UTF-8, or the lane names another encoding: Spark would make columns of anything.

    Raises:
        JobError: it is not.
    """
    if reading.option("encoding") or reading.option("charset"):
        return
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise JobError(
            f"the header of {reading.item.shown(path)} is not UTF-8: {line[:_SHOWN]!r}; name its encoding, as in "
            'options = { header = true, encoding = "ISO-8859-1" }, and give a packed file its ending: .gz, .bz2'
        ) from error


def options_of(header: StructType) -> dict[str, str]:
    """With which options files with this header are read."""
    return {} if _is_exact(header.names) else {"enforceSchema": "true"}


def _is_exact(names: Sequence[str]) -> bool:
    """Whether these are the header's own words: Spark gives columns without a name, or with an equal one, another."""
    stems = [
        name.removesuffix(str(place)).lower() if name.endswith(str(place)) else None for place, name in enumerate(names)
    ]
    renamed = [stem for stem in stems if stem is not None]
    return len(set(renamed)) == len(renamed) and all(name != f"_c{place}" for place, name in enumerate(names))


def _lower(types: Any) -> dict[str, str]:
    return {name.lower(): kind for name, kind in types.items()}
