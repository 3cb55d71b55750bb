"""A connection of the server, from its first byte to its last.

Promise     Whatever a peer sends, or fails to send, ends at most its own connection, cleanly: everything it had goes
            back to its queues. A peer that reads slowly has a bounded amount waiting, one that publishes too fast
            is not read from.
Layers      `connection_base` has the state and writes, `connection_holding` stops reading and goes on,
            `connection_reading` makes frames of bytes; here are the handshake, the transport's word and time.
Ending      `connection_lost` is the one way out. It ends the channels, then the exclusive queues. While something runs
            aside for a channel, that one and the exclusive queues end when it is done: whoever gets an exclusive name
            next sees its commits done or undone, and none comes later (leases of the Spark source rest on this).
            What runs aside ends in its own work what must not be undone; nothing else of it is run then.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, cast

from .._session import consuming as consuming  # for the methods that they register
from .._session import declaring as declaring
from .._session.channel import ServerChannel
from .._session.ending import end_each
from .._wire.errors import ConnectionFault
from .._wire.frames import HEARTBEAT, MIN_FRAME_MAX
from .._wire.methods import commands, decode_method
from .access import Rights, is_loopback
from .connection_machine import ConnectionState, Tuning, tuned
from .connection_reading import ConnectionReading
from .handshake import Claim, RefusedLogin, claim, common_name
from .newcomers import network_of

_log = logging.getLogger("multiqueue.amqp")
REFUSED_AFTER = 1.0  # seconds; longer than hashes take that may wait (`logins`)


class ServerConnection(ConnectionReading):
    """One client."""

    # -- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer is there; it has some seconds to open the connection."""
        self._transport = cast(asyncio.Transport, transport)
        peer, here = (transport.get_extra_info(key) or ("", 0) for key in ("peername", "sockname"))
        self._address = str(peer[0])
        self._peer, self._here = (str(peer[0]), int(peer[1])), (str(here[0]), int(here[1]))
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        self.name = self.owner.name = f"{peer[0]}:{peer[1]} -> {here[0]}:{here[1]}"
        high = self.settings.write_buffer_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 4)
        if self._newcomer is not None:
            self._newcomer.cut = lambda: self.io.post(self.abort)
        if not self.server.admit(self):
            if not self.server.is_closed:
                most = self.settings.max_connections
                self.server.strangers.warning("%s: refused, there are %d connections", self.name, most)
            self._transport.abort()
            return
        self._set_timer(self.settings.handshake_timeout, self._too_slow)

    def eof_received(self) -> None:
        """The peer sends nothing further; that is its end."""

    def connection_lost(self, exc: BaseException | None) -> None:
        """The socket is closed."""
        self._is_lost = True
        self._cancel_timer()
        self._arrived()
        if self._login is not None:
            self._login.cancel()
        self._pending.clear()
        self._pending_bytes = 0
        self._out.clear()
        if self._is_aside:
            # Those that are ours, so that nobody's messages wait for the other thread.
            self._piecework.add(self._end_channels(), lambda _: None)
        else:
            self._end()

    def pause_writing(self) -> None:
        """The peer reads slowly: its consumers want nothing for now."""
        self.is_held_back = True
        self._want_or_not()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.is_held_back = False
        self._unread_bytes = 0
        self._want_or_not()
        self._let_go("replies")

    def _new_channel(self, number: int) -> ServerChannel:
        most = self._channel_max  # open at a time: as RabbitMQ, whatever their numbers are
        if len(self.channels) >= most:
            opened = len(self.channels)
            text = f"number of channels opened ({opened}) has reached the negotiated channel_max ({most})"
            raise ConnectionFault(530, text)
        return ServerChannel(self, number)

    # -- the handshake

    def _start(self, major: int, minor: int) -> None:
        self.machine.started()
        certificate = self._transport.get_extra_info("peercert")
        self._offered = ("PLAIN", "AMQPLAIN", "EXTERNAL") if certificate else ("PLAIN", "AMQPLAIN")
        self._reply(
            commands.Connection.Start,
            version_major=major,
            version_minor=minor,
            server_properties=self.server.properties,
            mechanisms=" ".join(self._offered),
            locales="en_US",
        )
        self.flush()

    def _call(self, payload: bytes) -> None:
        method: Any = decode_method(payload)
        if isinstance(method, commands.Connection.StartOk):
            self._log_in(method)
        elif isinstance(method, commands.Connection.TuneOk):
            self._tune(method)
        elif isinstance(method, commands.Connection.Open):
            self._open(method)
        elif isinstance(method, commands.Connection.Close):
            self._closed_by_client()
        elif isinstance(method, commands.Connection.CloseOk):
            self._close_transport()
        elif isinstance(method, commands.Connection.UpdateSecret):
            self._reply(commands.Connection.UpdateSecretOk)

    def _log_in(self, method: Any) -> None:
        self.client_properties = method.client_properties
        self._mechanism = method.mechanism
        self._asked_at = self.io.loop.time()
        try:
            certificate = self._transport.get_extra_info("peercert")
            who = claim(method.mechanism, method.response, self._offered, common_name(certificate))
        except RefusedLogin as refused:
            self._refuse(refused)
            return
        password = who.password
        known = True if password is None else self.server.access.look(who.user, password)
        if password is None or known is not None:
            self._logged_in(who, method.mechanism, known is True)
            return
        self._hold("login", softly=True)
        told = partial(self.io.post, self._verified, who, method.mechanism)
        self._login = self.server.logins.verify(network_of(self._address), who.user, password, told)
        if self._login is None:
            self._refuse(RefusedLogin(method.mechanism, f"user '{who.user}': too many wait for an answer"))

    def _verified(self, who: Claim, mechanism: str, is_right: bool) -> None:
        """The password was hashed."""
        self._login = None
        if self._is_lost or self._transport.is_closing() or self.machine.state is not ConnectionState.TUNING:
            return  # the peer, or the server, has not waited for it
        self._logged_in(who, mechanism, is_right)
        self._let_go("login")
        self.flush()

    def _logged_in(self, who: Claim, mechanism: str, verified: bool) -> None:
        user = self.server.access.user(who.user)
        if user is None or not verified:
            self._refuse(RefusedLogin(mechanism, f"user '{who.user}': invalid credentials"))
        elif user.loopback_only and not is_loopback(self._address):
            self._refuse(RefusedLogin(mechanism, f"user '{who.user}' can only connect via localhost"))
        else:
            self.user = user
            self._arrived()
            offer = self.settings
            self._reply(
                commands.Connection.Tune,
                channel_max=offer.channel_max,
                frame_max=offer.frame_max,
                heartbeat=offer.heartbeat,
            )

    def _arrived(self) -> None:
        """It is no newcomer any more."""
        newcomer, self._newcomer = self._newcomer, None
        if newcomer is not None:
            self.server.newcomers.leave(newcomer)

    def _refuse(self, refused: RefusedLogin) -> None:
        """Say no, `REFUSED_AFTER` seconds after it asked: how long it took to find out is nobody's business."""
        kind = refused.detail.split(" mechanism ")[-1].split(".")[0]
        self.server.strangers.warning("%s: %s login refused: %s", self.name, kind, refused.reason)
        if self._newcomer is not None:
            self.server.newcomers.refuse(self._newcomer)
        self._hold("refused", softly=True)
        left = self._asked_at + REFUSED_AFTER - self.io.loop.time()
        self._set_timer(max(0.0, min(left, self.settings.handshake_timeout)), partial(self._say_no, refused))

    def _say_no(self, refused: RefusedLogin) -> None:
        if self.can("authentication_failure_close"):
            self.fault(refused)
            self.flush()
            return
        self._is_deaf = True
        self._close_transport()

    def _tune(self, method: Any) -> None:
        offer = Tuning(self.settings.channel_max, self.settings.frame_max, self.settings.heartbeat)
        both = tuned(offer, Tuning(method.channel_max, method.frame_max, method.heartbeat), MIN_FRAME_MAX)
        self._channel_max = both.channel_max or self.settings.channel_max
        self.frame_max = both.frame_max or self.settings.frame_max
        self._splitter.frame_max = self.frame_max
        self._heartbeat = both.heartbeat

    def _open(self, method: Any) -> None:
        name = method.virtual_host
        self.host = self.server.virtual_host(name)
        self.publisher = self.host.publisher(self.post_committed)
        self.rights = Rights(self.user, name)
        self._reply(commands.Connection.OpenOk)
        self._cancel_timer()
        if self._heartbeat:
            self._set_timer(self._heartbeat / 2, self._tick)
        _log.info("%s: user '%s' opened vhost '%s'", self.name, self.user.name, name)

    # -- time

    def _too_slow(self) -> None:
        patience = self.settings.handshake_timeout
        self.server.strangers.warning("%s: not open after %g s, cut", self.name, patience)
        self._transport.abort()

    def _tick(self) -> None:
        self._set_timer(self._heartbeat / 2, self._tick)
        send, is_gone = self._monitor.tick(listening=not self._holds)
        if is_gone:
            _log.warning("%s: missed heartbeats, timeout: %d s", self.name, self._heartbeat)
            self._transport.abort()
        elif send:
            self.send(HEARTBEAT)
            self.flush()

    # -- the end

    def shut_down(self) -> None:
        """The server goes."""
        if self.machine.state is ConnectionState.RUNNING:
            self.fault(ConnectionFault(320, "broker shut down"))
            self.flush()
        else:
            self._close_transport()

    def close_by_operator(self, why: str) -> None:
        """Somebody who may closes it."""
        self.fault(ConnectionFault(320, why))
        self.flush()

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def _closed_by_client(self) -> None:
        def close(_: Exception | None) -> None:
            end_each(self, [("delete its exclusive queues", self._release_owner)])
            self._reply(commands.Connection.CloseOk)
            self.flush()
            self._is_deaf = True
            self._close_transport()

        self._piecework.add(self._end_channels(), close)

    def _end(self) -> None:
        def end(_: Exception | None) -> None:
            steps = (
                ("delete its exclusive queues", self._release_owner),
                ("be forgotten", lambda: self.server.forget(self)),
            )
            end_each(self, steps)

        self._piecework.add(self._end_channels(), end)

    def _release_owner(self) -> None:
        if hasattr(self, "host"):
            self.host.release_owner(self.owner)
