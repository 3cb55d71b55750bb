"""A disk that fails, for the tests that need one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from store_fault_support import do_without

SOURCE = Path(__file__).with_name("faulty_disk.c")


@pytest.fixture(scope="session")
def faulty_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes syncs fail and records writes, built from faulty_disk.c."""
    if shutil.which("gcc") is None:
        do_without("there is no gcc to build the library that stands between a store and its disk")
    built = tmp_path_factory.mktemp("disk") / "faulty_disk.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", built, SOURCE, "-ldl", "-lpthread"], check=True)
    return built
