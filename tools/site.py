"""Hooks of the site's build: pages that are made from the code and from files beside docs/, and links out of docs/.

- `api/ROOM.md`: every public name of a room, by its docstring.
- `project/NAME.md`: CHANGELOG.md and its neighbours, and docs/versioning.md's place beside them.
- A link to a file that is no page leads to the repository, or is its plain name where the site knows none.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HOUSE = Path(__file__).parent.parent
ROOMS = (
    "",
    "errors",
    "core",
    "store",
    "broker",
    "amqp",
    "amqp.wire",
    "client",
    "spark",
    "pipeline",
    "monitor",
    "testing",
    "testing.contracts",
)
PROJECT = {
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "security": "SECURITY.md",
    "conduct": "CODE_OF_CONDUCT.md",
}
LINK = re.compile(r"\[((?:[^\[\]`]|`[^`]*`)*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
DEFINITION = re.compile(r"^\[([^\]]+)\]: (\S+)$", re.MULTILINE)
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
# Where the pages that are made here stand, by the file each of them shows.
_MADE = {file: f"project/{name}.md" for name, file in PROJECT.items()}


# A search shows a guide first, then the reference, then explanations. It leaves out what the navigation leaves out.
# A page's own number goes before its folder's: troubleshooting has a word of every guide.
_BOOSTS = {
    "guides": 16,
    "guides/troubleshooting.md": 2,
    "tutorial.md": 8,
    "walk-through.md": 8,
    "reference": 0.2,
    "api": 0.01,
    "design": 0.05,
    "project": 0.25,
}
_NOT_SEARCHED = {"decisions", "measurements"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the parts of the navigation that are whole folders."""
    config.nav = _filled(config.nav)
    return config


def _filled(nav: Any) -> Any:
    if isinstance(nav, list):
        return [_filled(one) for one in nav]
    if isinstance(nav, dict):
        return {
            name: _folder(value) if isinstance(value, str) and "." not in value else _filled(value)
            for name, value in nav.items()
        }
    return nav


def _folder(name: str) -> list[str]:
    if name == "api":
        return [f"api/{_door(room)}.md" for room in ROOMS]
    if name == "project":
        return [*(f"project/{one}.md" for one in PROJECT), "versioning.md"]
    return [f"{name}/{page.name}" for page in sorted((HOUSE / "docs" / name).glob("*.md"))]


def _door(room: str) -> str:
    return f"multiqueue.{room}".rstrip(".")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand in no file of docs/."""
    for room in ROOMS:
        files.append(File.generated(config, f"api/{_door(room)}.md", content=names_of(room)))
    for name, source in PROJECT.items():
        files.append(File.generated(config, f"project/{name}.md", content=(HOUSE / source).read_text()))
    return files


def names_of(room: str) -> str:
    """The page of a room: its own words, then each name that its door shows."""
    path = HOUSE.joinpath("multiqueue", *room.split(".")) if room else HOUSE / "multiqueue"
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    theirs = {"SimpleQueue"} if not room else set()  # the standard library's
    door = _door(room)
    head = [f"# `{door}`", "", ast.get_docstring(tree) or "", ""]
    return "\n".join([*head, *(f"::: {door}.{name}\n" for name in shown_by(tree) if name not in theirs)])


def shown_by(tree: ast.Module) -> list[str]:
    """The names in a module's `__all__`; else those that it imports as they are; else its classes."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            try:
                return [str(name) for name in ast.literal_eval(node.value)]
            except ValueError:  # made of what is imported
                break
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {each.name for node in imports for each in node.names if each.name == each.asname}
    return sorted(imported) or [
        node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have each relative link lead to a page of the site, or to the repository's file; and have guides found first."""
    kind = page.file.src_uri.partition("/")[0]
    page.meta["search"] = (
        {"exclude": True} if kind in _NOT_SEARCHED else {"boost": _BOOSTS.get(page.file.src_uri, _BOOSTS.get(kind, 1))}
    )
    here = PurePosixPath(page.file.src_uri)
    source = next((file for file, made in _MADE.items() if made == str(here)), None)
    base = PurePosixPath(".") if source else PurePosixPath("docs") / here.parent

    def led(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = os.path.normpath(base / target)
        inner = _MADE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")
        if path == "README.md":
            inner = "index.md"
        if (HOUSE / path).is_dir():
            inner = next(
                (
                    f"{inner}/{name}"
                    for name in ("README.md", first_page(path))
                    if name and f"{inner}/{name}" in files.src_uris
                ),
                "",
            )
        if inner and files.get_file_from_path(inner) is not None:
            return f"[{text}]({os.path.relpath(inner, here.parent)}{anchor})"
        if config.repo_url:
            return f"[{text}]({str(config.repo_url).rstrip('/')}/blob/main/{path})"
        return text

    parts = FENCE.split(inlined(markdown))  # the odd ones are code
    return "".join(part if number % 2 else LINK.sub(led, part) for number, part in enumerate(parts))


def inlined(markdown: str) -> str:
    """A page whose links by name, `[text][name]` or `[name]` with `[name]: path` below, stand where they are used."""
    for name, target in DEFINITION.findall(markdown):
        by_name = re.compile(rf"\[([^\[\]]+)\]\[{re.escape(name)}\]|\[({re.escape(name)})\](?:\[\])?(?![(\[:])")
        markdown = by_name.sub(lambda found, target=target: f"[{found[1] or found[2]}]({target})", markdown)
    return DEFINITION.sub("", markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Have the search, where the site is read from a disk, load its helper from the site."""
    here = PurePosixPath(page.file.dest_uri).parent
    return output.replace("https://unpkg.com/iframe-worker/shim", os.path.relpath("assets/iframe-worker.js", here))


def first_page(folder: str) -> str:
    """The name of a folder's first page, empty when there is none."""
    return next((page.name for page in sorted((HOUSE / folder).glob("*.md"))), "")
