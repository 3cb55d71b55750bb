"""Changes over HTTP: declare, bind, delete, purge, publish, get, move, close; users and permissions.

Who runs    Any thread of the HTTP server's pool; a handler that waits for a commit waits there, and holds up no other.
Rights      As over AMQP: the user's permissions decide about queues and exchanges, the tag `administrator` about users,
            permissions, virtual hosts and definitions.
"""

from __future__ import annotations

import logging
import os
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from ...amqp import (
    Access,
    FixedUser,
    Permissions,
    Rights,
    Server,
    hash_password,
    rights_for_exchange,
    rights_for_queue,
)
from ...broker import AccessRefused, Broker, BrokerError, NotFound, VirtualHost
from .._base.errors import Refused, bad_request, not_authorised, not_found
from .._door.access import check_key, check_right
from .._figures.sampler import Sampler
from .asking import Answer, Ask, Table, host_of
from .bodies import (
    BINDING,
    EXCHANGE,
    GET,
    HOST,
    MOVE,
    PEEK,
    PERMISSIONS,
    PUBLISH,
    QUEUE,
    TENANT,
    USER,
    USERS,
    definitions,
    read_body,
)
from .definitions import Import, export_definitions, export_host, metadata_from, password_hash_of, user_named
from .limits import LimitRequests
from .messages import get_messages, peek_messages, publish
from .parameters import ParameterRequests
from .policies import PolicyRequests
from .reading import binding_of, default_name
from .views import properties_key

_log = logging.getLogger("multiqueue.monitor")
_DONE = Answer(204)
_CLOSED = "Closed via management plugin"  # RabbitMQ's words, where the request has no header X-Reason
_CALLBACKS = 10.0  # seconds for callbacks that run in a virtual host when it is deleted


class Writing:
    """The changes to one broker."""

    def __init__(
        self, broker: Broker, server: Server | None, access: Access, sampler: Sampler, *, version: str
    ) -> None:
        self._broker = broker
        self._server = server
        self._access = access
        self._sampler = sampler
        self._version = version

    def add_to(self, table: Table) -> None:
        """Answer what changes something."""
        for method, path, handler, *body in (
            ("PUT", "/api/queues/{vhost}/{queue}", self.put_queue, QUEUE),
            ("DELETE", "/api/queues/{vhost}/{queue}", self.delete_queue),
            ("DELETE", "/api/queues/{vhost}/{queue}/contents", self.purge),
            ("POST", "/api/queues/{vhost}/{queue}/get", self.get, GET),
            ("GET", "/api/queues/{vhost}/{queue}/messages", self.peek, PEEK),
            ("POST", "/api/queues/{vhost}/{queue}/move", self.move, MOVE),
            # Without a name it is the tenant whose name is empty.
            ("PUT", "/api/queues/{vhost}/{queue}/tenants", self.put_tenant, TENANT),
            ("DELETE", "/api/queues/{vhost}/{queue}/tenants", self.reset_tenant),
            ("PUT", "/api/queues/{vhost}/{queue}/tenants/{tenant}", self.put_tenant, TENANT),
            ("DELETE", "/api/queues/{vhost}/{queue}/tenants/{tenant}", self.reset_tenant),
            ("PUT", "/api/exchanges/{vhost}/{exchange}", self.put_exchange, EXCHANGE),
            ("DELETE", "/api/exchanges/{vhost}/{exchange}", self.delete_exchange),
            ("POST", "/api/exchanges/{vhost}/{exchange}/publish", self.publish, PUBLISH),
            ("POST", "/api/bindings/{vhost}/e/{exchange}/q/{queue}", self.bind, BINDING),
            ("POST", "/api/bindings/{vhost}/e/{exchange}/e/{destination}", self.bind, BINDING),
            ("DELETE", "/api/bindings/{vhost}/e/{exchange}/q/{queue}/{props}", self.unbind),
            ("DELETE", "/api/bindings/{vhost}/e/{exchange}/e/{destination}/{props}", self.unbind),
            ("DELETE", "/api/connections/{name}", self.close_connection),
            ("DELETE", "/api/connections/username/{user}", self.close_connections_of),
            ("GET", "/api/aliveness-test/{vhost}", self.aliveness),
            ("POST", "/api/rebalance/queues", self.rebalance),
            ("PUT", "/api/vhosts/{vhost}", self.put_host, HOST),
            ("DELETE", "/api/vhosts/{vhost}", self.delete_host),
            ("PUT", "/api/users/{user}", self.put_user, USER),
            ("DELETE", "/api/users/{user}", self.delete_user),
            ("POST", "/api/users/bulk-delete", self.delete_users, USERS),
            ("GET", "/api/auth/hash_password/{password}", self.hash_password),
            ("PUT", "/api/permissions/{vhost}/{user}", self.put_permissions, PERMISSIONS),
            ("DELETE", "/api/permissions/{vhost}/{user}", self.delete_permissions),
            ("GET", "/api/definitions", self.export),
            ("POST", "/api/definitions", self.take_in, definitions()),
            ("GET", "/api/definitions/{vhost}", self.export_host),
            ("POST", "/api/definitions/{vhost}", self.take_in_host, definitions()),
        ):
            table.add(method, path, handler, *body)
        self.add_lists_to(table)

    def add_lists_to(self, table: Table) -> None:
        """Answer the lists of policies, limits and topic permissions."""
        for is_operators in (False, True):
            PolicyRequests(self._broker, self._sampler, is_operators=is_operators).add_to(table)
        LimitRequests(self._broker, self._access, self._keep).add_to(table)
        ParameterRequests(self._broker).add_to(table)

    # -- queues

    def put_queue(self, ask: Ask) -> Answer:
        """Declare a queue: 201 when it is new, 204 when it was there as asked."""
        host, rights = self._acting(ask)
        name, body = ask["queue"], ask.body()
        for right in rights_for_queue(host, name, body["arguments"]):
            check_right(rights, *right)
        is_new = not host.has_queue(name)
        self._do(lambda: host.declare_queue(name, **body))
        return self._changed(is_new)

    def delete_queue(self, ask: Ask) -> Answer:
        """Delete a queue; `if-empty` and `if-unused` hold it back."""
        host, rights = self._acting(ask)
        name = ask["queue"]
        check_right(rights, "configure", "queue", name)
        self._existing(host, name)
        self._do(lambda: host.delete_queue(name, if_unused=ask.flag("if-unused"), if_empty=ask.flag("if-empty")))
        return self._changed()

    def purge(self, ask: Ask) -> Answer:
        """Delete the ready messages."""
        host, rights = self._acting(ask)
        check_right(rights, "read", "queue", ask["queue"])
        self._existing(host, ask["queue"])
        self._do(lambda: host.queue(ask["queue"]).purge())
        return self._changed()

    def get(self, ask: Ask) -> Any:
        """Take messages, and settle them as asked."""
        host, rights = self._acting(ask)
        asked = ask.body()
        check_right(rights, "read", "queue", ask["queue"])
        return get_messages(host, ask["queue"], ask.hold, **asked)

    def peek(self, ask: Ask) -> Any:
        """Look at messages without taking them. RabbitMQ has no such request."""
        host, rights = self._acting(ask)
        check_right(rights, "read", "queue", ask["queue"])
        self._existing(host, ask["queue"])
        asked = read_body(ask.shape, ask.query)
        return self._do(lambda: peek_messages(host, ask["queue"], ask.hold, **asked))

    def put_tenant(self, ask: Ask) -> Answer:
        """Give a tenant of a fair queue other options; missing fields stay as they are."""
        return self._change_tenant(ask, ask.json())

    def reset_tenant(self, ask: Ask) -> Answer:
        """Give a tenant of a fair queue the options of the declaration again."""
        return self._change_tenant(ask, None)

    def _change_tenant(self, ask: Ask, changes: dict[str, Any] | None) -> Answer:
        host, rights = self._acting(ask)
        check_right(rights, "configure", "queue", ask["queue"])
        self._existing(host, ask["queue"])
        name = ask.parts.get("tenant", "")
        self._do(lambda: host.queue(ask["queue"]).change_tenant(name, changes))
        return self._changed()

    def move(self, ask: Ask) -> Any:
        """Move the ready messages to the end of another queue. RabbitMQ needs a shovel for that."""
        host, rights = self._acting(ask)
        body = ask.body()
        target, count = body["to"], body["count"]
        check_right(rights, "read", "queue", ask["queue"])
        check_right(rights, "write", "exchange", "")
        self._existing(host, ask["queue"])
        if not host.has_queue(target):
            raise Refused(404, "not_found", f"no queue '{target}' in vhost '{host.name}'")
        if target == ask["queue"]:
            raise bad_request(f"queue '{target}' cannot be moved to itself")
        moved = self._do(lambda: host.queue(ask["queue"]).move_messages(host.queue(target), limit=count))
        self._sampler.expire()
        return {"moved": moved}

    # -- exchanges and bindings

    def put_exchange(self, ask: Ask) -> Answer:
        """Declare an exchange."""
        host, rights = self._acting(ask)
        name, body = ask["exchange"], ask.body()
        for right in rights_for_exchange(host, name, body["arguments"]):
            check_right(rights, *right)
        is_new = not host.has_exchange(name)
        self._do(lambda: host.declare_exchange(name, **body))
        return self._changed(is_new)

    def delete_exchange(self, ask: Ask) -> Answer:
        """Delete an exchange; `if-unused` holds it back while it has bindings."""
        host, rights = self._acting(ask)
        name = default_name(ask["exchange"])
        check_right(rights, "configure", "exchange", name)
        if not host.has_exchange(name):
            raise not_found()
        self._do(lambda: host.delete_exchange(name, if_unused=ask.flag("if-unused")))
        return self._changed()

    def publish(self, ask: Ask) -> Any:
        """Publish one message; says whether a queue has it."""
        host, rights = self._acting(ask)
        asked = ask.body()
        name = default_name(ask["exchange"])
        check_right(rights, "write", "exchange", name)
        check_key(rights, host, "write", name, asked["routing_key"])
        most = None if self._server is None else self._server.max_message_bytes
        published = publish(host, ask.caller.user.name, name, most, **asked)
        return {"routed": published.queues > 0}

    def bind(self, ask: Ask) -> Answer:
        """Bind a queue or an exchange; 201 with the place of the binding."""
        host, rights = self._acting(ask)
        body = ask.body()
        source = default_name(ask["exchange"])
        key, arguments = body["routing_key"], body["arguments"]
        destination, is_queue = self._ends(ask, rights, source)
        check_key(rights, host, "read", source, key)
        bind = host.bind_queue if is_queue else host.bind_exchange
        self._do(lambda: bind(destination, source, key, arguments))
        place = "/".join(quote(part, safe="~") for part in (destination, properties_key(key, arguments)))
        return Answer(201, None, {"location": place})

    def unbind(self, ask: Ask) -> Answer:
        """Remove one binding, named by its `properties_key`."""
        host, rights = self._acting(ask)
        source = default_name(ask["exchange"])
        destination, is_queue = self._ends(ask, rights, source)
        unbind = host.unbind_queue if is_queue else host.unbind_exchange
        each = binding_of(host, ask)
        self._do(partial(unbind, destination, source, each.routing_key, each.arguments))
        return self._changed()

    def _ends(self, ask: Ask, rights: Rights, source: str) -> tuple[str, bool]:
        is_queue = "queue" in ask.parts
        destination = ask["queue"] if is_queue else default_name(ask["destination"])
        check_right(rights, "write", "queue" if is_queue else "exchange", destination)
        check_right(rights, "read", "exchange", source)
        return destination, is_queue

    # -- connections, health

    def close_connection(self, ask: Ask) -> Answer:
        """Close a connection: one's own, or any as administrator."""
        server = self._server
        found = None if server is None else next((c for c in server.connections() if c.name == ask["name"]), None)
        if server is None or found is None:
            raise not_found()
        owner = getattr(found, "user", None)
        self._check_closes(ask, None if owner is None else owner.name)
        server.close_connection(found, ask.why or _CLOSED)
        return _DONE

    def close_connections_of(self, ask: Ask) -> Answer:
        """Close all connections of a user: one's own, or any as administrator."""
        self._check_closes(ask, ask["user"])
        if self._server is not None:
            for each in self._server.connections():
                if each.is_open and each.user.name == ask["user"]:
                    self._server.close_connection(each, ask.why or _CLOSED)
        return _DONE

    def _check_closes(self, ask: Ask, owner: str | None) -> None:
        if not ask.caller.is_administrator and owner != ask.caller.user.name:
            raise not_authorised("Not administrator user")

    def rebalance(self, ask: Ask) -> Answer:
        """Spread the leaders of queues over the nodes: there is one."""
        ask.caller.check_administrator()
        return _DONE

    def aliveness(self, ask: Ask) -> Any:
        """Whether a virtual host takes messages. RabbitMQ 3 declares a queue for it; here a GET changes nothing."""
        host, rights = self._acting(ask)
        check_right(rights, "write", "exchange", "")
        self._do(host.check_open)
        return {"status": "ok"}

    # -- virtual hosts, users, permissions

    def put_host(self, ask: Ask) -> Answer:
        """Make a virtual host, or say another thing of it; its maker may do everything in it."""
        ask.caller.check_administrator()
        name, metadata = ask["vhost"], metadata_from(ask.body())
        is_new = all(each.name != name for each in self._broker.virtual_hosts())
        try:
            self._do(lambda: self._broker.add_virtual_host(name).metadata.set(metadata))
        except ValueError as error:
            raise bad_request(str(error)) from None
        if is_new and ask.caller.user.permissions_in(name) is None:
            self._keep(lambda: self._access.permit(ask.caller.user.name, name, Permissions()))
        return self._changed(is_new)

    def delete_host(self, ask: Ask) -> Answer:
        """Delete a virtual host with all that is in it; its connections are closed."""
        ask.caller.check_administrator()
        name = host_of(self._broker, ask, not_found()).name
        self._do(lambda: self._keep(lambda: self._broker.delete_virtual_host(name, timeout=_CALLBACKS)))
        return self._changed()

    def put_user(self, ask: Ask) -> Answer:
        """Make or change a user: `password`, or `password_hash` with `hashing_algorithm`; and `tags`. Without both
        the user has no password, also one that had."""
        ask.caller.check_administrator()
        name = ask["user"]
        said = ask.json()
        if "tags" not in said:
            raise bad_request("tags_not_present")
        if "password" in said and "password_hash" in said:
            raise bad_request("both_password_and_password_hash_are_provided")
        for each in ("password", "password_hash"):
            if said.get(each, "") is None:
                raise bad_request(f"{each} is null; it is text, or not there for a user without a password")
        body = ask.body()
        hashed = hash_password(body["password"]) if body["password"] else password_hash_of(body)
        known = self._access.user(name)
        user = replace(known or user_named(name), password_hash=hashed, tags=body["tags"])
        self._keep(lambda: self._access.put(user))
        return self._changed(known is None)

    def delete_user(self, ask: Ask) -> Answer:
        """Remove a user. Connections that are open stay open, as in RabbitMQ."""
        ask.caller.check_administrator()
        if self._access.user(ask["user"]) is None:
            raise not_found()
        self._keep(lambda: self._access.remove(ask["user"]))
        return _DONE

    def delete_users(self, ask: Ask) -> Answer:
        """Remove several users; those that are not there are passed over."""
        ask.caller.check_administrator()
        for name in ask.body()["users"]:
            if self._access.user(name) is not None:
                self._keep(partial(self._access.remove, name))
        return _DONE

    def hash_password(self, ask: Ask) -> Any:
        """A password as RabbitMQ keeps it: for `password_hash`."""
        salt = os.urandom(4)
        return {"ok": b64encode(salt + sha256(salt + ask["password"].encode()).digest()).decode()}

    def put_permissions(self, ask: Ask) -> Answer:
        """Say what a user may do in a virtual host."""
        ask.caller.check_administrator()
        name, host = ask["user"], ask["vhost"]
        user = self._access.user(name)
        if user is None or all(each.name != host for each in self._broker.virtual_hosts()):
            raise bad_request("vhost_or_user_not_found")
        allowed = Permissions(**ask.body())
        is_new = user.permissions_in(host) is None
        self._keep(lambda: self._access.permit(name, host, allowed))
        return self._changed(is_new)

    def delete_permissions(self, ask: Ask) -> Answer:
        """Let a user do nothing in a virtual host."""
        ask.caller.check_administrator()
        user = self._access.user(ask["user"])
        if user is None or user.permissions_in(ask["vhost"]) is None:
            raise not_found()
        self._keep(lambda: self._access.permit(ask["user"], ask["vhost"], None))
        return _DONE

    # -- definitions

    def export(self, ask: Ask) -> Any:
        """All definitions."""
        ask.caller.check_administrator()
        return export_definitions(self._broker, self._access, self._version)

    def export_host(self, ask: Ask) -> Any:
        """The definitions of one virtual host."""
        ask.caller.check_administrator()
        return export_host(host_of(self._broker, ask, bad_request("vhost_not_found")), self._version)  # not 404

    def take_in(self, ask: Ask) -> Answer:
        """Import definitions: 204, 200 with the entries that this broker lacks, or 400 with the refused ones."""
        ask.caller.check_administrator()
        return self._import(ask)

    def take_in_host(self, ask: Ask) -> Answer:
        """Import definitions into one virtual host."""
        ask.caller.check_administrator()
        return self._import(ask, host_of(self._broker, ask, not_found()).name)

    def _import(self, ask: Ask, host: str | None = None) -> Answer:
        try:
            found = ask.json()
        except Refused:
            raise bad_request("failed_to_parse_json") from None
        coming = Import(self._broker, self._access, found, host)
        try:
            left_out: list[str] = self._keep(coming.apply)
        finally:
            self._sampler.expire()
        return Answer(200, {"left_out": left_out}) if left_out else _DONE

    # -- details

    def _acting(self, ask: Ask) -> tuple[VirtualHost, Rights]:
        """The virtual host of the path, and what the user may do in it."""
        host = host_of(self._broker, ask)
        ask.caller.check_host(host.name, look=False)
        return host, ask.caller.rights(host.name)

    def _existing(self, host: VirtualHost, queue: str) -> None:
        if not host.has_queue(queue):
            raise not_found()

    def _do(self, work: Callable[[], Any]) -> Any:
        """Run it, and say in RabbitMQ's way what the broker refuses."""
        try:
            return work()
        except AccessRefused:
            raise not_authorised("Access refused.") from None
        except NotFound as error:
            raise Refused(404, "not_found", error.detail) from None
        except BrokerError as error:
            raise bad_request(error.detail) from None

    def _keep(self, work: Callable[[], Any]) -> Any:
        """Run what changes users: a file that cannot be written is told, and nothing is changed."""
        try:
            return work()
        except FixedUser as error:
            raise bad_request(str(error)) from None
        except OSError as error:
            _log.error("users cannot be saved: %s", error)
            raise Refused(500, "internal_server_error", f"users cannot be saved: {error.strerror or error}") from None

    def _changed(self, is_new: bool = False) -> Answer:
        self._sampler.expire()
        return Answer(201) if is_new else _DONE
