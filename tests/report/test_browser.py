"""The page as a reader meets it: in Chromium, by mouse, keyboard and phone, and on paper."""

from __future__ import annotations

import base64
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from focus_retrofit.report import write_inspection
from focus_retrofit.report.embed import plain

from . import sample

pytest.importorskip("selenium", reason="pip install selenium")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
if not CHROMIUM or not CHROMEDRIVER:
    pytest.skip("install chromium and chromedriver (Debian: apt install chromium-driver)", allow_module_level=True)

from selenium.webdriver import ActionChains, Chrome, ChromeOptions  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --force-prefers-reduced-motion --window-size=1280,900"
)


class Reader:
    """A browser and what is done with it."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        self.driver.get(path.as_uri())
        self.settle()

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def settle(self) -> None:
        """Until the page has drawn what was asked for."""
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    @property
    def status(self) -> str:
        self.settle()
        return str(self.run("return document.getElementById('status').textContent")).replace("\u00a0", " ")

    def layer(self, place: int) -> None:
        slider = self.driver.find_element("id", "layer")
        self.run("arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", slider, place)

    def token(self, index: int) -> Any:
        return self.run("return document.querySelectorAll('#tokens > .t')[arguments[0]]", index)

    def click(self, index: int) -> None:
        self.run("arguments[0].click()", self.token(index))

    def tour(self, tokens: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Choose one token after another: what is said, and how many are marked nearby, sink, distant, chosen."""
        script = """
            const [tokens, done] = arguments, spans = [...document.querySelectorAll("#tokens > .t")], found = [];
            const count = (kind) => document.querySelectorAll("#tokens > ." + kind).length;
            const step = () => requestAnimationFrame(() => requestAnimationFrame(() => {
              found.push([document.getElementById("status").textContent, ["near", "sink", "far", "self"].map(count)]);
              next();
            }));
            const next = () => {
              if (found.length === tokens.length) return done(found);
              spans[tokens[found.length]].click();
              step();
            };
            next();
        """
        return list(self.driver.execute_async_script(script, list(tokens)))

    def classes(self) -> list[str]:
        self.settle()
        return list(self.run("return [...document.querySelectorAll('#tokens > .t')].map((t) => t.className)"))

    def keys(self, *keys: str) -> None:
        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def width(self, pixels: int | None) -> None:
        if pixels is None:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        else:
            size = {"width": pixels, "height": 740, "deviceScaleFactor": 2, "mobile": True}
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.settle()


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = Chrome(options=options, service=Service(CHROMEDRIVER))
        try:
            yield Reader(driver)
        finally:
            driver.quit()


@pytest.fixture(scope="module", params=[("probe", 1, 4), ("probe", 2, 4), ("share", 2, 16)], ids=str)
def inspected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    match, top_k, groups = request.param
    inspection = sample.inspection(500, 3, groups, top_k, match)
    return inspection, write_inspection(inspection, tmp_path_factory.mktemp("text") / "text.html", "A text")


def counted(inspection: dict[str, Any], layer: int, i: int) -> tuple[int, int, int, int]:
    """(nearby, sinks, distant, percent) by the rule."""
    groups, window, sinks = inspection["layers"][layer]["groups"], inspection["window"], inspection["sinks"]
    seen = [j for j in range(i + 1) if sample.sees(groups, i, j, inspection["match"], window, sinks)]
    far = [j for j in seen if i - j > window]
    first = sum(j < sinks for j in far)
    return len(seen) - len(far) - 1, first, len(far) - first, int(100 * len(seen) / (i + 1) + 0.5)


def said(status: str) -> tuple[int, ...]:
    found = re.search(r"sees (\d+) nearby, (\d+) sinks? and (\d+) distant tokens?: (\d+)\s% of what full", status)
    assert found, status
    return tuple(map(int, found.groups()))


def test_the_status_counts_what_the_rule_shows(reader: Reader, inspected: tuple[dict[str, Any], Path]) -> None:
    inspection, path = inspected
    reader.open(path)
    chosen = (0, 3, 100, 128, 129, 131, 133, 300, 499)
    for layer in (0, 2):
        reader.layer(layer)
        for i, (status, marked) in zip(chosen, reader.tour(chosen), strict=True):
            groups = inspection["layers"][layer]["groups"][i]
            assert status.startswith(f"token {i} '")
            assert f"group{'s' if len(groups) > 1 else ''} {', '.join(map(str, groups))}: sees" in status
            assert said(status) == counted(inspection, layer, i)
            assert tuple(marked) == (*counted(inspection, layer, i)[:3], 1)
        reader.keys(Keys.ESCAPE)
    assert reader.complaints() == []


def test_pointing_shows_and_leaving_clears(reader: Reader, report: Path, results: dict[str, Any]) -> None:
    reader.open(report)
    inspection, middle = results["inspection"], len(results["inspection"]["layers"]) // 2
    idle = reader.status
    assert idle.startswith(f"layer {middle}")
    reader.run("document.getElementById('tokens').scrollIntoView({block: 'center'})")
    reader.run("document.querySelectorAll('#tokens > .t').forEach((t) => { t.made = 'once'; })")
    for i in (5, 20):
        ActionChains(reader.driver, duration=0).move_to_element(reader.token(i)).perform()
        assert said(reader.status) == counted(inspection, middle, i)
    ActionChains(reader.driver, duration=0).move_to_element(reader.driver.find_element("id", "text-title")).perform()
    assert reader.status == idle
    ActionChains(reader.driver, duration=0).click(reader.token(20)).perform()
    ActionChains(reader.driver, duration=0).move_to_element(reader.token(5)).perform()
    assert reader.status.startswith("token 20 "), "a click holds"
    ActionChains(reader.driver, duration=0).click(reader.token(20)).perform()
    assert reader.status == idle, "a second click lets go"
    assert reader.run("return [...document.querySelectorAll('#tokens > .t')].every((t) => t.made === 'once')")


def test_the_layer_recolours_and_its_tokens_are_listed(reader: Reader, report: Path, results: dict[str, Any]) -> None:
    reader.open(report)
    for place in (0, 29):
        reader.layer(place)
        layer = results["inspection"]["layers"][place]
        assert reader.classes() == [f"t g{groups[0]}" for groups in layer["groups"]]
        assert reader.run("return document.getElementById('layer-name').textContent") == str(place)
        listed = reader.run("return [...document.querySelectorAll('#top-groups ol')].map((l) => l.children.length)")
        assert listed == [len(tokens) for tokens in layer["top"]]
    colours = {
        reader.run("return getComputedStyle(document.querySelector(`#tokens > .g${arguments[0]}`)).backgroundColor", g)
        for g in range(4)
    }
    assert len(colours) == 4


def test_a_group_dims_the_others(reader: Reader, inspected: tuple[dict[str, Any], Path]) -> None:
    inspection, path = inspected
    reader.open(path)
    reader.layer(1)
    groups = [x[0] for x in inspection["layers"][1]["groups"]]
    buttons = reader.driver.find_elements("css selector", "#groups button")
    assert [b.text for b in buttons] == ["all", *map(str, range(inspection["num_groups"]))]
    buttons[3].click()
    assert ["out" in names for names in reader.classes()] == [group != 2 for group in groups]
    assert f"group 2 holds {groups.count(2)} of 500 tokens" in reader.status
    assert [b.get_attribute("aria-pressed") for b in buttons].index("true") == 3
    buttons[0].click()
    assert not any("out" in names for names in reader.classes())


def test_the_keyboard_walks_the_text(reader: Reader, inspected: tuple[dict[str, Any], Path]) -> None:
    _, path = inspected
    reader.open(path)
    reader.run("document.getElementById('numbers').focus()")
    for keys, at in (
        ((Keys.TAB,), 0),
        ((Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT), 3),
        ((Keys.ARROW_LEFT,), 2),
        ((Keys.PAGE_DOWN, Keys.PAGE_DOWN), 258),
        ((Keys.PAGE_UP,), 130),
        ((Keys.END,), 499),
        ((Keys.ARROW_RIGHT,), 499),
        ((Keys.HOME,), 0),
        ((Keys.ARROW_LEFT,), 0),
    ):
        reader.keys(*keys)
        assert reader.status.startswith(f"token {at} "), keys
        assert reader.run("return document.activeElement === arguments[0]", reader.token(at))
        assert reader.run("return document.querySelectorAll('#tokens > [tabindex=\"0\"]').length") == 1
    reader.keys(Keys.ARROW_DOWN)
    below = int(reader.status.split()[1])
    assert reader.run("return arguments[0].offsetTop > arguments[1].offsetTop", reader.token(below), reader.token(0))
    reader.keys(Keys.ARROW_UP)
    assert reader.status.startswith("token 0 ")
    assert reader.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    reader.keys(Keys.ESCAPE)
    assert reader.status.startswith("layer ")
    assert not reader.run("return document.getElementById('tokens').classList.contains('picking')")


def test_tab_reaches_every_control_in_order(reader: Reader, report: Path) -> None:
    reader.open(report)
    name = (
        "const a = document.activeElement;"
        "return a.id || a.getAttribute('aria-label') || a.getAttribute('href') || `${a.tagName} ${a.className}`"
    )
    reached = []
    for _ in range(24):
        reader.keys(Keys.TAB)
        reached.append(reader.run(name))
    sections = ["quality", "speed", "balance", "text", "kept", "generation", "audit", "details"]
    assert reached == [
        *(f"#{section}" for section in sections),
        *("Table of quality", "Table of speed", "layer", "all groups", "group 0", "group 1", "group 2", "group 3"),
        *("numbers", reached[17], "Table of checks", "SUMMARY ", "download", *reached[21:]),
    ]
    assert reached[17].startswith("SPAN t ")
    named = "return [...document.querySelectorAll('input, button')].every((x) => x.labels.length || x.textContent)"
    assert reader.run(named)


def test_hostile_text_does_not_run(reader: Reader, hostile_report: Path) -> None:
    reader.complaints()
    reader.open(hostile_report)
    reader.click(0)
    assert "</script><img src=x onerror" in reader.status
    assert reader.run("return document.querySelector('h1').textContent").startswith("</script><img")
    assert reader.run("return document.querySelector('#top-groups code').textContent").startswith("'</script>")
    assert reader.run("return document.images.length + document.querySelectorAll('#tokens b').length") == 0
    shown = reader.run("return [...document.querySelectorAll('#tokens > .t')].slice(2, 6).map((t) => t.textContent)")
    assert shown == ["∅", "·abc", "⇥␍␛[0m", "<b>bold</b>"]
    assert reader.run("return window.hostile === undefined")
    assert reader.complaints() == []


def test_line_breaks_are_seen_and_break_the_line(reader: Reader, report: Path, results: dict[str, Any]) -> None:
    reader.open(report)
    at = results["inspection"]["tokens"].index("\n\n")
    assert reader.run("return arguments[0].textContent", reader.token(at)) == "¶\n¶"
    assert reader.run("return arguments[0].offsetTop > arguments[1].offsetTop", reader.token(at + 1), reader.token(at))
    reader.click(at)
    assert "'¶¶'" in reader.status


def test_results_can_be_taken_along(reader: Reader, report: Path, results: dict[str, Any]) -> None:
    reader.open(report)
    text = reader.driver.execute_async_script(
        "const done = arguments[0];"
        "URL.createObjectURL = (blob) => { blob.text().then(done); return '#'; };"
        "document.getElementById('download').click();"
    )
    assert json.loads(text) == plain(results)


def test_a_phone_shows_it_without_scrolling_sideways(reader: Reader, report: Path, hostile_report: Path) -> None:
    reader.width(360)
    try:
        for path in (report, hostile_report):
            reader.open(path)
            reader.run("document.querySelector('details').open = true")
            assert reader.run("return document.documentElement.scrollWidth") == 360
            shown = "return [...document.querySelectorAll('svg')].filter((s) => s.getBoundingClientRect().width).length"
            assert reader.run(shown) == 4
    finally:
        reader.width(None)


def test_paper_gets_all_of_it(reader: Reader, report: Path) -> None:
    reader.open(report)
    printed = reader.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    data = base64.b64decode(printed["data"])
    assert data.startswith(b"%PDF") and len(data) > 50_000
    reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        hidden = "return ['nav', '.controls', '#download'].every((s) => !document.querySelector(s).offsetParent)"
        assert reader.run(hidden)
        assert reader.run("const t = document.getElementById('tokens'); return t.scrollHeight <= t.clientHeight + 2")
    finally:
        reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_nothing_was_complained_about(reader: Reader, report: Path) -> None:
    reader.complaints()
    reader.open(report)
    reader.layer(3)
    reader.click(700)
    reader.run("document.getElementById('numbers').click()")
    reader.settle()
    assert reader.complaints() == []
