"""The console in a real Chromium: what it shows, what can be done with it, in light and dark, wide and narrow."""

from __future__ import annotations

import base64
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from gateway.moments import parse_moment
from gateway.wire.codes import RequestCode
from gateway.wire.fields import to_ext
from gateway.wire.headers import SendMessageV2
from gateway.wire.properties import join
from tests.browser import PHONE, Browser
from tests.gateway.certificates import Authority
from tests.live.process import LIMIT_S, GatewayProcess

pytestmark = pytest.mark.live

HOSTILE = "<img src=x onerror=alert(1)>"
TOKEN = "a-token-for-the-console"
VIEWS = (
    *("timeline", "messages?topic=close-order", "topics?system=on", "groups", "recurring", "jobs"),
)
HURRY = """
    const [later, cancel, looks] = [setTimeout, clearTimeout, new Map()];
    window.setTimeout = (work, ms) => {
        const timer = later(() => { looks.delete(timer); work(); }, ms);
        if (ms >= 2_000 && ms <= 3_000) looks.set(timer, work);
        return timer;
    };
    window.clearTimeout = (timer) => { looks.delete(timer); cancel(timer); };
    window.hurry = () => [...looks].forEach(([timer, work]) => { clearTimeout(timer); work(); });
"""
"""Lets a test call `hurry()` instead of waiting for the two or three seconds after which a page looks again."""

WITH_TEXT = """
    const [selector, text] = arguments;
    return [...document.querySelectorAll(selector)]
        .filter((one) => (one.innerText ?? one.textContent).includes(text));
"""
"""Finds elements with a text. It is one script, because the page draws its rows anew every few seconds: on a slow
machine, asking for the text of each of hundreds of cells takes longer."""


def console_of(process: GatewayProcess, scheme: str = "http") -> str:
    """Return the address that the process prints at start."""
    assert process._process is not None
    assert process._process.stdout is not None
    line = ""
    for line in map(bytes.decode, process._process.stdout):
        found = re.fullmatch(rf"console on ({scheme}://127\.0\.0\.1:\d+/)\n", line)
        if found is not None:
            return found[1]
    raise AssertionError(line)


class Console:
    """The console of a gateway, in a browser."""

    def __init__(self, browser: Browser | None, address: str) -> None:
        self._browser = browser
        self.address = address

    @property
    def browser(self) -> Browser:
        """The browser, for actions in it."""
        assert self._browser is not None
        return self._browser

    def set_zone(self, zone: str) -> None:
        """Have the browser's clock show the time of a zone; that of this machine if it is empty."""
        page = self.browser.page
        page.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": zone})

    @contextmanager
    def in_zone(self, zone: str) -> Iterator[None]:
        """Have the browser's clock show the time of a zone within the block."""
        self.set_zone(zone)
        try:
            yield
        finally:
            self.set_zone("")

    def api(self, path: str, body: object = None, method: str | None = None) -> Any:
        """Send a request to the API, and return the response."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{self.address}api/v1{path}", data, headers, method=method
        )
        with urllib.request.urlopen(request, timeout=180) as answer:
            return json.load(answer)

    def send(self, **fields: object) -> Any:
        """Send a message that is due in half an hour."""
        return self.api(
            "/messages", {"topic": "close-order", "body": "hello", "at": "+30m", **fields}
        )

    def open(self, view: str = "", **looks: Any) -> None:
        """Show a view."""
        self.browser.open(f"{self.address}#/{view}", **looks)

    def see(self, selector: str, text: str = "") -> WebElement:
        """Wait for a visible element that contains this text, and return it."""
        return self._seen(selector, text)

    def click(self, selector: str, text: str = "") -> None:
        """Click on such an element; on its successor, should the page draw it anew just now."""
        self._seen(selector, text, click=True)

    def _seen(self, selector: str, text: str, *, click: bool = False) -> WebElement:
        def seen(page: Any) -> WebElement | None:
            elements: list[WebElement] = page.execute_script(WITH_TEXT, selector, text)
            for element in elements:
                if element.is_displayed() and text in element.text:
                    if click:
                        element.click()
                    return element
            self.hurry()
            return None

        found = WebDriverWait(
            self.browser.page, LIMIT_S, 0.05, ignored_exceptions=[Exception]
        ).until(seen, f"no {selector} with {text!r}")
        assert found is not None
        return found

    def see_rows(self, selector: str, number: int) -> None:
        """Wait until there are so many elements."""
        self.wait_for(f"document.querySelectorAll({json.dumps(selector)}).length === {number}")

    def wait_for(self, script: str) -> None:
        """Wait until this is true on the page."""

        def is_true(page: Any) -> bool:
            self.hurry()
            return bool(page.execute_script(f"return Boolean({script})"))

        WebDriverWait(self.browser.page, LIMIT_S, 0.05).until(is_true, f"not: {script}")

    def looks_again(self, path: str) -> None:
        """Wait until the page has requested this twice more, so that it shows the first of these responses."""
        number = (
            "performance.getEntriesByType('resource')"
            f".filter((one) => one.name.includes('/api/v1{path}')).length"
        )
        before = self.browser.page.execute_script(f"return {number}")
        self.wait_for(f"{number} >= {before} + 2")

    @contextmanager
    def in_a_hurry(self) -> Iterator[None]:
        """Have pages that are opened within the block look again whenever the test waits for something."""
        page = self.browser.page
        added = page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": HURRY})
        try:
            yield
        finally:
            page.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    def hurry(self) -> None:
        """Have the page look again now, if it was opened in a hurry."""
        self.browser.page.execute_script("window.hurry?.()")

    def press(self, *keys: str) -> None:
        """Type into the focused element."""
        ActionChains(self.browser.page).send_keys(*keys).perform()

    @property
    def focused(self) -> str:
        """The text of the focused element, read at once: the page may draw it anew at any time."""
        return str(self.browser.page.execute_script("return document.activeElement.innerText"))

    @property
    def location(self) -> str:
        """The part of the address after the #."""
        return self.browser.page.current_url.partition("#")[2]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway with a consumer group that lags and waits for a retry, and messages whose client had no valid clock."""
    folder = tmp_path_factory.mktemp("console")
    with GatewayProcess(folder / "data", "--http", "127.0.0.1:0") as process:
        address = console_of(process)
        Console(None, address).send(topic="consumed", at="now", queue=0)
        with process.client() as client:
            pull = {
                "topic": "consumed",
                "queueId": "0",
                "queueOffset": "0",
                "maxMsgNums": "1",
                "sysFlag": "5",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subVersion": "0",
                "subscription": "*",
            }
            for group in ("workers", "w" * 120):
                answer = client.ask(RequestCode.PULL_MESSAGE, {"consumerGroup": group, **pull})
                assert answer.code == 0
            for topic in ("born-never", "%RETRY%workers"):
                odd = SendMessageV2(
                    producer_group="odd",
                    topic=topic,
                    default_topic="TBW102",
                    default_topic_queue_nums=8,
                    queue_id=0,
                    sys_flag=0,
                    born_timestamp=9_000_000_000_000_000_000,
                    flag=0,
                    properties=join({"TIMER_DELAY_SEC": "3600", "TAGS": topic}),
                )
                assert client.ask(RequestCode.SEND_MESSAGE_V2, to_ext(odd), b"hello").code == 0
        yield address


@pytest.fixture
def console(browser: Browser, address: str) -> Iterator[Console]:
    """The gateway's console. The page must not have logged an error, and nothing recurs afterwards."""
    console = Console(browser, address)
    with console.in_a_hurry():
        yield console
    for one in console.api("/recurring")["recurring"]:
        console.api(f"/recurring/{one['topic']}/{one['name']}", method="DELETE")
    assert browser.errors() == []


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    ("size", "dark"), [((1280, 900), False), ((1280, 900), True), (PHONE, False)]
)
def test_views_fit_and_complain_of_nothing(
    console: Console, view: str, size: tuple[int, int], dark: bool, tmp_path: Path
) -> None:
    console.send(keys=HOSTILE, body=HOSTILE, tags="late")
    console.open(view, width=size[0], height=size[1], dark=dark)
    console.see("nav [aria-current]")
    console.see("main .panel")
    console.see("#pulse .tile", "pending")
    for summary in console.browser.page.find_elements(By.CSS_SELECTOR, "summary")[:1]:
        summary.click()
        console.see("td", "consumed")
    assert console.browser.overflow() == 0
    ground = console.browser.page.execute_script(
        "return getComputedStyle(document.body).backgroundColor"
    )
    brightness = sum(map(int, re.findall(r"\d+", str(ground))[:3])) / 3
    assert (brightness < 100) == dark
    console.browser.picture(tmp_path / "console.png")


@pytest.mark.parametrize("dark", [False, True])
def test_states_are_readable(console: Console, dark: bool) -> None:
    console.open(dark=dark)
    console.see("main .panel")
    script = """
        const main = document.getElementById("main"), pencil = document.createElement("canvas").getContext("2d");
        const paint = (colour) => { pencil.fillStyle = colour; pencil.fillRect(0, 0, 1, 1); };
        const light = () => {
            const [red, green, blue] = [...pencil.getImageData(0, 0, 1, 1).data].map((part) =>
                part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4);
            return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
        };
        return ["pending", "fired", "aborted"].map((name) => {
            const state = document.createElement("span");
            state.className = `state ${name}`;
            main.append(state);
            paint(getComputedStyle(document.body).backgroundColor);
            paint(getComputedStyle(state).backgroundColor);
            const ground = light();
            paint(getComputedStyle(state).color);
            const text = light();
            return (Math.max(ground, text) + 0.05) / (Math.min(ground, text) + 0.05);
        });
    """
    assert min(console.browser.page.execute_script(script)) >= 4.5  # WCAG 2.2, level AA


def test_long_names_and_dialogs_fit_a_phone(console: Console) -> None:
    topic, name = "T" * 120, "n" * 120
    console.send(topic=topic, keys="k" * 9_000, tags="t" * 3_000)
    console.api(f"/recurring/{topic}/{name}", {"every": "2m", "body": "x"}, method="PUT")

    def fits() -> bool:
        script = "const box = document.querySelector('dialog'); return box.scrollWidth <= box.clientWidth"
        return bool(console.browser.page.execute_script(script))

    width, height = PHONE
    console.open("timeline?length=3600000", width=width, height=height)
    console.see(".legend", topic)
    assert console.browser.overflow() == 0
    console.open("groups?contains=" + "w" * 50, width=width, height=height)
    console.see("td", "consumed")
    assert console.browser.overflow() == 0
    console.click("summary")
    console.looks_again("/groups")
    assert not console.browser.page.find_elements(By.CSS_SELECTOR, "details[open], td")
    for wide in (width, 700):
        console.open("jobs", width=wide, height=height)
        (last,) = console.browser.page.find_elements(By.CSS_SELECTOR, "nav [aria-current]")
        assert last.rect["x"] + last.rect["width"] <= wide
    console.open(f"topics?contains={topic}")
    console.see("td", topic[:20])
    box = (
        "const box = document.querySelector('.table-box'); return box.scrollWidth - box.clientWidth"
    )
    assert console.browser.page.execute_script(box) == 0, "its button can be seen"
    console.open("recurring")
    button = console.see("td button.link", name)
    cell = console.see("td[data-label=name]", name)
    assert button.rect["width"] <= cell.rect["width"], "it does not cover other columns"
    console.open(f"message/{'0' * 32}", width=width, height=height)
    console.see(".bad-text", "there is no message")
    assert console.browser.overflow() == 0
    console.browser.errors()  # Chromium notes the 404
    console.open(f"messages?topic={topic}", width=width, height=height)
    assert console.see(".messages tbody tr", "kkk").rect["height"] < height
    console.click("button.danger", "Change all of these")
    console.click("dialog button", "Abort them")
    console.see("dialog button.danger", "Abort 1 message")
    assert fits()
    console.open("recurring", width=width, height=height)
    console.click("td button.link", name)
    console.see("dialog .times li")
    assert fits()
    console.click("dialog button", "Change")
    console.see("dialog [role=status]", "Next: ")
    assert fits()


def test_what_a_colour_alone_says_is_seen_with_the_colours_of_the_system(console: Console) -> None:
    console.send(topic="coloured")
    page = console.browser.page
    console.open("timeline?length=3600000&topic=coloured")
    console.see(".legend", "coloured")
    console.see("[aria-pressed=true]", "1h")
    forced = {"features": [{"name": "forced-colors", "value": "active"}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", forced)
    backgrounds = (
        "return [...arguments].map("
        "(name) => getComputedStyle(document.querySelector(name)).backgroundColor)"
    )
    pressed, others = page.execute_script(
        backgrounds, "[aria-pressed=true]", "[aria-pressed=false]"
    )
    assert pressed != others
    dot, around = page.execute_script(backgrounds, ".legend .dot", ".legend button")
    assert dot != around


def test_an_address_that_is_cut_is_no_empty_page(console: Console) -> None:
    console.open("message/%zz")
    console.see("main .bad-text", "an offset id")
    console.browser.errors()  # Chromium notes the refused request


def test_a_message_that_comes_late_is_not_shown_in_another_view(console: Console) -> None:
    sent = console.send()
    answer = console.api(f"/messages/{sent['offsetMsgId']}")
    page = console.browser.page
    console.open("topics")
    console.see("td", "close-order")
    page.execute_script(
        "const real = fetch; window.fetch = (path, asked) => path.includes('/messages/') ?"
        " new Promise((go) => { window.answer = go; }) : real(path, asked);"
        f"location.hash = '#/message/{sent['offsetMsgId']}'"
    )
    console.wait_for("window.answer")
    page.execute_script("location.hash = '#/topics'")
    console.see("td", "close-order")
    page.execute_script(
        "const page = arguments[0];"
        "answer({ok: true, status: 200, headers: new Headers(), json: async () => page})",
        answer,
    )
    assert not page.find_elements(By.CSS_SELECTOR, ".headline")


def test_a_message_is_looked_at_again(console: Console) -> None:
    sent = console.send(body="{}")
    page = console.browser.page
    console.open(f"message/{sent['offsetMsgId']}")
    console.click(".presets button", "Hex")
    heading = console.see("h1")
    console.looks_again("/messages/")
    assert heading.is_displayed()  # unchanged elements are not drawn again
    console.api(f"/messages/{sent['offsetMsgId']}/abort", {})
    console.see(".headline .state", "aborted")
    console.see("[aria-pressed=true]", "Hex")
    assert not page.find_elements(By.CSS_SELECTOR, ".headline button")
    page.execute_script("window.real = fetch; window.fetch = () => Promise.reject()")
    console.see("main .bad-text", "does not answer")
    page.execute_script("window.fetch = window.real")
    console.see(".headline .state", "aborted")


def test_a_body_is_read_on_while_groups_move_on(console: Console) -> None:
    sent = console.send(body="\n".join(map(str, range(999))))
    console.open(f"message/{sent['offsetMsgId']}")
    console.click(".presets button", "Hex")
    page = console.browser.page
    page.execute_script(
        "const real = fetch; let offset = 0;"
        " window.fetch = async (path, asked) => {"
        "  const answer = await real(path, asked);"
        "  if (!path.includes('/messages/')) return answer;"
        "  const page = await answer.json();"
        "  page.receivers = [{ group: 'workers', isPast: false, offset: offset++ }];"
        "  return Response.json(page);"
        " };"
        " const body = document.querySelector('pre.body');"
        " body.scrollTop = 100;"
        " getSelection().selectAllChildren(body)"
    )
    console.see(".receivers", "at offset")
    console.looks_again("/messages/")
    assert console.focused == "Hex"
    scrolled, selected = page.execute_script(
        "return [document.querySelector('pre.body').scrollTop, getSelection().toString()]"
    )
    assert scrolled == 100
    assert selected.startswith("000000")


def test_how_far_off_something_is_is_told_by_the_gateways_clock(console: Console) -> None:
    sent = console.send(at="+30d", topic="far")
    page = console.browser.page
    script = "const right = Date.now; Date.now = () => right() + 10 * 86_400_000"
    added = page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
    try:
        console.open(f"message/{sent['offsetMsgId']}")
        console.see(".headline", "due in 29d")
        console.see(".history", "will be due, in 29d")
        console.open("messages?topic=far")
        console.see(".messages td", "in 29d")
        console.open("timeline?length=3600000")
        console.see(".caption", "follows the clock")
        asked = page.execute_script(
            "return performance.getEntriesByType('resource').map((one) => new URL(one.name))"
            ".filter((one) => one.pathname === '/api/v1/timeline').map((one) => one.search)"
        )
        assert all(one.startswith("?begin=now&end=%2B3600000ms&") for one in asked), asked
    finally:
        page.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_a_dialog_is_of_its_view(console: Console) -> None:
    sent = console.send()
    page = console.browser.page
    console.open("topics")
    console.see("td", "close-order")
    page.execute_script(f"location.hash = '#/message/{sent['offsetMsgId']}'")
    console.click(".headline button", "Abort…")
    console.click("dialog p", "cannot be undone")
    before = console.location
    page.execute_script("document.activeElement.blur()")
    console.press("t")
    assert console.location == before
    assert len(page.find_elements(By.CSS_SELECTOR, "dialog")) == 1
    page.back()
    console.see("td", "close-order")
    assert not page.find_elements(By.CSS_SELECTOR, "dialog")


def test_rates_are_told_by_a_clock_that_moves(browser: Browser, tmp_path: Path) -> None:
    flags = ("--http", "127.0.0.1:0", "--clock", "manual")
    with GatewayProcess(tmp_path / "data", *flags) as process:
        console = Console(browser, console_of(process))
        console.open()
        console.see("#pulse .tile", "pending\n0")
        console.send(at="now")

        def told(page: Any) -> float:
            # One script reads it, because the page replaces the tiles.
            tile = page.execute_script(
                "return document.querySelectorAll('#pulse .tile')[1]?.innerText ?? '0'"
            )
            return float(tile.removeprefix("accepted /s\n").replace("k", "e3"))

        rate = WebDriverWait(browser.page, LIMIT_S, 0.05).until(told)
        assert rate <= 1  # one message in about two seconds


def test_an_open_page_tells_that_sends_are_refused_from_now_on(console: Console) -> None:
    console.open("topics", width=360, height=640)
    console.see("#pulse .tile", "pending")
    console.browser.page.execute_script(
        "const real = window.real = fetch; window.fetch = async (path, asked) => {"
        "  const answer = await real(path, asked);"
        "  if (!path.includes('/status')) return answer;"
        "  return Response.json({...await answer.json(), reasons: ['the disk is full', 'and more']});"
        " }"
    )
    console.see("#pulse .bad-text", "Not ready: the disk is full; and more")
    width = "return document.querySelector('#pulse .bad-text').getBoundingClientRect().width"
    assert console.browser.page.execute_script(width) > 200  # narrower, it would fill the window
    console.see("#pulse .tile", "pending")
    console.browser.page.execute_script("window.fetch = window.real")
    console.see("#pulse .tile:first-child", "pending")


def test_who_may_not_see_rates_is_told_that_sends_are_refused(console: Console) -> None:
    console.open("topics")
    console.see("#pulse .tile", "pending")
    console.browser.page.execute_script(
        "const real = fetch; window.fetch = async (path, asked) => {"
        "  if (path.includes('/rates'))"
        "   return Response.json({status: 403, detail: 'no permission'}, {status: 403});"
        "  const answer = await real(path, asked);"
        "  if (!path.includes('/status')) return answer;"
        "  return Response.json({...await answer.json(), reasons: ['the disk is full']});"
        " }"
    )
    console.see("#pulse .bad-text", "no permission")
    console.see("#pulse .bad-text", "Not ready: the disk is full")


def test_lateness_is_told_of_what_a_process_counts_that_was_started_again(console: Console) -> None:
    """An example is one of several workers, while the others have accepted more than it ever did."""
    console.open()
    console.see("#pulse .tile", "pending")
    counted = (
        "const real = window.real ??= fetch; const [total, classes] = arguments;"
        " window.fetch = async (path, asked) => {"
        "  const answer = await real(path, asked);"
        "  if (!path.includes('/rates')) return answer;"
        "  const rates = await answer.json();"
        "  rates.accepted.total = total;"
        "  rates.firingError.counts = rates.firingError.counts.map((_, place) => classes[place] ?? 0);"
        "  return Response.json(rates);"
        " }"
    )
    for accepted, classes, told in (
        (1_000, {"1": 50}, "≤ 2ms"),
        (100, {"0": 50}, "≤ 1ms"),
        (200, {"9": 2}, "≤ 1s"),
    ):
        console.browser.page.execute_script(counted, accepted, classes)
        console.see("#pulse .tile", f"late p99\n{told}")


def test_rates_that_no_answer_confirms_are_not_shown_for_long(console: Console) -> None:
    console.open()
    console.see("#pulse .tile", "pending")
    console.browser.page.execute_script(
        "const [later, real] = [setTimeout, fetch];"
        " window.setTimeout = (work, ms) => later(work, ms === 10_000 ? 100 : ms);"
        " const wait = new Promise((go) => { window.go = go; });"
        " window.fetch = (path, asked) =>"
        "  path.includes('/rates') ? wait.then(() => real(path, asked)) : real(path, asked);"
    )
    console.see("#pulse", "has not answered for 10 s")
    console.browser.page.execute_script("window.go()")
    console.see("#pulse .tile", "pending")


def test_nothing_comes_from_elsewhere(console: Console) -> None:
    console.open()
    console.see("#pulse .tile", "pending")
    names = console.browser.page.execute_script(
        "return performance.getEntriesByType('resource').map((one) => one.name)"
    )
    assert len(names) > 10
    assert all(name.startswith(console.address) for name in names)


def test_the_timeline_is_zoomed_by_keys_and_selected_by_click(console: Console) -> None:
    sent = console.send(topic="timeline-a")
    console.send(topic="timeline-b")
    console.open("timeline?length=3600000")
    console.see(".legend", "timeline-a")
    console.see(".caption", "in 1h from")
    console.see(".caption", "counted in whole columns of 30s")
    console.press("+")
    console.see(".caption", "in 30m from")
    console.press("-", "-")
    console.see(".caption", "in 2h from")
    console.press(Keys.ARROW_RIGHT)
    console.see(".caption[aria-live=polite]", "in 2h from")
    assert "from=" in console.location
    console.press("n")
    console.see(".caption[aria-live=off]", "follows the clock")
    console.click(".legend button", "timeline-a")
    console.see(".messages td", "timeline-a")
    assert "topic=timeline-a" in console.location
    bar = console.see(".chart rect.t0")
    bar.click()
    console.see("h2", "Selected: ")
    console.see(".messages a", sent["msgId"])
    console.press(Keys.ESCAPE)
    console.see("h2", "Next of these")


def test_a_timeline_from_1970_on_is_the_same_when_it_is_opened_again(console: Console) -> None:
    console.open("timeline?from=0&to=1000000000000")
    console.see(".caption", "from 1970-01-01")
    console.press("+", "-")
    console.see(".caption", "from 1970-01-01")
    console.browser.page.refresh()
    console.see(".caption", "from 1970-01-01")
    console.see("main input[name=topic]").send_keys("timeline-c", Keys.ENTER)
    console.see(".caption", "0 due in 31y")
    assert console.location == "/timeline?from=0&to=1000000000000&topic=timeline-c"


def test_what_is_of_the_question_before_is_dimmed(console: Console) -> None:
    for topic in ("dim-a", "dim-b"):
        console.send(topic=topic)
    console.open("timeline?length=3600000")
    console.see(".messages td", "dim-a")
    assert not console.browser.page.find_elements(By.CSS_SELECTOR, "main [aria-busy]")
    console.browser.page.execute_script(
        "window.real = fetch; const wait = new Promise((go) => { window.go = go; });"
        " window.fetch = (path, asked) => wait.then(() => real(path, asked))"
    )
    console.press("-")
    console.see(".caption[aria-busy=true]", "in 1h from")
    console.browser.page.execute_script(
        "window.fetch = (path, asked) =>"
        " path.includes('/timeline') ? real(path, asked) : Promise.reject(); window.go()"
    )
    console.see(".caption:not([aria-busy])", "does not answer")
    console.see(".messages [aria-busy=true]", "dim-a")
    console.browser.page.execute_script("window.fetch = window.real")
    console.see(".caption", "in 2h from")
    console.see(".messages tbody:not([aria-busy])", "dim-a")


def test_a_late_answer_about_one_span_tells_nothing_of_the_next(console: Console) -> None:
    console.send(topic="zoomed")
    console.open("timeline?length=3600000&topic=zoomed")
    console.see(".caption", "in 1h from")
    page = console.browser.page
    page.execute_script(
        "const real = fetch, wait = new Promise((go) => addEventListener('keydown', () => setTimeout(go)));"
        " window.fetch = async (path, asked) => {"
        "  if (!path.includes('/timeline')) return real(path, asked);"
        "  if (window.waits) return new Promise(() => {});"
        "  window.waits = true;"
        "  const page = await (await real(path, asked)).json();"
        "  await wait;"
        "  return Response.json(page);"
        " }"
    )
    console.wait_for("window.waits")
    console.press("-")
    console.looks_again("/rates")
    console.see(".caption[aria-busy=true]", "in 1h from")


def test_a_message_is_found_shown_and_aborted(console: Console) -> None:
    sent = console.send(
        keys=HOSTILE.replace(" ", "_"), body=json.dumps({"order": 1, "note": HOSTILE}), tags="late"
    )
    console.open("messages")
    console.see("input[name=id]").send_keys(sent["msgId"], Keys.ENTER)
    console.click(".messages a", sent["msgId"])
    console.see("pre.body", '"order": 1')
    console.see("pre.body", HOSTILE)
    console.click(".presets button", "Hex")
    console.see("pre.body", "7b 22 6f 72 64 65 72")
    console.click("button.danger", "Abort")
    console.click("dialog button.danger", "Abort it")
    console.see(".notice", "aborted")
    console.wait_for("document.activeElement === document.querySelector('main')")  # not lost
    console.see(".history li.aborted", "aborted")
    assert console.api(f"/messages/{sent['offsetMsgId']}")["message"]["state"] == "aborted"
    console.open(f"messages?id={sent['msgId']}")
    console.see(
        ".empty", "With the state any, those that have fired or were aborted are found too."
    )


def test_blanks_around_what_is_pasted_do_not_count(console: Console) -> None:
    sent = console.send(topic="pasted")
    console.open("messages")
    for name in ("id", "topic"):
        text = {"id": sent["offsetMsgId"], "topic": "pasted"}[name]
        console.see(f"main input[name={name}]").send_keys(f" {text}  ", Keys.ENTER)
        console.see(".messages a", sent["msgId"])
    console.open("topics")
    console.see("main input[type=search]").send_keys("pasted ", Keys.ENTER)
    console.see("td", "pasted")
    console.open("timeline?length=3600000")
    console.see("main input[name=topic]").send_keys("pasted ", Keys.ENTER)
    console.see(".caption", "1 due")


def test_a_search_says_which_times_it_goes_by(console: Console) -> None:
    sent = console.send(topic="sought", tags="sought")
    console.api(f"/messages/{sent['offsetMsgId']}/abort", {})
    console.open("messages?topic=sought&begin=%2B20m&state=aborted")
    console.see(".empty", "No aborted messages.")
    console.see("form.search label", "Aborted from")
    console.see("form.search label", "Aborted before")
    console.see("main select[name=state]").send_keys("fired")
    console.see("form.search label", "Fired from")
    console.see("main input[name=key]").send_keys("k")
    console.see("form.search label", "Due from")
    console.open("messages?topic=sought&begin=-20m&state=aborted")
    console.see(".messages td", sent["msgId"])


def test_many_are_aborted_after_their_number_was_typed(console: Console) -> None:
    for number in range(3):
        console.send(topic="bulk", keys=f"k{number}")
    console.open("messages?topic=bulk")
    console.see(".messages td", "k2")
    console.click("button.danger", "Change all of these")
    console.see("dialog form input").send_keys("soon", Keys.ENTER)
    console.see("dialog [role=alert]", "'+10msoon' is not a time")
    console.browser.errors()  # Chromium notes the refused request
    console.click("dialog button", "Abort them")
    confirm = console.see("dialog button.danger", "Abort 3 messages")
    assert console.browser.page.find_element(By.CSS_SELECTOR, "dialog [role=alert]").text == ""
    assert not confirm.is_enabled()
    console.see("dialog input").send_keys("2")
    assert not confirm.is_enabled()
    console.see("dialog input").send_keys(Keys.BACKSPACE, "3")
    assert confirm.is_enabled()
    confirm.click()
    console.see("dialog [role=status]", "3 aborted")
    assert console.see("dialog progress").accessible_name == "Progress"
    console.see("dialog button.main", "Close")
    console.press(Keys.ENTER)
    console.see_rows("dialog", 0)
    console.see(".empty", "No pending messages.")
    assert console.focused == "Change all of these…"
    assert console.api("/messages?topic=bulk")["messages"] == []
    console.open("jobs")
    console.see("td", "abort: topic bulk")


def test_what_a_change_of_many_leaves_alone_is_told(console: Console) -> None:
    console.open("messages?tag=%25RETRY%25workers")
    console.see(".messages td", "%RETRY%workers")
    console.click("button.danger", "Change all of these")
    console.see("dialog p.dim", "Consumers' retries (%RETRY%…)")
    console.click("dialog button", "Abort them")
    console.see("dialog p", "There is no message to change with tag %RETRY%workers.")
    console.press(Keys.ESCAPE)
    console.open("messages?topic=%25RETRY%25workers")
    console.click("button.danger", "Change all of these")
    assert "retries" not in console.see("dialog p.dim").text
    console.click("dialog button", "Abort them")
    console.see("dialog button.danger", "Abort 1 message")


def test_a_preview_without_an_answer_raises_no_doubt(console: Console) -> None:
    """It changes nothing, whether the gateway made it or not."""
    console.send(topic="doubted")
    console.open("messages?topic=doubted")
    console.click("button.danger", "Change all of these")
    console.browser.page.execute_script(
        "const real = fetch; window.fetch = async (path, asked) =>"
        " path.endsWith('/bulk/preview') ? Promise.reject() : real(path, asked)"
    )
    console.click("dialog button", "Abort them")
    assert console.see("dialog [role=alert]", "gateway").text == "The gateway does not answer."


def test_of_a_job_that_is_not_known_any_more_no_final_number_is_told(console: Console) -> None:
    console.send(topic="restarted")
    console.open("messages?topic=restarted")
    console.click("button.danger", "Change all of these")
    console.click("dialog button", "Abort them")
    console.browser.page.execute_script(
        "const real = fetch; window.fetch = async (path, asked) => {"
        "  if (/bulk\\/\\d/.test(path))"
        "   return Response.json({status: 404, detail: 'there is no job 1'}, {status: 404});"
        "  const answer = await real(path, asked);"
        "  if (!path.endsWith('/bulk') || asked.method !== 'POST') return answer;"
        "  return Response.json({...await answer.json(), state: 'running', done: 0});"
        " }"
    )
    console.see("dialog input").send_keys("1")
    console.click("dialog button.danger", "Abort 1 message")
    console.see("dialog [role=alert]", "there is no job 1")
    console.see("dialog [role=status]", "0 aborted, when it was last heard of")
    console.click("dialog button.main", "Close")


def test_a_key_that_turns_text_around_leaves_the_question_readable(console: Console) -> None:
    key = "\N{RIGHT-TO-LEFT OVERRIDE}order"
    console.send(topic="turned", keys=key)
    console.open(f"messages?topic=turned&key={quote(key)}")
    console.click("button.danger", "Change all of these")
    console.click("dialog button", "Abort them")
    console.see("dialog p", "cannot be undone")
    places = console.browser.page.execute_script(
        "const text = document.querySelector('dialog p').lastChild, at = text.data.indexOf('will');"
        " return [at, at + 3].map((place) => {"
        "  const range = document.createRange();"
        "  range.setStart(text, place);"
        "  range.setEnd(text, place + 1);"
        "  return range.getBoundingClientRect().x;"
        " })"
    )
    assert places[0] < places[1]


def test_a_late_answer_is_not_taken_for_what_was_asked_for_last(console: Console) -> None:
    console.send(topic="raced")
    page = console.browser.page
    console.open("messages?topic=raced")
    console.click("button.danger", "Change all of these")
    late = (
        "const real = fetch; window.fetch = (path, asked) => path.includes(arguments[0]) ?"
        " new Promise((go) => { window.answer = () => real(path, asked).then(go); window.fetch = real; })"
        " : real(path, asked)"
    )
    page.execute_script(late, "/bulk/preview")
    console.click("dialog button.danger", "Abort them")
    console.click("dialog button", "Reschedule them")
    console.see("dialog", "will fire at +10m")
    page.execute_script("window.answer()")
    console.looks_again("/rates")
    console.see("dialog input").send_keys("1")
    console.click("dialog button.danger", "Reschedule 1 message")
    console.see("dialog [role=status]", "1 rescheduled")
    console.click("dialog button.main", "Close")
    assert len(console.api("/messages?topic=raced")["messages"]) == 1

    console.open("recurring")
    console.click("button.main", "New")
    page.execute_script(late, "/recurring-times")
    every = console.see("dialog input[name=every]")
    every.send_keys("2m")
    console.wait_for("window.answer")
    every.send_keys("x")
    console.see("dialog [role=status]", "2mx")
    page.execute_script("window.answer()")
    console.looks_again("/rates")
    console.see("dialog [role=status]", "2mx")
    console.browser.errors()  # Chromium notes the refused request


def test_one_and_many_are_given_another_time(console: Console) -> None:
    sent = console.send(topic="moved")
    console.open(f"message/{sent['offsetMsgId']}")
    console.click("button", "Reschedule…")
    console.see("dialog input").clear()
    console.see("dialog input").send_keys("+3h", Keys.ENTER)
    console.see(".history li.rescheduled", "; it was due 20")
    console.see(".headline", "due in 3h")
    console.open("messages?topic=moved")
    console.click("button.danger", "Change all of these")
    console.click("dialog form button", "Reschedule them")
    console.see("dialog button.danger", "Reschedule 1 message")
    told = console.see("dialog p", "will fire at +10m").text.partition(
        "Relative times count from "
    )[2]
    console.see("dialog input").send_keys("1")
    console.click("dialog button.danger", "Reschedule 1 message")
    console.see("dialog [role=status]", "1 rescheduled")
    console.click("dialog button.main", "Close")
    (moved,) = console.api("/messages?topic=moved")["messages"]
    assert moved["dueMs"] < moved["dueBeforeMs"], "ten minutes from now is before three hours"
    since_ms = parse_moment(told.removesuffix(".").replace(" ", "T"), 0)
    assert (
        abs(moved["dueMs"] - since_ms - 600_000) < 2_000
    )  # from the preview on, not from its start
    console.open("messages?topic=moved&end=2099-01-01")
    console.click("button.danger", "Change all of these")
    console.click("dialog button", "Abort them")
    assert "Relative" not in console.see("dialog p", "cannot be undone").text


def test_a_topic_rests_and_goes_on(console: Console) -> None:
    console.send(topic="resting")
    console.open("topics?contains=resting")
    console.see("td button", "pause")
    # Nothing looks again by itself: the click must do it.
    console.browser.page.execute_script(
        "window.hurry = undefined; for (let timer = 0; timer < 1_000; timer++) clearTimeout(timer);"
        " window.setTimeout = () => 0"
    )
    console.click("td button", "pause")
    console.see("td .state", "paused")
    late = console.send(topic="resting")
    console.api(f"/messages/{late['offsetMsgId']}/reschedule", {"at": "now"})
    console.open("messages?topic=resting")
    console.see(".messages td .state", "topic paused")
    console.open(f"message/{late['offsetMsgId']}")
    console.see(".headline .state", "topic paused")
    assert "will be due" not in console.see(".history", "due").text
    console.open("topics?contains=resting")
    console.click("td button", "resume")
    console.see("td button", "pause")
    (row,) = console.api("/topics?contains=resting")["topics"]
    assert row["pause"] is None or row["pause"]["resumed"]


def test_a_message_is_sent_by_hand(console: Console) -> None:
    console.open()
    console.see(".caption", "due")
    console.press("s")
    console.press("by-hand")
    console.see("dialog input[name=at]").clear()
    console.see("dialog input[name=at]").send_keys("soon")
    console.click("dialog button.main", "Send")
    console.see("dialog .bad-text", "not a time")
    console.see("dialog input[name=at]").clear()
    console.see("dialog input[name=at]").send_keys("+1h")
    console.browser.page.execute_script(
        "const send = document.querySelector('dialog button.main'); send.click(); send.click()"
    )
    console.see(".facts", "by-hand")
    console.browser.errors()  # Chromium notes the refused request
    assert len(console.api("/messages?topic=by-hand")["messages"]) == 1


def test_a_send_without_an_answer_is_not_told_as_one_that_failed(console: Console) -> None:
    console.open("topics")
    console.see("td", "consumed")
    console.press("s")
    for answer in ("Promise.reject()", "new Response('{')"):
        console.browser.page.execute_script(
            "const real = window.real ??= fetch;"
            " window.fetch = async (path, asked) => {"
            "  const answer = await real(path, asked);"
            f"  return asked.method === 'POST' ? {answer} : answer;"
            " }"
        )
        console.see("dialog input[name=topic]").clear()
        console.see("dialog input[name=topic]").send_keys("answer-lost", Keys.ENTER)
        console.see("dialog [role=alert]", "Perhaps it did this all the same")
        console.see("dialog button.main:not([disabled])").send_keys("")
        console.browser.page.execute_script(
            "document.querySelector('dialog [role=alert]').textContent = ''"
        )
    assert len(console.api("/messages?topic=answer-lost")["messages"]) == 2


@pytest.mark.parametrize("page", ["<html>", '{"message": "Bad Gateway"}'])
def test_an_error_of_a_proxy_is_told(console: Console, page: str) -> None:
    console.open("topics")
    console.see("td", "consumed")
    console.press("s")
    console.see("dialog input[name=topic]").send_keys("proxied")
    console.browser.page.execute_script(
        "const [page] = arguments; window.fetch = async () => new Response(page, {status: 502})",
        page,
    )
    console.click("dialog button.main", "Send")
    console.see("dialog [role=alert]", "Perhaps it did this all the same")
    console.see("#pulse", "Status 502, which seems to be the answer of a proxy")


def test_a_late_answer_to_a_send_leads_nobody_away(console: Console) -> None:
    console.open("topics")
    console.see("td", "consumed")
    console.press("s")
    console.browser.page.execute_script(
        "const real = fetch; const wait = new Promise((go) => { window.go = go; });"
        " window.fetch = async (path, asked) => {"
        "  const answer = await real(path, asked);"
        "  if (asked.method === 'POST') await wait;"
        "  return answer;"
        " }"
    )
    console.see("dialog input[name=topic]").send_keys("sent-late", Keys.ENTER)
    console.see("dialog button.main[disabled]")
    console.click("dialog button[aria-label=Close]")
    console.click("nav [data-view=groups]")
    console.see("summary", "workers")
    console.browser.page.execute_script("window.go()")
    console.see(".notice", "Sent to sent-late")
    assert console.location == "/groups"


def test_a_message_recurs_rests_and_is_forgotten(console: Console) -> None:
    console.open("recurring")
    console.click("button.main", "New")
    for name, text in (("topic", "reports"), ("name", "nightly"), ("cron", "0 5 * * MON-FRI")):
        console.see(f"dialog input[name={name}]").send_keys(text)
    console.see("dialog [role=status]", "Next: ")
    console.click("dialog button.main", "Set")
    console.see("td", "0 5 * * MON-FRI")
    console.click("td button", "pause")
    console.see("td .state", "paused")
    console.click("td button.link", "nightly")
    console.see("dialog .times li")
    console.looks_again("/recurring?")  # its row behind the dialog is drawn again
    console.press(Keys.ESCAPE)
    WebDriverWait(console.browser.page, LIMIT_S, 0.05).until(
        lambda _: console.focused == "nightly", "the focus is elsewhere"
    )
    console.press(Keys.ENTER)
    console.see("dialog .times li")
    console.see("dialog pre", "hello")
    ActionChains(console.browser.page).double_click(
        console.see("dialog button.danger", "Delete…")
    ).perform()
    console.see("dialog", "cannot be undone")
    assert len(console.api("/recurring")["recurring"]) == 1
    console.click("dialog button.danger", "Delete it")
    console.see(".empty", "No recurring messages, or none that you may see.")
    assert console.api("/recurring")["recurring"] == []


def test_when_a_message_recurs_is_told_and_bounded(console: Console) -> None:
    """5:00 in Tokyo is 20:00 of the day before in UTC."""
    with console.in_zone("UTC"):
        console.api("/recurring/bounded/pulse", {"every": "2m", "body": "x"}, method="PUT")
        console.open("recurring")
        console.click("td button.link", "pulse")
        assert console.see("dialog p.mono").text == "every 2m"
        console.press(Keys.ESCAPE)
        console.click("button.main", "New")
        given = {"topic": "bounded", "name": "early", "cron": "0 5 * * MON", "zone": "Asia/Tokyo"}
        times = {"start": "2030-01-29 12:00", "end": "2030-02-12"}
        for name, text in (given | times).items():
            console.see(f"dialog input[name={name}]").send_keys(text)
        told = "2030-02-03 20:00:00.000 (Mon 05:00:00 in Asia/Tokyo)"
        console.see("dialog [role=status]", told)
        console.see("dialog select[name=misfire]").send_keys("DO_")
        console.click("dialog button.main", "Set")
        console.click("td button.link", "early")
        console.see("dialog .times li", told)
        one = console.api("/recurring/bounded/early")["recurring"]
        assert one["misfire"] == "DO_NOTHING"
        assert (one["startMs"], one["endMs"]) == (
            parse_moment("2030-01-29T12:00Z", 0),
            parse_moment("2030-02-12T00:00Z", 0),
        )
        console.click("dialog button", "Change")
        assert (
            console.see("dialog input[name=start]").get_attribute("value")
            == "2030-01-29 12:00:00.000"
        )
        console.see("dialog input[name=end]").clear()
        console.click("dialog button.main", "Replace")
        console.see(".notice", "replaced")
        one = console.api("/recurring/bounded/early")["recurring"]
        assert (one["misfire"], one["startMs"] > 0, one["endMs"]) == ("DO_NOTHING", True, None)


def test_the_times_of_a_rule_that_stays_go_on(console: Console) -> None:
    console.api("/recurring/going-on/weekly", {"every": "7d", "body": "x"}, method="PUT")
    next_ms = console.api("/recurring/going-on/weekly")["times"][0]
    with console.in_zone("UTC"):
        console.open("recurring")
        console.click("td button.link", "weekly")
        shown = console.see("dialog .times li").text
        assert parse_moment(shown.replace(" ", "T") + "Z", 0) == next_ms
        console.click("dialog button", "Change")
        console.see("dialog [role=status]", f"Next: {shown},")
        console.see("dialog input[name=every]").send_keys(Keys.BACKSPACE, "h")
        console.wait_for(
            f"!document.querySelector('dialog [role=status]').textContent.includes('{shown}')"
        )
        console.see("dialog input[name=every]").send_keys(Keys.BACKSPACE, "d")
        console.see("dialog [role=status]", f"Next: {shown},")


def test_a_count_that_is_no_number_is_not_sent_as_another_one(console: Console) -> None:
    console.open("recurring")
    console.click("button.main", "New")
    for name, text in {"topic": "counted", "name": "ten", "every": "2m", "count": "ten"}.items():
        console.see(f"dialog input[name={name}]").send_keys(text)
    console.click("dialog button.main", "Set")
    console.see("dialog input[name=count]:invalid")
    console.see("dialog input[name=count]").clear()
    console.see("dialog input[name=count]").send_keys(" 10 ")
    console.click("dialog button.main", "Set")
    console.see("td", "0 of 10")


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [(b"one\r\ntwo", 0), (b"\xef\xbb\xbfmark", 0), (b"\xff\x00", 0), (b"packed", 1)],
)
def test_what_is_not_changed_of_a_recurring_message_stays(
    console: Console, body: bytes, sys_flag: int
) -> None:
    times = {"every": "2m", "start": "2030-01-31T00:00:00Z", "end": "2030-02-01T00:00:00Z"}
    kept = {"body": base64.b64encode(body).decode(), "queue": 5, "flag": 7, "sysFlag": sys_flag}
    console.api(
        "/recurring/kept/one", {**times, **kept, "encoding": "base64", "tags": "t"}, method="PUT"
    )
    console.open("recurring")
    console.click("td button.link", "one")
    console.click("dialog button", "Change")
    console.see("dialog input[name=tags]").send_keys("u")
    console.see("dialog [role=status]", "2030-01-31")
    console.click("dialog button.main", "Replace")
    console.see(".notice", "updated")
    one = console.api("/recurring/kept/one")["recurring"]
    assert one["tags"] == "tu"
    assert (one["startMs"], one["endMs"]) == (1_896_048_000_000, 1_896_134_400_000)
    assert kept == {
        "queue": one["queueId"],
        **{name: one[name] for name in kept if name != "queue"},
    }


def test_json_is_shown_as_it_is_written(console: Console) -> None:
    body = '{"id":1234567890123456789, "price" : 1.50,"2":[],"1":{}, "a":"x, {y}: \\"z", "a":[1,{"b":null}]}'
    sent = console.send(body=body)
    console.open(f"message/{sent['offsetMsgId']}")
    assert console.see("pre.body").text.splitlines() == [
        "{",
        '  "id": 1234567890123456789,',
        '  "price": 1.50,',
        '  "2": [],',
        '  "1": {},',
        '  "a": "x, {y}: \\"z",',
        '  "a": [',
        "    1,",
        "    {",
        '      "b": null',
        "    }",
        "  ]",
        "}",
    ]


def test_a_message_whose_sender_wrote_no_time_is_shown(console: Console) -> None:
    (one,) = console.api("/messages?topic=born-never")["messages"]
    console.open(f"message/{one['offsetMsgId']}")
    console.see(".history", "sent by its client")


def test_a_time_without_a_zone_is_of_the_browser(console: Console) -> None:
    tokyo = timezone(timedelta(hours=9))
    day = datetime.now(tokyo).date() + timedelta(days=2)
    due_ms = int(datetime.combine(day, time(9, 30), tokyo).timestamp() * 1_000)
    page = console.browser.page
    with console.in_zone("Asia/Tokyo"):
        console.open("topics")
        console.press("s")
        console.see("dialog input[name=topic]").send_keys("zoned")
        console.see("dialog input[name=at]").clear()
        console.see("dialog input[name=at]").send_keys(f"{day} 09:30", Keys.ENTER)
        console.see(".history", f"{day} 09:30:00.000")
        (one,) = console.api("/messages?topic=zoned")["messages"]
        assert one["dueMs"] == due_ms
        console.open(f"messages?topic=zoned&begin={day}T09:30&end={day}T09:31")
        console.see(".messages td", "zoned")
        console.click("button.danger", "Change all of these")
        console.see("dialog", f"due from {day} 09:30:00.000")
        console.see("dialog form input").clear()
        console.see("dialog form input").send_keys(f"{day}T10", Keys.ENTER)
        console.see("dialog", f"will fire at {day} 10:00:00.000")
        console.see("dialog input").send_keys("1")
        console.click("dialog button.danger", "Reschedule 1 message")
        console.see("dialog [role=status]", "1 rescheduled")
        (one,) = console.api("/messages?topic=zoned")["messages"]
        assert one["dueMs"] == due_ms + 1_800_000
        console.open("messages")
        console.see("main input[name=topic]").send_keys("zoned")
        console.see("main input[name=begin]").send_keys(f"{day} 10:00")
        console.see("main input[name=end]").send_keys("+9d", Keys.ENTER)
        console.see(".messages td", "zoned")
        # The address means the same time wherever it is opened.
        console.set_zone("Pacific/Kiritimati")
        page.refresh()
        console.see(".messages td", f"{day} 15:00")
        begin = console.see("main input[name=begin]")
        assert begin.get_attribute("value") == f"{day} 15:00:00.000"
        assert console.see("main input[name=end]").get_attribute("value") == "+9d"
        begin.send_keys(Keys.ENTER)
        console.see(".messages td", f"{day} 15:00")
        console.open("recurring")
        console.click("button.main", "New")
        zone = console.see("dialog input[name=zone]").get_attribute("placeholder")
        assert zone == "UTC", "that is what times of a rule without one are in"


@pytest.mark.parametrize(
    "text",
    [
        "2031-02-01 09:30:00,000",
        "2031-02-01T0930",
        "20310201T093000",
        "2031-02-01t09:30",
        " 2031-02-01_09:30:00.0 ",
    ],
)
def test_a_time_without_a_zone_is_of_the_browser_however_it_is_written(
    console: Console, text: str
) -> None:
    page = console.browser.page
    with console.in_zone("Asia/Tokyo"):
        console.open("topics")
        read = page.execute_async_script(
            "const [text, done] = arguments;"
            " import('/console/format.js').then(({ typedTime }) => done(typedTime(text)))",
            text,
        )
    assert read == parse_moment(text, 0, timezone(timedelta(hours=9)))


def test_hours_are_those_on_the_wall_beyond_a_change_of_clocks(console: Console) -> None:
    page = console.browser.page
    with console.in_zone("Europe/Berlin"):
        begin_ms, end_ms = (
            int(datetime(2027, 3, day, tzinfo=UTC).timestamp() * 1_000) for day in (26, 30)
        )
        console.open(f"timeline?from={begin_ms}&to={end_ms}")
        console.see(".caption", "in 4d from 2027-03-26 01:00")
        labels = page.execute_script(
            "return [...document.querySelectorAll('.axis .grid + text')].map((one) => one.textContent)"
        )
        assert labels[:7] == ["12:00", "27 Mar", "12:00", "28 Mar", "12:00", "29 Mar", "12:00"]


def test_days_begin_at_midnight_after_one_that_began_an_hour_later(console: Console) -> None:
    page = console.browser.page
    with console.in_zone("America/Santiago"):
        console.open("topics")
        # On 6 September 2026 clocks go from 0:00 to 1:00 in Chile.
        begin_ms = int(datetime(2026, 9, 4, tzinfo=UTC).timestamp() * 1_000)
        hours = page.execute_async_script(
            "const [begin, done] = arguments;"
            " import('/console/span.js').then(({ Span }) => done("
            "  new Span(begin, begin + 5 * 86_400_000).ticks(5).times.map((time) => new Date(time).getHours())))",
            begin_ms,
        )
    assert hours == [0, 0, 1, 0, 0]


def test_a_day_that_no_month_has_is_refused(console: Console) -> None:
    console.open("topics")
    console.press("s")
    console.see("dialog input[name=topic]").send_keys("never")
    console.see("dialog input[name=at]").clear()
    console.see("dialog input[name=at]").send_keys("2031-02-31 09:30", Keys.ENTER)
    console.see("dialog [role=alert]", "'2031-02-31 09:30' is not a time")
    (refused,) = console.browser.errors()
    assert "status of 400" in refused


def test_enter_is_for_what_has_the_focus(console: Console) -> None:
    console.open("timeline?length=3600000")
    console.see(".caption", "in 1h from")
    console.see(".presets button", "10m").send_keys(Keys.ENTER)
    console.see(".caption", "in 10m from")
    console.see("nav [data-view=topics]").send_keys(Keys.ENTER)
    console.see("nav [data-view=topics][aria-current]")


def test_what_is_asked_for_stays_when_the_timeline_is_looked_at_again(console: Console) -> None:
    for _ in range(60):
        console.send(topic="many")
    console.open("timeline?length=3600000&topic=many")
    console.see(".caption", "60 due")
    console.see(".messages td", "many")
    console.click("button.more")
    console.see_rows(".messages tbody tr", 60)
    begin = console.see("input[aria-label=From]")
    begin.send_keys("01312030")
    typed = begin.get_attribute("value")
    console.see("button", "Change all of these").send_keys("")  # takes the focus
    console.looks_again("/timeline")
    console.see_rows(".messages tbody tr", 60)
    assert begin.get_attribute("value") == typed
    assert typed is not None
    assert typed.startswith("2030-01-31")
    assert "Change all" in console.focused


def test_more_is_shown_while_the_list_is_looked_at_again(console: Console) -> None:
    for _ in range(60):
        console.send(topic="more")
    console.open("timeline?length=3600000&topic=more")
    console.see_rows(".messages tbody tr", 50)
    page = console.browser.page
    page.execute_script(
        "const real = fetch; const wait = new Promise((go) => { window.go = go; });"
        " window.fetch = async (path, asked) => {"
        "  if (path.includes('/messages') && !path.includes('cursor=')) {"
        "   window.waits = true;"
        "   await wait;"
        "  }"
        "  return real(path, asked);"
        " }"
    )
    console.wait_for("window.waits")
    console.click("button.more")
    console.see_rows(".messages tbody tr", 60)
    page.execute_script("window.go()")
    console.looks_again("/timeline")
    console.see_rows(".messages tbody tr", 60)


def test_a_list_keeps_the_focus_and_comes_back_after_an_error(console: Console) -> None:
    console.send(topic="focused")
    console.open("topics?contains=focused")
    console.see("td button", "pause").send_keys("")
    console.looks_again("/topics")
    assert console.focused == "pause"
    console.browser.page.execute_script(
        "window.real = fetch; window.fetch = () => Promise.reject()"
    )
    console.see("td.bad-text", "does not answer")
    console.browser.page.execute_script("window.fetch = async () => new Response('{')")
    console.see("td.bad-text", "broke off")
    console.browser.page.execute_script("window.fetch = window.real")
    console.see("td button", "pause")


@pytest.mark.parametrize(
    ("view", "cell", "path"),
    [
        ("timeline?length=3600000", ".messages tbody td", "/timeline"),
        ("topics", "tbody td", "/topics"),
    ],
)
def test_what_is_selected_to_be_copied_stays_when_a_list_is_looked_at_again(
    console: Console, view: str, cell: str, path: str
) -> None:
    console.send(topic="copied")
    console.open(view)
    console.see(cell)
    page = console.browser.page
    page.execute_script(
        "performance.now = () => 0; window.cell ="
        " document.querySelector(arguments[0]); getSelection().selectAllChildren(cell)",
        cell,
    )
    console.looks_again(path)
    assert page.execute_script("return cell.isConnected")
    page.execute_script("performance.now = () => 11_000")  # whoever copies has done so by now
    console.looks_again(path)
    assert not page.execute_script("return cell.isConnected")


def test_a_list_is_not_redrawn_below_a_pressed_button(console: Console) -> None:
    console.send(topic="pressed")
    console.open("topics?contains=pressed")
    console.browser.page.execute_script("performance.now = () => 0")
    ActionChains(console.browser.page).click_and_hold(console.see("td button", "pause")).perform()
    console.looks_again("/topics")
    ActionChains(console.browser.page).release().perform()
    console.see(".notice", "pressed is paused")
    console.see("td button", "resume")


def test_of_a_group_no_more_is_drawn_than_is_shown(console: Console) -> None:
    console.open("groups")
    console.see("summary", "workers")
    page = console.browser.page
    assert not page.find_elements(By.CSS_SELECTOR, "details table")
    console.see("summary", "workers").send_keys(Keys.ENTER * 3)
    console.see("details td", "consumed")
    assert len(page.find_elements(By.CSS_SELECTOR, "details table")) == 1
    console.looks_again("/groups")
    console.see("details[open] td", "consumed")
    assert console.focused.startswith("workers")


def test_the_focus_stays_in_its_group_when_others_have_the_same_topic(console: Console) -> None:
    console.open("groups")
    page = console.browser.page
    for group in ("wwww", "workers"):
        console.click("summary", group)
    console.see_rows("details a", 2)
    page.execute_script("[...document.querySelectorAll('details a')].at(-1).focus()")
    console.looks_again("/groups")
    assert page.execute_script(
        "return document.activeElement === [...document.querySelectorAll('details a')].at(-1)"
    )


@pytest.mark.parametrize(
    ("view", "words"),
    [("topics", "No topic's name"), ("groups", "No consumer group's name")],
)
def test_a_name_that_nothing_has_is_told_of(console: Console, view: str, words: str) -> None:
    console.open(f"{view}?contains=nowhere")
    console.see(".empty", words)


def test_that_there_are_more_groups_is_told_above_the_first_thousand(console: Console) -> None:
    console.open("topics")
    console.see("td", "consumed")
    console.browser.page.execute_script(
        "const real = fetch, groups = Array.from({length: 1000}, (_, number) =>"
        "  ({name: `group-${number}`, lag: number, members: [], topics: []}));"
        " const queues = [['a', 0], ['a', 1], ['b', 0]].map(([broker, queue]) => ({broker, queue, lag: 0}));"
        " groups[0].topics = [{topic: 'shared', lag: 0, queues}];"
        " window.fetch = (path, asked) => path.includes('/groups') ?"
        "  Response.json({groups, cursor: 'more'}) : real(path, asked);"
        " location.hash = '#/groups'"
    )
    console.see("main .empty:first-child", "Only the first 1,000 by name")
    console.see("main .empty + details", "group-999")
    console.see("main details:last-child", "0 behind")
    console.click("main details:last-child summary")
    console.see("main details:last-child td", "a 0: 0 · 1: 0 · b 0: 0")


def test_keys_lead_to_every_view(console: Console) -> None:
    console.open()
    for key, view in (
        ("m", "messages"),
        ("o", "topics"),
        ("g", "groups"),
        ("r", "recurring"),
        ("b", "jobs"),
    ):
        console.browser.page.execute_script("document.activeElement.blur()")
        console.press(key)
        console.see(f"nav [data-view={view}][aria-current]")
    console.browser.page.execute_script("document.activeElement.blur()")
    console.press("?")
    console.see("dialog kbd", "s")
    console.press(Keys.ESCAPE)


def test_the_link_to_the_content_leads_to_no_other_view(console: Console) -> None:
    console.open("topics")
    console.see("td", "consumed")
    console.press(Keys.TAB, Keys.ENTER)
    assert console.location == "/topics"
    console.see("nav [data-view=topics][aria-current]")
    console.press(Keys.TAB)
    assert console.browser.page.execute_script("return document.activeElement.name") == "contains"


def test_the_port_speaks_tls_when_told_to(tmp_path: Path) -> None:
    authority = Authority()
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    issued = authority.issue(tmp_path, "gateway")
    flags = (
        *("--http", "127.0.0.1:0", "--http-tls", "--tls-certificate", str(issued.certificate)),
        *("--tls-key", str(issued.key)),
    )
    with GatewayProcess(tmp_path / "data", *flags) as process:
        address = console_of(process, "https")
        trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with urllib.request.urlopen(
            f"{address}api/v1/status", timeout=180, context=trust
        ) as answer:
            assert json.load(answer)["broker"] == "broker-a"
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(address.replace("https", "http"), timeout=180)


def test_a_token_is_asked_for(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    flags = ("--http", "127.0.0.1:0", "--http-token-file", str(tmp_path / "token"))
    with GatewayProcess(tmp_path / "data", *flags) as process:
        console = Console(browser, console_of(process))
        console.open()
        console.see("dialog", "the file that http_token_file names")
        console.press(Keys.ESCAPE)
        console.see("#pulse", "You are not logged in")
        browser.errors()
        WebDriverWait(browser.page, LIMIT_S).until(
            lambda _: any("/rates" in error for error in browser.errors()), "it asks no more"
        )
        assert not browser.page.find_elements(By.CSS_SELECTOR, "dialog")
        browser.page.refresh()
        field = console.see("dialog input")
        field.send_keys("a-token-with-an-\u20ac", Keys.ENTER)  # the browser cannot send this
        assert browser.page.execute_script("return arguments[0].validity.patternMismatch", field)
        field.clear()
        field.send_keys("a-wrong-token-for-it", Keys.ENTER)
        console.see(
            "dialog [role=alert]",
            "Wrong, or no longer valid: the token of http_token_file is wrong.",
        )
        console.see("dialog input").send_keys(TOKEN, Keys.ENTER)
        console.see(".caption", "0 due")
        # A request that was sent with the old token while the user typed the new one is sent again.
        browser.page.execute_script(
            "const key = 'tidegate-credentials', right = sessionStorage.getItem(key), real = fetch;"
            "sessionStorage.setItem(key, 'Bearer old');"
            "window.fetch = async (...asked) => { window.fetch = real; const answer = await real(...asked);"
            " sessionStorage.setItem(key, right); window.late = answer.status; return answer; }"
        )
        console.wait_for("window.late === 401")
        console.looks_again("/rates")
        assert not browser.page.find_elements(By.CSS_SELECTOR, "dialog")
        browser.errors()  # Chromium notes each 401
