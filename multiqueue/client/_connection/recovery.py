"""Recovery: from a lost link to a connection that is as it was, on a thread of its own.

What cannot be restored is logged and costs nothing else. A link that is lost meanwhile begins it anew. The order, and
what is published again, is promise 9 of docs/design/client.md. Source: AutorecoveringConnection of RabbitMQ's Java
client.
"""

from __future__ import annotations

import logging
import threading

from .._base.errors import ClientError, ConnectionClosed
from .._base.states import State
from .._channel.channel import Channel
from .._channel.recorded_topology import Declaration
from .._link.link import Link
from .connection import Connection

_log = logging.getLogger("multiqueue.client")


def begin_recovery(connection: Connection) -> None:
    threading.Thread(target=Recovery(connection).run, name=f"{connection.name}-recovery", daemon=True).start()


class Recovery:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._log = logging.LoggerAdapter(_log, {"connection": repr(connection)})
        self._scratch: Channel | None = None

    def run(self) -> None:
        """Try until the connection is as it was, or is closed."""
        connection = self._connection
        while not connection.wait_until_closing(connection.settings.recovery_interval):
            try:
                link = connection.connect_again()
            except ClientError as error:
                self._log.warning("%r: %s; trying again", connection, error)
                continue
            except Exception as error:  # noqa: BLE001  # no error here gives the connection up
                self._log.error("%r: connecting failed; trying again", connection, exc_info=error)
                continue
            if not connection.adopt(link):
                return
            if self._restore(link):
                return

    def _restore(self, link: Link) -> bool:
        connection = self._connection
        self._drop_scratch()
        channels = connection.channels_to_recover()
        try:
            for channel in channels:
                self._each(channel, lambda channel: channel.open_on(link))
            self._restore_topology(link)
            for channel in channels:
                self._each(channel, lambda channel: channel.resume_consumers(link))
            messages = sum(channel.republish(link) for channel in channels if channel.state is State.INTERRUPTED)
        except ConnectionClosed as error:
            self._log.warning("%s; beginning anew", error)
            link.end(error)  # or a live one would be forgotten, with what the server keeps for it
            return False
        except Exception as error:  # noqa: BLE001  # a defect of ours must not leave half a connection
            self._log.error("%r: recovery failed; beginning anew", connection, exc_info=error)
            link.end(ConnectionClosed(f"recovery failed: {error!r}"))
            link.join(None)
            return False
        if not connection.opened(link):
            return connection.is_closed
        for channel in channels:
            channel.opened(link)
        figures = f"{len(channels)} channels, {messages} messages published again"
        self._log.info("%r is recovered: %s", connection, figures)
        connection.tell_recovered()
        return True

    def _each(self, channel: Channel, step: object) -> None:
        """A step for one channel. What the server refuses costs that channel alone."""
        if channel.state is not State.INTERRUPTED:
            return  # closed meanwhile, or by the step before
        try:
            step(channel)  # type: ignore[operator]
        except ConnectionClosed:
            raise
        except ClientError as error:
            if getattr(error, "reply_code", 0) != 200:  # else it was closed by the application meanwhile
                self._log.error("%r could not be restored: %s", channel, error)

    def _restore_topology(self, link: Link) -> None:
        failures = self._connection.topology.replay(lambda declaration: self._declare(link, declaration))
        for declaration, error in failures:
            if isinstance(error, ConnectionClosed):
                raise error
            self._log.error("%r: could not restore %s: %s", self._connection, declaration, error)
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def _drop_scratch(self) -> None:
        """The channel that we declared on was closed, or its link is gone; no other thread ends it."""
        if self._scratch is not None:
            self._scratch.finish(None)
            self._scratch = None

    def _declare(self, link: Link, declaration: Declaration) -> str:
        if self._scratch is None or self._scratch.state is not State.OPEN:
            self._drop_scratch()
            self._scratch = self._connection.scratch_channel(link)
            self._scratch.open_on(link)
        answer = self._scratch.call_on(link, declaration.method, declaration.fields)
        return str(getattr(answer, "queue", ""))
