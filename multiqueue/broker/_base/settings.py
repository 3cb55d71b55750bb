"""The settings of a broker queue: its kind, its limits and its policies, checked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from multiqueue._carried import check_value, short_string

from .fair_options import FairOptions


@dataclass(frozen=True, slots=True)
class Range:
    """A setting's least and greatest number, None for none; `whole` for numbers of things, else seconds."""

    whole: bool
    least: int
    most: int | None = None

    def __call__(self, value: Any) -> Any:
        """The value, a number in the range. Raises TypeError: another type. ValueError: beyond it."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            needed = "a whole number" if self.whole else "a number of seconds"
            raise TypeError(f"{value!r} is of type {type(value).__name__}; {needed} is needed")
        if not self.least <= value or (self.most is not None and value > self.most):
            upwards = "upwards" if self.most is None else f"to {self.most}"
            raise ValueError(f"{value} is out of range; from {self.least} {upwards}")
        return value


LONGEST: Final = 315_360_000  # seconds, ten years: what RabbitMQ takes at most
RANGES: Final[Mapping[str, Range]] = {
    "max_priority": Range(True, 0, 255),
    "priority_levels": Range(True, 1, 255),
    "max_length": Range(True, 0),
    "max_length_bytes": Range(True, 0),
    "message_ttl": Range(False, 0, LONGEST),
    "minimum_message_ttl": Range(False, 0, LONGEST),
    "expires": Range(False, 0, LONGEST),
    "max_delivery_attempts": Range(True, 1),
    "max_active_consumers": Range(True, 1),
    "default_priority": Range(True, 0, 255),
    "delayed_retry_min": Range(False, 0, LONGEST),
    "delayed_retry_max": Range(False, 0, LONGEST),
    "consumer_timeout": Range(False, 0, LONGEST),
}
_NAMES: Final = ("dead_letter_exchange", "dead_letter_routing_key", "sort_key", "lvq_key", "group_key")


@dataclass(frozen=True, slots=True)
class Governing:
    """What applies to a queue or an exchange: the names of its policies, None for none, and their settings together."""

    policy: str | None = None
    operator_policy: str | None = None
    definition: Mapping[str, Any] = field(default_factory=dict)


class QueueKind(Enum):
    """In which order a queue keeps its entries."""

    STANDARD = "standard"
    PRIORITY = "priority"
    SORTED = "sorted"
    LAST_VALUE = "last_value"
    FAIR = "fair"  # turns among tenants


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


class DeliveryCounting(Enum):
    """What a queue counts of a message's past deliveries, and tells in its headers."""

    NONE = "none"
    RETURNS = "returns"  # as quorum queues of RabbitMQ 3.10: all, in x-delivery-count
    FAILURES = "failures"  # as those of 4.3: rejects and lost consumers, in x-delivery-count; all in x-acquired-count


class DelayedRetry(Enum):
    """Which messages that come back are held for a while."""

    NONE = "disabled"
    ALL = "all"
    FAILED = "failed"  # by a reject, or with the consumer that had them
    RETURNED = "returned"  # by a nack or a recover


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
    kind and for a fair queue alone, and are values that JSON or a header can hold. A priority queue takes one of two
    scales, and a fair one may: `max_priority=n` is RabbitMQ's (0 to n, no priority is 0), `priority_levels=n` is AMQP
    0-10's (0 to 9 mapped onto n levels, no priority is 4). `message_ttl` bounds every message, one without expiration
    too; `minimum_message_ttl` only raises an expiration that is set. A time to live of 0 is over before anybody can
    pull. `max_delivery_attempts` counts deliveries, the first included; with `DeliveryCounting.FAILURES` those alone
    that fail, and one. What `delayed_retry` chooses waits for `delayed_retry_min` seconds times its failures,
    `delayed_retry_max` at most. A message that is not settled within `consumer_timeout` goes back, and its consumer
    ends; None is no limit. `dead_letter_exchange` and `dead_letter_routing_key` are for the router: the queue itself
    only calls its `dead_letter`. With `expired_to_dead_letter=False` an expired message is gone.
    With `expires_at_head` an expired message stays, as in RabbitMQ, until all before it are taken or gone: on a
    standard or priority queue that has all of its messages in memory.

    Raises:
        ValueError: a value out of range, or a setting that the kind does not know.
        TypeError: a value of another type.
    """

    kind: QueueKind | str = QueueKind.STANDARD
    kind_options: Mapping[str, object] | None = None
    max_priority: int | None = None
    default_priority: int = 0
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
    expires_at_head: bool = False
    max_delivery_attempts: int | None = None
    delivery_counting: DeliveryCounting = DeliveryCounting.NONE
    delayed_retry: DelayedRetry = DelayedRetry.NONE
    delayed_retry_min: float | None = None
    delayed_retry_max: float | None = None
    consumer_timeout: float | None = None
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
        self._check_values()
        if self.single_active_consumer and self.max_active_consumers not in (None, 1):
            raise ValueError(
                f"single_active_consumer is max_active_consumers=1, not {self.max_active_consumers}; set one"
            )
        self._check_kind()
        if self.groups is not MessageGroups.NONE and not self.group_key:
            raise ValueError("message groups need group_key: the header that names a message's group")
        if self.groups is MessageGroups.NONE and self.group_key is not None:
            raise ValueError(f"group_key {self.group_key!r} without groups: choose STANDARD or SHARED")
        if self.dead_letter_routing_key is not None and self.dead_letter_exchange is None:
            raise ValueError("dead_letter_routing_key needs dead_letter_exchange: without it nothing is a dead letter")
        if not 0 < self.flow_resume_ratio <= 1:
            raise ValueError(f"flow_resume_ratio is a share of the limit in (0, 1], not {self.flow_resume_ratio!r}")

    def _check_values(self) -> None:
        checks: dict[str, Callable[[Any], object]] = {
            **RANGES,
            **dict.fromkeys(_NAMES, short_string),
            "kind_options": check_value,
        }
        for name, check in checks.items():
            value = getattr(self, name)
            try:
                if value is not None:
                    check(value)
            except (ValueError, TypeError) as error:
                raise type(error)(f"{name}: {error}") from None
        for name, kind in _TYPES.items():
            if not isinstance(value := getattr(self, name), kind):
                raise TypeError(f"{name}: {value!r} is of type {type(value).__name__}; {_called(kind)} is needed")

    def _check_kind(self) -> None:
        for name, kind in KIND_OF_SETTING.items():
            has_levels = kind is QueueKind.PRIORITY and self.kind is QueueKind.FAIR
            if getattr(self, name) is not None and self.kind is not kind and not has_levels:
                raise ValueError(f"{name} belongs to a {kind.value} queue, not to a {self.kind_name} one")
        if self.kind is QueueKind.FAIR:
            FairOptions.of(self.kind_options)
            if self.groups is not MessageGroups.NONE:
                raise ValueError("a fair queue takes no message groups; max_in_flight=1 serves a tenant in order")
        elif self.kind_options is not None and isinstance(self.kind, QueueKind):
            problem = f"not for a {self.kind_name} queue"
            raise ValueError(f"kind_options are for fair queues and for kinds that are registered, {problem}")
        if self.kind is QueueKind.SORTED and not self.sort_key:
            raise ValueError("a sorted queue needs sort_key: the header it is sorted by")
        if self.kind is QueueKind.LAST_VALUE and not self.lvq_key:
            raise ValueError("a last-value queue needs lvq_key: the header whose latest value it keeps")
        if self.max_priority is not None and self.priority_levels is not None:
            raise ValueError("max_priority and priority_levels are two scales of one thing; set one of them")

    @property
    def has_levels(self) -> bool:
        """True where a message's priority says which is served first."""
        return self.kind is QueueKind.PRIORITY or self.max_priority is not None or self.priority_levels is not None

    @property
    def kind_name(self) -> str:
        """The kind as a word."""
        return self.kind.value if isinstance(self.kind, QueueKind) else self.kind

    @property
    def type(self) -> str:
        """The type as RabbitMQ calls it: a queue that counts deliveries is a `quorum` queue."""
        return "classic" if self.delivery_counting is DeliveryCounting.NONE else "quorum"

    @property
    def counts_failures(self) -> bool:
        """True for a quorum queue by the rules of RabbitMQ 4.3."""
        return self.delivery_counting is DeliveryCounting.FAILURES

    @property
    def active_consumer_limit(self) -> int | None:
        """How many consumers may be active at once; the others wait their turn."""
        return 1 if self.single_active_consumer else self.max_active_consumers


_FLAGS = (
    "durable",
    "exclusive",
    "auto_delete",
    "single_active_consumer",
    "browse_only",
    "expired_to_dead_letter",
    "expires_at_head",
)
_TYPES: dict[str, type | tuple[type, ...]] = {
    "kind": (QueueKind, str),
    "overflow": Overflow,
    "groups": MessageGroups,
    "delivery_counting": DeliveryCounting,
    "delayed_retry": DelayedRetry,
    "flow_resume_ratio": (float, int),
    "alerts": (AlertThresholds, type(None)),
    **dict.fromkeys(_FLAGS, bool),
}


def _called(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join("None" if each is type(None) else each.__name__ for each in kinds)


_KIND_VALUES = frozenset(kind.value for kind in QueueKind)

# A queue is of one kind; these settings belong to one each.
KIND_OF_SETTING: dict[str, QueueKind] = {
    "max_priority": QueueKind.PRIORITY,
    "priority_levels": QueueKind.PRIORITY,
    "sort_key": QueueKind.SORTED,
    "lvq_key": QueueKind.LAST_VALUE,
}
