"""How many queues and connections a virtual host may have. RabbitMQ's names: `max-queues`, `max-connections`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from multiqueue.store import Definition, StoreDamaged

from .._base.errors import PreconditionFailed
from .kept_table import KeptTable

if TYPE_CHECKING:
    from .._durable.journal import Journal

LIMIT: Final = "limit"  # the kind of their definitions in a store
HOST_LIMITS: Final = ("max-connections", "max-queues")


def checked_limit(name: str, value: object, names: tuple[str, ...] = HOST_LIMITS) -> int:
    """The value. Raises ValueError, TypeError: no such limit, or no whole number; a negative one is no limit."""
    if name not in names:
        raise ValueError(f"there is no limit {name!r}; one of {', '.join(names)}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} should be a whole number, actually was {value!r}")
    return value


class HostLimits:
    """The limits of one virtual host. They hold for later declarations and connections. Any thread may call any
    method.
    """

    def __init__(self, journal: Journal | None) -> None:
        self._kept: KeptTable[int] = KeptTable(journal)

    def recover(self, definitions: list[Definition]) -> None:
        """Have those again that the store has."""
        try:
            values = {(LIMIT, each.key): int(each.document) for each in definitions if each.kind == LIMIT}
        except ValueError as error:
            raise StoreDamaged(f"the stored limit is no number: {error}") from error
        self._kept.recover(values)

    def all(self) -> dict[str, int]:
        """Those that were set, by name."""
        return {name: value for (_, name), value in sorted(self._kept.values.items())}

    def set(self, name: str, value: int) -> None:
        """Raises ValueError, TypeError: no such limit. StoreFull: it cannot be kept; nothing was changed."""
        self._kept.set((LIMIT, name), checked_limit(name, value), str(value))

    def clear(self, name: str) -> bool:
        """False when there was none. Raises as `set`."""
        checked_limit(name, 0)
        return self._kept.clear((LIMIT, name)) is not None

    def most(self, name: str) -> int | None:
        """The limit of this name; None for none."""
        value = self._kept.values.get((LIMIT, name), -1)
        return None if value < 0 else value

    def check_queues(self, what: str, host: str, there: int) -> None:
        """Return when one more queue may be declared. Raises PreconditionFailed."""
        most = self.most("max-queues")
        if most is not None and there >= most:
            raise PreconditionFailed(f"cannot declare {what}: queue limit in vhost '{host}' ({most}) is reached")
