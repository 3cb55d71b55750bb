"""`multiqueue queue`, `exchange`, `binding`, `connection`, `user`, `definitions`, `status`: a broker from the shell.

All of them ask a running broker's HTTP API, ours or RabbitMQ's, at `--url` or `MULTIQUEUE_HTTP_URL`. A refusal ends
with status 1, a broker that does not answer with 2.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from .._logs import printable
from .._words import counted, duration
from ._base.errors import MonitorError
from ._shell.client import DEFAULT_URL, Api, Column, RequestFailed, field, table
from ._shell.troubles import Row, of_a_queue, of_the_whole
from ._shell.watch import CONNECTIONS, LANES, QUEUES, View, in_host, lanes, watch

Command = TypeVar("Command", bound=Callable[..., Any])


def _asking(command: Command) -> Command:
    """The option that says which broker."""
    return click.option(
        "--url", envvar="MULTIQUEUE_HTTP_URL", default=DEFAULT_URL, show_default=True, help="The broker's HTTP API."
    )(command)


def _in_host(command: Command) -> Command:
    """The options of commands about one virtual host."""
    return _asking(click.option("--vhost", default="/", show_default=True, help="The virtual host.")(command))


_as_json = click.option("--json", "as_json", is_flag=True, help="JSON, as the broker answers.")


def _show(rows: Sequence[Row], columns: Sequence[Column], noun: str, as_json: bool) -> None:
    if as_json:
        _print(rows)
        return
    for line in table(rows, columns, noun):
        click.echo(printable(line))


def _sorting(command: Command) -> Command:
    """The options of a table that is drawn again each second."""
    part = click.option("--name", default="", metavar="PART", help="Watch the rows whose name has this part.")
    order = click.option("--sort", metavar="COLUMN", help="Sort the rows by this column, the largest first.")
    return order(part(command))


def _listing(command: Command) -> Command:
    """The options of a list that can be watched."""
    watching = click.option("--watch", "is_live", is_flag=True, help="Draw it again each second, until Ctrl-C.")
    return _asking(watching(_sorting(_as_json(command))))


def _list(
    view: View, vhost: str | None = None, *, url: str, as_json: bool, is_live: bool, sort: str | None, name: str
) -> None:
    """Print a table, and what is wrong with its rows on standard error: who reads the table has rows alone."""
    if as_json and is_live:
        raise click.UsageError("--watch draws a table; leave out --json")
    if not is_live and (sort or name):
        raise click.UsageError("--sort and --name need --watch; sort and filter a printed list with other programs")
    api = Api(url)
    if is_live:
        watch(view, api, sort, name, vhost)
        return
    rows = lanes(api) if view is LANES else api.ask("GET", *in_host(f"{view.noun}s", vhost))
    _show(rows, [each for each in view.listed if vhost is None or each.title != "vhost"], view.noun, as_json)
    for line in () if as_json else view.troubles(rows):
        click.echo(line, err=True)


def _object(text: str | None, option: str) -> dict[str, Any]:
    """A JSON object given on the command line."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise MonitorError(f"{option} is {text!r}; it is a JSON object: '{{\"x-max-length\": 100}}'")
    return found


# -- live


@click.command()
@_asking
@_sorting
def top(url: str, sort: str | None, name: str) -> None:
    """Queues, live; the same as `queue list --watch`."""
    watch(QUEUES, Api(url), sort, name)


# -- status


@click.command()
@_asking
@_as_json
def status(url: str, as_json: bool) -> None:
    """A running broker in figures; status 1 when a virtual host is down."""
    api = Api(url)
    found, nodes = api.ask("GET", "overview"), _nodes(api)
    if as_json:
        _print(found)
        return
    totals, objects = found["queue_totals"], found["object_totals"]
    rates = found.get("message_stats", {})
    uptime = f", up {duration(nodes[0]['uptime'] / 1000)}" if nodes else ""
    click.echo(f"{found['product_name']} {found['product_version']} on {found['node']}{uptime}")
    things = [counted(objects[f"{each}s"], each) for each in ("connection", "channel", "consumer", "queue")]
    click.echo(", ".join(things))
    click.echo(
        f"{totals.get('messages_ready', 0):,} ready, {totals.get('messages_unacknowledged', 0):,} unacked;"
        f" {_rate(rates, 'publish')} published, {_rate(rates, 'deliver_get')} delivered,"
        f" {_rate(rates, 'ack')} acked"
    )
    for sentence in of_the_whole(found, nodes, time.time()):
        click.echo(printable(sentence))
    if found.get("troubles", {}).get("virtual_hosts_down"):
        sys.exit(1)


def _nodes(api: Api) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = api.ask("GET", "nodes")
    except MonitorError:  # for those with the tag `monitoring` alone
        return []
    return found


def _rate(stats: dict[str, Any], name: str) -> str:
    return f"{stats.get(f'{name}_details', {}).get('rate', 0):,.0f}/s"


def _print(found: Any) -> None:
    json.dump(found, sys.stdout, indent=1)
    click.echo()


# -- queues


@click.group()
def queue() -> None:
    """List, show, declare, purge, move and delete a broker's queues; tenants of fair ones."""


@queue.command("list")
@click.option("--vhost", help="One virtual host alone.")
@_listing
def list_queues(vhost: str | None, **options: Any) -> None:
    """All queues."""
    _list(QUEUES, vhost, **options)


@queue.command()
@click.argument("name")
@_in_host
@_as_json
def show(url: str, vhost: str, name: str, as_json: bool) -> None:
    """One queue: its figures, arguments, bindings and consumers."""
    api = Api(url)
    found = api.ask("GET", "queues", vhost, name)
    found["bindings"] = api.ask("GET", "queues", vhost, name, "bindings")
    if as_json:
        _print(found)
        return
    stats = found.get("message_stats", {})
    kind = [word for word in ("durable", "auto_delete", "exclusive") if found[word]]
    for label, value in (
        ("queue", f"{name} in {vhost}{', ' if kind else ''}{', '.join(kind)}"),
        ("messages", f"{found['messages_ready']:,} ready, {found['messages_unacknowledged']:,} unacked"),
        ("rates", f"{_rate(stats, 'publish')} in, {_rate(stats, 'deliver_get')} out, {_rate(stats, 'ack')} acked"),
        *((f"{key}", json.dumps(value)) for key, value in sorted(found["arguments"].items())),
    ):
        click.echo(printable(f"{label:10}  {value}"))
    if wrong := of_a_queue(found, time.time()):
        click.echo(printable(f"{'look at':10}  {wrong}"))
    for binding in found["bindings"]:
        if binding["source"]:
            click.echo(printable(f"{'bound to':10}  {binding['source']} by {binding['routing_key']!r}"))
    for consumer in found["consumer_details"]:
        where = consumer["channel_details"].get("user_provided_name") or consumer["channel_details"]["name"]
        click.echo(
            printable(f"{'consumer':10}  {consumer['consumer_tag']} on {where}, prefetch {consumer['prefetch_count']}")
        )


@queue.command()
@click.argument("name")
@click.option("--count", type=click.IntRange(1, 10_000), default=10, show_default=True, help="How many.")
@_in_host
@_as_json
def peek(url: str, vhost: str, name: str, count: int, as_json: bool) -> None:
    """The first messages; they stay where they are, and are not flagged as redelivered."""
    found = Api(url).ask("GET", "queues", vhost, name, "messages", query=f"count={count}")
    size = field("payload_bytes", "bytes", is_number=True)
    _show(found, (field("routing_key"), size, field("properties"), field("payload")), "message", as_json)


@queue.command()
@click.argument("name")
@click.option("--durable", is_flag=True, help="Keep it over a restart.")
@click.option("--auto-delete", is_flag=True, help="Delete it after its last consumer.")
@click.option("--arguments", help="A JSON object: '{\"x-max-length\": 100}'.")
@_in_host
def declare(url: str, vhost: str, name: str, durable: bool, auto_delete: bool, arguments: str | None) -> None:
    """Declare a queue; nothing happens if it exists with these settings."""
    body = {"durable": durable, "auto_delete": auto_delete, "arguments": _object(arguments, "--arguments")}
    Api(url).ask("PUT", "queues", vhost, name, body=body)


@queue.command()
@click.argument("name")
@_in_host
def purge(url: str, vhost: str, name: str) -> None:
    """Delete the ready messages."""
    Api(url).ask("DELETE", "queues", vhost, name, "contents")


@queue.command()
@click.argument("name")
@click.option("--if-empty", is_flag=True, help="Only when it has no messages.")
@click.option("--if-unused", is_flag=True, help="Only when it has no consumers.")
@_in_host
def delete(url: str, vhost: str, name: str, if_empty: bool, if_unused: bool) -> None:
    """Delete a queue and its messages."""
    asked = [word for word, is_asked in (("if-empty", if_empty), ("if-unused", if_unused)) if is_asked]
    Api(url).ask("DELETE", "queues", vhost, name, query="&".join(f"{word}=true" for word in asked))


@queue.command()
@click.argument("name")
@click.option("--count", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many.")
@click.option("--watch", "is_live", is_flag=True, help="Draw it again each second, until Ctrl-C.")
@_in_host
@_as_json
def tenants(url: str, vhost: str, name: str, count: int, as_json: bool, is_live: bool) -> None:
    """The tenants of a fair queue, those with the most waiting first."""
    if as_json and is_live:
        raise click.UsageError("--watch draws a table; leave out --json")

    def look(api: Api) -> Any:
        found = api.ask("GET", "queues", vhost, name, "tenants", query=f"count={count}")
        for each in () if as_json else found["largest"]:
            each["longest_wait"] = duration(each["longest_wait"])
            each.update({part: f"{each[part]:.0%}" for part in ("share", "fair_share")})
        return found

    columns = [field("name", "tenant"), field("passed_over", "passed over")]
    columns += [field(each, each.replace("_", " "), is_number=True) for each in ("waiting", "in_flight", "served")]
    columns += [field(each, each.replace("_", " ")) for each in ("longest_wait", "share", "fair_share")]
    if is_live:
        watch(View("tenant", columns, lambda api, *_: look(api)["largest"]), Api(url), None, "")
        return
    found = look(Api(url))
    if as_json:
        _print(found)
        return
    *lines, _ = table(found["largest"], columns, "tenant", drops=True)  # the last counts what is shown
    for line in lines:
        click.echo(printable(line))
    fairness = "" if found["jain"] is None else f", Jain's index over the last minute {found['jain']:.3f}"
    click.echo(f"{counted(found['tenants'], 'tenant')}{fairness}")


def _limit(context: click.Context, option: click.Parameter, value: str | None) -> Any:
    """A number, a word, or None for `none`; the context remembers which options were given."""
    if value is None:
        return None
    changes = context.meta.setdefault("changes", {})
    name = option.name or ""
    if value == "none":
        changes[name] = None
        return None
    try:
        changes[name] = int(value)
    except ValueError:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        changes[name] = number if math.isfinite(number) else value  # JSON has no others: the server says why not
    return None


def _limits(command: Command) -> Command:
    """An option for each thing that one tenant may have."""
    for name, metavar, text in reversed(
        (
            ("--weight", "NUMBER", "Its share beside others."),
            ("--priority", "NUMBER", "0 to 255; the higher is served first."),
            ("--max-in-flight", "NUMBER", "Unsettled deliveries; `none` for no limit, as below."),
            ("--rate", "NUMBER", "Deliveries a second."),
            ("--burst", "NUMBER", "Deliveries at once."),
            ("--max-length", "NUMBER", "Messages that it may have waiting."),
            ("--max-length-bytes", "NUMBER", "Bytes of these."),
            ("--overflow", "POLICY", "Above that: drop-head, reject-publish, reject-publish-dlx."),
        )
    ):
        command = click.option(name, metavar=metavar, help=text, callback=_limit, expose_value=False)(command)
    return command


@queue.command()
@click.argument("name")
@click.argument("tenant")
@_limits
@click.option("--pause/--resume", "paused", default=None, help="Stop serving the tenant, or go on.")
@click.option("--reset", is_flag=True, help="Take back all changes.")
@_in_host
@click.pass_context
def tenant(
    context: click.Context, url: str, vhost: str, name: str, tenant: str, paused: bool | None, reset: bool
) -> None:
    """Change the options of a fair queue's tenant at once; '' is the tenant without a name."""
    changes = context.meta.get("changes", {})
    if paused is not None:
        changes["paused"] = paused
    if reset is bool(changes):
        raise click.UsageError("say what to change, or --reset alone")
    place = ("queues", vhost, name, "tenants", *((tenant,) if tenant else ()))
    Api(url).ask("DELETE" if reset else "PUT", *place, body=None if reset else changes)


@queue.command()
@click.argument("name")
@click.argument("target")
@click.option("--count", type=click.IntRange(1, 10_000), help="At most so many.  [default: all]")
@_in_host
def move(url: str, vhost: str, name: str, target: str, count: int | None) -> None:
    """Move the ready messages to the end of the queue TARGET."""
    body = {"to": target} if count is None else {"to": target, "count": count}
    moved = Api(url).ask("POST", "queues", vhost, name, "move", body=body)["moved"]
    click.echo(f"{counted(moved, 'message')} moved")


# -- exchanges and bindings


@click.group()
def exchange() -> None:
    """List, declare and delete a broker's exchanges."""


@exchange.command("list")
@click.option("--vhost", help="One virtual host alone.")
@_asking
@_as_json
def list_exchanges(url: str, vhost: str | None, as_json: bool) -> None:
    """All exchanges."""
    found = Api(url).ask("GET", *in_host("exchanges", vhost))
    columns = (field("name"), field("vhost"), field("type"), field("durable"))
    _show(found, columns, "exchange", as_json)


@exchange.command("declare")
@click.argument("name")
@click.option(
    "--type", "kind", type=click.Choice(["direct", "fanout", "topic", "headers"]), default="direct", show_default=True
)
@click.option("--durable", is_flag=True, help="Keep it over a restart.")
@click.option("--arguments", help="A JSON object.")
@_in_host
def declare_exchange(url: str, vhost: str, name: str, kind: str, durable: bool, arguments: str | None) -> None:
    """Declare an exchange; nothing happens if it exists with these settings."""
    body = {"type": kind, "durable": durable, "arguments": _object(arguments, "--arguments")}
    Api(url).ask("PUT", "exchanges", vhost, name, body=body)


@exchange.command("delete")
@click.argument("name")
@_in_host
def delete_exchange(url: str, vhost: str, name: str) -> None:
    """Delete an exchange with its bindings."""
    Api(url).ask("DELETE", "exchanges", vhost, name)


@click.group()
def binding() -> None:
    """List, add and delete a broker's bindings."""


@binding.command("list")
@click.option("--vhost", help="One virtual host alone.")
@_asking
@_as_json
def list_bindings(url: str, vhost: str | None, as_json: bool) -> None:
    """All bindings but those of the default exchange."""
    found = Api(url).ask("GET", *in_host("bindings", vhost))
    columns = (field("source"), field("routing_key", "key"), field("destination"), field("destination_type", "a"))
    _show([each for each in found if each["source"]], columns, "binding", as_json)


@binding.command("add")
@click.argument("source")
@click.argument("queue")
@click.option("--key", default="", help="The routing key.")
@click.option("--arguments", help="A JSON object.")
@_in_host
def add_binding(url: str, vhost: str, source: str, queue: str, key: str, arguments: str | None) -> None:
    """Bind QUEUE to the exchange SOURCE."""
    body = {"routing_key": key, "arguments": _object(arguments, "--arguments")}
    Api(url).ask("POST", "bindings", vhost, "e", source, "q", queue, body=body)


@binding.command("delete")
@click.argument("source")
@click.argument("queue")
@click.option("--key", default="", help="The routing key.")
@_in_host
def delete_binding(url: str, vhost: str, source: str, queue: str, key: str) -> None:
    """Remove every binding of QUEUE to the exchange SOURCE by this key."""
    api = Api(url)
    found = api.ask("GET", "bindings", vhost, "e", source, "q", queue)
    matching = [each for each in found if each["routing_key"] == key]
    if not matching:
        raise MonitorError(f"queue '{queue}' is not bound to '{source}' by {key!r} in vhost '{vhost}'")
    for each in matching:
        api.ask("DELETE", "bindings", vhost, "e", source, "q", queue, each["properties_key"])


# -- policies


_operators = click.option("--operator", is_flag=True, help="An operator policy.")


def _policies(operator: bool) -> str:
    return "operator-policies" if operator else "policies"


@click.group()
def policy() -> None:
    """List, set and clear a broker's policies."""


@policy.command("list")
@click.option("--vhost", help="One virtual host alone.")
@_operators
@_asking
@_as_json
def list_policies(url: str, vhost: str | None, operator: bool, as_json: bool) -> None:
    """All policies, or all operator policies."""
    names = ("vhost", "name", "pattern", "apply-to", "priority", "definition")
    found = Api(url).ask("GET", *in_host(_policies(operator), vhost))
    _show(found, tuple(map(field, names)), "policy", as_json)


@policy.command("set")
@click.argument("name")
@click.argument("pattern")
@click.argument("definition")
@click.option("--priority", type=int, default=0, show_default=True, help="The highest of those that match counts.")
@click.option(
    "--apply-to", default="all", show_default=True, help="queues, classic_queues, quorum_queues or exchanges."
)
@_operators
@_in_host
def set_policy(
    url: str, vhost: str, name: str, pattern: str, definition: str, priority: int, apply_to: str, operator: bool
) -> None:
    """Set a policy for the names in which PATTERN is found. DEFINITION is a JSON object: '{"max-length": 100}'."""
    said = {"pattern": pattern, "definition": _object(definition, "DEFINITION"), "priority": priority}
    Api(url).ask("PUT", _policies(operator), vhost, name, body={**said, "apply-to": apply_to})


@policy.command("clear")
@click.argument("name")
@_operators
@_in_host
def clear_policy(url: str, vhost: str, name: str, operator: bool) -> None:
    """Remove a policy."""
    Api(url).ask("DELETE", _policies(operator), vhost, name)


# -- connections


@click.group()
def connection() -> None:
    """List and close the connections of a broker's clients."""


@connection.command("list")
@_listing
def list_connections(**options: Any) -> None:
    """All connections."""
    _list(CONNECTIONS, **options)


@connection.command("close")
@click.argument("name")
@_asking
def close_connection(url: str, name: str) -> None:
    """Close a connection; its unacked messages go back to their queues."""
    Api(url).ask("DELETE", "connections", name)


# -- lanes


@click.group()
def lane() -> None:
    """List the lanes of a program's executors."""


@lane.command("list")
@_listing
def list_lanes(**options: Any) -> None:
    """All lanes of executors that are watched."""
    _list(LANES, **options)


# -- users


@click.group()
def user() -> None:
    """List, add, change and delete a broker's users."""


@user.command("list")
@_asking
@_as_json
def list_users(url: str, as_json: bool) -> None:
    """All users and their tags."""
    api = Api(url)
    users = [{"name": each["name"], "tags": each["tags"]} for each in api.ask("GET", "users")]
    _show(users, (field("name"), field("tags")), "user", as_json)


def _password() -> str:
    """A password, typed twice, or the first line of standard input."""
    if sys.stdin is not None and sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    line = "" if sys.stdin is None else sys.stdin.readline().removesuffix("\n")
    if not line:
        raise MonitorError("no password on standard input; give one as a line")
    return line


@user.command("add")
@click.argument("name")
@click.option("--tag", "tags", multiple=True, help="administrator, monitoring, policymaker or management; repeatable.")
@_asking
def add_user(url: str, name: str, tags: tuple[str, ...]) -> None:
    """Create a user; then give it permissions. The password is asked for, or read as a line from standard input."""
    api = Api(url)
    if any(each["name"] == name for each in api.ask("GET", "users")):
        raise MonitorError(f"there is a user '{name}'; `user password {name}` changes the password")
    api.ask("PUT", "users", name, body={"password": _password(), "tags": ",".join(tags)})


@user.command("password")
@click.argument("name")
@_asking
def change_password(url: str, name: str) -> None:
    """Change a user's password; it is asked for, or read as a line from standard input."""
    api = Api(url)
    tags = api.ask("GET", "users", name)["tags"]
    api.ask("PUT", "users", name, body={"password": _password(), "tags": ",".join(tags)})


@user.command("delete")
@click.argument("name")
@_asking
def delete_user(url: str, name: str) -> None:
    """Remove a user; connections that are open stay open."""
    Api(url).ask("DELETE", "users", name)


@user.command()
@click.argument("name")
@click.option("--configure", help="A regular expression of names.")
@click.option("--write", help="A regular expression of names.")
@click.option("--read", help="A regular expression of names.")
@_in_host
@_as_json
def permissions(
    url: str, vhost: str, name: str, configure: str | None, write: str | None, read: str | None, as_json: bool
) -> None:
    """Show a user's permissions, or set them for one virtual host by all three expressions."""
    api = Api(url)
    given = {"configure": configure, "write": write, "read": read}
    if any(value is not None for value in given.values()):
        missing = [f"--{each}" for each, value in given.items() if value is None]
        if missing:
            raise MonitorError(f"{' and '.join(missing)}: missing; give all three, '.*' permits everything")
        api.ask("PUT", "permissions", vhost, name, body=given)
        return
    columns = (field("vhost"), field("configure"), field("write"), field("read"))
    _show(api.ask("GET", "users", name, "permissions"), columns, "permission", as_json)


# -- definitions


@click.group()
def definitions() -> None:
    """Export and import declarations in RabbitMQ's format."""


@definitions.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option(
    "--for-rabbitmq", is_flag=True, help="Leave out users whose passwords RabbitMQ cannot check; make them there."
)
@_asking
def export_definitions(url: str, file: Path | None, for_rabbitmq: bool) -> None:
    """Write users, virtual hosts, permissions, exchanges, queues and bindings to FILE, or to standard output."""
    from ..amqp import RABBITMQ_HASH  # which loads a broker

    found = Api(url).ask("GET", "definitions")
    if for_rabbitmq:
        found["users"] = [each for each in found["users"] if each["hashing_algorithm"] == RABBITMQ_HASH]
        names = {each["name"] for each in found["users"]}
        for kind in ("permissions", "topic_permissions"):
            found[kind] = [each for each in found[kind] if each["user"] in names]
    text = json.dumps(found, indent=1) + "\n"
    if file is None:
        click.echo(text, nl=False)
    else:
        file.write_text(text, encoding="utf-8")


@definitions.command("import")
@click.argument("file", type=click.File("rb"))
@_asking
def import_definitions(url: str, file: Any) -> None:
    """Load FILE, or standard input for `-`. It names what the broker lacks, and loads all else."""
    try:
        found = json.load(file)
    except ValueError as error:
        raise MonitorError(f"{getattr(file, 'name', 'standard input')} is not JSON: {error}") from error
    left_out = (Api(url).ask("POST", "definitions", body=found) or {}).get("left_out", [])
    for what in left_out:
        click.echo(printable(f"left out: {what}"), err=True)
    if left_out:
        raise RequestFailed(f"{counted(len(left_out), 'definition')} left out; all others are loaded")
