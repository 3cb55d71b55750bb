"""Draw the pictures of the walk-through as SVG, and write its page from the cells' results.

python examples/walk_through_pictures.py docs   writes walk-through.md and its pictures anew.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

Boxes = Sequence[tuple[str, str]]  # what a box belongs to, and its text

# Told apart by people who do not see red and green as different, and light enough for black text.
COLOURS = ("#9ecae1", "#fdd0a2", "#c7e9c0", "#dadaeb", "#fdae6b", "#d9d9d9")
WIDTH, HEIGHT, GAP, LABEL = 64, 28, 4, 120  # pixels

PICTURES = "# Pictures from here on."  # what follows it in a cell is run for the page, and not shown there

_drawn: dict[str, str] = {}  # pictures that were shown, by name


def show(name: str, picture: str) -> None:
    """Show a picture: in a notebook in place, otherwise it is kept for the page."""
    _drawn[name] = picture
    with contextlib.suppress(ImportError):
        from IPython import get_ipython  # type: ignore[import-not-found, unused-ignore]
        from IPython.display import SVG, display  # type: ignore[import-not-found, unused-ignore]

        if get_ipython() is not None:
            display(SVG(picture))


def turns(title: str, boxes: Boxes) -> str:
    """A row for each owner; the boxes from left to right in the order given."""
    owners = list(dict.fromkeys(owner for owner, _ in boxes))
    places = [(owners.index(owner), column, owner, text) for column, (owner, text) in enumerate(boxes)]
    return _svg(title, owners, places, owners)


def order(rows: Mapping[str, Boxes]) -> str:
    """A row for each key, its boxes in their order."""
    owners = list(dict.fromkeys(owner for boxes in rows.values() for owner, _ in boxes))
    places = [
        (line, column, owner, text)
        for line, boxes in enumerate(rows.values())
        for column, (owner, text) in enumerate(boxes)
    ]
    return _svg(", then ".join(rows), list(rows), places, owners)


def _svg(title: str, labels: Sequence[str], places: Sequence[tuple[int, int, str, str]], owners: Sequence[str]) -> str:
    columns = 1 + max(column for _, column, _, _ in places)
    size = f"{LABEL + columns * (WIDTH + GAP)} {len(labels) * (HEIGHT + GAP) + GAP}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="12">',
        f"<title>{_text(title)}</title>",
    ]
    for row, label in enumerate(labels):
        lines.append(f'<text x="4" y="{row * (HEIGHT + GAP) + 22}" fill="#777">{_text(label)}</text>')
    for row, column, owner, text in places:
        left, top = LABEL + column * (WIDTH + GAP), row * (HEIGHT + GAP) + GAP
        colour = COLOURS[owners.index(owner) % len(COLOURS)]
        lines.append(f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="4" fill="{colour}"/>')
        lines.append(f'<text x="{left + WIDTH // 2}" y="{top + 18}" text-anchor="middle">{_text(text)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def page(program: Path) -> Iterator[tuple[str, str]]:
    """Run the program cell by cell: the files of its page, by name."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    parts = []
    for head, body in re.findall(r"^# %%(.*)\n((?:(?!# %%).*\n)*)", program.read_text(), flags=re.MULTILINE):
        if "markdown" in head:
            parts.append(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE))
            continue
        _drawn.clear()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(body, str(program), "exec"), namespace)
        if shown := body.partition(PICTURES)[0].strip():
            parts.append(f"```python\n{shown}\n```")
        if printed.getvalue():
            parts.append(f"```text\n{printed.getvalue().strip()}\n```")
        for name, picture in _drawn.items():
            parts.append(f"![{re.findall('<title>(.*)</title>', picture)[0]}]({name})")
            yield name, picture
    yield "walk-through.md", "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    import walk_through_pictures  # the cells' own import: one module, not two

    for name, content in walk_through_pictures.page(HERE / "walk_through.py"):
        Path(sys.argv[1], name).write_text(content)
