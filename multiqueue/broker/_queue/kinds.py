"""Kinds of queue by name: the four of this room, and those that programs register.

State       `_lock`, a leaf, guards changes of the dictionary of kinds, which is read without it.
Who runs    A factory runs on the thread that declares the queue or opens its broker, under no lock. The list's methods
            run under the lock of its queue, but for `key_of`. docs/decisions/0506-kinds-are-registered-by-name.md has
            the rest.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, Final, cast

from .._base.errors import PreconditionFailed, UnknownQueueKind
from .._base.settings import QueueKind, QueueSettings
from .entry_list import EntryList, LastValueEntryList, PriorityEntryList, SortedEntryList, StandardEntryList

MakeEntryList = Callable[[QueueSettings], Any]
"""A factory of new, empty `EntryList`s; a queue that asks for one checks it."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,254}")
_OURS: Final[dict[str, MakeEntryList]] = {
    QueueKind.STANDARD.value: StandardEntryList,
    QueueKind.PRIORITY.value: PriorityEntryList,
    QueueKind.SORTED.value: SortedEntryList,
    QueueKind.LAST_VALUE.value: LastValueEntryList,
}
_MEMBERS: Final = [name for name in vars(EntryList) if name in ("__len__", "__iter__") or not name.startswith("_")]
_lock = threading.Lock()
_makers = dict(_OURS)


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
        if name in _makers:
            raise ValueError(f"queue kind '{name}' is taken; choose another name, or unregister it first")
        _makers[name] = make


def unregister_queue_kind(name: str) -> None:
    """Forget a kind: no further queue can be declared as it. Queues that are there keep their lists.

    Raises:
        KeyError: it is not registered.
    """
    with _lock:
        if name in _OURS or _makers.pop(name, None) is None:
            raise KeyError(f"queue kind '{name}' is not registered")


def known_queue_kinds() -> tuple[str, ...]:
    """The names that a queue can be declared with."""
    return tuple(_makers)


def make_entry_list(settings: QueueSettings, queue: str) -> EntryList:
    """A new list for a queue; `queue` names it in errors: `queue 'x' in vhost '/'`.

    Raises:
        UnknownQueueKind: its kind is not registered.
        PreconditionFailed: the kind does not take the settings, or has made something else than a list.
    """
    kind = settings.kind_name
    make = _makers.get(kind)
    if make is None:
        raise UnknownQueueKind(kind, queue, known_queue_kinds())
    try:
        made: object = make(settings)
    except Exception as error:
        raise PreconditionFailed(f"queue kind '{kind}' makes no list for {queue}: {error}") from error
    missing = [name for name in _MEMBERS if not hasattr(type(made), name)]
    if missing:
        raise PreconditionFailed(
            f"queue kind '{kind}' has made a {type(made).__name__} for {queue}, which lacks {', '.join(missing)};"
            " multiqueue.broker.EntryList says what a list has"
        )
    return cast(EntryList, made)
