"""An object as a notebook shows it: a small table, as HTML that needs no style sheet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

_ROWS = 50


def notebook_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for `_repr_html_`, of the first fifty rows; numbers stand at the right, None is shown as nothing."""
    from html import escape

    def cell(value: object) -> str:
        if value is None:
            return "<td></td>"
        if isinstance(value, int | float) and not isinstance(value, bool):
            return f'<td align="right">{value:,}</td>'
        return f"<td>{escape(str(value))}</td>"

    shown = list(islice(rows, _ROWS + 1))
    more = f"<tr><td>and more</td>{'<td></td>' * (len(columns) - 1)}</tr>" if len(shown) > _ROWS else ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in shown[:_ROWS])
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}{more}</tbody></table>"
