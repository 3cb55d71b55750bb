"""What a notebook shows of multi-queues, executors, lanes and futures."""

from __future__ import annotations

import re
import threading
from concurrent.futures import wait

from multiqueue import LinkedBlockingMultiQueue, MultiQueueExecutor
from multiqueue.core import notebook_table
from multiqueue.testing import PATIENCE


def cells(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]


def test_a_multi_queue_shows_its_sub_queues() -> None:
    """A row for each, in figures; a bound that there is not is left empty."""
    queue: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
    queue.add_subqueue("orders", capacity=5).put(1)
    queue.add_subqueue("<b>")
    assert cells(queue._repr_html_())[1:] == [
        ["orders", "1", "5", "0", "1", "0"],
        ["&lt;b&gt;", "0", "", "0", "0", "0"],
    ]


def test_an_executor_and_a_lane_show_what_waits_and_runs() -> None:
    """A lane is one row of its executor's table."""
    with MultiQueueExecutor(2) as executor:
        lane = executor.lane("acme", weight=3, max_in_flight=1)
        lane.pause()
        lane.submit(int)
        expected = ["acme", "1", "0", "0", "3", "1", "paused"]
        assert cells(lane._repr_html_())[1:] == [expected]
        assert cells(executor._repr_html_())[1:] == [expected]
        assert "MultiQueueExecutor, 2 workers" in executor._repr_html_()


def test_a_future_shows_how_its_job_ended() -> None:
    """Waiting, running, done, cancelled, or with the error's text, which is text and nothing else."""
    began, go_on = threading.Event(), threading.Event()

    def fail() -> None:
        began.set()
        assert go_on.wait(PATIENCE)
        raise ValueError("<b>")

    with MultiQueueExecutor(1) as executor:
        lane = executor.lane("acme")
        failing, done, cancelled = lane.submit(fail), lane.submit(int), lane.submit(int)
        assert began.wait(PATIENCE)
        assert (failing._repr_html_(), done._repr_html_()) == ("<div>running</div>", "<div>waiting</div>")
        cancelled.cancel()
        go_on.set()
        wait([failing, done])
        assert failing._repr_html_() == "<div>failed: ValueError(&#x27;&lt;b&gt;&#x27;)</div>"
        assert (done._repr_html_(), cancelled._repr_html_()) == ("<div>done</div>", "<div>cancelled</div>")


def test_a_table_of_many_rows_is_cut() -> None:
    """The first fifty, and a word that there are more."""
    html = notebook_table("many", ("n", "square"), ((n, n * n) for n in range(10**9)))
    assert len(cells(html)) == 52
    assert "and more" in html
    assert '<td align="right">2,401</td>' in html
