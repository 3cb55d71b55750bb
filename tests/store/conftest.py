"""A disk that fails, for the tests that need one."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty_disk_support import build_faulty_disk


@pytest.fixture(scope="session")
def faulty_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes syncs fail and records writes."""
    return build_faulty_disk(tmp_path_factory.mktemp("disk"))
