"""Reports side by side."""

from __future__ import annotations

import re
from typing import Any

import pytest

from conformance.report import matrix
from tests.conformance import reports
from tests.conformance.pages import Page


def row(source: str, title: str) -> list[str]:
    """The texts of a row's cells."""
    (found,) = [each for each in re.findall(r"<tr.*?</tr>", source, re.DOTALL)
                if re.search(rf'<th scope="row"[^>]*>{re.escape(title)}(?![\w/])', each)]  # fmt: skip
    return [Page(cell).text for cell in re.findall(r"<t[dh](?! scope=\"row).*?</t[dh]>", found, re.DOTALL)]


def test_a_cell_says_how_many_checks_have_the_verdict() -> None:
    source = matrix.render([reports.right().to_json(), reports.broken().to_json()])
    assert row(source, "sampler")[1].startswith("tests. broken: twice cpu, tier quick, spec ")
    assert row(source, "temperature/scale") == ["✓ pass", "✗ fail"]
    assert (
        row(source, "top-p/crossing-token") == ["✓ pass 3", "✗ fail 1 of 3"] or row(source, "top-p/crossing-token")[0]
    )
    assert row(source, "graphs/replay-law") == ["○ n/a 4", "○ n/a 4"]
    verdicts = row(source, "verdict")
    assert verdicts[0] == "! no failure among the selected checks no check fails"
    assert verdicts[1].startswith("✗ NOT CONFORMANT")


def test_only_claims_that_differ_are_shown() -> None:
    source = matrix.render([reports.right().to_json(), reports.broken().to_json()])
    assert row(source, "stream") == ["reference", "none"]
    assert "top_k_ties" not in source
    alone = matrix.render([reports.right().to_json()])
    assert "claims that differ" not in alone


def test_a_clause_that_a_report_lacks_is_not_taken_for_a_pass() -> None:
    one, other = reports.right().to_json(), reports.crashed().to_json()
    assert row(matrix.render([one, other]), "temperature/scale") == ["✓ pass", "not asked for"]
    newer = other | {"spec": "2099.1"}
    assert row(matrix.render([one, newer]), "temperature/scale") == ["✓ pass", "not in this spec"]
    stopped: dict[str, Any] = reports.interrupted().to_json()
    assert row(matrix.render([one, stopped]), "calls/empty") == ["✓ pass", "! not run"]


def test_every_status_has_a_word_and_proposed_clauses_a_mark() -> None:
    source = matrix.render([reports.with_every_status().to_json()])
    for words in ("✗ fail", "✗ unexpected pass", "~ expected failure", "! skip", "✓ pass"):
        assert words in Page(source).text
    assert re.search(r"proposed/clause\s*<span class=\"tag\">proposed</span>", source)


def test_rows_without_a_failure_can_be_hidden_and_others_not() -> None:
    source = matrix.render([reports.right().to_json(), reports.broken().to_json()])
    rows = re.findall(r'<tr(| class="calm-row")><th scope="row" class="id" title[^>]*>([\w/-]+)', source)
    calm = {clause: bool(mark) for mark, clause in rows}
    assert calm["calls/empty"]
    assert not calm["temperature/scale"]


def test_text_of_a_report_does_no_harm() -> None:
    report = reports.right().to_json()
    clean = Page(matrix.render([report]))
    page = Page(
        matrix.render([report | {"sampler": f"{report['sampler']}<script></b>", "verdict": "</style><img src=x>"}])
    )
    assert page.tags == clean.tags
    assert page.loads == clean.loads == [("link", "data:,")]


def test_no_reports_are_refused() -> None:
    with pytest.raises(ValueError, match="reports must be at least one"):
        matrix.render([])
