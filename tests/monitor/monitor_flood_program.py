"""One part of a flood, or one of those who suffer it: a process of its own, until its standard input ends.

`silent`, `wrong`, `streams` and `looks` flood a server over HTTP and come again when they are cut; `publish` and `good`
do honest work meanwhile, and print how long each piece of it took as JSON. The test starts them:

    python monitor_flood_program.py wrong URL COUNT
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote, urlsplit

AGAIN = 3.0  # seconds until one that was cut comes again


def request(path: str, user: str) -> bytes:
    login = base64.b64encode(user.encode()).decode()
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\n\r\n".encode()


async def never_ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    await reader.read(1)  # until it is cut


async def guess(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    while True:
        writer.write(request("/api/whoami", "honest:wrong"))
        if not await reader.readline():
            return
        while (await reader.readline()).strip():
            pass
        await reader.read(1 << 16)


async def look_and_read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    look = quote("/api/queues?page=1&page_size=500", safe="")
    writer.write(request(f"/api/events?look={look}&look=%2Fapi%2Foverview", "greedy:greedy"))
    await asyncio.Event().wait()


async def look_at_messages(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    """Every other one reads its answer."""
    queue = ("zeros", "noise")[number // 2 % 2]
    while True:
        writer.write(request(f"/api/queues/%2F/{queue}/messages?count=10000", "curious:curious"))
        if number % 2:
            await asyncio.Event().wait()
        while await asyncio.wait_for(reader.read(1 << 20), 5):
            pass


FLOODS = {"silent": never_ask, "wrong": guess, "streams": look_and_read_nothing, "looks": look_at_messages}


async def flood(kind: str, url: str, count: int) -> None:
    where = urlsplit(url)

    async def one(number: int) -> None:
        while True:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
                reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 17)
                try:
                    if kind in ("streams", "looks"):
                        writer.transport.pause_reading() if kind == "streams" else None  # type: ignore[attr-defined]
                    await FLOODS[kind](reader, writer, number)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(AGAIN)

    await asyncio.gather(*map(one, range(count)))


def publish(url: str) -> Callable[[], None]:
    """A publisher that waits for each confirm."""
    import pika

    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.confirm_delivery()
    channel.queue_declare("ring", arguments={"x-max-length": 100})
    return lambda: channel.basic_publish("", "ring", b"x" * 1000, mandatory=True)


def good(url: str) -> Callable[[], None]:
    """A caller that comes anew each time, and asks again where it was cut before it had an answer, as browsers do."""
    login = {"authorization": "Basic " + base64.b64encode(b"honest:honest").decode()}

    def ask() -> None:
        try:
            ask_once()
        except ConnectionResetError as error:
            print(f"again after {error!r}", file=sys.stderr, flush=True)
            ask_once()

    def ask_once() -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/api/overview", headers=login), timeout=30) as answer:
            assert answer.status == 200
            answer.read()

    return ask


def suffer(work: Callable[[], None], pause: float) -> None:
    """Work for as long as each line of standard input lasts, and print how long each piece took."""
    took: list[float] = []
    lock = threading.Lock()

    def go_on() -> None:
        while True:
            began = time.perf_counter()
            try:
                work()
                took_it = time.perf_counter() - began
            except Exception as error:  # noqa: BLE001  # it is told, and counts as for ever
                print(repr(error), file=sys.stderr, flush=True)
                took_it = 1e9
            with lock:
                took.append(took_it)
            time.sleep(pause)

    threading.Thread(target=go_on, daemon=True).start()
    for _ in sys.stdin:
        with lock:
            told, took = took, []
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    kind, url = sys.argv[1:3]
    if kind in FLOODS:
        threading.Thread(target=lambda: asyncio.run(flood(kind, url, int(sys.argv[3]))), daemon=True).start()
        sys.stdin.read()
    elif kind == "publish":
        suffer(publish(url), 0.002)
    else:
        suffer(good(url), 0.05)
