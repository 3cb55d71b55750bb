"""The exchanges, queues and bindings of one virtual host, and a message's way through them.

Promise     A change is whole: a route sees an exchange's bindings before it or after it. A route
            visits an exchange once, though bindings make cycles, and names a queue once.
State       One lock guards the three dictionaries here and, in every registered exchange, its bindings, its
            matcher and its counters.
Lock order  The lock is a leaf: under it only this module's dictionaries are touched, no queue is called and
            no condition of a binding is asked. Nothing is dropped under it either: an argument may be an object
            of the user's, and its end the user's code.
Membership  A binding lives while both its ends do. Removing an end removes its bindings in the same hold, and
            an auto-delete exchange with its last binding; that may cost the next one its last, and so on.
Assumes     Looking up one string in a dictionary is atomic, as Python documents for both builds, so finding something
            by name takes no lock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..._locks import Lock
from .._base.errors import AccessRefused, NotFound
from .._base.message import Message, plain_name
from .._queue.queue import BrokerQueue
from .arguments import ALTERNATE_EXCHANGE
from .exchange import DELAYED, Binding, ChoosesOne, Destination, Exchange, ExchangeStatistics, delayed


@dataclass(frozen=True, slots=True, eq=False)
class DeclaredQueue:
    """A queue as it was declared: with which arguments, and by whom when it is exclusive."""

    queue: BrokerQueue
    arguments: Mapping[str, object]
    owner: object = None

    @property
    def name(self) -> str:
        return self.queue.name


Declared: TypeAlias = DeclaredQueue | Exchange | Binding


class Topology:
    """The exchanges, queues and bindings of one virtual host. Any thread may call any method; none blocks."""

    def __init__(self, virtual_host: str) -> None:
        self.virtual_host = virtual_host
        self._lock = Lock()
        self._exchanges: dict[str, Exchange] = {}
        self._queues: dict[str, DeclaredQueue] = {}
        # Invariant: the bindings of all exchanges, by destination; no value is empty.
        self._leading_to: dict[Destination, dict[Binding, None]] = {}
        self._received_by_gone = self._unroutable_at_gone = 0  # of exchanges that were deleted

    # What there is

    def find_exchange(self, name: str) -> Exchange | None:
        """The exchange of this name. Raises TypeError: it is no string."""
        found = self._exchanges.get(name) if isinstance(name, str) else None
        if found is None:
            plain_name("an exchange's name", name)
        return found

    def delayed(self, message: Message) -> Message:
        """The message, held where its exchange is one that delays."""
        if "x-delay" in message.headers:
            exchange = self.find_exchange(message.exchange)
            if exchange is not None and exchange.type == DELAYED:
                return delayed(message)
        return message

    def find_queue(self, name: str) -> DeclaredQueue | None:
        """The queue of this name. Raises TypeError: it is no string."""
        found = self._queues.get(name) if isinstance(name, str) else None
        if found is None:
            plain_name("a queue's name", name)
        return found

    def exchanges(self) -> list[Exchange]:
        with self._lock:
            return list(self._exchanges.values())

    def queues(self) -> list[DeclaredQueue]:
        with self._lock:
            return list(self._queues.values())

    def bindings(self) -> list[Binding]:
        with self._lock:
            return [binding for each in self._exchanges.values() for binding in each.bindings.values()]

    def exchange_statistics(self) -> list[ExchangeStatistics]:
        with self._lock:
            return [
                ExchangeStatistics(each.name, each.type, each.received, each.unroutable, len(each.bindings))
                for each in self._exchanges.values()
            ]

    def gone_through_exchanges(self) -> tuple[int, int]:
        """Messages that exchanges received which are deleted now, and how many of them led nowhere."""
        with self._lock:
            return self._received_by_gone, self._unroutable_at_gone

    # Coming and going

    def add_exchange(self, exchange: Exchange) -> Exchange:
        """The exchange that has this name from now on: the one given, or one that was there before."""
        with self._lock:
            return self._exchanges.setdefault(exchange.name, exchange)

    def add_queue(self, declared: DeclaredQueue, default: Exchange) -> DeclaredQueue:
        """The queue that has this name from now on; a new one is bound to the default exchange by it."""
        binding = Binding(default, declared.queue, declared.name)
        with self._lock:
            found = self._queues.setdefault(declared.name, declared)
            if found is declared:
                self._add_binding_locked(binding)
            return found

    def remove_queue(self, queue: BrokerQueue) -> bool:
        """Forget the queue and its bindings; False when it was gone, or its name is another queue's by now."""
        with self._removing() as gone:
            if self._is_registered_locked(queue):
                gone.append(self._queues.pop(queue.name))
                self._remove_bindings_locked(self._leading_to.get(queue, ()), gone)
        return bool(gone)

    def remove_exchange(self, exchange: Exchange, *, if_unused: bool = False) -> bool:
        """Forget the exchange and its bindings; False when it is to be unused and has bindings."""
        with self._removing() as gone:
            if self._exchanges.get(exchange.name) is exchange:
                if if_unused and exchange.bindings:
                    return False
                leading = [*exchange.bindings.values(), *self._drop_exchange_locked(exchange, gone)]
                self._remove_bindings_locked(leading, gone)
        return True

    def bind(self, binding: Binding) -> Binding | None:
        """The binding that holds from now on: the one given, or an equal one; None when one of its ends is gone."""
        with self._lock:
            if not all(map(self._is_registered_locked, (binding.source, binding.destination))):
                return None
            found = binding.source.bindings.get(binding.identity)
            if found is None:
                self._add_binding_locked(binding)
            return found or binding

    def is_bound(self, source: Exchange, identity: Hashable) -> bool:
        with self._lock:
            return identity in source.bindings

    def unbind(self, source: Exchange, identity: Hashable) -> bool:
        """Remove the binding; False when there was none."""
        with self._removing() as gone:
            if (binding := source.bindings.get(identity)) is not None:
                self._remove_bindings_locked([binding], gone)
        return bool(gone)

    def wait_for_commits(self) -> None:
        """Block until every change made before is where it is to stay. In memory it is."""

    @contextmanager
    def _removing(self) -> Iterator[list[Declared]]:
        """A hold of the lock: what goes in it, and all that depended on that, is let go of when the lock is free."""
        gone: list[Declared] = []
        with self._lock:
            yield gone

    def _drop_exchange_locked(self, exchange: Exchange, gone: list[Declared]) -> Iterable[Binding]:
        """Forget an exchange, but for its figures; returns the bindings that lead to it still."""
        gone.append(self._exchanges.pop(exchange.name))
        self._received_by_gone += exchange.received
        self._unroutable_at_gone += exchange.unroutable
        return self._leading_to.get(exchange, ())

    def _is_registered_locked(self, end: Destination) -> bool:
        if isinstance(end, Exchange):
            return self._exchanges.get(end.name) is end
        declared = self._queues.get(end.name)
        return declared is not None and declared.queue is end

    def _add_binding_locked(self, binding: Binding) -> None:
        binding.source.bindings[binding.identity] = binding
        binding.source.matcher.add(binding)
        self._leading_to.setdefault(binding.destination, {})[binding] = None

    def _remove_bindings_locked(self, bindings: Iterable[Binding], gone: list[Declared]) -> None:
        pending = list(bindings)
        while pending:
            binding = pending.pop()
            source = binding.source
            if source.bindings.pop(binding.identity, None) is None:
                continue
            gone.append(binding)
            source.matcher.remove(binding)
            leading = self._leading_to[binding.destination]
            del leading[binding]
            if not leading:
                del self._leading_to[binding.destination]
            if source.auto_delete and not source.bindings and self._exchanges.get(source.name) is source:
                pending += self._drop_exchange_locked(source, gone)

    # A message's way

    def route(self, message: Message, further_keys: Sequence[str] = (), *, internal: bool = False) -> list[BrokerQueue]:
        """The queues that get the message, each once, by its routing key or one of the further ones.

        Where no binding of an exchange matches, its alternate exchange is asked. `internal` lets the message
        enter at an internal exchange, as dead letters may. Raises as `Verbs.publish`.
        """
        key = message.routing_key
        with self._lock:
            exchange = self._exchanges.get(message.exchange)
            if exchange is None:
                raise NotFound(f"no exchange '{message.exchange}' in vhost '{self.virtual_host}'")
            if exchange.internal and not internal:
                raise AccessRefused(
                    f"cannot publish to internal exchange '{exchange.name}' in vhost '{self.virtual_host}'"
                )
            exchange.received += 1
            bindings = () if exchange.key_of is not None else exchange.matcher.matching(key)
            if further_keys and exchange.key_of is None:
                bindings = _matching_any(exchange, [key, *further_keys])
        if exchange.key_of is not None:  # it may ask the user's objects, so the lock is free
            key = exchange.key_of(message)
            with self._lock:
                bindings = exchange.matcher.matching(key)
        if len(bindings) == 1 and bindings[0].condition is None:  # as the default exchange always has it
            destination = bindings[0].destination
            if not isinstance(destination, Exchange):
                return [destination]
        found = self._follow(exchange, bindings, message, [message.routing_key, *further_keys])
        if not found:
            with self._lock:
                exchange.unroutable += 1
        return found

    def sole_queue(self, message: Message) -> BrokerQueue | None:
        """The queue that messages with this one's address go to, where their address alone leads to one; else None."""
        with self._lock:
            exchange = self._exchanges.get(message.exchange)
            bindings: tuple[Binding, ...] = ()
            is_open = exchange is not None and not exchange.internal and exchange.key_of is None
            if exchange is not None and is_open and not isinstance(exchange.matcher, ChoosesOne):
                bindings = exchange.matcher.matching(message.routing_key)
        if len(bindings) != 1 or bindings[0].condition is not None or isinstance(bindings[0].destination, Exchange):
            return None
        return bindings[0].destination

    def count_received(self, exchange_name: str, count: int) -> None:
        """So many messages have gone to their `sole_queue`."""
        with self._lock:
            exchange = self._exchanges.get(exchange_name)
            if exchange is not None:
                exchange.received += count

    def _follow(
        self, exchange: Exchange, bindings: tuple[Binding, ...], message: Message, keys: Sequence[str]
    ) -> list[BrokerQueue]:
        """Walk from exchange to exchange, breadth first, each visited once."""
        found: dict[BrokerQueue, None] = {}
        seen = {exchange}
        pending = [(exchange, bindings)]
        for at, leading_on in pending:
            matched = False
            for binding in leading_on:
                if binding.condition is not None and not binding.condition(message):
                    continue
                matched = True
                destination = binding.destination
                if not isinstance(destination, Exchange):
                    found[destination] = None
                elif destination not in seen:
                    seen.add(destination)
                    pending.append((destination, self._candidates(destination, keys, message)))
            leads_on = None if matched else at.alternate or at.governing.definition.get(ALTERNATE_EXCHANGE)
            alternate = None if leads_on is None else self.find_exchange(leads_on)
            if alternate is not None and alternate not in seen:
                seen.add(alternate)
                pending.append((alternate, self._candidates(alternate, keys, message)))
        return list(found)

    def _candidates(self, exchange: Exchange, keys: Sequence[str], message: Message) -> tuple[Binding, ...]:
        if exchange.key_of is not None:
            keys = [exchange.key_of(message)]
        with self._lock:
            exchange.received += 1
            return _matching_any(exchange, keys)

    # For tests

    def check_invariants(self) -> None:
        """Assert that every binding has both its ends and stands where it should, and nowhere else."""
        with self._lock:
            leading: dict[Destination, dict[Binding, None]] = {}
            for exchange in self._exchanges.values():
                for identity, binding in exchange.bindings.items():
                    assert binding.identity == identity
                    assert binding.source is exchange
                    assert self._is_registered_locked(binding.destination), binding
                    is_asked = exchange.key_of is not None or isinstance(exchange.matcher, ChoosesOne)
                    assert is_asked or binding in exchange.matcher.matching(binding.routing_key), binding
                    leading.setdefault(binding.destination, {})[binding] = None
            assert leading == self._leading_to, "bindings by source and by destination differ"


def _matching_any(exchange: Exchange, keys: Sequence[Any]) -> tuple[Binding, ...]:
    """The bindings that one of the keys matches, each once. The topology's lock is held."""
    matching = exchange.matcher.matching
    if len(keys) == 1:
        return matching(keys[0])
    return tuple(dict.fromkeys(binding for key in keys for binding in matching(key)))
