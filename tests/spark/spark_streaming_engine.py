"""A driver to be killed, without a JVM: Spark's part in a stream with its logs on disk, as a program.

    python spark_streaming_engine.py run|finish URL DIRECTORY spool|lease

`run` goes on until it is killed. `finish` reads what there is, and prints what the output has: a JSON list of
[message id, redelivered].
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_parts_support import QueueStreamReader
from spark_streaming_support import Engine, source_reader


class DiskEngine(Engine):
    """An engine that goes on from what it has logged. A log's entries appear whole, as in Spark's checkpoint."""

    def __init__(self, make: Callable[[], QueueStreamReader], directory: Path) -> None:
        super().__init__(make)
        self._directory = directory
        for kind in ("offsets", "output", "commits"):
            (directory / kind).mkdir(exist_ok=True)
        self.offsets = self.entries("offsets")
        self.committed = len(self.entries("commits"))
        if self.committed < len(self.offsets):
            self._run()

    def log(self, kind: str, number: int, content: Any) -> None:
        if kind == "output":
            content = [[row["message_id"], row["redelivered"]] for row in content]
        temporary = self._directory / f"{kind}.tmp"
        temporary.write_text(json.dumps(content))
        temporary.replace(self._directory / kind / f"{number:06d}")

    def entries(self, kind: str) -> list[Any]:
        return [json.loads(path.read_text()) for path in sorted((self._directory / kind).iterdir())]


def main(what: str, url: str, directory: str, way: str) -> None:
    options = {"url": url, "queue": "orders", "maxMessagesPerBatch": "25"}
    options |= {"spool": f"{directory}/spool"} if way == "spool" else {"sourceId": "orders"}
    engine = DiskEngine(lambda: source_reader(options), Path(directory))
    if what == "finish":
        engine.reader.prepareForTriggerAvailableNow()
        while engine.batch():
            pass
        engine.reader.stop()
        print(json.dumps([row for rows in engine.entries("output") for row in rows]))
        return
    print("running", flush=True)
    while True:
        engine.batch()


if __name__ == "__main__":
    main(*sys.argv[1:])
