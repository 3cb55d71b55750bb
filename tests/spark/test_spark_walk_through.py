"""The walk-through's page and pictures are what its program makes of them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"


@pytest.mark.spark
def test_the_page_is_what_the_program_makes(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run anew, every cell prints what the page says and draws the picture beside it. Another one is written by
    `python examples/walk_through_pictures.py docs/guides`.
    """
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from walk_through_pictures import page

    made = dict(page(ROOT / "examples" / "walk_through.py"))
    assert sorted(made) == sorted(path.name for path in GUIDES.glob("walk-through*"))
    for name, content in made.items():
        assert content == (GUIDES / name).read_text(), name
        if name.endswith(".svg"):
            ElementTree.fromstring(content)
