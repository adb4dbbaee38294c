"""A report as one HTML page that loads nothing, and is complete without its script."""

from __future__ import annotations

from typing import Any

from conformance.report import view
from conformance.report.extra import needs_extra

FAILED_CHARTS = 2
"""Charts of failing judgements for each clause: more of them show the same once again."""

MOST_CHARTS = 90
"""In one page: at some 12 kB each the page stays below 1.5 MB, and at some 80 ms below ten seconds."""


def render(report: dict[str, Any]) -> str:
    """The page.

    report: as `Report.to_json` gives it or `conformance.report.schema.load` reads it. All of its text is escaped.
    Raises ValueError where jinja2 or matplotlib is not installed.
    """
    with needs_extra("an HTML page"):
        from conformance.report import page  # noqa: PLC0415  # optional
    clauses = view.clauses(report)
    claims = view.claims(report)
    charts, overview = _charts(report, clauses)
    return page.fill(
        "report.html",
        report=report,
        tone=view.tone(report),
        numbers=view.numbers(report),
        failing=[clause for clause in clauses if clause.failures and not clause.proposed],
        expected=[result for result in report["results"] if result["status"] == "expected failure"],
        proposed=[clause for clause in clauses if clause.failures and clause.proposed],
        claims=claims,
        differing=[row for row in claims if row[3]],
        probes=view.probes(report),
        clauses=clauses,
        charts=charts,
        overview=overview,
        reasons=view.reasons(report),
        command=view.command(report),
    )


class _Charts(dict[int, Any]):
    """Drawn charts by the judgement that they belong to."""

    def of(self, judgement: view.Json) -> Any:
        return self.get(id(judgement))


def _charts(report: view.Json, clauses: list[view.ClauseView]) -> tuple[_Charts, Any]:
    """Those of the first failing judgements of each clause and of its weakest one, and that of all p-values."""
    with needs_extra("a chart"):
        from markupsafe import Markup  # noqa: PLC0415  # optional

        from conformance.report import charts  # noqa: PLC0415  # optional
    chosen: list[view.Json] = []
    for clause in clauses:
        failed = [each for each in clause.judgements if not each["passed"] and each["chart"] is not None]
        weakest = clause.weakest_chart
        chosen += failed[:FAILED_CHARTS] or ([weakest] if weakest else [])
    chosen.sort(key=lambda each: each["passed"])
    drawn = _Charts()
    for number, each in enumerate(chosen[:MOST_CHARTS]):
        drawn[id(each)] = Markup(charts.svg(each, f"chart{number}"))  # noqa: S704  # its text was escaped
    judgements = [
        (result["clause"], each["p_value"], each["alpha"])
        for result in report["results"]
        for each in result["evidence"]
        if each["p_value"] is not None and each["alpha"]
    ]
    overview = Markup(charts.p_values(judgements, "overview")) if judgements else ""  # noqa: S704  # likewise
    return drawn, overview
