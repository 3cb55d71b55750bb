"""The settings of a broker queue: its kind, its limits and its policies, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class QueueKind(Enum):
    """In which order a queue keeps its entries."""

    STANDARD = "standard"
    PRIORITY = "priority"
    SORTED = "sorted"
    LAST_VALUE = "last_value"


class Overflow(Enum):
    """How a queue at its depth limit treats the next message."""

    NONE = "none"  # the limit is for alerts and statistics only
    RING = "ring"  # the least significant, oldest entry goes (RabbitMQ: drop-head)
    REJECT = "reject"  # the new message is refused (reject-publish)
    REJECT_DEAD_LETTER = "reject_dead_letter"  # refused and dead-lettered (reject-publish-dlx)
    FLOW_CONTROL = "flow_control"  # accepted; producers are told to wait until the depth has fallen


class MessageGroups(Enum):
    """Whether messages of one group keep to one consumer."""

    NONE = "none"
    STANDARD = "standard"  # a group belongs to one consumer until that consumer goes
    SHARED = "shared"  # a group belongs to one consumer while that one has unsettled entries of it


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertThresholds:
    """When to tell a queue's owner. None is never; `repeat_gap` seconds lie between two alerts of a kind."""

    depth: int | None = None
    depth_bytes: int | None = None
    message_bytes: int | None = None
    age: float | None = None
    repeat_gap: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How a broker queue behaves. Times in seconds, sizes in bytes, None for no limit.

    `kind` is one of `QueueKind` or its value, or a name given to `register_queue_kind`; `kind_options` are for such a
    kind alone, and of what JSON or a header can hold.
    A priority queue takes one of two scales: `max_priority=n` is RabbitMQ's (0 to n, no priority is 0),
    `priority_levels=n` is AMQP 0-10's (0 to 9 mapped onto n levels, no priority is 4).
    `message_ttl` bounds every message, one without expiration too; `minimum_message_ttl` only raises an expiration
    that is set. A time to live of 0 is over before anybody can pull. `max_delivery_attempts` counts deliveries, the
    first included.
    `dead_letter_exchange` and `dead_letter_routing_key` are for the router: the queue itself only calls
    its `dead_letter`. With `expired_to_dead_letter=False` an expired message is gone.

    Raises:
        ValueError: a value out of range, or a setting that the kind does not know.
    """

    kind: QueueKind | str = QueueKind.STANDARD
    kind_options: Mapping[str, object] | None = None
    max_priority: int | None = None
    priority_levels: int | None = None
    sort_key: str | None = None
    lvq_key: str | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: Overflow = Overflow.NONE
    flow_resume_ratio: float = 0.8
    message_ttl: float | None = None
    minimum_message_ttl: float | None = None
    expires: float | None = None
    expired_to_dead_letter: bool = True
    max_delivery_attempts: int | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    single_active_consumer: bool = False
    max_active_consumers: int | None = None
    browse_only: bool = False
    groups: MessageGroups = MessageGroups.NONE
    group_key: str | None = None
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    alerts: AlertThresholds | None = None

    @property
    def has_groups(self) -> bool:
        """True when messages of one group go to one consumer at a time."""
        return self.groups is not MessageGroups.NONE

    def __post_init__(self) -> None:
        if isinstance(self.kind, str) and self.kind in _KIND_VALUES:
            object.__setattr__(self, "kind", QueueKind(self.kind))
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value!r}; the least is {least}, None is no limit")
        if self.single_active_consumer and self.max_active_consumers not in (None, 1):
            raise ValueError(
                f"single_active_consumer is max_active_consumers=1, not {self.max_active_consumers}; set one"
            )
        self._check_kind()
        if self.groups is not MessageGroups.NONE and not self.group_key:
            raise ValueError("message groups need group_key: the header that names a message's group")
        if self.groups is MessageGroups.NONE and self.group_key is not None:
            raise ValueError(f"group_key {self.group_key!r} without groups: choose STANDARD or SHARED")
        if not 0 < self.flow_resume_ratio <= 1:
            raise ValueError(f"flow_resume_ratio is a share of the limit in (0, 1], not {self.flow_resume_ratio!r}")

    def _check_kind(self) -> None:
        for name, kind in KIND_OF_SETTING.items():
            if getattr(self, name) is not None and self.kind is not kind:
                raise ValueError(f"{name} belongs to a {kind.value} queue, not to a {self.kind_name} one")
        if self.kind_options is not None and isinstance(self.kind, QueueKind):
            raise ValueError(f"kind_options are for kinds that are registered, not for a {self.kind_name} queue")
        if self.kind is QueueKind.SORTED and not self.sort_key:
            raise ValueError("a sorted queue needs sort_key: the header it is sorted by")
        if self.kind is QueueKind.LAST_VALUE and not self.lvq_key:
            raise ValueError("a last-value queue needs lvq_key: the header whose latest value it keeps")
        if self.max_priority is not None and self.priority_levels is not None:
            raise ValueError("max_priority and priority_levels are two scales of one thing; set one of them")

    @property
    def kind_name(self) -> str:
        """The kind as a word."""
        return self.kind.value if isinstance(self.kind, QueueKind) else self.kind

    @property
    def active_consumer_limit(self) -> int | None:
        """How many consumers may be active at once; the others wait their turn."""
        return 1 if self.single_active_consumer else self.max_active_consumers


_KIND_VALUES = frozenset(kind.value for kind in QueueKind)
_LEAST: dict[str, float] = {
    "max_priority": 0,
    "priority_levels": 1,
    "max_length": 0,
    "max_length_bytes": 0,
    "message_ttl": 0,
    "minimum_message_ttl": 0,
    "expires": 0,
    "max_delivery_attempts": 1,
    "max_active_consumers": 1,
}

# A queue is of one kind; these settings belong to one each.
KIND_OF_SETTING: dict[str, QueueKind] = {
    "max_priority": QueueKind.PRIORITY,
    "priority_levels": QueueKind.PRIORITY,
    "sort_key": QueueKind.SORTED,
    "lvq_key": QueueKind.LAST_VALUE,
}
