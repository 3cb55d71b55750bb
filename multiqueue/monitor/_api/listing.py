"""The request for a list: filtered by name, sorted, cut into pages, with some of its columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from ..._patterns import bounded_pattern
from .._base.errors import Refused, bad_request
from .views import View

LARGEST_PAGE: Final = 500  # RabbitMQ's
_PAGE: Final = 100
_FEW: Final = 1000  # objects whose views are made once: some megabytes
_EVERYTHING: Final[Mapping[str, str]] = {}  # the query that asks for no columns
_MATCHING: Final = 1.0  # seconds of a processor for the names of one request

Object = TypeVar("Object")


def listing(
    objects: Sequence[Any],
    query: Mapping[str, str],
    order: tuple[str, ...] = ("vhost", "name"),
    view: Callable[[Any], View] = dict,
) -> Any:
    """The list, or a page of it, as the query's `name`, `use_regex`, `sort`, `sort_reverse`, `page`, `page_size` and
    `columns` ask for; without `sort` in the order of these columns.

    Of many objects a view is made to sort them by, and again when it is written: all views together would take
    gigabytes.

    Raises:
        Refused: a page that there is not, or a value that does not fit.
    """
    if len(objects) <= _FEW:
        return _listing(list(map(view, objects)), query, order, lambda view: view)
    return _listing(objects, query, order, view)


def _listing(
    objects: Sequence[Object], query: Mapping[str, str], order: tuple[str, ...], view: Callable[[Object], View]
) -> Any:
    paging, key, reverse = _paging(query), _key(query, order), query.get("sort_reverse") == "true"
    if paging is None:
        found = sorted(objects, key=lambda each: key(view(each)), reverse=reverse)
        return written(found, view, query)
    matches = _matches(query)
    found = [each for each in objects if matches(str(view(each).get("name", "")))]
    found.sort(key=lambda each: key(view(each)), reverse=reverse)
    return _page(found, view, len(objects), paging, query)


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
    if sort and sort not in orders:
        return listing(objects, query, view=view)
    matches = (lambda name: True) if paging is None else _matches(query)
    found = [each for each in objects if matches(name(each))]
    reverse = query.get("sort_reverse") == "true"
    if sort:
        read = orders[sort]
        found.sort(key=lambda each: _order(read(each)), reverse=reverse)
    elif reverse:
        found.reverse()
    return written(found, view, query) if paging is None else _page(found, view, len(objects), paging, query)


def written(found: Sequence[Object], view: Callable[[Object], View], query: Mapping[str, str] = _EVERYTHING) -> Any:
    """The views in this order, with the columns that were asked for; of many each is made when it is written."""
    views = (_columns([view(each)], query)[0] for each in found)
    return list(views) if len(found) <= _FEW else views


def _page(
    found: list[Object],
    view: Callable[[Object], View],
    total: int,
    paging: tuple[int, int],
    query: Mapping[str, str],
) -> View:
    number, size = paging
    begin = (number - 1) * size
    if number > 1 and begin >= len(found):
        raise Refused(
            400, "page_out_of_range", f"Page out of range, page: {number} page size: {size}, len: {len(found)}"
        )
    items = _columns(list(map(view, found[begin : begin + size])), query)
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
    if not size.isdecimal() or not 1 <= int(size) <= LARGEST_PAGE:
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


def _key(query: Mapping[str, str], default: tuple[str, ...]) -> Callable[[View], Any]:
    """What views are sorted by."""
    asked = query.get("sort")
    if not asked:
        return lambda view: tuple(str(view.get(name, "")) for name in default)
    path = asked.split(".")
    return lambda view: _order(_at(view, path))


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
        inside, value = _at(view, path[:-1]), _at(view, path)
        if not isinstance(inside, Mapping) or (inside is view and value is None):
            continue
        into = chosen
        for name in path[:-1]:
            into = into.setdefault(name, {})
        into[path[-1]] = value
    return chosen
