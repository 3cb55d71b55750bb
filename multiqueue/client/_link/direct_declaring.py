"""Exchanges, queues and bindings without a wire: what a server would do with each of their methods. No state.

A refusal of the broker's is raised as it is; `Refused` is one of our own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from ...amqp import REPLY_PREFIX, REPLY_TO, reply_queues
from .direct_host import Refused

if TYPE_CHECKING:
    from .direct_link import DirectLink

Fields = dict[str, Any]


def answer(method: type[Any], **fields: Any) -> Any:
    """A method object without the checks of pamqp, which refuses names that brokers take."""
    made: Any = object.__new__(method)
    for name in method.__slots__:
        setattr(made, name, fields.get(name))
    return made


def _exchange_declare(link: DirectLink, fields: Fields) -> Any:
    name, kind = fields.pop("exchange"), fields.pop("exchange_type")
    link.host.declare_exchange(name, kind, **fields)
    return answer(commands.Exchange.DeclareOk)


def _exchange_delete(link: DirectLink, fields: Fields) -> Any:
    link.host.delete_exchange(fields["exchange"], if_unused=fields["if_unused"])
    return answer(commands.Exchange.DeleteOk)


def _exchange_bind(link: DirectLink, fields: Fields) -> Any:
    link.host.bind_exchange(**fields)
    return answer(commands.Exchange.BindOk)


def _exchange_unbind(link: DirectLink, fields: Fields) -> Any:
    link.host.unbind_exchange(**fields)
    return answer(commands.Exchange.UnbindOk)


def _queue_declare(link: DirectLink, fields: Fields) -> Any:
    name = fields.pop("queue")
    if name == REPLY_TO:  # it is there, though nobody needs to declare it
        return answer(commands.Queue.DeclareOk, queue=name, message_count=0, consumer_count=1)
    if name.startswith(REPLY_PREFIX) and fields["passive"]:
        queue = reply_queues(link.host).find(name)
        if queue is None:
            raise Refused(404, f"NOT_FOUND - no queue '{name}' in vhost '{link.host.name}'")
    else:
        queue = link.host.declare_queue(name, owner=link, **fields)
    figures = queue.statistics()
    counts = {"message_count": figures.available, "consumer_count": figures.consumers}
    return answer(commands.Queue.DeclareOk, queue=queue.name, **counts)


def _queue_delete(link: DirectLink, fields: Fields) -> Any:
    count = link.host.delete_queue(fields.pop("queue"), owner=link, **fields)
    return answer(commands.Queue.DeleteOk, message_count=count)


def _queue_purge(link: DirectLink, fields: Fields) -> Any:
    return answer(commands.Queue.PurgeOk, message_count=link.host.queue(fields["queue"], owner=link).purge())


def _queue_bind(link: DirectLink, fields: Fields) -> Any:
    link.host.bind_queue(**fields, owner=link)
    return answer(commands.Queue.BindOk)


def _queue_unbind(link: DirectLink, fields: Fields) -> Any:
    link.host.unbind_queue(**fields, owner=link)
    return answer(commands.Queue.UnbindOk)


DECLARATIONS: Final[dict[type[Any], Callable[[DirectLink, Fields], Any]]] = {
    commands.Exchange.Declare: _exchange_declare,
    commands.Exchange.Delete: _exchange_delete,
    commands.Exchange.Bind: _exchange_bind,
    commands.Exchange.Unbind: _exchange_unbind,
    commands.Queue.Declare: _queue_declare,
    commands.Queue.Delete: _queue_delete,
    commands.Queue.Purge: _queue_purge,
    commands.Queue.Bind: _queue_bind,
    commands.Queue.Unbind: _queue_unbind,
}
