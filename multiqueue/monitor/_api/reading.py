"""Views: the GET requests of RabbitMQ's API that the latest sample answers.

Who runs    Any thread of the HTTP server's pool. Nothing here changes the broker.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ...amqp import Access, ConnectionFigures, Server, User, open_files_limit
from ...broker import Binding, Broker, BrokerError, Exchange, NotFound, VirtualHost
from .._base.errors import Refused, bad_request, not_authorised, not_found
from .._door.access import check_right
from .._figures.node import threads_limit
from .._figures.sampler import Sampler
from .._figures.samples import Pair, QueueSample
from .asking import Answer, Ask, Handler, Table, host_of
from .bodies import TENANTS, read_body
from .listing import columns, listing, page_of_many, written
from .views import (
    NODE,
    View,
    binding_view,
    channel_consumers,
    channel_name,
    channel_view,
    connection_view,
    consumers_of,
    exchange_view,
    host_view,
    node_view,
    overview_view,
    permission_view,
    queue_consumers,
    queue_orders,
    queue_view,
    tenants_view,
    troubles_view,
    user_view,
)

_NO_NAME = ("", "^$")  # expressions that permit nothing


def default_name(name: str) -> str:
    """The default exchange has no name; in a path it is written `amq.default`."""
    return "" if name == "amq.default" else name


def whoami(ask: Ask) -> Any:
    """`/api/whoami`."""
    return {"name": ask.caller.user.name, "tags": sorted(ask.caller.user.tags), "is_internal_user": True}


def windows(pages: list[str], broker: Broker | None) -> Handler:
    """`/api/windows`: the dashboard's pages, and what decides which of its forms a user sees: the tags, and the rights
    that it has on some name in each virtual host."""

    def answer(ask: Ask) -> Any:
        user, rights = ask.caller.user, {}
        for host in () if broker is None else broker.virtual_hosts():
            may = user.permissions_in(host.name)
            if may is not None:
                rights[host.name] = [right for right, names in asdict(may).items() if names not in _NO_NAME]
        is_manager = broker is not None and user.tags & {"administrator", "policymaker"}
        return {"pages": [*pages, *(["admin"] if is_manager else [])], "tags": sorted(user.tags), "rights": rights}

    return answer


class Reading:
    """The looks at one broker."""

    def __init__(
        self,
        broker: Broker,
        server: Server | None,
        access: Access,
        sampler: Sampler,
        *,
        version: str,
        data: Path | None,
        listeners: Callable[[], list[View]],
    ) -> None:
        self._broker = broker
        self._server = server
        self._access = access
        self._sampler = sampler
        self._version = version
        self._data = data
        self._listeners = listeners
        self._started = time.monotonic()

    def add_to(self, table: Table) -> None:
        """Answer what can be looked at."""
        for path, handler in {
            "/api/overview": self.overview,
            "/api/auth": lambda ask: {"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""},
            "/api/extensions": lambda ask: [],
            "/api/cluster-name": lambda ask: {"name": NODE},
            "/api/nodes": self.nodes,
            "/api/nodes/{node}": self.node,
            "/api/vhosts": self.hosts,
            "/api/vhosts/{vhost}": self.host,
            "/api/vhosts/{vhost}/permissions": self.host_permissions,
            "/api/vhosts/{vhost}/connections": self.connections,
            "/api/vhosts/{vhost}/channels": self.channels,
            "/api/users": self.users,
            "/api/users/without-permissions": self.users_without_permissions,
            "/api/users/{user}": self.user,
            "/api/users/{user}/permissions": self.user_permissions,
            "/api/permissions": self.permissions,
            "/api/permissions/{vhost}/{user}": self.permission,
            "/api/queues": self.queues,
            "/api/queues/detailed": self.queues,
            "/api/queues/{vhost}": self.queues,
            "/api/queues/{vhost}/{queue}": self.queue,
            "/api/queues/{vhost}/{queue}/bindings": self.queue_bindings,
            "/api/exchanges": self.exchanges,
            "/api/exchanges/{vhost}": self.exchanges,
            "/api/exchanges/{vhost}/{exchange}": self.exchange,
            "/api/exchanges/{vhost}/{exchange}/bindings/source": self.bindings_from,
            "/api/exchanges/{vhost}/{exchange}/bindings/destination": self.bindings_to,
            "/api/bindings": self.bindings,
            "/api/bindings/{vhost}": self.bindings,
            "/api/bindings/{vhost}/e/{exchange}/q/{queue}": self.bindings_between,
            "/api/bindings/{vhost}/e/{exchange}/e/{destination}": self.bindings_between,
            "/api/bindings/{vhost}/e/{exchange}/q/{queue}/{props}": self.binding,
            "/api/bindings/{vhost}/e/{exchange}/e/{destination}/{props}": self.binding,
            "/api/connections": self.connections,
            "/api/connections/username/{user}": self.connections_of,
            "/api/connections/{name}": self.connection,
            "/api/connections/{name}/channels": self.connection_channels,
            "/api/channels": self.channels,
            "/api/channels/{name}": self.channel,
            "/api/consumers": self.consumers,
            "/api/consumers/{vhost}": self.consumers,
            "/api/parameters": lambda ask: [],
            "/api/parameters/{component}": lambda ask: [],
            "/api/parameters/{component}/{vhost}": self.nothing_in_host,
            "/api/global-parameters": lambda ask: [],
            "/api/feature-flags": lambda ask: [],
            "/api/deprecated-features": lambda ask: [],
            "/api/deprecated-features/used": lambda ask: [],
            "/api/version": lambda ask: self._version,
            "/api/healthchecks/node": self.check_node,
            "/api/healthchecks/node/{node}": self.check_node,
            "/api/health/checks/alarms": self.check_alarms,
            "/api/health/checks/local-alarms": self.check_alarms,
            "/api/health/checks/virtual-hosts": self.check_hosts,
            "/api/health/checks/port-listener/{port}": self.check_port,
            "/api/health/checks/protocol-listener/{protocol}": self.check_protocol,
            "/api/health/checks/is-in-service": _is_well,
            "/api/health/checks/below-node-connection-limit": self.check_limit,
            "/api/health/checks/ready-to-serve-clients": self.check_limit,
            "/api/health/checks/reached-target-cluster-size": _is_well,
            "/api/health/checks/metadata-store/initialized": _is_well,
            "/api/health/checks/metadata-store/initialized/with-data": _is_well,
            "/api/health/checks/certificate-expiration/{within}/{unit}": _is_well,
            "/api/health/checks/quorum-queues-without-elected-leaders/all-vhosts": _is_well,
            "/api/health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}": _is_well,
            "/api/health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}": self.check_host,
            "/api/health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}": self.check_host,
            "/api/health/checks/node-is-mirror-sync-critical": _single_node,
            "/api/health/checks/node-is-quorum-critical": _single_node,
        }.items():
            table.add("GET", path, handler)
        table.add("GET", "/api/queues/{vhost}/{queue}/tenants", self.tenants, TENANTS)

    # -- the whole

    def overview(self, ask: Ask) -> Any:
        """`/api/overview`."""
        caller, hosts = ask.caller, self._hosts(ask)
        listeners = self._listeners() if caller.sees_all else []
        pair = self._sampler.look()
        if not caller.sees_all:
            pair = pair.of(hosts, caller.user.name)
        view = overview_view(pair, self._version, self._broker.compat.release, listeners) | {
            "troubles": troubles_view(pair, hosts)
        }
        totals = {**view["queue_totals"], "message_stats": view["message_stats"]}
        if caller.sees_all:
            self._sampler.add_samples(totals, ask.query, "host")
        elif len(hosts) == 1:
            self._sampler.add_samples(totals, ask.query, "host", next(iter(hosts)))
        return columns(view, ask.query)

    def nodes(self, ask: Ask) -> Any:
        """`/api/nodes`: this process."""
        ask.caller.check_monitor()
        return listing([self._node(ask)], ask.query, ("name",))

    def node(self, ask: Ask) -> Any:
        """`/api/nodes/NAME`."""
        ask.caller.check_monitor()
        if ask["node"] != NODE:
            raise not_found()
        return columns(self._node(ask), ask.query)

    def _node(self, ask: Ask) -> View:
        settings = None if self._server is None else self._server.settings
        files = open_files_limit()
        limits: View = {
            "mem_limit": 0 if settings is None else settings.memory_limit_bytes or 0,
            "disk_free_limit": 0 if settings is None else settings.disk_free_limit_bytes or 0,
            "fd_total": files,
            "sockets_total": files if self._server is None else self._server.max_connections,
            "proc_total": threads_limit(),
            "db_dir": "" if self._data is None else str(self._data),
        }
        uptime, release = time.monotonic() - self._started, self._broker.compat.release
        view = node_view(self._sampler.look(), uptime, release, limits, self._listeners())
        self._sampler.add_samples(view, ask.query, "node")
        return view

    # -- virtual hosts, users, permissions

    def hosts(self, ask: Ask) -> Any:
        """`/api/vhosts`: those the user may look at."""
        pair = self._sampler.look()
        hosts = [host for host in self._broker.virtual_hosts() if ask.caller.sees_host(host.name)]
        return listing(hosts, ask.query, ("name",), lambda host: self._host_view(pair, host, ask))

    def host(self, ask: Ask) -> Any:
        """`/api/vhosts/NAME`."""
        return columns(self._host_view(self._sampler.look(), self._host(ask), ask), ask.query)

    def _host_view(self, pair: Pair, host: VirtualHost, ask: Ask) -> View:
        view = host_view(pair, host.name, host.metadata.get())
        self._sampler.add_samples(view, ask.query, "host", host.name)
        return view

    def users(self, ask: Ask) -> Any:
        """`/api/users`."""
        ask.caller.check_administrator()
        return listing(self._access.users(), ask.query, ("name",), user_view)

    def users_without_permissions(self, ask: Ask) -> Any:
        """`/api/users/without-permissions`: those that can log in and may enter no virtual host."""
        ask.caller.check_administrator()
        hosts = [host.name for host in self._broker.virtual_hosts()]
        found = [user for user in self._access.users() if not any(map(user.permissions_in, hosts))]
        return listing(found, ask.query, ("name",), user_view)

    def user(self, ask: Ask) -> Any:
        """`/api/users/NAME`."""
        ask.caller.check_administrator()
        user = self._access.user(ask["user"])
        if user is None:
            raise not_found()
        return columns(user_view(user), ask.query)

    def permissions(self, ask: Ask) -> Any:
        """`/api/permissions`: of all users in all virtual hosts."""
        ask.caller.check_administrator()
        return self._permissions(ask, self._access.users(), self._broker.virtual_hosts(), ("user", "vhost"))

    def permission(self, ask: Ask) -> Any:
        """`/api/permissions/VHOST/USER`."""
        ask.caller.check_administrator()
        name = self._host(ask).name
        user = self._access.user(ask["user"])
        found = None if user is None else user.permissions_in(name)
        if found is None:
            raise not_found()
        return columns(permission_view(ask["user"], name, found), ask.query)

    def host_permissions(self, ask: Ask) -> Any:
        """`/api/vhosts/NAME/permissions`."""
        ask.caller.check_administrator()
        return self._permissions(ask, self._access.users(), [self._host(ask)], ("user",))

    def user_permissions(self, ask: Ask) -> Any:
        """`/api/users/NAME/permissions`."""
        self.user(ask)
        users = [each for each in self._access.users() if each.name == ask["user"]]
        return self._permissions(ask, users, self._broker.virtual_hosts(), ("vhost",))

    def _permissions(
        self, ask: Ask, users: Iterable[User], hosts: Iterable[VirtualHost], order: tuple[str, ...]
    ) -> Any:
        """In each virtual host, what each user may do there; also by what it may do everywhere."""
        found = [
            (user.name, host.name, allowed)
            for user in users
            for host in hosts
            if (allowed := user.permissions_in(host.name)) is not None
        ]
        return listing(found, ask.query, order, lambda each: permission_view(*each))

    # -- queues

    def queues(self, ask: Ask) -> Any:
        """`/api/queues`, `/api/queues/VHOST`."""
        hosts = self._hosts(ask)
        pair = self._sampler.look()
        found = [each for host in hosts for each in self._samples_now(pair, host)]
        found.sort(key=lambda each: each.key)
        orders = queue_orders(pair)
        return page_of_many(
            found, ask.query, lambda each: each.declared.name, lambda each: self._queue_view(pair, each, ask), orders
        )

    def _samples_now(self, pair: Pair, host: str) -> list[QueueSample]:
        """The queues that a virtual host has at this moment; those that the latest sample does not have are read."""
        try:
            declared = self._broker.virtual_host(host).declared_queues()
        except BrokerError:
            return []  # it has just been deleted
        known, found = pair.latest.queues, []
        for each in declared:
            sample = known.get((host, each.name))
            if sample is None or sample.declared.queue is not each.queue:
                sample = QueueSample(host, each, each.queue.statistics(), pair.latest.time)
            found.append(sample)
        return found

    def _queue_view(self, pair: Pair, sample: QueueSample, ask: Ask) -> View:
        view = queue_view(pair, sample)
        self._sampler.add_samples(view, ask.query, "queue", (sample.virtual_host, sample.declared.name))
        return view

    def queue(self, ask: Ask) -> Any:
        """`/api/queues/VHOST/NAME`, with its consumers."""
        host = self._host(ask)
        pair = self._sampler.look()
        key = host.name, ask["queue"]
        sample = pair.latest.queues.get(key)
        if sample is None or sample.declared.queue.is_deleted:
            sample = next((each for each in self._samples_now(pair, host.name) if each.key == key), None)
        if sample is None:
            raise not_found()
        view = self._queue_view(pair, sample, ask)
        consumers = queue_consumers(sample, consumers_of(self._connections(pair).values(), sample.key))
        view["consumer_details"] = written(consumers, operator.call)
        view["incoming"] = []
        view["deliveries"] = []
        return columns(view, ask.query)

    def tenants(self, ask: Ask) -> Any:
        """The tenants of a fair queue, those with the most waiting first; for those who may read the queue."""
        host = self._host(ask)
        check_right(ask.caller.rights(host.name), "read", "queue", ask["queue"])
        try:
            return tenants_view(host.queue(ask["queue"]).tenants(read_body(TENANTS, ask.query)["count"]))
        except NotFound:
            raise not_found() from None
        except BrokerError as error:
            raise bad_request(error.detail) from None

    def queue_bindings(self, ask: Ask) -> Any:
        """`/api/queues/VHOST/NAME/bindings`."""
        host = self._host(ask)
        try:
            host.queue(ask["queue"])
        except NotFound:
            raise not_found() from None
        except BrokerError:
            pass  # exclusive to a connection: it is there
        return self._bindings([host], ask, _leads_to("queue", ask["queue"]))

    # -- exchanges and bindings

    def exchanges(self, ask: Ask) -> Any:
        """`/api/exchanges`, `/api/exchanges/VHOST`."""
        hosts, pair = self._hosts_of(ask), self._sampler.look()
        found = [(host.name, each) for host in hosts for each in host.exchanges()]
        return listing(found, ask.query, view=lambda each: exchange_view(pair, *each))

    def exchange(self, ask: Ask) -> Any:
        """`/api/exchanges/VHOST/NAME`."""
        host = self._host(ask)
        view = exchange_view(self._sampler.look(), host.name, self._exchange(host, ask["exchange"]))
        return columns(view | {"incoming": [], "outgoing": []}, ask.query)

    def bindings_from(self, ask: Ask) -> Any:
        """`/api/exchanges/VHOST/NAME/bindings/source`."""
        host = self._host(ask)
        name = self._exchange(host, ask["exchange"]).name
        return self._bindings([host], ask, lambda view: view["source"] == name)

    def bindings_to(self, ask: Ask) -> Any:
        """`/api/exchanges/VHOST/NAME/bindings/destination`."""
        host = self._host(ask)
        return self._bindings([host], ask, _leads_to("exchange", self._exchange(host, ask["exchange"]).name))

    def bindings(self, ask: Ask) -> Any:
        """`/api/bindings`, `/api/bindings/VHOST`."""
        return self._bindings(self._hosts_of(ask), ask, lambda view: True)

    def bindings_between(self, ask: Ask) -> Any:
        """`/api/bindings/VHOST/e/EXCHANGE/q/QUEUE`, and to an exchange."""
        return self._bindings([self._host(ask)], ask, between(ask))

    def binding(self, ask: Ask) -> Any:
        """`/api/bindings/VHOST/e/EXCHANGE/q/QUEUE/PROPS`: one binding."""
        host = self._host(ask)
        return columns(binding_view(host.name, binding_of(host, ask)), ask.query)

    def _bindings(self, hosts: Iterable[VirtualHost], ask: Ask, wanted: Callable[[View], bool]) -> Any:
        found = [(host.name, each) for host in hosts for each in host.bindings()]
        order = ("vhost", "source", "destination", "routing_key")
        asked = [each for each in found if wanted(binding_view(*each))]
        return listing(asked, ask.query, order, lambda each: binding_view(*each))

    # -- connections, channels, consumers

    def connections_of(self, ask: Ask) -> Any:
        """`/api/connections/username/USER`: those of one user, for itself and for the tag `monitoring`."""
        if not self._sees(ask, ask["user"]):
            raise not_authorised("User not authorised to access object")
        return self.connections(ask)

    def connections(self, ask: Ask) -> Any:
        """`/api/connections`, `/api/vhosts/VHOST/connections`: one's own, or all with the tag `monitoring`."""
        host = self._host(ask).name if "vhost" in ask.parts else None
        user = ask.parts.get("user")
        pair = self._sampler.look()
        found = [
            each
            for each in self._connections(pair).values()
            if self._sees(ask, each.user) and host in (None, each.virtual_host) and user in (None, each.user)
        ]
        return listing(found, ask.query, ("name",), lambda each: self._connection_view(pair, each, ask))

    def connection(self, ask: Ask) -> Any:
        """`/api/connections/NAME`."""
        pair, found = self._connection(ask)
        return columns(self._connection_view(pair, found, ask), ask.query)

    def _connection_view(self, pair: Pair, now: ConnectionFigures, ask: Ask) -> View:
        view = connection_view(pair, now)
        self._sampler.add_samples(view, ask.query, "connection", now.name)
        return view

    def connection_channels(self, ask: Ask) -> Any:
        """`/api/connections/NAME/channels`."""
        pair, found = self._connection(ask)
        return listing(found.channels, ask.query, ("name",), lambda each: channel_view(pair, found, each))

    def channels(self, ask: Ask) -> Any:
        """`/api/channels`, `/api/vhosts/VHOST/channels`."""
        host = self._host(ask).name if "vhost" in ask.parts else None
        pair = self._sampler.look()
        found = [
            (connection, channel)
            for connection in self._connections(pair).values()
            if self._sees(ask, connection.user) and host in (None, connection.virtual_host)
            for channel in connection.channels
        ]
        return listing(found, ask.query, ("name",), lambda each: channel_view(pair, *each))

    def channel(self, ask: Ask) -> Any:
        """`/api/channels/NAME`, with its consumers."""
        pair = self._sampler.look()
        for connection in self._connections(pair).values():
            for channel in connection.channels:
                if channel_name(connection, channel) == ask["name"] and self._sees(ask, connection.user):
                    view = channel_view(pair, connection, channel)
                    view["consumer_details"] = written(channel_consumers(connection, channel), operator.call)
                    view["publishes"], view["deliveries"] = [], []
                    return columns(view, ask.query)
        raise not_found()

    def consumers(self, ask: Ask) -> Any:
        """`/api/consumers`, `/api/consumers/VHOST`: those of connections, and those inside this process."""
        names = self._hosts(ask)
        pair = self._sampler.look()
        consumers = consumers_of(self._connections(pair).values())
        found = [
            consumer
            for host in names
            for each in self._samples_now(pair, host)
            for consumer in queue_consumers(each, consumers)
        ]
        return listing(found, ask.query, ("consumer_tag",), operator.call)

    # -- health

    def check_alarms(self, ask: Ask) -> Any:
        """`/api/health/checks/alarms`: whether publishers are blocked."""
        alarms = sorted(frozenset() if self._server is None else self._server.alarms)
        if alarms:
            return _failed("There are alarms in effect", alarms=alarms)
        return {"status": "ok"}

    def check_hosts(self, ask: Ask) -> Any:
        """`/api/health/checks/virtual-hosts`: whether each can be used."""
        down = [host.name for host in self._broker.virtual_hosts() if not _is_up(host)]
        if down:
            return _failed("Some virtual hosts are down", **{"virtual-hosts": down})
        return {"status": "ok"}

    def check_node(self, ask: Ask) -> Any:
        """`/api/healthchecks/node`, of old: whether no alarm is raised, and each virtual host can be used."""
        if ask.parts.get("node", NODE) != NODE:
            raise not_found()
        found = self.check_alarms(ask)
        return found if isinstance(found, Answer) else self.check_hosts(ask)

    def check_limit(self, ask: Ask) -> Any:
        """`/api/health/checks/below-node-connection-limit`: whether another client can come."""
        server = self._server
        if server is None:
            return _failed("no active listeners for AMQP/AMQPS")
        count = len(server.connections())
        if count >= server.max_connections:
            return _failed("node connection limit is reached", connections=count)
        return {"status": "ok"}

    def check_host(self, ask: Ask) -> Any:
        """A check of a virtual host's quorum queues, which have no leaders to elect here."""
        self._host(ask)
        return {"status": "ok"}

    def check_port(self, ask: Ask) -> Any:
        """`/api/health/checks/port-listener/PORT`."""
        if not ask["port"].isdecimal():
            raise Refused(400, "bad_request", f"port {ask['port']!r} is no number")
        port, ports = int(ask["port"]), [listener["port"] for listener in self._listeners()]
        if port in ports:
            return {"status": "ok", "port": port}
        return _failed("No active listener", missing=port, ports=ports)

    def check_protocol(self, ask: Ask) -> Any:
        """`/api/health/checks/protocol-listener/PROTOCOL`."""
        known = {"amqp091": "amqp", "amqp": "amqp", "http": "http", "https": "https", "amqps": "amqp/ssl"}
        protocol, found = known.get(ask["protocol"]), [listener["protocol"] for listener in self._listeners()]
        if protocol in found:
            return {"status": "ok", "protocol": protocol, "protocols": found}
        return _failed("No active listener", missing=ask["protocol"], protocols=found)

    def nothing_in_host(self, ask: Ask) -> Any:
        """An empty list, for a virtual host that exists."""
        self._host(ask)
        return []

    def _host(self, ask: Ask) -> VirtualHost:
        host = host_of(self._broker, ask, not_found())
        ask.caller.check_host(host.name)
        return host

    def _hosts(self, ask: Ask) -> set[str]:
        """The virtual hosts that a list is about: the one of the path, or all that the user has business in."""
        if "vhost" in ask.parts:
            return {self._host(ask).name}
        return {host.name for host in self._broker.virtual_hosts() if ask.caller.may_enter(host.name)}

    def _hosts_of(self, ask: Ask) -> list[VirtualHost]:
        names = self._hosts(ask)
        return [host for host in self._broker.virtual_hosts() if host.name in names]

    def _exchange(self, host: VirtualHost, name: str) -> Exchange:
        wanted = default_name(name)
        for each in host.exchanges():
            if each.name == wanted:
                return each
        raise not_found()

    def _connection(self, ask: Ask) -> tuple[Pair, ConnectionFigures]:
        pair = self._sampler.look()
        found = self._connections(pair).get(ask["name"])
        if found is None or not self._sees(ask, found.user):
            raise not_found()
        return pair, found

    def _connections(self, pair: Pair) -> dict[str, ConnectionFigures]:
        """The connections that are open at this moment, by name, with their channels and consumers."""
        if self._server is None:
            return {}
        return {each.name: each for each in self._server.connection_figures(pair.latest.connections)}

    def _sees(self, ask: Ask, user: str) -> bool:
        return ask.caller.sees_all or ask.caller.user.name == user


def between(ask: Ask) -> Callable[[View], bool]:
    """Whether a binding leads from the path's exchange to the path's queue or exchange."""
    source = default_name(ask["exchange"])
    leads = _leads_to("queue", ask["queue"]) if "queue" in ask.parts else _leads_to("exchange", ask["destination"])
    return lambda view: view["source"] == source and leads(view)


def _leads_to(kind: str, name: str) -> Callable[[View], bool]:
    return lambda view: view["destination_type"] == kind and view["destination"] == name


def binding_of(host: VirtualHost, ask: Ask) -> Binding:
    """The binding that the path names by its ends and its `properties_key`. Raises Refused: there is none."""
    matches, key = between(ask), ask["props"]
    found = {view["properties_key"]: each for each in host.bindings() if matches(view := binding_view(host.name, each))}
    # The key comes here decoded once, and was encoded before it became a segment: both are taken.
    named = [found[key]] if key in found else [each for name, each in found.items() if unquote(name) == key]
    if not named:
        raise not_found()
    return named[0]


def _failed(reason: str, **more: Any) -> Answer:
    return Answer(503, {"status": "failed", "reason": reason, **more})


def _is_well(ask: Ask) -> Any:
    return {"status": "ok"}


def _single_node(ask: Ask) -> Any:
    return {"status": "ok", "reason": "single node cluster"}


def _is_up(host: VirtualHost) -> bool:
    try:
        host.check_open()
    except Exception:  # noqa: BLE001  # a store that failed may say so in more than one way
        return False
    return True
