"""Imports between rooms go down only, and through a room's door; inside a room, today's knots may only become fewer.

The four lists below name what does not keep to a rule yet. A test fails on one more, and on one that is listed and
gone: a list gets shorter with the code, and never longer.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import multiqueue

HOUSE = Path(multiqueue.__file__).parent

MAY_KNOW: dict[str, set[str]] = {
    "errors": set(),
    "_carried": set(),
    "_compiled": set(),
    "_copies": {"_copier"},
    "_directory_lock": set(),
    "_extras": set(),
    "_kinds": set(),
    "_locks": set(),
    "_toml": {"_toml_lines"},
    "_toml_lines": set(),
    "_patterns": set(),
    "_words": set(),
    "core": {"errors", "_compiled"},
    "store": {"errors", "_directory_lock", "_kinds", "_logs", "_words", "_locks"},
    "broker": {"core", "store", "errors", "_carried", "_copies", "_kinds", "_logs", "_locks", "_patterns"},
    "amqp": {"broker", "core", "errors", "_carried", "_compiled", "_copies", "_extras", "_toml"}
    | {"_kinds", "_logs", "_words", "_locks", "_patterns"},
    "client": {"core", "amqp", "errors", "_kinds", "_logs", "_words", "_locks"},
    "spark": {"core", "client", "errors", "_directory_lock", "_kinds", "_logs", "_locks"},
    "pipeline": {"spark", "broker", "client", "store", "core", "errors"}
    | {"_extras", "_kinds", "_locks", "_logs", "_toml", "_words"},
    "testing": {"broker", "core", "errors", "_locks"},
    "observe": {"core", "errors", "_extras", "_kinds", "_logs", "_progress", "_locks"},
    "_progress": {"_kinds"},
}
# They may see all, and no other room imports them.
SEES_ALL = {"monitor", "cli", "demo", "transfer", "bench", "pytest_plugin", "__init__", "__main__"}
# A room's command stands above all rooms as the house's does: it may know each by its door, and no room imports it.
COMMAND = "cli.py"

# The folders of a room, the lowest first: a module imports from its own folder and from those before it. What stands
# in no folder (the door, the command) may import from all, and no folder imports from that.
FOLDERS: dict[str, list[str]] = {
    "amqp": ["_wire", "_session", "_server"],
    "broker": ["_base", "_selector", "_queue", "_routing", "_paging", "_durable", "_delivery", "_host"],
    "client": ["_base", "_dispatch", "_link", "_channel", "_connection"],
    "monitor": ["_base", "_figures", "_door", "_api", "_metrics", "_server", "_shell"],
    "pipeline": [
        "_base",
        "_columns",
        "_state",
        "_config",
        "_input",
        "_read",
        "_write",
        "_run",
        "_tell",
        "_verbs",
    ],
    "spark": ["_backend", "_dispatch", "_fan_in", "_stream", "_events"],
}

# Imports that go up instead, those for types included.
UPWARD: set[tuple[str, str]] = set()

# Imports for types alone that go up, or to a module that imports this one: what is handed in is of this one class, and
# a protocol would say its methods a second time. They count for no direction and no circle.
FOR_TYPES = {
    "broker._paging.memory": {"broker._paging.reader"},
    "broker._paging.paged_entries": {"broker._durable.submission", "broker._paging.spill"},
    "broker._paging.paged_fair_entries": {"broker._durable.submission", "broker._paging.spill"},
    "broker._paging.reader": {"broker._durable.submission"},
    "broker._paging.spill": {"broker._durable.submission"},
    "broker._queue.administration": {"broker._durable.submission", "broker._queue.queue"},
    "broker._queue.life": {"broker._durable.submission", "broker._paging.spill", "broker._queue.queue"},
    "broker._queue.limits": {"broker._paging.memory"},
    "broker._queue.queue": {"broker._durable.submission", "broker._paging.spill"},
    "client._base.errors": {"client._channel.channel"},
    "client._base.message": {"client._channel.channel"},
    "client._channel.channel": {"client._connection.connection"},
    "client._channel.consumers": {"client._channel.channel"},
    "client._connection.fair_inbox": {"client._connection.connection"},
    "client._dispatch.work_pool": {"client._channel.channel"},
    "core._executor_job": {"core._executor_workers"},
    "core._plain_head": {"core._plain_fifo"},
    "spark._dispatch.job": {"spark._dispatch.lane"},
    "testing._locks": {"testing._run"},
}

# Imports by a string that go up: two public verbs of a broker open servers that stand above it.
UPWARD_BY_STRING = {
    "broker._host.broker: amqp",  # `Broker.listen`
    "broker._host.broker: monitor",  # `Broker.listen_http`
}

# Modules that import each other in a circle, imports for types included.
CIRCLES: list[set[str]] = []

# Classes of more than two bases of our own, counted over the whole line of descent. Three kinds may have more:
# exceptions, whose tree says whose fault it is; entry lists, which are kinds of one thing; the core.
MANY_BASES: dict[str, int] = {}

# Methods that only raise NotImplementedError, so that one class can call what another one has. `testing.contracts` may:
# its users fill them in.
STUBS: set[str] = set()


# Who takes turns by the core's ring, by name or inside a multi-queue; decision 0114 says who does not, and why.
TAKES_TURNS = {"Ring", "FairQueue", "LinkedBlockingMultiQueue", "MultiQueueExecutor"}
BY_THE_RING = {
    "amqp._server.strangers": {"MultiQueueExecutor"},
    "broker._delivery.subscription": {"LinkedBlockingMultiQueue"},
    "broker._queue.fair_entries": {"Ring"},
    "broker._queue.tenants": {"Ring"},
    "client._channel.consumers": {"FairQueue", "LinkedBlockingMultiQueue"},
    "client._connection.fair_inbox": {"FairQueue"},
    "client._dispatch.work_pool": {"LinkedBlockingMultiQueue", "MultiQueueExecutor"},
    "pipeline._verbs.plan": {"LinkedBlockingMultiQueue"},
    "spark._dispatch.dispatcher": {"MultiQueueExecutor"},
    "spark._fan_in.fan_in": {"LinkedBlockingMultiQueue"},
    "spark._stream.queue_reader": {"LinkedBlockingMultiQueue"},
}

# The modules behind a room's door that tests name, and why; a room's parts are named in `tests/ROOM_parts_support.py`.
PRIVATE_IMPORTS = {
    "test_demo.py: multiqueue.demo._broker",
    "test_demo.py: multiqueue.demo._fair",  # the demo has no door but its command
    "test_demo.py: multiqueue.demo._picture",
    "test_demo.py: multiqueue.demo._svg",
    "test_demo.py: multiqueue.demo._tables",
    "test_demo.py: multiqueue.demo._threads",
    "test_copies.py: multiqueue._copies",  # a module without a room, whose own test this is
    "test_distribution.py: multiqueue._extras",  # compares it with pyproject.toml
    "held_locks_support.py: multiqueue._locks",  # the locks that it takes the place of
    "test_locks.py: multiqueue._locks",  # a module without a room, whose own test this is
    "test_logs.py: multiqueue._logs",  # a module without a room, whose own test this is
    "test_logs.py: multiqueue.cli._Sentence",  # how the command writes a warning, which no option shows
    "test_testing_clock.py: multiqueue.core._sync",  # where the fake clock takes the place of the real one
    "test_patterns.py: multiqueue._patterns",  # a module without a room, whose own test this is
    "test_toml_lines.py: multiqueue._toml_lines",  # a module without a room, whose own test this is
    "test_transfer.py: multiqueue.transfer._move",  # transfer has no door but its command
}


# An import from the house in whose statement a name begins with an underscore: a file without one need not be parsed.
MAY_BE_PRIVATE = re.compile(r"^ *(from|import) +multiqueue[^\n(]*(\([^)]*|[^\n]*)?\b_[a-z]", re.MULTILINE)


@cache
def modules() -> list[Path]:
    return sorted(HOUSE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The room each import of ours goes to, and the names behind the room's door."""
    package = ["multiqueue", *path.relative_to(HOUSE).parts[:-1]]
    for node in statements(path)[0]:
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = base + (node.module.split(".") if node.module else [])
            targets = [module] if len(module) > 1 else [[*module, alias.name] for alias in node.names]
        for target in targets:
            if target[0] == "multiqueue" and len(target) > 1:
                yield target[1], target[2:]


def imports_by_string(path: Path) -> set[str]:
    """The rooms that a module names in strings, if it imports anything by a string, or has Python run a module.

    The rule is coarse on purpose: how the string comes to the import is not followed. Names of loggers do not count.
    An entry (`multiqueue.room:name`) counts everywhere: whoever reads it imports it.
    """
    everything = list(ast.walk(tree(path)))
    names = {node.attr for node in everything if isinstance(node, ast.Attribute)}
    names |= {node.id for node in everything if isinstance(node, ast.Name)}
    names |= {alias.name for node in everything if isinstance(node, ast.ImportFrom) for alias in node.names}
    brings = bool(names & {"import_module", "__import__", "find_spec", "resolve_name", "run_module"})
    brings = brings or any(isinstance(node, ast.Constant) and node.value == "-m" for node in everything)
    logger = {
        id(argument)
        for node in everything
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "getLogger"
        for argument in node.args
    }
    found = set()
    for node in everything:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in logger:
            named = re.fullmatch(r"(?:multiqueue|\.)\.(\w+)(?:\.[\w.]*)?(:\w+)?", node.value)
            if named and (brings or named[2]) and ((HOUSE / named[1]).is_dir() or (HOUSE / f"{named[1]}.py").exists()):
                found.add(named[1])
    return found


def test_imports_by_string_go_down() -> None:
    """A module imports by a string only what it might import by a statement, but for those listed."""
    found = {
        f"{name_of(path)}: {target}"
        for path in modules()
        if (room := room_of(path)) not in SEES_ALL and path.name != COMMAND
        for target in imports_by_string(path) - {room} - MAY_KNOW.get(room, set())
    }
    assert found == UPWARD_BY_STRING


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nimportlib.import_module('multiqueue.broker')",
        "from importlib import import_module as bring\nbring('multiqueue.broker')",
        "from importlib import import_module\nNAME = 'multiqueue.broker._queue.queue'\nimport_module(NAME)",
        "from importlib import import_module\nimport_module('..broker', __package__)",
        "from importlib import import_module\nimport_module(f'multiqueue.broker.{name}')",
        "__import__('multiqueue.broker')",
        "import pkgutil\npkgutil.resolve_name('multiqueue.broker')",
        "from importlib.util import find_spec\nfind_spec('multiqueue.broker')",
        "import sys\ncommand = [sys.executable, '-m', 'multiqueue.broker']",
        "COMMANDS = {'serve': 'multiqueue.broker._host.broker:Broker'}",
    ],
)
def test_the_rule_of_strings_can_fail(tmp_path: Path, text: str) -> None:
    """The reader of strings sees each way to import by one; the name of a logger is none, nor is an attribute's."""
    module = tmp_path / "m.py"
    module.write_text(f"{text}\nimport logging\nlog = logging.getLogger('multiqueue.store')\nat = 'multiqueue.lane'")
    assert imports_by_string(module) == {"broker"}


@pytest.mark.parametrize("room", sorted({room_of(path) for path in modules()} - SEES_ALL))
def test_imports_go_down(room: str) -> None:
    """A module imports only from its own room and from those that its room may know, by their doors."""
    for path in (path for path in modules() if room_of(path) == room):
        for target, behind in imports(path):
            if target == room:
                continue
            assert target in MAY_KNOW[room] or path.name == COMMAND, f"{path}: {room} may not know {target}"
            private = [name for name in behind if name.startswith("_")]
            allowed = room == "testing" and (target, private) == ("core", ["_sync"])  # its docstring says why
            assert not private or allowed, f"{path} goes around the door of {target}: {behind}"


def test_no_room_imports_a_command() -> None:
    """The commands of rooms stand above all rooms: only what sees all imports one."""
    commands = {name_of(path) for path in modules() if path.name == COMMAND}
    found = {module for module, targets in imported_modules().items() if targets & commands}
    assert {module.partition(".")[0] for module in found} <= SEES_ALL
    assert {"amqp.cli", "pipeline.cli"} <= commands


def test_the_rule_can_fail(tmp_path: Path) -> None:
    """The reader of imports sees all spellings of one that is forbidden."""
    for number, line in enumerate(
        (
            "from ..broker import Broker",
            "from .. import broker",
            "import multiqueue.broker",
            "from multiqueue.broker._entry import Entry",
        )
    ):
        room = HOUSE / "core" / f"_imaginary_{number}.py"
        tree = tmp_path / "m.py"
        tree.write_text(line)
        package = ["multiqueue", "core"]
        assert package == ["multiqueue", *room.relative_to(HOUSE).parts[:-1]]
        original = Path.read_text
        found = [target for target, _ in _imports_of(room, original(tree))]
        assert found == ["broker"], line


def _imports_of(path: Path, text: str) -> list[tuple[str, list[str]]]:
    class Stand(type(path)):  # type: ignore[misc]
        def read_text(self, *args: object, **kwargs: object) -> str:
            return text

    return list(imports(Stand(path)))


def test_the_front_door_opens_the_core_alone() -> None:
    """`import multiqueue` loads no room, and its names no other one, no sockets, no database and no Spark."""
    code = (
        "import sys, multiqueue; assert not [m for m in sys.modules if m.startswith('multiqueue.')]; multiqueue.Queue; "
        "rooms = {m.split('.')[1] for m in sys.modules if m.startswith('multiqueue.')}; "
        "unwanted = {'socket', 'ssl', 'asyncio', 'sqlite3', 'pyspark', 'click'}; "
        "print(sorted(rooms), sorted(unwanted & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['core', 'errors'] []"


def test_the_client_loads_no_broker() -> None:
    """`import multiqueue.client` loads neither a broker nor the server: these come with `connect(broker)`."""
    pytest.importorskip("pamqp")
    code = (
        "import sys, multiqueue.client; "
        "print([m for m in sys.modules if m.startswith(('multiqueue.broker', 'multiqueue.store', 'sqlite3')) "
        "or m.startswith(('multiqueue.amqp._session', 'multiqueue.amqp._server'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_who_takes_turns_by_the_ring() -> None:
    """The rooms that stand on the ring import it, or what is built on it, and no other module of theirs does."""
    found: dict[str, set[str]] = {}
    for path in modules():
        for _, module, name in imported_names(path):
            if module == "core" and name in TAKES_TURNS and room_of(path) not in SEES_ALL | {"core", "observe"}:
                found.setdefault(name_of(path), set()).add(name)
    assert found == BY_THE_RING


def test_only_the_loading_dock_imports_pyspark() -> None:
    """No module outside `spark` names pyspark in an import that runs when the module is imported."""
    for path in modules():
        if room_of(path) == "spark":
            continue
        for node in tree(path).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                assert not any(name.split(".")[0] == "pyspark" for name in names), path


def test_folders_are_imported_downwards() -> None:
    """In a room with folders a module imports from its own folder and lower ones, but for the imports listed."""
    found = set()
    for module, targets in imported_modules().items():
        room, folder = place_of(module)
        for target in targets:
            if (beneath := place_of(target))[0] == room and room in FOLDERS and beneath[1] > folder:
                found.add((module, target))
    assert found == UPWARD


def test_imports_for_types_are_for_types() -> None:
    """What is listed as imported for types alone is imported, and not when the module runs."""
    for path in modules():
        listed = FOR_TYPES.get(name_of(path), set())
        branches = [
            node
            for node in ast.walk(tree(path))
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        ]
        guarded = {node for branch in branches for each in branch.body for node in ast.walk(each)}
        for when, nodes in (("types", guarded), ("running", set(statements(path)[0]) - guarded)):
            found = {module for _, module, _ in imported_names(path, [*nodes])} & listed
            assert found == (listed if when == "types" else set()), f"{name_of(path)}: {when}"


def test_each_folder_has_its_place() -> None:
    """The folders of a room that has some are those listed."""
    found = {room: {path.parent.name for path in (HOUSE / room).glob("_*/*.py")} for room in FOLDERS}
    assert found == {room: set(folders) for room, folders in FOLDERS.items()}


def test_no_new_circle_of_imports() -> None:
    """Modules that import each other in a circle, for types alone too, are those listed: no new one, no larger one."""
    assert {*map(frozenset, circles(imported_modules()))} == {*map(frozenset, CIRCLES)}, "see CIRCLES"


def test_no_new_chain_of_classes() -> None:
    """A class has at most two bases of our own, all in all, but for those listed, and these have no more than that."""
    found = {}
    for name, bases in ancestors().items():
        may_have_more = name.startswith("core.") or "errors.MultiQueueError" in bases or "EntryList" in name
        if len(bases) > 2 and not may_have_more:
            found[name] = len(bases)
    assert found == MANY_BASES


def test_no_new_stub_for_a_sibling() -> None:
    """No method only raises NotImplementedError, but for those listed: a part is called through what it is given."""
    found = {
        f"{module}.{klass.name}.{method.name}"
        for module, klass in classes()
        if module != "testing.contracts"
        for method in klass.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and only_says_not_implemented(method)
    }
    assert found == STUBS


def test_tests_use_doors() -> None:
    """Tests name no private module but those listed: a door, or the room's support file, has what they need."""
    found = set()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        if not path.name.endswith("_parts_support.py") and MAY_BE_PRIVATE.search(path.read_text()):
            found |= {f"{path.name}: {module}" for module in private_modules(path)}
    assert found == PRIVATE_IMPORTS


def test_a_circle_is_found() -> None:
    """Circles of two and of three are found, a chain and a module that stands alone are none."""
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": set(), "d": {"e"}, "e": {"f"}, "f": {"d", "a"}}
    assert circles(graph) == [{"a", "b"}, {"d", "e", "f"}]


@pytest.fixture(scope="module", autouse=True)
def syntax_trees_end_with_this_module() -> Iterator[None]:
    """A million nodes would make each garbage collection of later tests take a third of a second."""
    yield
    for cached in (tree, statements):
        cached.cache_clear()


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text())


@cache
def statements(path: Path) -> tuple[list[ast.Import | ast.ImportFrom], list[ast.ClassDef]]:
    """The imports and the classes of a module, wherever they stand in it."""
    nodes = list(ast.walk(tree(path)))
    imported = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return imported, [node for node in nodes if isinstance(node, ast.ClassDef)]


def name_of(path: Path) -> str:
    """A module's name within the house."""
    return ".".join(path.relative_to(HOUSE).with_suffix("").parts).removesuffix(".__init__")


def imported_names(path: Path, nodes: Iterable[ast.AST] | None = None) -> Iterator[tuple[str, str, str]]:
    """Each name that a module, or some of its nodes, imports from the house: what it is called there, the module, and
    the name in that."""
    package = path.relative_to(HOUSE).parts[:-1]
    for node in statements(path)[0] if nodes is None else nodes:
        if isinstance(node, ast.ImportFrom):
            within = node.module.split(".") if node.module else []
            if node.level:
                base = [*package[: len(package) - node.level + 1], *within]
            elif within[0] == "multiqueue":
                base = within[1:]
            else:
                continue
            for alias in node.names:
                yield alias.asname or alias.name, ".".join(base), alias.name


def private_modules(path: Path) -> set[str]:
    """The modules of the house with an underscore that a file imports, or imports from."""
    found = set()
    for node in statements(path)[0]:
        names = [alias.name for alias in node.names]
        base = f"{node.module}." if isinstance(node, ast.ImportFrom) and node.level == 0 else ""
        for full in (f"{base}{name}" for name in names):
            private = [
                place
                for place, part in enumerate(full.split("."))
                if part.startswith("_") and not part.startswith("__")
            ]
            if full.startswith("multiqueue.") and private:
                found.add(base.rstrip(".") if base.count("._") else full)
    return found


@cache
def imported_modules() -> dict[str, set[str]]:
    """Which modules each module imports, wherever the import stands."""
    stubs = {name_of(path) for path in HOUSE.rglob("*.c")}  # modules in C, which import none of ours
    names = {name_of(path) for path in modules()} | stubs
    graph: dict[str, set[str]] = {name: set() for name in names}
    for path in modules():
        for _, module, name in imported_names(path):
            inner = f"{module}.{name}".lstrip(".")
            graph[name_of(path)].add(inner if inner in names else module or "__init__")
        graph[name_of(path)] -= {name_of(path), *FOR_TYPES.get(name_of(path), ())}
    return graph


def place_of(module: str) -> tuple[str, int]:
    """The room of a module, and how high its folder stands there."""
    room, _, within = module.partition(".")
    folders = FOLDERS.get(room, [])
    folder = within.partition(".")[0]
    return room, folders.index(folder) if folder in folders else len(folders)


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules each of which leads to every other one, by name."""
    reach = {start: reachable(graph, start) for start in graph}
    found = []
    for start in sorted(graph):
        circle = {other for other in reach[start] if start in reach[other]}
        if circle - {start} and circle not in found:
            found.append(circle)
    return found


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Where the imports of a module lead, directly or not."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for following in graph.get(ahead.pop(), set()) - seen:
            seen.add(following)
            ahead.append(following)
    return seen


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class of the house, with the module it stands in."""
    for path in modules():
        for node in statements(path)[1]:
            yield name_of(path), node


def ancestors() -> dict[str, set[str]]:
    """The bases of our own of each class, and theirs."""
    known = {f"{module}.{klass.name}": klass for module, klass in classes()}
    brought = {
        f"{name_of(path)}.{here}": f"{module}.{there}".lstrip(".")
        for path in modules()
        for here, module, there in imported_names(path)
    }
    graph: dict[str, set[str]] = {}
    for name, klass in known.items():
        graph[name] = set()
        for base in klass.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            target = f"{name.rpartition('.')[0]}.{ast.unparse(plain)}"
            while target in brought and target not in known:
                target = brought[target]
            if target in known:
                graph[name].add(target)
    return {name: reachable(graph, name) for name in graph}


def only_says_not_implemented(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method consists of a docstring, if at all, and `raise NotImplementedError`."""
    body = [one for one in method.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    return len(body) == 1 and isinstance(body[0], ast.Raise) and "NotImplementedError" in ast.unparse(body[0])
