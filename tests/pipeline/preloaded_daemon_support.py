"""The process that forks Spark's Python workers, with what each of them would import: nearly a second of CPU.

PySpark comes from an archive in which nothing is compiled, and a job whose Python raises has ended its worker. Spark
imports after the fork, lest threads of pandas and pyarrow be lost in it: here they start none.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from pyspark import daemon

if sys.platform == "linux":
    os.environ |= {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OPENBLAS_NUM_THREADS": "1"}
    for name in ("pandas", "pyarrow.dataset", "pyspark.sql.pandas.serializers", "pyspark.worker"):
        import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would be lost in the fork"

if __name__ == "__main__":
    daemon.manager()
