"""A report as Markdown for a CI job."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from conformance.report import markdown
from tests.conformance import reports

Json = dict[str, Any]


def failures(text: str) -> int:
    return text.count("<details>")


def test_verdict_counts_clauses_and_reproducers() -> None:
    report = reports.broken().to_json()
    text = markdown.summary(report)
    assert text.startswith("## ✗ NOT CONFORMANT\n")
    assert f"{report['counts']['required']} required" in text
    assert "| <code>temperature/scale</code> | ✗ fail | Logits are divided by the temperature. |" in text
    failed = [result for result in report["results"] if result["status"] == "fail"]
    assert failures(text) == len(failed)
    for result in failed:
        assert f"```python\n{result['reproducer']}\n```" in text
    assert "against alpha =" in text
    assert text.endswith("Other clauses: 3 pass, 3 not applicable.\n")
    assert "left out" not in text


def test_a_right_sampler_needs_no_more_than_a_few_lines() -> None:
    text = markdown.summary(replace(reports.right(), selected=False).to_json())
    assert text.startswith("## ✓ conformant to spec")
    assert len(text) < 500
    assert failures(text) == 0


def test_what_else_is_told() -> None:
    text = markdown.summary(reports.with_every_status().to_json())
    assert "known (<https://example.org/issues/7>)" in text
    assert "| <code>proposed/clause</code> | ✗ fail 2 (proposed, not counted) |" in text
    assert "- cuda_graph: not claimed, and works\n- top_k_ties: claimed keep-all, but any fits" in text
    assert "sync_free" not in text
    assert "unexpected pass: mended? (<https://example.org/issues/8>)" in text
    assert "RuntimeError: <b>boom</b>\n```" in markdown.summary(reports.crashed().to_json())
    assert "The run was interrupted" in markdown.summary(reports.interrupted().to_json())


def test_hundreds_of_failures_fit_and_those_left_out_are_counted() -> None:
    text = markdown.summary(reports.many(700))
    assert 40_000 < len(text.encode()) < markdown.LIMIT
    (left_out,) = re.findall(r"\*(\d+) more are left out here", text)
    assert failures(text) + int(left_out) == 700


def test_each_list_is_bounded() -> None:
    report = reports.many(400)
    for number, result in enumerate(report["results"]):
        result["clause"] = f"many/{number}"
        result["must"] = "ä" * 500
        if number % 2:
            result.update(status="expected failure", reason=f"{number}: {'ö' * 500} (https://example.org/{number})")
    report["probes"] = [{"claim": "x" * 500, "claimed": "False", "tried": "True", "works": True, "checks": []}] * 50
    text = markdown.summary(report)
    assert len(text.encode()) < markdown.LIMIT
    assert text.count("left out here") == 4
    assert failures(text) > 0


def test_a_giant_failure_is_cut() -> None:
    report = reports.crashed().to_json()
    report["results"][0].update(error="x" * 10**6, reproducer="y" * 10**6)
    report["results"][0]["evidence"] = [
        {"passed": False, "asked": "a" * 10**6, "observed": "", "allowed": "", "p_value": None, "alpha": None}
    ]
    text = markdown.summary(report)
    assert len(text.encode()) < markdown.LIMIT
    assert failures(text) == 1 + report["counts"]["fail"] - 1


def test_no_text_breaks_out_of_its_place() -> None:
    report = reports.broken().to_json() | {"sampler": "a|b\n# c <script> `d` @someone *e*"}
    failed = next(result for result in report["results"] if result["status"] == "fail")
    failed.update(must="one | two\n\n| three", reproducer="print('````')\n</details>")
    text = markdown.summary(report)
    (line,) = [line for line in text.splitlines() if "someone" in line]
    assert line.startswith("<code>a&#124;b &#35; c &#60;script&#62; &#96;d&#96; &#64;someone &#42;e&#42;</code>")
    (row,) = [line for line in text.splitlines() if "three" in line]
    assert len(re.findall(r"(?<!\\)\|", row)) == 4
    assert "`````python\nprint('````')\n</details>\n`````\n" in text
