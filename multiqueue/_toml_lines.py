"""Where the keys of a TOML text stand.

Promise     `lines_of` gives the line of every key and of every element of an array, also of those in inline tables, and
            takes nothing inside of a string or a comment for one. The standard library's parser keeps no lines.
Assumes     The text is TOML: `tomllib` has read it. Of another text the answer means nothing, and nothing is raised.
"""

from __future__ import annotations

import re
import tomllib

Place = tuple[str | int, ...]
"""The keys and indices that lead to a value."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(r"'[^'\n]*'")
# Up to two quotes may stand right before the three that end it, and belong to the string.
_LONG_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?"""{1,3}(?!")', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''.*?'''{1,3}(?!')", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]+")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACES = re.compile(r"[ \t]*")


def lines_of(text: str) -> dict[Place, int]:
    """The line, from 1, on which each place is first named."""
    walk = _Walk(text)
    try:
        walk.document()
    except (ValueError, IndexError):
        pass  # not TOML: what was found before stands
    return walk.lines


class _Walk:
    """One way through the text."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Place, int] = {}
        self._text = text
        self._at = 0
        self._counted = 0
        self._line = 1
        self._tables: dict[Place, int] = {}
        """How many tables the arrays of tables have so far."""

    def document(self) -> None:
        table: Place = ()
        while self._after(_BLANK) < len(self._text):
            if self._peek() == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Place:
        is_array = self._text.startswith("[[", self._at)
        line = self._here()
        self._at += 2 if is_array else 1
        names = self._keys()
        self._after(_SPACES)
        self._at += 2 if is_array else 1
        return self._table(names, line, is_new=is_array)

    def _table(self, names: Place, line: int, *, is_new: bool) -> Place:
        """The table of a header: in the last table of each array on the way, or one more of the array it names."""
        place: Place = ()
        for depth, name in enumerate(names, 1):
            place = (*place, name)
            self._note(place, line)
            if is_new and depth == len(names):
                self._tables[place] = self._tables.get(place, 0) + 1
            if place in self._tables:
                place = (*place, self._tables[place] - 1)
                self._note(place, line)
        return place

    def _pair(self, table: Place) -> None:
        line = self._here()
        names = self._keys()
        place = table
        for name in names:
            place = (*place, name)
            self._note(place, line)
        self._after(_SPACES)
        self._expect("=")
        self._after(_SPACES)
        self._value(place)

    def _keys(self) -> Place:
        """A key, dotted or not."""
        names = [self._key()]
        while self._after(_SPACES) < len(self._text) and self._peek() == ".":
            self._at += 1
            names.append(self._key())
        return tuple(names)

    def _key(self) -> str:
        self._after(_SPACES)
        quote = self._peek()
        if quote in "\"'":
            return str(tomllib.loads("x = " + self._take(_BASIC if quote == '"' else _LITERAL))["x"])
        return self._take(_BARE)

    def _value(self, place: Place) -> None:
        first = self._peek()
        if first in "\"'":
            is_long = self._text.startswith(first * 3, self._at)
            if first == '"':
                self._take(_LONG_BASIC if is_long else _BASIC)
            else:
                self._take(_LONG_LITERAL if is_long else _LITERAL)
        elif first == "[":
            self._array(place)
        elif first == "{":
            self._inline_table(place)
        else:
            self._take(_SCALAR)

    def _array(self, place: Place) -> None:
        self._expect("[")
        index = 0
        while self._after(_BLANK) >= 0 and self._peek() != "]":
            self._note((*place, index), self._here())
            self._value((*place, index))
            index += 1
            self._after(_BLANK)
            if self._peek() == ",":
                self._at += 1
        self._expect("]")

    def _inline_table(self, place: Place) -> None:
        self._expect("{")
        while self._after(_BLANK) >= 0 and self._peek() != "}":
            self._pair(place)
            self._after(_BLANK)
            if self._peek() == ",":
                self._at += 1
        self._expect("}")

    # The text

    def _peek(self) -> str:
        return self._text[self._at]

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise ValueError(f"{character} expected at {self._at}")
        self._at += 1

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError(f"nothing that fits at {self._at}")
        self._at = found.end()
        return found[0]

    def _after(self, pattern: re.Pattern[str]) -> int:
        self._take(pattern)
        return self._at

    def _here(self) -> int:
        """The line of where the walk stands; it only goes on, so each line is counted once."""
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _note(self, place: Place, line: int) -> None:
        self.lines.setdefault(place, line)
