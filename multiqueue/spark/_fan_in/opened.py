"""Iterators over Spark jobs that run: let go when they are dropped, and closed when the interpreter ends."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

_open: weakref.WeakSet[Any] = weakref.WeakSet()


def opened(iterator: Any, let_go: Callable[..., object], *of: Any) -> None:
    """Have `let_go(*of)`, which must not wait, called if `iterator` is dropped, and its `close` at the end."""
    weakref.finalize(iterator, let_go, *of).atexit = False
    _open.add(iterator)


def _close_at_exit() -> None:
    for each in list(_open):
        each.close()


# As the executor does, and after it: the hooks run in reverse order. docs/decisions/0201-exit-hook.md.
threading._register_atexit(_close_at_exit)  # type: ignore[attr-defined]
