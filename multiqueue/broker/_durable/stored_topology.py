"""A topology whose durable part a store keeps.

Promise     What `add_queue`, `add_exchange` and `bind` returned is there when the store is opened again, and what was
            taken out before `wait_for_commits` returned is not. A change that the store refuses is undone, and raises.
State       `_order` is held while a change is made and handed to the store, so that definitions are committed in the
            order in which they came about. `_latest`, guarded by it, is the commit of the latest change.
Lock order  `_order` -> the topology's; `_order` -> the store's. Definitions bring no message, so handing them in waits
            for nothing. Commits are waited for with no lock held.
Who runs    As `Topology`; but a call that adds waits for its commit. On the store's thread, and `without_waiting`, it
            does not, and the store's thread undoes a change that is refused.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from multiqueue.store import Commit, Define, Definition, DropQueue, Level, Operation, StoreFull

from .._base.errors import PreconditionFailed
from .._base.waits import here
from .._queue.queue import BrokerQueue
from .._routing.exchange import DEFAULT_EXCHANGE, Binding, Exchange, binding_condition
from .._routing.topology import Declared, DeclaredQueue, Topology
from . import definitions
from .journal import Journal

_Found = TypeVar("_Found")


class StoredTopology(Topology):
    """The topology of a virtual host with a store. Made empty; `recover` fills it before anybody sees it."""

    def __init__(self, virtual_host: str, journal: Journal) -> None:
        super().__init__(virtual_host)
        self._journal = journal
        self._order = threading.Lock()
        self._latest: Commit | None = None
        self._is_recovering = True  # what is added now came from the store

    def recover(self, make_queue: Callable[[definitions.KeptQueue], BrokerQueue]) -> None:
        """Make exchanges, queues, bindings and messages of what the store has, on the thread that makes the host.

        Reads definitions and the count of each queue; how much of a queue's messages is read at once is the queue's own
        business. What a crash left half deleted, the messages of a queue without a definition, is deleted now.

        Raises:
            StoreDamaged: a definition cannot be read.
        """
        store = self._journal.store
        kept: dict[str, list[Definition]] = defaultdict(list)
        for definition in store.definitions():
            kept[definition.kind].append(definition)
        for definition in kept[definitions.EXCHANGE]:
            self.add_exchange(definitions.exchange_from(definition))
        default = self._exchanges[DEFAULT_EXCHANGE]
        queues: dict[int, BrokerQueue] = {}
        for each in map(definitions.queue_from, kept[definitions.QUEUE]):
            queue = queues[each.number] = make_queue(each)
            self.add_queue(DeclaredQueue(queue, each.arguments), default)
        for definition in kept[definitions.BINDING]:
            self._recover_binding(*definitions.binding_from(definition))
        self._is_recovering = False
        levels: dict[int, list[Level]] = defaultdict(list)
        for level in store.levels():
            levels[level.queue].append(level)
        if orphans := [DropQueue(number) for number in levels if number not in queues]:
            store.submit(orphans)
        for number, queue in queues.items():
            queue.joining.recover(sorted(levels[number], key=lambda level: level.level))

    def _recover_binding(
        self, source: str, destination: str, to_queue: bool, routing_key: str, arguments: Mapping[str, object]
    ) -> None:
        start = self.find_exchange(source)
        found = self.find_queue(destination) if to_queue else self.find_exchange(destination)
        end = found.queue if isinstance(found, DeclaredQueue) else found
        if start is not None and end is not None:
            self.bind(Binding(start, end, routing_key, arguments, binding_condition(start, arguments)))

    def add_exchange(self, exchange: Exchange) -> Exchange:
        add = partial(super().add_exchange, exchange)
        return self._add(exchange, add, lambda: self.remove_exchange(exchange))

    def add_queue(self, declared: DeclaredQueue, default: Exchange) -> DeclaredQueue:
        return self._add(declared, partial(super().add_queue, declared, default), declared.queue.delete)

    def bind(self, binding: Binding) -> Binding | None:
        undo = partial(self.unbind, binding.source, binding.identity)
        return self._add(binding, partial(super().bind, binding), undo)

    def _add(self, new: Declared, add: Callable[[], _Found], undo: Callable[[], object]) -> _Found:
        """Add it, unless there is such a thing, and wait for its commit. What the store refuses is undone."""
        define = self._definition_of(new)
        with self._order:
            found = add()
            if define is None or found is not new:
                return found
            commit = self._latest = self._journal.submit([define])
        if here.put_off is not None or not self._journal.may_wait:
            commit.add_done_callback(lambda error: undo() if isinstance(error, StoreFull) else None)
            if here.put_off is not None:
                here.put_off.commit, here.put_off.is_own = commit, True
            return found
        try:
            commit.wait()
        except StoreFull:
            undo()
            raise
        return found

    @contextmanager
    def _removing(self) -> Iterator[list[Declared]]:
        with self._order:
            with super()._removing() as gone:
                yield gone
            self._forget_locked(gone)

    def wait_for_commits(self) -> None:
        """Block until every change made before is committed, or refused to its caller.

        Raises:
            StoreFailed, StoreClosed: the store came to its end first.
        """
        if not self._journal.may_wait:
            return
        with self._order:  # a change that is seen already may still be on its way to the store
            commit = self._latest
        if commit is None:
            return
        if here.put_off is not None and not commit.is_done:
            here.put_off.commit = here.put_off.commit or commit
            return
        try:
            commit.wait()
        except StoreFull:
            pass  # somebody else's change, which is undone
        self._journal.check()

    # Details

    def _definition_of(self, declared: Declared) -> Define | None:
        if self._is_recovering or not definitions.is_kept(declared):
            return None
        try:
            return definitions.definition_of(declared)
        except TypeError as error:
            raise PreconditionFailed(f"invalid argument in vhost '{self.virtual_host}': {error}") from error

    def _forget_locked(self, gone: Sequence[Declared]) -> None:
        operations: list[Operation] = []
        for each in filter(definitions.is_kept, gone):
            operations.append(definitions.undefinition_of(each))
            if isinstance(each, DeclaredQueue):
                operations.append(DropQueue(each.queue.store_number))
        if operations:
            # A virtual host whose store is at its end refuses everything; what is gone here comes back with it.
            self._latest = self._journal.submit_if_open(operations) or self._latest
