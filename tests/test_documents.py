"""The documents are true: their code runs, their links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent
DOCUMENTS = sorted([*HOUSE.glob("*.md"), *HOUSE.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(HOUSE)))
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link in a document is the path of a file or folder."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    missing = [target for target in LINK.findall(text) if not (document.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("name", ["README.md", "docs/journey.md", "docs/tutorial.md"])
def test_code_runs(name: str) -> None:
    """The Python in a document runs, and prints what the comments beside each print say."""
    document = HOUSE / name
    code = "\n".join(re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL))
    assert code
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(document), "exec"), {"__name__": "__main__"})
    expected = re.findall(r"print\(.*\)  # (.*)", code)
    assert printed.getvalue().splitlines() == expected
