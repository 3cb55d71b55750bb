"""What is installed: the extras bring what the rooms need, and the package's page leads to the repository."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import multiqueue
from multiqueue._extras import _EXTRAS

HOUSE = Path(__file__).parent.parent
PROJECT = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]


def brought(extra: str) -> set[str]:
    """The distributions that an extra names, those of the extras it includes too."""
    found: set[str] = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        name, extras = re.match(r"([\w-]+)(?:\[([\w,]*)\])?", requirement).groups()  # type: ignore[union-attr]
        if name == PROJECT["name"]:
            found |= {one for inner in extras.split(",") for one in brought(inner)}
        else:
            found.add(name.replace("-", "_"))
    return found


@pytest.fixture
def hook(need_module: Callable[[str, str], None]) -> ModuleType:
    """The hook that makes the metadata's links."""
    need_module("hatchling", "hatchling is not installed: pip install -e '.[release]'")
    spec = importlib.util.spec_from_file_location("hatch_build", HOUSE / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_extra_brings_what_a_hint_says_it_brings() -> None:
    """A sentence that says `pip install 'blocking-multiqueue[EXTRA]'` names the extra that has the module."""
    named = {"opentelemetry": "opentelemetry_api", "botocore": "s3fs"}  # which need it
    missing = {module: extra for module, extra in _EXTRAS.items() if named.get(module, module) not in brought(extra)}
    assert not missing


def test_everything_is_in_all() -> None:
    """`blocking-multiqueue[all]` has what the rooms need, and nothing that only checks, documents or releases them."""
    assert brought("all") >= set().union(*map(brought, ("spark", "amqp", "cli", "monitor")))
    assert not brought("all") & set().union(*map(brought, ("check", "docs", "release")))


def test_the_package_has_source_and_what_the_page_needs() -> None:
    """A file of another kind in it was left there by mistake."""
    kinds = {"", ".py", ".pyi", ".pyc", ".typed", ".c", ".h", ".so", ".pyd", ".html", ".css", ".js", ".svg"}
    files = [path for path in Path(multiqueue.__file__).parent.rglob("*") if path.is_file()]
    assert [path.name for path in files if path.suffix not in kinds] == []


def test_links_of_the_package_page_lead_to_the_repository(hook: ModuleType) -> None:
    """Relative links of README.md become links to the repository's files; others stay."""
    text = "[a](docs/a.md) [b](#here) [c](https://example.org/c) [d](CHANGELOG.md#top)"
    assert hook.absolute_links(text, "https://host/owner/name") == (
        "[a](https://host/owner/name/blob/main/docs/a.md) [b](#here) [c](https://example.org/c)"
        " [d](https://host/owner/name/blob/main/CHANGELOG.md#top)"
    )


def test_without_a_repository_there_are_no_links(hook: ModuleType) -> None:
    """A build outside of a release names no address, and leaves README.md as it is."""
    assert hook.urls("") == {}
    assert hook.absolute_links("[a](docs/a.md)", "") == "[a](docs/a.md)"


def test_without_a_compiler_the_engine_is_not_built_and_the_build_says_why(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No compiler, or a source that does not compile, is a sentence for the builder, not an exception."""
    source = tmp_path / "engine.c"
    source.write_text("int broken(")
    assert "error" in hook.compile_engine(source, tmp_path / "engine.so") or not (tmp_path / "engine.so").exists()
    monkeypatch.setenv("LDSHARED", str(tmp_path / "no-compiler") + " -shared")
    assert "no-compiler" in hook.compile_engine(source, tmp_path / "engine.so")


@pytest.mark.parametrize(("asked", "runs"), [("1", "python"), ("0", None), ("", None)])
def test_the_environment_chooses_the_engine(asked: str, runs: str | None) -> None:
    """`MULTIQUEUE_PURE=1` has the engine in Python run; else it is the one in C where that was built."""
    built = importlib.util.find_spec("multiqueue.core._engine") is not None
    ended = subprocess.run(
        [sys.executable, "-c", "import multiqueue.core; print(multiqueue.core.engine)"],
        env={**os.environ, "MULTIQUEUE_PURE": asked},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stdout.strip() == (runs or ("c" if built else "python"))
