"""Opening a virtual host: what its store has becomes exchanges, queues, bindings and messages again.

Runs before anybody else knows the virtual host, on the thread that makes it. It reads definitions and the count of each
queue; how much of a queue's messages is read at once is the queue's own business. What a crash left half deleted, the
messages of a queue without a definition, is deleted now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from multiqueue.store import Definition, DropQueue, Level, MessageStore

from .._routing.exchange import DEFAULT_EXCHANGE, Binding, Destination, binding_condition
from .._routing.topology import DeclaredQueue
from .definitions import BINDING, EXCHANGE, QUEUE, KeptQueue, binding_from, exchange_from, queue_from

if TYPE_CHECKING:
    from .._queue.queue import BrokerQueue
    from .stored_topology import StoredTopology


def recover(store: MessageStore, topology: StoredTopology, make_queue: Callable[[KeptQueue], BrokerQueue]) -> None:
    """Fill an empty topology.

    Raises:
        StoreDamaged: a definition cannot be read.
    """
    kept: dict[str, list[Definition]] = defaultdict(list)
    for definition in store.definitions():
        kept[definition.kind].append(definition)
    for definition in kept[EXCHANGE]:
        topology.add_exchange(exchange_from(definition))
    queues = [_add_queue(topology, queue_from(definition), make_queue) for definition in kept[QUEUE]]
    for definition in kept[BINDING]:
        _bind(topology, definition)
    topology.is_recovering = False
    _take_in(store, {queue.store_number: queue for queue in queues})


def _add_queue(
    topology: StoredTopology, kept: KeptQueue, make_queue: Callable[[KeptQueue], BrokerQueue]
) -> BrokerQueue:
    default = topology.find_exchange(DEFAULT_EXCHANGE)
    assert default is not None
    queue = make_queue(kept)
    topology.add_queue(DeclaredQueue(queue, kept.arguments), default)
    return queue


def _bind(topology: StoredTopology, definition: Definition) -> None:
    kept = binding_from(definition)
    source = topology.find_exchange(kept.source)
    destination: Destination | None
    if kept.to_queue:
        declared = topology.find_queue(kept.destination)
        destination = None if declared is None else declared.queue
    else:
        destination = topology.find_exchange(kept.destination)
    if source is not None and destination is not None:
        condition = binding_condition(source, kept.arguments)
        topology.bind(Binding(source, destination, kept.routing_key, kept.arguments, condition))


def _take_in(store: MessageStore, queues: dict[int, BrokerQueue]) -> None:
    levels: dict[int, list[Level]] = defaultdict(list)
    for level in store.levels():
        levels[level.queue].append(level)
    orphans = [DropQueue(number) for number in levels if number not in queues]
    if orphans:
        store.submit(orphans)
    for number, queue in queues.items():
        queue.joining.recover(sorted(levels[number], key=lambda level: level.level))
