"""A message's properties as text and back, with the types that its publisher gave them.

What JSON has no word for is an object of one member whose name begins with `$`; a table's own names that begin so have
one `$` more.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

_FROM: dict[str, Callable[[Any], Any]] = {
    "$bytes": base64.b64decode,
    "$time": lambda seconds: datetime.fromtimestamp(seconds, UTC),
    "$decimal": Decimal,
}


def properties_as_text(properties: Mapping[str, Any]) -> str:
    """As JSON. Raises TypeError for what no AMQP field holds."""
    return json.dumps({name: _plain(value) for name, value in properties.items()}, separators=(",", ":"))


def properties_of_text(text: str) -> dict[str, Any]:
    """The inverse of `properties_as_text`."""
    found = json.loads(text, object_hook=_typed)
    assert isinstance(found, dict)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {f"${name}" if name.startswith("$") else name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes | bytearray):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"$time": value.timestamp()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    return value


def _typed(table: dict[str, Any]) -> Any:
    if len(table) == 1:
        [(name, value)] = table.items()
        if name in _FROM:
            return _FROM[name](value)
    return {name.removeprefix("$"): value for name, value in table.items()}
