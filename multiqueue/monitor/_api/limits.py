"""Limits of virtual hosts and of users, and topic permissions, over HTTP. For administrators, as in RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...amqp import USER_LIMITS, Access, TopicPermissions, User
from ...broker import HOST_LIMITS, Broker, checked_limit
from .._base.errors import Refused, bad_request, not_found
from .asking import Answer, Ask, Table, done, host_of
from .bodies import LIMIT, TOPIC_PERMISSIONS
from .listing import listing
from .views import View, topic_permission_views

_DONE = Answer(204)
Keep = Callable[[Callable[[], Any]], Any]  # runs a change of users: what cannot be kept is told


class LimitRequests:
    """The requests about what virtual hosts and users may have."""

    def __init__(self, broker: Broker, access: Access, keep: Keep) -> None:
        self._broker = broker
        self._access = access
        self._keep = keep

    def add_to(self, table: Table) -> None:
        """Answer all that is asked about them."""
        for kind, name in (("vhost", "vhost"), ("user", "user")):
            of = "hosts" if kind == "vhost" else "users"
            table.add("GET", f"/api/{kind}-limits", getattr(self, f"of_{of}"))
            table.add("GET", f"/api/{kind}-limits/{{{name}}}", getattr(self, f"of_{of}"))
            table.add("PUT", f"/api/{kind}-limits/{{{name}}}/{{limit}}", getattr(self, f"put_{of}"), LIMIT)
            table.add("DELETE", f"/api/{kind}-limits/{{{name}}}/{{limit}}", getattr(self, f"delete_{of}"))
        table.add("GET", "/api/topic-permissions", self.topics)
        table.add("GET", "/api/vhosts/{vhost}/topic-permissions", self.topics)
        table.add("GET", "/api/users/{user}/topic-permissions", self.topics)
        table.add("GET", "/api/topic-permissions/{vhost}/{user}", self.topics)
        table.add("PUT", "/api/topic-permissions/{vhost}/{user}", self.put_topic, TOPIC_PERMISSIONS)
        table.add("DELETE", "/api/topic-permissions/{vhost}/{user}", self.delete_topics)

    # -- virtual hosts

    def of_hosts(self, ask: Ask) -> Any:
        """The limits of all virtual hosts that have some, or of one."""
        hosts = [host_of(self._broker, ask, not_found())] if "vhost" in ask.parts else self._broker.virtual_hosts()
        seen = [host for host in hosts if ask.caller.sees_host(host.name)]
        return [{"vhost": host.name, "value": host.limits.all()} for host in seen if host.limits.all()]

    def put_hosts(self, ask: Ask) -> Answer:
        """Set a limit of a virtual host; a negative one is none."""
        ask.caller.check_administrator()
        host, value = host_of(self._broker, ask), ask.body()["value"]
        return done(lambda: host.limits.set(ask["limit"], value))

    def delete_hosts(self, ask: Ask) -> Answer:
        """Have no limit of this name."""
        ask.caller.check_administrator()
        host = host_of(self._broker, ask)
        if ask["limit"] in HOST_LIMITS:
            done(lambda: host.limits.clear(ask["limit"]))
        return _DONE

    # -- users

    def of_users(self, ask: Ask) -> Any:
        """The limits of all users that have some, or of one."""
        ask.caller.check_administrator()
        users = [self._user(ask)] if "user" in ask.parts else self._access.users()
        return [{"user": user.name, "value": dict(user.limits)} for user in users if user.limits]

    def put_users(self, ask: Ask) -> Answer:
        """Set a limit of a user; a negative one is none."""
        ask.caller.check_administrator()
        name, value = ask["user"], ask.body()["value"]
        done(lambda: checked_limit(ask["limit"], value, USER_LIMITS))  # which RabbitMQ looks at first
        if self._access.user(name) is None:
            raise Refused(400, "bad_request", ["no_such_user", name])
        return done(lambda: self._keep(lambda: self._access.limit(name, ask["limit"], value)))

    def delete_users(self, ask: Ask) -> Answer:
        """Have no limit of this name."""
        ask.caller.check_administrator()
        name = self._user(ask).name
        return done(lambda: self._keep(lambda: self._access.limit(name, ask["limit"], None)))

    # -- topics

    def topics(self, ask: Ask) -> Any:
        """All topic permissions, or those of a virtual host, of a user, or of both."""
        ask.caller.check_administrator()
        users = [self._user(ask)] if "user" in ask.parts else self._access.users()
        found = list(self._topics(ask, users))
        if not found and ask.parts.keys() >= {"user", "vhost"}:
            raise not_found()
        return listing(found, ask.query, ("user", "vhost", "exchange"))

    def _topics(self, ask: Ask, users: list[User]) -> Iterator[View]:
        host = host_of(self._broker, ask, not_found()).name if "vhost" in ask.parts else None
        for user in users:
            yield from (view for view in topic_permission_views(user) if host in (None, view["vhost"]))

    def put_topic(self, ask: Ask) -> Answer:
        """Say with which routing keys a user may use a topic exchange: 201 when that is new, else 204."""
        ask.caller.check_administrator()
        try:
            host, user, body = host_of(self._broker, ask), self._user(ask), ask.body()
        except Refused as error:
            raise bad_request("vhost_or_user_not_found") if error.status == 404 else error from None
        exchange = body.pop("exchange")
        if exchange and all(each.name != exchange for each in host.exchanges()):
            raise Refused(400, "bad_request", ["no_such_exchange", exchange])
        is_new = exchange not in user.topics.get(host.name, {})
        permissions = TopicPermissions(**body)
        self._keep(lambda: self._access.permit_topic(user.name, host.name, exchange, permissions))
        return Answer(201 if is_new else 204)

    def delete_topics(self, ask: Ask) -> Answer:
        """Have no topic permissions of a user in a virtual host."""
        ask.caller.check_administrator()
        host, user = host_of(self._broker, ask, not_found()).name, self._user(ask)
        if host not in user.topics:
            raise not_found()
        self._keep(lambda: self._access.permit_topic(user.name, host, None, None))
        return _DONE

    def _user(self, ask: Ask) -> User:
        user = self._access.user(ask["user"])
        if user is None:
            raise not_found()
        return user
