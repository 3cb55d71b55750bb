"""The options of a fair queue: how messages name their tenants, and what each tenant may have. Checked once.

A nested tenant is named by its keys, joined by `/`; a `/` in a key is written `~1` and a `~` is `~0`, as in a JSON
Pointer. The options of `acme` then count for all of `acme/web`, `acme/app` together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from math import ceil, isfinite
from typing import Any, Final

from .message import Message

DEFAULT_KEY: Final = "header:tenant"
LONGEST_NAME: Final = 255  # bytes, as UTF-8
LEAST_PRIORITY, HIGHEST_PRIORITY = 0, 255
_PROPERTIES: Final = ("app_id", "user_id", "type", "reply_to", "correlation_id")
DROP_HEAD, REJECT, REJECT_DEAD_LETTER = _OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")


Part = Callable[[Message], object]
# A message's tenant; its level, 0 the highest; its cost; whether a key, or the cost, was not what it should be.
FairKey = tuple[str, int, float, bool]
# What reads messages: of most the tenant's name says all.
KeyReader = Callable[[Sequence[Message]], list[FairKey | str]]


def fair_key(key: FairKey | str) -> FairKey:
    """What a `KeyReader` said, in full."""
    return (key, 0, 1.0, False) if isinstance(key, str) else key


@lru_cache(maxsize=1 << 14)
def place_of(level: int, name: str) -> int:
    """The level at which a store keeps a tenant's messages of one priority: a number below 2^63 made from both.

    So a tenant's next message is one look into the store. Two tenants with one number would be served as one: that is
    as likely as two equal draws of 63 bits.
    """
    digest = blake2b(name.encode(), digest_size=8, salt=level.to_bytes(8, "big")).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantOptions:
    """What one tenant may have; None is no limit."""

    weight: float = 1.0
    priority: int = 0  # the higher is served first
    max_in_flight: int | None = None
    rate: float | None = None  # deliveries a second
    burst: int | None = None  # at once; None: those of a second
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str | None = None  # None: drop-head, where there is a limit
    paused: bool = False

    @property
    def burst_size(self) -> int:
        return self.burst or max(1, ceil(self.rate or 0))

    @property
    def is_limited(self) -> bool:
        """True when there is something that may be too much."""
        return self.max_length is not None or self.max_length_bytes is not None

    def changed(self, where: str, table: Mapping[str, object]) -> TenantOptions:
        """These options with others in their places; None takes a limit away. Raises ValueError, which says `where`."""
        unknown = [str(name) for name in table if name not in _CHECKS]
        if unknown:
            raise ValueError(f"{where} has no option {unknown[0]!r}; there are {', '.join(_CHECKS)}")
        values: dict[str, Any] = {name: _value(f"{where}: {name}", name, value) for name, value in table.items()}
        if values.get("rate", "") is None:
            values.setdefault("burst", None)
        if "max_length" in values or "max_length_bytes" in values:
            wanted = {"max_length": self.max_length, "max_length_bytes": self.max_length_bytes, **values}
            if wanted["max_length"] is None and wanted["max_length_bytes"] is None:
                values.setdefault("overflow", None)
        new = replace(self, **values)
        if new.burst is not None and new.rate is None:
            raise ValueError(f"{where}: burst needs rate")
        if new.overflow is not None and not new.is_limited:
            raise ValueError(f"{where}: overflow needs max_length or max_length_bytes")
        return new

    def table(self) -> dict[str, object]:
        """What differs from the usual."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}


def _positive(value: Any) -> float:
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if not (is_number and (isinstance(value, int) or isfinite(value)) and value > 0):
        raise ValueError("a number above 0 is needed")
    if not 1e-100 <= value <= 1e100:
        raise ValueError("a number between 1e-100 and 1e+100 is needed")  # as a Ring takes it
    return float(value)


def _whole(least: int, most: int = 2**63 - 1) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            limits = f"from {least} to {most}" if most < 2**63 - 1 else f"of at least {least}"
            raise ValueError(f"a whole number {limits} is needed")
        return int(value)

    return check


def _overflow(value: Any) -> str:
    if value not in _OVERFLOWS:
        raise ValueError(f"one of {', '.join(_OVERFLOWS)} is needed")
    return str(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false is needed")
    return value


_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "weight": _positive,
    "priority": _whole(LEAST_PRIORITY, HIGHEST_PRIORITY),
    "max_in_flight": _whole(1),
    "rate": _positive,
    "burst": _whole(1),
    "max_length": _whole(0),
    "max_length_bytes": _whole(0),
    "overflow": _overflow,
    "paused": _flag,
}
_NEVER_NONE: Final = ("weight", "priority", "paused")
_OF_LENGTH: Final = ("max_length", "max_length_bytes", "overflow")
_OF_EACH: Final = ("max_in_flight", "rate", "burst", *_OF_LENGTH)


def _value(where: str, name: str, value: object) -> object:
    if value is None and name not in _NEVER_NONE:
        return None
    try:
        return _CHECKS[name](value)
    except ValueError as error:
        raise ValueError(f"{where} is {value!r}; {error}") from None


@dataclass(frozen=True, slots=True)
class FairOptions:
    """The options of one fair queue."""

    keys: tuple[str, ...] = (DEFAULT_KEY,)
    cost: str | None = None
    each: TenantOptions = field(default_factory=TenantOptions)  # of tenants that are not named
    tenants: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # what is said of each that is named

    @staticmethod
    def of(table: Mapping[str, object] | None) -> FairOptions:
        """The options in a queue's `kind_options`. Raises ValueError, with a sentence."""
        table = dict(table or {})
        given_keys = table.pop("key", DEFAULT_KEY)
        keys = tuple(given_keys) if isinstance(given_keys, list | tuple) else (given_keys,)
        if not keys or len(set(map(repr, keys))) < len(keys):
            raise ValueError(
                f"key is {given_keys!r}; it is one place, or a list of different ones, the outermost first"
            )
        for key in keys:
            _part(key)
        cost = table.pop("cost", None)
        if cost is not None and not (isinstance(cost, str) and cost.startswith("header:") and cost != "header:"):
            raise ValueError(f"cost is {cost!r}; 'header:NAME' is needed")
        weights, overrides = _table(table, "weights"), _table(table, "tenants")
        each = TenantOptions().changed("kind_options", {name: table.pop(name) for name in _OF_EACH if name in table})
        if table:
            names = ", ".join(("key", "weights", *_OF_EACH, "cost", "tenants"))
            raise ValueError(f"kind_options has no option {next(iter(table))!r} for a fair queue; there are {names}")
        tenants: dict[str, Mapping[str, object]] = {name: {"weight": weight} for name, weight in weights.items()}
        for name, override in overrides.items():
            if not isinstance(override, Mapping):
                raise ValueError(f"tenants: {name!r} is {override!r}; a table of options is needed")
            if name in tenants and "weight" in override:
                raise ValueError(f"the weight of tenant {name!r} is in weights and in tenants; leave one out")
            tenants[name] = {**tenants.get(name, {}), **override}
        options = FairOptions(keys, cost, each, tenants)
        for name, own in tenants.items():
            options.options_of(name, own)
        return options

    def options_of(self, name: str, own: Mapping[str, object]) -> TenantOptions:
        """Those of a tenant with options of its `own`. The limits of each are those of a whole name, not of its parts.

        Raises:
            ValueError: no tenant of this queue has such a name, or an option does not fit.
        """
        parts, most = name.count("/") + 1, len(self.keys)
        if parts > most > 1:
            raise ValueError(f"tenant {name!r} has {parts} parts; this queue has {most} keys")
        usual = self.each if most == 1 or parts == most else TenantOptions()
        if parts < most and (length := next((each for each in _OF_LENGTH if each in own), None)):
            raise ValueError(f"tenant {name!r} has others in it; {length} is for these")
        return usual.changed(f"tenant {name!r}", own) if own else usual

    def merged(self, name: str, own: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
        """A tenant's own options with changes to them. An option that is taken away takes along those that have no use
        without it.

        Raises:
            ValueError: no tenant can have such a name, or these are no options.
        """
        parts = [name] if len(self.keys) == 1 or not isinstance(name, str) else name.split("/")
        for part in parts:
            if not isinstance(part, str) or _text(part.replace("~1", "/").replace("~0", "~"))[1]:
                raise ValueError(f"{name!r} is not the name of a tenant: text of at most {LONGEST_NAME} bytes")
        if not isinstance(changes, Mapping):
            raise ValueError(f"tenant {name!r}: {changes!r} is no table of options")
        together = {**own, **changes}
        if "burst" not in changes and together.get("rate", 0) is None:
            together["burst"] = None
        lengths = [together.get(each, getattr(self.each, each)) for each in ("max_length", "max_length_bytes")]
        if "overflow" not in changes and "overflow" in together and lengths == [None, None]:
            together["overflow"] = None
        return together

    def reader(self, level_of: Callable[[Message], int] | None) -> KeyReader:
        """What reads the keys of messages. Runs under no lock, on any thread."""
        parts = [_part(key) for key in self.keys]
        cost_header = None if self.cost is None else self.cost.removeprefix("header:")

        def read(message: Message) -> FairKey | str:
            level = 0 if level_of is None else level_of(message)
            cost, names = 1.0, [_text(each(message)) for each in parts]
            name, is_odd = names[0]
            if len(parts) > 1:
                is_odd = any(odd for _, odd in names)
                name = "/".join([text.replace("~", "~0").replace("/", "~1") for text, _ in names])
            if cost_header is not None and (said := message.headers.get(cost_header)) is not None:
                try:
                    cost = _positive(said)
                except ValueError:
                    is_odd = True
            is_more = is_odd or cost_header is not None or level_of is not None
            return (name, level, cost, is_odd) if is_more else name

        header = self.keys[0].removeprefix("header:")
        if len(parts) > 1 or header == self.keys[0] or cost_header is not None or level_of is not None:
            return lambda messages: [read(message) for message in messages]

        def read_headers(messages: Sequence[Message]) -> list[FairKey | str]:  # of most queues
            return [
                name
                if type(name := message.headers.get(header)) is str and name.isascii() and len(name) <= LONGEST_NAME
                else _named(name)
                for message in messages
            ]

        return read_headers


def _table(table: dict[str, object], name: str) -> Mapping[str, object]:
    value = table.pop(name, None)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {value!r}; a table with the names of tenants is needed")
    for each in value:
        if _text(each)[1] or not isinstance(each, str):
            raise ValueError(f"{name}: {each!r} is not the name of a tenant: text of at most {LONGEST_NAME} bytes")
    return value


def _part(key: object) -> Part:
    """What reads one key of a message. Raises ValueError: there is no such place."""
    kind, _, name = key.partition(":") if isinstance(key, str) else ("", "", "")
    if key == "routing-key":
        return lambda message: message.routing_key
    if kind == "header" and name:
        return lambda message: message.headers.get(name)
    if kind == "property" and name in _PROPERTIES:
        return lambda message: getattr(message, name)
    places = f"'header:NAME', 'routing-key' or 'property:' and one of {', '.join(_PROPERTIES)}"
    raise ValueError(f"key is {key!r}; a message says its tenant in {places}")


def _named(value: object) -> FairKey | str:
    name, is_odd = _text(value)
    return (name, 0, 1.0, True) if is_odd else name


def _text(value: object) -> tuple[str, bool]:
    """A key as text whose hash runs no user code, "" for what is none; and whether it should be another."""
    if value is None:
        return "", False
    if isinstance(value, str):
        text = str.__str__(value)
        try:
            if len(text.encode()) <= LONGEST_NAME:
                return text, False
        except UnicodeEncodeError:
            pass
    return "", True
