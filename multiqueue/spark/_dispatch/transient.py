"""Which failures may pass when the job is run again. Told by Spark's words, for there are no classes for them."""

from __future__ import annotations

from ..._kinds import check_kind
from .._backend.causes import MISTAKES, causes, with_causes

# Spark has run the task again by itself before it says these; what lies between is the time that a backoff gives.
WORDS = (
    "ExecutorLostFailure",
    "FetchFailed",
    "TaskResultLost",
    "Python worker exited unexpectedly",  # killed by the system, most often for its memory
    "Failed to connect to",
    "Connection refused",
    "Connection reset",
    "StatusCode.UNAVAILABLE",
)


def is_transient(error: BaseException) -> bool:
    """Whether a failed job is worth another attempt.

    True for lost executors and Python workers, failed fetches of shuffled data, and connections refused or cut. False
    for everything else, and always for analysis errors and Python exceptions raised in a worker. What the error was
    raised from or during counts too.
    """
    check_kind("error", error, BaseException, "an exception")
    chain = list(with_causes(error))
    if any(cls.__name__ in MISTAKES for one in chain for cls in type(one).__mro__):
        return False
    return any(isinstance(one, ConnectionError) or _says_so(one) for one in chain)


def _says_so(error: BaseException) -> bool:
    if not type(error).__module__.startswith(("pyspark.", "py4j.", "grpc")):
        return False
    return any(word in cause.message for cause in causes(error) for word in WORDS)
