"""A picture in the terminal: a row per name, a column per slice of time, a block as high as what happened in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PLAIN = " .:-=+*#@"  # where the terminal's encoding has no blocks
_NAME = 10  # columns
_LAST = 9


@dataclass(frozen=True)
class Row:
    """One line of a picture: moments in seconds from its start, and a word for its end."""

    name: str
    moments: Sequence[float]
    last: str
    style: str = ""


@dataclass(frozen=True)
class Picture:
    """Rows over the same seconds. It is as wide as the terminal, 40 columns at least and 100 at most."""

    rows: Sequence[Row]
    seconds: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        blocks = _BLOCKS if options.encoding.startswith("utf") else _PLAIN
        columns = max(min(options.max_width, 100), 40) - _NAME - _LAST - 1
        for row in self.rows:
            strip = heights(row.moments, self.seconds, columns, len(blocks) - 1)
            yield Text.assemble(
                f"{row.name:<{_NAME}}",
                ("".join(blocks[height] for height in strip), row.style),
                f" {row.last:>{_LAST}}",
                no_wrap=True,
            )


def heights(moments: Sequence[float], seconds: float, columns: int, highest: int) -> list[int]:
    """How high each column is: the share of the fullest one. A column in which anything happened is 1 at least."""
    counts = [0] * columns
    for moment in moments:
        counts[min(int(moment / seconds * columns), columns - 1)] += 1
    most = max(counts)
    return [-(-count * highest // most) if count else 0 for count in counts]
