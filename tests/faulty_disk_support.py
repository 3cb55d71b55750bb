"""A disk that fails: a library that stands between a program and its syncs, built from tests/store/faulty_disk.c."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "store" / "faulty_disk.c"


def build_faulty_disk(directory: Path) -> Path:
    """The library, for LD_PRELOAD. A machine without gcc is a failure where peers are required, else a skip."""
    if shutil.which("gcc") is None:
        without = pytest.fail if os.environ.get("MULTIQUEUE_REQUIRE_PEERS") else pytest.skip
        without("there is no gcc to build the library that stands between a store and its disk")
    built = directory / "faulty_disk.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", built, SOURCE, "-ldl", "-lpthread"], check=True)
    return built
