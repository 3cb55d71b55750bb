"""Sessions, for those who run them without a server: the client's direct link to a broker in its own process.

Promises that a session does the same over a socket and in process: of its surroundings it knows `Output` and `Effects`.
"""

from ._session.client import AllRights, Client
from ._session.confirms import CommitReports, Confirms
from ._session.effects import Addressee, Effects, Output, Puller, Served
from ._session.ending import end_each
from ._session.faults import fail
from ._session.figures import host_figures
from ._session.session import Session, to_wait_for, want
from ._session.turns import Turns
from ._wire.message import Digests

__all__ = [
    "Addressee",
    "AllRights",
    "Client",
    "CommitReports",
    "Confirms",
    "Digests",
    "Effects",
    "Output",
    "Puller",
    "Served",
    "Session",
    "Turns",
    "end_each",
    "fail",
    "host_figures",
    "to_wait_for",
    "want",
]
