"""What holds for every test: which slow ones run, in which process, and what happens when a peer is missing."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from explorations_support import set_surprises
from jvm_support import java, keep_classes, set_options
from process_support import left_changed, process_state

if TYPE_CHECKING:
    from emulators_support import Bucket
    from postgres_support import Postgres
    from rabbitmq_support import Peer
    from s3_support import Store

SLOW = ("none", "selected", "all")

# What is dear to start is started once: tests that share it run in one process, one after the other, and every other
# test goes to the process that is free. Here by their names, for the process that distributes them knows nothing else,
# and those first that take longest: the last to end should not wait for one of them.
SHARED = {
    # What needs the servers of Spark, and not the session.
    "spark elsewhere": re.compile(
        "test_spark_connect|test_pipeline_cluster|test_streaming_elsewhere|test_task_events_spark.*(cluster|masters)"
    ),
    # What needs the session of Spark; the other files there start none, or JVMs of their own.
    "spark": re.compile(
        "test_spark_(arrow|bench|causes|classic|contract|costs|env|examples|fan_in|guides|many|pools|traces|walk)|"
        "test_streaming_(guide|kills|pipelines|spark)|test_task_events_(docs|spark)|test_pipeline_(stores|table_spark)"
    ),
    # As much again: two processes do half of it each.
    "spark that reads": re.compile("test_pipeline_(columns|input|path_columns|ways)"),
    "rabbitmq": re.compile("::.*rabbitmq|test_interop_(differential|frames)", re.IGNORECASE),
    "s3": re.compile(r"test_pipeline_(storage|table_store)|test_pipeline_disposal.*\b(s3|gs|abfss)\b"),
    "tables": re.compile(r"test_pipeline_(table|command)\.py"),  # whose libraries take a second to load
    "programs of spark": re.compile("test_spark_ends"),  # each shows several ends
    "browser": re.compile("test_monitor_page"),
    "celery": re.compile("test_interop_celery"),  # its worker
    "house": re.compile("tests/test_rooms"),  # which it parses
    "postgres": re.compile("::.*postgres", re.IGNORECASE),
}

# So many tests, or tests of about so many seconds, are sent to a process at once.
DOZEN = 12
DOZEN_S = 1.0

MANY_MODULES = 50  # since the heap was frozen
_frozen_modules = 0
_BEFORE = pytest.StashKey[dict[str, object]]()

# Of these a test that SHARED does not find would start one more, in each process that runs such a test.
DEAR = {
    "rabbitmq_peer": ["rabbitmq"],
    "postgres_peer": ["postgres"],
    "spark": ["spark", "spark that reads"],
    "cluster": ["spark elsewhere"],
    "connect_url": ["spark elsewhere"],
}


def pytest_configure(config: pytest.Config) -> None:
    """Take SIGINT even where the starter of the run ignores it, as shells do for what runs in the background.

    Programs that tests start inherit an ignored signal, and those that are to end by it never would.

    And have JVMs start with less ado.

    And have gcsfs ask Google's emulator for nothing that only Google has.

    And keep what Python compiles, even where it is told not to: otherwise each process that a test starts would
    compile the house anew, and each run all tests.

    And have what SHARED names first begin first.

    And have Hypothesis try fewer examples, and explorations fewer schedules, but in the long runs.
    """
    is_short = config.getoption("--slow") != "all"
    set_surprises(is_short)
    if find_spec("hypothesis") is not None:  # it has no wheel for free-threaded interpreters
        from hypothesis_support import set_examples

        set_examples(is_short)
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    set_options(_kept(config))
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    config.option.loadscopereorder = False  # of xdist, which would begin with the most tests
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow",
        choices=SLOW,
        default="none",
        help="which tests marked slow run: none, those marked slow(selected=True), all",
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes for each core, for a good part of the tests wait.

    Files that are named run in this process: most need less time than another process needs to start.
    """
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    if named and all(Path(name.partition("::")[0]).is_file() for name in config.args):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 2 * cores


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect slow tests that were not asked for: they are counted in the summary, not skipped one by one."""
    asked = config.getoption("--slow")
    kept, left_out = [], []
    for item in items:
        for fixture, names in DEAR.items():
            if fixture in getattr(item, "fixturenames", ()) and _shared(item.nodeid) not in names:
                raise pytest.UsageError(
                    f"{item.nodeid} would start a {names[0]} of its own: let SHARED find it by its name"
                )
        if item.get_closest_marker("spark") is not None and item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.slow(selected=True))  # its JVM takes twenty seconds of CPU
        slow = [mark.kwargs.get("selected", False) for mark in item.iter_markers("slow")]
        runs = not slow or asked == "all" or (asked == "selected" and all(slow))
        (kept if runs else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
    if hasattr(config, "workerinput"):  # the last process to end waits for a short test then, not for a long one
        places = {name: place for place, name in enumerate(SHARED)}
        last = len(places)
        items.sort(key=lambda item: places.get(_shared(item.nodeid), last + (item.get_closest_marker("slow") is None)))


def _shared(nodeid: str) -> str | None:
    """By its name in SHARED what a test shares with others, if anything."""
    return next((name for name, shared in SHARED.items() if shared.search(nodeid)), None)


class Written(pytest.Module):
    """A file of tests that, without a library it is written with, ends as a test without its peer."""

    def collect(self) -> Any:
        """Its tests. A module of this house that is missing is a defect, as ever."""
        try:
            return super().collect()
        except self.CollectError as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, ModuleNotFoundError):
                cause = cause.__cause__ or cause.__context__
            name = str(cause and cause.name).partition(".")[0]
            if cause is None or name == "multiqueue" or name.endswith("_support"):
                raise
            do_without(f"{name} is not installed: pip install 'blocking-multiqueue[test]'")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Each file of tests is one that can be left out."""
    return Written.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Note what the process is like before a test."""
    item.stash[_BEFORE] = process_state(item)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[object]:
    """Fail a test that leaves its process changed: those after it would have to live with that."""
    try:
        return (yield)
    finally:
        left = left_changed(item.stash[_BEFORE], process_state(item))
        if left:
            pytest.fail(f"the test has left changed: {left}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Collect without the garbage collector, which finds nothing in what is all kept: a sixth less CPU time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Take what the collection made out of the garbage collector's sight: a full collection costs 0.1 s otherwise.

    Tests ask for hundreds of them, and each round of a benchmark begins with one. What is garbage already stays: to
    look for it costs more than it holds.
    """
    _freeze()


def pytest_runtest_logfinish() -> None:
    """Do so with what a test has imported too: the libraries of tables and stores make a collection four times as long.

    Not with all again where a test has unfrozen it: `gc.get_freeze_count` counts one by one, 0.05 s after each test.
    """
    if len(sys.modules) > _frozen_modules + MANY_MODULES:
        gc.collect()
        _freeze()


def _freeze() -> None:
    global _frozen_modules
    gc.freeze()
    _frozen_modules = len(sys.modules)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Who gives the tests to the processes."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        usual_s = DOZEN_S
        """How long a test took of late, on average."""

        def _split_scope(self, nodeid: str) -> str:
            """Tests of one scope run in one process."""
            return _shared(nodeid) or nodeid

        def _assign_work_unit(self, node: Any) -> None:
            """Send short scopes by the dozen while many are left: each message costs about as much as a short test."""
            count = min(DOZEN, -(-len(self.workqueue) // (4 * len(self.nodes))), int(DOZEN_S / self.usual_s) or 1)
            tests: list[str] = []
            while self.workqueue and len(tests) < count:
                scope, unit = self.workqueue.popitem(last=False)
                self.assigned_work[node][scope] = unit
                tests += unit
            places = self.registered_collections[node]
            node.send_runtest_some([places.index(test) for test in tests])

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            """Forget a test that is done: else each further one would be counted among all of them."""
            self.usual_s += (duration - self.usual_s) / DOZEN
            test = self.registered_collections[node][item_index]
            units = self.assigned_work[node]
            scope = self._split_scope(test)
            del units[scope][test]
            if not units[scope]:
                del units[scope]
            self._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            """The test that a process died of has failed; without this the next process would be given it again."""
            units = self.assigned_work[node]
            left = [(scope, test) for scope, unit in units.items() for test in unit]
            units.clear()
            for scope, test in left[1:]:
                units.setdefault(scope, {})[test] = False
            super().remove_node(node)
            return left[0][1] if left else None

        def _reschedule(self, node: Any) -> None:
            """A process begins a test when it knows the next one, or that there is none."""
            super()._reschedule(node)
            if self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)

    return Scheduler(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Iterator[Any]:
    """What a test says may have names that are not UTF-8; a worker that sends such text as it is would die of it."""
    return without_surrogates((yield))


def without_surrogates(data: Any) -> Any:
    if isinstance(data, str):
        return data.encode(errors="backslashreplace").decode()
    if isinstance(data, dict):
        return {key: without_surrogates(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(without_surrogates(value) for value in data)
    return data


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells how many tests were left out; else the summary would not count them."""
    output = getattr(session.config, "workeroutput", None)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if output is not None and reporter is not None:
        output["left_out"] = len(reporter.stats.get("deselected", ()))


def pytest_testnodedown(node: Any) -> None:
    """Count in the summary how many tests a worker has left out: all workers leave out the same."""
    left_out = getattr(node, "workeroutput", {}).get("left_out", 0)
    node.config.pluginmanager.get_plugin("terminalreporter").stats["deselected"] = [SimpleNamespace()] * left_out


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that needs Spark skips at a desk without Java or pyspark, and fails where peers are required.

    The first one of a checkout waits until the classes of Spark are kept for all others.

    And each takes SIGINT as Python does: the handler of a Spark session outlives the session, and then fails; that of
    Polars, which `signal.getsignal` does not see, has a thread that waits for a lock go on waiting.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if item.get_closest_marker("spark") is None:
        return
    missing = _missing_for_spark()
    if missing is not None:
        do_without(missing)
    kept = _kept(item.config)
    if kept is not None:
        keep_classes(kept)


def _kept(config: pytest.Config) -> Path | None:
    """The directory for what JVMs keep; None in a run without pytest's cache."""
    return None if getattr(config, "cache", None) is None else config.cache.mkdir("spark")


def do_without(missing: str) -> NoReturn:
    """End a test whose peer is `missing`: skipped at a desk, failed where peers are required."""
    if os.environ.get("MULTIQUEUE_REQUIRE_PEERS"):
        pytest.fail(f"MULTIQUEUE_REQUIRE_PEERS is set, and {missing}", pytrace=False)
    pytest.skip(missing)


@pytest.fixture(scope="session")
def rabbitmq_peer() -> Iterator[Peer]:
    """A RabbitMQ node for all tests of a run; without it a test skips at a desk, and fails where peers are required."""
    from rabbitmq_support import NoPeer, rabbitmq

    with ExitStack() as stack:
        try:
            peer = stack.enter_context(rabbitmq())
        except NoPeer as missing:
            do_without(str(missing))
        yield peer


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of 3 MiB, or as many as the parameter says."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("mount") is None:
        do_without("only root can mount a small file system to fill")
    point = tmp_path / "disk"
    point.mkdir()
    size = f"size={getattr(request, 'param', 3)}m"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", point], check=False).returncode != 0:
        do_without("a tmpfs cannot be mounted here")
    yield point
    subprocess.run(["umount", point], check=True)


@pytest.fixture(scope="session")
def s3_store() -> Iterator[Store]:
    """A server of S3's protocol for all tests of a run; without moto or s3fs a test skips at a desk."""
    for name in ("moto", "s3fs", "boto3"):
        if find_spec(name) is None:
            do_without(f"{name} is not installed: pip install 'blocking-multiqueue[test]'")
    from s3_support import s3_server

    with s3_server() as store:
        yield store


@pytest.fixture(scope="session")
def azure_store() -> Iterator[Callable[[Mapping[str, bytes]], Bucket]]:
    """What makes containers in Azure's emulator; without it or adlfs a test skips at a desk."""
    yield from _emulated("azurite", "adlfs")


@pytest.fixture(scope="session")
def google_store() -> Iterator[Callable[[Mapping[str, bytes]], Bucket]]:
    """What makes buckets in Google's emulator; without it or gcsfs a test skips at a desk."""
    yield from _emulated("google", "gcsfs")


def _emulated(name: str, library: str) -> Iterator[Callable[[Mapping[str, bytes]], Bucket]]:
    if find_spec(library) is None:
        do_without(f"{library} is not installed: pip install 'blocking-multiqueue[test]'")
    import emulators_support
    from rabbitmq_support import NoPeer

    with ExitStack() as stack:
        try:
            made = stack.enter_context(getattr(emulators_support, name)())
        except NoPeer as missing:
            do_without(str(missing))
        yield made


@pytest.fixture(params=["s3", "gs", "abfss"])
def new_bucket(request: pytest.FixtureRequest) -> Callable[[Mapping[str, bytes]], Bucket]:
    """What makes a bucket with these objects, in a store of each kind."""
    from emulators_support import bucket_maker

    return bucket_maker(request, request.param)


@pytest.fixture(scope="session")
def postgres_peer() -> Iterator[Postgres]:
    """A PostgreSQL server for all tests of a run; without it a test skips at a desk, and fails where it is required."""
    from postgres_support import NoPeer, postgres

    with ExitStack() as stack:
        try:
            peer = stack.enter_context(postgres())
        except NoPeer as missing:
            do_without(str(missing))
        yield peer


@pytest.fixture(scope="session")
def ends_without() -> Callable[[str], NoReturn]:
    """A function of what to say of a missing peer: ends the test as any missing peer does."""
    return do_without


@pytest.fixture
def need_module() -> Callable[[str, str], None]:
    """A function of a module's name and what to say if it cannot be found: ends the test as any missing peer does."""

    def need(name: str, missing: str) -> None:
        if find_spec(name.partition(".")[0]) is None or find_spec(name) is None:
            do_without(missing)

    return need


@cache
def _missing_for_spark() -> str | None:
    if find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'blocking-multiqueue[spark]'"
    program = java()
    if program is None:
        return "there is no Java; Spark needs 17 or later"
    shown = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', shown)
    if found is None or int(found[1]) < 17:
        return f"Java is {found[1] if found else 'unknown'}; Spark needs 17 or later"
    return None
