"""What `import multiqueue` loads and asks of the program: before and after others have put theirs in its place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from core_parts_support import NAMES, Alive

import multiqueue
from multiqueue import LinkedBlockingMultiQueue, MultiQueueExecutor, Queue

# Each of these costs more than the core does, or brings what does.
DEAR = {"asyncio", "concurrent.futures", "dataclasses", "dis", "html", "inspect", "logging", "socket",
        "sysconfig", "traceback"}  # fmt: skip


def said(program: str, **environment: str) -> list[str]:
    """What a program says, line by line, in an interpreter of its own, which must end well and without a warning."""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=os.environ | environment
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout.splitlines()


def test_the_drop_in_loads_little_more_than_queue_does() -> None:
    """`import multiqueue as queue` loads 24 small modules of ours, and typing; none that costs more."""
    loaded = said(
        "import sys, queue, typing\n"
        "typing.NamedTuple('Pair', [('one', 'int')])\n"
        "before = set(sys.modules)\n"
        "import multiqueue as queue\n"
        "queue.Queue().put(1)\n"
        "print(*sorted(set(sys.modules) - before), sep=chr(10))"
    )
    ours = [name for name in loaded if name.partition(".")[0] == "multiqueue"]
    others = {name.partition(".")[0].lstrip("_") for name in loaded} - {"multiqueue"}
    assert len(ours) <= 24, ours
    assert not DEAR & set(loaded)
    assert others <= {"future__", "atexit", "bisect", "importlib", "math", "math_integer", "weakref"}


def test_what_is_loaded_later_is_there_when_asked_for() -> None:
    """The executor and its lanes are loaded at the first question; every name that the doors promise is there."""
    assert said(
        "import sys, multiqueue, multiqueue.core; print('logging' in sys.modules); "
        "print(all(getattr(multiqueue, name) is getattr(multiqueue, name) for name in multiqueue.__all__)); "
        "print(all(hasattr(multiqueue.core, name) for name in multiqueue.core.__all__), 'logging' in sys.modules)"
    ) == ["False", "True", "True True"]
    assert multiqueue.Lane is multiqueue.core.Lane


def test_an_engine_that_was_built_from_an_older_source_is_passed_over() -> None:
    """An extension that lacks a name warns, with what it lacks and the remedy; everything runs on the one in Python."""
    warning, *rest = said(
        "import sys, types, warnings\n"
        "old = types.ModuleType('multiqueue.core._engine')\n"
        "old.__file__ = '_engine.so'\n"
        f"vars(old).update(dict.fromkeys({sorted(set(NAMES.split()) - {'Ring', 'Turn'})}))\n"
        "sys.modules[old.__name__] = old\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import multiqueue.core\n"
        "print(*[each.message for each in caught])\n"
        "q = multiqueue.core.Queue(); q.put(1); print(multiqueue.core.engine, q.get(), multiqueue.core.Ring().due())",
        MULTIQUEUE_PURE="",
    )
    assert warning.startswith("_engine.so was built from an older source and has no Ring, Turn; what is in Python")
    assert "pip install -e ." in warning
    assert rest == ["python 1 None"]


def test_all_names_of_the_engine_are_asked_for() -> None:
    """What decides whether an extension is an old one names all that the classes take from an engine."""
    home = Path(multiqueue.core.__file__).parent
    texts = [path.read_text("utf-8") for path in home.glob("*.py") if not path.name.startswith("_plain")]
    taken = {name for text in texts for name in re.findall(r"\b_engine\.([A-Za-z]\w*)", text)}
    others = {"c", "py", "lock_of"}  # files, and the lock that the plain one alone has
    assert set(NAMES.split()) == (taken | {"Ring", "Turn"}) - others


@pytest.mark.parametrize("room", [multiqueue, multiqueue.core])
def test_a_name_that_is_not_there_is_refused(room: ModuleType) -> None:
    """Asking a door for what it has not raises `AttributeError` with its name, as of every module."""
    with pytest.raises(AttributeError, match=rf"module '{room.__name__}' has no attribute 'Quue'"):
        room.Quue  # noqa: B018


def test_a_thread_that_outlives_the_main_one_may_import_it() -> None:
    """Where the interpreter is about to end, the queues are there, and an executor refuses in a sentence."""
    assert said(
        "import threading, queue\n"
        "def late():\n"
        "    threading.main_thread().join()\n"
        "    import multiqueue\n"
        "    q = multiqueue.Queue(); q.put(1); print(q.get())\n"
        "    try: multiqueue.MultiQueueExecutor(1).submit(print)\n"
        "    except RuntimeError as error: print(error)\n"
        "threading.Thread(target=late).start()\n"
    ) == ["1", "cannot schedule new futures after interpreter shutdown"]


# ---- patched programs ---------------------------------------------------------------------------------------------

USED_BY_GREENLETS = """
import warnings
warnings.simplefilter("ignore")
{first}
{second}
from multiqueue import Empty, Full, LinkedBlockingMultiQueue, MultiQueueExecutor, Queue, ShutDown

q, m, got = Queue(1), LinkedBlockingMultiQueue(), []
a, b = m.add_subqueue("a", capacity=1), m.add_subqueue("b", priority=1)

class Last(Queue):
    def _init(self, maxsize): self.queue = []
    def _qsize(self): return len(self.queue)
    def _put(self, item): self.queue.append(item)
    def _get(self): return self.queue.pop()

last = Last(2)
last.put(1), last.put(2)
try: last.put(3, False)
except Full: got.append("Full")
got.append(last.get())
if {waits}:
    takers = [spawn(lambda: [q.get() for _ in range(20)]), spawn(lambda: [m.get() for _ in range(20)])]
    putters = [spawn(lambda: [q.put(i) for i in range(20)])]
    putters += [spawn(lambda lane=lane: [lane.put(i) for i in range(10)]) for lane in (a, b)]
    result = [each{wait} for each in [*putters, *takers]]
    got += [result[-2] == list(range(20)), sorted(result[-1])[::2] == list(range(10))]
    try: q.get(timeout=0.01)
    except Empty: got.append("Empty")
    with MultiQueueExecutor(2) as executor:
        got.append(executor.submit(sum, [1, 2]).result())
m.shutdown()
try: m.get()
except ShutDown: got.append("ShutDown")
print(*got)
"""

PATCH = {
    "gevent": ("from gevent import monkey, spawn; monkey.patch_all()", ".get(timeout=20)"),
    "eventlet": ("import eventlet; from eventlet import spawn; eventlet.monkey_patch()", ".wait()"),
}


@pytest.mark.parametrize("library", PATCH)
def test_it_is_used_by_greenlets_where_the_program_is_patched_first(
    library: str, need_module: Callable[[str, str], None]
) -> None:
    """After gevent's or eventlet's patching it is imported, and its waits are waits of greenlets."""
    need_module(
        library, f"{library} is not installed: pip install -e '.[test]'"
    )  # imported, eventlet warns of each fork
    patch, wait = PATCH[library]
    program = USED_BY_GREENLETS.format(first=patch, second="import multiqueue", waits=True, wait=wait)
    assert said(program) == ["Full 2 True True Empty 3 ShutDown"]


@pytest.mark.parametrize("library", PATCH)
def test_a_program_that_is_patched_later_goes_on(library: str, need_module: Callable[[str, str], None]) -> None:
    """A program that imports it first and is patched then puts and takes as before."""
    need_module(library, f"{library} is not installed: pip install -e '.[test]'")
    program = USED_BY_GREENLETS.format(first="import multiqueue", second=PATCH[library][0], waits=False, wait="")
    assert said(program) == ["Full 2 ShutDown"]


# ---- what is remembered of queues ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Queue, LinkedBlockingMultiQueue])
def test_no_code_runs_when_a_queue_goes(make: type) -> None:
    """Dropping a queue calls no function in Python, in which a Ctrl-C would be printed and lost."""
    calls: list[str] = []
    made: list[object] = [make()]
    sys.setprofile(lambda frame, event, argument: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        made.clear()
    finally:
        sys.setprofile(None)
    assert calls == []


def test_what_is_alive_is_known_by_itself_alone() -> None:
    """Objects that are equal, or have no hash, are known one by one, and forgotten when they go."""

    class Equal:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise AssertionError("nobody asks")

    alive: Alive[Equal] = Alive()
    one, other = Equal(), Equal()
    alive.add(one)
    alive.add(other)
    assert {id(each) for each in alive} == {id(one), id(other)}
    del other
    assert [id(each) for each in alive] == [id(one)]


def test_a_subclass_without_a_hash_is_a_queue_like_others() -> None:
    """A `Queue` whose class defines `__eq__`, and so has no hash, is made and used."""

    class Comparable(Queue[int]):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Comparable) and list(self) == list(other)

    one, other = Comparable(), Comparable()
    one.put(1)
    other.put(1)
    assert one == other


def test_an_executor_that_was_not_closed_lets_the_program_end() -> None:
    """A program that forgets its executor ends when its jobs are done."""
    assert said("import multiqueue; multiqueue.MultiQueueExecutor(1).submit(print, 'done')") == ["done"]
    assert MultiQueueExecutor is multiqueue.MultiQueueExecutor
