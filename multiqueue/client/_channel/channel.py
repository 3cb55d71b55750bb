"""A channel: AMQP's vocabulary, for any thread.

Everything that the server answers blocks until the answer is there, one call at a time per channel, and can be called
from a callback. Publishing, acknowledging and rejecting wait for no answer, and not for another thread's call.

Layers      `base` has the state and the lane of callbacks, `calls` calls and the end. On them stand
            `declaring`, `publishing` and `consuming`, the vocabulary, and
            `arrivals`, what the server sends. Here: transactions, and opening.
"""

from __future__ import annotations

from pamqp import commands

from .._base.states import ENDING, Happening, State, after
from .._link.link import Link
from .arrivals import ChannelArrivals
from .base import CONFIRM, TX
from .call import Call
from .consuming import ChannelConsuming
from .declaring import ChannelDeclaring
from .publishing import ChannelPublishing


class Channel(ChannelDeclaring, ChannelPublishing, ChannelConsuming, ChannelArrivals):
    """One channel of a connection; made by `Connection.channel`. Every method may be called from any thread.

    Raises, whatever is called: `ChannelClosed` and `ConnectionClosed` with the server's code and text when it refuses,
    `ConnectionInterrupted` while the connection is being recovered, `CallTimeout` when it does not answer.
    """

    # ---- transactions -------------------------------------------------------------------------------------------

    def tx_select(self) -> None:
        """From now on publishes and settlements on this channel wait for `tx_commit`."""
        self.call(commands.Tx.Select, commands.Tx.SelectOk)
        self._mode = TX

    def tx_commit(self) -> None:
        """Do what was published and settled since the last time, all of it."""
        self.call(commands.Tx.Commit, commands.Tx.CommitOk)

    def tx_rollback(self) -> None:
        """Do none of it. What was settled is unsettled again, under the same delivery tags."""
        self.call(commands.Tx.Rollback, commands.Tx.RollbackOk)

    # ---- opening, and opening again -----------------------------------------------------------------------------

    def open_on(self, link: Link) -> None:
        """Open it on a link: at first, or on the next one with quality of service and mode as they were."""
        with self._lock:
            is_first = self._state is State.OPENING
        self._call_on(link, Call(commands.Channel.OpenOk), commands.Channel.Open, None, {})
        for global_, count in self._qos.items():
            fields = {"prefetch_size": 0, "prefetch_count": count, "global_": global_}
            self._call_on(link, Call(commands.Basic.QosOk), commands.Basic.Qos, None, fields)
        if self._mode == CONFIRM:
            self._call_on(link, Call(commands.Confirm.SelectOk), commands.Confirm.Select, None, {})
        elif self._mode == TX:
            self._call_on(link, Call(commands.Tx.SelectOk), commands.Tx.Select, None, {})
        if is_first and not self.opened(link):
            raise self._lost()  # after the answer, and before anybody had the channel

    def opened(self, link: Link) -> bool:
        """Open for everybody; False when it has ended, or the link was lost, meanwhile."""
        with self._lock:
            if self._state in ENDING or self._link is not link:
                return False
            self._state = after(self._state, Happening.OPENED)
            self._changed.notify_all()
            return True
