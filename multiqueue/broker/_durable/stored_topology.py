"""A topology whose durable part a store keeps.

Promise     What `add_queue`, `add_exchange` and `bind` returned is there when the store is opened again, and what was
            taken out before `wait_for_commits` returned is not. A change that the store refuses is undone, and raises.
State       `_order` is held while a change is made and handed to the store, so that definitions are committed in the
            order in which they came about. `_latest`, guarded by it, is the commit of the latest change.
Lock order  `_order` -> the topology's; `_order` -> the store's. Definitions bring no message, so handing them in waits
            for nothing. Commits are waited for with no lock held.
Who runs    As `Topology`; but those who add wait for the commit, unless they run on the store's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from multiqueue.store import Commit, Define, DropQueue, Operation, StoreClosed, StoreFailed, StoreFull

from .._base.errors import PreconditionFailed
from .._routing.topology import Declared, DeclaredQueue, Topology
from .definitions import definition_of, is_kept, undefinition_of

if TYPE_CHECKING:
    from .._routing.exchange import Binding, Exchange
    from .journal import Journal


class StoredTopology(Topology):
    """The topology of a virtual host with a store. Made empty; `_durable/recovery` fills it before anybody sees it."""

    def __init__(self, virtual_host: str, journal: Journal) -> None:
        super().__init__(virtual_host)
        self._journal = journal
        self._order = threading.Lock()
        self._latest: Commit | None = None
        self.is_recovering = True  # what is added now came from the store

    def add_exchange(self, exchange: Exchange) -> Exchange:
        define = self._definition_of(exchange)
        with self._order:
            found = super().add_exchange(exchange)
            commit = self._submit_locked(define) if found is exchange else None
        self._settle(commit, lambda: self.remove_exchange(exchange))
        return found

    def add_queue(self, declared: DeclaredQueue, default: Exchange) -> DeclaredQueue:
        define = self._definition_of(declared)
        with self._order:
            found = super().add_queue(declared, default)
            commit = self._submit_locked(define) if found is declared else None
        self._settle(commit, declared.queue.delete)
        return found

    def bind(self, binding: Binding) -> bool:
        define = self._definition_of(binding)
        with self._order:
            is_new = binding.identity not in binding.source.bindings
            if not super().bind(binding):
                return False
            commit = self._submit_locked(define) if is_new else None
        self._settle(commit, lambda: self.unbind(binding.source, binding.identity))
        return True

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
        try:
            commit.wait()
        except StoreFull:
            pass  # somebody else's change, which is undone
        self._journal.check()

    # Details

    def _definition_of(self, declared: Declared) -> Define | None:
        if self.is_recovering or not is_kept(declared):
            return None
        try:
            return definition_of(declared)
        except TypeError as error:
            raise PreconditionFailed(f"invalid argument in vhost '{self.virtual_host}': {error}") from error

    def _submit_locked(self, define: Define | None) -> Commit | None:
        if define is None:
            return None
        self._latest = self._journal.submit([define])
        return self._latest

    def _settle(self, commit: Commit | None, undo: Callable[[], object]) -> None:
        """Wait for the commit of a change, and undo one that the store refuses."""
        if commit is None:
            return
        if not self._journal.may_wait:
            commit.add_done_callback(lambda error: undo() if isinstance(error, StoreFull) else None)
            return
        try:
            commit.wait()
        except StoreFull:
            undo()
            raise

    def _forget_locked(self, gone: Sequence[Declared]) -> None:
        operations: list[Operation] = []
        for each in filter(is_kept, gone):
            operations.append(undefinition_of(each))
            if isinstance(each, DeclaredQueue):
                operations.append(DropQueue(each.queue.store_number))
        if operations:
            try:
                self._latest = self._journal.submit(operations)
            except (StoreFailed, StoreClosed):
                pass  # the virtual host refuses everything from now on; what is gone here comes back with it
