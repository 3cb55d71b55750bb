"""A call: a method that the server answers, and the thread that waits for the answer.

State       `answer`, `content` and `error` are written before `_gate` is released, by one thread, and read after it has
            been acquired, by the caller.
Lock order  `_gate` is no lock but a place to wait: nothing is taken while it is held.
Waiting     The caller waits on a lock that is acquired when the call is made; whoever brings an answer or an error
            releases it, once: `give` and `fail` are called by whoever took the call out of its channel, under its lock.
"""

from __future__ import annotations

import threading
from typing import Any


class Call:
    """What one thread waits for. `expected` are the methods that can answer it."""

    __slots__ = ("_gate", "answer", "auto_ack", "content", "error", "expected")

    def __init__(self, *expected: type[Any]) -> None:
        self.expected = expected
        self.answer: Any = None
        self.content: Any = None
        self.auto_ack = True  # of a get: whether the message that answers it needs no settling
        self.error: Exception | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def give(self, answer: Any, content: Any = None) -> None:
        """The answer is there."""
        self.answer = answer
        self.content = content
        self._gate.release()

    def fail(self, error: Exception) -> None:
        """There will be no answer."""
        self.error = error
        self._gate.release()

    def wait(self, timeout: float) -> bool:
        """Block until there is an answer or an error; False when the time is up."""
        return self._gate.acquire(timeout=max(timeout, 0.0))
