"""Which engine runs: the one in C, or the one in Python. The one place where that is decided.

The compiled one is chosen where it was built for this interpreter, unless the environment has `MULTIQUEUE_PURE=1` or
gevent or eventlet have patched the program: their greenlets wait on locks in Python, and one that waited in C would
hold up all others. Both have the same names and promises, and the same classes stand on them; a type checker sees the
plain one.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Literal

__all__ = ["chosen", "engine"]


def _has_extension() -> bool:
    try:
        from . import _engine  # noqa: F401
    except ImportError:
        return False
    return True


def _is_wanted() -> bool:
    return os.environ.get("MULTIQUEUE_PURE", "") in ("", "0") and type(threading.Lock()).__module__ == "_thread"


engine: Literal["c", "python"] = "c" if _is_wanted() and _has_extension() else "python"

if TYPE_CHECKING or engine == "python":
    from . import _plain as chosen
else:
    from . import _engine as chosen
