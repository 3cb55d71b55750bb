"""Which engine runs: the one in C, or the one in Python. The one place where that is decided.

The compiled one is chosen where it was built for this interpreter, unless the environment has `MULTIQUEUE_PURE=1` or
gevent or eventlet have patched the program: their greenlets wait on locks in Python, and one that waited in C would
hold up all others. Both have the same names and promises, and the same classes stand on them; a type checker sees the
plain one.

An engine in C that was built from an older source, as an editable install keeps it when the checkout moves on, lacks
some of the NAMES: it is passed over, with a warning that says how to build it again.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Literal

__all__ = ["chosen", "engine"]


# What the classes ask of an engine.
NAMES = """
    Multi Ring Tail Turn after_fork assign attach bind check close close_all configure detach discard done drop due
    figures get give_back is_closed item key_of keyed many pair park peek poll put_keyed put_some ready reasons remove
    replace replace_reasons selection set_fair set_gate set_hooked set_keyed set_selection snapshot stir tails take
    unpark waiting_takers
"""


def _has_extension() -> bool:
    try:
        from . import _engine
    except ImportError:
        return False
    missing = [name for name in NAMES.split() if not hasattr(_engine, name)]
    if missing:
        from .._compiled import warn_of_older

        warn_of_older(_engine, missing)
    return not missing


def _is_wanted() -> bool:
    return os.environ.get("MULTIQUEUE_PURE", "") in ("", "0") and type(threading.Lock()).__module__ == "_thread"


engine: Literal["c", "python"] = "c" if _is_wanted() and _has_extension() else "python"

if TYPE_CHECKING or engine == "python":
    from . import _plain as chosen
else:
    from . import _engine as chosen
