"""Where the keys of a TOML file stand, whatever the file has in its strings."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_support import examples

from multiqueue._toml_lines import Place, lines_of

HIDDEN = '''\
[lanes.a]
files = """
[lanes.b]
key = 1
"" \\""" [x]
"""
format = 'a # no comment'  # [c]
note = \'\'\'
[y]
it's \'\'\'\'
list = [
  "[z]",  # ] }
  [1, 2], { in = "line", "quo.ted" = [3] },
]
spark.conf."a.b" = 1
[ lanes . "c \\u0041" ]
x = 1
[["tables"]]
x = 1
[[tables]]
x = 2
[tables.below]
y = 3
'''

EXPECTED: dict[Place, int] = {
    ("lanes",): 1,
    ("lanes", "a"): 1,
    ("lanes", "a", "files"): 2,
    ("lanes", "a", "format"): 7,
    ("lanes", "a", "note"): 8,
    ("lanes", "a", "list"): 11,
    ("lanes", "a", "list", 0): 12,
    ("lanes", "a", "list", 1): 13,
    ("lanes", "a", "list", 1, 0): 13,
    ("lanes", "a", "list", 1, 1): 13,
    ("lanes", "a", "list", 2): 13,
    ("lanes", "a", "list", 2, "in"): 13,
    ("lanes", "a", "list", 2, "quo.ted"): 13,
    ("lanes", "a", "list", 2, "quo.ted", 0): 13,
    ("lanes", "a", "spark"): 15,
    ("lanes", "a", "spark", "conf"): 15,
    ("lanes", "a", "spark", "conf", "a.b"): 15,
    ("lanes", "c A"): 16,
    ("lanes", "c A", "x"): 17,
    ("tables",): 18,
    ("tables", 0): 18,
    ("tables", 0, "x"): 19,
    ("tables", 1): 20,
    ("tables", 1, "x"): 21,
    ("tables", 1, "below"): 22,
    ("tables", 1, "below", "y"): 23,
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_what_looks_like_a_table_in_a_string(newline: str) -> None:
    """A line `[x]` in a string, an array or a comment is no table: every key keeps its own line."""
    tomllib.loads(HIDDEN)  # it is TOML
    assert lines_of(HIDDEN.replace("\n", newline)) == EXPECTED


def test_line_ends_that_toml_does_not_know() -> None:
    """A form feed or U+2028 in a comment ends no line, as in every editor that counts lines."""
    assert lines_of("a = 1 # \u2028 \x85\nb = 2\n") == {("a",): 1, ("b",): 2}


@pytest.mark.parametrize("text", ["", "[", "a = ", 'a = """', "a = [1, ", "a = {b = ", "= 1", "[a", 'a = "\\'])
def test_a_text_that_is_none(text: str) -> None:
    """A text that is no TOML raises nothing."""
    lines_of(text)


def places(values: Any, around: Place = ()) -> set[Place]:
    """Every place in what the standard library read."""
    if isinstance(values, dict):
        inner = values.items()
    elif isinstance(values, list):
        inner = enumerate(values)  # type: ignore[assignment]
    else:
        return set()
    return {place for key, value in inner for place in ({(*around, key)} | places(value, (*around, key)))}


scalars = st.sampled_from(
    ["1", "-2.5e3", "true", "1979-05-27 07:32:00", '"[x]"', "'#'", '"""\n[a]\n"b\\"""""', "'''\n}'x''''", "inf"]
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda them: "[ # [\n" + ",\n".join(them) + "\n]"),
        st.lists(inner, max_size=3).map(
            lambda them: "{" + ", ".join(f"k{i} = {one}" for i, one in enumerate(them)) + "}"
        ),
    ),
    max_leaves=5,
)
lines = st.one_of(
    st.tuples(st.sampled_from(["a", "b.c", '"d.e"', "'f'.g", " h . i "]), values).map(" = ".join),
    st.sampled_from(["[t]", "[[u]]", "[u.v]", "[ 'w' . x ]", "# [c]", ""]),
)


@given(st.lists(lines, max_size=8).map("\n".join))
@settings(max_examples=examples(300), deadline=None)
def test_as_the_standard_library_reads_it(text: str) -> None:
    """Of every text that the standard library reads, exactly its keys and elements have lines."""
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(lines_of(text)) == places(read)
