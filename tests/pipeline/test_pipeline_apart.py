"""Clusters whose machines share no directory: the example of the guide, with its data in a store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pipeline_cluster_support import connect_server, may_part_mounts, standalone_cluster
from test_pipeline_spark import COMMAND, HOUSE, environment

if TYPE_CHECKING:
    from s3_support import Store

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

MEANS = [{"station": "north", "celsius": -2.5, "readings": 4}, {"station": "south", "celsius": 11.5, "readings": 3}]


@pytest.fixture
def example(tmp_path: Path, s3_store: Store) -> tuple[Path, str]:
    """The example, whose readings and tables are in a bucket, and its bucket."""
    source = HOUSE / "examples" / "pipeline" / "sensors"
    readings = source / "readings"
    objects = {f"readings/{path.relative_to(readings)}": path.read_bytes() for path in readings.rglob("*.txt")}
    bucket = s3_store.bucket(objects)
    text = (source / "sensors.toml").read_text()
    text = text.replace('"readings/*"', f'"s3://{bucket}/readings/*"')
    text = text.replace(
        'path = "out"\nfiles_per_item = 1', f'path = "s3://{bucket}/out"\nwork = "work"\ntable = "delta"'
    )
    text += "[storage.store]\n" + "".join(f'{key} = "{value}"\n' for key, value in s3_store.section(bucket).items())
    text += '[spark.conf]\n"spark.executor.memory" = "512m"\n"spark.sql.shuffle.partitions" = 1\n'
    text += "[retry]\nattempts = 1\n"
    (tmp_path / "sensors.toml").write_text(text)
    shutil.copy(source / "sensors.py", tmp_path)
    return tmp_path, bucket


def run_and_look(base: Path, bucket: str, store: Store, url: str) -> None:
    """Run it there, and read the tables as others do."""
    import deltalake
    from test_pipeline_table_store import options

    command = [*COMMAND, "pipeline", "run", "sensors.toml", "--json", "--on", url]
    answer = subprocess.run(command, cwd=base, env=environment(), capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    told: dict[str, Any] = json.loads(answer.stdout)
    assert told["total"]["failed"] == 0
    read = {}
    for name in ("data", "steps/means"):
        table = deltalake.DeltaTable(f"s3://{bucket}/out/{name}", storage_options=options(store))
        read[name] = table.to_pyarrow_table().to_pylist()
    assert sorted(row["celsius"] for row in read["data"]) == [-3.5, -3.0, -2.5, -1.0, 10.0, 12.0, 12.5]
    assert sorted(({key: row[key] for key in MEANS[0]} for row in read["steps/means"]), key=str) == MEANS


def test_workers_that_share_no_directory(example: tuple[Path, str], s3_store: Store) -> None:
    """Two workers that see neither each other's directories nor the driver's do the example. (pipeline 21)

    They have not even this package: what runs there is sent to them.
    """
    if not may_part_mounts():
        pytest.skip("this user may not have mounts of its own (unshare --mount)")
    base, bucket = example
    hidden = [Path(tempfile.gettempdir()), *(HOUSE / name for name in ("multiqueue", "tests", "examples"))]
    with standalone_cluster(base, without=hidden) as cluster:
        assert os.path.commonpath([base, hidden[0]]) == str(hidden[0]), "the driver's directory is hidden from them"
        run_and_look(base, bucket, s3_store, cluster.url)


def test_a_connect_server_that_shares_no_directory(example: tuple[Path, str], s3_store: Store) -> None:
    """A Connect server that sees no directory of the client's does the example. (pipeline 21)"""
    base, bucket = example
    with connect_server(base) as url:
        run_and_look(base, bucket, s3_store, url)
