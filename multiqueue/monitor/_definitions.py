"""Definitions: what is declared, as one JSON object that RabbitMQ reads and writes too.

Promise     Names and shapes of an import are checked as a whole before the first change. A definition that the broker
            then refuses (it is there and differs, an argument does not fit) ends the import: what came before it stays,
            and the import can be repeated. What cannot be honoured (policies, parameters,
            limits) is named in the answer and left out, never taken for done.
Left out    Exclusive queues, the predeclared exchanges and the bindings of the default exchange, as RabbitMQ does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from ..amqp import RABBITMQ_HASH, Access, Permissions, User, check_hash, new_user
from ..broker import Broker, BrokerError, Exchange, VirtualHost
from ._errors import bad_request
from ._views import API_VERSION, View, binding_view, permission_view, plain, user_view

_log = logging.getLogger("multiqueue.monitor")
_WE_HAVE_NONE: Final = ("parameters", "policies", "topic_permissions")
_KINDS: Final = (
    "users",
    "vhosts",
    "permissions",
    "exchanges",
    "queues",
    "bindings",
    "global_parameters",
    *_WE_HAVE_NONE,
)
_EXCHANGE_TYPES: Final = ("direct", "fanout", "topic", "headers")
_VERSIONS: Final = frozenset({"rabbit_version", "rabbitmq_version", "product_name", "product_version"})


def export_definitions(broker: Broker, access: Access, version: str) -> View:
    """Everything: users with the hashes of their passwords, virtual hosts, and what is declared in each."""
    hosts = broker.virtual_hosts()
    users = access.users()
    return {
        "rabbit_version": API_VERSION,
        "rabbitmq_version": API_VERSION,
        "product_name": "multiqueue",
        "product_version": version,
        "users": [user_view(user) for user in users],
        "vhosts": [{"name": host.name} for host in hosts],
        "permissions": [
            permission_view(user.name, host, allowed)
            for user in users
            for host, allowed in sorted(_by_host(user, [each.name for each in hosts]).items())
        ],
        "topic_permissions": [],
        "parameters": [],
        "global_parameters": [],
        "policies": [],
        **_declared(hosts, with_host=True),
    }


def export_host(host: VirtualHost) -> View:
    """The declarations of one virtual host."""
    return {"rabbit_version": API_VERSION, "parameters": [], "policies": [], **_declared([host], with_host=False)}


def _by_host(user: User, hosts: Iterable[str]) -> dict[str, Permissions]:
    found = ((name, user.permissions_in(name)) for name in hosts)
    return {name: allowed for name, allowed in found if allowed is not None}


def _declared(hosts: Iterable[VirtualHost], *, with_host: bool) -> View:
    queues: list[View] = []
    exchanges: list[View] = []
    bindings: list[View] = []
    for host in hosts:
        where = {"vhost": host.name} if with_host else {}
        owned = {each.name for each in host.declared_queues() if each.queue.settings.exclusive}
        queues += [
            {
                "name": each.name,
                **where,
                "durable": each.queue.settings.durable,
                "auto_delete": each.queue.settings.auto_delete,
                "arguments": plain(each.arguments),
            }
            for each in host.declared_queues()
            if each.name not in owned
        ]
        exchanges += [
            {
                "name": each.name,
                **where,
                "type": each.type,
                "durable": each.durable,
                "auto_delete": each.auto_delete,
                "internal": each.internal,
                "arguments": plain(each.arguments),
            }
            for each in host.exchanges()
            if not is_predeclared(each)
        ]
        for binding in host.bindings():
            to_queue = not isinstance(binding.destination, Exchange)
            if binding.source.name == "" or (to_queue and binding.destination.name in owned):
                continue
            view = binding_view(host.name, binding)
            del view["properties_key"]
            if not with_host:
                del view["vhost"]
            bindings.append(view)
    return {"queues": queues, "exchanges": exchanges, "bindings": bindings}


def is_predeclared(exchange: Exchange) -> bool:
    """The default exchange, and those that every virtual host begins with."""
    return exchange.name == "" or exchange.name.startswith("amq.")


class Import:
    """A set of definitions on its way in: checked when it is made, carried out by `apply`.

    Raises:
        Refused: something in it cannot be understood; nothing was changed.
    """

    def __init__(self, broker: Broker, access: Access, found: Mapping[str, Any], host: str | None = None) -> None:
        self._broker = broker
        self._access = access
        self._found = found
        self._host = host
        unknown = sorted(set(found) - set(_KINDS) - _VERSIONS)
        if unknown:
            raise bad_request(f"unknown key {unknown[0]!r} in the definitions; one of {', '.join(_KINDS)}")
        for kind in _KINDS:
            if not isinstance(found.get(kind, []), list):
                raise bad_request(f"{kind} is no list")
        self.left_out = [_called(kind, each) for kind in _WE_HAVE_NONE for each in found.get(kind, [])]
        self._users = [_user_of(each) for each in self._items("users", "name")]
        self._new_hosts = [_text("vhosts", each, "name") for each in self._items("vhosts", "name")]
        self._permissions = [
            (_text("permissions", each, "user"), self._vhost("permissions", each), _permissions_of(each))
            for each in self._items("permissions", "user")
        ]
        self._check_names()

    def _items(self, kind: str, *keys: str) -> list[Mapping[str, Any]]:
        items = self._found.get(kind, [])
        for each in items:
            if not isinstance(each, dict):
                raise bad_request(f"an entry of {kind} is no object: {each!r}")
            for key in keys:
                _text(kind, each, key)
        return list(items)

    def _vhost(self, kind: str, each: Mapping[str, Any]) -> str:
        return self._host if self._host is not None else _text(kind, each, "vhost")

    def _check_names(self) -> None:
        """The virtual host of each object is there, or comes with the definitions."""
        known = {each.name for each in self._broker.virtual_hosts()} | set(self._new_hosts)
        users = {each.name for each in self._access.users()} | {each.name for each in self._users}
        for kind, key in (("exchanges", "name"), ("queues", "name"), ("bindings", "source"), ("permissions", "user")):
            for each in self._items(kind, key):
                host = self._vhost(kind, each)
                if host not in known:
                    raise bad_request(f"{kind}: {each[key]!r} stands in vhost {host!r}, which does not exist")
        for name, _, _ in self._permissions:
            if name not in users:
                raise bad_request(f"permissions: there is no user {name!r}")
        for each in self._items("exchanges", "type"):
            if each["type"] not in _EXCHANGE_TYPES:
                raise bad_request(f"exchanges: {each['name']!r} has the unknown type {each['type']!r}")
        for each in self._items("bindings", "destination", "destination_type"):
            if each["destination_type"] not in ("queue", "exchange"):
                raise bad_request(f"bindings: destination_type is {each['destination_type']!r}; queue or exchange")

    def apply(self) -> list[str]:
        """Carry it out; returns what was left out because this broker has no such thing. Repeating it is harmless.

        Raises:
            Refused: something is there already and differs. What came before it stays.
        """
        for user in self._users:
            known = self._access.user(user.name) or user
            self._access.put(replace(known, password_hash=user.password_hash, tags=user.tags))
        for name in self._new_hosts:
            self._broker.add_virtual_host(name)
        for name, host, allowed in self._permissions:
            self._access.permit(name, host, allowed)
        try:
            for each in self._items("exchanges", "name"):
                self._declare_exchange(each)
            for each in self._items("queues", "name"):
                self._declare_queue(each)
            for each in self._items("bindings", "source"):
                self._bind(each)
        except BrokerError as error:
            raise bad_request(error.detail) from None
        for what in self.left_out:
            _log.warning("definitions: %s was left out: this broker has no such thing", what)
        return self.left_out

    def _into(self, kind: str, each: Mapping[str, Any]) -> VirtualHost:
        return self._broker.virtual_host(self._vhost(kind, each))

    def _declare_exchange(self, each: Mapping[str, Any]) -> None:
        self._into("exchanges", each).declare_exchange(
            each["name"],
            _text("exchanges", each, "type"),
            durable=each.get("durable") is True,
            auto_delete=each.get("auto_delete") is True,
            internal=each.get("internal") is True,
            arguments=each.get("arguments") or {},
        )

    def _declare_queue(self, each: Mapping[str, Any]) -> None:
        self._into("queues", each).declare_queue(
            each["name"],
            durable=each.get("durable") is True,
            auto_delete=each.get("auto_delete") is True,
            arguments=each.get("arguments") or {},
        )

    def _bind(self, each: Mapping[str, Any]) -> None:
        host = self._into("bindings", each)
        bind = host.bind_queue if each["destination_type"] == "queue" else host.bind_exchange
        bind(each["destination"], each["source"], each.get("routing_key", ""), each.get("arguments") or {})


def _called(kind: str, each: object) -> str:
    """The name of an entry of a list, for a sentence: `policy 'ha' in vhost '/'`."""
    singular = {"policies": "policy"}.get(kind, kind.removesuffix("s").replace("_", " "))
    if not isinstance(each, Mapping):
        return f"{singular} {each!r}"
    return f"{singular} {each.get('name', each.get('user'))!r} in vhost {each.get('vhost', '/')!r}"


def _text(kind: str, each: Mapping[str, Any], key: str) -> str:
    value = each.get(key)
    if not isinstance(value, str):
        raise bad_request(f"an entry of {kind} has no {key}: {dict(each)!r}")
    return value


def tags_of(value: Any) -> frozenset[str]:
    """A user's tags: a list, or a text with commas."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request(f"tags is {value!r}; it is a list of names, or one text with commas")
    return frozenset(name.strip() for name in names if name.strip())


def _user_of(each: Mapping[str, Any]) -> User:
    tags = tags_of(each.get("tags", ""))
    return replace(new_user(each["name"]), password_hash=password_hash_of(each), tags=tags)


def password_hash_of(each: Mapping[str, Any]) -> str | None:
    """The hash of a user's password as we keep it: RabbitMQ's SHA-256 with its salt, or our scrypt.

    Raises:
        Refused: another algorithm, or no such hash.
    """
    hashed = each.get("password_hash")
    if not hashed:
        return None
    algorithm = each.get("hashing_algorithm") or RABBITMQ_HASH
    text = str(hashed)
    if algorithm == RABBITMQ_HASH:
        text = f"{RABBITMQ_HASH}${text}"
    elif algorithm != "scrypt":
        raise bad_request(
            f"user {each.get('name')!r}: hashing_algorithm is {algorithm!r}; {RABBITMQ_HASH} and scrypt are known"
        )
    try:
        return check_hash(text)
    except ValueError as error:
        raise bad_request(f"user {each.get('name')!r}: {error}") from None


def _permissions_of(each: Mapping[str, Any]) -> Permissions:
    return permissions_of(each, f"permissions of {each.get('user')!r}")


def permissions_of(each: Mapping[str, Any], label: str) -> Permissions:
    """Three regular expressions.

    Raises:
        Refused: one is missing, or is none.
    """
    missing = [name for name in ("configure", "write", "read") if not isinstance(each.get(name), str)]
    if missing:
        keys = ",".join(f"{{key_missing,{name}}}" for name in missing)
        raise bad_request(f"[{keys}]")
    try:
        return Permissions(each["configure"], each["write"], each["read"])
    except ValueError as error:
        raise bad_request(f"{label}: {error}") from None
