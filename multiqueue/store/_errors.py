"""Errors of a store: the type says whether anything can be tried again."""

from __future__ import annotations

from ..errors import MultiQueueError


class StoreError(MultiQueueError):
    """The root of the store's errors."""


class StoreFull(StoreError):
    """There is no room. Nothing of the submission was stored; try again when something was deleted."""

    exit_status = 3  # of a command: see docs/reference/command-line.md


class StoreFailed(StoreError):
    """The disk failed. Uncommitted changes are lost, and the store accepts nothing more: open it again."""

    exit_status = 3


class StoreClosed(StoreError):
    """The store was closed, or this is another process than the one that opened it."""


class StoreLocked(StoreError):
    """Another process, or another part of this one, has the store open."""

    exit_status = 2


class StoreDamaged(StoreError):
    """The file is not a store, has a later format, or is damaged. `multiqueue store dump` saves the readable part."""


class OtherFile(StoreDamaged):
    """It is not damage: the file is of another program, or of a later format."""

    exit_status = 2


class NoStore(StoreError):
    """There is no store there, or none that this user may read or make."""

    exit_status = 2
