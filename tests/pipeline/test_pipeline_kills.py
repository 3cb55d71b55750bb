"""Tables in a store whose drivers are killed, two at once, while the store fails: each row once, to others' eyes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kills_support import survive_kills

if TYPE_CHECKING:
    from s3_support import Store

pytestmark = pytest.mark.timeout(7200)


@pytest.mark.parametrize(
    ("kind", "files", "kills", "events"),
    [
        pytest.param("delta", 40, 4, True, marks=pytest.mark.slow(selected=True), id="delta"),
        pytest.param("iceberg", 40, 2, False, marks=pytest.mark.slow, id="iceberg"),
        pytest.param("delta", 2000, 100, True, marks=pytest.mark.slow, id="delta-100-kills"),
        pytest.param("iceberg", 2000, 100, True, marks=pytest.mark.slow, id="iceberg-100-kills"),
    ],
)
def test_killed_drivers(s3_store: Store, tmp_path: Path, kind: str, files: int, kills: int, events: bool) -> None:
    """`kill -9` before, during and after commits, two drivers at once, and events that are lost, doubled, late, of
    what is written anew and removed: each row once, to all who read the table, and vacuum finds the rest.

    (pipeline 3, 7, 17, 19, 34, 35)
    """
    share = 0.01 if kills < 100 else 0.003  # a client that waits for an answer costs seconds
    found = survive_kills(
        s3_store, tmp_path, kind, files=files, kills=kills, seed=1, share=share, events=events, say=print
    )
    print(found)
    assert found.kills.total() == kills
