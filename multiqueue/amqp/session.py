"""Sessions, for those who run them without a server: the client's direct link to a broker in its own process.

Promises that a session does the same over a socket and in process: of its surroundings it knows `Output` and `Effects`.
"""

from ._session.confirms import CommitReports as CommitReports
from ._session.confirms import Confirms as Confirms
from ._session.consumer import SessionConsumer as SessionConsumer
from ._session.consumer import Turns as Turns
from ._session.effects import AfterCommit as AfterCommit
from ._session.effects import Client as Client
from ._session.effects import Effects as Effects
from ._session.effects import Output as Output
from ._session.effects import Served as Served
from ._session.effects import Work as Work
from ._session.effects import end_each as end_each
from ._session.effects import fail as fail
from ._session.figures import host_figures as host_figures
from ._session.session import Session as Session
from ._session.session import to_wait_for as to_wait_for
from ._session.session import want as want
from ._wire.errors import reason as reason
from ._wire.frames import Content as Content
