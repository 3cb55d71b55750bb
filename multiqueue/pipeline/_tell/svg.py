"""Three small plots as SVG text, filled steps, bars and a timeline, each for a wide page and for a telephone.

Colours come from the page's CSS classes, and so does which of the two is seen: text of a drawing that is made smaller
would be too small to read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDE, _NARROW = 720, 360
_HEIGHT = 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 36
_BAR = 18
_TRACK = 12
_TRACKS = 6
_ROUND = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10)


def steps(values: Sequence[float], step: float, x_label: str, y_label: str) -> str:
    """An area whose height in slice i, from `i * step` to `(i + 1) * step`, is `values[i]`."""
    return "".join(_steps(values, step, x_label, y_label, width) for width in (_WIDE, _NARROW))


def _steps(values: Sequence[float], step: float, x_label: str, y_label: str, width: int) -> str:
    x_top, y_top = _nice(step * len(values)), _nice(max(values, default=0))
    points = [(0.0, 0.0)]
    for i, value in enumerate(values):
        points += [(i * step, value), ((i + 1) * step, value)]
    points.append((step * len(values), 0.0))
    path = "M" + " L".join(f"{_x(x, x_top, width):.1f} {_y(y, y_top):.1f}" for x, y in points) + " Z"
    body = f'{_grid(x_top, y_top, x_label, y_label, width)}<path class="area" d="{path}"/>'
    return _svg(body, width, _HEIGHT, f"{y_label} over {x_label}")


def bars(rows: Sequence[tuple[str, float, float]], x_label: str) -> str:
    """A pair of bars per row of a name, a median and a 95th percentile."""
    return "".join(_bars(rows, x_label, width) for width in (_WIDE, _NARROW))


def _bars(rows: Sequence[tuple[str, float, float]], x_label: str, width: int) -> str:
    height = _TOP + _BAR * len(rows) + _BOTTOM
    top = _nice(max((high for _, _, high in rows), default=0))
    left = width // 4 if width == _WIDE else width // 3
    scale = (width - left - _RIGHT) / top
    parts = []
    for i, (name, low, high) in enumerate(rows):
        y = _TOP + i * _BAR
        title = f"<title>{escape(name)}: {_number(low)} median, {_number(high)} 95th percentile</title>"
        label = escape(_short(name, left // 7))
        parts.append(
            f'<g>{title}<text class="label" x="{left - 8}" y="{y + 12}" text-anchor="end">{label}</text>'
            f'<rect class="light" x="{left}" y="{y + 3}" width="{max(high * scale, 1):.1f}" height="{_BAR - 6}"/>'
            f'<rect class="bar" x="{left}" y="{y + 3}" width="{max(low * scale, 1):.1f}" height="{_BAR - 6}"/></g>'
        )
    for tick in _ticks(top):
        x = left + tick * scale
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 20}" text-anchor="middle">{_number(tick)}</text>')
    parts.append(f'<text class="tick" x="{width - _RIGHT}" y="{height - 4}" text-anchor="end">{escape(x_label)}</text>')
    return _svg("".join(parts), width, height, x_label)


@dataclass(frozen=True, slots=True)
class Bar:
    """A job of a timeline: it waited from `known`, ran from `begin` to `end`, and has a style of the page."""

    known: float
    begin: float
    end: float
    name: str
    style: str
    is_bad: bool


def timeline(rows: Sequence[tuple[str, Sequence[Bar]]], x_label: str) -> str:
    """A row per name, its jobs in the order of their begin; those that overlap stand below each other, six at most."""
    pattern = (
        '<svg class="defs" aria-hidden="true"><defs><pattern id="again" width="5" height="5" '
        'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line class="hatch" y2="5"/></pattern></defs>'
        "</svg>"
    )
    return pattern + "".join(_timeline(rows, x_label, width) for width in (_WIDE, _NARROW))


def _timeline(rows: Sequence[tuple[str, Sequence[Bar]]], x_label: str, width: int) -> str:
    top = _nice(max((bar.end for _, bars in rows for bar in bars), default=0))
    left = width // 4 if width == _WIDE else width // 3
    scale = (width - left - _RIGHT) / top
    parts, y = [], _TOP
    for name, bars in rows:
        free: list[float] = []  # for each track, until when it is taken
        label = escape(_short(name, left // 7))
        parts.append(f'<text class="label" x="{left - 8}" y="{y + 9}" text-anchor="end">{label}</text>')
        for bar in bars:
            track = next((i for i, taken in enumerate(free) if taken <= bar.begin), len(free))
            track = min(track, _TRACKS - 1)
            before = free[track] if track < len(free) else 0.0
            free[track : track + 1] = [bar.end]
            parts.append(_drawn(bar, before, left, scale, y + track * _TRACK))
        y += max(1, len(free)) * _TRACK + 4
    parts += [
        f'<text class="tick" x="{left + tick * scale:.1f}" y="{y + 14}" text-anchor="middle">{_number(tick)}</text>'
        for tick in _ticks(top)
    ]
    parts.append(f'<text class="tick" x="{width - _RIGHT}" y="{y + 30}" text-anchor="end">{escape(x_label)}</text>')
    return _svg("".join(parts), width, y + _BOTTOM, f"jobs over {x_label}")


def _drawn(bar: Bar, before: float, left: int, scale: float, y: int) -> str:
    """One job; its wait is drawn where its track was free."""
    known, begin, end = (left + at * scale for at in (max(bar.known, before), bar.begin, bar.end))
    wide = max(1.5, end - begin)
    title = f"<title>{escape(bar.name)}: waited {bar.begin - bar.known:.1f} s, ran {bar.end - bar.begin:.1f} s</title>"
    parts = [f'<rect class="{bar.style}" x="{begin:.1f}" y="{y}" width="{wide:.1f}" height="9"/>']
    if begin - known > 1:
        parts.insert(0, f'<rect class="wait" x="{known:.1f}" y="{y + 2.5}" width="{begin - known:.1f}" height="4"/>')
    if bar.is_bad:
        parts.append(f'<path class="cross" d="M{begin + wide / 2 - 2.5:.1f} {y + 2}l5 5m0 -5l-5 5"/>')
    return f"<g>{title}{''.join(parts)}</g>"


def _grid(x_top: float, y_top: float, x_label: str, y_label: str, width: int) -> str:
    parts = []
    for tick in _ticks(y_top):
        y = _y(tick, y_top)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    for tick in _ticks(x_top):
        x = _x(tick, x_top, width)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - 20}" text-anchor="middle">{_number(tick)}</text>')
    parts.append(
        f'<text class="tick" x="{width - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{escape(x_label)}</text>'
        f'<text class="tick" x="{_LEFT}" y="{_HEIGHT - 4}">{escape(y_label)}</text>'
    )
    return "".join(parts)


def _svg(body: str, width: int, height: int, label: str) -> str:
    kind = "wide" if width == _WIDE else "narrow"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def _x(value: float, top: float, width: int) -> float:
    return _LEFT + value / top * (width - _LEFT - _RIGHT)


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)


def _nice(value: float) -> float:
    """The end of an axis: the smallest number that is not below the value and has four round quarters."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in _ROUND if factor * power >= value * (1 - 1e-9))


def _ticks(top: float) -> list[float]:
    return [top * i / 4 for i in range(5)]


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
