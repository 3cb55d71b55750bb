"""What mypy and pyright make of `typing_program.py`: no error that it does not announce, and each that it does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("typing_program.py")
ROOT = PROGRAM.parents[2]


def run(*command: str) -> str:
    """What a checker says, which must be nothing but its success."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow(selected=sys.version_info < (3, 12))  # one interpreter will do
def test_mypy_finds_the_mistakes_of_a_user_and_no_others(need_module: Callable[[str, str], None]) -> None:
    """`mypy --strict` agrees with each `assert_type` of the program, and finds an error at each ignore."""
    need_module("mypy", "mypy is not installed: pip install -e '.[test]'")
    assert "Success" in run("mypy", "--strict", str(PROGRAM))


@pytest.mark.slow(selected=sys.version_info < (3, 12))
def test_pyright_finds_the_mistakes_of_a_user_and_no_others(
    need_module: Callable[[str, str], None], tmp_path: Path
) -> None:
    """`pyright` in its strict mode agrees with each `assert_type`, and finds an error at each ignore."""
    need_module("pyright", "pyright is not installed: pip install -e '.[test]'")
    settings = {
        "include": [str(PROGRAM)],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    assert "0 errors" in run("pyright", "-p", str(tmp_path), "--pythonpath", sys.executable)
