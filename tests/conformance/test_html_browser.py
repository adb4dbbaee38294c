"""The pages, in a real browser: what a reader sees, on a phone, in the dark, on paper."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.report import html, matrix
from tests.conformance import reports

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.browser

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--no-first-run"]  # fmt: skip

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}

LEAST_CONTRAST = 4.5
"""Of text, by WCAG 2.2, level AA."""

PAGES: dict[str, Callable[[], str]] = {
    "failing": lambda: html.render(reports.with_every_status().to_json()),
    "passing": lambda: html.render(reports.right().to_json()),
    "matrix": lambda: matrix.render([reports.right().to_json(), reports.with_every_status().to_json()] * 4),
}
VERDICTS = {"failing": "NOT CONFORMANT", "passing": "no failure among the selected checks", "matrix": "NOT CONFORMANT"}

TEXTS = {"failing": ["body", "#verdict", ".verdict", ".jump a", ".note", ".words dt", ".words .p", "pre", "nav a", "td",
                     "tr .badge.bad", "tr .badge.good", "tr .badge.open", "figcaption"],
         "passing": ["body", "#verdict", ".verdict", ".note", "nav a", "td", "tr .badge.good", "tr .badge.calm"],
         "matrix": ["body", ".verdicts b", ".verdicts small", "tbody th", "td.failed .badge", "td.marked .badge",
                    "td.good .badge", "thead small"]}  # fmt: skip

CONTRAST = """element => {
  const number = text => text.match(/[\\d.]+/g).map(Number);
  const luminance = color => {
    const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = color.slice(0, 3).map(c => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = node => {
    for (; node; node = node.parentElement) {
      const color = number(getComputedStyle(node).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const ink = luminance(number(getComputedStyle(element).color)), ground = luminance(paper(element));
  return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
}"""

COLOUR = """name => {
  const each = document.body.appendChild(document.createElement("i"));
  each.style.color = `var(--${name})`;
  return getComputedStyle(each).color;
}"""


@pytest.fixture(scope="module")
def chromium(browser: str) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  # where it is missing, these tests are not run

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name, make in PAGES.items():
        (folder / f"{name}.html").write_text(make(), encoding="utf-8")
    return folder


@contextmanager
def opened(chromium: Browser, path: Path, **settings: Any) -> Iterator[Tab]:
    """The page, which must load nothing else and leave the console empty."""
    context = chromium.new_context(**{"viewport": DESK} | settings)
    tab = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(path.as_uri())
    yield tab
    assert said == []
    assert asked == [path.as_uri()]
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_it_opens_without_a_word_and_shows_the_verdict(chromium: Browser, folder: Path, name: str) -> None:
    with opened(chromium, folder / f"{name}.html") as tab:
        verdict = tab.get_by_text(VERDICTS[name]).first
        assert verdict.is_visible()
        box = verdict.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < DESK["height"]


@pytest.mark.parametrize("name", PAGES)
def test_it_is_complete_without_its_script(chromium: Browser, folder: Path, name: str) -> None:
    with opened(chromium, folder / f"{name}.html", java_script_enabled=False) as tab:
        assert tab.get_by_text(VERDICTS[name]).first.is_visible()


@pytest.mark.parametrize("name", PAGES)
def test_on_a_phone_nothing_but_boxes_scrolls_sideways(chromium: Browser, folder: Path, name: str) -> None:
    with opened(chromium, folder / f"{name}.html", viewport=PHONE) as tab:
        tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        wide = tab.evaluate("""() => [...document.querySelectorAll("body *")].filter(each =>
          each.getBoundingClientRect().right > innerWidth + 1 && !each.closest("pre, .scroll, svg")).length""")
        assert wide == 0


@pytest.mark.parametrize("name", PAGES)
def test_texts_stand_out_in_the_light_and_in_the_dark(chromium: Browser, folder: Path, name: str) -> None:
    papers = []
    for scheme in ("light", "dark"):
        with opened(chromium, folder / f"{name}.html", color_scheme=scheme) as tab:
            papers.append(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
            for text in TEXTS[name]:
                found = tab.locator(text)
                assert found.count() > 0, text
                assert found.first.evaluate(CONTRAST) >= LEAST_CONTRAST, (scheme, text)
    assert papers[0] != papers[1]


def test_on_paper_verdict_and_failures_are_there_on_white(chromium: Browser, folder: Path) -> None:
    with opened(chromium, folder / "failing.html", color_scheme="dark") as tab:
        tab.emulate_media(media="print", color_scheme="dark")
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert tab.locator("#verdict").is_visible()
        failures = tab.locator(".failure")
        assert failures.count() > 5
        for place in range(failures.count()):
            assert failures.nth(place).locator("h4").is_visible()
            for words in failures.nth(place).locator(".words").all():
                assert words.is_visible()
        assert failures.locator(".words").count() > 5
        assert not tab.locator("button").first.is_visible()


@pytest.mark.parametrize("name", ["failing", "passing"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_have_a_size_a_name_and_the_colours_of_the_page(
    chromium: Browser, folder: Path, name: str, scheme: Any
) -> None:
    with opened(chromium, folder / f"{name}.html", color_scheme=scheme) as tab:
        tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        charts = tab.locator("svg")
        assert charts.count() > 3
        ink = tab.evaluate("getComputedStyle(document.body).color")
        for place in range(charts.count()):
            chart = charts.nth(place)
            box = chart.bounding_box()
            assert box is not None
            assert min(box["width"], box["height"]) > 40
            assert chart.locator("> title").text_content()
            assert chart.locator("text").count() > 3
        labels = tab.locator("svg text").evaluate_all("all => all.map(each => getComputedStyle(each).fill)")
        colours = {name: tab.evaluate(COLOUR, name) for name in ("ink", "muted", "alarm")}
        assert ink == colours["ink"]
        assert colours["ink"] in labels
        assert set(labels) <= set(colours.values())


def test_a_link_opens_the_clause_that_it_names(chromium: Browser, folder: Path) -> None:
    path = folder / "failing.html"
    with opened(chromium, path) as tab:
        details = tab.locator("#clause-temperature-scale")
        assert details.get_attribute("open") is None
        tab.locator(".clauses a", has_text="temperature/scale").click()
        tab.wait_for_function("document.querySelector('#clause-temperature-scale').open")
        assert details.locator("table").first.is_visible()


def test_a_reproducer_is_selected_by_its_button(chromium: Browser, folder: Path) -> None:
    with opened(chromium, folder / "failing.html") as tab:
        code = tab.locator(".failure .code").first
        code.locator("button").click()
        selected = tab.evaluate("String(getSelection())")
        assert re.sub(r"\s+", " ", selected).strip() == re.sub(r"\s+", " ", code.locator("pre").inner_text()).strip()


def test_the_matrix_shows_what_fails_and_the_rest_when_asked(chromium: Browser, folder: Path) -> None:
    with opened(chromium, folder / "matrix.html", java_script_enabled=False) as tab:
        calm = tab.locator("th", has_text=re.compile("^graphs/replay-law"))
        failing = tab.locator("th", has_text=re.compile("^draw/tail"))
        assert not calm.is_visible()
        assert failing.is_visible()
        tab.locator("#only").uncheck()
        assert calm.is_visible()
        assert failing.is_visible()
