"""Policies and operator policies over HTTP.

Rights      As in RabbitMQ: the tag `policymaker` or `administrator` and a permission in the virtual host for policies,
            `administrator` for operators'.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...broker import Broker, Policy, VirtualHost
from .._base.errors import Refused, not_authorised, not_found
from .._figures.sampler import Sampler
from .asking import Answer, Ask, Table, done, host_of
from .bodies import POLICY
from .definitions import policy_from
from .listing import listing
from .views import policy_view


class PolicyRequests:
    """The requests about one of the two sorts of policies of one broker."""

    def __init__(self, broker: Broker, sampler: Sampler, *, is_operators: bool) -> None:
        self._broker = broker
        self._sampler = sampler
        self._is_operators = is_operators

    def add_to(self, table: Table) -> None:
        """Answer all that is asked about policies."""
        path = "/api/operator-policies" if self._is_operators else "/api/policies"
        table.add("GET", path, self.all)
        table.add("GET", f"{path}/{{vhost}}", self.all)
        table.add("GET", f"{path}/{{vhost}}/{{name}}", self.one)
        table.add("PUT", f"{path}/{{vhost}}/{{name}}", self.put, POLICY)
        table.add("DELETE", f"{path}/{{vhost}}/{{name}}", self.delete)

    def all(self, ask: Ask) -> Any:
        """All policies that the caller may see, or those of one virtual host."""
        self._check(ask)
        return listing([policy_view(each, host.name) for host, each in self._found(ask)], ask.query, ("name", "vhost"))

    def one(self, ask: Ask) -> Any:
        """One policy."""
        self._check(ask)
        for host, each in self._found(ask):
            if each.name == ask["name"]:
                return policy_view(each, host.name)
        raise not_found()

    def put(self, ask: Ask) -> Answer:
        """Set a policy: 201 when it is new, 204 when it takes the place of one."""
        self._check(ask)
        host, said = self._host(ask), {**ask.body(), "name": ask["name"]}
        answer = done(lambda: host.policies.set(policy_from(said, is_operators=self._is_operators)))
        self._sampler.expire()
        return answer

    def delete(self, ask: Ask) -> Answer:
        """Remove a policy."""
        self._check(ask)
        if not self._host(ask, not_found()).policies.clear(ask["name"], is_operators=self._is_operators):
            raise not_found()
        self._sampler.expire()
        return Answer(204)

    def _check(self, ask: Ask) -> None:
        if self._is_operators:
            ask.caller.check_administrator()
        elif not ask.caller.user.tags & {"administrator", "policymaker"}:
            raise not_authorised("Not policymaker user")

    def _found(self, ask: Ask) -> Iterator[tuple[VirtualHost, Policy]]:
        hosts = [self._host(ask, not_found())] if "vhost" in ask.parts else self._broker.virtual_hosts()
        for host in hosts:
            if ask.caller.sees_host(host.name):
                for each in host.policies.all(is_operators=self._is_operators):
                    yield host, each

    def _host(self, ask: Ask, absent: Refused | None = None) -> VirtualHost:
        host = host_of(self._broker, ask, absent)
        ask.caller.check_host(host.name)
        return host
