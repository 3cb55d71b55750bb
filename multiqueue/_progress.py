"""How far futures are, shown while somebody waits for them: as HTML in a notebook, as a line of text elsewhere.

Source      Jupyter's displays that are updated, which need no widget of their own; each carries HTML and text.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from html import escape
from io import IOBase
from time import monotonic
from typing import Any, Final, TextIO

from ._kinds import check_kind, check_seconds, checked_list

_BAR: Final = 20  # characters
_STATES: Final = ("done", "failed", "cancelled", "running", "waiting")

Show = Callable[[str, str], object]  # text, HTML


def show_progress(
    futures: Iterable[Future[Any]], *, title: str = "", every: float = 0.5, to: TextIO | None = None
) -> bool:
    """Block until all futures have ended, and show their progress; True if all succeeded.

    In a notebook it is a bar that is updated in place. In a terminal it is a line that is written over, elsewhere a
    line at the beginning and one at the end, on `to` or standard output. An item of a SparkDispatcher counts by what
    Spark says of its stages. Ctrl-C ends the showing alone: the futures go on.
    """
    everything = checked_list("futures", futures, Future, "a future")
    check_seconds("every", every)
    if to is not None and not hasattr(to, "write"):
        check_kind("to", to, IOBase, "a text stream")
    began, show = monotonic(), _show(to)
    left: set[Future[Any]] = set(everything)
    while True:
        show(*_said(title, everything, monotonic() - began))
        if not left:
            break
        ended, left = wait(left, every, FIRST_COMPLETED)
        if ended and left:  # many may end together; do not show each alone
            _, left = wait(left, every / 5)
    if isinstance(show, _Line):
        show.end()
    return all(not each.cancelled() and each.exception() is None for each in everything)


def _said(title: str, futures: Sequence[Future[Any]], seconds: float) -> tuple[str, str]:
    """The state of all in words, and as HTML."""
    states: Counter[str] = Counter()
    share = 0.0
    for each in futures:
        state = _state(each)
        states[state] += 1
        if state == "running":
            share += getattr(getattr(each, "progress", lambda: None)(), "share", 0.0)
        elif state != "waiting":
            share += 1
    share = share / len(futures) if futures else 1.0
    counts = ", ".join(f"{states[state]:,} {state}" for state in _STATES if states[state]) or "nothing to wait for"
    full = int(share * _BAR)
    name = f"{title}: " if title else ""
    text = f"{name}[{'#' * full}{'.' * (_BAR - full)}] {share:4.0%}  {counts}  {seconds:.0f} s"
    bar = f'<progress value="{share:.3f}" aria-label="{escape(title or "progress")}"></progress>'
    return text, f"<div>{escape(name)}{bar} {share:.0%} &nbsp; {escape(counts)} &nbsp; {seconds:.0f} s</div>"


def _state(future: Future[Any]) -> str:
    if future.cancelled():
        return "cancelled"
    if future.done():
        return "done" if future.exception() is None else "failed"
    return "running" if future.running() else "waiting"


def _show(to: TextIO | None) -> Show:
    if to is None and "IPython" in sys.modules:
        display = _notebook()
        if display is not None:
            return display
    return _Line(sys.stdout if to is None else to)


def _notebook() -> Show | None:
    """The widget in this notebook's cell; None where this program is none."""
    from IPython import get_ipython  # type: ignore[attr-defined,unused-ignore]
    from IPython.display import display

    if getattr(get_ipython(), "kernel", None) is None:
        return None
    shown: list[Any] = []
    first: Callable[..., Any] = display

    def show(text: str, html: str) -> None:
        bundle = {"text/plain": text, "text/html": html}
        if shown:
            shown[0].update(bundle, raw=True)
        else:
            shown.append(first(bundle, raw=True, display_id=True))

    return show


class _Line:
    """One line of text, written over in a terminal."""

    def __init__(self, to: TextIO) -> None:
        self._to = to
        self._is_terminal = to.isatty()
        self._last = ""

    def __call__(self, text: str, html: str) -> None:
        first, self._last, longest = not self._last, text, len(self._last)
        if self._is_terminal:
            self._to.write("\r" + text.ljust(longest))
        elif first:
            self._to.write(text + "\n")
        self._to.flush()

    def end(self) -> None:
        """Nothing follows."""
        self._to.write("\n" if self._is_terminal else self._last + "\n")
        self._to.flush()
