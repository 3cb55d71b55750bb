"""The broker: a virtual host with threads of its own, and further virtual hosts that share them.

Promise     `Broker()` works at once; `close` returns when no callback runs any more and its threads are joined.
State       `_hosts_lock` guards the further virtual hosts. It is a leaf.
Who runs    The scheduler's threads run callbacks of subscriptions, the housekeeping thread lets time pass for
            queues; everything else runs on the caller's thread.
Membership  Closing goes from the outside in: first no host accepts anything, then subscriptions end, then queues,
            then the threads. A callback may close the broker: it waits for no callback and joins no thread of
            the scheduler's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from ._alerts import Alert
from ._errors import NotAllowed
from ._housekeeping import Housekeeping
from ._scheduler import Scheduler
from ._subscription import runs_callback
from ._virtual_host import VirtualHost


class Broker(VirtualHost):
    """A broker in this process, started in one line and closed by `with` or `close`.

        with Broker() as broker:
            broker.declare_queue("orders")
            broker.consume("orders", lambda received: print(received.body), auto_accept=True)
            broker.publish(Message(b"one tea", routing_key="orders"))

    It is itself the virtual host `/`. `threads` run callbacks; `housekeeping_interval` seconds lie between two
    looks at the time of every queue, so a time to live is kept that exactly on a queue that nobody touches.
    `on_alert` is told of thresholds that queues were declared with, by default through the log.
    """

    def __init__(
        self,
        *,
        threads: int = 2,
        housekeeping_interval: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        on_alert: Callable[[Alert], None] | None = None,
    ) -> None:
        self._housekeeping_thread = Housekeeping(housekeeping_interval)
        self._scheduler_threads = Scheduler(threads)
        super().__init__(
            "/",
            clock=clock,
            wall_clock=wall_clock,
            on_alert=on_alert,
            scheduler=self._scheduler_threads,
            housekeeping=self._housekeeping_thread,
        )
        self._hosts_lock = threading.Lock()
        self._hosts: dict[str, VirtualHost] = {"/": self}
        self._housekeeping_thread.start()

    def add_virtual_host(self, name: str) -> VirtualHost:
        """The virtual host of this name, made when there is none; it shares this broker's threads."""
        self.check_open()
        with self._hosts_lock:
            host = self._hosts.get(name)
            if host is None:
                host = self._hosts[name] = VirtualHost(
                    name,
                    clock=self._clock,
                    wall_clock=self._wall_clock,
                    on_alert=self._on_alert,
                    scheduler=self._scheduler_threads,
                    housekeeping=self._housekeeping_thread,
                )
        if self.is_closed:
            host.close()
            self.check_open()
        return host

    def virtual_host(self, name: str = "/") -> VirtualHost:
        """The virtual host of this name.

        Raises:
            NotAllowed: there is none.
        """
        with self._hosts_lock:
            host = self._hosts.get(name)
        if host is None:
            raise NotAllowed(f"vhost '{name}' not found")
        return host

    def close(self, timeout: float | None = None) -> None:
        """Close every virtual host and end the threads. Closing twice is harmless.

        Blocked threads are told, and messages are gone. Callbacks that run are waited for, `timeout` seconds at
        most per virtual host; a callback that closes the broker waits for none, and the threads end after it.
        """
        with self._hosts_lock:
            others = [host for host in self._hosts.values() if host is not self]
        super().close(timeout)
        for host in others:
            host.close(timeout)
        self._scheduler_threads.close(0.0 if runs_callback() else timeout)
        self._housekeeping_thread.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
