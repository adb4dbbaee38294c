"""The HTML page of a report: what is in it and in which order, and that a report's text does no harm."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from conformance.report import html, view
from tests.conformance import reports
from tests.conformance.pages import Page

PAGES = {
    "right": reports.right, "broken": reports.broken, "crashed": reports.crashed, "interrupted": reports.interrupted,
    "every-status": reports.with_every_status,
}  # fmt: skip


def poisoned(value: Any, with_: str) -> Any:
    """The same with a text appended to every text that a sampler or its author could have a part in."""
    fixed = {"status", "kind", "claims"}
    if isinstance(value, dict):
        return {key: each if key in fixed else poisoned(each, with_) for key, each in value.items()}
    if isinstance(value, list):
        return [poisoned(each, with_) for each in value]
    return value + with_ if isinstance(value, str) and value else value


@pytest.mark.parametrize("name", PAGES)
def test_a_page_needs_nothing_else_and_its_links_lead_somewhere(name: str) -> None:
    page = Page(html.render(PAGES[name]().to_json()))
    assert [load for load in page.loads if not (load[0] == "use" and load[1].startswith("#"))] == [("link", "data:,")]
    assert [link for link in page.links if not link.startswith(("#", "https://example.org/"))] == []
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids)) > 5
    assert (page.tags.count("script"), page.handlers) == (1, [])


def test_what_matters_comes_first() -> None:
    report = reports.with_every_status().to_json()
    text = Page(html.render(report)).text
    failed = next(each for each in report["results"] if each["status"] == "fail" and each["gating"])
    judged = next(each for each in failed["evidence"] if not each["passed"])
    landmarks = [
        "✗ NOT CONFORMANT", f"{report['counts']['required']} required", f"MUST: {failed['must']}",
        judged["observed"], judged["allowed"], " ".join(failed["reproducer"].split()), "Expected failures",
        "known ( https://example.org/issues/7 )", "Proposed clauses that fail", "top_k_ties: claimed keep-all, but any",
        "its alpha", "Every statistical judgement", "temperature/scale ~ expected failure", "python 3",
        "python -m conformance run --sampler tests.broken:twice",
    ]  # fmt: skip
    places: list[int] = []
    for landmark in landmarks:
        places.append(text.find(landmark, places[-1] if places else 0))
        assert places[-1] >= 0, f"{landmark!r} is missing after {landmarks[len(places) - 2]!r}"


def test_every_failure_is_there_in_full() -> None:
    report = reports.broken().to_json()
    source = html.render(report)
    text = Page(source).text
    failures = [each for each in report["results"] if each["status"] == "fail"]
    assert len(failures) > 3
    for each in failures:
        assert " ".join(each["reproducer"].split()) in text
        for judgement in each["evidence"]:
            assert " ".join(judgement["observed"].split()) in text
            if not judgement["passed"] and judgement["p_value"] is not None:
                assert view.chance(judgement) in text
    charted = {each["clause"] for each in failures for judgement in each["evidence"] if judgement["chart"]}
    assert source.count('<div class="judgement drawn">') >= len(charted) > 0


def test_a_traceback_is_shown() -> None:
    assert "RuntimeError: <b>boom</b>" in Page(html.render(reports.crashed().to_json())).text


@pytest.mark.parametrize(
    "poison",
    ["<script>alert(1)</script>", "</pre></details></body>", '" onload="alert(1)', "</style><style>", "</title><base>",
     "{{ 7 * 7 }}{% raw %}", " javascript:alert(1) ", "&lt;img src=x onerror=alert(1)>"],
)  # fmt: skip
def test_text_of_a_report_does_no_harm(poison: str) -> None:
    report = reports.with_every_status().to_json()
    report["claims"]["stream"] = "mine"
    bad = poisoned(report, poison)
    bad["claims"]["stream"] += poison
    clean, page = Page(html.render(report)), Page(html.render(bad))
    assert page.tags == clean.tags
    assert page.handlers == []
    assert page.loads == clean.loads
    assert all(link.startswith(("#", "https://example.org/")) for link in page.links)
    assert " ".join(poison.split()) in page.text


def test_a_page_of_many_failures_stays_small_and_says_them_all() -> None:
    source = html.render(reports.many(300))
    assert len(source) < 1_500_000
    assert source.count("<h4") == 300
    assert source.count('class="judgement drawn"') == html.FAILED_CHARTS


def test_no_more_charts_are_drawn_than_a_page_can_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MOST_CHARTS", 1)
    report = reports.broken().to_json()
    # Those of failures come first; that of all p-values is always there.
    assert html.render(report).count("<svg") == 2
    assert '<div class="judgement drawn">' in html.render(report)


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_without_what_it_needs_it_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    for loaded in ("page", "charts"):
        monkeypatch.delitem(sys.modules, f"conformance.report.{loaded}", raising=False)
        monkeypatch.delattr(f"conformance.report.{loaded}", raising=False)
    with pytest.raises(ValueError, match=r"pip install 'sampling-conformance\[report\]'"):
        html.render(reports.right().to_json())
