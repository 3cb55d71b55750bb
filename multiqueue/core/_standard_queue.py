"""The classes of the standard library's `queue`, also where others stand in their place.

gevent and eventlet put their own queue there when they patch a program. `Queue` cannot inherit from that one: it is in
C, or has none of the hooks. Then the standard library's module is run once more, for us alone, on the patched locks.
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

from ..errors import Full, ShutDown

__all__ = ["HOOKS", "StandardLifoQueue", "StandardPriorityQueue", "StandardQueue"]

HOOKS = ("_init", "_put", "_get", "_qsize")


def standard_module() -> Any:
    """`queue`, or when its `Queue` is not the standard library's, a module made from the same source."""
    if queue.Queue.__module__ == "queue" and all(hasattr(queue.Queue, name) for name in HOOKS):
        return queue
    from importlib.util import find_spec, module_from_spec

    spec = find_spec("queue")
    if spec is None or spec.loader is None:
        raise ImportError("the standard library's module queue cannot be found")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(Full=Full, ShutDown=ShutDown)  # of which there is one each
    return module


if TYPE_CHECKING:
    from queue import LifoQueue as StandardLifoQueue
    from queue import PriorityQueue as StandardPriorityQueue
    from queue import Queue as StandardQueue
else:
    _standard = standard_module()
    StandardQueue = _standard.Queue
    StandardLifoQueue = _standard.LifoQueue
    StandardPriorityQueue = _standard.PriorityQueue
