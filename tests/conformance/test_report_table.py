"""A report on a terminal."""

from __future__ import annotations

import io
import re

from rich.console import Console

from conformance import Report
from conformance.report.table import show
from tests.conformance import reports


def shown(report: Report) -> str:
    console = Console(file=io.StringIO(), width=160)
    show(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def verdict(text: str, clause: str) -> str:
    (line,) = [line for line in text.splitlines() if line.strip().startswith(clause + " ")]
    return re.split(r" {2,}", line.strip())[2]


def test_every_status_is_told() -> None:
    text = shown(reports.with_every_status())
    assert verdict(text, "temperature/scale") == "expected failure"
    assert verdict(text, "calls/empty") == "unexpected pass"
    assert verdict(text, "draw/tail") == "skip"
    assert verdict(text, "top-p/crossing-token") == "fail"
    assert verdict(text, "proposed/clause") == "fail (proposed)"
    assert verdict(text, "graphs/replay-law") == "n/a"
    assert "1 x expected failure: known (https://example.org/issues/7)" in text
    assert "proposed, not counted: 2, of which 2 fail." in text
    assert "NOT CONFORMANT" in text


def test_failures_come_in_full_and_those_that_do_not_count_say_so() -> None:
    report = reports.with_every_status()
    text = shown(report)
    for result in report.results:
        if result.status == "fail":
            assert result.reproducer in text
            assert (f"{result.id}  proposed, not counted " in text) is not result.gating
    assert "unexpected pass: mended? (https://example.org/issues/8)" in text


def test_probes_that_work_are_told() -> None:
    text = shown(reports.with_every_status())
    assert "tried: cuda_graph: not claimed, and works" in text
    assert "tried: top_k_ties: claimed keep-all, but any fits" in text
    assert "sync_free" not in text
