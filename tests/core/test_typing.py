"""What mypy and pyright make of programs of users, and of the public API by itself.

`typing_program.py` uses the core, `typing_rooms_program.py` the other rooms. The checkers find no error that a program
does not announce, and each that it does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = [HERE / "typing_program.py", HERE / "typing_rooms_program.py"]


def run(*command: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def with_rooms(need_module: Callable[[str, str], None]) -> None:
    """What the rooms' types are made of."""
    for module in ("pamqp", "prometheus_client", "pydantic", "pyspark", "starlette"):
        need_module(module, f"{module} is not installed: pip install -e '.[test]'")


@pytest.mark.slow(selected=sys.version_info < (3, 12))  # one interpreter will do
def test_mypy_finds_the_mistakes_of_a_user_and_no_others(
    need_module: Callable[[str, str], None], with_rooms: None
) -> None:
    """`mypy --strict` agrees with each `assert_type` of the programs, and finds an error at each ignore."""
    need_module("mypy", "mypy is not installed: pip install -e '.[test]'")
    done = run("mypy", "--strict", *map(str, PROGRAMS))
    assert "Success: no issues found in 2 source files" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow(selected=sys.version_info < (3, 12))
def test_pyright_finds_the_mistakes_of_a_user_and_no_others(
    need_module: Callable[[str, str], None], with_rooms: None, tmp_path: Path
) -> None:
    """`pyright` in its strict mode agrees with each `assert_type`, and finds an error at each ignore."""
    need_module("pyright", "pyright is not installed: pip install -e '.[test]'")
    settings = {
        "include": [os.path.relpath(program, tmp_path) for program in PROGRAMS],  # absolute ones it leaves out
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = run("pyright", "-p", str(tmp_path), "--pythonpath", sys.executable, "--outputjson")
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(PROGRAMS)
    assert report["generalDiagnostics"] == []


@pytest.mark.slow(selected=sys.version_info < (3, 12))
def test_the_type_of_each_public_name_is_known(
    need_module: Callable[[str, str], None], with_rooms: None, tmp_path: Path
) -> None:
    """Pyright knows the type of every public name, and of whatever its type names, from annotations alone.

    Pyright takes classes of PySpark for unknown here, whose `py.typed` says that it is typed in part, and those of
    packages that stand elsewhere. Both stand beside ours, then, in packages that are typed.
    """
    need_module("pyright", "pyright is not installed: pip install -e '.[test]'")
    (tmp_path / "multiqueue").symlink_to(ROOT / "multiqueue")
    for name in ("prometheus_client", "pyspark"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (tmp_path / name).mkdir()
        (tmp_path / name / "py.typed").touch()
        for path in Path(spec.origin).parent.iterdir():
            if path.name != "py.typed":
                (tmp_path / name / path.name).symlink_to(path)
    done = run(
        "pyright",
        *("--pythonpath", sys.executable, "--verifytypes", "multiqueue", "--ignoreexternal", "--outputjson"),
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path),
    )
    found: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    assert sum(found["exportedSymbolCounts"].values()) > 400
    unknown = [
        f"{symbol['name']}: {diagnostic['message']}"
        for symbol in found["symbols"]
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]
        for diagnostic in symbol["diagnostics"]
        if "docstring" not in diagnostic["message"]
    ]
    assert not unknown, "\n".join(unknown[:20])
    assert found["completenessScore"] == 1
