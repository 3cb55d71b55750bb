"""The walk-through's page and pictures are what its program makes of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_page_imports_what_is_installed() -> None:
    """Who copies the page's cells needs nothing of `examples/`: no module, and no function of such a one."""
    cells = re.findall(r"```python\n(.*?)```", (DOCS / "walk-through.md").read_text(), flags=re.DOTALL)
    tree = ast.parse("\n".join(cells))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {str(module).partition(".")[0] for module in modules} <= {"multiqueue", "collections", "concurrent"}
    assert {"show", "order", "turns"}.isdisjoint(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


@pytest.mark.spark
@pytest.mark.slow(selected=True)
def test_the_page_is_what_the_program_makes(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run anew, every cell prints what the page says and draws the picture beside it. Another one is written by
    `python examples/walk_through_pictures.py docs`.
    """
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from walk_through_pictures import page

    made = dict(page(ROOT / "examples" / "walk_through.py"))
    assert sorted(made) == sorted(path.name for path in DOCS.glob("walk-through*"))
    for name, content in made.items():
        assert content == (DOCS / name).read_text(), name
        if name.endswith(".svg"):
            ElementTree.fromstring(content)
