"""What an application declared over a connection, to be declared again after a recovery.

Promise     `replay` gives what was declared and not deleted, in an order that works: exchanges, queues, bindings. A
            queue that the server named, and that went with the connection, gets a new name, which takes the old
            one's place in bindings and `current_name`.
State       `_lock` guards the three registries and the renamings. It is a leaf.
Membership  Deleting a queue or exchange deletes its bindings with it. What others delete is not seen; declaring it
            again does no harm then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

from pamqp import commands

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
        self._lock = threading.Lock()
        self._exchanges: dict[str, Declaration] = {}
        self._queues: dict[str, Declaration] = {}
        self._named_by_server: set[str] = set()
        self._bindings: dict[_Key, Declaration] = {}
        self._renamed: dict[str, str] = {}

    def record(self, method: type[Any], fields: dict[str, Any], name: str = "") -> None:
        """The server agreed to this method. `name` is what it called a queue that was declared without one."""
        recorder = self._RECORDERS.get(method)
        if recorder is not None:
            with self._lock:
                recorder(self, Declaration(method, dict(fields)), name)

    def current_name(self, queue: str) -> str:
        with self._lock:
            while queue in self._renamed:
                queue = self._renamed[queue]
            return queue

    def replay(self, declare: Callable[[Declaration], str]) -> list[tuple[Declaration, Exception]]:
        """Declare everything again; `declare` returns the name of a queue. Returns what failed, with the errors.

        Called by one thread at a time, under no lock.
        """
        failures: list[tuple[Declaration, Exception]] = []
        for declaration in self._in_order():
            try:
                name = declare(declaration)
            except Exception as error:  # noqa: BLE001  # reported; one refusal must not cost the rest
                failures.append((declaration, error))
                continue
            if declaration.method is commands.Queue.Declare and declaration.fields["queue"] == "":
                self._renew_name(declaration, name)
        return failures

    def _in_order(self) -> Iterator[Declaration]:
        with self._lock:
            exchanges = list(self._exchanges.values())
            queues = [
                Declaration(each.method, each.fields | {"queue": ""}) if name in self._named_by_server else each
                for name, each in self._queues.items()
            ]
            self._old_names = [name for name in self._queues if name in self._named_by_server]
        yield from exchanges
        yield from queues
        with self._lock:
            bindings = list(self._bindings.values())
        yield from bindings

    def _renew_name(self, declaration: Declaration, name: str) -> None:
        with self._lock:
            old = self._old_names.pop(0)
            self._renamed[old] = name
            self._queues[name] = self._queues.pop(old)
            self._named_by_server.discard(old)
            self._named_by_server.add(name)
            for key, binding in list(self._bindings.items()):
                if binding.fields.get("queue") == old:
                    del self._bindings[key]
                    renewed = Declaration(binding.method, binding.fields | {"queue": name})
                    self._bindings[_binding_key(renewed)] = renewed

    # ---- recorders, with the lock held --------------------------------------------------------------------------

    def _declare_exchange(self, declared: Declaration, name: str) -> None:
        self._exchanges[declared.fields["exchange"]] = declared

    def _delete_exchange(self, deleted: Declaration, name: str) -> None:
        exchange = deleted.fields["exchange"]
        self._exchanges.pop(exchange, None)
        self._drop_bindings(lambda fields: exchange in (fields.get("exchange"), *_ends(fields)))

    def _declare_queue(self, declared: Declaration, name: str) -> None:
        if declared.fields["queue"] == "":
            if declared.fields["exclusive"] or declared.fields["auto_delete"]:
                self._named_by_server.add(name)
            else:  # it outlives the connection, and only the server may declare such a name: look for it
                declared = Declaration(declared.method, declared.fields | {"queue": name, "passive": True})
        self._queues[name] = declared

    def _delete_queue(self, deleted: Declaration, name: str) -> None:
        self._drop_queue(deleted.fields["queue"])

    def _drop_queue(self, name: str) -> None:
        self._queues.pop(name, None)
        self._named_by_server.discard(name)
        self._drop_bindings(lambda fields: fields.get("queue") == name)

    def _bind(self, bound: Declaration, name: str) -> None:
        self._bindings[_binding_key(bound)] = bound

    def _unbind(self, unbound: Declaration, name: str) -> None:
        self._bindings.pop(_binding_key(unbound), None)

    def _drop_bindings(self, matches: Callable[[dict[str, Any]], bool]) -> None:
        for key, binding in list(self._bindings.items()):
            if matches(binding.fields):
                del self._bindings[key]

    _RECORDERS: ClassVar[dict[type[Any], Callable[[RecordedTopology, Declaration, str], None]]] = {
        commands.Exchange.Declare: _declare_exchange,
        commands.Exchange.Delete: _delete_exchange,
        commands.Exchange.Bind: _bind,
        commands.Exchange.Unbind: _unbind,
        commands.Queue.Declare: _declare_queue,
        commands.Queue.Delete: _delete_queue,
        commands.Queue.Bind: _bind,
        commands.Queue.Unbind: _unbind,
    }


def _ends(fields: dict[str, Any]) -> tuple[Any, Any]:
    return fields.get("source"), fields.get("destination")


def _binding_key(binding: Declaration) -> _Key:
    """Equal for a binding and its undoing."""
    fields = binding.fields
    target = ("queue", fields["queue"]) if "queue" in fields else ("exchange", fields["destination"])
    source = fields["exchange"] if "queue" in fields else fields["source"]
    return (*target, source, fields.get("routing_key", ""), repr(sorted((fields.get("arguments") or {}).items())))
