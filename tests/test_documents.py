"""The documents are true: their code runs, their links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from multiqueue.cli import main

HOUSE = Path(__file__).parent.parent
DOCUMENTS = sorted([*HOUSE.glob("*.md"), *HOUSE.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(HOUSE)))
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link in a document is the path of a file or folder."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    missing = [target for target in LINK.findall(text) if not (document.parent / target).exists()]
    assert not missing


def blocks(*languages: str) -> list[tuple[Path, str]]:
    """Each fenced block of one of these languages, with the document that it stands in."""
    mark = re.compile(rf"^```({'|'.join(languages)})\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [(document, found[2]) for document in DOCUMENTS for found in mark.finditer(document.read_text())]


def test_each_document_with_python_is_run_by_a_test() -> None:
    """A document that has a block of Python is named, as a file or by its stem, by a test that executes documents."""
    runners = [text for text in (path.read_text() for path in HOUSE.glob("tests/**/*.py")) if "```python" in text]
    for document in {document for document, _ in blocks("python")}:
        name = re.compile(rf'["/]{re.escape(document.stem)}(\.md)?"')
        assert any(name.search(text) for text in runners), f"no test runs {document.relative_to(HOUSE)}"


def test_toml_of_documents_is_toml() -> None:
    """Every block of TOML parses."""
    found = blocks("toml")
    assert found
    for _, text in found:
        tomllib.loads(text)


def test_commands_of_documents_exist() -> None:
    """Each `multiqueue COMMAND` in a shell's block or in an indented line has a command and options that are there."""
    lines = [line for _, text in blocks("bash", "console") for line in text.splitlines()]
    lines += [line for document in DOCUMENTS for line in re.findall(r"^    (.*)", document.read_text(), re.MULTILINE)]
    seen = 0
    for line in lines:
        found = re.search(r"(?:^|[/$] ?|bin/)multiqueue ([a-z].*)", line)
        if found is None or re.search(r"[\[|]\S|\S[|]", found[1]):  # the synopsis of a command
            continue
        words = shlex.split(found[1].partition(" | ")[0], comments=True)
        command: click.Command | None = main
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, line
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        asked = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert asked <= options | {"--help", "--version"}, line
        seen += 1
    assert seen > 20


NEED_MORE = (
    "multiqueue.spark",
    "multiqueue_broker",
)  # a JVM, pytest: README.md's are run by tests/spark and tests/client


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/guides/async.md",
        "docs/guides/drop-in-queue.md",
        "docs/guides/fair-queues.md",
        "docs/guides/executor.md",
        "docs/index.md",
        "docs/journey.md",
        "docs/tutorial.md",
    ],
)
def test_code_runs(name: str) -> None:
    """The Python in a document runs, and prints what the comments beside each print say."""
    document = HOUSE / name
    found = re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL)
    code = "\n".join(block for block in found if not any(name in block for name in NEED_MORE))
    assert code
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(document), "exec"), {"__name__": "__main__"})
    expected = re.findall(r"print\(.*\)  # (.*)", code)
    assert printed.getvalue().splitlines() == expected


def test_each_hop_of_the_journey_is_where_its_link_leads() -> None:
    """Every class and function that the journey of a message links to is defined in that file."""
    page = (HOUSE / "docs/journey.md").read_text()
    files = dict(re.findall(r"^\[(\S+)\]: \.\./(multiqueue/\S+)$", page, flags=re.MULTILINE))
    hops = re.findall(r"\[`([^`]+)`\]\[([^\]]+)\]", page)
    assert len(hops) > 25
    for name, key in hops:
        source = (HOUSE / files[key]).read_text()
        for part in name.split("."):
            assert re.search(rf"^\s*(class|def|async def) {part}\b", source, flags=re.MULTILINE), name


def test_figures_of_the_readme_are_those_of_its_record() -> None:
    """Each row of the README's figures has what the record that it links shows for the engine in C."""
    text = (HOUSE / "README.md").read_text().partition("## How fast")[2].partition("\n## ")[0]
    (link,) = re.findall(r"\[The record\]\((docs/measurements/[\w.-]+\.md)\)", text)
    record = (HOUSE / link).read_text().partition("## What it costs")[2].partition("\n## ")[0]
    (columns, _, *measured), (_, _, *shown) = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
        for page in (record, text)
    )
    ours = [columns.index(f"in C: {name}") for name in ("multi-queue", "`Queue`")]
    assert shown == [[row[0], *(row[column] for column in ours)] for row in measured]


def test_texts_of_troubleshooting_are_texts_of_the_house() -> None:
    """Each message that troubleshooting quotes is said by the code: its parts, in their order, in one expression."""
    page = (HOUSE / "docs/guides/troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE)
    assert len(quoted) > 25
    said = "\n".join(path.read_text() for path in sorted((HOUSE / "multiqueue").rglob("*.py")))
    said = re.sub(r"[\"']\s*\n?\s*r?f?[\"']", "", said)  # strings that stand in a row are one
    elsewhere = {"cannot schedule new futures after shutdown"}  # the standard library's words
    for text in set(quoted) - elsewhere:
        pattern = r"[^\n]*?".join(re.escape(part.strip()) for part in text.split("…") if part.strip())
        assert re.search(pattern, said), text
