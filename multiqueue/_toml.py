"""Configuration files: read, checked against a model, and their errors in sentences.

A sentence has the place, the line, the mistake, and the nearest name that exists.
"""

from __future__ import annotations

import difflib
import re
import sys
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ._toml_lines import Place, lines_of

Model = TypeVar("Model", bound=BaseModel)

# pydantic's words for a wrong type, said as a user of TOML would.
_TYPES = {
    "int_type": "a whole number",
    "string_type": "a string",
    "bool_type": "true or false",
    "float_type": "a number",
    "list_type": "an array",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


class Mistaken(ValueError):
    """The mistakes in a file: a sentence to a line."""


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """The values of a file, and its text.

    Raises:
        Mistaken: it cannot be read, or is no TOML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as error:
        raise Mistaken(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Mistaken(f"{path}: not UTF-8, as TOML must be (byte {error.start})") from error
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        raise Mistaken(f"{path}: {_syntax_sentence(error)}") from error


def validated(model: type[Model], values: Mapping[str, Any], source: str, text: str) -> Model:
    """The model with these values; `source` and `text` name the file and its lines in errors.

    Raises:
        Mistaken: they do not fit; a sentence per mistake, in the order of the file.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise Mistaken("\n".join(_validation_sentences(error, model, source, text))) from error


def placed_sentences(mistakes: Iterable[tuple[Place, str]], source: str, text: str) -> Iterator[str]:
    """A sentence per mistake that pydantic does not find, in the order given."""
    lines = lines_of(text)
    for place, what in mistakes:
        line = _line_of(place, lines)
        where = f"{source}:{line}" if line else source
        yield f"{where}: {'.'.join(_quoted(str(part)) for part in place)}: {what}"


def _syntax_sentence(error: tomllib.TOMLDecodeError) -> str:
    """`line 3, column 7: not TOML: invalid value`."""
    found = re.search(r"^(?P<what>.*?) \(at (?P<place>.*)\)$", str(error))
    if found is None:
        return f"not TOML: {error}"
    what = found["what"]
    return f"{found['place']}: not TOML: {what[:1].lower()}{what[1:]}"


def _validation_sentences(error: ValidationError, model: type[BaseModel], source: str, text: str) -> Iterator[str]:
    """A sentence per mistake, in the order of the file: `FILE:LINE: lanes.eu.capacity: ...`."""
    lines = lines_of(text)
    sentences: dict[Place, tuple[int, str]] = {}
    for details in error.errors(include_url=False):
        place = _keys_only(details["loc"], model)
        line = _line_of(place, lines)
        where = f"{source}:{line}" if line else source
        dotted = ".".join(_quoted(str(part)) for part in place)
        sentence = f"{where}: {dotted + ': ' if dotted else ''}{_what(details, model)}"
        sentences.setdefault(place, (line or sys.maxsize, sentence))
    for _, sentence in sorted(sentences.values()):
        yield sentence


def _line_of(place: Place, lines: Mapping[Place, int]) -> int | None:
    """The line that holds the key, or the nearest table around it; None when the file does not name it."""
    return next((lines[place[:depth]] for depth in range(len(place), 0, -1) if place[:depth] in lines), None)


def _what(details: ErrorDetails, model: type[BaseModel]) -> str:
    kind, place = details["type"], details["loc"]
    context = details.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(str(place[-1]), _names_at(place[:-1], model))
    if kind == "missing":
        keys = _names_at(place, model)
        return f"missing; a [{'.'.join(map(str, place))}] table has the keys {', '.join(keys)}" if keys else "missing"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"must be one of {context['expected']}" + _near(details["input"], context["expected"])
    if kind in _TYPES:
        wanted = "a string or an array of strings" if place[-1] == "str" else _TYPES[kind]
        return f"must be {wanted}, not {details['input']!r}"
    if kind == "greater_than_equal":
        return f"must be at least {context['ge']:g}, not {details['input']!r}"
    if kind == "greater_than":
        return f"must be more than {context['gt']:g}, not {details['input']!r}"
    if kind == "less_than_equal":
        return f"must be at most {context['le']:g}, not {details['input']!r}"
    if kind == "string_pattern_mismatch":
        return f'must be "module:function", not {details["input"]!r}'
    if kind in ("too_short", "string_too_short"):
        return "must not be empty"
    return details["msg"][:1].lower() + details["msg"][1:]


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"unknown key; did you mean {near[0]!r}?"
    return f"unknown key; known are {', '.join(sorted(known))}"


def _near(value: Any, expected: str) -> str:
    near = difflib.get_close_matches(str(value), re.findall(r"'([^']*)'", expected), n=1)
    return f", not {value!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _names_at(place: Place, model: type[BaseModel]) -> list[str]:
    """The keys that the table at this place may have."""
    found = _model_at(place, model)
    if found is None:
        return []
    return [field.alias or name for name, field in found.model_fields.items()]


def _model_at(place: Place, model: type[BaseModel]) -> type[BaseModel] | None:
    current: Any = model
    for part in place:
        current = _below(current, part)
    return current if _is_model(current) else None


def _keys_only(place: Place, model: type[BaseModel]) -> Place:
    """The place without what pydantic adds: the branch of a union (`files.str`), and that a key is meant (`[key]`)."""
    kept: list[str | int] = []
    current: Any = model
    for part in place:
        if _is_union(current) or (part == "[key]" and len(kept) == len(place) - 1):
            break
        kept.append(part)
        current = _below(current, part)
    return tuple(kept)


def _below(annotation: Any, part: str | int) -> Any:
    """The type of what stands under a key; None where that has no type of its own."""
    inner: Any = None
    if _is_model(annotation):
        field = next((f for name, f in annotation.model_fields.items() if part in (name, f.alias)), None)
        inner = field.annotation if field else None
    elif typing.get_origin(annotation) in (dict, Mapping):
        inner = typing.get_args(annotation)[1]
    return _plain(inner)


def _plain(annotation: Any) -> Any:
    """A type without what is said about it, and without that it may be missing."""
    if typing.get_origin(annotation) is Annotated:
        return _plain(typing.get_args(annotation)[0])
    choices = [each for each in typing.get_args(annotation) if each is not types.NoneType]
    is_optional = _is_union(annotation) and len(choices) == 1
    return _plain(choices[0]) if is_optional else annotation


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name) else f'"{name}"'
