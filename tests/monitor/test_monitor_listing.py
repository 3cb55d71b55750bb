"""Lists: filtered, sorted, cut into pages, with some of their columns."""

from __future__ import annotations

from typing import Any

import pytest
from monitor_parts_support import Refused, _listing, columns, listing, page_of_many

QUEUES: list[dict[str, Any]] = [
    {"vhost": "/", "name": "b", "messages": 2, "message_stats": {"publish": 5, "ack": 1}},
    {"vhost": "/", "name": "a", "messages": 10},
    {"vhost": "/", "name": "Orders", "messages": None},
]


ORDERS = {"messages": lambda each: each["messages"], "vhost": lambda each: each["vhost"]}


def names(found: Any) -> list[str]:
    return [view["name"] for view in (found["items"] if isinstance(found, dict) else found)]


def test_a_list_comes_in_the_order_of_its_names() -> None:
    """Without `sort` a list is in the order of virtual host and name."""
    assert names(listing(QUEUES, {})) == ["Orders", "a", "b"]


def test_numbers_are_sorted_as_numbers() -> None:
    """10 comes after 2, and nothing before both."""
    assert names(listing(QUEUES, {"sort": "messages"})) == ["Orders", "b", "a"]
    assert names(listing(QUEUES, {"sort": "messages", "sort_reverse": "true"})) == ["a", "b", "Orders"]


def test_a_column_inside_another_can_be_sorted_by_and_chosen() -> None:
    """`message_stats.publish` is a path."""
    assert names(listing(QUEUES, {"sort": "message_stats.publish"}))[-1] == "b"
    found = listing(QUEUES, {"columns": "name,message_stats.publish"})
    assert found == [{"name": "Orders"}, {"name": "a"}, {"name": "b", "message_stats": {"publish": 5}}]
    assert columns(QUEUES[0], {"columns": "messages"}) == {"messages": 2}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("name,name.x", {"name": "b"}),
        ("name.x", {}),
        ("message_stats.ack,message_stats.ack.x", {"message_stats": {"ack": 1}}),
        ("message_stats,message_stats.ack", {"message_stats": {"publish": 5, "ack": 1}}),
        ("consumers.tag,consumers", {"consumers": []}),
        ("nothing.at.all,.", {}),
    ],
)
def test_a_column_inside_what_has_none_is_left_out(asked: str, expected: dict[str, Any]) -> None:
    """A path goes through objects; what it asks for inside a text, a number or a list is not there."""
    assert columns({**QUEUES[0], "consumers": []}, {"columns": asked}) == expected


def test_a_page_says_of_how_many_it_is() -> None:
    """All counts of RabbitMQ's pages are there, and the last page may be short."""
    found = listing(QUEUES, {"page": "2", "page_size": "2"})
    assert names(found) == ["b"]
    assert {key: value for key, value in found.items() if key != "items"} == {
        "filtered_count": 3,
        "item_count": 1,
        "page": 2,
        "page_count": 2,
        "page_size": 2,
        "total_count": 3,
    }


def test_names_are_matched_for_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression that is slow over many names ends in a sentence. (monitor 7)"""
    monkeypatch.setattr(_listing, "_MATCHING", -1.0)
    with pytest.raises(Refused, match="write a simpler expression") as refused:
        listing(QUEUES, {"name": "a", "use_regex": "true", "page": "1"})
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("query", "expected"), [({"name": "o"}, ["Orders"]), ({"name": "^[ab]$", "use_regex": "true"}, ["a", "b"])]
)
def test_names_are_found_in_any_case(query: dict[str, str], expected: list[str]) -> None:
    """A filter is part of a name, or a regular expression."""
    assert names(listing(QUEUES, {"page": "1", **query})) == expected


@pytest.mark.parametrize(
    "query",
    [
        {"page": "0"},
        {"page": "-1"},
        {"page": "x"},
        {"page": "3", "page_size": "2"},
        {"page": "1", "page_size": "0"},
        {"page": "1", "page_size": "501"},
        {"page": "1", "name": "(", "use_regex": "true"},
    ],
)
def test_a_page_that_there_is_not_is_refused(query: dict[str, str]) -> None:
    """The refusal has status 400 and a reason."""
    with pytest.raises(Refused) as caught:
        listing(QUEUES, query)
    assert caught.value.status == 400
    assert caught.value.reason


def test_an_empty_list_has_one_empty_page() -> None:
    """Nothing is no error."""
    assert listing([], {"page": "1"})["page_count"] == 1
    assert listing([], {}) == []


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"page": "1", "page_size": "2"},
        {"page": "2", "page_size": "2"},
        {"page": "1", "name": "o"},
        {"page": "1", "sort": "messages", "sort_reverse": "true"},
        {"page": "1", "sort": "vhost", "sort_reverse": "true"},
        {"page": "1", "sort": "name"},
        {"page": "1", "sort_reverse": "true", "columns": "name"},
    ],
)
def test_views_made_for_a_page_alone_are_those_of_the_whole_list(query: dict[str, str]) -> None:
    """The shortcut for many objects answers as the long way does."""
    ordered = listing(QUEUES, {})
    assert page_of_many(ordered, query, lambda each: each["name"], dict, ORDERS) == listing(ordered, query)


def test_views_are_made_for_the_page_alone() -> None:
    """Of 1,000 objects, two are looked into."""
    made: list[int] = []

    def view(each: int) -> dict[str, Any]:
        made.append(each)
        return {"name": str(each)}

    page_of_many(list(range(1000)), {"page": "3", "page_size": "2"}, str, view, {})
    assert made == [4, 5]
