"""Which formats and options the executors' Python does not read, told by name before a file is read."""

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
