"""The causes of a failure in Spark, wherever Spark has put them: in one place for all that ask.

Py4J's error says that there was a call, and has the JVM's exceptions in its text; PySpark's own has the first of them
in its text and the others in its Java stack trace; Spark Connect's has the server's stack trace, if the server gave it.
The first exceptions of a chain often say nothing but that a thread waited for another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..._kinds import check_kind

# A mistake in the function or in its data: another attempt would end the same way, and it has nothing to do with the
# session. By name, for classic and Connect each have classes of their own.
MISTAKES = frozenset({"AnalysisException", "ParseException", "PythonException"})

# Spark's error classes for a job that somebody cancelled: a classic session's, and besides it Spark Connect's own.
_CANCELLED = ("[SPARK_JOB_CANCELLED]", "[OPERATION_CANCELED]")
_CALL = re.compile(r"\AAn error occurred while calling .*\n: ")
_END_OF_MESSAGE = re.compile(r"\n(?:\tat |\t\.\.\. |Driver stacktrace:|JVM stacktrace:|\nJVM stacktrace:)")
_NAMED = re.compile(r"([\w.$]+)(?:: (.*))?", re.DOTALL)
_SAYS_NOTHING = ("", "Exception thrown in awaitResult:")
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class Cause:
    """One exception, of Python or of the JVM: its class without the package, and its message."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.line}" if self.line else self.kind

    @property
    def line(self) -> str:
        """The line that says most: the first, or that of an exception in a Python worker."""
        if _TRACEBACK in self.message:
            frames = self.message.rpartition(_TRACEBACK)[2].splitlines()
            return next((line.strip() for line in frames if line.strip() and not line.startswith(" ")), "an exception")
        return self.message.partition("\n")[0].strip()


def causes(error: BaseException) -> Iterator[Cause]:
    """The error and the exceptions of the JVM behind it, outermost first. Its causes in Python are others' affair."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - Py4J asks the JVM for the text, and that may be gone
        text = ""
    if _CALL.match(text):
        yield from _of_java(_CALL.sub("", text))
        return
    yield Cause(type(error).__name__, _message(text))
    trace: Any = getattr(error, "_stackTrace", None) or getattr(error, "_stacktrace", None)  # classic, Connect
    if isinstance(trace, str):
        yield from list(_of_java(trace))[1:]  # the first is the error again


def cause_of(error: BaseException, *, whole: bool = False) -> str:
    """Why it failed, in one line: the first of its causes that says something, and the last if that says more.

    Of an error of Spark's these are the JVM's and the server's exceptions; Java's stack is left out. With `whole` the
    other lines of the first one's message follow: the traceback of a Python worker, the plan of a query.
    """
    check_kind("error", error, BaseException, "an exception")
    chain: list[Cause] = []
    one: BaseException | None = error
    while one is not None and len(chain) < 100:  # a cause can be its own
        chain += causes(one)
        one = one.__cause__
    told = [cause for cause in chain if cause.message.strip() not in _SAYS_NOTHING] or chain
    first = told[0]
    rest = [cause for cause in told[1:] if cause.line not in first.message]
    line = f"{first}; caused by {rest[-1]}" if rest else str(first)
    if not whole:
        return line
    start, _, more = first.message.partition("\n")
    return f"{line}\n{more if start.strip() in line else first.message}".rstrip() if more else line


def is_sparks_own(error: BaseException) -> bool:
    """Whether PySpark has raised this, and not for a mistake of the function's."""
    if any(cls.__name__ in MISTAKES for cls in type(error).__mro__):
        return False
    return _is_of_spark(type(error).__module__) or _is_of_spark(_raised_in(error))


def is_cancellation(error: BaseException) -> bool:
    """Whether this is Spark's word for a cancelled job, its causes in Python aside."""
    return is_sparks_own(error) and any(word in cause.message for cause in causes(error) for word in _CANCELLED)


def own_error(error: Any) -> BaseException:
    """PySpark's own error for one of Py4J's, as its actions raise it; the same where it has none."""
    from pyspark.errors.exceptions.captured import UnknownException, convert_exception

    java = error.java_exception
    while java is not None:
        own = convert_exception(java)
        if not isinstance(own, UnknownException):
            return own
        java = java.getCause()
    return error  # type: ignore[no-any-return]


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from or during, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _of_java(trace: str) -> Iterator[Cause]:
    """The exceptions of a Java stack trace."""
    for part in re.split(r"^Caused by: ", trace, flags=re.MULTILINE):
        named = _NAMED.match(_message(part))
        if named:
            yield Cause(named[1].rpartition(".")[2], (named[2] or "").strip())


def _message(text: str) -> str:
    return _END_OF_MESSAGE.split(text, maxsplit=1)[0].strip()


def _is_of_spark(module: str) -> bool:
    return module.partition(".")[0] in ("pyspark", "py4j", "grpc")


def _raised_in(error: BaseException) -> str:
    """The module of the code that raised it."""
    traceback = error.__traceback__
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return str(traceback.tb_frame.f_globals.get("__name__", ""))
