"""Imports between rooms go down only, and through a room's door."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import multiqueue

HOUSE = Path(multiqueue.__file__).parent

MAY_KNOW: dict[str, set[str]] = {
    "errors": set(),
    "_toml": set(),
    "core": {"errors"},
    "store": {"errors"},
    "broker": {"core", "store", "errors"},
    "amqp": {"broker", "core", "errors", "_toml"},
    "client": {"core", "amqp", "errors"},
    "spark": {"core", "client", "errors"},
    "pipeline": {"spark", "broker", "client", "store", "core", "errors", "_toml"},
    "testing": {"core", "errors"},
}
SEES_ALL = {"monitor", "cli", "bench", "pytest_plugin", "__init__", "__main__"}  # and nobody imports them


def modules() -> list[Path]:
    return sorted(HOUSE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The room each import of ours goes to, and the names behind the room's door."""
    package = ["multiqueue", *path.relative_to(HOUSE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = base + (node.module.split(".") if node.module else [])
            targets = [module] if len(module) > 1 else [[*module, alias.name] for alias in node.names]
        else:
            continue
        for target in targets:
            if target[0] == "multiqueue" and len(target) > 1:
                yield target[1], target[2:]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(HOUSE)))
def test_imports_go_down(path: Path) -> None:
    """A module imports only from its own room and from those that its room may know, by their doors."""
    room = room_of(path)
    for target, behind in imports(path):
        if target == room or room in SEES_ALL:
            continue
        assert target in MAY_KNOW[room], f"{room} may not know {target}"
        private = [name for name in behind if name.startswith("_")]
        allowed = room == "testing" and (target, private) == ("core", ["_sync"])  # its docstring says why
        assert not private or allowed, f"{room} goes around the door of {target}: {behind}"


def test_the_rule_can_fail(tmp_path: Path) -> None:
    """The reader of imports sees all spellings of one that is forbidden."""
    room = HOUSE / "core" / "_imaginary.py"
    for line in (
        "from ..broker import Broker",
        "from .. import broker",
        "import multiqueue.broker",
        "from multiqueue.broker._entry import Entry",
    ):
        tree = tmp_path / "m.py"
        tree.write_text(line)
        package = ["multiqueue", "core"]
        assert package == ["multiqueue", *room.relative_to(HOUSE).parts[:-1]]
        original = Path.read_text
        found = [target for target, _ in _imports_of(room, original(tree))]
        assert found == ["broker"], line


def _imports_of(path: Path, text: str) -> list[tuple[str, list[str]]]:
    class Stand(type(path)):  # type: ignore[misc]
        def read_text(self, *args: object, **kwargs: object) -> str:
            return text

    return list(imports(Stand(path)))


def test_the_front_door_opens_the_core_alone() -> None:
    """`import multiqueue` loads no other room, no sockets, no database and no Spark."""
    code = (
        "import sys, multiqueue; "
        "rooms = {m.split('.')[1] for m in sys.modules if m.startswith('multiqueue.')}; "
        "unwanted = {'socket', 'ssl', 'asyncio', 'sqlite3', 'pyspark', 'click'}; "
        "print(sorted(rooms), sorted(unwanted & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['core', 'errors'] []"


def test_only_the_loading_dock_imports_pyspark() -> None:
    """No module outside `spark` names pyspark in an import that runs when the module is imported."""
    for path in modules():
        if room_of(path) == "spark":
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                assert not any(name.split(".")[0] == "pyspark" for name in names), path
