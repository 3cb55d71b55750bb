"""Settings of a virtual host by name that are no declaration: policies, limits. Kept in its store, if it has one.

Promise     A change is kept when it returns, or it raises and is undone. Who reads sees the table before it or after.
State       `order` guards `values`, a dictionary that is replaced and never changed.
Waiting     Changes take turns, their commits included, under `_turn`: one that is undone leaves what is kept, and one
            that finds its value there is kept. The store's thread, which they wait for, changes nothing.
Lock order  `_turn` -> `order`, the store's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from multiqueue.store import Define, Undefine

from ..._locks import Lock

if TYPE_CHECKING:
    from .._durable.journal import Journal

Key = tuple[str, str]  # a kind of definition, and a name
V = TypeVar("V")


class KeptTable(Generic[V]):
    """Values by kind and name. Any thread may call any method."""

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._turn = Lock()
        self.order = Lock()
        self.values: Mapping[Key, V] = {}

    def recover(self, values: Mapping[Key, V]) -> None:
        """Have what the store has, before anybody sees the virtual host."""
        self.values = dict(values)

    def set(self, key: Key, value: V, document: str) -> V | None:
        """Have this value, which the store keeps as `document`; returns the one that was there.

        Raises:
            StoreFull, StoreFailed: it cannot be kept; nothing was changed.
            RuntimeError: called by what follows a commit, on the store's own thread.
        """
        return self._change(key, value, Define(*key, document))

    def clear(self, key: Key) -> V | None:
        """Have no value; returns the one that was there. Raises as `set`."""
        return self._change(key, None, Undefine(*key))

    def _change(self, key: Key, value: V | None, operation: Define | Undefine) -> V | None:
        if self._journal is not None and not self._journal.may_wait:
            raise RuntimeError(
                "what a virtual host keeps cannot be changed by a callback of a commit: it would wait for itself"
            )
        with self._turn:
            before = self.values.get(key)
            if before == value:
                return before
            self._put(key, value)
            try:
                if self._journal is not None:
                    self._journal.submit([operation]).wait()
            except Exception:
                self._put(key, before)
                raise
        return before

    def _put(self, key: Key, value: V | None) -> None:
        with self.order:
            values = {each: kept for each, kept in self.values.items() if each != key}
            if value is not None:
                values[key] = value
            self.values = values
