"""Put `multiqueue` in the place of `queue` in each interpreter that has this folder on its PYTHONPATH.

SWAPPED says what is replaced: "queue", or "queue executor" for ThreadPoolExecutor too, or nothing. This runs before the
program imports anything, so that each `import queue` of it finds ours.
"""

import os
import sys

swapped = os.environ.get("SWAPPED", "").split()
if "queue" in swapped:
    import multiqueue

    assert multiqueue.LifoQueue  # loads the core, which imports the standard library's queue
    sys.modules["queue"] = multiqueue
if "executor" in swapped:
    import concurrent.futures.thread

    import multiqueue

    concurrent.futures.ThreadPoolExecutor = multiqueue.MultiQueueExecutor  # type: ignore[misc]
    concurrent.futures.thread.ThreadPoolExecutor = multiqueue.MultiQueueExecutor  # type: ignore[misc]
