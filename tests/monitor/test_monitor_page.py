"""The dashboard in a browser: each page, each action, both themes, both widths. One Chromium for all."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest
from monitor_support import Client

from multiqueue import MultiQueueExecutor
from multiqueue.amqp import ServerSettings
from multiqueue.broker import Broker, Message
from multiqueue.monitor import Lanes, serve_lanes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow(selected=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; without it, or without Playwright, these tests end as those of any missing peer."""
    missing = None
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing = "playwright is not installed: pip install 'blocking-multiqueue[test]'"
    if chromium is None:
        missing = "there is no chromium: apt-get install chromium"
    if missing is not None:
        if os.environ.get("MULTIQUEUE_REQUIRE_PEERS"):
            pytest.fail(f"MULTIQUEUE_REQUIRE_PEERS is set, and {missing}", pytrace=False)
        pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page that somebody has signed in to, and what went wrong in it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.wrong: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.wrong.append(message.text))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def sign_in(self, user: str = "guest", password: str = "guest") -> None:
        self.page.goto(self.url)
        self.page.get_by_label("User").fill(user)
        self.page.get_by_label("Password").fill(password)
        self.page.keyboard.press("Enter")

    def go(self, address: str) -> None:
        """Show a page, and wait until it is live."""
        self.page.goto(f"{self.url}/{address}")
        self.page.locator("h1").wait_for()
        self.page.locator("#live[data-state=live]").wait_for()

    def confirm(self, deed: str, **fields: str) -> None:
        dialog = self.page.get_by_role("dialog")
        for label, value in fields.items():
            dialog.get_by_label(label).fill(value)
        dialog.get_by_role("button", name=deed, exact=True).click()

    def says(self, text: str) -> None:
        self.page.locator("#said").get_by_text(text).wait_for()


Visiting = Callable[..., Visit]
PAGES = ("", *(f"#/{each}" for each in ("queues", "exchanges", "connections", "channels")))
PAGES += tuple(f"#/admin/{each}" for each in ("policies", "users", "hosts"))
# Whether each table that is seen has been told what there is.
FILLED = """() => [...document.querySelectorAll("main table")].every((each) =>
    !each.offsetParent || each.tBodies[0].rows.length || !each.parentNode.nextSibling.hidden)"""


@pytest.fixture
def short_of() -> set[str]:
    """What the process is short of."""
    return set()


@pytest.fixture
def server(broker: Broker, short_of: set[str]) -> object:
    """A server that may use less memory than any process does."""
    settings = ServerSettings(memory_limit_bytes=2**20, alarm_interval=0.01)
    return broker.listen(settings=settings, measure=lambda: set(short_of))


@pytest.fixture
def visit(browser: Browser, client: Client) -> Iterator[Visiting]:
    """A function that opens a page of the test's broker, signed in as `guest`."""
    contexts: list[Any] = []
    visits: list[Visit] = []

    def open_(width: int = 1280, theme: Any = "light", *, sign_in: bool = True) -> Visit:
        contexts.append(browser.new_context(viewport={"width": width, "height": 844}, color_scheme=theme))
        visits.append(Visit(contexts[-1].new_page(), client.url))
        if sign_in:
            visits[-1].sign_in()
            visits[-1].page.get_by_role("heading", name="Overview").wait_for()
        return visits[-1]

    yield open_
    for context in contexts:
        context.close()
    for each in visits:
        assert [text for text in each.wrong if "401" not in text] == []  # Chromium notes each refusal
        assert [url for url in each.asked if not url.startswith(client.url)] == []


@pytest.fixture
def consumer(broker: Broker, server: Any) -> Iterator[str]:
    """A connection with a consumer of `orders`, by its name."""
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    channel = connection.channel()
    channel.queue_declare("orders")
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("orders", lambda *_: None, consumer_tag="waiter")
    (name,) = (each.name for each in server.connections())
    yield name
    if connection.is_open:
        try:
            connection.close()
        except pika.exceptions.AMQPConnectionError:
            pass


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_is_shown_in_each_theme_and_width(
    visit: Visiting, broker: Broker, consumer: str, theme: str, width: int
) -> None:
    """No page fails, asks another host, scrolls sideways, or has an unlabelled control. (monitor 10)"""
    for number in range(3):
        broker.publish(Message(b"tea %d" % number, routing_key="orders"))
    look = visit(width, theme)
    quoted = consumer.replace(" ", "%20").replace(">", "%3E").replace(":", "%3A")
    shots = os.environ.get("MULTIQUEUE_SCREENSHOTS")
    for address in (*PAGES, "#/queue/%2F/orders", "#/exchange/%2F/amq.topic", f"#/connection/{quoted}"):
        look.go(address)
        for each in look.page.locator("details.form > summary").all():
            each.click()
        for each in look.page.locator("details.form").all():
            each.locator("form").wait_for()
        look.page.wait_for_function(FILLED)
        assert look.page.evaluate("document.documentElement.scrollWidth") <= width, address
        assert look.page.evaluate("document.documentElement.dataset.theme") == theme
        unnamed = look.page.evaluate(
            """[...document.querySelectorAll("button, input, select, textarea, a, svg[role=img], table")]
            .filter((each) => !(each.ariaLabel || each.textContent.trim() || each.closest("label")))
            .map((each) => each.outerHTML)"""
        )
        assert unnamed == []
        if shots:
            name = re.sub(r"\W+", "-", address.partition("/")[2][:20]) or "overview"
            look.page.screenshot(path=Path(shots) / f"{name}-{theme}-{width}.png", full_page=True)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_short_word_of_a_table_is_not_broken(visit: Visiting, broker: Broker, consumer: str, width: int) -> None:
    """The name of a user, and a key beside a long name, stand in one line."""
    exchange = "an-exchange-with-a-rather-long-name-that-takes-all-the-room-of-its-table"
    broker.declare_exchange(exchange, "topic")
    broker.bind_queue("orders", exchange, "orders.#")
    look = visit(width)
    for address, text in (("#/connections", "guest"), ("#/queue/%2F/orders", "orders.#")):
        look.go(address)
        word = look.page.get_by_role("cell", name=text, exact=True)
        word.wait_for()
        lines = """(cell) => {
            const range = document.createRange();
            range.selectNodeContents(cell);
            return new Set([...range.getClientRects()].map((each) => each.top)).size;
        }"""
        assert word.evaluate(lines) == 1, address


@pytest.mark.parametrize("address", ["#/overview", "#/nonsense"])
def test_an_address_that_names_no_page_is_the_first_one(visit: Visiting, address: str) -> None:
    """The overview is shown, and is the page that the row of links says."""
    look = visit()
    look.go(address)
    assert look.page.locator("nav [aria-current]").inner_text() == look.page.locator("h1").inner_text() == "Overview"


def test_numbers_move_without_a_question(visit: Visiting, broker: Broker) -> None:
    """The open stream shows what is published; the page asks nothing further, nor does it grow.

    (monitor 9, 10)
    """
    broker.declare_queue("orders")
    look = visit()
    ready = look.page.locator(".tile", has_text="ready").locator("b")
    ready.get_by_text("0", exact=True).wait_for()
    ticks = """new Promise((done) => {
        let left = 4;
        const charts = document.querySelector("figure").closest(".two");
        new MutationObserver(() => --left || done()).observe(charts, {childList: true});
    })"""
    look.page.evaluate(ticks)
    asked, elements = len(look.asked), look.page.evaluate("document.querySelectorAll('*').length")
    for _ in range(7):
        broker.publish(Message(b"tea", routing_key="orders"))
    ready.get_by_text("7", exact=True).wait_for()
    look.page.evaluate(ticks)
    assert len(look.asked) == asked
    assert look.page.evaluate("document.querySelectorAll('*').length") == elements


def test_what_somebody_should_look_at_stands_above(
    visit: Visiting, broker: Broker, server: Any, short_of: set[str]
) -> None:
    """An alarm, the connections that it blocks, and the memory above its limit, in red. (monitor 19)"""
    broker.declare_queue("orders")
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        look = visit(390)
        look.page.locator(".meter.over").wait_for()
        red = look.page.evaluate("getComputedStyle(document.querySelector('.meter svg')).fill")
        assert red == look.page.evaluate("getComputedStyle(document.querySelector('.troubles')).borderTopColor")
        assert look.page.locator(".troubles").is_hidden()
        short_of.add("memory")
        alert = look.page.get_by_role("alert")
        alert.get_by_text("publishers are blocked until there is more memory").wait_for()
        connection.channel().basic_publish("", "orders", b"tea")
        alert.get_by_role("link", name="1 connection").click()
        look.page.locator(".tag", has_text="blocked").wait_for()
        short_of.clear()
        look.go("#/")
        look.page.locator(".troubles").wait_for(state="hidden")


def test_a_gap_is_drawn_as_a_gap(visit: Visiting) -> None:
    """A line ends before the time that nobody knows, and another one begins after it; a level is not drawn on to now.
    (monitor 3)"""
    drawn = """async ([points, now]) => {
        const { chart, spark, Series } = await import("/page/draw.js");
        const series = new Series(600);
        series.prime(points.map(([at, sample]) => ({ timestamp: at * 1000, sample })).reverse());
        const path = chart("x", [{ name: "x", points: series.points, unit: String }], now, 600).querySelector(".s0");
        const small = spark(series.points, now, 600, "x").querySelector(".s0");
        const runs = (each) => [...each.getAttribute("d").matchAll(/M[^M]*/g)].map(([run]) => run.split("L").length);
        return [path, small].map(runs);
    }"""
    look = visit()
    steady = [[at, 5] for at in range(0, 100, 5)]
    assert look.page.evaluate(drawn, [steady, 100]) == [[21], [21]]  # and on to now
    halves = [each for each in steady if not 20 < each[0] < 60]
    assert look.page.evaluate(drawn, [halves, 100]) == [[5, 9], [5, 9]]
    assert look.page.evaluate(drawn, [halves, 300]) == [[5, 8], [5, 8]]
    slow = [[at, 5] for at in range(0, 300, 20)]  # with very many queues a sample may come each 20 s
    assert look.page.evaluate(drawn, [slow, 300]) == [[16], [16]]


def test_the_broker_fills_what_the_page_did_not_see(visit: Visiting) -> None:
    """A page that was hidden knows, when it is shown again, what was meanwhile; of rates too. (monitor 10)"""
    filled = """async () => {
        const { Series } = await import("/page/draw.js");
        const level = new Series(600), rate = new Series(600);
        for (const series of [level, rate]) for (const at of [100, 101, 102, 160, 161]) series.add(at, 1);
        const sample = (back) => ({ timestamp: (165 - back) * 1000, sample: 1000 - back * 10 });
        const samples = Array.from({ length: 20 }, (_, place) => sample(place * 5));
        level.prime(samples);
        rate.primeRates(samples.filter(({ timestamp }) => timestamp < 120000 || timestamp > 140000));
        return [level.points.map(([at]) => at), rate.points.filter(([at]) => at > 102 && at < 160)];
    }"""
    times, rates = visit().page.evaluate(filled)
    assert times == sorted(times)
    assert [at for at in times if 102 < at < 160] == list(range(105, 160, 5))
    assert rates == [[at, 10] for at in (105, 110, 115, 150, 155)]  # none over the gap, it would be a spike


def test_the_labels_of_an_axis_differ(visit: Visiting) -> None:
    """A queue with one message has no axis "0, 1, 1"; of rates the parts are shown. (monitor 10)"""
    labels = """async ([most, isWhole]) => {
        const [{ chart }, { count, rate }] = await Promise.all([import("/page/draw.js"), import("/page/dom.js")]);
        const drawn = chart("x", [{ name: "x", points: [[0, 0], [1, most]], unit: isWhole ? count : rate }], 2, 60);
        return [...drawn.querySelectorAll("text.tick[text-anchor=end]")].slice(0, 3).map((each) => each.textContent);
    }"""
    look = visit()
    for most in (0, 1, 2, 3, 7, 15, 999, 10_000, 1_234_567):
        for value, is_whole in ((most, True), (most, False), (most / 1000, False)):
            found = look.page.evaluate(labels, [value, is_whole])
            assert len(set(found)) == 3, found
            assert not is_whole or not re.search(r"\.\d( |$)", " ".join(found)), found


def test_what_a_queue_holds_is_looked_at_moved_requeued_purged_and_deleted(visit: Visiting, broker: Broker) -> None:
    """Each action asks first where it destroys, does what it says, and says what it did. (monitor 10)"""
    broker.declare_queue("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    for name in ("dead", "other"):
        broker.declare_queue(name)
    for number in range(3):
        broker.publish(Message(b'{"n": %d}' % number, routing_key="work"))
        received = broker.get("work")
        assert received is not None
        received.reject()
    look = visit()
    look.go("#/queues")
    look.page.get_by_role("link", name="dead").click()
    button = look.page.get_by_role
    button("button", name="Look").click()
    look.says("3 messages shown")
    assert look.page.locator("article pre").last.inner_text() == '{"n": 2}'
    look.page.get_by_text("properties and headers").first.click()
    look.page.get_by_text("x-first-death-queue").first.wait_for()
    button("button", name="Requeue…").click()
    assert look.page.get_by_label("To the queue").input_value() == "work"
    look.confirm("Move", **{"How many (empty: all)": "1"})
    look.says("1 message moved to work.")
    button("button", name="Move…").click()
    look.confirm("Move", **{"To the queue": "other"})
    look.says("2 messages moved to other.")
    assert [len(broker.queue(name)) for name in ("work", "dead", "other")] == [1, 0, 2]
    look.go("#/queue/%2F/other")
    button("button", name="Purge…").click()
    look.page.keyboard.press("Escape")
    assert len(broker.queue("other")) == 2
    button("button", name="Purge…").click()
    look.confirm("Purge")
    look.says("The queue is purged.")
    assert len(broker.queue("other")) == 0
    button("button", name="Move…").click()
    look.confirm("Move", **{"To the queue": "nowhere"})
    look.page.get_by_role("alert").get_by_text("No queue 'nowhere' in vhost '/'.").wait_for()
    look.page.keyboard.press("Escape")
    button("button", name="Delete…").click()
    look.confirm("Delete")
    look.page.get_by_role("heading", name="Queues").wait_for()
    assert "other" not in [each.name for each in broker.virtual_host("/").declared_queues()]
    look.wrong = [text for text in look.wrong if "404" not in text]  # of the move to nowhere


def test_an_address_that_leads_nowhere_shows_the_first_page(visit: Visiting) -> None:
    """Somebody wrote it by hand, or cut it off: another page, at once or when the page is loaded."""
    look = visit()
    for address in ("#/exchange", "#/queue/%2F", "#/queue/%zz/x", "#/nowhere"):
        for page in ("#/queues", None):
            look.go(page) if page else look.page.goto("about:blank")
            look.go(address)
            look.page.get_by_role("heading", name="Overview").wait_for()


def test_an_exchange_that_goes_while_it_is_shown(visit: Visiting, broker: Broker) -> None:
    """The page says that it is gone, and asks for it no more: its own deletion may be seen before its answer comes."""
    broker.declare_exchange("events", "topic")
    look = visit()
    look.go("#/exchange/%2F/events")
    look.page.get_by_text("nowhere: nothing is bound").wait_for()
    broker.delete_exchange("events")
    look.page.get_by_text("There is no such exchange any more.").wait_for()
    asked = len(look.asked)
    look.page.evaluate("fetch('/page/dom.js')")  # answered behind what the page would have asked
    assert [each for each in look.asked[asked:] if "/api/" in each] == []
    assert look.page.locator("#said").inner_text() == ""


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_tenants_of_a_fair_queue_are_paused_and_weighed(
    visit: Visiting, broker: Broker, many_samples: None, width: int, theme: str
) -> None:
    """Each is a row with why it is passed over; by keyboard alone it is paused, and gets a weight. (monitor 22)"""
    options = {"max_in_flight": 1, "tenants": {"gold": {"weight": 3}}}
    queue = broker.declare_queue("jobs", arguments={"x-queue-kind": "fair", "x-queue-kind-options": options})
    for tenant, number in {"big <b>/1": 40, "gold": 9, "": 3}.items():
        for _ in range(number):
            broker.publish(Message(b"job", routing_key="jobs", headers={"tenant": tenant}))
    held = [broker.get("jobs"), broker.get("jobs")]
    assert all(held)
    broker.declare_queue("plain")
    look = visit(width, theme)
    look.go("#/queues")
    look.page.get_by_role("row", name="jobs").get_by_text("fair", exact=True).wait_for()
    look.go("#/queue/%2F/jobs")
    card = look.page.locator(".card", has=look.page.get_by_role("heading", name="Tenants"))
    card.get_by_text("3 with messages.").wait_for()
    rows = card.locator("tbody tr")
    rows.first.get_by_text("big <b>/1").wait_for()
    assert card.get_by_text("at its cap").count() == 2
    pause = card.get_by_role("button", name="Pause (no name)")
    pause.focus()
    look.page.keyboard.press("Enter")
    look.says("(no name) is paused.")
    rows.last.get_by_text("paused").wait_for()
    assert card.get_by_role("button", name="Resume (no name)").evaluate("each => each === document.activeElement")
    look.page.keyboard.press("Enter")
    look.says("(no name) goes on.")
    card.get_by_role("button", name="Weight 3 of gold").focus()
    look.page.keyboard.press("Enter")
    look.confirm("Set", Weight="0.5")
    look.says("gold has the weight 0.5.")
    card.get_by_role("button", name="Weight 0.5 of gold").click()
    look.confirm("Set", Weight="0")
    look.page.get_by_role("alert").get_by_text("weight").wait_for()
    look.page.keyboard.press("Escape")
    assert {each.name: each.options.weight for each in queue.tenants().largest} == {"big <b>/1": 1, "gold": 0.5, "": 1}
    card.get_by_role("button", name="Tenant").click()
    rows.first.get_by_text("(no name)").wait_for()
    assert look.page.evaluate("document.documentElement.scrollWidth") <= width
    assert card.locator(".scroll").evaluate("each => each.scrollWidth <= each.clientWidth"), "a button is out of sight"
    if shots := os.environ.get("MULTIQUEUE_SCREENSHOTS"):
        look.page.screenshot(path=Path(shots) / f"tenants-{theme}-{width}.png", full_page=True)
    look.go("#/queue/%2F/plain")
    assert not look.page.get_by_role("heading", name="Tenants").is_visible()
    look.wrong = [text for text in look.wrong if "400" not in text]  # of the weight 0


def test_a_connection_is_closed_from_the_page(visit: Visiting, server: Any, consumer: str) -> None:
    """The button asks, the connection ends, and its row goes."""
    look = visit(390, "dark")
    look.go("#/connections")
    look.page.get_by_role("button", name=f"Close {consumer}").click()
    look.confirm("Close it")
    look.says("The connection is closed.")
    look.page.get_by_text("None.").wait_for()
    assert server.connections() == []


def test_jobs_of_lanes_are_drawn_and_chosen_by_keys(browser: Browser) -> None:
    """A failed job has its cross and tells its error; jobs that wait stand behind the line of now. (monitor 11)"""

    def fail() -> None:
        raise ValueError("no Parquet")

    lanes = Lanes()
    with MultiQueueExecutor(1) as executor, serve_lanes(lanes) as http:
        lanes.watch("nightly", executor)
        lane = executor.lane("acme")
        lane.submit(fail).exception()
        lane.submit(int).result()
        lane.pause()
        for _ in range(7):
            lane.submit(int)
        context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
        look = Visit(context.new_page(), http.url)
        look.sign_in()
        look.page.get_by_role("img", name="acme: 0 running, 7 waiting, 1 done, 1 failed").wait_for()
        assert look.page.locator(".lane .cross").count() == 1
        assert look.page.locator(".lane svg > .job.wait").count() == 5
        look.page.get_by_text("+2", exact=True).wait_for()
        look.page.get_by_role("group", name="Jobs of acme").focus()
        look.page.keyboard.press("End")
        look.page.get_by_text("not yet").wait_for()
        look.page.keyboard.press("Home")
        look.page.get_by_text("ValueError: no Parquet").wait_for()
        assert look.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert look.wrong == []
        context.close()
        lane.clear()


def test_ten_thousand_queues_are_a_page_of_fifty(visit: Visiting, broker: Broker) -> None:
    """Filter, sort and pages are the broker's work; the browser has fifty rows. By keyboard alone. (monitor 10)"""
    for number in range(10_000):
        broker.declare_queue(f"q{number:05}")
    for _ in range(3):
        broker.publish(Message(b"", routing_key="q07777"))
    look = visit()
    look.go("#/queues")
    rows = look.page.locator("tbody tr")
    look.page.get_by_text("1 to 50 of 10,000").wait_for()
    assert rows.count() == 50
    look.page.get_by_role("button", name="Ready").focus()
    look.page.keyboard.press("Enter")
    rows.first.get_by_text("q07777").wait_for()
    assert look.page.locator("th[aria-sort=descending]").inner_text().startswith("Ready")
    look.page.get_by_role("button", name="Next page").focus()
    look.page.keyboard.press("Enter")
    look.page.get_by_text("51 to 100 of 10,000").wait_for()
    look.page.get_by_role("searchbox").fill("q0999")
    look.page.get_by_text("1 to 10 of 10", exact=True).wait_for()
    assert rows.count() == 10


def test_messages_that_no_queue_took_are_seen(visit: Visiting, broker: Broker) -> None:
    """Those that came back to their publishers, and those that did not. (monitor 10)"""
    look = visit()
    look.page.locator("#live[data-state=live]").wait_for()
    for _ in range(500):
        broker.publish(Message(b"", routing_key="nowhere"))
    look.page.get_by_text("unroutable", exact=True).locator("..").get_by_text(re.compile("[1-9]")).wait_for()


def test_names_are_text_and_nothing_else(visit: Visiting, broker: Broker) -> None:
    """A queue whose name or message is HTML is shown as it is written. (monitor 6)"""
    name = "<img src=x onerror=alert(1)>/%2F '\""
    broker.declare_queue(name)
    broker.publish(Message(b"<script>alert(2)</script>", routing_key=name))
    look = visit()
    look.go("#/queues")
    look.page.get_by_role("link", name=name).click()
    look.page.get_by_role("heading", name=name).wait_for()
    look.page.get_by_role("button", name="Look").click()
    look.page.get_by_text("<script>alert(2)</script>").wait_for()


def test_a_wrong_password_stays_outside(visit: Visiting, broker: Broker) -> None:
    """The form says so, and nothing of the broker is in the page; signing out forgets the password. (monitor 1)"""
    broker.declare_queue("a-secret-name")
    look = visit(sign_in=False)
    look.sign_in(password="wrong")
    look.page.get_by_role("alert").get_by_text("another password").wait_for()
    look.page.goto(f"{look.url}/#/queues")
    assert "a-secret-name" not in look.page.content()
    look.sign_in()
    look.page.get_by_role("link", name="a-secret-name").wait_for()
    look.page.get_by_role("button", name="Sign out").click()
    look.page.get_by_role("heading", name="Sign in").wait_for()
    look.page.reload()
    look.page.get_by_role("heading", name="Sign in").wait_for()
    assert look.page.evaluate("sessionStorage.length") == 0


def test_a_page_says_when_it_is_not_live(visit: Visiting, broker: Broker, client: Client) -> None:
    """It names the time of what it shows when the broker is gone, and signs out one that may look no more."""
    look, other = visit(), visit(sign_in=False)
    assert client("PUT", "/api/users/ada", {"password": "secret", "tags": "monitoring"}).status == 201
    other.sign_in("ada", "secret")
    other.page.get_by_role("heading", name="Overview").wait_for()
    other.page.locator("#live[data-state=live]").wait_for()
    assert client("DELETE", "/api/users/ada").status == 204
    other.page.get_by_text("You are signed out").wait_for()
    closing = threading.Thread(target=broker.close)
    closing.start()
    look.page.locator("#live[data-state=lost]").get_by_text("not live, as of").wait_for()
    closing.join()
    look.page.close()  # it asks again and again
    look.wrong = [text for text in look.wrong if "ERR_" not in text]  # Chromium notes each attempt that fails


def test_colours_are_chosen_and_kept(visit: Visiting) -> None:
    """Light, dark or as the machine says; the choice outlives the page."""
    look = visit(theme="dark")
    shown = "document.documentElement.dataset.theme"
    button = look.page.get_by_role("button", name="Colours: auto")
    button.click()
    assert look.page.evaluate(shown) == "light"
    look.page.reload()
    look.page.get_by_role("button", name="Colours: light").click()
    assert look.page.evaluate(shown) == "dark"
