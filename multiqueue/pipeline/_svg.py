"""Two small plots as SVG text, filled steps and bars, each for a wide page and for a telephone.

Colours come from the page's CSS classes, and so does which of the two is seen: text of a drawing that is made smaller
would be too small to read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

_WIDE, _NARROW = 720, 360
_HEIGHT = 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 36
_BAR = 18
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
