"""Several reports side by side, as one HTML page: which sampler fails what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conformance.report import BAD, view
from conformance.report.extra import needs_extra


@dataclass(frozen=True)
class _Cell:
    """A verdict in words. status: of a check; "" where there is none."""

    status: str
    words: str


def render(reports: Sequence[dict[str, Any]]) -> str:
    """The page, with the reports as columns in their order, and as rows every clause that one of them knows.

    reports: each as `Report.to_json` gives it or `conformance.report.schema.load` reads it. All text is escaped.
    Raises ValueError for no reports, and where jinja2 is not installed.
    """
    if not reports:
        raise ValueError("reports must be at least one, got none")
    with needs_extra("an HTML page"):
        from conformance.report import page  # noqa: PLC0415  # optional
    columns = [{clause.id: clause for clause in view.clauses(report)} for report in reports]
    # A clause's group is what comes before the slash.
    groups: dict[str, list[tuple[view.ClauseView, list[_Cell], bool]]] = {}
    for id in sorted({id for column in columns for id in column}):  # noqa: A001  # the field's name
        clause = next(column[id] for column in columns if id in column)
        specs = {report["spec"] for report, column in zip(reports, columns, strict=True) if id in column}
        cells = [_cell(id, *pair, specs) for pair in zip(reports, columns, strict=True)]
        calm = all(cell.status in {"pass", "not applicable", ""} for cell in cells)
        groups.setdefault(id.partition("/")[0], []).append((clause, cells, calm))
    claims = {name: [view.written(report["claims"].get(name)) for report in reports] for name in reports[0]["claims"]}
    return page.fill(
        "matrix.html",
        reports=[(report, view.tone(report), _failing(report)) for report in reports],
        groups=groups,
        uneven=sum(not calm for rows in groups.values() for *_, calm in rows),
        total=sum(map(len, groups.values())),
        claims={name: values for name, values in claims.items() if len(set(values)) > 1},
    )


def _cell(id: str, report: view.Json, column: dict[str, view.ClauseView], specs: set[str]) -> _Cell:  # noqa: A002  # the field's name
    """specs: those of which a report has the clause."""
    if id in column:
        return _Cell(column[id].verdict, column[id].words)
    if any(check.startswith(f"{id}/") for check in report["not_run"]):
        return _Cell("skip", "not run")
    return _Cell("", "not asked for" if report["spec"] in specs else "not in this spec")


def _failing(report: view.Json) -> str:
    """How much fails, in words."""
    failed = sum(report["counts"][status] for status in BAD)
    if not failed:
        return "no check fails"
    clauses = sum(bool(clause.failures) and not clause.proposed for clause in view.clauses(report))
    return f"{failed:,} of {report['counts']['run']:,} checks fail, in {clauses} clause{'s' if clauses > 1 else ''}"
