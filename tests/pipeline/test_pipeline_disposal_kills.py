"""`kill -9` while files that are done are moved or deleted: each goes once, after its row is there, and none stays."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kills_support import TOML, driver_maker, is_commit, one_round
from s3_support import KEYS, between
from table_support import rows_of

if TYPE_CHECKING:
    from s3_support import Store

pytestmark = pytest.mark.timeout(1800)

FILES = 6
BODIES = {f"{number:05}.txt": f"row {number}" for number in range(FILES)}
LATER = {"00099.txt": "row 99"}


def configured(base: Path, after: str, root: str, **values: str) -> None:
    """A pipeline with its table on the disk, whose lane's files below the root go."""
    named = {
        "bucket": "none",
        "endpoint": "http://127.0.0.1:1",
        "batch": 2,
        "kind": "delta",
        "catalog": "",
        "lane": "",
        **KEYS,
    }
    named |= values
    text = TOML % named
    goes = f'after = "{after}"\n' + (f'after_place = "{root}/gone"\n' if after == "move" else "")
    text = text.replace(f"s3://{named['bucket']}/in/", f"{root}/in/").replace(f"s3://{named['bucket']}/out", "out")
    (base / "p.toml").write_text(text.replace("[job]", f"{goes}[job]"))


def look(
    base: Path, after: str, here: set[str], gone: dict[str, str], bodies: dict[str, str], *, is_over: bool
) -> None:
    """What is true after a death, and what else once the next run is over. `gone` has names and bodies."""
    there = (base / "out" / "data" / "_delta_log").exists()
    rows = rows_of(base / "out" / "data", "delta") if there else []
    assert len(set(rows)) == len(rows), "a row is there twice"
    assert {body for name, body in bodies.items() if name not in here} <= set(rows), (
        "a file went before its row was there"
    )
    if after == "move":
        assert here | gone.keys() == bodies.keys()
        assert all(bodies[name] == body for name, body in gone.items())
    if is_over:
        assert rows == sorted(bodies.values())
        assert not here


def none_is_noted(base: Path) -> None:
    with contextlib.closing(sqlite3.connect(base / "out" / "_multiqueue" / "state.sqlite")) as state:
        assert state.execute("SELECT count(*) FROM leaving").fetchone() == (0,)


@dataclass
class Striker:
    """Kills at the n-th moment of the requests that take files away, and of commits."""

    left: int = -1
    kill: Callable[[], None] = lambda: None
    moments: int = 0
    struck: bool = False

    def _moment(self, method: str, path: str) -> bool:
        key = path.partition("?")[0]
        if not (method == "DELETE" or (method == "PUT" and "/gone/" in key) or is_commit(method, path)):
            return False
        self.moments += 1
        if self.moments != self.left or self.struck:
            return False
        self.struck = True
        self.kill()
        return True

    def before(self, method: str, path: str) -> str | None:
        return "before" if self._moment(method, path) else None

    def done(self, method: str, path: str) -> None:
        self._moment(method, path)

    def answered(self, method: str, path: str) -> None:
        self._moment(method, path)


@pytest.mark.parametrize(
    ("after", "every"),
    [
        pytest.param("move", 60, marks=pytest.mark.slow(selected=True), id="move"),
        pytest.param("delete", 11, marks=pytest.mark.slow, id="delete"),
        pytest.param("move", 1, marks=pytest.mark.slow, id="move-everywhere"),
        pytest.param("delete", 1, marks=pytest.mark.slow, id="delete-everywhere"),
    ],
)
def test_killed_while_objects_go(s3_store: Store, tmp_path: Path, after: str, every: int) -> None:
    """Killed before, while or after the store copies or deletes any object: the next run takes away what is left.

    (pipeline 28)
    """
    striker = Striker()
    with between(s3_store.endpoint, striker) as endpoint, driver_maker() as maker:
        moment, is_through = 1, False
        while not is_through:
            base = tmp_path / str(moment)
            base.mkdir()
            bucket = s3_store.bucket({f"in/eu/{name}": body.encode() for name, body in BODIES.items()})
            configured(base, after, f"s3://{bucket}", bucket=bucket, endpoint=endpoint)
            striker.left, striker.moments, striker.struck = moment, 0, False

            def aim(kill: Callable[[], None]) -> None:
                striker.kill = kill

            statuses = one_round(maker, base, 1, aim)
            assert statuses == [-signal.SIGKILL if striker.struck else 0]
            is_through = not striker.struck
            look(base, after, *lying(s3_store, bucket), BODIES, is_over=is_through)
            assert one_round(maker, base, 1) == [0]
            look(base, after, *lying(s3_store, bucket), BODIES, is_over=True)
            none_is_noted(base)
            for name, body in LATER.items():  # a lane whose objects have all gone is none until one comes
                s3_store.client.put_object(Bucket=bucket, Key=f"in/eu/{name}", Body=body.encode())
            assert one_round(maker, base, 1) == [0]
            look(base, after, *lying(s3_store, bucket), BODIES | LATER, is_over=True)
            none_is_noted(base)
            moment += every
    assert moment > 3 * FILES


def lying(store: Store, bucket: str) -> tuple[set[str], dict[str, str]]:
    """The names of input, and what lies where it goes."""
    keys = store.keys(bucket)
    bodies = {key: store.client.get_object(Bucket=bucket, Key=key)["Body"].read().decode() for key in keys}
    gone = {key.rpartition("/")[2]: body for key, body in bodies.items() if key.startswith("gone/")}
    return {key.rpartition("/")[2] for key in keys if key.startswith("in/")}, gone


@pytest.mark.parametrize(
    ("after", "every"),
    [
        pytest.param("move", 27, marks=pytest.mark.slow(selected=True), id="move"),
        pytest.param("delete", 21, marks=pytest.mark.slow, id="delete"),
        pytest.param("move", 1, marks=pytest.mark.slow, id="move-everywhere"),
        pytest.param("delete", 1, marks=pytest.mark.slow, id="delete-everywhere"),
    ],
)
def test_killed_while_files_go(tmp_path: Path, after: str, every: int) -> None:
    """Killed before or after the commit, any note, link or removal: the next run finishes.

    (pipeline 28)
    """
    with driver_maker() as maker:
        moment, is_through = 1, False
        while not is_through:
            base = tmp_path / str(moment)
            for name, body in BODIES.items():
                (base / "in" / "eu").mkdir(parents=True, exist_ok=True)
                (base / "in" / "eu" / name).write_text(body)
            configured(base, after, str(base))
            statuses = one_round(maker, base, 1, moment=moment)
            assert statuses in ([0], [-signal.SIGKILL])
            is_through = statuses == [0]
            look(base, after, *lying_here(base), BODIES, is_over=is_through)
            assert one_round(maker, base, 1) == [0]
            look(base, after, *lying_here(base), BODIES, is_over=True)
            none_is_noted(base)
            moment += every
    assert moment > 2 * FILES


def lying_here(base: Path) -> tuple[set[str], dict[str, str]]:
    found = {path.name: path.read_text() for path in (base / "gone").rglob("*.txt")}
    return {path.name for path in (base / "in" / "eu").iterdir()}, found
