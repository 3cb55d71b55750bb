"""Global parameters, and what RabbitMQ calls runtime parameters: operator policies and limits, by component."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...broker import HOST_LIMITS, OPERATOR_POLICY, Broker, GlobalParameters
from .._base.errors import bad_request, not_found
from .asking import Answer, Ask, Table, done, host_of
from .bodies import LIMIT, OBJECT, POLICY, read_body, read_value
from .definitions import LIMITS, checked_limits, parameter_views, policy_from
from .listing import listing
from .views import View


class ParameterRequests:
    """The requests about parameters, for administrators."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def add_to(self, table: Table) -> None:
        """Answer all that is asked about them."""
        table.add("GET", "/api/global-parameters", self.globals)
        table.add("GET", "/api/global-parameters/{name}", self.one_global)
        table.add("PUT", "/api/global-parameters/{name}", self.put_global, LIMIT)
        table.add("DELETE", "/api/global-parameters/{name}", self.delete_global)
        path = "/api/parameters"
        for part in ("", "/{component}", "/{vhost}", "/{name}"):
            path += part
            table.add("GET", path, self.one if part == "/{name}" else self.all)
        table.add("PUT", path, self.put, LIMIT)
        table.add("DELETE", path, self.delete)

    # -- global

    def globals(self, ask: Ask) -> Any:
        """All global parameters."""
        found = self._globals(ask).all()
        return listing([_view(name, value) for name, value in found.items()], ask.query, ("name",))

    def one_global(self, ask: Ask) -> Any:
        """One global parameter."""
        found = self._globals(ask).all()
        if ask["name"] not in found:
            raise not_found()
        return _view(ask["name"], found[ask["name"]])

    def put_global(self, ask: Ask) -> Answer:
        """Set one: 201 when it is new, else 204."""
        kept, value = self._globals(ask), ask.body()["value"]
        return done(lambda: kept.set(ask["name"], value))

    def delete_global(self, ask: Ask) -> Answer:
        """Have it no more."""
        if not self._globals(ask).clear(ask["name"]):
            raise not_found()
        return Answer(204)

    def _globals(self, ask: Ask) -> GlobalParameters:
        ask.caller.check_administrator()
        return self._broker.parameters

    # -- of a component in a virtual host

    def all(self, ask: Ask) -> Any:
        """All parameters, or those of a component, in a virtual host."""
        return listing(list(self._found(ask)), ask.query, ("component", "vhost", "name"))

    def one(self, ask: Ask) -> Any:
        """One parameter."""
        for view in self._found(ask):
            if view["name"] == ask["name"]:
                return view
        raise not_found()

    def put(self, ask: Ask) -> Answer:
        """Set one: 201 when it is a policy that is new, else 204. Limits that are not named end."""
        ask.caller.check_administrator()
        component, host = ask["component"], host_of(self._broker, ask)
        value = read_value(OBJECT, ask.body()["value"], "value")
        if component == OPERATOR_POLICY:
            said = {**read_body(POLICY, value, "value"), "name": ask["name"]}
            return done(lambda: host.policies.set(policy_from(said, is_operators=True)))
        if component != LIMITS or ask["name"] != "limits":
            raise bad_request(f"component {component} not found; {OPERATOR_POLICY}, or {LIMITS} with the name limits")
        limits = checked_limits(value, HOST_LIMITS, "value")
        for name in HOST_LIMITS:
            if name in limits:
                host.limits.set(name, limits[name])
            else:
                host.limits.clear(name)
        return Answer(204)

    def delete(self, ask: Ask) -> Answer:
        """Have it no more."""
        ask.caller.check_administrator()
        self.one(ask)
        host = host_of(self._broker, ask)
        if ask["component"] == OPERATOR_POLICY:
            host.policies.clear(ask["name"], is_operators=True)
        else:
            for name in host.limits.all():
                host.limits.clear(name)
        return Answer(204)

    def _found(self, ask: Ask) -> Iterator[View]:
        ask.caller.check_administrator()
        hosts = [host_of(self._broker, ask)] if "vhost" in ask.parts else self._broker.virtual_hosts()
        for host in hosts:
            yield from (
                each for each in parameter_views(host) if ask.parts.get("component") in (None, each["component"])
            )


def _view(name: str, value: Any) -> View:
    return {"name": name, "value": value}
