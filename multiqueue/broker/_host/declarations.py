"""Declarations in a virtual host, and their rules: RabbitMQ's, for names, equivalence and refusals.

Promise     A call that raises has changed nothing. Declaring an existing thing the same way, binding twice, deleting or
            unbinding a missing thing: all of that is no error.
Membership  A queue may delete itself (auto-delete, expiry) at any moment: see "Declaring, and the moment of dying" in
            docs/design/broker-front.md.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from typing import NoReturn

from multiqueue._carried import short_string

from .._base.errors import AccessRefused, NotFound, PreconditionFailed, ResourceLocked
from .._base.message import plain_name
from .._base.settings import QueueSettings
from .._queue.queue import BrokerQueue
from .._routing.arguments import (
    ALTERNATE_EXCHANGE,
    alternate_exchange,
    arguments_of,
    assert_same,
    assert_same_arguments,
    assert_same_queue,
    assert_same_settings,
    checked_arguments,
    queue_settings,
)
from .._routing.compat import Compat, Table
from .._routing.exchange import (
    DEFAULT_EXCHANGE,
    Binding,
    Destination,
    Exchange,
    HashRing,
    binding_condition,
    identity_of,
    ring_weight,
)
from .._routing.topology import DeclaredQueue, Topology
from .host_limits import HostLimits
from .host_metadata import KeptMetadata
from .host_state import HostState
from .policies import Policies

RESERVED_PREFIX = "amq."
GENERATED_PREFIX = "amq.gen-"

# RabbitMQ's, for what its tracing shows. Programs look for it; a publish to it is refused.
TRACE_EXCHANGE = "amq.rabbitmq.trace"
PREDECLARED = {
    DEFAULT_EXCHANGE: "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    TRACE_EXCHANGE: "topic",
}

MakeQueue = Callable[[str, QueueSettings], BrokerQueue]


class Declarations:
    """The exchanges, queues and bindings of one virtual host. Any thread may call anything.

    Nothing blocks, but with a store a call that declares, binds or deletes waits for the commit,
    unless it is made `without_waiting`. A change that a full store refuses (`StoreFull`) is undone.

    An `owner` stands for a connection: an exclusive queue belongs to the one that declared it. Without an owner it
    is this process's own.
    """

    def __init__(
        self,
        topology: Topology,
        make_queue: MakeQueue,
        host_state: HostState,
        compat: Compat,
        policies: Policies,
        limits: HostLimits,
        metadata: KeptMetadata,
    ) -> None:
        self._name = topology.virtual_host
        self.compat = compat
        self._topology = topology
        self._make_queue = make_queue
        self.policies: Policies = policies
        self.limits: HostLimits = limits
        self.metadata: KeptMetadata = metadata
        # Last: a broker gets the parts of a virtual host that is open again while calls ask the state of the old one.
        self._host_state = host_state

    # Exchanges

    def declare_exchange(
        self,
        name: str,
        type: str = "direct",
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        passive: bool = False,
        arguments: Table | None = None,
    ) -> Exchange:
        """The exchange of this name, created if it does not exist; `passive` only looks.

        Raises:
            NotFound: `passive`, and it does not exist.
            AccessRefused: the default exchange, or a new name that is reserved.
            PreconditionFailed: there is one that differs, or the type is unknown.
        """
        self._host_state.check()
        self._refuse_default(plain_name("an exchange's name", name))
        if passive:
            return self._exchange(name)
        what = self._label("exchange", name)
        arguments = checked_arguments(what, arguments)
        self.compat.check_exchange(what, plain_name("an exchange's type", type), arguments)
        flags = {"durable": durable, "auto_delete": auto_delete, "internal": internal}
        found = self._topology.find_exchange(name)
        if found is None:
            _check_new_name("exchange", name)
            alternate = alternate_exchange(what, arguments)
            new = Exchange(name, type, **flags, arguments=arguments, alternate=alternate)
            self.policies.apply_if_any(new)  # before anybody finds it
            found = self._topology.add_exchange(new)
            self.policies.apply_if_any(found)  # as they are by now
        for setting, received in {"type": type, **flags}.items():
            assert_same(what, setting, received, getattr(found, setting))
        assert_same_arguments(what, arguments, found.arguments, [ALTERNATE_EXCHANGE, "x-delayed-type"])
        self._wait_for_commits()
        return found

    def is_topic(self, exchange: str) -> bool:
        """True if there is an exchange of this name, and its type is `topic`."""
        found = self._topology.find_exchange(exchange)
        return found is not None and found.type == "topic"

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> bool:
        """Delete an exchange with its bindings; False when there was none.

        Raises:
            AccessRefused: the default exchange, or a reserved name.
            PreconditionFailed: `if_unused`, and it has bindings.
        """
        self._host_state.check()
        self._refuse_default(plain_name("an exchange's name", name))
        _refuse_reserved("exchange", name)
        exchange = self._topology.find_exchange(name)
        if exchange is None:
            return False
        if not self._topology.remove_exchange(exchange, if_unused=if_unused):
            raise PreconditionFailed(f"{self._label('exchange', name)} in use")
        self._wait_for_commits()
        return True

    # Queues

    def declare_queue(
        self,
        name: str = "",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        arguments: Table | None = None,
        settings: QueueSettings | None = None,
        owner: object = None,
        is_restored: bool = False,
    ) -> BrokerQueue:
        """The queue of this name, created if it does not exist; without a name, a new one; `passive` only looks.

        Describe it by flags and arguments, as over a wire, or by `settings` alone. One that `is_restored`
        may have a name that a broker has given to it.

        Raises:
            NotFound: `passive`, and it does not exist.
            AccessRefused: a reserved name.
            ResourceLocked: it is exclusive, and belongs to another owner.
            PreconditionFailed: there is one that differs, or an argument does not fit.
            ValueError: both settings and flags or arguments.
        """
        self._host_state.check()
        if passive:
            queue = self.queue(name, owner=owner)
            queue.touch()
            return queue
        asked_name = name
        if is_restored and isinstance(name, str) and name.startswith(GENERATED_PREFIX):
            _check_text("queue name", name)
        elif name != "":
            _check_new_name("queue", name)
        else:
            # 128 random bits, written as RabbitMQ writes them: no other queue has the name.
            name = GENERATED_PREFIX + base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()
        what = self._label("queue", name)
        given = checked_arguments(what, arguments)
        if not isinstance(settings, QueueSettings | None):
            raise TypeError(f"{what}: the settings are {settings!r}; QueueSettings are needed")
        if settings is None:
            flags = {"durable": durable, "exclusive": exclusive, "auto_delete": auto_delete}
            given = self.metadata.get().with_type(given, **flags)
            if (found := self._topology.find_queue(name)) is not None and not found.queue.is_deleted:
                # What differs is told before what is wrong, as RabbitMQ does; what is the same is right.
                self._assert_alike(found, **flags, owner=owner)
                assert_same_queue(what, given, found.arguments, self.compat)
                return self._found(found)
            settings = queue_settings(what, given, **flags, compat=self.compat)
            self.compat.check_named(asked_name, settings.type)
        elif given or durable or exclusive or auto_delete:
            raise ValueError("settings replace flags and arguments; leave those out")
        else:
            return self._declare(name, settings, None, owner)
        return self._declare(name, settings, given, owner)

    def _declare(self, name: str, settings: QueueSettings, arguments: Table | None, owner: object) -> BrokerQueue:
        """Without arguments the settings are compared alone."""
        while True:
            found = self._topology.find_queue(name)
            if found is None:
                if self.limits.most("max-queues") is not None:
                    self.limits.check_queues(f"queue '{name}'", self._name, len(self._topology.queues()))
                belongs_to = (owner or self._host_state) if settings.exclusive else None
                shown = arguments_of(settings) if arguments is None else arguments
                declared = DeclaredQueue(self._make_queue(name, settings), shown, belongs_to)
                self.policies.apply_if_any(declared)  # as for an exchange
                found = self._topology.add_queue(declared, self._exchange(DEFAULT_EXCHANGE))
                if found is declared:
                    self.policies.apply_if_any(found)
                    self._host_state.past.declared(is_new=True)
                    if self._host_state.is_closed:  # since `check`, and `close` has not seen this queue in its list
                        found.queue.delete()
                        self._host_state.check()
                    if found.queue.is_deleted:
                        found.queue.check_open()
                        self._topology.remove_queue(found.queue)  # it may have expired before it had its name
                    return found.queue
                declared.queue.delete()  # another thread's came first
            if not found.queue.is_deleted:
                flags = {each: getattr(settings, each) for each in ("durable", "exclusive", "auto_delete")}
                self._assert_alike(found, **flags, owner=owner)
                what = self._label("queue", name)
                if arguments is not None:
                    # What follows from them may differ from what it was by the rules of another version.
                    assert_same_queue(what, arguments, found.arguments, self.compat)
                else:
                    assert_same_settings(what, settings, found.queue.settings)
                return self._found(found)
            self._host_state.check()  # or a queue would be forgotten that is closed, and its messages with it
            self._topology.remove_queue(found.queue)

    def _found(self, found: DeclaredQueue) -> BrokerQueue:
        found.queue.touch()
        self._wait_for_commits()
        self._host_state.past.declared(is_new=False)
        return found.queue

    def _assert_alike(
        self, found: DeclaredQueue, *, durable: bool, exclusive: bool, auto_delete: bool, owner: object
    ) -> None:
        what = self._label("queue", found.name)
        current = found.queue.settings
        if exclusive != current.exclusive:
            self._refuse_locked(found.name)
        self._check_access(found, owner)
        assert_same(what, "durable", durable, current.durable)
        assert_same(what, "auto_delete", auto_delete, current.auto_delete)

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False, owner: object = None) -> int:
        """Delete a queue and its messages; returns how many were ready, or 0.

        Raises:
            ResourceLocked: it is exclusive, and belongs to another owner.
            PreconditionFailed: `if_unused` and it has consumers, or `if_empty` and it has messages.
        """
        self._host_state.check()
        found = self._topology.find_queue(name)
        if found is None:
            return 0
        self._check_access(found, owner)
        self.compat.check_deletion(found.queue.label, found.queue.settings.type, if_unused=if_unused, if_empty=if_empty)
        deleted = found.queue.delete(if_unused=if_unused, if_empty=if_empty)
        self._wait_for_commits()
        return deleted

    def queue(self, name: str, *, owner: object = None) -> BrokerQueue:
        """The queue of this name.

        Raises:
            NotFound: no queue has this name.
            ResourceLocked: it is exclusive, and belongs to another owner.
        """
        self._host_state.check()
        found = self._topology.find_queue(name)
        if found is None or found.queue.is_deleted:
            self._host_state.check()  # it may be closed since: then it is not gone
            raise NotFound(f"no {self._label('queue', name)}")
        if found.owner is not None:
            self._check_access(found, owner)
        return found.queue

    # Bindings

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Table | None = None, *, owner: object = None
    ) -> None:
        """Let messages of the exchange that match reach the queue; binding twice is binding once.

        Raises:
            NotFound: one of the two is not there.
            AccessRefused: the default exchange, to which every queue is bound by its name.
            ResourceLocked: the queue belongs to another owner.
            PreconditionFailed, SelectorError: an argument does not fit.
        """
        self._bind(lambda: self.queue(queue, owner=owner), exchange, routing_key, arguments)

    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Table | None = None
    ) -> None:
        """Let messages of `source` that match reach `destination`, another exchange. Raises as `bind_queue`."""
        self._refuse_default(destination)
        self._bind(lambda: self._exchange(destination), source, routing_key, arguments)

    def _bind(self, end: Callable[[], Destination], exchange: str, key: str, arguments: Table | None) -> None:
        self._host_state.check()
        self._refuse_default(exchange)
        _check_text(f"routing key of a binding from exchange '{exchange}'", key)
        arguments = checked_arguments(f"a binding from exchange '{exchange}'", arguments)
        while True:  # until both ends are still there at the moment of binding, or one is missed by name
            source, destination = self._exchange(exchange), end()  # the source is missed first, as by RabbitMQ
            if isinstance(source.matcher, HashRing):
                ring_weight(key)
            kind = destination.settings.type if isinstance(destination, BrokerQueue) else None
            self.compat.check_binding(source.type, key, kind)
            condition = binding_condition(source, arguments)
            if self._topology.bind(Binding(source, destination, key, arguments, condition)):
                self._wait_for_commits()
                return

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Table | None = None, *, owner: object = None
    ) -> bool:
        """Undo a `bind_queue` with the same parts; False when there was no such binding.

        Raises:
            AccessRefused: the default exchange.
            ResourceLocked: there is such a binding, and the queue belongs to another owner.
        """
        return self._unbind(self._topology.find_queue(queue), exchange, routing_key, arguments, owner)

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Table | None = None
    ) -> bool:
        """Undo a `bind_exchange` with the same parts; False when there was no such binding."""
        return self._unbind(self._topology.find_exchange(destination), source, routing_key, arguments, None)

    def _unbind(
        self, end: DeclaredQueue | Exchange | None, exchange: str, key: str, arguments: Table | None, owner: object
    ) -> bool:
        self._host_state.check()
        self._refuse_default(exchange)
        plain_name("a routing key", key)
        source = self._topology.find_exchange(exchange)
        if source is None or end is None:
            return False
        destination = end.queue if isinstance(end, DeclaredQueue) else end
        arguments = checked_arguments(f"a binding from exchange '{exchange}'", arguments)
        identity = identity_of(source, destination, key, arguments)
        if not self._topology.is_bound(source, identity):
            return False
        if isinstance(end, DeclaredQueue):
            self._check_access(end, owner)
        found = self._topology.unbind(source, identity)
        self._wait_for_commits()
        return found

    # Details

    def _wait_for_commits(self) -> None:
        self._topology.wait_for_commits()
        self._host_state.check()  # what a store that is closed meanwhile was not told comes back with it

    def _exchange(self, name: str) -> Exchange:
        exchange = self._topology.find_exchange(name)
        if exchange is None:
            raise NotFound(f"no {self._label('exchange', name)}")
        return exchange

    def _label(self, kind: str, name: str) -> str:
        return f"{kind} '{name}' in vhost '{self._name}'"

    def _refuse_default(self, exchange: str) -> None:
        if exchange == DEFAULT_EXCHANGE:
            raise AccessRefused("operation not permitted on the default exchange")

    def _check_access(self, declared: DeclaredQueue, owner: object) -> None:
        if declared.owner is not None and declared.owner is not (owner or self._host_state):
            self._refuse_locked(declared.name)

    def _refuse_locked(self, queue: str) -> NoReturn:
        raise ResourceLocked(
            f"cannot obtain exclusive access to locked {self._label('queue', queue)}. It could be originally"
            " declared on another connection or the exclusive property value does not match that of the"
            " original declaration."
        )


def _check_new_name(kind: str, name: str) -> None:
    _check_text(f"{kind} name", name)
    _refuse_reserved(kind, name)


def _check_text(what: str, text: str) -> None:
    """Nothing, for a name or routing key that AMQP can carry. Raises PreconditionFailed; TypeError: it is no string."""
    try:
        short_string(text)
    except ValueError as error:
        raise PreconditionFailed(f"{what}: {error}") from None
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None


def _refuse_reserved(kind: str, name: str) -> None:
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
