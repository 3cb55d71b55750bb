"""Tables in a store whose drivers are killed, two at once, while the store fails: each row once, to others' eyes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kills_support import survive_kills

if TYPE_CHECKING:
    from s3_support import Store

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize(
    ("kind", "files", "kills"),
    [
        pytest.param("delta", 40, 4, marks=pytest.mark.slow(selected=True), id="delta"),
        pytest.param("iceberg", 40, 2, marks=pytest.mark.slow, id="iceberg"),
        pytest.param("delta", 2000, 100, marks=pytest.mark.slow, id="delta-100-kills"),
        pytest.param("iceberg", 2000, 100, marks=pytest.mark.slow, id="iceberg-100-kills"),
    ],
)
def test_killed_drivers(s3_store: Store, tmp_path: Path, kind: str, files: int, kills: int) -> None:
    """`kill -9` before, during and after commits, and two drivers at once: each row once, and vacuum finds the rest.

    (pipeline 3, 7, 17, 19)
    """
    found = survive_kills(s3_store, tmp_path, kind, files=files, kills=kills, seed=1, say=print)
    print(found)
    assert found.kills.total() == kills
