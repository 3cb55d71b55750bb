"""The metadata of a virtual host itself, by RabbitMQ's names: `description`, `tags`, `default_queue_type`; and of all
of them together: global parameters, which the store of the virtual host `/` keeps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from multiqueue._carried import long_string, short_string
from multiqueue.store import Definition, StoreDamaged

from .._routing.compat import QUEUE_TYPE, QUEUE_TYPES, Table
from .kept_table import KeptTable

if TYPE_CHECKING:
    from .._durable.journal import Journal

METADATA: Final = ("metadata", "vhost")  # the kind and name of their definition in a store
_PARAMETER: Final = "global_parameter"


@dataclass(frozen=True)
class HostMetadata:
    """`default_queue_type` is that of a durable queue which names none, and is neither exclusive nor deleted by itself.

    Raises:
        ValueError, TypeError: there is no such type, or something is no text.
    """

    description: str = ""
    tags: Sequence[str] = ()
    default_queue_type: str = "classic"

    def __post_init__(self) -> None:
        long_string(self.description)
        for tag in self.tags:
            short_string(tag)
        if self.default_queue_type not in QUEUE_TYPES:
            one_of = ", ".join(QUEUE_TYPES)
            raise ValueError(f"{self.default_queue_type} is not a valid queue type; one of {one_of}")

    def with_type(self, arguments: Table, *, durable: bool, exclusive: bool, auto_delete: bool) -> Table:
        """The arguments of a queue, with the type that it gets by this."""
        if self.default_queue_type == "classic" or arguments.get(QUEUE_TYPE) not in (None, "", "undefined"):
            return arguments
        is_usual = durable and not exclusive and not auto_delete
        return {**arguments, QUEUE_TYPE: self.default_queue_type if is_usual else "classic"}


class KeptMetadata:
    """The metadata of one virtual host. Any thread may call any method."""

    def __init__(self, name: str, journal: Journal | None) -> None:
        self._usual = HostMetadata("Default virtual host" if name == "/" else "")
        self._kept: KeptTable[HostMetadata] = KeptTable(journal)

    def recover(self, definitions: list[Definition]) -> None:
        """Have that again which the store has."""
        kept = [each for each in definitions if (each.kind, each.key) == METADATA]
        try:
            values = {(each.kind, each.key): HostMetadata(**json.loads(each.document)) for each in kept}
        except (ValueError, TypeError) as error:
            raise StoreDamaged(f"the stored metadata of the virtual host cannot be read: {error}") from error
        self._kept.recover(values)

    def get(self) -> HostMetadata:
        return self._kept.values.get(METADATA, self._usual)

    def set(self, metadata: HostMetadata) -> None:
        """Later declarations follow it. Raises StoreFull: it cannot be kept; nothing was changed."""
        if metadata != self._usual or METADATA in self._kept.values:
            self._kept.set(METADATA, metadata, json.dumps(asdict(metadata)))


class GlobalParameters:
    """Values of JSON by name, which mean nothing to a broker: tools put them there. Any thread may call any method."""

    def __init__(self, journal: Journal | None) -> None:
        self._kept: KeptTable[str] = KeptTable(journal)

    def recover(self, definitions: list[Definition]) -> None:
        """Have those again that the store has."""
        self._kept.recover({(_PARAMETER, each.key): each.document for each in definitions if each.kind == _PARAMETER})

    def all(self) -> dict[str, Any]:
        """Those that were set, by name."""
        return {name: json.loads(document) for (_, name), document in sorted(self._kept.values.items())}

    def set(self, name: str, value: Any) -> bool:
        """True when it is new. Raises ValueError, TypeError: JSON has no such value. StoreFull: it cannot be kept."""
        short_string(name)
        document = json.dumps(value, allow_nan=False)
        return self._kept.set((_PARAMETER, name), document, document) is None

    def clear(self, name: str) -> bool:
        """False when there was none. Raises StoreFull."""
        return self._kept.clear((_PARAMETER, name)) is not None
