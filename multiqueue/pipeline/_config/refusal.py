"""What the executors' Python does not read, and which files are not cut: told by name before a file is read."""

from __future__ import annotations

import codecs
from collections.abc import Mapping

_COMMON = {"mode", "columnnameofcorruptrecord", "encoding", "charset", "linesep", "locale", "timezone", "samplingratio"}
_TIMES = {"dateformat", "timestampformat", "timestampntzformat", "enabledatetimeparsingfallback", "preferdate"}
_CSV = {"header", "sep", "delimiter", "quote", "escape", "comment", "inferschema", "enforceschema", "nullvalue"}
_CSV |= {"nanvalue", "positiveinf", "negativeinf", "emptyvalue", "ignoreleadingwhitespace", "ignoretrailingwhitespace"}
_CSV |= {"maxcolumns", "maxcharspercolumn", "chartoescapequoteescaping", "unescapedquotehandling", "columnpruning"}
_JSON = {"multiline", "primitivesasstring", "prefersdecimal", "allowcomments", "allowunquotedfieldnames"}
_JSON |= {"allowsinglequotes", "allownumericleadingzeros", "allowbackslashescapinganycharacter"}
_JSON |= {"allowunquotedcontrolchars", "allownonnumericnumbers", "dropfieldifallnull"}
_HONOURED: Mapping[str, set[str]] = {
    "csv": _COMMON | _TIMES | _CSV,
    "json": _COMMON | _TIMES | _JSON,
    "jsonl": _COMMON | _TIMES | _JSON,
    "text": {"wholetext", "linesep", "encoding", "charset"},
    "parquet": set(),
    "binary": set(),
}


def refusal(lane_format: str, options: Mapping[str, str]) -> str | None:
    """Why Python cannot read this format with these options; None when it can."""
    if lane_format not in _HONOURED:
        return f"the format {lane_format!r} has no files that Python reads"
    for name, value in options.items():
        low = name.lower()
        harmless = low in ("multiline", "mergeschema") and value.lower() == "false"
        if low not in _HONOURED[lane_format] and not harmless:
            return f"Python's way of reading {lane_format} does not honour the option {name}"
        if low in ("encoding", "charset") and not _is_known(value):
            return f"Python does not know the encoding {value!r}"
    return None


def _is_known(encoding: str) -> bool:
    try:
        codecs.lookup(encoding)
    except LookupError:
        return False
    return True


class Options(dict[str, str]):
    """Options of a reader by their names, whose case does not count, or empty."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({name.lower(): value for name, value in options.items()})

    def __getitem__(self, name: str) -> str:
        return self.get(name.lower(), "")

    def is_true(self, name: str) -> bool:
        return self[name].lower() == "true"


# Encodings in which the byte of a line's end is nothing else.
_SINGLE_BYTES = ("iso8859", "cp125", "koi8")

_PACKED = (".gz", ".bz2", ".deflate", ".snappy", ".lz4", ".zst")


def is_packed(path: str) -> bool:
    """Whether a file of this name is unpacked from its start."""
    return path.endswith(_PACKED)


def uncut(lane_format: str, options: Mapping[str, str]) -> str | None:
    """Why a file of this format, read so, is one task however large it is; None where tasks can share it."""
    given = Options(options)
    if lane_format in ("binary", "paths", "message"):
        return f"the format {lane_format!r} has a row for a file"
    if lane_format == "parquet":
        return None
    if lane_format == "text" and given.is_true("wholetext"):
        return "with wholetext = true a file is one row"
    if given.is_true("multiLine") or (lane_format == "json" and not given["multiLine"]):
        return "with multiLine = true a line's end does not end a record"
    encoding = given["encoding"] or given["charset"]
    if encoding and not _has_plain_ends(encoding):
        return f"the encoding {encoding} may have the byte of a line's end elsewhere"
    separator = given["lineSep"]
    if any(separator[:length] == separator[-length:] for length in range(1, len(separator))):
        return f"the line separator {separator!r} may overlap itself"
    return None


def _has_plain_ends(encoding: str) -> bool:
    try:
        name = codecs.lookup(encoding).name
    except LookupError:  # Java's name of one
        return False
    return name in ("utf-8", "ascii") or name.startswith(_SINGLE_BYTES)
