"""The class `queue.Queue` of the standard library, also where another one stands in its place.

gevent and eventlet put their own queue there when they patch a program. `Queue` cannot inherit from that one: it is in
C, or has none of the hooks. Then the standard library's module is run once more, for us alone, on the patched locks.
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

from ..errors import Full, ShutDown

HOOKS = ("_init", "_put", "_get", "_qsize")


def standard_queue() -> type[Any]:
    """`queue.Queue`, or when that is not the standard library's, a class made from the same source."""
    if queue.Queue.__module__ == "queue" and all(hasattr(queue.Queue, name) for name in HOOKS):
        return queue.Queue
    from importlib.util import find_spec, module_from_spec

    spec = find_spec("queue")
    if spec is None or spec.loader is None:
        raise ImportError("the standard library's module queue cannot be found")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(Full=Full, ShutDown=ShutDown)  # of which there is one each
    kind: type[Any] = module.Queue
    return kind


if TYPE_CHECKING:
    from queue import Queue

    StandardQueue = Queue
else:
    StandardQueue = standard_queue()
