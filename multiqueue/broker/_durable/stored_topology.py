"""A topology whose durable part a store keeps.

Promise     A queue, exchange or binding exists after the next opening once its `add_queue`, `add_exchange` or `bind`
            has returned, and none that was taken out before `wait_for_commits` returned. A change that the store
            refuses is undone, and raises; one that takes out is made all the same, and the store is asked again.
State       `_order` is held while a change is made and handed to the store, so that definitions are committed in the
            order in which they came about. `_latest`, guarded by it, is the commit of the latest change.
Lock order  `_order` -> the topology's; `_order` -> the store's. Definitions bring no message, so handing them in waits
            for nothing. Commits are waited for with no lock held.
Who runs    As `Topology`; but a call that adds waits for its commit. On the store's thread, and `without_waiting`, it
            does not, and the store's thread undoes a change that is refused.
Documents   are JSON, see `_base/json_values`. A queue's has its number in the store and of its settings what differs
            from the usual, so a setting that is added later has its usual value in queues that were declared before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from multiqueue._carried import check_value, short_string
from multiqueue.store import Commit, Define, Definition, DropQueue, Level, Operation, StoreDamaged, StoreFull, Undefine

from ..._locks import Lock
from .._base.errors import PreconditionFailed
from .._base.fair_options import FairOptions
from .._base.json_values import dump, load
from .._base.settings import (
    AlertThresholds,
    DelayedRetry,
    DeliveryCounting,
    MessageGroups,
    Overflow,
    QueueKind,
    QueueSettings,
)
from .._base.waits import here
from .._queue.queue import BrokerQueue
from .._routing.exchange import DEFAULT_EXCHANGE, Binding, Destination, Exchange, binding_condition
from .._routing.topology import Declared, DeclaredQueue, Topology
from .journal import Journal, follow

EXCHANGE, QUEUE, BINDING = "exchange", "queue", "binding"
_OF_EXCHANGE: Final = ("type", "auto_delete", "internal", "arguments", "alternate")
_ENUMS: Final[Mapping[str, type[Enum]]] = {
    "kind": QueueKind,
    "overflow": Overflow,
    "groups": MessageGroups,
    "delivery_counting": DeliveryCounting,
    "delayed_retry": DelayedRetry,
}
_OUR_KINDS: Final = frozenset(kind.value for kind in QueueKind)
_USUAL: Final = {field.name: field.default for field in fields(QueueSettings)}

_Found = TypeVar("_Found")


class StoredTopology(Topology):
    """The topology of a virtual host with a store. Made empty; `recover` fills it before anybody sees it."""

    def __init__(self, virtual_host: str, journal: Journal) -> None:
        super().__init__(virtual_host)
        self._journal = journal
        self._order = Lock()
        self._latest: Commit | None = None
        self._is_recovering = True  # what is added now came from the store

    def recover(self, make_queue: Callable[[KeptQueue], BrokerQueue]) -> None:
        """Make exchanges, queues, bindings and messages of what the store has, on the thread that makes the host.

        What a crash left half deleted, the messages of a queue without a definition, is deleted now. Raises
        StoreDamaged if a definition cannot be read.
        """
        store = self._journal.store
        kept: dict[str, list[Definition]] = defaultdict(list)
        for definition in store.definitions():
            kept[definition.kind].append(definition)
        for definition in kept[EXCHANGE]:
            with _readable(definition):
                document = {"arguments": {}, **_document_of(definition)}
                _check(definition.key, document["arguments"])
                self.add_exchange(Exchange(definition.key, durable=True, **document))
        default = self._exchanges[DEFAULT_EXCHANGE]
        queues: dict[int, BrokerQueue] = {}
        for definition in kept[QUEUE]:
            each = queue_from(definition)
            queue = queues[each.number] = make_queue(each)
            for name, own in each.tenants.items():
                queue.change_tenant(name, own)
            self.add_queue(DeclaredQueue(queue, each.arguments), default)
        for definition in kept[BINDING]:
            with _readable(definition):
                self._recover_binding(*load(definition.document))  # type: ignore[misc] # as `_place_of` wrote it
        self._is_recovering = False
        levels: dict[int, list[Level]] = defaultdict(list)
        for level in store.levels():
            levels[level.queue].append(level)
        if orphans := [DropQueue(number) for number in levels if number not in queues]:
            store.submit(orphans)
        for number, queue in queues.items():
            queue.life.recover(sorted(levels[number], key=lambda level: level.level))

    def _recover_binding(
        self, source: str, destination: str, to_queue: bool, routing_key: str, arguments: Mapping[str, object]
    ) -> None:
        start = self.find_exchange(source)
        found = self.find_queue(destination) if to_queue else self.find_exchange(destination)
        end = found.queue if isinstance(found, DeclaredQueue) else found
        if start is not None and end is not None:
            _check(routing_key, arguments)
            self.bind(Binding(start, end, routing_key, arguments, binding_condition(start, arguments)))

    def add_exchange(self, exchange: Exchange) -> Exchange:
        add = partial(super().add_exchange, exchange)
        return self._add(exchange, add, lambda: self.remove_exchange(exchange))

    def add_queue(self, declared: DeclaredQueue, default: Exchange) -> DeclaredQueue:
        declared.queue.keep_tenants = partial(self._keep_again, declared)
        return self._add(declared, partial(super().add_queue, declared, default), declared.queue.delete)

    def bind(self, binding: Binding) -> Binding | None:
        undo = partial(self.unbind, binding.source, binding.identity)
        return self._add(binding, partial(super().bind, binding), undo)

    def _add(self, new: Declared, add: Callable[[], _Found], undo: Callable[[], object]) -> _Found:
        """Add it, unless there is such a thing, and wait for its commit. What the store refuses is undone."""
        try:
            define = None if self._is_recovering or not is_kept(new) else definition_of(new)
        except TypeError as error:
            raise PreconditionFailed(f"invalid argument in vhost '{self.virtual_host}': {error}") from error
        with self._order:
            found = add()
            if define is None or found is not new:
                return found
            commit = self._latest = self._journal.submit([define])
        self._wait_for(commit, undo)
        return found

    def _wait_for(self, commit: Commit, undo: Callable[[], object]) -> None:
        """Wait for the commit of a change, or have the caller's wait put off. What the store refuses is undone."""
        if here.put_off is not None or not self._journal.may_wait:
            commit.add_done_callback(lambda error: follow(undo) if isinstance(error, StoreFull) else None)
            if here.put_off is not None:
                here.put_off.commit, here.put_off.is_own = commit, True
            return
        try:
            commit.wait()
        except StoreFull:
            undo()
            raise

    def _keep_again(self, declared: DeclaredQueue, undo: Callable[[], object]) -> None:
        """Have the store keep what was changed of a queue's tenants, and wait for that."""
        with self._order:
            if not is_kept(declared) or self.find_queue(declared.name) is not declared:
                return
            commit = self._latest = self._journal.submit([definition_of(declared)])
        self._wait_for(commit, undo)

    @contextmanager
    def _removing(self) -> Iterator[list[Declared]]:
        with self._order:
            with super()._removing() as gone:
                yield gone
            operations: list[Operation] = []
            for each in filter(is_kept, gone):
                operations.append(Undefine(*_place_of(each)))
                if isinstance(each, DeclaredQueue):
                    operations.append(DropQueue(each.queue.store_number))
            self._forget_locked(operations)

    def _forget_locked(self, operations: list[Operation]) -> None:
        """Have the store forget what is gone. What it has no room to forget now, it is asked to once more later."""

        def failed(error: BaseException) -> None:
            if isinstance(error, StoreFull):
                self._journal.owe(partial(self._forget_again, operations), error)

        if operations:
            # A virtual host whose store is at its end refuses everything; what is gone here comes back with it.
            self._latest = self._journal.submit_if_open(operations, failed) or self._latest

    def _forget_again(self, operations: list[Operation]) -> None:
        """All but the names that have been declared anew since."""
        with self._order:
            declared: list[Declared] = [*self.exchanges(), *self.queues(), *self.bindings()]
            places = {_place_of(each) for each in declared if is_kept(each)}
            self._forget_locked([one for one in operations if not (isinstance(one, Undefine) and one in places)])

    def wait_for_commits(self) -> None:
        """Block until every earlier change is committed, or was refused. Raises as `Verbs.wait_for_commits`."""
        if not self._journal.may_wait:
            return
        with self._order:  # a change that is seen already may still be on its way to the store
            commit = self._latest
        if commit is None:
            return
        if here.put_off is not None and not commit.is_done:
            here.put_off.commit = here.put_off.commit or commit
            return
        with suppress(StoreFull):  # of somebody else's change, which is undone
            commit.wait()
        self._journal.check()


class KeptQueue(NamedTuple):
    name: str
    number: int
    settings: QueueSettings
    arguments: Mapping[str, object]
    tenants: Mapping[str, Mapping[str, object]]


def is_kept(declared: Declared | Destination) -> bool:
    """True for what a store keeps. Exchanges that every virtual host has are there anyway."""
    if isinstance(declared, Binding):
        return declared.source.name != "" and is_kept(declared.source) and is_kept(declared.destination)
    if isinstance(declared, Exchange):
        return declared.durable
    return (declared.queue if isinstance(declared, DeclaredQueue) else declared).is_stored


def definition_of(declared: Declared) -> Define:
    """The definition of something that is kept."""
    kind, key = _place_of(declared)
    if isinstance(declared, Binding):
        return Define(kind, key, key)
    if isinstance(declared, Exchange):
        return Define(kind, key, dump({name: getattr(declared, name) for name in _OF_EXCHANGE}))
    settings = {name: getattr(declared.queue.settings, name) for name in _USUAL}
    differing = {name: _plain(value) for name, value in settings.items() if value != _USUAL[name]}
    document = {"number": declared.queue.store_number, "settings": differing, "arguments": declared.arguments}
    if declared.queue.life.changed_tenants:
        document["tenants"] = dict(declared.queue.life.changed_tenants)
    return Define(kind, key, dump(document))


def queue_from(definition: Definition) -> KeptQueue:
    with _readable(definition):
        document = _document_of(definition)
        _check(definition.key, document["arguments"])
        settings = _settings_in(document["settings"])
        tenants = document.get("tenants", {})
        for name, own in tenants.items():
            FairOptions.of(settings.kind_options).options_of(name, own)
        return KeptQueue(definition.key, document["number"], settings, document["arguments"], tenants)


@contextmanager
def _readable(definition: Definition) -> Iterator[None]:
    """Raises StoreDamaged, with its name, for a definition that no declaration has made: of an edited dump, say."""
    try:
        yield
    except (ValueError, TypeError, KeyError, PreconditionFailed) as error:
        what = f"the definition of {definition.kind} {definition.key!r}"
        raise StoreDamaged(f"{what} is none that a declaration stores: {error}") from error


def _check(name: str, arguments: object) -> None:
    """Raises ValueError, TypeError: AMQP cannot carry it, so nothing could show it."""
    short_string(name)
    check_value(arguments)


def _place_of(declared: Declared) -> tuple[str, str]:
    if isinstance(declared, Binding):
        to_queue = not isinstance(declared.destination, Exchange)
        names = (declared.source.name, declared.destination.name, to_queue)
        return BINDING, dump([*names, declared.routing_key, dict(sorted(declared.arguments.items()))])
    return EXCHANGE if isinstance(declared, Exchange) else QUEUE, declared.name


def _document_of(definition: Definition) -> dict[str, Any]:
    try:
        document = load(definition.document)
    except ValueError as error:
        raise StoreDamaged(f"the definition of {definition.kind} '{definition.key}' is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise StoreDamaged(f"the definition of {definition.kind} '{definition.key}' is not a JSON object")
    return document


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else asdict(value) if isinstance(value, AlertThresholds) else value


def _settings_in(document: Mapping[str, Any]) -> QueueSettings:
    values = dict(document)
    for name, enum in _ENUMS.items():
        if name in values and not (name == "kind" and values[name] not in _OUR_KINDS):  # then it is a program's own
            values[name] = enum(values[name])
    if values.get("alerts") is not None:
        values["alerts"] = AlertThresholds(**values["alerts"])
    return QueueSettings(**values)
