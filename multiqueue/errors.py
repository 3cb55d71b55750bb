"""One tree of errors: the type says whose fault it was and whether trying again can help.

`Empty` and `Full` *are* the standard library's classes, and so is `ShutDown` where the standard library has
it (Python 3.13 and later), so `except queue.Empty` keeps working when a program moves to multiqueue.
"""

from __future__ import annotations

import sys
from queue import Empty as Empty
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
    """A `SubQueueSelection` answered something that was not among its choices. Nothing was taken."""
