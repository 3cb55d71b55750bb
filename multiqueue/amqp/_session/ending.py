"""How sessions and connections end: what an error closes, and the steps of an end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ...broker import BrokerError
from ...errors import MultiQueueError
from .._wire.errors import AmqpError, ChannelFault
from .effects import Effects, Served

_log = logging.getLogger("multiqueue.amqp")


def fail(connection: Effects, session: Served | None, error: BaseException, method: bytes) -> None:
    """Close what an error costs; `method` is the one that was called."""
    if isinstance(error, BrokerError):
        if error.closes == "channel" and session is not None:
            session.fault(error.reply_code, error.reply_text, method)
        else:
            connection.fault(error, method)
    elif isinstance(error, ChannelFault) and session is not None:
        session.fault(error.reply_code, error.reply_text, method)
    elif isinstance(error, AmqpError):
        connection.fault(error, method)
    elif isinstance(error, MultiQueueError) and session is not None:
        # The store has no room, or cannot be read: other sessions may have nothing to do with it.
        _log.error("%r: channel %d: %s", connection, session.number, error, extra={"connection": repr(connection)})
        fault = ChannelFault(541, str(error))
        session.fault(fault.reply_code, fault.reply_text, method)
    else:
        connection.failed(error)


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
