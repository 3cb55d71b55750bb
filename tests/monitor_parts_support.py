"""The parts of `multiqueue.monitor` that its tests try alone: the one place where they name its modules."""

# ruff: noqa: F401
from __future__ import annotations

from multiqueue.monitor._api import bodies as bodies
from multiqueue.monitor._api import events as _events
from multiqueue.monitor._api import listing as _listing
from multiqueue.monitor._api import messages as _messages
from multiqueue.monitor._api import reading as _reading
from multiqueue.monitor._api import views as _views
from multiqueue.monitor._api.asking import Table as Table
from multiqueue.monitor._api.definitions import Import as Import
from multiqueue.monitor._api.definitions import export_definitions as export_definitions
from multiqueue.monitor._api.listing import columns as columns
from multiqueue.monitor._api.listing import listing as listing
from multiqueue.monitor._api.listing import page_of_many as page_of_many
from multiqueue.monitor._api.openapi import description as description
from multiqueue.monitor._base import held as _held
from multiqueue.monitor._base import pieces as _pieces
from multiqueue.monitor._base.errors import Refused as Refused
from multiqueue.monitor._door import access as _access
from multiqueue.monitor._door import patience as _patience
from multiqueue.monitor._figures import lanes as _lanes
from multiqueue.monitor._figures import sampler as _sampler
from multiqueue.monitor._figures.history import Gaps as Gaps
from multiqueue.monitor._figures.history import History as History
from multiqueue.monitor._figures.history import Track as Track
from multiqueue.monitor._figures.samples import Census as Census
from multiqueue.monitor._figures.samples import Totals as Totals
from multiqueue.monitor._figures.samples import totals as totals
from multiqueue.monitor._server import app as _app
from multiqueue.monitor._server import server as _server
from multiqueue.monitor._shell import troubles as _troubles
from multiqueue.monitor._shell import watch as _watch
from multiqueue.monitor._shell.client import Api as Api
from multiqueue.monitor._shell.client import field as field
from multiqueue.monitor._shell.client import table as table
