"""The parts of `multiqueue.monitor` that its tests try alone: the one place where they name its modules."""

from __future__ import annotations

from multiqueue.monitor import _access as _access
from multiqueue.monitor import _app as _app
from multiqueue.monitor import _bodies as bodies  # noqa: F401
from multiqueue.monitor import _events as _events
from multiqueue.monitor import _held as _held
from multiqueue.monitor import _lanes as _lanes
from multiqueue.monitor import _listing as _listing
from multiqueue.monitor import _messages as _messages
from multiqueue.monitor import _patience as _patience
from multiqueue.monitor import _pieces as _pieces
from multiqueue.monitor import _reading as _reading
from multiqueue.monitor import _sampler as _sampler
from multiqueue.monitor import _server as _server
from multiqueue.monitor import _troubles as _troubles
from multiqueue.monitor import _views as _views
from multiqueue.monitor import _watch as _watch
from multiqueue.monitor._asking import Table as Table
from multiqueue.monitor._definitions import Import as Import
from multiqueue.monitor._definitions import export_definitions as export_definitions
from multiqueue.monitor._errors import Refused as Refused
from multiqueue.monitor._history import Gaps as Gaps
from multiqueue.monitor._history import History as History
from multiqueue.monitor._history import Track as Track
from multiqueue.monitor._listing import columns as columns
from multiqueue.monitor._listing import listing as listing
from multiqueue.monitor._listing import page_of_many as page_of_many
from multiqueue.monitor._openapi import description as description
from multiqueue.monitor._samples import Census as Census
from multiqueue.monitor._samples import Totals as Totals
from multiqueue.monitor._samples import totals as totals
from multiqueue.monitor._shell import Api as Api
from multiqueue.monitor._shell import field as field
from multiqueue.monitor._shell import table as table
