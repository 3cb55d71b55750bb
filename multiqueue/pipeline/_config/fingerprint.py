"""Which job makes rows: a digest of what `[job]` or a step says, and of the code beside the configuration that it uses.

Promise     Two runs have one fingerprint if their job is the same text: the query, or the function's name with the
            modules that it imports, directly or not, as far as these lie beside the configuration file. An installed
            package counts by the one module that has the function. Nothing is imported for it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..._words import counted
from .config import PipelineConfig


def fingerprints(config: PipelineConfig) -> Mapping[str, str]:
    """The fingerprint of each job: by the name of a step, and `""` for that of all lanes."""
    job, steps = config.settings.job, config.settings.steps
    ofs = {name: _fingerprint(step.sql, step.python, config.base) for name, step in steps.items()}
    return {"": _fingerprint(job.sql, job.python, config.base), **ofs}


def made_by_others(count: int, file: str) -> str | None:
    """What a run, its plan and its status say of so many items that another job has made; None of none."""
    if not count:
        return None
    was, which = ("was", "it") if count == 1 else ("were", "them")
    return (
        f"{counted(count, 'item')} {was} made by another job than {file} has now; "
        f"`multiqueue pipeline redo {shlex.quote(file)} --changed` and a run make {which} anew"
    )


def _fingerprint(sql: str | None, python: str | None, base: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    if sql is not None:
        digest.update(b"sql\0" + sql.strip().encode())
        return digest.hexdigest()
    name = python or ""
    digest.update(b"python\0" + name.encode())
    module = name.partition(":")[0]
    known: dict[Path, bytes] = {}
    start = _found(base, module.split(".")) or _installed(module)
    if start is not None:
        _collect(start, base, known)
    for path in sorted(known):
        digest.update(b"\0" + (path.name if start == path else str(path)).encode() + b"\0" + known[path])
    return digest.hexdigest()


def _collect(path: Path, base: Path, known: dict[Path, bytes]) -> None:
    """The file, and those beside the configuration that it imports."""
    if path in known:
        return
    try:
        text = known[path] = path.read_bytes()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):  # the run says so, when it imports it
        return
    if path.is_relative_to(base):
        for parts in _imports(tree, path.parent.relative_to(base).parts):
            for length in range(1, len(parts) + 1):
                if (found := _found(base, parts[:length])) is not None:
                    _collect(found, base, known)


def _imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[list[str]]:
    """The names of what may be modules, in parts; those of a package that are relative are made whole."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name.split(".") for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            start = [*above, *(node.module.split(".") if node.module else ())]
            yield from ([*start, one.name] for one in node.names)


def _found(base: Path, parts: list[str]) -> Path | None:
    """The file of a module beside the configuration."""
    path = base.joinpath(*parts)
    return next((one for one in (path.with_name(f"{path.name}.py"), path / "__init__.py") if one.is_file()), None)


def _installed(module: str) -> Path | None:
    """The file of a module of an installed package."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return _found(origin.parent, rest) if rest else origin
