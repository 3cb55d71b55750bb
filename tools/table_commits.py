#!/usr/bin/env python3
"""What a commit to a table costs as commits go on: CPU of the driver, files of the table's own, without Spark.

    python tools/table_commits.py delta 10000

Each commit brings one file with one row, through `Table.commit` and `Table.tidy` as the committer calls them.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import uuid
from pathlib import Path

for _folder in ("tests/pipeline", "tests", "."):
    sys.path.insert(0, str(Path(__file__).parents[1] / _folder))

from pipeline_parts_support import new_number, open_ledger  # noqa: E402
from table_support import output_in, put  # noqa: E402

from multiqueue.pipeline import FileSeen, Item  # noqa: E402


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(kind: str, count: int) -> None:
    with tempfile.TemporaryDirectory() as name, open_ledger(Path(name) / "state.sqlite", Path(name)) as ledger:
        base = Path(name)
        output = output_in(base, kind)
        output.prepare(ledger)
        table, costs = output.tables[""], list[float]()
        for place in range(1, count + 1):
            item = Item(uuid.uuid4().hex[:12], "eu", (FileSeen(f"{place}.txt", 1, 1),), base, 1)
            put(output, item, {"row": ["x"]}, {"lane": "string", "item": "string", "row": "string"})
            written = output.put_out(item, base / "none", has_output=True)
            before = cpu_s()
            assert table.commit([written.change], new_number()) == [None]
            table.tidy()
            costs.append(1000 * (cpu_s() - before))
            if place == 50 or place % (count // 10) == 0:
                own = [path for path in (base / "out/data").glob("[_m][de]*/*") if path.is_file()]
                mean, middle = statistics.mean(costs[-50:]), statistics.median(costs[-50:])
                mb = sum(path.stat().st_size for path in own) / 1e6
                print(f"{place:6}: {mean:5.2f} ms (median {middle:5.2f}), {len(own):4} files, {mb:5.2f} MB", flush=True)
        print(f"the last fifty cost {sum(costs[-50:]) / sum(costs[:50]):.2f} x the first fifty")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
