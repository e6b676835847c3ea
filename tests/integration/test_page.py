"""The live page in a real browser: what a person sees while replicas die, and what a screen reader and a phone get."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from deploy.status_view import StatusUnavailable, fetch_status
from deploy.top import StatusReader
from state_store.memory import MemoryStateStore
from state_store.records import REPLICAS, ReplicaRecord
from tests.integration.client import Question, ask
from tests.integration.conftest import Engines
from tests.integration.rig import BRISK, PATIENT, Json, RunningGateway, canned, serving, tier
from tests.integration.stranger import from_afar
from tests.needs import need
from tests.rig import EngineProcess, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
OFTEN: Json = {"interval_s": 0.3, "timeout_s": 0.5, "down_after": 2, "up_after": 2}
WITHIN_S = 20.0


class Browser:
    """One Chromium. Its driver blocks, so it is asked from threads."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    async def open(self, url: str, width: int = 1366, height: int = 768, scheme: str = "light") -> None:
        """Loads a page on a screen of this size, with this colour scheme."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.devtools("Emulation.setDeviceMetricsOverride", screen)
        await self.devtools("Emulation.setEmulatedMedia", {"features": features})
        await asyncio.to_thread(self._driver.get_log, "browser")
        await asyncio.to_thread(self._driver.get, url)

    async def devtools(self, command: str, arguments: Json) -> None:
        await asyncio.to_thread(self._driver.execute_cdp_cmd, command, arguments)

    async def js(self, script: str, *arguments: object) -> Any:
        """What a function body returns in the page."""
        return await asyncio.to_thread(self._driver.execute_script, script, *arguments)

    async def text(self, selector: str) -> str:
        """The visible text of the first element that the selector finds; empty when there is none."""
        found = await self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return " ".join(str(found).split())

    async def shows(self, selector: str, wanted: str, within_s: float = WITHIN_S) -> None:
        """Returns once the element contains the text."""
        seen = ""

        async def is_there() -> bool:
            nonlocal seen
            seen = await self.text(selector)
            return wanted in seen

        try:
            await eventually(is_there, within_s)
        except TimeoutError:
            pytest.fail(f"{selector} shows {seen!r}, and {wanted!r} not within {within_s} s")

    async def titled(self, wanted: str) -> None:
        """Returns once the tab is called that."""

        async def is_called_that() -> bool:
            return bool(await self.js("return document.title") == wanted)

        await eventually(is_called_that, WITHIN_S)

    async def complaints(self) -> list[str]:
        """What the console holds since the page was opened."""
        return [e["message"] for e in await asyncio.to_thread(self._driver.get_log, "browser")]

    async def screenshot(self, path: Path) -> None:
        await asyncio.to_thread(self._driver.save_screenshot, str(path))


@pytest.fixture(scope="session")
def _driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = need("chromium", "chromium chromium-driver")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(need("chromedriver", "chromium-driver")))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def browser(_driver: webdriver.Chrome) -> Browser:
    return Browser(_driver)


def ladder(engines: Engines) -> list[Json]:
    primary = tier("primary", *engines.primary, slo=BRISK, quality=1.0)
    return [primary, tier("small", engines.small, quality=0.6), canned()]


@asynccontextmanager
async def asking(gateway: RunningGateway) -> AsyncIterator[None]:
    """Three clients that ask all the time."""

    async def ask_on() -> None:
        while True:
            await ask(gateway.url, Question("chat", True, 20))

    clients = [asyncio.create_task(ask_on()) for _ in range(3)]
    try:
        yield
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def test_killed_replicas_are_seen_within_five_seconds(
    engines: Engines, config: Path, browser: Browser, tmp_path: Path
) -> None:
    """Which tier serves, why, and what it costs; then that it is over."""
    async with serving(config, *ladder(engines), health=OFTEN) as gateway, asking(gateway):
        await browser.open(gateway.url)
        await browser.shows("#now", "OK chat is served by primary.")
        await browser.shows("#models dl", "Refused, last min none")
        await engines.a.kill()
        await browser.shows(
            "#now",
            "Reduced chat is served by primary; of its 2 replicas 1 is down (connection refused) since",
        )
        at = time.monotonic()
        await engines.b.kill()
        await browser.shows(
            "#now", "chat is served by small because both primary replicas are down (connection refused)"
        )
        await browser.shows("#now", "Mean quality 0.")
        assert time.monotonic() - at < WITHIN_S
        await browser.screenshot(tmp_path / "degraded.png")
        assert "since" in await browser.text("#now .text")
        await browser.shows("#models tbody:nth-of-type(1)", "primary can't serve")
        await browser.shows("#models tbody:nth-of-type(1)", "down (connection refused)")
        await browser.shows("#models tbody:nth-of-type(2)", "ready")
        await browser.shows("#events", "chat is served by small because both primary replicas are down")
        await browser.shows("#say", "Degraded: chat is served by small because")
        assert await browser.js("return document.title") == "▲ chat degraded · Graceway"
        assert await browser.js("return document.querySelectorAll('svg.shares .t1').length") >= 1
        for engine in engines.primary:
            await engine.restart()
        await browser.shows("#now", "OK chat is served by primary.", 60.0)
        await browser.shows("#events", "chat is no longer degraded, after")
        assert await browser.js("return document.title") == "Graceway"
        assert await browser.complaints() == []


async def test_what_is_left_out_and_what_it_costs_are_seen(
    engines: Engines, config: Path, browser: Browser
) -> None:
    await engines.a.kill()
    paid = {"price": {"prompt": 0, "answer": 1e6}, "budget": {"amount": 100}, "gives_up": {"max_tokens": 60}}
    async with serving(config, tier("primary", engines.a), tier("small", engines.small, **paid)) as gateway:
        await browser.open(gateway.url)
        await browser.shows("#models", "100 of 100 left for this day")
        assert (await ask(gateway.url, Question(tokens=80))).status == 200
        await browser.shows("#models", "max_tokens 1")
        await browser.shows("#models", "40 of 100 left for this day")
        assert (await ask(gateway.url, Question(tokens=40))).status == 200
        await browser.shows("#models", "spent; more in")
        await browser.shows("#now", "the small replica is out of money")


async def test_a_refused_config_and_what_waits_for_a_restart_are_seen(config: Path, browser: Browser) -> None:
    async with serving(config, canned()) as gateway:
        await browser.open(gateway.url)
        await browser.shows("#now", "OK chat is served by canned.")
        good = config.read_text()
        config.write_text(good[:-1] + ', "log": {"level": "debug"}}')
        assert (await gateway.post("/admin/reload"))[0] == 200
        await browser.shows("#system", "Config keys that wait for a restart log.level")
        config.write_text(good[:-1] + ', "nonsense": 1}')
        assert (await gateway.post("/admin/reload"))[0] == 400
        await browser.shows("#now", f"Config The file's config is refused ({config.name}:1) since")
        assert await gateway.metric("graceway_config_refused") == 1
        assert await gateway.metric("graceway_config_needs_restart") == 1
        config.write_text(good)
        assert (await gateway.post("/admin/reload"))[0] == 200

        async def is_gone() -> bool:
            return "Config" not in await browser.text("#now") + await browser.text("#system")

        await eventually(is_gone, WITHIN_S)
        assert await gateway.metric("graceway_config_refused") == 0


async def test_a_pin_is_seen_though_nobody_asks(engines: Engines, config: Path, browser: Browser) -> None:
    """What is pinned, and for how long yet; then that it has ended."""
    async with serving(config, *ladder(engines), health=OFTEN) as gateway:
        await browser.open(gateway.url)
        await browser.shows("#now", "OK chat is served by primary.")
        await gateway.post("/admin/pin", body={"model": "chat", "tier": "small", "for_s": 1800})
        await browser.shows(
            "#now", "Degraded chat is served by small because an operator pinned a lower tier since"
        )
        await browser.shows(
            "#models tbody:nth-of-type(1)",
            "may have 0 % of its traffic (pinned by an operator, for 29 min more)",
        )
        await gateway.post("/admin/pin", body={"model": "chat", "tier": "primary", "share": 0.5})
        await gateway.post("/admin/pin", body={"model": "chat"})
        await browser.shows("#now", "OK chat is served by primary.")


async def test_refusals_are_seen(engines: Engines, config: Path, browser: Browser) -> None:
    await engines.a.kill()
    await engines.b.kill()
    async with serving(config, tier("primary", *engines.primary), health=OFTEN) as gateway:
        await browser.open(gateway.url)
        await browser.shows(
            "#now", "Down chat can't be served: both primary replicas are down (connection refused)"
        )
        await ask(gateway.url, Question(tokens=5))
        await browser.shows("#now", "1 request refused in the last 10 s (no replica could serve 1)")
        await browser.shows("#models", "Refused, last min no replica could serve 1")
        await browser.shows("#models .key", "refused 100 %")
        await engines.a.restart()
        await browser.shows("#now", "chat is served by primary", 30.0)
        assert (await ask(gateway.url, Question(tokens=5))).status == 200
        # Of the last minute's requests, as of the hour's.
        await browser.shows("#models tbody:nth-of-type(1)", "50 % of the last minute · 50 % of the last hour")


async def test_names_from_the_fleet_are_text(engines: Engines, config: Path, browser: Browser) -> None:
    """A model, a zone and a reason that are HTML stay what they are."""
    hostile = "<img src=x onerror='window.hurt=1'><b>x</b>"
    tiers = [tier("primary", engines.a), canned()]
    tiers[0]["replicas"][0]["zone"] = hostile
    async with serving(config, models={hostile: tiers}, health=OFTEN, routing={"zone": ""}) as gateway:
        await browser.open(gateway.url)
        await browser.shows("#now", f"{hostile} is served by primary.")
        await browser.shows("#models h2", hostile)
        await browser.shows("#models .replica", f"zone {hostile}")
        await engines.a.fault("error", status=500)
        await browser.shows("#events", f"({hostile}, primary) is down")
        assert await browser.js("return document.querySelectorAll('img, main b:not(th b)').length") == 0
        assert await browser.js("return window.hurt ?? null") is None
        assert await browser.complaints() == []


async def test_no_script_but_its_own_runs(engines: Engines, config: Path, browser: Browser) -> None:
    async with serving(config, *ladder(engines), health=OFTEN) as gateway:
        await browser.open(gateway.url)
        await browser.shows("#now", "chat")
        await browser.js(
            "const s = document.createElement('script'); s.textContent = 'window.hurt = 1'; document.body.append(s);"
            "const d = document.createElement('div'); d.setAttribute('onclick', 'window.hurt = 1');"
            "document.body.append(d); d.click();"
        )
        assert await browser.js("return window.hurt ?? null") is None
        refused = await browser.complaints()
        assert len(refused) == 2
        assert all("Content Security Policy" in message for message in refused)


@asynccontextmanager
async def offline(browser: Browser) -> AsyncIterator[None]:
    """The browser reaches nothing meanwhile."""
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    await browser.devtools("Network.enable", {})
    await browser.devtools("Network.emulateNetworkConditions", {"offline": True, **network})
    try:
        yield
    finally:
        await browser.devtools("Network.emulateNetworkConditions", {"offline": False, **network})


async def test_it_says_that_it_has_lost_the_gateway(engines: Engines, config: Path, browser: Browser) -> None:
    async with serving(config, *ladder(engines), health=OFTEN) as gateway:
        await browser.open(gateway.url)
        await browser.shows("#now", "chat is served by primary.")
        assert await browser.text("#lost") == ""
        async with offline(browser):
            await browser.shows("#lost", "No answer from the gateway since")
            assert await browser.js("return document.title") == "✖ no answer · Graceway"

        async def is_back() -> bool:
            return await browser.text("#lost") == ""

        await eventually(is_back, WITHIN_S)


HIDE = """
Object.defineProperty(document, 'hidden', {configurable: true, get: () => arguments[0]});
document.dispatchEvent(new Event('visibilitychange'));
"""


async def test_a_tab_in_the_background_says_in_its_title_that_the_gateway_is_gone(
    engines: Engines, config: Path, browser: Browser
) -> None:
    """Its title is all that is seen of it; and who comes back to it sees at once that what it shows is old."""
    async with serving(config, *ladder(engines), health=OFTEN) as gateway:
        await browser.open(gateway.url)
        await browser.shows("#now", "chat is served by primary.")
        await browser.js(HIDE, True)
        async with offline(browser):
            await browser.titled("✖ no answer · Graceway")
            await browser.js(HIDE, False)
            assert "No answer from the gateway since" in await browser.text("#lost")
        await browser.titled("Graceway")
        assert await browser.text("#lost") == ""


async def test_a_browser_from_afar_is_asked_for_a_key(
    engines: Engines, config: Path, browser: Browser
) -> None:
    """A key as the password opens the page, and the page goes on with it; to administer, it is not enough."""
    sha256_of_k = sha256(b"k").hexdigest()
    guarded: Json = {"keys": [{"name": "a", "sha256": sha256_of_k}], "admin_key": "adm"}
    async with (
        serving(config, *ladder(engines), health=OFTEN, **guarded) as gateway,
        from_afar(gateway.url) as url,
        aiohttp.ClientSession() as http,
    ):
        async with http.get(url + "/") as refused, http.get(url + "/v1/models") as api:
            assert (refused.status, api.status) == (401, 401)
            assert refused.headers["www-authenticate"].startswith("Basic ")
            assert "www-authenticate" not in api.headers
        with pytest.raises(StatusUnavailable, match="wants a key"):
            await asyncio.to_thread(fetch_status, url)
        for secret in ("k", "adm"):
            assert (await asyncio.to_thread(fetch_status, url, secret))["ready"]
            with closing(StatusReader(url, secret)) as reader:
                assert (await asyncio.to_thread(reader.read))["ready"]
        basic = aiohttp.encode_basic_auth("", "adm")
        async with http.post(url + "/admin/drain", headers={"authorization": basic}) as denied:
            assert denied.status == 403
        await browser.open(url.replace("://", "://anybody:k@"))
        await browser.shows("#now", "OK chat is served by primary.")
        await changes(lambda: browser.text("#clock"), 5.0)
        assert await browser.text("#lost") == ""


async def test_it_needs_no_store(engines: Engines, config: Path, browser: Browser) -> None:
    async with serving(config, *ladder(engines), health=OFTEN, store="redis://127.0.0.1:1/0") as gateway:
        await browser.open(gateway.url)
        await browser.shows("#now", "The state store is not available since")
        await browser.shows("#now", "chat is served by primary.")
        await browser.shows("#events", "the state store is not available (")
        await browser.shows("#events", "Connection refused.); requests go on without it")


async def test_it_goes_on_in_a_flood(engines: Engines, config: Path, browser: Browser) -> None:
    """Two hundred clients for eight slots: the page still moves every second or two."""
    async with serving(config, tier("primary", engines.a, slo=BRISK), health=OFTEN) as gateway:
        await browser.open(gateway.url)
        await browser.shows("#clock", "as of")

        async def ask_on() -> None:
            while True:
                await ask(gateway.url, Question(tokens=40))

        clients = [asyncio.create_task(ask_on()) for _ in range(200)]
        try:
            await browser.shows("#now", "refused in the last 10 s", 30.0)
            for _ in range(3):
                await changes(lambda: browser.text("#clock"), 3.0)
            assert await browser.text("#lost") == ""
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


async def changes(read: Callable[[], Any], within_s: float) -> None:
    before = await read()

    async def has_changed() -> bool:
        return bool(await read() != before)

    await eventually(has_changed, within_s)


OVERFLOWING = """
return [...document.querySelectorAll('main *')].filter(e => !e.closest('.hidden'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80));
"""


@pytest.mark.parametrize("width", [320, 360, 768, 1366])
async def test_it_fits(engines: Engines, config: Path, browser: Browser, width: int) -> None:
    """Nothing is cut off and nothing scrolls sideways, however long names are."""
    await engines.a.kill()
    tiers = ladder(engines)
    tiers[0]["replicas"][1]["zone"] = "z" * 80
    async with serving(config, *tiers, health=OFTEN) as gateway:
        await browser.open(gateway.url, width)
        await browser.shows("#events", "is down (connection refused)")
        overflowing = await browser.js(OVERFLOWING)
        assert overflowing == []
        assert await browser.js("return document.documentElement.scrollWidth") <= width


async def test_a_phone_breaks_no_address(engines: Engines, config: Path, browser: Browser) -> None:
    """A replica's name has a line, and what is said of it the line below."""
    await engines.a.kill()
    async with serving(config, *ladder(engines), health=OFTEN) as gateway:
        await browser.open(gateway.url, 360)
        await browser.shows("#events", "is down (connection refused)")
        lines = "return [...document.querySelectorAll('.replica .text')].map(e => e.getClientRects().length)"
        assert await browser.js(lines) == [1, 1, 1]
        below = """return [...document.querySelectorAll('tbody tr .replica')].every(
          e => e.nextSibling.getBoundingClientRect().top >= e.getBoundingClientRect().bottom - 1)"""
        assert await browser.js(below)


async def test_a_mig_slice_is_seen(config: Path, browser: Browser) -> None:
    """As its supervisor registers it."""
    store = MemoryStateStore()
    async with EngineProcess(served_model="m") as engine:
        record = ReplicaRecord(
            "r-1", "chat", "primary", engine.url, "m", "ready", "", "a", 8, 60.0, time.time()
        )
        record = replace(record, mig_slice="1g.18gb of GPU 3")
        await store.put(REPLICAS, "r-1", record.to_bytes(), ttl_s=60.0)
        managed = {"name": "primary", "backend": "vllm", "model": "m", "slo": PATIENT}
        async with serving(config, managed, canned(), store=store) as gateway:
            await browser.open(gateway.url)
            await browser.shows("#models .replica", "r-1 zone a · 1g.18gb of GPU 3")


async def test_a_screen_reader_finds_its_way(engines: Engines, config: Path, browser: Browser) -> None:
    async with serving(config, *ladder(engines), health=OFTEN) as gateway:
        await browser.open(gateway.url)
        await browser.shows("#models", "primary")
        count = "return document.querySelectorAll(arguments[0]).length"
        for selector in (
            "body > header",
            "main",
            "footer",
            "h1",
            "html[lang=en]",
            "[aria-live=polite]",
            "[role=alert]",
        ):
            assert await browser.js(count, selector) == 1, selector
        assert await browser.js(count, "th:not([scope]), th:not([role]), tr:not([role]), td:not([role])") == 0
        assert await browser.js(count, "table") == await browser.js(count, "table > caption")
        assert await browser.js(count, "section:not([aria-label]):not([aria-labelledby])") == 0
        assert await browser.js(count, "svg:not([role=img][aria-label])") == 0
        levels = await browser.js("return [...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
        assert all(b - a <= 1 for a, b in pairwise(levels))


CONTRAST = """
const rgb = text => text.match(/[\\d.]+/g).map(Number);
const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
const light = ([r, g, b]) => .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
const ground = e => {
  const own = e ? rgb(getComputedStyle(e).backgroundColor) : [255, 255, 255];
  return own[3] === 0 ? ground(e.parentElement) : own;
};
const words = [...document.querySelectorAll('body *')].filter(e => e.checkVisibility()
  && !e.closest('.hidden, noscript, script, style')
  && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()));
return words.map(e => {
  const [a, b] = [light(rgb(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
  return [(a + .05) / (b + .05), e.tagName + ' ' + e.className + ' ' + e.textContent.slice(0, 40)];
});
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everything_can_be_read(engines: Engines, config: Path, browser: Browser, scheme: str) -> None:
    """WCAG's AA, 4.5 to 1, for every word, while replicas are down and requests are refused."""
    await engines.a.kill()
    await engines.b.kill()
    tiers = {"chat": ladder(engines), "other": [tier("primary", engines.a)]}
    async with serving(config, models=tiers, health=OFTEN, store="redis://127.0.0.1:1/0") as gateway:
        await ask(gateway.url, Question(tokens=5))
        await browser.open(gateway.url, scheme=scheme)
        await browser.shows("#now", "other can't be served")
        await browser.shows("#now", "chat is served by small")
        measured = await browser.js(CONTRAST)
        assert len(measured) > 40
        assert [found for found in measured if found[0] < 4.5] == []
        background = await browser.js("return getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(11, 15, 20)") == (scheme == "dark")
