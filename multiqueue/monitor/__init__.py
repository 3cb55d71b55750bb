"""The windows: a running broker seen from outside, by the tools people already have.

Promises RabbitMQ's HTTP API and Prometheus names for what the broker has, and that looking costs the broker nothing
that grows with the number of those who look. Sees all rooms through their doors; no room imports this one. Needs
Starlette, uvicorn and prometheus-client (`blocking-multiqueue[monitor]`).
"""

from .._logs import one_line_each as _one_line_each
from ._base.errors import MonitorError as MonitorError
from ._figures.lanes import Lanes as Lanes
from ._figures.sampler import Sampler as Sampler
from ._figures.samples import Sample as Sample
from ._metrics.program import Figures as Figures
from ._server.pipeline import PipelineWindows as PipelineWindows
from ._server.server import HttpServer as HttpServer
from ._server.server import serve_http as serve_http
from ._server.server import serve_lanes as serve_lanes

_one_line_each("multiqueue.monitor")

__all__ = [name for name in dir() if name[0].isalpha()]
