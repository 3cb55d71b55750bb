"""The declarations of an application over a connection, to be declared again after a recovery.

`replay` gives the declarations that were not deleted, in an order that works: exchanges, queues, bindings. A queue that
the server named, and that went with the connection, gets a new name, which takes the old one's place. `_lock`, a leaf,
guards it all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pamqp import commands

from ..._locks import Lock

_Key = tuple[object, ...]


class Declaration(NamedTuple):
    """A method that declared something, and its fields."""

    method: type[Any]
    fields: dict[str, Any]

    def __str__(self) -> str:
        named = {name: value for name, value in self.fields.items() if value not in (False, {}, None, "")}
        return f"{self.method.name}({', '.join(f'{name}={value!r}' for name, value in named.items())})"


class RecordedTopology:
    """The record of one connection, over all its channels. Any thread may call anything."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._exchanges: dict[str, Declaration] = {}
        # By the name that a queue has now. One that the server is to name anew is declared with an empty name.
        self._queues: dict[str, Declaration] = {}
        self._bindings: dict[_Key, Declaration] = {}
        self._renamed: dict[str, str] = {}

    def record(self, method: type[Any], fields: dict[str, Any], name: str = "") -> None:
        """The server agreed to this method. `name` is the server's, for a queue that was declared without one."""
        done = Declaration(method, dict(fields))
        key = _binding_key(done) if "routing_key" in fields else ()  # not in the lock: arguments are anybody's objects
        with self._lock:
            if method is commands.Exchange.Declare:
                self._exchanges[fields["exchange"]] = done
            elif method is commands.Exchange.Delete:
                exchange = fields["exchange"]
                self._exchanges.pop(exchange, None)
                self._drop_bindings_locked(("exchange", "source", "destination"), exchange)
            elif method is commands.Queue.Declare:
                if fields["queue"] == "" and not (fields["exclusive"] or fields["auto_delete"]):
                    # It outlives the connection, and only the server may declare such a name: look for it.
                    done.fields.update(queue=name, passive=True)
                self._queues[name] = done
            elif method is commands.Queue.Delete:
                self._queues.pop(fields["queue"], None)
                self._drop_bindings_locked(("queue",), fields["queue"])
            elif method in (commands.Exchange.Bind, commands.Queue.Bind):
                self._bindings[key] = done
            elif method in (commands.Exchange.Unbind, commands.Queue.Unbind):
                self._bindings.pop(key, None)

    def _drop_bindings_locked(self, ends: tuple[str, ...], name: str) -> None:
        for key, binding in list(self._bindings.items()):
            if name in [binding.fields.get(end) for end in ends]:
                del self._bindings[key]

    def current_name(self, queue: str) -> str:
        queue = plain(queue)
        if type(queue) is not str:
            return queue  # it is refused where it is sent
        with self._lock:
            while queue in self._renamed:
                queue = self._renamed[queue]
            return queue

    def replay(self, declare: Callable[[Declaration], str]) -> list[tuple[Declaration, Exception]]:
        """Declare everything again; `declare` returns the name of a queue. Returns what failed, with the errors. Called
        by one thread at a time, under no lock."""
        failures: list[tuple[Declaration, Exception]] = []
        kinds: tuple[dict[Any, Declaration], ...] = (self._exchanges, self._queues, self._bindings)
        for recorded in kinds:
            with self._lock:
                declarations = list(recorded.items())
            for old, declaration in declarations:
                try:
                    name = declare(declaration)
                except Exception as error:  # noqa: BLE001  # reported; it costs nothing else
                    failures.append((declaration, error))
                else:
                    if declaration.method is commands.Queue.Declare and declaration.fields["queue"] == "":
                        self._rename(old, name)
        return failures

    def _rename(self, old: str, name: str) -> None:
        with self._lock:
            self._renamed[old] = name
            self._queues[name] = self._queues.pop(old)
            for key, binding in list(self._bindings.items()):
                if binding.fields.get("queue") == old:
                    del self._bindings[key]
                    binding.fields["queue"] = name
                    self._bindings[_binding_key(binding)] = binding


def plain(value: Any) -> Any:
    """A string whose hash and comparison run no user code, for they run under locks; any other value as it is."""
    return str.__str__(value) if isinstance(value, str) else value


def _binding_key(binding: Declaration) -> _Key:
    """Equal for a binding and its undoing."""
    fields = binding.fields
    target = ("queue", fields["queue"]) if "queue" in fields else ("exchange", fields["destination"])
    source = fields["exchange"] if "queue" in fields else fields["source"]
    return (*target, source, fields.get("routing_key", ""), repr(sorted((fields.get("arguments") or {}).items())))
