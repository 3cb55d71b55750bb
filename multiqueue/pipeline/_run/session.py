"""A Spark session for the command line: checked beforehand, quiet on the terminal, deaf to Ctrl-C.

Promise     What the JVM and its Python workers write to standard error goes to the log file, and so do Python's
            warnings and log records. Ctrl-C reaches neither the JVM nor the workers: stopping is ours to decide.
            While Spark starts Ctrl-C raises KeyboardInterrupt, and the JVM goes with it.
State       File descriptor 2 and the signal mask of the calling thread, for the time the JVM is started: both are
            inherited by it and by its workers, and put back afterwards. The SIGINT handler that PySpark installs
            (it cancels every job) is replaced by the one that stood before.
Threads     Call it in the main thread: only there PySpark installs its handler, and only there it can be undone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .._base.errors import Unprepared, Unreachable
from .._config.config import spark_options
from .._config.sections import SparkSection

# What a URL without a port means; and how long a server may take to answer, in seconds: it may be far away.
_PORTS = {"spark": 7077, "sc": 15002}
_ANSWERS_WITHIN_S = 10.0

# Nothing of Spark's own on the terminal, and no `_SUCCESS` files: an item's directory is there when it is complete.
_CONF = {
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


@contextlib.contextmanager
def spark_session(section: SparkSection, pools: Sequence[str], log: Path) -> Iterator[Any]:
    """A session as `[spark]` describes it, stopped at the end. `pools` are the fair scheduler's.

    Raises:
        Unprepared: pyspark or Java is missing, or Spark did not start; the message says what to do.
    """
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    with ExitStack() as stack:
        has_begun = False  # a JVM
        try:
            require_one_place(section)
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # as `session_builder` will, looked at before
            check_machine(classic=section.remote is None)
            check_reachable(section)
            log.parent.mkdir(parents=True, exist_ok=True)
            builder = _builder(section, pools, log.parent)
            said = log.stat().st_size if log.exists() else 0
            stack.enter_context(_quiet_python(log))
            try:
                with _errors_go_to(log):
                    if section.remote is None:
                        has_begun, is_to_stop = _start_jvm(builder)
                        if is_to_stop:
                            raise KeyboardInterrupt
                    spark = builder.getOrCreate()
            except Exception as error:
                from ...spark import cause_of

                reason = _java_exception(log, said) or cause_of(error)
                raise Unprepared(f"Spark did not start: {reason}; its log is {str(log)!r}") from error
        except KeyboardInterrupt:
            if has_begun:
                _end_jvm()
            raise KeyboardInterrupt("interrupted while Spark started; no item was begun") from None
        finally:
            signal.signal(signal.SIGINT, handler)
        try:
            yield spark
        finally:
            with contextlib.suppress(Exception):
                spark.stop()


def require_one_place(section: SparkSection) -> None:
    """Return if the environment names no other Spark than the configuration.

    Raises:
        Unprepared: it does; PySpark would refuse both.
    """
    url = os.environ.get("SPARK_REMOTE")
    if url and section.remote is None:
        master = section.master or "local[*]"
        raise Unprepared(
            f"SPARK_REMOTE is set to {url!r}, and the pipeline is to run on {master!r}: unset SPARK_REMOTE, "
            f'or say --on {shlex.quote(url)} or remote = "{url}" in [spark]'
        )


def check_machine(classic: bool) -> None:
    try:
        from ...spark import check_environment
    except ImportError as error:
        raise Unprepared(str(error)) from error
    errors = [finding for finding in check_environment() if finding.level == "error"] if classic else []
    if errors:
        raise Unprepared("; ".join(f"{finding.subject}: {finding.message}" for finding in errors))


def check_reachable(section: SparkSection) -> None:
    """Return if a server that `[spark]` names answers, or none is named.

    Spark itself tries for a minute (standalone) or ten (Connect) before it says so.

    Raises:
        Unreachable: none of them does.
    """
    url = section.remote or section.master or ""
    reasons = []
    for host, port in _servers(url):
        try:
            socket.create_connection((host, port), timeout=_ANSWERS_WITHIN_S).close()
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return
    if reasons:
        raise Unreachable(f"nothing answers at {url!r} ({'; '.join(reasons)}); start it, or correct --on or [spark]")


def _servers(url: str) -> list[tuple[str, int]]:
    """The hosts and ports in `sc://HOST[:PORT][/;...]` or `spark://HOST:PORT[,HOST:PORT...]`; none of other URLs."""
    scheme, _, rest = url.partition("://")
    if scheme not in _PORTS:
        return []
    parsed = (urlsplit(f"//{one}") for one in re.split(r"[/;]", rest)[0].split(","))
    return [(one.hostname, one.port or _PORTS[scheme]) for one in parsed if one.hostname]


def _builder(section: SparkSection, pools: Sequence[str], directory: Path) -> Any:
    from ...spark import session_builder

    builder = session_builder("multiqueue pipeline")
    if section.remote is not None:
        builder = builder.remote(section.remote)
    else:
        builder = builder.master(section.master or "local[*]")
        for key, value in {**_CONF, **_pool_conf(pools, directory)}.items():
            builder = builder.config(key, value)
    for key, value in spark_options(section.conf).items():
        builder = builder.config(key, value)
    return builder


def _pool_conf(pools: Sequence[str], directory: Path) -> dict[str, str]:
    if not pools:
        return {}
    from ...spark import pools_xml

    return {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": pools_xml(pools, directory)}


def _start_jvm(builder: Any) -> tuple[bool, bool]:
    """Start the JVM of a session to come, unless there is one: whether it was started, and whether Ctrl-C came.

    It will never see Ctrl-C. A blocked signal stays blocked in children, also in Spark's Python workers, which set a
    handler of their own: in a terminal Ctrl-C goes to every process of the group, and would fail the tasks that are to
    end in peace.
    """
    from pyspark import SparkConf, SparkContext

    if SparkContext._gateway is not None:
        return False, False
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda signum, frame: came.append(signum))  # to raise would lose the process
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        SparkContext._ensure_initialized(conf=SparkConf().setAll(list(builder._options.items())))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, handler)
    return True, bool(came)


def _end_jvm() -> None:
    """End the JVM of a session that was interrupted while it began: nothing is in it, and it may be at work."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    gateway.proc.kill()
    gateway.proc.wait()


@contextlib.contextmanager
def _errors_go_to(log: Path) -> Iterator[None]:
    """What this process, and children that are started inside, write to standard error goes to the log."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(log, "ab") as stream:
        os.dup2(stream.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _quiet_python(log: Path) -> Iterator[None]:
    """Log records and warnings of this process go to the log file."""
    from ...spark import quiet_query_contexts

    handler = logging.FileHandler(log, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    logging.captureWarnings(True)
    quiet_query_contexts()
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        handler.close()


def _java_exception(log: Path, start: int) -> str | None:
    """The message of the first Java exception that the log has after this byte."""
    with open(log, encoding="utf-8", errors="replace") as stream:
        stream.seek(start)
        found = re.search(r"^Exception in thread .*?[\w.$]+(?:Exception|Error): (.*)$", stream.read(), re.MULTILINE)
    return found[1] if found else None
