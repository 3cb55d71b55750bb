"""Tools that make concurrency tests deterministic: for users of multiqueue, and for its own tests.

Promises: a schedule that fails can be replayed; no tool sleeps and hopes; a thread that hangs is shown, not
waited for. `explore` tries all interleavings, `Sequencer` and `FakeClock` decide one, `interruptions` strikes
everywhere; `multiqueue.testing.contracts` states what every queue must do. Knows the core, of which it replaces
names in `_sync` while a test runs, and for the contract of entry lists the broker. Needs the standard library alone.
"""

from ._blocked import wait_until_blocked as wait_until_blocked
from ._clock import FakeClock as FakeClock
from ._errors import Deadlock as Deadlock
from ._errors import Livelock as Livelock
from ._errors import NotDeterministic as NotDeterministic
from ._errors import ScheduleFailed as ScheduleFailed
from ._errors import StillBlocked as StillBlocked
from ._errors import TestToolError as TestToolError
from ._errors import TooManySchedules as TooManySchedules
from ._explore import Exploration as Exploration
from ._explore import explore as explore
from ._explore import replay as replay
from ._interruptions import Point as Point
from ._interruptions import interruptions as interruptions
from ._patience import PATIENCE as PATIENCE
from ._run import Run as Run
from ._sequencer import Sequencer as Sequencer
from ._steps import Spawned as Spawned
from ._threads import Handle as Handle
from ._threads import Threads as Threads
from ._threads import stress as stress
from ._threads import switch_interval as switch_interval

__all__ = [name for name in dir() if name[0].isalpha()]
