"""Kinds of queue by name: the four of this room, and those that programs register.

State       `_lock`, a leaf, guards the dictionary of registered kinds.
Who runs    A factory runs on the thread that declares the queue or opens its broker, under no lock. The list's methods
            run under the lock of its queue, but for `key_of`. docs/decisions/0506-kinds-are-registered-by-name.md has
            the rest.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, Final

from .settings import QueueKind, QueueSettings

MakeEntryList = Callable[[QueueSettings], Any]
"""A factory of new, empty `EntryList`s; a queue that asks for one checks it."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,254}")
_OURS: Final = tuple(kind.value for kind in QueueKind)
_lock = threading.Lock()
_registered: dict[str, MakeEntryList] = {}


def register_queue_kind(name: str, make: MakeEntryList) -> None:
    """Let queues be of a kind of one's own: `make(settings)` returns a new, empty `EntryList` for each.

    Queues are declared as it by `QueueSettings(kind=name)` or the argument `x-queue-kind`. `settings.kind_options`,
    from the argument `x-queue-kind-options`, are the kind's own. Any thread may call; it does not block.

    Raises:
        ValueError: no name for a kind (small letters, digits, `_`, `.` and `-`), or one that is taken.
        TypeError: `make` cannot be called.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a queue kind: small letters, digits, _ . and -, a letter first")
    if not callable(make):
        raise TypeError(f"queue kind '{name}' needs a callable that makes its lists, not {make!r}")
    with _lock:
        if name in _OURS or name in _registered:
            raise ValueError(f"queue kind '{name}' is taken; choose another name, or unregister it first")
        _registered[name] = make


def unregister_queue_kind(name: str) -> None:
    """Forget a kind: no further queue can be declared as it. Queues that are there keep their lists.

    Raises:
        KeyError: it is not registered.
    """
    with _lock:
        if _registered.pop(name, None) is None:
            raise KeyError(f"queue kind '{name}' is not registered")


def known_queue_kinds() -> tuple[str, ...]:
    """The names that a queue can be declared with."""
    with _lock:
        return (*_OURS, *_registered)


def maker_of(name: str) -> MakeEntryList | None:
    """The factory of a registered kind's lists; None when it is not registered."""
    with _lock:
        return _registered.get(name)
