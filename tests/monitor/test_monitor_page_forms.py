"""What an administrator does from the page, in a browser: each form and each question of its one table, for real."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from monitor_support import Client
from test_monitor_page import FILLED, PAGES, Visit, Visiting, browser, visit  # noqa: F401  # fixtures

from multiqueue.broker import Broker, Message

pytestmark = pytest.mark.slow(selected=True)

FILES = Path(__file__).parents[2] / "multiqueue" / "monitor" / "page"
# Names that are markup, a path, quotes, a rabbit, and a sign that turns what follows from right to left.
MADE = "made <img src=x onerror=alert(1)>/%2F '\"& 🐇\u202e"
OTHER = f"other {MADE}"
NEW = f"new {MADE}"
_IN_PATH = quote(MADE, safe="")
HERE = (*PAGES, f"#/queue/%2F/{_IN_PATH}", f"#/exchange/%2F/{_IN_PATH}")

# What is written into a field of this name; a box and a choice stay as they are, unless they are named here.
WRITTEN = {
    **dict.fromkeys(("name", "vhost"), NEW),
    **dict.fromkeys(("exchange", "user"), MADE),
    **dict.fromkeys(("queue", "destination", "to"), OTHER),
    **dict.fromkeys(("pattern", "configure", "write", "read"), "^some"),
    **dict.fromkeys(("value", "weight", "count"), "3"),
    "arguments": "",
    "definition": "max-length = 7",
    "properties": 'content_type = text/plain\nheaders = {"n": [1, "2"]}',
    "payload": "tea",
    "routing_key": "a.b",
    "password": "secret",
    "tags": "monitoring,policymaker",
    "ackmode": "ack_requeue_false",
}
# Forms that make what is not there yet.
MAKES = {"declareQueue": "queue", "declareExchange": "exchange", "putUser": "user"}
UNSEEN = {
    "password",
    "ackmode",
    "encoding",
    "count",
    "payload_encoding",
    "tags",
}  # not in an answer as they are written


def make(client: Client, broker: Broker) -> None:
    """Everything that the forms change is there, as they do not leave it."""

    def put(*parts: str, method: str = "PUT", **body: object) -> None:
        path = "/".join(quote(part, safe="") for part in parts)
        assert client(method, f"/api/{path}", body).status in (201, 204), parts

    for name in (MADE, OTHER):
        kind = {"x-queue-kind": "fair"} if name == MADE else {}
        put("queues", "/", name, arguments=kind)
        put("exchanges", "/", name, type="topic")
    put("bindings", "/", "e", MADE, "q", MADE, method="POST", routing_key=MADE)
    put("bindings", "/", "e", MADE, "e", OTHER, method="POST", routing_key="#")
    put("policies", "/", MADE, pattern="^nothing", definition={"max-length": 5})
    put("operator-policies", "/", MADE, pattern="^nothing", definition={"max-length": 5})
    put("users", MADE, password="x", tags="")
    put("vhosts", MADE)
    may = {"configure": "", "write": "", "read": ".*"}
    put("permissions", "/", MADE, **may)
    put("topic-permissions", "/", MADE, exchange=MADE, write="", read="")
    put("user-limits", MADE, "max-connections", value=5)
    put("vhost-limits", MADE, "max-queues", value=5)
    broker.queue(MADE).purge()
    for _ in range(4):
        broker.publish(Message(b"tea", routing_key=MADE, headers={"tenant": MADE}))


def facts(client: Client, broker: Broker) -> set[str]:
    """What the API says is there, each thing as a text."""
    found = client.get("/api/definitions")
    listed = {f"{kind} {_text(each)}" for kind, some in found.items() if isinstance(some, list) for each in some}
    queues = {f"messages {each['name']} {len(broker.queue(each['name']))}" for each in client.get("/api/queues/%2F")}
    return listed | queues | {f"connection {each['name']}" for each in client.get("/api/connections")}


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


@pytest.fixture
def connected(server: Any) -> Iterator[None]:
    parameters = pika.URLParameters(server.url)
    parameters.client_properties = {"connection_name": MADE}
    connection = pika.BlockingConnection(parameters)
    yield
    try:
        connection.close()
    except pika.exceptions.AMQPError:
        pass


def write(look: Visit, key: str) -> dict[str, str]:
    """Fill the form as somebody does who reads its labels; what was written, by field."""
    written = {}
    form = look.page.locator(f"form[data-form={key}]")
    form.wait_for()
    for field in form.locator("input:not([hidden]), textarea, select").all():
        name = field.get_attribute("name") or ""
        assert field.get_attribute("aria-label"), name
        is_choice = field.evaluate("each => each.matches('select, [type=checkbox]')")
        if is_choice and name != "ackmode":
            continue
        value = NEW if MAKES.get(key) == name else WRITTEN.get(name, "")
        field.select_option(value) if is_choice else field.fill(value)
        written[name] = value
    return written


def test_each_form_does_what_it_says(visit: Visiting, broker: Broker, client: Client, connected: None) -> None:  # noqa: F811
    """Each is where somebody finds it, is filled and sent once, names and all, and the API then says that it is done.
    (monitor 10, 23)"""
    look = visit()
    table = look.page.evaluate(
        """async () => Object.entries((await import("/page/forms.js")).FORMS).map(([key, row]) => [key, row.request])"""
    )
    left = dict(table)
    for address in HERE:
        make(client, broker)
        look.go(address)
        look.page.wait_for_function(FILLED)
        for key in [each for each in left if look.page.locator(f"[data-deed={each}]").count()]:
            method, path = left.pop(key).split()
            make(client, broker)
            before = facts(client, broker)
            look.go("")
            look.go(address)
            look.page.wait_for_function(FILLED)  # an empty table has no row of MADE, and guest's would be the first
            place = look.page.locator(f"tr [data-deed={key}], .bar [data-deed={key}]")
            rows = look.page.locator("tr", has_text=MADE)
            if look.page.locator(f"details[data-deed={key}]").count():
                look.page.locator(f"details[data-deed={key}] > summary").first.click()
                written = write(look, key)
                look.page.locator(f"form[data-form={key}] [type=submit]").click()
            else:
                found = rows.locator(f"[data-deed={key}]") if rows.count() else place
                found.or_(look.page.locator(f".bar [data-deed={key}]")).first.click()
                written = {}
                if key != "pauseTenant":
                    written = write(look, key)
                    look.page.locator(f"dialog form[data-form={key}] [type=submit]").click()
            look.page.locator("#said:not(:empty):not(.bad)").wait_for()
            if key == "closeConnection":
                look.page.get_by_text("None.").wait_for()
            after = facts(client, broker)
            added, removed = after - before, before - after
            assert added or removed, key
            if method == "DELETE":
                assert sum(map(len, after)) < sum(map(len, before)) or path.endswith("/contents"), key
            elif method == "PUT" or "/bindings/" in path:
                told = {_text(value)[1:-1] for name, value in written.items() if value and name not in UNSEEN}
                assert {each for each in told if not any(each in one for one in added)} <= {"max-length = 7"}, key
    assert left == {}
    assert look.page.locator("img, script:not([src]), main b").count() == 0


def test_a_refusal_is_a_sentence_beside_what_was_written(visit: Visiting, broker: Broker) -> None:  # noqa: F811
    """By keyboard alone: a form is opened, refused, corrected and sent; what was written stays. (monitor 10, 23)"""
    broker.declare_queue("orders", durable=True)
    look = visit(390, "dark")
    look.go("#/queues")
    keys = look.page.keyboard
    look.page.get_by_text("Declare a queue").focus()
    keys.press("Enter")
    look.page.locator("form[data-form=declareQueue] :focus").wait_for()
    keys.press("Tab")
    keys.type("orders")
    look.page.get_by_label("Arguments").focus()
    keys.type("quorum")
    look.page.get_by_role("button", name="Declare").focus()
    keys.press("Enter")
    alert = look.page.get_by_role("alert").filter(visible=True)
    alert.get_by_text("“quorum” is not “name = value”.").wait_for()
    look.page.get_by_label("Arguments").fill("x-max-length = 3")
    keys.press("Tab")
    look.page.get_by_label("Queue", exact=True).press("Enter")
    alert.get_by_text(re.compile("^Inequivalent arg 'x-max-length' for queue 'orders'.*[.]$")).wait_for()
    look.page.get_by_label("Queue", exact=True).fill("more")
    keys.press("Enter")
    look.says("Queue more is declared.")
    assert broker.queue("more").settings.max_length == 3
    look.page.get_by_label("Queue", exact=True).fill("..")
    keys.press("Enter")
    alert.get_by_text("cannot ask for the name “..”").wait_for()
    look.wrong = [text for text in look.wrong if "400" not in text]


@pytest.mark.parametrize("read", ["", ".*"])
def test_somebody_who_may_only_look_sees_no_form(
    visit: Visiting,  # noqa: F811
    broker: Broker,
    client: Client,
    connected: None,
    read: str,
) -> None:
    """No form and no button that changes anything, on any page; what may be read is shown. (monitor 23)"""
    make(client, broker)
    assert client("PUT", "/api/users/ada", {"password": "secret", "tags": "monitoring"}).status == 201
    assert client("PUT", "/api/permissions/%2F/ada", {"configure": "", "write": "^$", "read": read}).status == 201
    look = visit(sign_in=False)
    look.sign_in("ada", "secret")
    look.page.get_by_role("heading", name="Overview").wait_for()
    assert look.page.get_by_role("link", name="Admin").count() == 0
    for address in HERE:
        look.go(address)
        look.page.wait_for_function(FILLED)
        assert look.page.locator("form, details.form, [data-deed], button.danger").count() == 0, address
    look.go(f"#/queue/%2F/{_IN_PATH}")
    look.page.get_by_role("button", name="Look").click()
    look.says("4 messages shown" if read else "refused")
    look.wrong = []  # the refusals


def test_where_a_message_goes_is_drawn(visit: Visiting, broker: Broker) -> None:  # noqa: F811
    """Each binding is a branch, that of an exchange has its own, a circle ends, and so does a picture. (monitor 23)"""
    host = broker.virtual_host("/")
    for name, kind in (("in", "topic"), ("middle", "fanout"), ("rest", "fanout")):
        broker.declare_exchange(name, kind, arguments={"alternate-exchange": "rest"} if name == "in" else {})
    for name in ("eu", "all", "lost"):
        broker.declare_queue(name)
    host.bind_queue("eu", "in", "eu.#")
    host.bind_exchange("middle", "in", "#")
    host.bind_exchange("in", "middle", "back")
    host.bind_queue("all", "middle", "")
    host.bind_queue("lost", "rest", "")
    look = visit(390)
    look.go("#/exchange/%2F/in")
    tree = look.page.get_by_role("list", name="Where a message goes")
    tree.wait_for()
    assert tree.inner_text().split() == [
        *("in", "eu.#", "eu", "#", "middle", "every", "key", "all", "back", "in", "as", "above"),
        *("where", "nothing", "else", "fits", "rest", "every", "key", "lost"),
    ]
    for number in range(60):
        host.bind_queue("eu", "rest", f"{number}")
    host.bind_queue("all", "in", "now")
    tree.get_by_text("and 11 more bindings").wait_for()
    look.page.get_by_role("link", name="rest").click()
    look.page.get_by_role("heading", name="rest").wait_for()


def test_text_becomes_no_markup() -> None:
    """One function makes elements, of text nodes; nowhere is text read as HTML or as code, by any of its doors.
    (monitor 6)"""
    doors = (
        r"(inner|outer)HTML\s*=[^=]|insertAdjacentHTML|document\.write|DOMParser|Fragment\(|setHTML"
        r"|srcdoc|\beval\(|Function\("
    )
    for file in FILES.glob("*.js"):
        assert not re.search(doors, file.read_text()), file.name
        makes = re.search(r"createElement|createTextNode|\.cloneNode", file.read_text())
        assert not makes or file.name == "dom.js", file.name


def test_the_browser_refuses_markup_from_text(visit: Visiting) -> None:  # noqa: F811
    """Should a script try, the policy stops it. (monitor 6)"""
    look = visit()
    tried = (
        "() => { try { document.body.innerHTML = '<b>x</b>'; return 'done'; } catch (error) { return error.name; } }"
    )
    assert look.page.evaluate(tried) == "TypeError"
    look.wrong = [text for text in look.wrong if "TrustedHTML" not in text]
