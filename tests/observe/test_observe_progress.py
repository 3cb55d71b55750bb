"""The progress of futures, as text and in a real notebook."""

from __future__ import annotations

import io
from concurrent.futures import Future
from typing import Any

import pytest

from multiqueue import MultiQueueExecutor
from multiqueue.observe import show_progress


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def test_a_file_gets_the_first_line_and_the_last() -> None:
    """With what became of the futures; failures and cancelled ones are no success. (monitor 15)"""
    out = io.StringIO()
    with MultiQueueExecutor(1) as executor:
        lane = executor.lane("acme")
        lane.pause()
        futures = [lane.submit(int), lane.submit(int, "tea"), lane.submit(int)]
        futures[2].cancel()
        futures[0].add_done_callback(lambda _: None)
        lane.resume()
        assert not show_progress(futures, title="orders", to=out)
    first, *_, last = out.getvalue().splitlines()
    assert first.startswith("orders: [")
    assert last.startswith("orders: [####################] 100%  1 done, 1 failed, 1 cancelled")
    assert len(out.getvalue().splitlines()) == 2


def test_a_terminal_has_one_line_that_is_written_over() -> None:
    """Nothing of a longer text before is left; what Spark has told of a running item counts. (monitor 15)"""
    out = Terminal()

    class Item(Future[int]):
        def progress(self) -> Any:
            self.set_result(1)  # it ends while it is looked at
            return type("Told", (), {"share": 0.5})()

    item = Item()
    item.set_running_or_notify_cancel()
    assert show_progress([item], every=0.001, to=out)
    shown = out.getvalue()
    assert shown.count("\n") == 1
    assert "[##########..........]  50%  1 running" in shown
    assert shown.rstrip().endswith("[####################] 100%  1 done  0 s")


def test_nothing_to_wait_for_is_said() -> None:
    """No futures are all done."""
    out = io.StringIO()
    assert show_progress([], to=out)
    assert "100%  nothing to wait for" in out.getvalue()


@pytest.mark.slow(selected=True)
def test_a_notebook_shows_a_bar_and_tables(need_module: Any) -> None:
    """In a real kernel: one output that is updated, HTML with text beside it; objects show themselves. (monitor 15)"""
    for name in ("nbclient", "ipykernel"):
        need_module(name, f"{name} is not installed: pip install 'blocking-multiqueue[test]'")
    import nbformat
    from nbclient import NotebookClient

    progress = (
        "from multiqueue import LinkedBlockingMultiQueue, MultiQueueExecutor\n"
        "from multiqueue.observe import show_progress\n"
        "executor = MultiQueueExecutor(2)\n"
        "lane = executor.lane('acme')\n"
        "ok = show_progress([lane.submit(int) for _ in range(5)], title='orders')"
    )
    things = ("executor", "lane", "LinkedBlockingMultiQueue()", "broker", "broker.queue('q')")
    cells = [progress, "from multiqueue.broker import Broker\nbroker = Broker(); broker.declare_queue('q');", *things]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    NotebookClient(book, timeout=120, kernel_name="python3").execute()
    (shown,) = book.cells[0].outputs
    assert "5 done" in shown.data["text/html"]
    assert "<progress" in shown.data["text/html"]
    assert "orders: [####################] 100%" in shown.data["text/plain"]
    for cell in book.cells[2:]:
        (shown,) = cell.outputs
        assert shown.data["text/html"].startswith("<table>"), cell.source
