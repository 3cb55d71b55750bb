"""Definitions: all declarations, as one JSON object that RabbitMQ reads and writes too.

Promise     The fields of an import, and the names in it, are checked as a whole before the first change. Then each
            definition is taken for itself: one that the broker refuses (it exists and differs, an argument does not
            fit) is named in the refusal, all others are loaded, and the import can be repeated. What this broker has
            not (streams, exchanges of plugins) is named in the answer, never taken for done.
Left out    Of an export: exclusive queues, the predeclared exchanges and the bindings of the default exchange, as
            RabbitMQ does. Values that JSON has not, such as bytes and times in arguments, become text and numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ...amqp import (
    RABBITMQ_HASH,
    USER_LIMITS,
    Access,
    FixedUser,
    Permissions,
    TopicPermissions,
    User,
    check_hash,
    new_user,
)
from ...broker import (
    EXCHANGE_TYPES,
    HOST_LIMITS,
    OPERATOR_POLICY,
    QUEUE_TYPES,
    Binding,
    Broker,
    BrokerError,
    DeclaredQueue,
    Exchange,
    HostMetadata,
    Policy,
    UnknownPolicySetting,
    VirtualHost,
    checked_limit,
)
from .._base.errors import bad_request
from .bodies import HOST, OBJECT, POLICY, definitions, read_body, read_value, shown
from .views import (
    NODE,
    View,
    binding_view,
    metadata_view,
    permission_view,
    plain,
    policy_view,
    queue_type,
    topic_permission_views,
    user_view,
)

_log = logging.getLogger("multiqueue.monitor")
_MANY: Final = 50  # refusals that are told with their reasons
_ABOUT: Final = frozenset(
    {
        *("rabbit_version", "rabbitmq_version", "product_name", "product_version", "explanation"),
        *("rabbitmq_definition_format", "original_cluster_name", "original_vhost_name"),
    }
)
LIMITS: Final = "vhost-limits"
_OF_A_HOST: Final = frozenset({"description", "metadata", "limits", "tags", "default_queue_type", "name"})
# Of the node that was exported: nothing that a program could miss.
_OF_RABBITMQ: Final = frozenset({"cluster_name", "internal_cluster_id", "cluster_tags"})
_LOG_EXCHANGES: Final = frozenset({"amq.rabbitmq.log", "amq.rabbitmq.event"})


def export_definitions(broker: Broker, access: Access, version: str) -> View:
    """Everything: users with the hashes of their passwords, virtual hosts, and the declarations of each."""
    hosts = broker.virtual_hosts()
    users = access.users()
    return {
        "rabbit_version": broker.compat.release,
        "rabbitmq_version": broker.compat.release,
        "product_name": "multiqueue",
        "product_version": version,
        "rabbitmq_definition_format": "cluster",
        "original_cluster_name": NODE,
        "explanation": f"Definitions of cluster '{NODE}'",
        "users": [user_view(user) for user in users],
        "vhosts": [
            {"name": host.name, "limits": host.limits.all(), "metadata": metadata_view(host.metadata.get())}
            for host in hosts
        ],
        "permissions": [
            permission_view(user.name, name, allowed)
            for user in users
            for name in sorted(each.name for each in hosts)
            if (allowed := user.permissions_in(name)) is not None
        ],
        "topic_permissions": [view for user in users for view in topic_permission_views(user)],
        "global_parameters": [{"name": name, "value": value} for name, value in broker.parameters.all().items()],
        **_declared(hosts, with_host=True),
    }


def export_host(host: VirtualHost, version: str) -> View:
    """The declarations of one virtual host."""
    said = metadata_view(host.metadata.get())
    return {
        "rabbit_version": host.compat.release,
        "rabbitmq_version": host.compat.release,
        "product_name": "multiqueue",
        "product_version": version,
        "rabbitmq_definition_format": "single_virtual_host",
        "original_vhost_name": host.name,
        "explanation": f"Definitions of virtual host '{host.name}'",
        "description": said["description"],
        "metadata": said,
        "limits": host.limits.all(),
        **_declared([host], with_host=False),
    }


def _declared(hosts: Iterable[VirtualHost], *, with_host: bool) -> View:
    """What is declared now. Each view is made when it is written."""
    queues: list[tuple[View, DeclaredQueue]] = []
    exchanges: list[tuple[View, Exchange]] = []
    bindings: list[tuple[str, Binding]] = []
    hosts = list(hosts)
    rule = "the policies and parameters of one virtual host do not name it"
    names_host = with_host or not all(host.compat.says(rule) for host in hosts)
    for host in hosts:
        where = {"vhost": host.name} if with_host else {}
        declared = host.declared_queues()
        owned = {each.name for each in declared if each.queue.settings.exclusive}
        queues += [(where, each) for each in declared if each.name not in owned]
        exchanges += [(where, each) for each in host.exchanges() if not is_predeclared(each)]
        bindings += [
            (host.name, each)
            for each in host.bindings()
            if each.source.name != "" and (isinstance(each.destination, Exchange) or each.destination.name not in owned)
        ]
    return {
        "policies": [
            _placed(policy_view(each, host.name), names_host) for host in hosts for each in host.policies.all()
        ],
        "parameters": [_placed(each, names_host) for host in hosts for each in parameter_views(host)],
        "queues": (
            {
                "name": each.name,
                **where,
                "type": queue_type(each),
                "durable": each.queue.settings.durable,
                "auto_delete": each.queue.settings.auto_delete,
                "arguments": plain(each.arguments),
                **({"tenants": plain(changed)} if (changed := each.queue.changed_tenants) else {}),
            }
            for where, each in queues
        ),
        "exchanges": (
            {
                "name": each.name,
                **where,
                "type": each.type,
                "durable": each.durable,
                "auto_delete": each.auto_delete,
                "internal": each.internal,
                "arguments": plain(each.arguments),
            }
            for where, each in exchanges
        ),
        "bindings": (_placed(binding_view(name, each), with_host) for name, each in bindings),
    }


def parameter_of(policy: View) -> View:
    """An operator policy, as RabbitMQ exports it."""
    names = ("pattern", "apply-to", "definition", "priority")
    value = {name: policy.pop(name) for name in names}
    return {**policy, "component": OPERATOR_POLICY, "value": value}


def parameter_views(host: VirtualHost) -> list[View]:
    """The operator policies of a virtual host, and its limits: RabbitMQ reads them from here alone."""
    views = [parameter_of(policy_view(each, host.name)) for each in host.policies.all(is_operators=True)]
    if limits := host.limits.all():
        views.append({"name": "limits", "vhost": host.name, "component": LIMITS, "value": limits})
    return views


def _placed(view: View, with_host: bool) -> View:
    view.pop("properties_key", None)
    if not with_host:
        del view["vhost"]
    return view


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
        self._left_out: list[str] = []
        self._refused: list[str] = []
        self._absent: set[tuple[str, str, str]] = set()  # what was left out, by virtual host, kind and name
        body = definitions(host)
        known = {*body, *_ABOUT, *(() if host is None else _OF_A_HOST)}
        self._left_out += [f"key {key!r}" for key in found if key not in known]
        self._found = read_body(body, found)
        self._users = [
            replace(
                user_named(each["name"]),
                password_hash=password_hash_of(each, f"users[{index}]"),
                tags=each["tags"],
                limits=checked_limits(each["limits"], USER_LIMITS, f"users[{index}].limits"),
            )
            for index, each in enumerate(self._found["users"])
        ]
        self._limits = [
            (each["name"], checked_limits(each["limits"], HOST_LIMITS, f"vhosts[{index}].limits"))
            for index, each in enumerate(self._found["vhosts"])
        ]
        if host is not None:
            self._limits.append((host, checked_limits(found.get("limits", {}), HOST_LIMITS, "limits")))
        self._policies = [("policies", each) for each in self._found["policies"]]
        for index, each in enumerate(self._found["parameters"]):
            value = each["value"]
            if each["component"] == LIMITS:
                self._limits.append((each["vhost"], checked_limits(value, HOST_LIMITS, f"parameters[{index}].value")))
            elif each["component"] == OPERATOR_POLICY:
                body = read_body(POLICY, read_value(OBJECT, each["value"], f"parameters[{index}].value"))
                self._policies.append(("parameters", {**each, **body}))
            else:
                what = f"parameter {each['name']!r} of {each['component']!r} in vhost {each['vhost']!r}"
                self._left_out.append(what)
        self._check_names()

    def _check_names(self) -> None:
        """The virtual host of each object is there, or comes with the definitions."""
        known = {each.name for each in self._broker.virtual_hosts()} | {each["name"] for each in self._found["vhosts"]}
        users = {each.name for each in self._access.users()} | {each.name for each in self._users}
        for kind in ("permissions", "topic_permissions", "exchanges", "queues", "bindings", "policies", "parameters"):
            for index, each in enumerate(self._found[kind]):
                if each["vhost"] not in known:
                    raise bad_request(f"{kind}[{index}].vhost is {each['vhost']!r}, which does not exist")
        for kind in ("permissions", "topic_permissions"):
            for index, each in enumerate(self._found[kind]):
                if each["user"] not in users:
                    raise bad_request(f"{kind}[{index}].user is {each['user']!r}, which does not exist")

    def apply(self) -> list[str]:
        """Carry it out; returns the entries left out because this broker lacks their kind. Repeating it is harmless.

        Raises:
            Refused: definitions were refused, by name; all others are loaded.
            OSError: users cannot be kept.
        """
        found = self._found
        for user in self._users:
            self._do(f"user {user.name!r}", self._put_user, user)
        for each in found["vhosts"]:
            self._do(f"vhost {each['name']!r}", self._add_host, each)
        for each in found["global_parameters"]:
            if each["name"] not in _OF_RABBITMQ:
                what = f"global parameter {each['name']!r}"
                self._do(what, self._broker.parameters.set, each["name"], each["value"])
        for each in found["permissions"]:
            self._do(f"permissions of user {each['user']!r} in vhost {each['vhost']!r}", partial(self._permit, **each))
        for each in found["topic_permissions"]:
            what = f"topic permissions of user {each['user']!r} in vhost {each['vhost']!r}"
            may = TopicPermissions(each["write"], each["read"])
            self._do(what, self._access.permit_topic, each["user"], each["vhost"], each["exchange"], may)
        for host, limits in self._limits:
            for name, value in limits.items():
                self._do(f"limit {name} of vhost {host!r}", self._broker.virtual_host(host).limits.set, name, value)
        for kind, each in self._policies:
            self._do(_called(kind, each), self._set_policy, kind, each)
        for each in found["exchanges"]:
            self._do(_called("exchanges", each), partial(self._declare_exchange, **each))
        for each in found["queues"]:
            self._do(_called("queues", each), partial(self._declare_queue, **each))
        for each in found["bindings"]:
            self._do(_called("bindings", each), partial(self._bind, **each))
        for what in self._left_out:
            _log.warning("definitions: %s was left out: this broker has no such thing", what)
        if self._refused:
            loaded = f"refused {len(self._refused)} of the definitions, and loaded all others"
            more = len(self._refused) - _MANY
            raise bad_request("; ".join([loaded, *self._refused[:_MANY], *([f"and {more} more"] if more > 0 else [])]))
        return self._left_out

    def _do(self, what: str, load: Callable[..., object], *of: Any) -> None:
        try:
            load(*of)
        except _NotHere as error:
            self._left_out.append(f"{what}: {error}")
        except BrokerError as error:
            self._refused.append(f"{what}: {error.detail}")
        except (ValueError, TypeError, FixedUser) as error:
            self._refused.append(f"{what}: {error}")

    def _put_user(self, user: User) -> None:
        known = self._access.user(user.name) or user
        new = replace(known, password_hash=user.password_hash, tags=user.tags, limits=user.limits)
        if new != self._access.user(user.name):
            self._access.put(new)

    def _add_host(self, each: Mapping[str, Any]) -> None:
        host = self._broker.add_virtual_host(each["name"])
        said = {name: value for name, value in each.items() if value}
        host.metadata.set(metadata_from(read_body(HOST, {**each["metadata"], **said})))

    def _permit(self, user: str, vhost: str, **allowed: str) -> None:
        known, new = self._access.user(user), Permissions(**allowed)
        if known is None or known.permissions_in(vhost) != new:
            self._access.permit(user, vhost, new)

    def _set_policy(self, kind: str, said: Mapping[str, Any]) -> None:
        try:
            policy = policy_from(said, is_operators=kind == "parameters")
        except UnknownPolicySetting as error:
            raise _NotHere(str(error)) from None
        self._broker.virtual_host(said["vhost"]).policies.set(policy)

    def _declare_exchange(self, name: str, vhost: str, **settings: Any) -> None:
        if name in _LOG_EXCHANGES:  # each RabbitMQ has them, and what they bring is about itself
            return
        if settings["type"] not in EXCHANGE_TYPES:
            self._absent.add((vhost, "exchange", name))
            raise _NotHere(f"there are no exchanges of the type {settings['type']!r}")
        self._broker.virtual_host(vhost).declare_exchange(name, **settings)

    def _declare_queue(self, name: str, vhost: str, tenants: Mapping[str, Any], **settings: Any) -> None:
        kind = settings["arguments"].get("x-queue-type", "classic")
        if kind not in QUEUE_TYPES:
            self._absent.add((vhost, "queue", name))
            raise _NotHere(f"there are no queues of the type {kind!r}")
        queue = self._broker.virtual_host(vhost).declare_queue(name, **settings, is_restored=True)
        for tenant, own in tenants.items():
            queue.change_tenant(tenant, own, anew=True)

    def _bind(self, vhost: str, source: str, destination: str, destination_type: str, **of: Any) -> None:
        for kind, name in (("exchange", source), (destination_type, destination)):
            if (vhost, kind, name) in self._absent or name in _LOG_EXCHANGES:
                raise _NotHere(f"{kind} {name!r} was left out")
        host = self._broker.virtual_host(vhost)
        bind = host.bind_queue if destination_type == "queue" else host.bind_exchange
        bind(destination, source, of["routing_key"], of["arguments"])


def checked_limits(found: Any, names: tuple[str, ...], path: str) -> dict[str, int]:
    """Limits by name. Raises Refused: there is no such one, or it is no number."""
    found = {} if found == [] else found  # as RabbitMQ exports it where all were deleted
    try:
        return {name: checked_limit(name, value, names) for name, value in read_value(OBJECT, found, path).items()}
    except (ValueError, TypeError) as error:
        raise bad_request(f"{path}: {error}") from None


def metadata_from(said: Mapping[str, Any]) -> HostMetadata:
    """What a body says of a virtual host. Raises Refused: there is no such type of queue."""
    kind = said["default_queue_type"]
    try:
        kind = "classic" if kind in (None, "", "undefined") else kind
        return HostMetadata(said["description"], tuple(sorted(said["tags"])), kind)
    except (ValueError, TypeError) as error:
        raise bad_request(str(error)) from None


def policy_from(said: Mapping[str, Any], *, is_operators: bool) -> Policy:
    """The policy that a body describes. Raises as `Policy`."""
    fields = {name.replace("-", "_"): said[name] for name in ("name", *POLICY)}
    return Policy(is_operators=is_operators, **fields)


class _NotHere(Exception):
    """This broker has no such thing."""


def _called(kind: str, each: Mapping[str, Any]) -> str:
    """An entry of a list, for a sentence: `policy 'ha' in vhost '/'`."""
    singular = {"policies": "policy", "parameters": "operator policy"}.get(
        kind, kind.removesuffix("s").replace("_", " ")
    )
    if kind == "bindings":
        what = f"of {each['destination_type']} {each['destination']!r} to exchange {each['source']!r}"
        return f"binding {what} in vhost {each['vhost']!r}"
    name = shown(each.get("name", each.get("user")))
    return f"{singular} {name} in vhost {shown(each.get('vhost', '/'))}"


def user_named(name: str) -> User:
    """A user without rights. Raises Refused: no login can carry the name."""
    try:
        return new_user(name)
    except ValueError as error:
        raise bad_request(str(error)) from None


def password_hash_of(each: Mapping[str, Any], path: str = "") -> str | None:
    """The hash of a user's password as we keep it: RabbitMQ's SHA-256 with its salt, or our scrypt.

    Raises:
        Refused: no such hash.
    """
    text = each["password_hash"]
    if not text:
        return None
    if each["hashing_algorithm"] in (None, RABBITMQ_HASH):
        text = f"{RABBITMQ_HASH}${text}"
    try:
        return check_hash(text)
    except ValueError as error:
        raise bad_request(f"{path}{path and '.'}password_hash: {error}") from None
