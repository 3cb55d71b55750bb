"""Regular expressions of users and administrators: what they match, and that none can take any time."""

from __future__ import annotations

import contextlib
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiqueue import _patterns
from multiqueue._patterns import bounded_pattern

HOSTILE = [
    "(.+)+!",
    "(a|a)*!",
    "(a|aa)+!",
    "(.*a){25}!",
    ".*.*.*.*.*!",
    "a?" * 30 + "a" * 30,
    "(?!x)(a+)+!",
    "(?=(a|aa)+!)b",
    r"(a*)*\1!",
    "(a{1,300}){1,300}!",
    "((a{0,99}){0,99}){0,99}!",
    "(?:a|a|a|a){0,40}!",
    "(?>a*)*(a*)*!",
    "(?i)(A+)+!",
    "(" * 2000 + "a" + ")*" * 2000,
    "(a" * 90 + "+)" * 90,
]


@pytest.fixture(params=["with RE2", "without RE2"])
def matcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without RE2":
        monkeypatch.setattr(_patterns, "re2", None)
    elif _patterns.re2 is None:
        pytest.skip("there is no google-re2 for this interpreter")
    return str(request.param)


@pytest.mark.parametrize("pattern", HOSTILE)
@pytest.mark.usefixtures("matcher")
def test_no_expression_takes_any_time(pattern: str) -> None:
    """It is refused with a reason, or matched: in less than a second of a processor, where `re` needs hours."""
    began = time.process_time()
    with contextlib.suppress(ValueError):
        search = bounded_pattern(pattern)
        for text in ("a" * 255, "a" * 127 + "b", "a" * 5000):
            search(text)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "pattern",
    ["", "^$", ".*", "^(?!amq\\.).*", "^orders-", "^(a|b)\\.x$", "^[a-z]+$", "^a.*|^b.*", r"\d{4}", "(?i)^Q", r"(a)\1"],
)
@pytest.mark.usefixtures("matcher")
def test_what_administrators_write_is_known(pattern: str) -> None:
    """Also where RE2 does not know it, or is not there; and it means what it means elsewhere."""
    for text in ("", "amq.gen-x", "orders-1", "a.x", "b", "2026", "qq", "aa"):
        assert bool(bounded_pattern(pattern)(text)) == bool(re.search(pattern, text)), text


def test_what_needs_re2_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names what is missing, and what is wrong where nothing is."""
    with pytest.raises(ValueError, match=r"it looks ahead or refers back|without google-re2"):
        bounded_pattern("(?!x)(a+)+")
    with pytest.raises(ValueError, match="not a regular expression: unterminated character set"):
        bounded_pattern("[")
    monkeypatch.setattr(_patterns, "re2", None)
    with pytest.raises(ValueError, match="without google-re2"):
        bounded_pattern(".*a.*")
    with pytest.raises(ValueError, match="not a regular expression"):
        bounded_pattern("[[:alpha:]]")  # `re` would take it for something else


PIECES = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "^", "$", "(?!a)", "(?=b)"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: f"(?:{'|'.join(each)})"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{0,2}", "*?"])).map(lambda each: f"(?:{each[0]}){each[1]}"),
    ),
    max_leaves=8,
)


@given(PIECES, st.text("ab", max_size=12))
def test_an_expression_that_is_taken_means_what_it_says(pattern: str, text: str) -> None:
    """Whoever matches it, the answer is that of Python's `re`."""
    try:
        search = bounded_pattern(pattern)
    except ValueError:
        return
    assert bool(search(text)) == bool(re.search(pattern, text))
