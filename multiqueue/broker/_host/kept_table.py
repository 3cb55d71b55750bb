"""Settings of a virtual host by name that are no declaration: policies, limits. Kept in its store, if it has one.

Promise     A change is kept when it returns, or it raises and is undone. Who reads sees the table before it or after.
State       `order` guards `values`, a dictionary that is replaced and never changed; under it changes are handed in, so
            that they are committed in their order. Commits are waited for without it.
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
        return self._change(key, None, Undefine(*key)) if key in self.values else None

    def _change(self, key: Key, value: V | None, operation: Define | Undefine) -> V | None:
        if self._journal is not None and not self._journal.may_wait:
            raise RuntimeError(
                "what a virtual host keeps cannot be changed by a callback of a commit: it would wait for itself"
            )
        with self.order:
            before = self._put_locked(key, value)
            try:
                commit = None if self._journal is None else self._journal.submit([operation])
            except BaseException:
                self._put_locked(key, before)
                raise
        if commit is not None:
            try:
                commit.wait()
            except Exception:
                with self.order:
                    if self.values.get(key) is value:
                        self._put_locked(key, before)
                raise
        return before

    def _put_locked(self, key: Key, value: V | None) -> V | None:
        values = dict(self.values)
        before = values.pop(key, None)
        if value is not None:
            values[key] = value
        self.values = values
        return before
