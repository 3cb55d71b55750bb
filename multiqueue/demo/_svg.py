"""A picture of its own, for a page or a README: bars by row and by kind, in light and in dark colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

_WIDTH = 460  # as wide as a telephone shows it with a text that can be read
_LEFT, _RIGHT = 96, 64
_BAR = 11
# Hues of Okabe and Ito, told apart by every eye; the last kind is ours.
_HUES = ("#d55e00", "#999999", "#cc79a7", "#0072b2")
_STYLE = (
    "text{font:12px sans-serif;fill:#1d2733}.head{font-weight:bold}.small{font-size:10px}.paper{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#e4e9ef}.paper{fill:#1a2129}}"
)


def bars(
    title: str,
    kinds: Sequence[str],
    rows: Sequence[tuple[str, Sequence[float]]],
    *,
    log: bool = False,
    said: Callable[[float], str] | None = None,
) -> str:
    """Rows of a name and seconds, a bar for each kind; `log` draws each ten times as much a step longer.

    `said` writes values that are no seconds.
    """
    said = said or spoken
    hues = (*_HUES[: len(kinds) - 1], _HUES[-1])
    highest = max((value for _, values in rows for value in values), default=0.0) or 1.0
    least = min((value for _, values in rows for value in values if value > 0), default=highest) / 3

    def length(value: float) -> float:
        room = _WIDTH - _LEFT - _RIGHT
        share = math.log(max(value, least) / least) / math.log(highest / least) if log else value / highest
        return max(1.0, room * share)

    parts, y = [f'<text class="head" x="6" y="17">{escape(title)}</text>'], 26
    for kind, hue in zip(kinds, hues, strict=True):
        parts.append(f'<rect x="6" y="{y}" width="10" height="10" fill="{hue}"/><text x="22" y="{y + 9}">{kind}</text>')
        y += 16
    y += 6
    for name, values in rows:
        middle = y + len(values) * _BAR / 2 + 4
        parts.append(f'<text x="{_LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>')
        for value, hue in zip(values, hues, strict=True):
            end = _LEFT + length(value)
            parts.append(f'<rect x="{_LEFT}" y="{y}" width="{end - _LEFT:.1f}" height="{_BAR - 2}" fill="{hue}"/>')
            parts.append(f'<text class="small" x="{end + 4:.1f}" y="{y + 9}">{said(value)}</text>')
            y += _BAR
        y += 7
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img">'
    paper = f'<rect class="paper" width="{_WIDTH}" height="{y}" rx="6"/>'
    return "\n".join([head, f"<title>{escape(title)}</title><style>{_STYLE}</style>", paper, *parts, "</svg>\n"])


def spoken(seconds: float) -> str:
    """A time in three digits and the unit that fits it."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1000:.3g} ms"
