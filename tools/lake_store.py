"""The workloads of `multiqueue bench pipeline` with their files in a store that Spark has no connector for.

    python tools/lake_store.py [--rounds 1] [WORKLOAD ...]

The rival is written by hand: tasks read the files by s3fs in `mapInArrow`, and Spark's CSV reader makes rows of the
lines. The store is a stand-in for S3, a process whose CPU is not counted; its objects are all alike, and made up. It
answers in a tenth of a millisecond, so what a store takes to answer is not seen.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape
from zlib import crc32

from multiqueue.bench import _pipeline as bench
from multiqueue.bench._harness import run_suite
from multiqueue.bench._model import Figures, Goal, Rival, Suite, Workload
from multiqueue.bench._report import as_page
from multiqueue.bench._spark import session
from multiqueue.pipeline import Silent, parse_config, run_pipeline

BUCKET = "lake"
KEYS = {"key": "bench", "secret": "bench-of-the-lake"}
TASKS = 32
_WHEN = 1_767_225_600.0  # 2026-01-01
_MOST = 1000


class _Connection(asyncio.Protocol):
    """One client's requests, in order; none has a body, and what is put is like all others."""

    def __init__(self, keys: list[str], put: dict[str, float], body: bytes) -> None:
        self._keys, self._put, self._body, self._rest = keys, put, body, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._rest = (self._rest + data).split(b"\r\n\r\n")
        for request in requests:
            first, *lines = request.decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            method, target, _ = first.split(" ")
            assert isinstance(self._transport, asyncio.Transport)
            self._transport.writelines(self._answer(method, urlsplit(target).path, urlsplit(target).query, headers))

    def _answer(self, method: str, path: str, query: str, headers: dict[str, str]) -> list[bytes]:
        key = unquote(path).removeprefix(f"/{BUCKET}").removeprefix("/")
        if not key:
            return _said("200 OK", self._page({name: one[0] for name, one in parse_qs(query).items()}).encode())
        place = bisect_left(self._keys, key)
        is_there = place < len(self._keys) and self._keys[place] == key
        if method == "PUT":
            self._keys[place : place + is_there] = [key]
            self._put[key] = time.time()
            return _said("200 OK", b"")
        if not is_there:
            return _said("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>")
        when = formatdate(self._put.get(key, _WHEN), usegmt=True)
        more = f'Last-Modified: {when}\r\nETag: "{self._etag(key)}"\r\nAccept-Ranges: bytes\r\n'
        size = len(self._body)
        if method == "HEAD":
            return _said("200 OK", b"", more, size)
        start, _, last = headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
        end = min(int(last or size) + 1, size)
        status = "206 Partial Content" if "range" in headers else "200 OK"
        more += f"Content-Range: bytes {start}-{end - 1}/{size}\r\n" if "range" in headers else ""
        return _said(status, memoryview(self._body)[int(start) : end], more)

    def _etag(self, key: str) -> int:
        return crc32(f"{key} {self._put.get(key, 0)}".encode())

    def _page(self, asked: dict[str, str]) -> str:
        """A page of a listing by `list-type=2`."""
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        after = asked.get("continuation-token", asked.get("start-after", ""))
        at = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        found: list[str] = []
        last, is_cut = after, False
        while at < len(self._keys) and self._keys[at].startswith(prefix):
            if is_cut := len(found) == _MOST:
                break
            key = last = self._keys[at]
            below, _, rest = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if rest:
                last = f"{prefix}{below}{delimiter}\uffff"
                found.append(f"<CommonPrefixes><Prefix>{escape(prefix + below)}/</Prefix></CommonPrefixes>")
            else:
                found.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{_iso(self._put.get(key, _WHEN))}</LastModified>"
                    f'<ETag>"{self._etag(key)}"</ETag><Size>{len(self._body)}</Size></Contents>'
                )
            at = bisect_right(self._keys, last)
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if is_cut else ""
        cut = f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>"
        return f"<ListBucketResult>{cut}{token}{''.join(found)}</ListBucketResult>"


@cache
def _iso(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _said(status: str, body: bytes | memoryview, more: str = "", size: int | None = None) -> list[bytes]:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if size is None else size}\r\n{more}\r\n"
    return [head.encode(), bytes(body)] if len(body) < 1 << 20 else [head.encode(), body]  # type: ignore[list-item]


async def serve(files: int, lanes: int, rows: int) -> None:
    keys = sorted(f"in/lane{number % lanes:03}/{number:06}.csv" for number in range(files))
    lines = "".join(f"customer{row % 1000:08},{row:07}\n" for row in range(rows))
    body = f"customer,amount\n{lines}".encode()
    put: dict[str, float] = {}
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(keys, put, body), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


def by_hand(spark: Any, endpoint: str, output: Path) -> Path:
    import s3fs  # type: ignore[import-untyped]

    arguments = {"endpoint_url": endpoint, **KEYS}
    keys = spark.createDataFrame([(key,) for key in s3fs.S3FileSystem(**arguments).find(f"{BUCKET}/in")], "key string")

    def lines(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow  # type: ignore[import-untyped]

        fs = s3fs.S3FileSystem(**arguments)
        for batch in batches:
            for key in batch.column(0).to_pylist():
                text = pyarrow.array(fs.cat_file(key).decode().splitlines()[1:], pyarrow.string())
                yield pyarrow.RecordBatch.from_arrays([text], ["value"])

    texts = keys.repartition(min(keys.count(), TASKS)).mapInArrow(lines, "value string")
    rows = spark.read.schema(bench.SCHEMA).csv(texts)
    spark.sql(bench.QUERY.replace("FROM input", "FROM {input}"), input=rows).write.parquet(str(output))
    return output


def by_pipeline(spark: Any, endpoint: str, output: Path) -> Path:
    lane = {"directories": f"s3://{BUCKET}/in/*", "files": "*.csv", "format": "csv", "options": {"header": True}}
    values = {
        "lanes": {"files": lane},
        "job": {"sql": bench.QUERY},
        "output": {"path": str(output)},
        "storage": {BUCKET: {"url": f"s3://{BUCKET}", "endpoint": endpoint, **KEYS}},
    }
    run_pipeline(parse_config(values, output.parent), Silent(), session=lambda: spark)
    return output / "data"


@dataclass
class OfStore(bench.Reading):
    """n objects in some lanes, read and written in some way. An `Attempt`."""

    in_store: Callable[[Any, str, Path], Path] = by_hand

    def __post_init__(self) -> None:
        bench._warm_up()
        command = [sys.executable, __file__, "--serve", str(self.n), str(min(self.lanes, self.n)), str(self.rows)]
        self.store = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.store.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self.store.stdout.readline())}"

    def run(self) -> Figures:
        spark = session()
        cpu, start = bench._cpu_s() - self._cpu_of_store(), time.perf_counter()
        self.output = self.in_store(spark, self.endpoint, self.scratch / "out")
        took = time.perf_counter() - start
        return {bench.SECONDS.name: took, bench.CPU.name: bench._cpu_s() - self._cpu_of_store() - cpu}

    def _cpu_of_store(self) -> float:
        fields = Path(f"/proc/{self.store.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.store.communicate()
        super().close()


def workload(name: str, title: str, files: int, lanes: int, rows: int, at_most: float) -> Workload:
    def rival(of: str, way: Callable[[Any, str, Path], Path]) -> Rival:
        return Rival(
            of,
            lambda n: OfStore(n, rows, lanes, bench.by_pipeline, in_store=way),
            role="ours" if of == bench.OURS else "rival",
            requires="s3fs",
        )

    return Workload(
        name,
        title,
        files,
        (rival(bench.JOB, by_hand), rival(bench.OURS, by_pipeline)),
        bench.JOB,
        metrics=(bench.SECONDS, bench.CPU),
        n_unit="files",
        threads="local[2]",
        goals=(Goal(bench.CPU.name, 1 / at_most, bench.OURS, bench.JOB),),
    )


SUITE = Suite(
    "pipeline",
    (
        workload("files-600", "600 objects of 20 rows in 6 lanes", 600, 6, bench.SMALL_ROWS, 0.4),
        workload("files-4000", "4,000 objects of 20 rows in 40 lanes", 4_000, 40, bench.SMALL_ROWS, 0.4),
        workload("four", "4 objects of 175 MB in one lane", 4, 1, bench.FOUR_BYTES // bench._ROW_BYTES, 1.05),
    ),
    does_not_show=("Spark's own connector.", "A store that takes its time to answer."),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--serve", type=int, nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("workloads", nargs="*")
    asked = parser.parse_args()
    if asked.serve:
        asyncio.run(serve(*asked.serve))
        return
    suite = SUITE.only(asked.workloads) if asked.workloads else SUITE
    report = run_suite(suite, rounds=asked.rounds, command=" ".join(sys.argv), progress=print)
    print(as_page(report, full=True))


if __name__ == "__main__":
    main()
