"""The HTML report as people meet it, in a real browser without a network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import onnxperf
from onnxperf.views.headline import words
from tests.decide.models import net
from tests.device_files import PROCESSOR
from tests.language.test_generation import SMALL
from tests.views.pages import HOSTILE, hostile, hostile_decoder, shapes_alone

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium, of the extra `test`, is not installed")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no Chromium with its driver here")
RESNET = Path(__file__).parents[2] / "samples" / "keras-resnet50.onnx"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def predicted() -> onnxperf.Prediction:
    return onnxperf.predict(RESNET, gpu="l4", precision="fp16")


@pytest.fixture(scope="module")
def shown(browser: Any, predicted: onnxperf.Prediction, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Opens the page of a prediction, of ResNet-50 if none is named, at a width in pixels."""
    folder = tmp_path_factory.mktemp("pages")

    def at(batch: int) -> onnxperf.Prediction:
        return onnxperf.predict(net(), gpu="l4", batch=batch)

    written = {"resnet": predicted.to_html(), "batches": at(4).to_html(at)}

    def open_at(name: str = "resnet", text: str = "", width: int = 1280, scheme: str = "light") -> Any:
        path = folder / f"{name}.html"
        path.write_text(text or written[name], encoding="utf-8")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        for log in ("browser", "performance"):  # of the page before
            browser.get_log(log)
        browser.get(path.as_uri())
        return browser

    return open_at


@pytest.fixture(scope="module")
def generated() -> onnxperf.Generation:
    asked: dict[str, Any] = {"gpu": "l4", "engine": "vllm", "batch": [1, 2, 4], "prompt": 64, "output": 16}
    return onnxperf.llm(config=SMALL, concurrency=[1, 2, 8], **asked)


def quiet(browser: Any) -> None:
    """Nothing was written to the console, and nothing asked for but the page itself."""
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    own = browser.current_url
    assert {e["request"]["url"] for e in sent if not e["documentURL"].startswith("chrome:")} == {own}


def text(browser: Any, selector: str) -> str:
    found: str = browser.find_element(By.CSS_SELECTOR, selector).get_attribute("textContent")
    return found


def texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
    found: list[str] = browser.execute_script(script, selector)
    return found


def count(browser: Any, selector: str) -> int:
    return len(browser.find_elements(By.CSS_SELECTOR, selector))


def press(browser: Any, *keys: str) -> None:
    for key in keys:
        browser.switch_to.active_element.send_keys(key)


def focus(browser: Any, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).focus()", selector)


def test_the_answer_comes_first_in_the_words_of_the_command_line(shown, predicted) -> None:
    b = shown()
    h = words(predicted, onnxperf.decide.changes.changes(predicted))
    first = text(b, "header")
    places = [first.index(x) for x in (h.asked[0], *h.asked[1:], h.time, h.interval, h.rate, h.memory, h.limit)]
    assert places == sorted(places)
    assert h.time in b.title and h.best.split(":")[0] in first
    quiet(b)


def test_the_table_sorts_by_click_and_key(shown, predicted) -> None:
    b = shown()
    longest = max(predicted.kernels, key=lambda k: k.seconds)
    rows, sorted_by = "#kernel-table tbody tr", "#kernel-table th:is([aria-sort=ascending], [aria-sort=descending])"
    assert text(b, sorted_by).startswith("Time") and text(b, f"{rows} th span").endswith(longest.name[-10:])
    b.find_element(By.CSS_SELECTOR, "#kernel-table th:first-child button").click()
    first = texts(b, f"{rows} th")
    assert len(first) == 25 and text(b, sorted_by).startswith("Kernel")
    press(b, Keys.ENTER)  # the focus stays on the head
    turned = texts(b, f"{rows} th")
    b.find_element(By.CSS_SELECTOR, ".more").click()
    assert texts(b, f"{rows} th")[:25] == turned and texts(b, f"{rows} th")[-25:] == first[::-1]
    assert count(b, rows) == len(predicted.kernels)
    assert b.find_element(By.CSS_SELECTOR, sorted_by).get_attribute("aria-sort") == "descending"
    quiet(b)


def test_the_table_filters_and_sums_up(shown, predicted) -> None:
    b = shown()
    b.find_element(By.ID, "filter-text").send_keys("maxpool")
    own = [k for k in predicted.kernels if "maxpool" in f"{k.name} {k.op} {k.module}".lower()]
    assert count(b, "#kernel-table tbody tr") == len(own) > 0
    assert text(b, "#table .status[role=status]").startswith(f"{len(own)} of {len(predicted.kernels)} kernels")
    b.find_element(By.ID, "filter-text").send_keys("none such")
    assert text(b, "#kernel-table tbody") == "No kernel matches."
    b.find_element(By.ID, "filter-text").send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)
    bound = predicted.kernels[0].bound_by
    b.find_element(By.CSS_SELECTOR, f"#filter-bound option[value={bound}]").click()
    same = sum(k.bound_by == bound for k in predicted.kernels)
    assert text(b, "#table .status").startswith(f"{same} of ")
    b.find_element(By.CSS_SELECTOR, "#filter-bound option[value='']").click()
    focus(b, "#by-kernel")
    press(b, Keys.ARROW_RIGHT)
    assert texts(b, "#kernel-table tbody th")[0] == next(iter(predicted.by_operator()))
    assert count(b, "#kernel-table tbody tr") == len(predicted.by_operator())
    quiet(b)


def test_the_timeline_zooms_and_pans(shown) -> None:
    b = shown()
    everything = text(b, ".seen")
    assert everything.startswith("all ") and count(b, ".time-plot .bar") > 100
    focus(b, ".time-plot")
    press(b, "+", "+")
    zoomed = text(b, ".seen")
    assert zoomed != everything and "to" in zoomed and text(b, "#told") == zoomed
    press(b, Keys.ARROW_RIGHT)
    assert text(b, ".seen") != zoomed
    press(b, Keys.ARROW_DOWN)
    assert count(b, ".bar.chosen") == 1 and "bound by" in text(b, "#told") and text(b, "#tip").strip()
    press(b, "0")
    assert text(b, ".seen") == everything
    b.find_element(By.CSS_SELECTOR, "[aria-label='Zoom in']").click()
    inside = text(b, ".seen")
    plot = b.find_element(By.CSS_SELECTOR, ".time-plot")
    webdriver.ActionChains(b).drag_and_drop_by_offset(plot, 120, 0).perform()
    assert text(b, ".seen") not in (inside, everything)
    b.find_element(By.CSS_SELECTOR, "[aria-label='Show all']").click()
    wheel = (
        "arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: arguments[1], clientX: 600, cancelable: true}))"
    )
    assert not b.execute_script(f"return {wheel}", plot, -300)  # it zooms instead of the page
    assert text(b, ".seen") != everything
    b.execute_script(wheel, plot, 3000)
    assert b.execute_script(f"return {wheel}", plot, 300)  # all is in sight: the page may scroll
    assert text(b, ".seen") == everything
    quiet(b)


def test_every_kernel_is_in_the_roofline_and_can_be_reached(shown, predicted) -> None:
    b = shown()
    marks = b.find_elements(By.CSS_SELECTOR, "#roofline .dot")
    named = [m.get_attribute("aria-label") for m in marks]
    alike = [int(n.split()[0].replace(",", "")) if " kernels " in n.split(",")[0] else 1 for n in named]
    assert sum(alike) == len(predicted.kernels)
    assert count(b, "#roofline .dot[tabindex='0']") == 1 and count(b, "#roofline .ridge-point") == 1
    focus(b, "#roofline .dot[tabindex='0']")
    first = text(b, "#tip")
    press(b, Keys.ARROW_RIGHT)
    assert text(b, "#tip") not in ("", first) and count(b, "#roofline .dot[tabindex='0']") == 1
    press(b, Keys.HOME)
    assert text(b, "#tip") == first
    press(b, Keys.ESCAPE)
    assert not b.find_element(By.ID, "tip").is_displayed()
    quiet(b)


def test_batches_have_two_charts_and_a_table(shown) -> None:
    b = shown("batches")
    assert count(b, "#batch svg .band") == 2
    focus(b, "#batch .point[tabindex='0']")
    assert text(b, "#tip").startswith("Batch 1") and "80% interval" in text(b, "#tip")
    press(b, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert text(b, "#tip").startswith("Batch 4 (this prediction)")
    assert count(b, "#batch tbody tr") == count(b, "#batch figure:first-of-type .point")
    assert count(b, "#what-if tbody tr") > 3
    quiet(b)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["resnet", "language"])
def test_it_fits_a_phone(shown, generated, scheme: str, name: str) -> None:
    b = shown(name, generated.to_html() if name == "language" else "", width=390, scheme=scheme)
    assert b.execute_script("return document.documentElement.scrollWidth") == 390
    ground = b.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 150) == (scheme == "dark")
    quiet(b)


@pytest.mark.parametrize("width", [390, 700, 1000, 1280])
def test_no_label_is_cut(shown, generated, width: int) -> None:
    """Of axes: each stands within its chart, and none on another of its line."""
    script = """
      const cut = [];
      for (const plot of document.querySelectorAll(".plot")) {
        const box = plot.getBoundingClientRect();
        const lines = new Map();
        for (const label of plot.querySelectorAll(".axis text:not(.name)")) {
          const own = label.getBoundingClientRect();
          if (own.left < box.left - 1 || own.right > box.right + 1) cut.push(label.textContent);
          const line = label.getAttribute("text-anchor") === "end" && own.right < box.left + 64 ? "y" : Math.round(own.top);
          if (line !== "y") lines.set(line, [...(lines.get(line) || []), own]);
        }
        for (const each of lines.values()) {
          each.sort((a, b) => a.left - b.left);
          each.slice(1).forEach((own, i) => { if (own.left < each[i].right) cut.push(`over another at ${own.left}`); });
        }
      }
      return cut"""  # noqa: E501
    for name, page in (("resnet", ""), ("batches", ""), ("language", generated.to_html())):
        b = shown(name, page, width=width)
        assert count(b, ".axis text") > 10 and b.execute_script(script) == [], name


def test_powers_of_ten_are_written_alike(shown, generated) -> None:
    for name, page in (("resnet", ""), ("language", generated.to_html())):
        b = shown(name, page)
        labels = [x for x in texts(b, "#roofline .axis text[text-anchor]") if x[-1] not in "GMTkPF"]
        axis = [x for x in labels if x != "FLOP/byte"]
        powers = [x[:2] == "10" and x[2:3] in "⁰¹²³⁴⁵⁶⁷⁸⁹⁻" and len(x) > 2 for x in axis]
        assert len(axis) > 2 and len(set(powers)) == 1
    script = "return [powers([0.01, 100, 1000]), powers([0.001, 1, 100000])]"
    assert b.execute_script(script) == [["0.01", "100", "1,000"], ["10⁻³", "10⁰", "10⁵"]]


def test_a_language_model_has_its_page(shown, generated) -> None:
    b = shown("language", generated.to_html())
    assert count(b, "#batches tbody tr") == 3 and count(b, "#batches svg .point") == 9
    assert count(b, "#requests tbody tr") == count(b, "#requests svg .point") == 3
    assert texts(b, "#spent h3")[0].startswith("prefill: 64 tokens") and count(b, "#spent tbody tr") > 10
    before, first = text(b, "#table .status"), text(b, "#step-says")
    focus(b, "#step-0")
    press(b, Keys.ARROW_RIGHT)
    assert text(b, "#step-says").startswith("decode step") and text(b, "#told") == text(b, "#step-says") != first
    assert text(b, "#table .status") != before and count(b, "#roofline svg") == count(b, "#timeline .time-plot") == 1
    focus(b, "#requests .point[tabindex='0']")
    assert text(b, "#tip").startswith("1 requests at a time")
    press(b, Keys.ARROW_RIGHT)
    assert text(b, "#tip").startswith("2 requests")
    assert len(texts(b, "#notes li")) >= len(generated.notes)
    quiet(b)


def test_what_strangers_wrote_stays_text(shown) -> None:
    b = shown("hostile", onnxperf.predict(hostile(), gpu="l4").to_html())
    assert count(b, "script") == 2 and count(b, "img") == 0
    names = texts(b, "#kernel-table tbody th")
    assert sum(name[:8] == HOSTILE[:8] for name in names) == 2 and "\x1b" not in text(b, "body")
    assert not b.execute_script("return Object.keys(Object.prototype).length")
    quiet(b)
    b = shown("decoder", onnxperf.llm(hostile_decoder(), gpu="l4", batch=1, prompt=16, output=4).to_html())
    assert count(b, "script") == 2 and count(b, "img") == 0 and "\x1b" not in text(b, "body")
    assert texts(b, "h1")[0][:8] == HOSTILE[:8]
    quiet(b)


def test_what_is_not_there_is_told(shown, tmp_path: Path) -> None:
    b = shown("nothing", onnxperf.predict(shapes_alone(), gpu="l4").to_html())
    assert len(texts(b, "main .empty")) == 6 and count(b, "svg .dot, svg .bar") == 0
    quiet(b)
    card = tmp_path / "mine.toml"
    card.write_text(PROCESSOR, encoding="utf-8")
    b = shown("processor", onnxperf.predict(net(1), gpu=card).to_html())
    assert texts(b, ".lane") == ["runtime", "operators"] and text(b, "#memory").startswith("Memory use")
    assert text(b, "#what-if").startswith("No changes were tried")
    quiet(b)


@pytest.mark.parametrize("name", ["batches", "language"])
def test_it_can_be_heard(shown, generated, name: str) -> None:
    """One main heading, a label for each section and chart, a caption for each table, a name for each control."""
    b = shown(name, generated.to_html() if name == "language" else "")
    assert count(b, "h1") == 1 and {count(b, x) for x in ("header", "nav", "main", "footer")} == {1}
    unnamed = """
      return [
        ...[...document.querySelectorAll("main > section")].filter((s) => !document.getElementById(s.getAttribute("aria-labelledby"))?.textContent),
        ...[...document.querySelectorAll("table")].filter((t) => !t.caption?.textContent),
        ...[...document.querySelectorAll("svg")].filter((s) => !s.getAttribute("aria-label") && !s.closest("[aria-hidden=true], [aria-label]")),
        ...[...document.querySelectorAll("button, a, input, select")].filter((c) => !(c.textContent || c.labels?.length || c.getAttribute("aria-label"))),
        ...[...document.querySelectorAll("th")].filter((h) => !h.scope),
      ].map((e) => e.outerHTML)"""  # noqa: E501
    assert b.execute_script(unnamed) == []
    b.switch_to.active_element.send_keys(Keys.TAB)
    assert b.switch_to.active_element.get_attribute("href").endswith("#kernels")  # past the charts
