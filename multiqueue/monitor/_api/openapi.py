"""The description of the HTTP API, as OpenAPI 3.1, made from the table of its routes.

Promise     Every method of every path in the table is described, with what `bodies` says of its body: what a program
            reads here is what requests are checked by. Answers are described by their status alone; their fields are
            in docs/reference/http-api.md.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

from .._figures.history import AGES
from .asking import Handler, Route, Table
from .bodies import schema_of
from .listing import LARGEST_PAGE

_TEXT: Final = {"type": "string"}
_FLAG: Final = {"type": "string", "enum": ["true", "false"]}
_COUNT: Final = {"type": "integer", "minimum": 1}
_QUERY: Final[dict[str, dict[str, Any]]] = {
    "columns": _TEXT,
    "sort": _TEXT,
    "sort_reverse": _FLAG,
    "page": _COUNT,
    "page_size": {**_COUNT, "maximum": LARGEST_PAGE},
    "name": _TEXT,
    "use_regex": _FLAG,
    **{f"{kind}_{part}": _COUNT for kind in AGES for part in ("age", "incr")},
}
_FLAGS: Final = {
    "/api/queues/{vhost}/{queue}": ("if-empty", "if-unused"),
    "/api/exchanges/{vhost}/{exchange}": ("if-unused",),
}
_ERROR: Final = {
    "type": "object",
    "properties": {"error": _TEXT, "reason": {}},
    "required": ["error", "reason"],
}
_REFUSED: Final = {"$ref": "#/components/responses/refused"}
_DONE: Final = {"GET": ("200",), "PUT": ("201", "204"), "POST": ("200", "201", "204"), "DELETE": ("204",)}
_TELLS_TROUBLE: Final = re.compile(r"/api/health(/|checks/)")  # 503, with what is wrong


def description(table: Table, version: str) -> dict[str, Any]:
    """The document, fit for JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for path, method, route in table.routes():
        paths.setdefault(path, {})[method.lower()] = _operation(path, method, route)
    for path, methods in paths.items():
        names = re.findall(r"{(\w+)}", path)
        if names:
            methods["parameters"] = [_parameter(name, "path", {"type": "string", "minLength": 1}) for name in names]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "multiqueue",
            "version": version,
            "description": "RabbitMQ's management API of a multiqueue broker. A name in a path is percent-encoded: the "
            "virtual host / is %2F.",
        },
        "servers": [{"url": "/"}],
        "security": [{"password": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"password": {"type": "http", "scheme": "basic"}},
            "parameters": {name: _parameter(name, "query", schema) for name, schema in _QUERY.items()},
            "responses": {
                "refused": {
                    "description": "Refused: what is wrong is in `reason`",
                    "content": {"application/json": {"schema": _ERROR}},
                }
            },
        },
    }


def _operation(path: str, method: str, route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', path)}".rstrip("_"),
        "responses": {status: {"description": "Done"} for status in _DONE[method]} | {"default": _REFUSED},
    }
    if summary := _summary(route.handler):
        operation["summary"] = summary
    flags = _FLAGS.get(path, ()) if method == "DELETE" else ()
    operation["parameters"] = [_parameter(name, "query", _FLAG) for name in flags]
    if method == "GET":
        own = route.body or {}
        operation["parameters"] = [
            *({"$ref": f"#/components/parameters/{name}"} for name in _QUERY if name not in own),
            *(_parameter(name, "query", dict(field.kind.schema)) for name, field in own.items()),
        ]
        if _TELLS_TROUBLE.match(path):
            operation["responses"]["503"] = {"description": "Something is wrong, and said"}
    elif route.body:
        schema = schema_of(route.body)
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _parameter(name: str, place: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _summary(handler: Handler) -> str:
    """The first line of what the handler says of itself, without the paths that it answers."""
    text = re.sub(r"^(`[^`]*`,? ?)+[:.]? ?", "", (inspect.getdoc(handler) or "").partition("\n")[0])
    return text[:1].upper() + text[1:]
