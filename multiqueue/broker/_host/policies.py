"""Policies: what an administrator says of queues and exchanges by their names, also of those that are there already.

Promise     At most one policy and one operator policy apply to a thing: of those whose pattern is found in its name
            that of the highest priority, of equal ones the first by name. One with a key that the queue's type lacks is
            passed over, the next one applies (`compat`). A change is kept, or raises and is undone;
            then it applies to all existing things, some after the others, so that no call waits for all of them.
Rules       RabbitMQ's. Of numbers the least counts: the policy's, the operator's, the argument's; of two delays before
            a retry the operator's and the policy's greater one. Of the rest the operator's counts before the policy's,
            and the argument before both; of a quorum queue the overflow and the type of retries do not.
State       The table's order is held while one thing is given what applies to it, so that a thing declared meanwhile,
            and a later change, come out right whichever is first.
Lock order  the table's order -> a queue's lock.
Source      RabbitMQ 4.3.6 and 3.10.8, asked; tests/broker/test_broker_policies.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from multiqueue._carried import check_value, short_string
from multiqueue.store import Definition, StoreDamaged

from ..._patterns import Search, bounded_pattern
from .._base.settings import Governing, Overflow, QueueSettings
from .._base.waits import nap
from .._routing.arguments import policy_settings
from .._routing.compat import Compat
from .._routing.exchange import Exchange
from .._routing.topology import DeclaredQueue, Topology
from .kept_table import KeptTable, Key

if TYPE_CHECKING:
    from .._durable.journal import Journal

APPLY_TO: Final = ("queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all")
_FEW: Final = 16  # queues in a slice: a millisecond
POLICY: Final = "policy"
OPERATOR_POLICY: Final = "operator_policy"
_LEAST: Final = (
    *("max_length", "max_length_bytes", "message_ttl", "expires", "max_delivery_attempts"),
    *("delayed_retry_min", "delayed_retry_max"),
)


def _least_limit(one: int, other: int) -> int:
    """Of two limits of deliveries; a negative one is none."""
    return min(one, other) if min(one, other) >= 0 else max(one, other)


_BOUNDS: Final[Mapping[str, Callable[[int, int], int]]] = {
    **dict.fromkeys(("max-length", "max-length-bytes", "message-ttl", "expires", "delayed-retry-max"), min),
    **dict.fromkeys(("max-in-memory-length", "max-in-memory-bytes"), min),
    **dict.fromkeys(("delayed-retry-min", "target-group-size"), max),
    "delivery-limit": _least_limit,
}
"""The one number of a policy's and an operator's; of all other keys the operator's counts."""
_OF_OPERATORS: Final = (*_BOUNDS, "overflow", "delayed-retry-type", "queue-version")
_OF_EXCHANGES: Final = "alternate-exchange"
# Settings that RabbitMQ has since 4.3, for quorum queues.
_OF_QUORUM_QUEUES: Final = ("consumer_timeout", "delayed_retry", "delayed_retry_min", "delayed_retry_max")


class UnknownPolicySetting(ValueError):
    """A policy's definition has a key that no policy of this broker has."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What applies to each queue or exchange in whose name `pattern`, a regular expression, is found.

    `definition` has RabbitMQ's keys: arguments of queues without `x-` (`max-length`, `message-ttl` in milliseconds,
    `dead-letter-exchange`), and `alternate-exchange`. `apply_to` is one of `APPLY_TO`. One that `is_operators` bounds
    what others may have: it takes limits, times and `overflow`.

    Raises:
        UnknownPolicySetting, ValueError, TypeError: something cannot be so; the sentence says what can.
    """

    name: str
    pattern: str
    definition: Mapping[str, Any]
    priority: int = 0
    apply_to: str = "all"
    is_operators: bool = False
    _search: Search = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        short_string(self.name)
        check_value(self.definition)
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise TypeError(f"priority should be a whole number, actually was {self.priority!r}")
        if self.apply_to not in APPLY_TO:
            raise ValueError(f"apply-to {self.apply_to!r} unrecognised; should be one of {', '.join(APPLY_TO)}")
        if not self.definition:
            raise ValueError("no policy provided: definition is empty")
        _, others = policy_settings(self.definition)
        foreign = [key for key in self.definition if self.is_operators and key not in _OF_OPERATORS]
        if foreign or (others := [key for key in others if key != _OF_EXCHANGES]):
            named = ", ".join(foreign or others)
            may = f"; an operator policy has {', '.join(_OF_OPERATORS)}" if foreign else ""
            raise UnknownPolicySetting(f"{named} are not recognised policy settings{may}")
        least, kind = self.definition.get("delayed-retry-min"), self.definition.get("delayed-retry-type", "disabled")
        if least is None and kind != "disabled":
            raise ValueError(f"delayed-retry-min is required when delayed-retry-type is {kind}")
        if (most := self.definition.get("delayed-retry-max")) is not None and most < (least or 0):
            raise ValueError(f"delayed-retry-max ({most}) must not be smaller than delayed-retry-min ({least})")
        if not isinstance(self.definition.get(_OF_EXCHANGES, ""), str):
            raise TypeError(f"{_OF_EXCHANGES}: {self.definition[_OF_EXCHANGES]!r} is no name of an exchange")
        try:
            object.__setattr__(self, "_search", bounded_pattern(self.pattern))
        except ValueError as error:
            raise ValueError(f"pattern {self.pattern!r} {error}") from None


class Policies:
    """The policies of one virtual host. Any thread may call any method; changes wait for their commit."""

    def __init__(self, topology: Topology, journal: Journal | None, compat: Compat) -> None:
        self._topology = topology
        self._compat = compat
        self._kept: KeptTable[Policy] = KeptTable(journal)

    def recover(self, definitions: list[Definition]) -> None:
        """Have those again that the store has, before anybody sees the virtual host."""
        found: dict[Key, Policy] = {}
        for each in definitions:
            if each.kind in (POLICY, OPERATOR_POLICY):
                what = f"the definition of {each.kind} {each.key!r}"
                try:
                    said, is_operators = json.loads(each.document), each.kind == OPERATOR_POLICY
                    found[each.kind, each.key] = Policy(name=each.key, is_operators=is_operators, **said)
                except (ValueError, TypeError) as error:
                    raise StoreDamaged(f"{what} in the store is no policy: {error}") from error
        self._kept.recover(found)
        self._apply_to_all()

    def all(self, *, is_operators: bool = False) -> list[Policy]:
        """Those of one of the two sorts, by name."""
        some = (each for each in self._kept.values.values() if each.is_operators == is_operators)
        return sorted(some, key=attrgetter("name"))

    def set(self, policy: Policy) -> bool:
        """Have this policy, in place of one of its name; True when it is new. Raises StoreFull: it cannot be kept."""
        said = {name: getattr(policy, name) for name in ("pattern", "definition", "priority", "apply_to")}
        try:
            return self._kept.set(_key_of(policy), policy, json.dumps(said)) is None
        finally:
            self._apply_to_all()  # also where it was undone: a queue that was declared meanwhile has seen it

    def clear(self, name: str, *, is_operators: bool = False) -> bool:
        """Have it no more; False when there was none. Raises as `set`."""
        try:
            return self._kept.clear((OPERATOR_POLICY if is_operators else POLICY, name)) is not None
        finally:
            self._apply_to_all()

    # -- what applies

    def of(self, thing: DeclaredQueue | Exchange) -> Governing:
        """What applies to a queue or an exchange."""
        kind = None if isinstance(thing, Exchange) else thing.queue.settings.type
        kinds = ("exchanges", "all") if kind is None else ("queues", f"{kind}_queues", "all")
        matching = [
            each
            for each in self._kept.values.values()
            if each.apply_to in kinds
            and each._search(thing.name)
            and (kind is None or self._compat.lets_apply(each.definition, kind))
        ]
        first = {
            sort: min((each for each in matching if each.is_operators == sort), key=_rank, default=None)
            for sort in (False, True)
        }
        policy, operators = first[False], first[True]
        if policy is None or operators is None:
            only = policy or operators
            together: Mapping[str, Any] = {} if only is None else only.definition
        else:
            said = policy.definition, operators.definition
            bounds = {
                key: bound(*(each[key] for each in said))
                for key, bound in _BOUNDS.items()
                if all(key in each for each in said)
            }
            together = {**said[0], **said[1], **bounds}
        names = [None if each is None else each.name for each in (policy, operators)]
        return Governing(names[0], names[1], together)

    def apply(self, thing: DeclaredQueue | Exchange) -> None:
        """Have a queue or an exchange behave as its policies say."""
        with self._kept.order:
            governing = self.of(thing)
            if isinstance(thing, Exchange):
                thing.governing = governing
            else:
                thing.queue.govern(_governed(thing, governing.definition), governing)

    def apply_if_any(self, thing: DeclaredQueue | Exchange) -> None:
        """As `apply`, of a thing that was declared just now."""
        if self._kept.values:
            self.apply(thing)

    def _apply_to_all(self) -> None:
        things: list[DeclaredQueue | Exchange] = [*self._topology.queues(), *self._topology.exchanges()]
        for place, thing in enumerate(things, start=1):
            self.apply(thing)
            if not place % _FEW:
                nap()


def _rank(policy: Policy) -> tuple[int, str]:
    return -policy.priority, policy.name


def _key_of(policy: Policy) -> Key:
    return OPERATOR_POLICY if policy.is_operators else POLICY, policy.name


def _governed(declared: DeclaredQueue, definition: Mapping[str, Any]) -> QueueSettings:
    """The settings of a queue with what policies say."""
    settings = declared.queue.settings
    found = policy_settings(definition)[0]
    changes: dict[str, Any] = {}
    if not settings.counts_failures:
        for name in _OF_QUORUM_QUEUES:
            found.pop(name, None)
    elif "delayed_retry" in found:
        changes["delayed_retry"] = found["delayed_retry"]
    for name, value in found.items():
        own = getattr(settings, name)
        if name == "max_delivery_attempts" and "x-delivery-limit" not in declared.arguments:
            own = None  # a quorum queue's usual one
        if name in _LEAST and value is not None:
            changes[name] = value if own is None else min(own, value)
        elif own is None:
            changes[name] = value
    if "overflow" in found and (settings.counts_failures or "x-overflow" not in declared.arguments):
        changes["overflow"] = found["overflow"]
    elif settings.overflow is Overflow.NONE and ("max_length" in found or "max_length_bytes" in found):
        changes["overflow"] = Overflow.RING
    if "dead_letter_exchange" not in changes and settings.dead_letter_exchange is None:
        changes.pop("dead_letter_routing_key", None)  # nothing is a dead letter
    return replace(settings, **changes) if changes else settings
