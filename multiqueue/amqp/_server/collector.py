"""The garbage collector of a process that is a broker and nothing else.

A message on a queue is five objects in no cycle. By default the collector looks at all of them again when they have
grown by a quarter: a third of what a durable message cost. docs/decisions/0861 has the figures.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_YOUNG: Final = 20_000  # objects more than before, till the young are looked at: some 1 ms
_MIDDLE: Final = 2  # such looks till a look at all that were young since the last one: some 20 ms
_OLD: Final = 250  # those till a look at everything


@contextmanager
def patient_collector() -> Iterator[None]:
    """Look for cycles seldom in this block, and never among the objects that are there now.

    For a program whose process is mostly a broker: `with patient_collector(), serve(broker): ...`. It is the whole
    process's collector; its thresholds are as before when the block ends. One such block at a time.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
