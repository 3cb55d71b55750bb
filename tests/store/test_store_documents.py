"""The pages about the store say what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from store_parts_support import _schema

from multiqueue.transfer.cli import store  # with `move`, which that room adds

HOUSE = Path(__file__).parents[2]
EXAMPLES = sorted(HOUSE.glob("examples/store_*.py"))
DESIGN = (HOUSE / "docs" / "design" / "store.md").read_text()
TOOLS = (HOUSE / "docs" / "reference" / "store-tools.md").read_text()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each `print` in an example has beside it what it prints, and that is what it prints."""
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", example.read_text(), flags=re.MULTILINE)
    assert expected
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == expected


def test_the_design_has_the_tables_and_the_format() -> None:
    """The design's table of tables has those of the schema, with their columns, and the format's number."""
    for table, columns in re.findall(r"CREATE TABLE (\w+) \((.*?)\)(?: WITHOUT ROWID)?;", _schema._SCHEMA, re.DOTALL):
        row = re.search(rf"^\| `{table}` \|(.*)$", DESIGN, flags=re.MULTILINE)
        assert row, table
        names = re.findall(r'^    "?([a-z_]+)"? [A-Z]', columns, flags=re.MULTILINE)
        assert all(name in row[1] for name in names if name != "place"), table
    assert f"`user_version` in which format ({_schema.FORMAT})" in DESIGN


def test_the_reference_has_every_command() -> None:
    """Each command of `multiqueue store` has its line and its row in the reference, and no other has."""
    lines = set(re.findall(r"^    multiqueue store (\w+) PATH", TOOLS, flags=re.MULTILINE))
    rows = set(re.findall(r"^\| `(\w+)` \| .* \| 0", TOOLS, flags=re.MULTILINE))
    assert lines == rows == set(store.commands)
