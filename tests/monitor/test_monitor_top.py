"""`multiqueue top`: tables that live in a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

import monitor_parts_support as parts
import pytest
from click.testing import CliRunner
from monitor_parts_support import Api
from monitor_support import Client

from multiqueue import MultiQueueExecutor
from multiqueue.broker import Broker, Message
from multiqueue.cli import main
from multiqueue.monitor import Lanes, serve_lanes

if find_spec("textual") is None:
    pytest.skip("textual is not installed: pip install 'blocking-multiqueue[monitor]'", allow_module_level=True)


def api_of(client: Client) -> Api:
    return Api(client.url.replace("http://", "http://guest:guest@"))


def in_terminal(api: Api, use: Callable[[Any, Any], Awaitable[None]], columns: int = 80) -> None:
    """Run the program in a terminal of so many columns, and use it."""

    async def run() -> None:
        top = parts.top().Top(api)
        async with top.run_test(size=(columns, 24)) as pilot:
            await use(top, pilot)

    asyncio.run(run())


async def until(pilot: Any, holds: Callable[[], bool]) -> None:
    """Let the program go on until something holds; a test that waits for ever is ended by its timeout."""
    while not holds():
        await pilot.pause(0.01)


@pytest.fixture(autouse=True)
def _it_asks_often(many_samples: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.top(), "_EVERY", 0.05)


def lines(top: Any) -> list[list[str]]:
    table = top.query_one("DataTable")
    return [[str(cell) for cell in table.get_row_at(place)] for place in range(table.row_count)]


@pytest.mark.slow(selected=True)
def test_queues_are_shown_sorted_and_filtered(client: Client, broker: Broker) -> None:
    """The numbers are those of the broker, the keys sort, turn round and filter, and changes come by themselves."""
    for name, count in (("a", 1), ("b", 3), ("other", 2)):
        broker.declare_queue(name)
        for _ in range(count):
            broker.publish(Message(b"", routing_key=name))

    async def use(top: Any, pilot: Any) -> None:
        await until(pilot, lambda: len(lines(top)) == 3)
        assert lines(top)[0][:3] == ["a", "1", "0"]
        await pilot.press("s")
        await until(pilot, lambda: [line[0] for line in lines(top)] == ["b", "other", "a"])
        await pilot.press("r")
        await until(pilot, lambda: [line[0] for line in lines(top)] == ["a", "other", "b"])
        await pilot.press("slash", "o", "t", "enter")
        await until(pilot, lambda: [line[0] for line in lines(top)] == ["other"])
        broker.publish(Message(b"", routing_key="other"))
        await until(pilot, lambda: [line[1] for line in lines(top)] == ["3"])
        await pilot.press("2")
        await until(pilot, lambda: lines(top) == [])

    in_terminal(api_of(client), use)


def test_numbers_stay_in_forty_columns(client: Client, broker: Broker) -> None:
    """A long name is shortened in the middle, and the numbers beside it are whole."""
    broker.declare_queue("a-very-long-name-of-a-queue-in-a-department")

    async def use(top: Any, pilot: Any) -> None:
        await until(pilot, lambda: bool(lines(top)))
        ((name, ready, unacked, *_),) = lines(top)
        assert "…" in name
        assert (ready, unacked) == ("0", "0")

    in_terminal(api_of(client), use, columns=40)


def test_lanes_are_shown() -> None:
    """Those of a program without a broker too; what it has not is told in a sentence."""
    lanes = Lanes()
    with MultiQueueExecutor(1) as executor, serve_lanes(lanes) as http:
        lanes.watch("nightly", executor)
        executor.lane("acme").submit(int).result()

        async def use(top: Any, pilot: Any) -> None:
            await until(pilot, lambda: "404" in str(top.query_one("#told").render()))
            await pilot.press("3")
            await until(pilot, lambda: bool(lines(top)))
            assert lines(top) == [["acme", "0", "0", "1", "0", "nightly"]]

        in_terminal(api_of(Client(http.url)), use)


def test_a_broker_that_is_not_there_is_told_without_a_screen() -> None:
    """One sentence, status 2."""
    result = CliRunner().invoke(main, ["top", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "no answer" in result.stderr
