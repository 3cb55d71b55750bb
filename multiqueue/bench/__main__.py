"""`python -m multiqueue.bench`: the benchmarks without the rest of the command line."""

from __future__ import annotations

import sys

try:
    from .cli import bench
except ModuleNotFoundError as _error:
    if _error.name != "click":
        raise
    sys.exit("the benchmarks' command line needs click: pip install 'blocking-multiqueue[cli]'")

bench(prog_name="python -m multiqueue.bench")
