"""The address of a broker queue."""

from __future__ import annotations

from urllib.parse import unquote


def split_source(url: str) -> tuple[str, str]:
    """The broker's address and the queue in `amqp://HOST[/VHOST]/QUEUE`.

    Raises:
        ValueError: there is no queue in it.
    """
    head, _, query = url.partition("?")
    scheme, _, rest = head.partition("://")
    address, slash, queue = rest.rpartition("/")
    if scheme not in ("amqp", "amqps") or not slash or not address or not queue:
        raise ValueError(f"{url!r} names no queue; write amqp://user:password@host:5672/vhost/queue")
    return f"{scheme}://{address}" + (f"?{query}" if query else ""), unquote(queue)
