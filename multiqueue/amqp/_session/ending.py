"""Ending in steps: one that raises is logged, and keeps no message, queue or consumer behind it from ending."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

_log = logging.getLogger("multiqueue.amqp")

Step = tuple[str, Callable[[], object]]
"""A step's name for the log, and the step."""


def end_each(whose: object, steps: Iterable[Step], log: logging.Logger = _log) -> None:
    """Do all steps in order; log an error of one, and do the others."""
    for what, step in steps:
        try:
            step()
        except Exception:  # the steps behind it must not depend on this one
            log.exception(
                "%r ends, and cannot %s; the rest of it ends all the same",
                whose,
                what,
                extra={"connection": repr(whose)},
            )
