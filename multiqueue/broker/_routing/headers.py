"""Headers matching: what a binding of a headers exchange asks of a message's headers.

`x-match` is `all` (the default) or `any`; either passes over the binding's other arguments that begin with
`x-`, which `all-with-x` and `any-with-x` do not. An argument that is None asks that the header is there,
with any value; any other asks for an equal value of the same type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .._base.errors import PreconditionFailed
from .._selector.selector import SELECTOR_ARGUMENT

if TYPE_CHECKING:
    from .._base.message import Message
    from .binding import Condition

MODES = ("all", "any", "all-with-x", "any-with-x")


def headers_condition(arguments: Mapping[str, object]) -> Condition:
    """The condition that a binding's arguments put on a message's headers.

    Raises:
        PreconditionFailed: `x-match` is none of the four modes.
    """
    mode = arguments.get("x-match", "all")
    if mode not in MODES:
        raise PreconditionFailed(f"Invalid x-match field value {mode!r}; expected {', '.join(MODES)}")
    wanted = tuple(
        (name, value)
        for name, value in arguments.items()
        if name not in ("x-match", SELECTOR_ARGUMENT)
        and (mode in ("all-with-x", "any-with-x") or not name.startswith("x-"))
    )
    combine = all if mode in ("all", "all-with-x") else any

    def condition(message: Message) -> bool:
        headers = message.headers
        return combine(name in headers and _meets(value, headers[name]) for name, value in wanted)

    return condition


def _meets(wanted: object, value: object) -> bool:
    return wanted is None or (type(wanted) is type(value) and wanted == value)
