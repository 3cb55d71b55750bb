"""The classes of Spark as a JVM has them in memory, kept in a file: a JVM that maps it starts with half the work.

The tests start some thirty JVMs, each of which does little but read, check and link the same classes: with the file a
JVM and its first small job take 5 s of CPU time instead of 12. The file lies in pytest's cache, takes 30 s of CPU time
to write, and 170 MB. A JVM of another version or with another class path does not use it, and starts as ever.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Here JVMs do little, and live for seconds."""

WRITTEN_WITHIN_S = 240
"""A JVM that takes longer is given up, and the tests do without."""

PROGRAM = """\
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.codegen.wholeStage", "false").config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
spark = builder.getOrCreate()
frame = spark.createDataFrame([(1, "a"), (2, "b")], "number INT, word STRING")
frame.write.csv(f"{sys.argv[1]}/csv")
spark.read.schema(frame.schema).csv(f"{sys.argv[1]}/csv").createOrReplaceTempView("input")
query = "SELECT word, sum(number), count(*) FROM input GROUP BY word ORDER BY word"
spark.sql(query).write.json(f"{sys.argv[1]}/json")
spark.stop()
"""
"""A larger job needs few classes more. It compiles no query: the JVM would keep no class of that."""


def java() -> str | None:
    """The `java` that Spark starts."""
    return shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin{os.pathsep}{os.environ.get('PATH', '')}")


def set_options(cache_directory: Path | None) -> None:
    """Have each JVM of the run start with little ado, and map the classes once `keep_classes` has written them."""
    archive = None if cache_directory is None else _archive(cache_directory)
    kept = "" if archive is None else f' -Xlog:disable "-XX:SharedArchiveFile={archive}"'
    os.environ.setdefault("JDK_JAVA_OPTIONS", OPTIONS + kept)


@cache
def keep_classes(cache_directory: Path) -> None:
    """Write the classes that a small job needs, unless they are there. Several processes of a run may ask for it."""
    import fcntl  # which Windows has not

    archive = _archive(cache_directory)
    if archive is None:
        return
    with open(archive.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():
            return
        new, work = archive.with_suffix(".new"), archive.with_suffix(".work")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        (work / "job.py").write_text(PROGRAM)
        spark = find_spec("pyspark")
        assert spark is not None
        assert spark.origin is not None
        command = [Path(spark.origin).parent / "bin" / "spark-submit", "job.py", work / "out"]
        environment = {
            **os.environ,
            "JDK_JAVA_OPTIONS": f'{OPTIONS} -Xlog:disable "-XX:ArchiveClassesAtExit={new}"',
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        try:
            # Not `python job.py`: that would not wait for its JVM, which writes the classes when all else is done.
            subprocess.run(
                command, cwd=work, env=environment, capture_output=True, check=True, timeout=WRITTEN_WITHIN_S
            )
        except subprocess.SubprocessError:
            new.unlink(missing_ok=True)
        else:
            new.rename(archive)
        finally:
            shutil.rmtree(work)


def _archive(cache_directory: Path) -> Path | None:
    """The file for this Java and this PySpark; None if one of them is missing."""
    found, spark = java(), find_spec("pyspark")
    if found is None or spark is None or spark.origin is None:
        return None
    of = [(str(path), path.stat().st_mtime_ns) for path in (Path(found).resolve(), Path(spark.origin))]
    return cache_directory / f"{hashlib.sha256(repr(of).encode()).hexdigest()[:16]}.jsa"
