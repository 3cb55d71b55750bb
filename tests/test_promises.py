"""Every numbered promise of a design page is held by a test that cites it.

A test cites promises in its docstring, in brackets: (store 3), (store 3, 5; client 2), (streaming source 4). The name
is that of the page's file in docs/design; where a page has two lists of promises, the last word of the heading follows.
Promises that have a letter are cited by it, in the folder that holds that page's tests: (P3) in tests/amqp, (B7, B8)
in tests/interop, `I3: ...` in tests/broker. In a support file a docstring cites what its function or class checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
PAGES = HERE.parent / "docs" / "design"

# The letters of a page's promises, and the folder where tests cite them.
LETTERS = {
    "P": ("amqp", "amqp"),
    "B": ("amqp", "interop"),
    "I": ("broker-queue", "broker"),
    "G": ("broker-queue", "broker"),
}

# What a function or a class says of itself.
DOCSTRING = re.compile(r':\n +r?"""(.*?)"""', re.DOTALL)


def test_every_promise_is_cited() -> None:
    """Each numbered promise of each design page is cited by a test."""
    assert sorted(promises() - cited()) == [], "cite them in the docstrings of tests that hold them"


def test_a_citation_names_a_promise() -> None:
    """No test cites a page or a number that there is not."""
    assert sorted(cited() - promises()) == []


def test_citations_are_read() -> None:
    """Numbers follow the name of their page, letters stand for it; brackets about other things cite nothing."""
    assert set(citations("A store is open once (store 6).", "store")) == {"store 6"}
    assert set(citations("Both (store 1, 2; streaming sink 3).", "spark")) == {"store 1", "store 2", "streaming sink 3"}
    assert set(citations("503 (P12, P13).", "amqp")) == {"amqp P12", "amqp P13"}
    assert set(citations("I16, I18: lists agree.", "broker")) == {"broker-queue I16", "broker-queue I18"}
    assert set(citations("In all (a dozen), P9 of 7 (within 2 s).", "amqp")) == set()
    assert set(citations("I1: a letter of another folder's (P1).", "store")) == set()


@cache
def promises() -> set[str]:
    """The numbered promises of all design pages: the page's name, and the number."""
    found = set()
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text()
        for heading, list_ in re.findall(
            r"^## (Promises[^\n]*)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL
        ):
            name = page.stem if heading == "Promises" else f"{page.stem} {heading.split()[-1]}"
            found |= {f"{name} {number}" for number in re.findall(r"^(\d+)\. ", list_, flags=re.MULTILINE)}
        for row in re.findall(r"^\| ([A-Z]\d+(?:, [A-Z]\d+)*) ", text, flags=re.MULTILINE):
            found |= {f"{page.stem} {one}" for one in row.split(", ") if LETTERS.get(one[0], "")[0] == page.stem}
    return found


@cache
def cited() -> set[str]:
    """The promises that tests cite."""
    found = set()
    for path in sorted(HERE.rglob("*.py")):
        if path == Path(__file__):
            continue
        for docstring in DOCSTRING.findall(path.read_text()):
            found |= set(citations(docstring, path.relative_to(HERE).parts[0]))
    return found


def citations(docstring: str, folder: str) -> Iterator[str]:
    """The promises that a docstring cites in a test of that folder."""
    for name, numbers in re.findall(r"[(;] ?([a-z-]+(?: [a-z]+)?) (\d+(?:, \d+)*)(?=[);])", docstring):
        if (PAGES / f"{name.split()[0]}.md").exists():
            yield from (f"{name} {number}" for number in numbers.split(", "))
    for group in re.findall(r"\(([A-Z]\d+(?:, [A-Z]\d+)*)\)|^([A-Z]\d+(?:, [A-Z]\d+)*):", docstring):
        for one in "".join(group).split(", "):
            page, home = LETTERS.get(one[0], ("", ""))
            if home == folder:
                yield f"{page} {one}"
