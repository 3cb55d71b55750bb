"""Log records that are one line each, with any text of a peer in them, and that name their subject.

Promise     Text that came from outside (a user name, a virtual host, a queue, an error of the other side) cannot end a
            line of the log, begin one, or steer a terminal: control characters are shown as escapes. A traceback keeps
            its lines, each indented, so no line looks like a record.
Who runs    A filter on each room's logger, and on the handlers of `multiqueue broker` for the loggers of others: once
            per record that is logged, so nothing is spent on those that are not.
"""

from __future__ import annotations

import logging
import re
from contextvars import ContextVar
from typing import Final

# What ends a line or steers a terminal: C0, DEL, C1, line and paragraph separators, directions of writing, surrogates.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_tracebacks: Final = logging.Formatter()


def printable(text: str) -> str:
    """The text on one line: control characters as `\\n`, `\\x1b`, `\\u2028`."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


class OneLine(logging.Filter):
    """Makes each record a single line, and its traceback lines that begin with blanks."""

    def filter(self, record: logging.LogRecord) -> bool:
        """True always; the record is changed, once."""
        if getattr(record, "is_one_line", False):
            return True
        record.is_one_line = True
        try:
            record.msg, record.args = printable(record.getMessage()), None
        except Exception:  # noqa: BLE001  # arguments that do not fit: logging's handlers say so
            return True
        if record.exc_info and record.exc_info[0] is not None:
            text = record.exc_text or _tracebacks.formatException(record.exc_info)
            record.exc_text = "\n".join("    " + printable(line) for line in text.split("\n"))
        return True


CONTEXT: Final = ("lane", "item", "queue", "connection")
_item: ContextVar[tuple[str, str]] = ContextVar("multiqueue_item", default=("", ""))  # lane and name of this thread's


class LogContext(logging.Filter):
    """Gives each record `lane`, `item`, `queue` and `connection`, for a format such as `%(queue)s %(message)s`.

    The rooms' own records name their lane, item, queue and connection; what does not apply is an empty text. On a
    handler of yours it does the same for records of other loggers. `multiqueue.observe.log_lanes` has all records of an
    executor's jobs say which.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """True always; the record has the four fields, as its caller gave them where it did."""
        for name, value in zip(CONTEXT, (*_item.get(), "", ""), strict=True):
            known = getattr(record, name, "")
            setattr(record, name, printable(str(known)) or value)
        return True


def in_item(lane: str, item: str) -> None:
    """From now on this thread runs an item of a lane."""
    _item.set((printable(lane), printable(item)))


def one_line_each(name: str) -> None:
    """Have the records of this logger be one line each, and name their subject; called by the room's door."""
    logger = logging.getLogger(name)
    if not any(isinstance(each, OneLine) for each in logger.filters):
        logger.addFilter(OneLine())
        logger.addFilter(LogContext())
