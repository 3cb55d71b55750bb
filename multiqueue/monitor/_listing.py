"""The request for a list: filtered by name, sorted, cut into pages, with some of its columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from ..amqp import bounded_pattern
from ._errors import Refused, bad_request
from ._views import View

_LARGEST_PAGE: Final = 500  # RabbitMQ's
_PAGE: Final = 100
_MATCHING: Final = 1.0  # seconds of a processor for the names of one request

Object = TypeVar("Object")


def listing(views: list[View], query: Mapping[str, str], order: tuple[str, ...] = ("vhost", "name")) -> Any:
    """The list, or a page of it, as the query's `name`, `use_regex`, `sort`, `sort_reverse`, `page`, `page_size` and
    `columns` ask for; without `sort` in the order of these columns.

    Raises:
        Refused: a page that there is not, or a value that does not fit.
    """
    paging = _paging(query)
    if paging is None:
        return _columns(_sorted(views, query, order), query)
    matches = _matches(query)
    found = _sorted([view for view in views if matches(str(view.get("name", "")))], query, order)
    return _page(found, len(views), paging, query)


def page_of_many(
    objects: list[Object],
    query: Mapping[str, str],
    name: Callable[[Object], str],
    view: Callable[[Object], View],
    orders: Mapping[str, Callable[[Object], Any]],
) -> Any:
    """As `listing`, of objects in their order, whose views are made for the page alone where that suffices.

    `orders` has columns that can be sorted by without a view.
    """
    paging = _paging(query)
    sort = query.get("sort")
    if paging is None or (sort and sort not in orders):
        return listing(list(map(view, objects)), query)
    matches = _matches(query)
    found = [each for each in objects if matches(name(each))]
    reverse = query.get("sort_reverse") == "true"
    if sort:
        read = orders[sort]
        found.sort(key=lambda each: _order(read(each)), reverse=reverse)
    elif reverse:
        found.reverse()
    number, size = paging
    begin = (number - 1) * size
    shown = found[begin : begin + size]
    views: list[View] = [{}] * len(found)
    views[begin : begin + size] = map(view, shown)
    return _page(views, len(objects), paging, query)


def _page(found: list[View], total: int, paging: tuple[int, int], query: Mapping[str, str]) -> View:
    number, size = paging
    begin = (number - 1) * size
    if number > 1 and begin >= len(found):
        raise Refused(
            400, "page_out_of_range", f"Page out of range, page: {number} page size: {size}, len: {len(found)}"
        )
    items = _columns(found[begin : begin + size], query)
    return {
        "filtered_count": len(found),
        "item_count": len(items),
        "items": items,
        "page": number,
        "page_count": max(1, -(-len(found) // size)),
        "page_size": size,
        "total_count": total,
    }


def columns(view: View, query: Mapping[str, str]) -> View:
    """One object, with the columns that were asked for."""
    return _columns([view], query)[0]


def _paging(query: Mapping[str, str]) -> tuple[int, int] | None:
    """The page's number and size; None where the whole list is asked for."""
    asked = query.get("page")
    if asked is None:
        return None
    size = query.get("page_size", str(_PAGE))
    if not asked.isdecimal() or int(asked) < 1:
        raise _bad_page(asked, query.get("page_size", "undefined"))
    if not size.isdecimal() or not 1 <= int(size) <= _LARGEST_PAGE:
        raise _bad_page(asked, size)
    return int(asked), int(size)


def _bad_page(number: str, size: str) -> Refused:
    return Refused(
        400, "invalid_pagination_parameters", f"Invalid pagination parameters: page number {number}, page size {size}"
    )


def _matches(query: Mapping[str, str]) -> Callable[[str], object]:
    """Whether a name is one of those that are asked for."""
    wanted = query.get("name", "")
    if query.get("use_regex") == "true":
        try:
            search = bounded_pattern(wanted, ignore_case=True)
        except ValueError as error:
            raise bad_request(f"name {wanted!r} {error}") from None
        until = time.thread_time() + _MATCHING

        def matches(name: str) -> object:
            if time.thread_time() > until:
                raise bad_request(
                    f"name {wanted!r} takes more than {_MATCHING:g} s to match; write a simpler expression"
                )
            return search(name)

        return matches
    lowered = wanted.lower()
    return lambda name: lowered in name.lower()


def _sorted(views: list[View], query: Mapping[str, str], default: tuple[str, ...]) -> list[View]:
    asked = query.get("sort")
    reverse = query.get("sort_reverse") == "true"
    if not asked:
        return sorted(views, key=lambda view: tuple(str(view.get(name, "")) for name in default), reverse=reverse)
    path = asked.split(".")
    return sorted(views, key=lambda view: _order(_at(view, path)), reverse=reverse)


def _order(value: Any) -> tuple[int, float, str]:
    """Nothing comes before numbers, numbers before text."""
    if value is None or isinstance(value, dict | list):
        return 0, 0.0, ""
    if isinstance(value, bool | int | float):
        return 1, float(value), ""
    return 2, 0.0, str(value)


def _at(view: Any, path: list[str]) -> Any:
    for name in path:
        view = view.get(name) if isinstance(view, Mapping) else None
    return view


def _columns(views: list[View], query: Mapping[str, str]) -> list[View]:
    asked = query.get("columns")
    if not asked:
        return views
    paths = [name.split(".") for name in asked.split(",") if name]
    return [_with(view, paths) for view in views]


def _with(view: View, paths: list[list[str]]) -> View:
    chosen: View = {}
    for path in paths:
        value = _at(view, path)
        if value is None and _at(view, path[:-1] or path) is None:
            continue
        into = chosen
        for name in path[:-1]:
            into = into.setdefault(name, {})
        into[path[-1]] = value
    return chosen
