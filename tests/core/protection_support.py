"""Which instructions of a function an exception can strike at outside of the handler that its source puts around them.

The house relies on it that whatever strikes inside a `try` comes to its `except BaseException` or `finally`: so do the
proofs of the core, and each lock, file and count that a `finally` gives back. The source says where the `try` is, but
the interpreter goes by the exception table, and each CPython compiles that in another way: 3.12 leaves out the jump
back of `while condition`, 3.14 that of `if a or not b: break`. So both are read here, the table as this interpreter
compiles it.

An instruction is *struck at* when CPython delivers signals and asynchronous exceptions there: a call, a backward jump,
a generator that goes on. It is a *hole* when its place in the source is in the body of a `try` with `except
BaseException` or `finally`, and the table does not lead from it to that `try`, or to one further in.

Run as a program it reports the whole house: `python tests/core/protection_support.py`.
"""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

Position = tuple[int, int]  # line and column

HOUSE = Path(__file__).parents[2] / "multiqueue"
WHILE_IT_CLEANS_UP = ("COPY", "SWAP", "POP_EXCEPT", "POP_TOP", "STORE_FAST", "DELETE_FAST", "RERAISE")
WHILE_IT_CLEANS_UP += ("LOAD_CONST", "LOAD_COMMON_CONSTANT")  # the None of `del error`, the second on 3.15


@dataclass(frozen=True)
class Guarded:
    """The body of a `try` that nothing may escape: where it is, and where its handler begins and ends."""

    begin: Position
    end: Position
    handler_begins: int
    handler_ends: int


@dataclass(frozen=True)
class Report:
    """What the table of one function says of the instructions that are struck at inside its `try`s."""

    looked_at: tuple[int, ...]  # their offsets
    holes: tuple[str, ...]


def all_functions(room: str = ".") -> dict[str, tuple[CodeType, ast.AST]]:
    """Every function of a room, or of the house, by its module and name. Compiled here, not imported."""
    found = {}
    for path in sorted((HOUSE / room).rglob("*.py")):
        module = ".".join(("multiqueue", *path.relative_to(HOUSE).with_suffix("").parts))
        for code, node in functions(path):
            name = f"{module}.{code.co_qualname}"
            found[f"{name}, line {code.co_firstlineno}" if name in found else name] = code, node
    return found


def functions(path: Path) -> Iterator[tuple[CodeType, ast.AST]]:
    """The code of every function of a file, those inside others too, and its source."""
    source = path.read_text(encoding="utf-8")
    nodes = {
        (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.name): node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for code in _codes(compile(source, path, "exec", dont_inherit=True)):
        node = nodes.get((code.co_firstlineno, code.co_name))
        if node is not None:
            yield code, node


def function(call: Callable[..., Any]) -> tuple[CodeType, ast.AST]:
    """The same for one function of a file."""
    return next(each for each in functions(Path(call.__code__.co_filename)) if each[0] == call.__code__)


def report(code: CodeType, node: ast.AST) -> Report:
    """The instructions of a function that are struck at inside a `try` of its source, and the holes among them."""
    guards = list(_guarded(node))
    if not guards:
        return Report((), ())
    table = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    instructions = {i.offset: i for i in dis.get_instructions(code) if i.opname != "CACHE"}
    looked_at, holes = [], []
    before = ""
    for offset, instruction in instructions.items():
        if instruction.opname == "EXTENDED_ARG":  # belongs to the next one
            continue
        last, before = before, instruction.opname
        if not is_struck_at(instruction, offset):
            continue
        if last == "CLEANUP_THROW":  # what is awaited got an exception and returned; a future never does
            continue
        places = [_place(instructions, offset)]
        if "BACKWARD" in instruction.opname:  # one that leaves a `try` is none of its body; some have no place at all
            places = [place for place in (*places, _place(instructions, instruction.argval)) if place is not None]
        inside = [g for g in guards if all(place is not None and g.begin <= place < g.end for place in places)]
        if not inside:
            continue
        innermost = max(inside, key=lambda g: g.begin)
        looked_at.append(offset)
        handler = _handler(offset, table, instructions)
        if handler is None or not innermost.begin[0] <= handler <= innermost.handler_ends:
            holes.append(
                f"{instruction.opname} at offset {offset}, line {places[0][0]}, is outside of the "
                f"try whose handler is in line {innermost.handler_begins}"
            )
    return Report(tuple(looked_at), tuple(holes))


def _place(instructions: dict[int, dis.Instruction], offset: int) -> Position | None:
    """Where in the source an instruction stands, if it says so."""
    place = instructions[offset].positions
    return None if place is None or place.lineno is None else (place.lineno, place.col_offset or 0)


def is_struck_at(instruction: dis.Instruction, offset: int) -> bool:
    """Does CPython deliver signals and asynchronous exceptions at this instruction?"""
    name = instruction.opname
    if name == "RESUME":  # of `await` and `yield from` not; at the entry there is nothing to protect yet
        return offset > 2 * RESUMES_AT_LATEST and (instruction.arg or 0) & 3 == 1
    if name.startswith("CALL"):
        return not name.startswith("CALL_INTRINSIC")
    return "BACKWARD" in name and "NO_INTERRUPT" not in name


RESUMES_AT_LATEST = 4  # instructions before the RESUME at a function's entry, such as COPY_FREE_VARS


def without(code: CodeType, offset: int) -> CodeType:
    """The same function, whose exception table leaves out the instruction at `offset`."""
    entries: list[tuple[int, int, int, int, bool]] = []
    for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined]
        parts = [(entry.start, entry.end)]
        if entry.start <= offset < entry.end:
            parts = [(entry.start, offset), (offset + 2, entry.end)]
        entries += [(start, end, entry.target, entry.depth, entry.lasti) for start, end in parts if start < end]
    return code.replace(co_exceptiontable=b"".join(map(_encoded, entries)))


def _encoded(entry: tuple[int, int, int, int, bool]) -> bytes:
    start, end, target, depth, lasti = entry
    first, *rest = [_varint(n) for n in (start // 2, (end - start) // 2, target // 2, depth << 1 | lasti)]
    return bytes([first[0] | 0x80, *first[1:]]) + b"".join(rest)


def _varint(number: int) -> bytes:
    """Six bits a byte, the highest first; bit 6 says that more come."""
    digits = [number & 63]
    while number := number >> 6:
        digits.insert(0, number & 63 | 64)
    return bytes(digits)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _guarded(node: ast.AST) -> Iterator[Guarded]:
    """The `try`s of a function that let nothing pass, those of functions inside it left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(child, ast.Try):
            handlers: list[ast.AST] = [*child.handlers, *child.finalbody]
            takes_all = any(isinstance(h.type, ast.Name) and h.type.id == "BaseException" for h in child.handlers)
            if takes_all or child.finalbody:
                first, last = child.body[0], child.body[-1]
                begin, end = (first.lineno, first.col_offset), (last.end_lineno or 0, last.end_col_offset or 0)
                lines = [h.lineno for h in handlers]  # type: ignore[attr-defined]
                yield Guarded(begin, end, min(lines), max(lines))
        yield from _guarded(child)


def _handler(offset: int, table: list[Any], instructions: dict[int, dis.Instruction]) -> int | None:
    """The line of the handler that an exception at `offset` comes to; None if it leaves the function.

    What only restores the state of an outer handler and raises anew is passed through.
    """
    while True:
        target = next((entry.target for entry in table if entry.start <= offset < entry.end), None)
        if target is None:
            return None
        if instructions[target].opname == "PUSH_EXC_INFO":
            places = [i.positions for o, i in sorted(instructions.items()) if o >= target]
            return next(place.lineno for place in places if place is not None and place.lineno is not None)
        offset = next(o for o in sorted(instructions) if o >= target and instructions[o].opname == "RERAISE")
        assert all(i.opname in WHILE_IT_CLEANS_UP for o, i in instructions.items() if target <= o <= offset)


def main() -> int:
    reports = {name: report(*each) for name, each in all_functions().items()}
    looked_at = sum(len(each.looked_at) for each in reports.values())
    holes = [f"{name}: {hole}" for name, each in reports.items() for hole in each.holes]
    print(*holes, f"CPython {sys.version.split()[0]}: {looked_at} places, {len(holes)} holes", sep="\n")
    return 1 if holes or not looked_at else 0


if __name__ == "__main__":
    sys.exit(main())
