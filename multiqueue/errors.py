"""One tree of errors: the type says whose fault it was and whether trying again can help.

`Empty` and `Full` *are* the standard library's classes, and so is `ShutDown` where the standard library has
it (Python 3.13 and later), so `except queue.Empty` keeps working when a program moves to multiqueue.
"""

from __future__ import annotations

import sys
from queue import Empty as Empty
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import queue

    class Full(queue.Full):
        """There is no room. It is `queue.Full` itself."""

        item: Any  # the element that was not put; of a lane `(fn, args, kwargs)`

    if sys.version_info >= (3, 13):

        class ShutDown(queue.ShutDown):
            """The queue is shut down. It is `queue.ShutDown` itself."""

            item: Any  # the element that was not put
            accepted: int  # of `put_many`: how many were put before
            rest: list[Any]  # of `put_many`: the others

    else:

        class ShutDown(Exception):
            """The queue is shut down."""

            item: Any  # the element that was not put
            accepted: int  # of `put_many`: how many were put before
            rest: list[Any]  # of `put_many`: the others

else:
    from queue import Full as Full

    if sys.version_info >= (3, 13):
        from queue import ShutDown as ShutDown
    else:

        class ShutDown(Exception):
            """Raised when put/get with shut-down queue."""


class MultiQueueError(Exception):
    """The root of every error that is multiqueue's own."""


class SubQueueExists(MultiQueueError, ValueError):
    """A sub-queue with this key is registered already. Use another key, or `get_subqueue(key)`."""


class Detached(MultiQueueError, ShutDown):
    """The sub-queue was removed from its multi-queue and accepts nothing more. Do not retry on it."""


class InvalidSelection(MultiQueueError):
    """A `SubQueueSelection` returned a sub-queue that was not among its choices. Nothing was taken."""


__all__ = [
    "Detached",
    "Empty",
    "Full",
    "InvalidSelection",
    "MultiQueueError",
    "ShutDown",
    "SubQueueExists",
]
