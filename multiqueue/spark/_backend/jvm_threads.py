"""JVM threads that outlive the Python threads they were made for.

Py4J has a connection for each Python thread, and the JVM a thread for each connection. To make the two costs more than
all that is asked of Spark for an item; so an item's connection, and with it the JVM's thread, goes to a later item.

Promise     A connection is in the hands of one Python thread at a time. It is kept only after a call that returned: one
            that was left by an exception may be in the middle of an answer. A JVM thread still has all that Spark keeps
            for it: who borrows a thread replaces it.
State       `_idle`, a deque: connections that no thread has, each with what it was given back with: the JVM's thread.
            `_own.connection` keeps a borrowed one alive, because py4j refers to it only from a list, from which the
            thread that had it before may yet remove it: 1. a thread gives its connection back; 2. another borrows and
            uses it; 3. the first ends, and py4j strikes its connection off the list.
Membership  A connection leaves its thread before it is idle: callbacks that call Spark afterwards get a new one.
            Idle connections are closed by being forgotten, at the latest with the dispatcher.
Assumes     `get_thread_connection`, `set_thread_connection` and `thread_connection` of py4j's client. Where they are
            missing nothing is kept.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any


class JvmThreads:
    """The idle ones of one `SparkContext`. From any thread."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._idle: deque[tuple[Any, Any]] = deque()
        self._own = threading.local()

    def borrow(self) -> Any:
        """Pin this thread to an idle JVM thread, if there is one; as what it was given back.

        Else py4j makes one at the first call.
        """
        try:
            connection, java_thread = self._idle.pop()  # the last one is the warmest
        except IndexError:
            return None
        self._own.connection = connection
        self._client.set_thread_connection(connection)
        return java_thread

    def give_back(self, java_thread: Any = None) -> None:
        """Keep the JVM thread that this thread is pinned to. A further call from here would be pinned to another."""
        try:
            client = self._client
            connection = client.get_thread_connection()
            if connection is not None and connection.socket is not None:
                client.thread_connection.connection = None
                self._idle.append((connection, java_thread))
        except AttributeError:
            pass  # another py4j

    def forget(self) -> None:
        """Let the idle ones end."""
        self._idle.clear()

    @property
    def _client(self) -> Any:
        return self._context._gateway._gateway_client
